"""What plan, `ablate data` and the report say of a text; how a study file names one."""

from __future__ import annotations

import random
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import report_study
from cli_helpers import Run
from datasketch import MinHashLSH
from hypothesis import given
from hypothesis import strategies as st
from report_study import Outcome

from ablate import text
from ablate.errors import AblateError
from ablate.plan import plan
from ablate.report import method
from ablate.report.data import gather
from ablate.study import load
from ablate.text import corpora, describe, duplicates, frequencies, tokenizers
from ablate.text.corpora import Corpus

STUDY = """\
name = "t"
question = "q?"
design = "one-factor"
seeds = 2
[base]
n_layer = 1
d_model = 32
n_head = 2
n_ctx = 32
corpus = {corpus}
tokenizer = "{tokenizer}"
tokens = 2048
batch_tokens = 256
[factors]
topology = [1, 5]
[eval]
points = 1
{more}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))


def study(
    folder: Path, corpus: str, *, tokenizer: str = "byte", more: str = "", start: str = ""
) -> Path:
    path = folder / "t.toml"
    written = STUDY.format(corpus=corpus, tokenizer=tokenizer, more=more)
    path.write_text(start + written, encoding="utf-8")
    return path


def prose(seed: int, words: int, vocabulary: int = 500) -> str:
    draw = random.Random(seed)
    return " ".join(f"w{draw.randrange(vocabulary)}" for _ in range(words))


def corpus_of(folder: Path, documents: list[str]) -> Corpus:
    (folder / "a.txt").write_text("\f".join(documents))
    return corpora.find("a.txt", folder)


# ---- what stands in both parts -------------------------------------------------------------------


@given(
    st.lists(st.binary(max_size=40), max_size=5),
    st.lists(st.binary(max_size=40), max_size=5),
    st.integers(1, 9),
)
def test_the_share_of_strings_is_that_of_a_set(
    train: list[bytes], held_out: list[bytes], length: int
) -> None:
    def strings(parts: list[bytes]) -> list[bytes]:
        return [p[i : i + length] for p in parts for i in range(len(p) - length + 1)]

    arrays = [[np.frombuffer(part, np.uint8) for part in parts] for parts in (train, held_out)]
    wanted, known = strings(held_out), set(strings(train))
    expected = sum(one in known for one in wanted) / len(wanted) if wanted else 0.0
    assert duplicates.shared(*arrays, length) == pytest.approx(expected)


def test_of_many_strings_a_part_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(0)
    train, held_out = (draw.integers(0, 256, n).astype(np.uint8) for n in (300_000, 100_000))
    for start in range(0, 100_000, 4000):  # a quarter, in stretches of a thousand
        held_out[start : start + 1000] = train[start : start + 1000]
    whole = duplicates.shared([train], [held_out], 48)
    assert whole == pytest.approx(25 * (1000 - 47) / (100_000 - 47))
    monkeypatch.setattr(duplicates, "_MOST_STRINGS", 1 << 14)
    # 12,500 to 25,000 strings: their share has an error of 0.4% at most
    assert duplicates.shared([train], [held_out], 48) == pytest.approx(whole, abs=0.012)


def test_short_documents_are_described_too(tmp_path: Path) -> None:
    names = [f"name{n:03d}" for n in range(200)]
    (tmp_path / "names.txt").write_text("\f".join(names), encoding="utf-8")
    found = describe.describe(corpora.find("names.txt", tmp_path))
    assert found.mean_bytes == (7, 7) and found.longest == (7, "names.txt")
    assert set(found.samples) <= set(names)


@pytest.mark.parametrize("during", [False, True])
def test_a_text_that_changes_before_or_while_it_is_described_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, during: bool
) -> None:
    documents = [prose(seed, 200) for seed in range(60)]
    corpus = corpus_of(tmp_path, documents)
    shared = duplicates.shared

    def edited(*args: object) -> float:
        found = shared(*args)  # type: ignore[arg-type]
        corpus_of(tmp_path, documents[1:])
        return found

    if during:
        monkeypatch.setattr(duplicates, "shared", edited)
    else:
        corpus_of(tmp_path, documents[1:])
    with pytest.raises(AblateError, match="has changed"):
        describe.describe(corpus)
    monkeypatch.undo()
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    again = corpus_of(tmp_path, documents)
    assert again.hash == corpus.hash
    assert describe.describe(again).mean_bytes[0] > 0


def test_plan_says_what_stands_in_both_parts(tmp_path: Path, ablate: Run) -> None:
    documents = [prose(seed, 300) for seed in range(60)]
    common = prose(1000, 300)
    documents = [one + " " + common for one in documents]  # half of each stands in all
    corpus = corpus_of(tmp_path, documents)
    found = describe.describe(corpus)
    assert 0.45 < found.shared < 0.5 and corpus.n_similar == 0
    _, out, _ = ablate("plan", str(study(tmp_path, '"a.txt"')))
    percent = f"{100 * found.shared:.2g}% of the 48-byte strings of its held-out text"
    assert percent in out and "Warning: " in out and "memorised" in out
    (split,) = {cell.config.split for cell in plan(load(str(tmp_path / "t.toml"))).cells}
    assert "by the hash of its content" in split and f"{100 * found.shared:.2g}%" in split


def test_the_split_is_no_part_of_a_run(tmp_path: Path) -> None:
    corpus_of(tmp_path, [prose(seed, 300) for seed in range(3)])
    run = plan(load(str(study(tmp_path, '"a.txt"')))).cells[0].run
    assert run.fields["split"].startswith("the last tenth of each document (")
    assert run.with_(split="").key == run.key


def test_a_shipped_text_needs_none_of_the_libraries_for_other_forms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("datasketch", "pyarrow", "charset_normalizer", "zstandard", "datasets"):
        monkeypatch.setitem(sys.modules, name, None)  # an import of it fails
    planned = plan(load(str(study(tmp_path, '"sotu"'))))
    (read,) = planned.texts
    assert describe.lines(read.corpus, describe.describe(read.corpus))
    assert "every tenth document" in planned.cells[0].config.split
    with pytest.raises(ImportError):
        corpus_of(tmp_path, [prose(1, 300)])


@pytest.mark.parametrize("split", ["the text's own part valid (3.1% of it)", ""])
def test_the_methods_name_the_split(tmp_path: Path, split: str) -> None:
    levels = {name: {"topology": name} for name in ("serial", "parallel")}
    with report_study.study(
        tmp_path,
        {"topology": levels},
        lambda _, seed: Outcome(2.0 + seed / 100),
        base={"split": split},
    ) as db:
        training = method.paragraphs(gather(db, "topology"))[0]
    # a run of an earlier version does not say it: it had the rule of the shipped texts
    expected = split or "the last tenth of each document, or every tenth document where there are"
    assert f"Held-out text is {expected}" in training and "it is never trained on." in training


def test_the_methods_name_the_split_once_where_earlier_runs_do_not_say_it(tmp_path: Path) -> None:
    levels = {name: {"topology": name} for name in ("serial", "parallel")}
    with report_study.study(
        tmp_path,
        {"topology": levels},
        lambda _, seed: Outcome(2.0 + seed / 100),
        base={"split": "every tenth document"},
    ) as db:
        with db.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE run_field SET split = NULL WHERE topology = 'serial'"
            )
        training = method.paragraphs(gather(db, "topology"))[0]
    assert "Held-out text is every tenth document; it is never trained on." in training
    assert training.count("Held-out text is") == 1


# ---- warnings ------------------------------------------------------------------------------------


def warned(folder: Path, documents: list[str]) -> str:
    corpus = corpus_of(folder, documents)
    return " ".join(describe.warnings(corpus, describe.describe(corpus)))


def chosen(seed: int, words: int) -> bool:
    return duplicates.hashlib.sha256(prose(seed, words).encode()).digest()[:1] < b"\x19"


def test_a_held_out_part_that_is_small_or_unlike_the_rest_is_named(tmp_path: Path) -> None:
    held_out = [seed for seed in range(2000) if chosen(seed, 30)][:8]
    trained = [seed for seed in range(2000) if not chosen(seed, 3000)][:70]
    small = [prose(seed, 30) for seed in held_out] + [prose(seed, 3000) for seed in trained]
    said = warned(tmp_path, small)
    assert "is 0." in said and "unlike the others" in said
    assert warned(tmp_path, [prose(seed, 300) for seed in range(200)]) == ""
    # as many bytes, but of another alphabet
    other = [prose(seed, 300) for seed in range(2000) if not chosen(seed, 300)][:70]
    other += [
        one
        for seed in range(2000)
        for one in [prose(seed, 300).upper().replace("W", "Ж")]
        if duplicates.hashlib.sha256(one.encode()).digest()[:1] < b"\x19"
    ][:9]
    assert "frequencies of their bytes differ" in warned(tmp_path, other)


def test_few_held_out_tokens_are_named_for_the_default_too(tmp_path: Path, ablate: Run) -> None:
    corpus_of(tmp_path, [prose(seed, 300) for seed in range(3)])
    file = str(study(tmp_path, '"a.txt"'))
    for command in ("plan", "data"):
        _, out, _ = ablate(command, file)
        assert "which would read 65.5k, reads all of them" in " ".join(out.split())


# ---- ablate data ---------------------------------------------------------------------------------


def test_data_counts_each_part_and_shows_samples(tmp_path: Path, ablate: Run) -> None:
    documents = [prose(seed, 40 + seed) for seed in range(60)] + [prose(7, 47)]
    corpus = corpus_of(tmp_path, documents)
    code, out, _ = ablate("data", "a.txt")
    assert code == 0
    info = tokenizers.describe("byte", corpus, tmp_path)
    tokens = text.of(corpus, info)
    held_out = bytes(tokens.held_out).decode().split("\f")[:-1]
    assert set(held_out) < set(documents)
    assert f"{len(held_out)}" in out and f"{len(tokens.held_out):,}" in out
    assert "documents equal to an earlier one: 1, similar to one: 0" in out
    longest = max(documents, key=len)
    assert f"Longest document: {len(longest)} bytes (in a.txt)" in out
    assert any(one.startswith(held_out_sample(out)) for one in held_out)
    # the loss of the frequencies, counted by hand
    seen, scored = (Counter(bytes(part)) for part in (tokens.train, tokens.held_out))
    total = sum(seen.values()) + 256
    nats = sum(n * -np.log((seen[token] + 1) / total) for token, n in scored.items())
    assert f"{nats / len(tokens.held_out):.3f} nats per token" in out
    assert frequencies.unigram_loss(tokens) == pytest.approx(nats / len(tokens.held_out))


def held_out_sample(out: str) -> str:
    line = next(line for line in out.splitlines() if line.startswith("Sample, held out: "))
    return line.removeprefix("Sample, held out: ")[:60]


def test_plan_shows_samples_and_what_frequencies_predict(tmp_path: Path, ablate: Run) -> None:
    documents = [prose(seed, 40 + seed) for seed in range(60)]
    corpus = corpus_of(tmp_path, documents)
    info = tokenizers.describe("bpe:300", corpus, tmp_path)
    assert not text.counted(corpus, info)
    file = study(tmp_path, '"a.txt"', tokenizer="bpe:300")
    code, out, _ = ablate("plan", str(file), "--device", "cpu")
    assert code == 0 and any(one.startswith(held_out_sample(out)) for one in documents)
    assert text.counted(corpus, info)  # as the text is short
    assert f"{frequencies.unigram_loss(text.of(corpus, info)):.3f} nats per token" in out


def test_data_shows_every_text_of_a_study(tmp_path: Path, ablate: Run) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(prose(len(name), 3000))
    file = study(tmp_path, '"a.txt"')
    levels = '[factors]\ncorpus = ["a.txt", { train = "a.txt", held_out = "b.txt" }]\n'
    file.write_text(
        file.read_text().replace('corpus = "a.txt"\n', "").replace("[factors]\n", levels)
    )
    _, out, _ = ablate("data", str(file))
    assert out.count("Text a: 1 document;") == 1 and "b.txt, which the study names" in out
    study_plan = plan(load(str(file)))
    assert list(study_plan.study.factors["corpus"]) == ["a.txt", "a.txt + b.txt"]
    assert len({cell.config.corpus_hash for cell in study_plan.cells}) == 2


# ---- the study file ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("corpus", "more", "complaint"),
    [
        ('{ held_out = "a.txt" }', "", r"line 10: corpus.train is missing"),
        ('{ train = "a.txt", test = "b.txt" }', "", r"line 10: unknown key of corpus 'test'"),
        ('{ train = ["a.txt"] }', "", r"line 10: corpus.train = \['a.txt'\]: a file"),
        ('{ train = "a.txt", held_out = "c.txt" }', "", r"line 10: corpus 'c.txt'"),
        ('{ train = "austen" }', "", "'austen' defines its own held-out text"),
        ('"{a.txt"', "", r"line 10: corpus '{a.txt': there is no such corpus"),
        ("'{\"train\": 5}'", "", r"line 10: corpus '{\"train\": 5}': there is no such corpus"),
        ('"a.txt"', '[data]\nfeld = "x"', r"line 19: unknown key of \[data\] 'feld'.*'field'"),
        ('"a.txt"', '[data]\nrows = "line"', r"line 19: data.rows = 'line'"),
        ('"a.txt"', '[data]\nfield = "x"', r"line 19: field has no effect"),
        ('"austen"', '[data]\nencoding = "utf-8"', r"line 19: encoding has no effect"),
    ],
)
def test_what_is_wrong_with_a_text_is_told_with_its_line(
    tmp_path: Path, corpus: str, more: str, complaint: str
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(prose(1, 2000))
    with pytest.raises(AblateError, match=complaint):
        plan(load(str(study(tmp_path, corpus, more=more))))


def test_what_data_changes_is_part_of_a_runs_identity(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(prose(1, 3000).replace(" w1", "\r\nw1").encode())
    keys = [
        plan(load(str(study(tmp_path, '"a.txt"', more=more)))).cells[0].run.key
        for more in ("", '[data]\nline_ends = "kept"', '[data]\nline_ends = "lf"')
    ]
    assert keys[0] == keys[2] != keys[1]


def test_an_editors_byte_order_mark_before_a_study_is_no_error(tmp_path: Path) -> None:
    assert load(str(study(tmp_path, '"austen"', start="\ufeff"))).name == "t"


@pytest.mark.parametrize(
    ("field", "values", "expected"),
    [
        ("bias", "[false, true]", ["none", "all"]),
        ("tie_embeddings", "[true, false]", ["tied", "untied"]),
        ("qk_norm", '[false, "rmsnorm"]', ["none", "rmsnorm"]),
        ("attention_scale", "[true, false]", ["sqrt", "none"]),
    ],
)
def test_false_switches_off(tmp_path: Path, field: str, values: str, expected: list) -> None:
    path = study(tmp_path, '"austen"')
    path.write_text(path.read_text().replace("topology = [1, 5]", f"{field} = {values}"))
    assert list(load(str(path)).factors[field]) == expected


def test_true_among_several_levels_is_refused_without_a_guess(tmp_path: Path) -> None:
    path = study(tmp_path, '"austen"')
    path.write_text(path.read_text().replace("n_layer = 1", "n_layer = 1\nqk_norm = true"))
    with pytest.raises(AblateError, match=r"qk_norm = true: name the level; choices: none, rms"):
        load(str(path))


def test_new_takes_paths_from_the_working_directory(tmp_path: Path, ablate: Run) -> None:
    (tmp_path / "texts").mkdir()
    for name in ("a", "b"):
        (tmp_path / "texts" / f"{name}.txt").write_text(prose(len(name), 3000))
    for number, (given_path, written) in enumerate(
        (
            ("texts/a.txt", "../texts/a.txt"),
            ("texts", "../texts"),
            ("./texts/*.txt", "../texts/*.txt"),
            (str(tmp_path / "texts" / "a.txt"), str(tmp_path / "texts" / "a.txt")),
            ("../texts/b.txt", "../texts/b.txt"),  # as seen from studies/: as before
            ('{ train = "texts/a.txt", held_out = "texts/b.txt" }', None),
        )
    ):
        code, out, err = ablate(
            "new", f"n{number}", "--factor", "topology=1,5", "--base", f"corpus={given_path}"
        )
        assert (code, err) == (0, "") and "2 cells" in out
        base = load(f"n{number}").base
        if written:
            assert base["corpus"] == written
    code, _, err = ablate("new", "m", "--factor", "corpus=texts/a.txt,texts/b.txt")
    assert (code, err) == (0, "")
    assert list(load("m").factors["corpus"]) == ["../texts/a.txt", "../texts/b.txt"]
    assert plan(load("m")).cells


def test_documents_are_read_in_one_pass_of_bounded_memory(tmp_path: Path) -> None:
    """A row is read, and let go: the documents of a table are not kept."""
    import tracemalloc

    with (tmp_path / "a.jsonl").open("w") as file:
        for seed in range(400):
            file.write('{"text": "' + prose(seed, 10_000) + '"}\n')
    size = (tmp_path / "a.jsonl").stat().st_size
    tracemalloc.start()
    source = text.sources.at(str(tmp_path / "a.jsonl"))
    lengths = [len(document) for document in source.documents()]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(lengths) == 400 and sum(lengths) > 0.9 * size
    assert not all(a == b for a, b in pairwise(lengths))
    assert peak < size / 3


def test_documents_are_compared_by_the_bands_that_suit_their_limit() -> None:
    best = MinHashLSH(threshold=duplicates.SIMILAR, num_perm=duplicates._PERMUTATIONS)
    assert (best.b, best.r) == duplicates._BANDS
