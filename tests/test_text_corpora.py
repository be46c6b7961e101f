"""Finding corpora: what they are, their length and name, and every way to be missing."""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import time
from pathlib import Path

import numpy as np
import pytest

from ablate.errors import AblateError
from ablate.text import corpora, sources

TEXT = b"First document.\n\nIt has two paragraphs.\fSecond document, with more in it.\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _old(path: Path) -> Path:
    """Lets a file look older than the time after which its facts are remembered."""
    os.utime(path, (time.time() - 60,) * 2)
    return path


def test_the_shipped_corpora_are_what_their_readme_says() -> None:
    austen, sotu = (corpora.find(name, Path()) for name in ("austen", "sotu"))
    assert (austen.n_documents, austen.n_bytes, austen.location, austen.name) == (
        6,
        4016982,
        "named:austen",
        "austen",
    )
    assert (sotu.n_documents, sotu.n_bytes) == (249, 12186000)
    # A run's key holds this hash: reading the text differently makes every stored run another one.
    assert austen.hash == "74f6dd8c15c0ffab8ed8d595a8adb26bbccac0c51a5219dcc97a5e3487ae65ac"
    assert 0.09 < austen.n_held_out_bytes / austen.n_bytes < 0.11
    assert 0.08 < sotu.n_held_out_bytes / sotu.n_bytes < 0.12


def test_the_same_text_has_the_same_hash_in_whatever_form(tmp_path: Path) -> None:
    first, second = TEXT.split(b"\f")
    (tmp_path / "story.txt").write_bytes(TEXT)
    (tmp_path / "story.v2.txt.gz").write_bytes(gzip.compress(TEXT))
    (tmp_path / "packed.txt.xz").write_bytes(lzma.compress(TEXT))
    folder = tmp_path / "stories" / "deep"
    folder.mkdir(parents=True)
    (folder.parent / "z.md").write_bytes(second)
    (folder / "a.txt").write_bytes(first + b"\n\n")
    (folder.parent / ".hidden").write_bytes(b"not read")
    specs = [
        "story.txt",
        "story.v2.txt.gz",
        str(tmp_path / "packed.txt.xz"),
        "stories",
        "stor*/**/*.[tm]*",
    ]
    found = [corpora.find(spec, tmp_path) for spec in specs]
    expected = hashlib.sha256(
        b"".join(part.strip() + b"\f" for part in (first, second))
    ).hexdigest()
    assert {corpus.hash for corpus in found} == {expected}
    assert {corpus.n_documents for corpus in found} == {2}
    assert {corpus.n_bytes for corpus in found} == {len(TEXT)}
    assert [corpus.name for corpus in found] == [
        "story",
        "story",
        "packed",
        "stories",
        tmp_path.name,
    ]
    assert all(corpora.read(corpus.location).hash == expected for corpus in found)
    assert all(corpus.location.startswith("/") for corpus in found)


def test_a_change_is_noticed_and_an_unchanged_text_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(TEXT)
    before, changed = corpora.find("a.txt", tmp_path), path.stat().st_mtime_ns
    path.write_bytes(TEXT.replace(b"two", b"six"))  # as long, and within the clock's tick:
    os.utime(path, ns=(changed, changed))
    assert corpora.find("a.txt", tmp_path).hash != before.hash
    after = corpora.find("a.txt", _old(path).parent)
    assert before.hash != after.hash and before.n_bytes == after.n_bytes
    monkeypatch.setattr(sources.Source, "placed", lambda self, *rest: pytest.fail("read again"))
    assert corpora.find("a.txt", tmp_path) == after


def test_a_hugging_face_data_set_is_its_rows(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    texts = ["First document.\n\nIt has two paragraphs.", None, "Second document, with more in it."]
    rows = datasets.Dataset.from_dict({"id": [1, 2, 3], "text": texts})
    rows.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(str(tmp_path / "splits"))
    (tmp_path / "files").mkdir()
    rows.to_json(str(tmp_path / "files" / "part.jsonl"))
    (tmp_path / "same.txt").write_bytes(TEXT)
    expected = corpora.find("same.txt", tmp_path).hash
    for spec in ("saved", "hf:saved", "hf:files"):
        assert corpora.find(spec, tmp_path).hash == expected
    assert corpora.find("hf:files", tmp_path).name == "files"


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"a": ["x"], "b": ["y"]}, "no column 'text'.*columns: a, b"),
        ({"n": [1]}, "no column 'text'.*columns: n"),
    ],
)
def test_a_data_set_without_one_column_of_text_names_its_columns(
    tmp_path: Path, columns: dict, complaint: str
) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict(columns).save_to_disk(str(tmp_path / "set"))
    with pytest.raises(AblateError, match=complaint):
        corpora.find("set", tmp_path)


def test_a_damaged_data_set_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "dataset_info.json").write_text("{")
    (tmp_path / "set" / "data-00000-of-00001.arrow").write_bytes(b"no arrow")
    with pytest.raises(AblateError, match="cannot be read as Arrow") as caught:
        corpora.find("set", tmp_path)
    assert "\n" not in str(caught.value)


def test_token_files_are_described_by_their_largest_token(tmp_path: Path) -> None:
    np.arange(100, dtype="<u2").tofile(tmp_path / "train.bin")
    np.array([5, 50256], "<u2").tofile(tmp_path / "val.bin")
    corpus = corpora.find(str(tmp_path), Path())
    assert corpus.holds_tokens and corpus.n_token_ids == 50257
    np.array([50256, 5], "<u2").tofile(tmp_path / "val.bin")
    assert corpora.find(str(tmp_path), Path()).hash != corpus.hash


@pytest.mark.parametrize(
    ("files", "spec", "complaint"),
    [
        ({}, "austin", "'austin': .*; did you mean 'austen'.*austen, sotu"),
        ({"story.txt": TEXT}, "stroy.txt", "did you mean 'story.txt'"),
        ({}, "no/such/folder/x.txt", "in /.*/no/such/folder; paths are relative"),
        ({"tiny.toml": b"", ".tiny.txt": TEXT}, "tiny.txt", "study file's folder. Named corpora"),
        ({}, "/no/such/x.txt", "file or folder in /no/such. Named"),
        ({}, "*.txt", "there is no such file"),
        ({"empty.txt": b""}, "empty.txt", "corpus 'empty.txt' is empty"),
        ({"blank.txt": b" \n\f\n"}, "blank.txt", "corpus 'blank.txt' is empty"),
        ({"blank.txt.gz": gzip.compress(b"")}, "blank.txt.gz", "is empty"),
        ({"folder/.hidden": TEXT}, "folder", "the folder is empty"),
        ({"image.txt": b"\x89PNG\0\0"}, "image.txt", "image.txt is not text: it holds NUL bytes"),
        ({"bad.txt.gz": b"no gzip"}, "bad.txt.gz", "bad.txt.gz cannot be unpacked"),
        ({"torn.txt.gz": gzip.compress(TEXT)[:-12]}, "torn.txt.gz", "cannot be unpacked"),
        ({"torn.txt.xz": lzma.compress(TEXT)[:-20]}, "torn.txt.xz", "cannot be unpacked"),
        ({"bin/train.bin": b"ab"}, "bin", "val.bin is missing"),
        ({"bin/train.bin": b"ab", "bin/val.bin": b"abc"}, "bin", "val.bin has 3 bytes"),
        ({"bin/train.bin": b"ab", "bin/val.bin": b""}, "bin", "val.bin has 0 bytes"),
        ({}, "hf:nowhere", "there is no folder"),
        ({}, "debian-docs", "python studies/corpora/debian_docs.py"),
    ],
)
def test_an_error_is_one_line(
    tmp_path: Path, files: dict[str, bytes], spec: str, complaint: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(AblateError, match=complaint) as caught:
        corpora.find(spec, tmp_path)
    assert "\n" not in str(caught.value)


def test_a_file_of_the_working_folder_is_named_as_the_study_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.txt").write_bytes(TEXT)
    (tmp_path / "studies").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AblateError, match=r"/studies; .*'../tiny.txt'"):
        corpora.find("tiny.txt", Path("studies"))
    assert corpora.find("../tiny.txt", Path("studies")).name == "tiny"
