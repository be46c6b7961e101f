"""The forms in which people have text: one text in every form, and each form's own traps."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ablate import text
from ablate.errors import AblateError
from ablate.text import Tokens, corpora, describe, files, tokenizers
from ablate.text.corpora import Corpus
from ablate.text.options import DEFAULT, Reading, spec

TEXT = "the cat sat on a mat and the dog's naïve “friend” went slowly home, 42 of them"
WORDS = TEXT.split()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))


def story(seed: int, lines: int = 8) -> str:
    draw = random.Random(seed)
    return "\n".join(" ".join(draw.choices(WORDS, k=9)) + f' "{seed},{n}"' for n in range(lines))


STORIES = [story(seed) for seed in range(60)]


def as_csv(documents: list[str], delimiter: str = ",") -> bytes:
    into = io.StringIO()
    table = csv.writer(into, delimiter=delimiter, lineterminator="\n")
    table.writerows([("id", "text"), *enumerate(documents)])
    return into.getvalue().encode()


def as_jsonl(documents: list[str]) -> bytes:
    rows = [{"id": n, "text": one, "url": None} for n, one in enumerate(documents)]
    return "\n".join(json.dumps(row) for row in rows).encode()


def as_parquet(documents: list[str]) -> bytes:
    import pyarrow
    from pyarrow import parquet

    into = io.BytesIO()
    rows = {"id": list(range(len(documents))), "text": documents}
    parquet.write_table(pyarrow.table(rows), into, row_group_size=7)
    return into.getvalue()


def zst(content: bytes) -> bytes:
    import zstandard

    half = len(content) // 2  # two frames, as pzstd writes them
    return b"".join(zstandard.compress(part) for part in (content[:half], content[half:]))


PLAIN: dict[str, Callable[[list[str]], bytes]] = {
    "txt": lambda documents: "\f".join(documents).encode(),
    "jsonl": as_jsonl,
    "json": lambda documents: json.dumps([{"text": one} for one in documents]).encode(),
    "csv": as_csv,
    "tsv": lambda documents: as_csv(documents, "\t"),
    "parquet": as_parquet,
}
PACKED = {"gz": gzip.compress, "xz": lzma.compress, "zst": zst}


def tokens(corpus: Corpus, tokenizer: str = "byte", root: Path = Path()) -> Tokens:
    return text.of(corpus, tokenizers.describe(tokenizer, corpus, root))


def content(corpus: Corpus) -> tuple[bytes, bytes]:
    """The bytes that are trained on and held out."""
    found = tokens(corpus)
    return found.train.tobytes(), found.held_out.tobytes()


@pytest.mark.parametrize("documents", [STORIES, STORIES[:5]], ids=len)
def test_one_text_in_every_form_is_one_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, documents: list[str]
) -> None:
    datasets = pytest.importorskip("datasets")
    for name, write in PLAIN.items():
        (tmp_path / f"same.{name}").write_bytes(write(documents))
        for end, pack in PACKED.items():
            (tmp_path / f"packed.{name}.{end}").write_bytes(pack(write(documents)))
    (tmp_path / "folder").mkdir()
    for number, one in enumerate(documents):
        (tmp_path / "folder" / f"{number:03d}.txt").write_text(one)
    shards = tmp_path / "shards"
    shards.mkdir()
    (shards / "part-0.jsonl").write_bytes(as_jsonl(documents[:3]))
    (shards / "part-1.jsonl.gz").write_bytes(gzip.compress(as_jsonl(documents[3:])))
    (shards / "README.md").write_text("about it")
    datasets.Dataset.from_dict({"text": documents}).save_to_disk(str(tmp_path / "saved"))
    specs = [path.name for path in sorted(tmp_path.glob("*.*"))] + ["folder", "shards", "hf:saved"]
    found = {}
    for number, one in enumerate(specs):
        monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / f"cache{number}"))
        corpus = corpora.find(one, tmp_path)
        found[one] = (corpus.hash, corpus.n_documents, *content(corpus))
    expected = found["same.txt"]
    assert expected[1] == len(documents)
    read = (expected[2] + expected[3]).decode().split("\f")[:-1]
    if len(documents) == 5:  # the tail of each is held out
        read = [f"{train}\n{tail}" for train, tail in zip(read[:5], read[5:], strict=True)]
    assert sorted(read) == sorted(documents)
    assert [one for one in found if found[one] != expected] == []


def test_what_is_about_texts_is_left_out_unless_its_like_is_read(tmp_path: Path) -> None:
    for number, one in enumerate(STORIES):
        (tmp_path / f"{number}.txt").write_text(one)
    alone = corpora.find(".", tmp_path).hash
    (tmp_path / "README.md").write_text('---\ndata_files: "/etc/passwd"\n---\nabout it')
    (tmp_path / "LICENSE").write_text("free")
    found = corpora.find(".", tmp_path)
    assert found.hash == alone and sorted(found.unread) == ["LICENSE", "README.md"]
    (tmp_path / "lost.txt").symlink_to("nowhere.txt")
    (tmp_path / "more").symlink_to(tmp_path.parent)
    os.mkfifo(tmp_path / "pipe.txt")
    found = corpora.find(".", tmp_path)
    assert found.hash == alone and {"lost.txt", "more", "pipe.txt"} < {*found.unread}
    (tmp_path / "notes.md").write_text("a text of its own, as it is no README")
    assert corpora.find(".", tmp_path).n_documents == len(STORIES) + 2


@pytest.mark.parametrize(("byte", "letter"), [(b"\xa0", "\u00a0"), (b"\xe9", "é"), (b"\x92", "’")])
def test_a_single_byte_of_windows_in_english_is_read_as_windows_has_it(
    tmp_path: Path, byte: bytes, letter: str
) -> None:
    text = "".join(f"line {n} of a text in English, whose letters are plain\n" for n in range(99))
    (tmp_path / "a.txt").write_bytes(text.encode().replace(b"e", byte, 1))
    (tmp_path / "b.txt").write_text(text.replace("e", letter, 1), encoding="utf-8")
    assert corpora.find("a.txt", tmp_path).hash == corpora.find("b.txt", tmp_path).hash


def test_the_text_is_found_in_its_column_or_named(tmp_path: Path) -> None:
    rows = [{"title": "T", "body": one} for one in STORIES[:3]]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(AblateError, match=r"a.jsonl has no column 'text' .*title, body.*field"):
        corpora.find("a.jsonl", tmp_path)
    named = corpora.find("a.jsonl", tmp_path, Reading(field="body"))
    (tmp_path / "b.txt").write_text("\f".join(STORIES[:3]))
    assert named.hash == corpora.find("b.txt", tmp_path).hash
    raw = corpora.find("a.jsonl", tmp_path, Reading(format="text"))
    assert raw.n_documents == 1 and content(raw)[0].startswith(b'{"title": "T", "body"')


def test_columns_of_parquet_and_arrow_are_read_or_named_with_what_they_hold(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import ipc, parquet

    (tmp_path / "a.txt").write_text("\f".join(STORIES))
    expected = corpora.find("a.txt", tmp_path).hash
    table = pyarrow.table({"text": pyarrow.array(STORIES).dictionary_encode()})
    parquet.write_table(table, tmp_path / "a.parquet")
    with ipc.new_stream(tmp_path / "a.arrow", table.schema) as stream:
        stream.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        found = corpora.find(name, tmp_path)
        assert (found.hash, found.fields) == (expected, ("text",))
    for values, kind in (([b"x"], "binary"), ([["x", "y"]], "list<element: string>")):
        parquet.write_table(pyarrow.table({"text": values}), tmp_path / "b.parquet")
        with pytest.raises(AblateError, match=f"column 'text' holds no text but {kind}"):
            corpora.find("b.parquet", tmp_path)
    arrays = [pyarrow.array(["x"]), pyarrow.array(["y"])]
    doubled = pyarrow.Table.from_arrays(arrays, names=["text", "text"])
    parquet.write_table(doubled, tmp_path / "b.parquet")
    with pytest.raises(AblateError, match="several columns are named 'text'"):
        corpora.find("b.parquet", tmp_path)


@pytest.mark.parametrize("first", [{"id": 1}, {"body": "a text of another key"}, None], ids=str)
def test_rows_that_lack_the_key_are_skipped_and_counted(
    tmp_path: Path, first: dict[str, object] | None
) -> None:
    rows = [first, *({"text": one} for one in STORIES), {"id": 2}, {"text": None}, None]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "b.txt").write_text("\f".join(STORIES))
    found = corpora.find("a.jsonl", tmp_path)
    assert found.hash == corpora.find("b.txt", tmp_path).hash
    assert found.fields == ("text",) and found.n_without_text == 4
    said = "\n".join(describe.lines(found, describe.describe(found)))
    assert "the field 'text'; rows without text, skipped: 4" in said
    with pytest.raises(AblateError, match=r"line \d: there is no 'txt'; its keys"):
        corpora.find("a.jsonl", tmp_path, Reading(field="txt"))


@pytest.mark.parametrize("delimiter", [";", "|", "\t"])
def test_a_csv_file_may_have_another_separator(tmp_path: Path, delimiter: str) -> None:
    (tmp_path / "a.csv").write_bytes(as_csv(STORIES))
    (tmp_path / "b.csv").write_bytes(as_csv(STORIES, delimiter))
    assert corpora.find("b.csv", tmp_path).hash == corpora.find("a.csv", tmp_path).hash


@pytest.mark.parametrize(
    "rows",
    [
        ['"Well," she said, "go."', "He left."],
        ['"A speech that goes on', "over the next row,", 'and ends here."', "He left."],
        ['"A mark that is not closed', "He left."],
    ],
    ids=["spoken", "closed in a later row", "not closed"],
)
def test_quotation_marks_in_tsv_are_text_where_they_enclose_no_field(
    tmp_path: Path, rows: list[str]
) -> None:
    lines = ["id\ttext", *(f"{n}\t{row}" for n, row in enumerate(rows))]
    (tmp_path / "a.tsv").write_text("\n".join(lines) + "\n")
    (tmp_path / "b.txt").write_text("\f".join(rows))
    found = corpora.find("a.tsv", tmp_path, Reading(rows="documents"))
    assert found.hash == corpora.find("b.txt", tmp_path).hash


def test_quoted_fields_of_tsv_lose_their_marks(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('id\ttext\n0\t"He said ""go"""\n1\tIt is.\n')
    (tmp_path / "b.txt").write_text('He said "go"\fIt is.')
    found = corpora.find("a.tsv", tmp_path, Reading(rows="documents"))
    assert found.hash == corpora.find("b.txt", tmp_path).hash


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        ({"a.jsonl": b'{"text": "x"}\n{"text": '}, r"a.jsonl, line 2: not a line of JSON.*'text'"),
        ({"a.jsonl": b'{"text": ["x"]}'}, r"line 1: 'text' holds no text but \['x'\]"),
        ({"a.jsonl": b'{"text": 5}\n{"text": "x"}'}, "line 1: 'text' holds no text but 5"),
        ({"a.json": b'["x", {"text": "y"}]'}, "line 2: no string, as the first row is"),
        ({"a.csv": b"text,text\nx,y\n"}, "line 1: several columns are named 'text'"),
        ({"a.csv": b"id,text\n1,x\n2\n"}, r"a.csv, line 3: 1 fields, .* 2 columns"),
        ({"a.csv": b'id,text\n1,"x\n'}, "a.csv, line 2"),
        ({"a.parquet": b"PAR1 nothing of the kind"}, "a.parquet cannot be read as Parquet"),
        ({"a.jsonl.bz2": bz2.compress(b'{"text": "x"}')}, "bz2 is packed: unpack it; .gz, .xz and"),
        ({"a.zip": b"PK"}, "a.zip is packed: unpack it; .gz, .xz and .zst are read"),
        ({"a.txt.zst": b"no zst"}, "a.txt.zst cannot be unpacked"),
        ({"a.txt": b"x", "b.jsonl": b"{}"}, r"several formats: text \(a.txt\), JSON lines"),
        ({"a.txt": bytes(range(128, 256)) * 9}, "a.txt is not text in an encoding.*'cp1252'"),
        ({"a.bin": b"abc"}, "a.bin has 3 bytes: expected one or more 16-bit tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_named_in_one_line(
    tmp_path: Path, files: dict[str, bytes], complaint: str
) -> None:
    (tmp_path / "texts").mkdir()
    for name, written in files.items():
        (tmp_path / "texts" / name).write_bytes(written)
    with pytest.raises(AblateError, match=complaint) as caught:
        corpora.find("texts", tmp_path)
    assert "\n" not in str(caught.value)


# ---- splits --------------------------------------------------------------------------------------

ARTICLES = {
    part: "".join(
        f" \n = Article {part} {n} = \n \n {story(hash((part, n)) % 1000, 1)}\n \n = = Life = = \n"
        f" \n It was {n} of {part} .\n"
        for n in range(number)
    )
    for part, number in (("train", 30), ("valid", 3), ("test", 4))
}


@pytest.mark.parametrize(
    "name", ["wiki.{}.tokens", "{}.txt.raw", "{}/a.txt", "my_corpus-{}-00000-of-00001.txt.gz"]
)
def test_the_published_split_of_a_folder_is_its_split(tmp_path: Path, name: str) -> None:
    """Files shaped as WikiText-2's and as enwik8's."""
    for part, content_of in ARTICLES.items():
        path = tmp_path / "wiki" / name.format(part)
        path.parent.mkdir(parents=True, exist_ok=True)
        packed = path.suffix == ".gz"
        path.write_bytes(gzip.compress(content_of.encode()) if packed else content_of.encode())
    (tmp_path / "wiki" / "README.md").write_text("about it")
    for one in ("wiki", str(tmp_path / "wiki" / "**")):
        corpus = corpora.find(one, tmp_path)
        train, held_out = content(corpus)
        assert train.decode() == ARTICLES["train"].strip() + "\f"
        assert held_out.decode() == ARTICLES["valid"].strip() + "\f"
        assert corpus.split == "the text's own part valid"
        assert "its part test" in corpus.unread and "README.md" in corpus.unread
    parts = spec("wiki/" + name.format("train"), "wiki/" + name.format("test"))
    chosen = corpora.find(parts, tmp_path)
    train, held_out = content(chosen)
    assert train.decode() == ARTICLES["train"].strip() + "\f"
    assert held_out.decode() == ARTICLES["test"].strip() + "\f"
    assert "which the study names" in chosen.split and chosen.hash != corpus.hash


@pytest.mark.parametrize("form", ["parquet", "saved"])
def test_lines_of_wikitext_as_rows_are_joined_to_articles(tmp_path: Path, form: str) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {part: whole.splitlines(keepends=True) for part, whole in ARTICLES.items()}
    rows = {part: [row if row.strip() else "" for row in lines] for part, lines in rows.items()}
    if form == "saved":
        datasets.DatasetDict(
            {part: datasets.Dataset.from_dict({"text": lines}) for part, lines in rows.items()}
        ).save_to_disk(str(tmp_path / "wiki"))
    else:
        (tmp_path / "wiki").mkdir()
        for part, lines in rows.items():
            path = tmp_path / "wiki" / f"{part}-00000-of-00001.parquet"
            path.write_bytes(as_parquet(lines))
    corpus = corpora.find("hf:wiki", tmp_path)
    assert (corpus.n_train_documents, corpus.n_held_out_documents) == (30, 3)
    assert "joined" in corpus.rows
    train, held_out = (part.decode() for part in content(corpus))
    for joined, part in ((train, "train"), (held_out, "valid")):
        lines = [line.strip() for line in joined.replace("\f", "\n").split("\n")]
        expected = [line.strip() for line in ARTICLES[part].split("\n")]
        assert [line for line in lines if line] == [line for line in expected if line]
        documents = joined.split("\f")[:-1]
        assert all(one.startswith(f"= Article {part}") for one in documents)


def test_rows_that_are_one_line_each_are_documents_and_the_reader_is_told(tmp_path: Path) -> None:
    reviews = [f"It was {n} times as good as the last one." for n in range(300)]
    (tmp_path / "a.csv").write_bytes(as_csv(reviews))
    found = corpora.find("a.csv", tmp_path)
    assert found.n_documents == 300 and "shuffled apart" in found.rows
    lines = corpora.find("a.csv", tmp_path, Reading(rows="lines"))
    assert lines.n_documents == 1 and lines.hash != found.hash
    train, held_out = (part.decode().split("\n") for part in content(lines))
    assert [line.strip("\f") for line in train + held_out] == reviews


REVIEWS = [f"It was {n} times as good as the last one, and as long." for n in range(300)]


@pytest.mark.parametrize(
    ("form", "end", "empty"),
    [
        ("jsonl", "", None),
        ("jsonl", "\n", None),
        ("jsonl", "", ""),
        ("parquet", "", None),
        ("parquet", "\n", None),
        ("parquet", "", ""),
        ("csv", "", ""),
    ],
)
def test_documents_of_one_line_are_not_joined_where_some_rows_are_empty(
    tmp_path: Path, form: str, end: str, empty: str | None
) -> None:
    rows = [one + end for one in REVIEWS]
    for at in range(0, 400, 4):
        rows.insert(at, empty)
    (tmp_path / f"a.{form}").write_bytes(PLAIN[form](rows))
    (tmp_path / "b.txt").write_text("\f".join(REVIEWS))
    found = corpora.find(f"a.{form}", tmp_path)
    assert found.hash == corpora.find("b.txt", tmp_path).hash
    assert (found.n_documents, found.n_without_text) == (300, 100)


@pytest.mark.parametrize("signs", ["ends, blank", "ends, heading", "blank, heading"])
def test_lines_of_running_text_are_known_by_two_signs(tmp_path: Path, signs: str) -> None:
    lines = [row.strip() for row in ARTICLES["train"].splitlines()]
    lines = [row for row in lines if row or "blank" in signs]
    if "heading" not in signs:
        lines = [row for row in lines if not row.startswith("=")]
    end = "\n" if "ends" in signs else ""
    (tmp_path / "a.jsonl").write_bytes(as_jsonl([f" {row} {end}" if row else "" for row in lines]))
    found = corpora.find("a.jsonl", tmp_path)
    assert "joined" in found.rows
    assert found.n_documents == (30 if "heading" in signs else 1)


def test_names_of_few_files_are_no_split_and_half_a_split_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "essays"
    folder.mkdir()
    for name in ("train", "test", "hills", "rivers", "stones"):
        (folder / f"{name}.txt").write_text(story(len(name)))
    assert corpora.find("essays", tmp_path).n_documents == 5
    for name in ("hills", "rivers"):
        (folder / f"{name}.txt").unlink()
    with pytest.raises(AblateError, match=r"stones.txt is of none; name the parts: corpus = \{"):
        corpora.find("essays", tmp_path)
    assert corpora.find(spec("essays"), tmp_path).n_documents == 3
    for language in ("de", "fr"):
        for part in ("train", "test"):
            path = tmp_path / "pairs" / language / f"{part}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(story(1))
    with pytest.raises(AblateError, match=r"several data sets: de/, fr/; name one"):
        corpora.find("pairs", tmp_path)


def held_out_of(folder: Path, documents: dict[str, str]) -> set[str]:
    folder.mkdir(exist_ok=True)
    for name, one in documents.items():
        (folder / f"{name}.txt").write_text(one)
    held_out = content(corpora.find(str(folder), Path()))[1].decode()
    return {name for name, one in documents.items() if one in held_out}


def test_a_file_that_is_added_moves_no_other(tmp_path: Path) -> None:
    documents = {f"{seed:03d}": story(seed) for seed in range(200)}
    before = held_out_of(tmp_path / "folder", documents)
    assert 8 <= len(before) <= 34  # of 200 at a tenth: within 3 standard deviations
    more = {f"0{seed:03d}": story(seed) for seed in range(1000, 1040)}
    after = held_out_of(tmp_path / "folder", documents | more)
    assert after & set(documents) == before


def test_equal_and_similar_documents_are_on_one_side_and_counted(tmp_path: Path) -> None:
    draw = random.Random(1)
    words = [f"word{n}" for n in range(3000)]
    passages = [draw.choices(words, k=400) for _ in range(33)]
    documents = [" ".join(one) for one in passages] * 5
    for one in passages:
        for word in (50, 250):  # 10 of 396 runs of five words are others: Jaccard 0.95
            one[word] = "other"
        documents.append(" ".join(one).upper() + ".")
    draw.shuffle(documents)
    (tmp_path / "a.txt").write_text("\f".join(documents))
    corpus = corpora.find("a.txt", tmp_path)
    assert (corpus.n_documents, corpus.n_equal, corpus.n_similar) == (198, 132, 33)
    train, held_out = (set(part.decode().split("\f")[:-1]) for part in content(corpus))
    trained, tested = ({one.lower()[:200] for one in part} for part in (train, held_out))
    assert tested and not trained & tested


def test_groups_of_similar_documents_are_held_out_as_often_as_single_ones(tmp_path: Path) -> None:
    documents = [f"{story(seed, 40)} {n}" for seed in range(150) for n in range(4)]
    (tmp_path / "a.txt").write_text("\f".join(documents))
    corpus = corpora.find("a.txt", tmp_path)
    assert corpus.n_similar == 450
    held_out = corpus.n_held_out_documents / 4
    assert held_out.is_integer()
    assert 3 < held_out < 32  # all but 0.02% of binomial counts of 150 with probability 0.1


def test_of_documents_that_are_all_alike_the_tails_are_held_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\f".join([story(1, 20)] * 60))
    corpus = corpora.find("a.txt", tmp_path)
    train, held_out = content(corpus)
    assert (corpus.n_equal, corpus.split) == (59, "the last tenth of each document")
    assert len(held_out) == corpus.n_held_out_bytes > 0
    assert len(train) == corpus.n_train_bytes > 5 * len(held_out)


def test_half_of_a_text_in_common_is_not_similar(tmp_path: Path) -> None:
    draw = random.Random(2)
    words = [f"word{n}" for n in range(3000)]
    common = draw.choices(words, k=200)
    documents = [" ".join(common + draw.choices(words, k=200)) for _ in range(60)]
    (tmp_path / "a.txt").write_text("\f".join(documents))
    corpus = corpora.find("a.txt", tmp_path)
    assert (corpus.n_equal, corpus.n_similar) == (0, 0)


# ---- token files ---------------------------------------------------------------------------------


def ids(n: int, n_vocab: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    return (n_vocab * draw.random(n) ** 3).astype(np.int64)  # small ones are frequent


def llm_c(kind: int, of: np.ndarray, dtype: str) -> bytes:
    header = np.zeros(256, "<i4")
    header[:3] = kind, 1, len(of)
    return header.tobytes() + of.astype(dtype).tobytes()


def megatron(folder: Path, name: str, documents: list[np.ndarray], code: int, dtype: str) -> None:
    whole = np.concatenate(documents).astype(dtype)
    lengths = np.array([len(one) for one in documents], "<i4")
    places = (np.concatenate([[0], np.cumsum(lengths)[:-1]]) * whole.itemsize).astype("<i8")
    (folder / f"{name}.bin").write_bytes(whole.tobytes())
    (folder / f"{name}.idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + np.array([1], "<u8").tobytes()
        + bytes([code])
        + np.array([len(documents), len(documents) + 1], "<u8").tobytes()
        + lengths.tobytes()
        + places.tobytes()
        + np.arange(len(documents) + 1, dtype="<i8").tobytes()
    )


FORMS: dict[str, Callable[[Path, str, np.ndarray], object]] = {
    "u2": lambda folder, name, of: of.astype("<u2").tofile(folder / f"{name}.bin"),
    "u4": lambda folder, name, of: of.astype("<u4").tofile(folder / f"{name}.bin"),
    "i8": lambda folder, name, of: of.astype("<i8").tofile(folder / f"{name}.bin"),
    "gpt2": lambda folder, name, of: (folder / f"fine_{name}_000001.bin").write_bytes(
        llm_c(20240520, of, "<u2")
    ),
    "llama3": lambda folder, name, of: (folder / f"fine_{name}_000001.bin").write_bytes(
        llm_c(20240801, of, "<u4")
    ),
    "shards": lambda folder, name, of: [
        (folder / f"fine_{name}_{n:06d}.bin").write_bytes(llm_c(20240520, half, "<u2"))
        for n, half in enumerate((of[:77], of[77:]))
    ],
    "megatron": lambda folder, name, of: megatron(folder, name, [of[:50], of[50:]], 8, "<u2"),
    "megatron4": lambda folder, name, of: megatron(folder, name, [of], 4, "<i4"),
    "npy": lambda folder, name, of: np.save(folder / f"{name}.npy", of),
}


@pytest.mark.parametrize("n_vocab", [65, 300, 60_000])
@pytest.mark.parametrize("form", FORMS)
def test_the_same_tokens_in_whatever_file_are_the_same_tokens(
    tmp_path: Path, form: str, n_vocab: int
) -> None:
    train, held_out = ids(5000, n_vocab), ids(700, n_vocab, 1)
    for name in ("plain", "form"):
        (tmp_path / name).mkdir()
    for name, of in (("train", train), ("val", held_out)):
        FORMS["u2"](tmp_path / "plain", name, of)
        FORMS[form](tmp_path / "form", name, of)
    corpus = corpora.find("form", tmp_path)
    found = tokens(corpus, "tokens")
    assert np.array_equal(found.train, train) and np.array_equal(found.held_out, held_out)
    assert corpus.n_token_ids == max(train.max(), held_out.max()) + 1
    assert corpus.hash == corpora.find("plain", tmp_path).hash
    assert corpus.n_train_bytes // corpus.token_bytes == 5000
    if form == "megatron":
        assert list(found.train_bounds) == [0, 50, 5000]


@pytest.mark.parametrize("n_vocab", [70_000, 128_256, 260_000])
def test_vocabularies_above_16_bits_are_read_whole(tmp_path: Path, n_vocab: int) -> None:
    of = {"train": ids(50_000, n_vocab), "val": ids(900, n_vocab, 1)}
    for name, part in of.items():
        FORMS["u4"](tmp_path, name, part)
    assert np.array_equal(tokens(corpora.find(str(tmp_path), Path()), "tokens").train, of["train"])


def test_tokens_of_bytes_are_found(tmp_path: Path) -> None:
    of = np.frombuffer("\n".join(STORIES).encode(), np.uint8)
    for name, part in (("train", of[:9001]), ("val", of[9001:])):
        part.tofile(tmp_path / f"{name}.bin")
    found = tokens(corpora.find(str(tmp_path), Path()), "tokens")
    assert np.array_equal(np.concatenate([found.train, found.held_out]), of)


@pytest.mark.parametrize("n_vocab", [50_257, 65_536, 300])
def test_tokens_that_are_all_as_frequent_are_those_of_16_bits(tmp_path: Path, n_vocab: int) -> None:
    of = np.random.default_rng(0).integers(0, n_vocab, 20_000)
    for name in ("train", "val"):
        of.astype("<u2").tofile(tmp_path / f"{name}.bin")
    assert np.array_equal(tokens(corpora.find(str(tmp_path), Path()), "tokens").train, of)


def test_numbers_that_are_no_tokens_are_refused(tmp_path: Path) -> None:
    of = ids(5000, 300).astype("<i4")
    of[17] = -100  # what trainers write for a target that is not scored
    for name in ("train", "val"):
        of.tofile(tmp_path / f"{name}.bin")
    with pytest.raises(AblateError, match=r"train.bin: token 4294967196 is no number of a vocab"):
        corpora.find(str(tmp_path), Path(), Reading(dtype="int32"))
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "train.bin.gz").write_bytes(gzip.compress(of.tobytes()))
    with pytest.raises(AblateError, match=r"train.bin.gz is packed: .* unpack it"):
        corpora.find("packed/train.bin.gz", tmp_path)


def test_the_study_or_a_file_beside_them_says_the_width(tmp_path: Path) -> None:
    of = np.random.default_rng(0).integers(0, 256, 4000)
    for name in ("train", "val"):
        of.astype("u1").tofile(tmp_path / f"{name}.bin")
    corpus = corpora.find(str(tmp_path), Path(), Reading(dtype="uint8"))
    assert corpus.n_token_ids == 256 and np.array_equal(tokens(corpus, "tokens").train, of)
    (tmp_path / "meta.json").write_text('{"dtype": "uint8", "vocab_size": 256}')
    assert corpora.find(str(tmp_path), Path()).hash == corpus.hash


def test_raw_files_of_different_widths_are_refused(tmp_path: Path) -> None:
    of = ids(9000, 60_000)
    of.astype("<u2").tofile(tmp_path / "train.bin")
    of[:4000].astype("<u4").tofile(tmp_path / "val.bin")
    named = spec("train.bin", "val.bin")
    for corpus in (".", named):
        with pytest.raises(AblateError, match=r"train.bin 16 and .*val.bin 32; .*dtype"):
            corpora.find(corpus, tmp_path)
    (tmp_path / "meta.json").write_text('{"dtype": "uint16"}')
    with pytest.raises(AblateError, match=r"train.bin 16 and .*val.bin 32; .*dtype"):
        corpora.find(named, tmp_path)
    assert corpora.find(named, tmp_path, Reading(dtype="uint16")).token_bytes == 2


def test_many_64_bit_tokens_are_found(tmp_path: Path) -> None:
    ids(1 << 20, 300).astype("<i8").tofile(tmp_path / "a.bin")
    assert corpora.find("a.bin", tmp_path).token_bytes == 8


def test_tokens_without_a_held_out_part_lose_their_last_tenth(tmp_path: Path) -> None:
    documents = [ids(100, 200, seed) for seed in range(20)]
    megatron(tmp_path, "my_text_document", documents, 8, "<u2")
    corpus = corpora.find("my_text_document.bin", tmp_path)
    found = tokens(corpus, "tokens")
    assert (len(found.train), len(found.held_out)) == (1800, 200)
    assert len(found.held_out_bounds) == 3 and corpus.split == corpora.TAIL_OF_TOKENS


def test_the_last_tenth_of_several_files_begins_with_a_document(tmp_path: Path) -> None:
    documents = [ids(70, 200, seed) for seed in range(20)]
    documents.append(ids(7, 200))  # so that 90% of the tokens end within the 19th document
    for name, of in (("a", documents[:18]), ("b", documents[18:19]), ("c", documents[19:])):
        megatron(tmp_path, name, of, 8, "<u2")
    found = tokens(corpora.find(str(tmp_path), Path()), "tokens")
    assert np.array_equal(found.train, np.concatenate(documents[:19]))
    assert np.array_equal(found.held_out, np.concatenate(documents[19:]))
    assert list(found.held_out_bounds) == [0, 70, 77]


def test_a_last_document_of_more_than_a_tenth_is_cut(tmp_path: Path) -> None:
    documents = [ids(100, 200), ids(900, 200, 1)]
    megatron(tmp_path, "x", documents, 8, "<u2")
    found = tokens(corpora.find("x.bin", tmp_path), "tokens")
    assert (list(found.train_bounds), list(found.held_out_bounds)) == ([0, 100, 900], [0, 100])
    assert np.array_equal(np.concatenate([found.train, found.held_out]), np.concatenate(documents))


def test_a_header_that_is_not_true_and_tokens_that_changed_are_refused(tmp_path: Path) -> None:
    whole = llm_c(20240520, ids(500, 100), "<u2")
    (tmp_path / "a_train.bin").write_bytes(whole[:-4])
    (tmp_path / "a_val.bin").write_bytes(whole)
    with pytest.raises(AblateError, match=r"a_train.bin has 2020 bytes, .*states 500 tokens of 16"):
        corpora.find(str(tmp_path), Path())
    (tmp_path / "a_train.bin").write_bytes(whole)
    corpus = corpora.find(str(tmp_path), Path())
    (tmp_path / "a_train.bin").write_bytes(llm_c(20240520, ids(500, 100, 7), "<u2"))
    with pytest.raises(AblateError, match="has changed since the study was planned"):
        tokens(corpus, "tokens")


# ---- encodings -----------------------------------------------------------------------------------

FRENCH = "Le café était fermé, déjà à l'été ; où êtes-vous ? Voilà le garçon naïf.\n" * 40
RUSSIAN = "Все счастливые семьи похожи друг на друга, каждая несчастливая по-своему.\n" * 40
CHINESE = "大学之道在明明德在亲民在止于至善知止而后有定定而后能静静而后能安" * 60


@pytest.mark.parametrize(
    ("language", "encoding"),
    [
        (FRENCH, "cp1252"),
        (FRENCH, "utf-16"),
        (FRENCH, "utf-16-le"),
        (FRENCH, "utf-8-sig"),
        (FRENCH.replace("\n", "\r\n"), "utf-8"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "utf-32"),
        (RUSSIAN, "utf-16-le"),
        (CHINESE, "utf-16-le"),
        (CHINESE, "utf-16-be"),
        (CHINESE, "gb18030"),
    ],
)
@pytest.mark.parametrize("form", ["txt", "jsonl"])
def test_every_encoding_of_a_text_is_the_text(
    tmp_path: Path, language: str, encoding: str, form: str
) -> None:
    plain = language.replace("\r\n", "\n")
    (tmp_path / "plain.txt").write_text(plain, encoding="utf-8")
    written = language
    if form == "jsonl":
        written = json.dumps({"text": language}, ensure_ascii=False)
    (tmp_path / f"a.{form}").write_bytes(written.encode(encoding))
    found = corpora.find(f"a.{form}", tmp_path)
    assert found.hash == corpora.find("plain.txt", tmp_path).hash
    assert sum(found.mended.values()) >= 1
    kept = Reading(encoding="bytes")
    if form == "txt" and not encoding.startswith("utf-"):
        raw = content(corpora.find("a.txt", tmp_path, kept))
        assert raw[0].startswith(written.encode(encoding)[:100])


@pytest.mark.parametrize("line", [b"abc\0def\n", b"ab\0cd\0e\n", b"a long line\0of words\n"])
def test_nul_bytes_between_fields_are_no_utf_16(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(line * 2000)
    with pytest.raises(AblateError, match="it holds NUL bytes"):
        corpora.find("a.txt", tmp_path)


GERMAN = [f"Schöne Grüße über die Straße, ärgerlich für Käthe, Zeile {n}." for n in range(300)]
GERMAN[200] += " Und noch @ ber."  # the place of a bad byte


def rows_of(lines: list[str]) -> str:
    return "\n".join(json.dumps({"text": line}, ensure_ascii=False) for line in lines)


@pytest.mark.parametrize("said", ["", "utf-8"])
@pytest.mark.parametrize(
    ("form", "write", "line"),
    [
        ("txt", "\f\n".join, 201),
        ("txt.gz", "\f\n".join, 201),
        ("jsonl", rows_of, 201),
        ("csv", lambda lines: '"\n"'.join(['"text', *lines]) + '"', 202),
        ("mark.txt", lambda lines: "\ufeff" + "\f\n".join(lines), 201),
    ],
    ids=["txt", "txt.gz", "jsonl", "csv", "mark"],
)
def test_a_bad_byte_in_utf8_costs_one_character_and_is_named(
    tmp_path: Path, form: str, write: Callable[[list[str]], str], line: int, said: str
) -> None:
    (tmp_path / "plain.txt").write_text("\f".join(GERMAN).replace("@", "\ufffd"))
    (tmp_path / "texts").mkdir()
    written = write(GERMAN).encode().replace(b"@", b"\xfc")
    path = tmp_path / "texts" / f"a.{form}"
    path.write_bytes(gzip.compress(written) if form.endswith("gz") else written)
    other = tmp_path / "texts" / f"b.{form}"  # without a fault, and not named
    other.write_bytes(gzip.compress(b"") if form.endswith("gz") else b"")
    found = corpora.find("texts", tmp_path, Reading(encoding=said))
    assert found.hash == corpora.find("plain.txt", tmp_path).hash
    assert found.mended[files.REPLACED] == 1
    assert found.mended_in[files.REPLACED] == f"a.{form} from line {line}"
    said_of = describe.warnings(found, describe.describe(found))
    assert any(f"a.{form} from line {line}" in one for one in said_of)


def test_files_that_are_cut_inside_a_character_are_named_first_ones_and_a_count(
    tmp_path: Path,
) -> None:
    for number, one in enumerate(GERMAN[:100]):
        cut = one.partition("ärgerlich")[0].encode() + "ä".encode()[:1]
        (tmp_path / f"{number:02d}.txt").write_bytes(cut if number % 10 == 3 else one.encode())
    found = corpora.find(".", tmp_path)
    assert found.n_documents == 100 and found.mended == {files.REPLACED: 10}
    assert found.mended_in[files.REPLACED] == (
        "03.txt from line 1, 13.txt from line 1, 23.txt from line 1 and 7 more"
    )


@pytest.mark.parametrize("said", ["", "utf-8"])
def test_a_cut_character_at_the_end_of_ascii_is_no_other_encoding(
    tmp_path: Path, said: str
) -> None:
    text = "a line of plain text\n" * 99
    (tmp_path / "a.txt").write_bytes(text.encode() + "€".encode()[:2])
    (tmp_path / "b.txt").write_text(f"{text}\ufffd", encoding="utf-8")
    found = corpora.find("a.txt", tmp_path, Reading(encoding=said))
    assert found.hash == corpora.find("b.txt", tmp_path).hash
    assert found.mended == {files.REPLACED: 1}


def test_utf16_that_is_cut_and_text_with_replaced_characters_of_its_own(tmp_path: Path) -> None:
    whole = "\ufffd\r\n".join(GERMAN)
    (tmp_path / "plain.txt").write_text(whole.replace("\r\n", "\n")[:-1] + "\ufffd")
    for encoding in ("utf-16", "utf-16-be"):
        (tmp_path / "a.txt").write_bytes(whole.encode(encoding)[:-1])
        found = corpora.find("a.txt", tmp_path)
        assert found.hash == corpora.find("plain.txt", tmp_path).hash
        assert found.mended[files.REPLACED] == 1 and found.mended["line ends of Windows"] == 1


@pytest.mark.parametrize("said", ["", "utf-8"])
def test_a_text_of_which_much_is_in_another_encoding_is_refused(tmp_path: Path, said: str) -> None:
    halves = "\n".join(GERMAN).encode() + b"\n" + "\n".join(GERMAN).encode("cp1252")
    (tmp_path / "a.txt").write_bytes(halves)
    with pytest.raises(AblateError, match=r"a.txt is not text in .* utf-8: .* line 301; convert"):
        corpora.find("a.txt", tmp_path, Reading(encoding=said))


def test_rows_of_parquet_may_hold_a_bad_byte(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    (tmp_path / "plain.txt").write_text("\f".join(GERMAN).replace("@", "\ufffd"))
    raw = pyarrow.array([one.encode().replace(b"@", b"\xfc") for one in GERMAN] + [None])
    unchecked = pyarrow.Array.from_buffers(pyarrow.string(), len(raw), raw.buffers())
    parquet.write_table(pyarrow.table({"text": unchecked}), tmp_path / "a.parquet")
    found = corpora.find("a.parquet", tmp_path)
    assert found.hash == corpora.find("plain.txt", tmp_path).hash
    assert found.mended_in == {files.REPLACED: "a.parquet from row 201"}
    assert found.n_without_text == 1


def test_an_encoding_is_named_where_the_guess_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(("zażółć gęślą jaźń " * 60).encode("iso8859-2"))
    corpus = corpora.find("a.txt", tmp_path, Reading(encoding="iso8859-2"))
    assert content(corpus)[0].decode().startswith("zażółć gęślą jaźń")
    with pytest.raises(AblateError, match="encoding = 'utf-9': there is no such encoding"):
        corpora.find("a.txt", tmp_path, Reading(encoding="utf-9"))
    with pytest.raises(AblateError, match=r"encoding = 'base64': there is no such encoding"):
        corpora.find("a.txt", tmp_path, Reading(encoding="base64"))
    for name in ("utf-8", "utf-16"):
        with pytest.raises(AblateError, match=rf"a.txt is not text in the encoding {name}"):
            corpora.find("a.txt", tmp_path, Reading(encoding=name))


def test_line_ends_are_kept_where_the_study_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\n" * 2000)
    kept = corpora.find("a.txt", tmp_path, Reading(line_ends="kept"))
    assert b"\r\n" in content(kept)[0]
    assert kept.hash != corpora.find("a.txt", tmp_path, DEFAULT).hash


def test_text_that_is_replaced_at_the_same_size_and_time_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text(story(1, 2000))
    os.utime(path, (1e9, 1e9))
    before = corpora.find("a.txt", tmp_path)
    path.write_text(story(1, 2000).replace("cat", "cow"))
    os.utime(path, (1e9, 1e9))
    after = corpora.find("a.txt", tmp_path)
    assert before.n_bytes == after.n_bytes and before.hash != after.hash
