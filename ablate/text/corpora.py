"""Corpora: what a study's `corpus` names, its content hash, its split, and how long it is."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ablate import cache
from ablate.errors import AblateError
from ablate.text import readers, sources, token_files
from ablate.text.documents import EVERY, SEPARATOR, TAILS, WHOLE_FROM, Split, every_tenth
from ablate.text.duplicates import Groups
from ablate.text.files import Mended
from ablate.text.options import DEFAULT, Reading, Request, split_spec
from ablate.text.options import NAMED as AT
from ablate.text.sources import Source

# debian-docs is built on demand, the others come with the package
NAMED = ("austen", "sotu", *sources.PAIRS, "debian-docs")
# endings of files that are suggested instead of a missing one
TEXTS = (".txt", ".md", ".rst", ".gz", ".xz", ".zst", ".jsonl", ".csv", ".tsv", ".parquet")
_FORMAT = 8  # raised when a corpus is read or split differently
_SETTLED = 2.0  # seconds after which a next change of a file changes its modification time
_BLOCK, _BLOCKS = 1 << 12, 16  # bytes of a block, and blocks of a file, that tell it from another
_CHUNK = 1 << 20
TAIL_OF_TOKENS = "the last tenth of the tokens"


@dataclass(frozen=True)
class Facts:
    """What reading a corpus found; bytes of text count a separator after each document.

    Attributes:
        hash: Of the content: SHA-256 of the documents, each with a form feed after it, and of the
            split unless it is the package's; or of the tokens.
        n_documents: Documents.
        n_bytes: Bytes of all documents.
        n_train_bytes: Bytes to train on.
        n_held_out_bytes: Bytes held out.
        n_token_ids: One more than the largest token of token files; 0 for text.
        not_utf8: The first bytes that are not UTF-8, with some around them; "" for none.
        n_train_documents: Documents to train on, or parts of documents.
        n_held_out_documents: The same of the held-out part.
        token_bytes: Bytes of a token of token files; 0 for text.
        split: How the held-out text was chosen, a phrase.
        n_equal: Documents that are equal to an earlier one.
        n_similar: Others that are similar to an earlier one.
        searched: Whether similar documents were searched among all.
        mended: What was changed as files were read → in how many, see `ablate.text.files.Mended`.
        mended_in: The same changes → the files that they were made in, a phrase.
        unread: What is beside the files that are read.
        formats: Formats of the files, of `ablate.text.readers`; () where it comes with the package.
        rows: How the rows of tables became documents, a phrase; "" where each is one.
        fields: Keys or columns that hold the text.
        n_without_text: Rows without text, which were skipped.
    """

    hash: str
    n_documents: int
    n_bytes: int
    n_train_bytes: int
    n_held_out_bytes: int
    n_token_ids: int = 0
    not_utf8: str = ""
    n_train_documents: int = 0
    n_held_out_documents: int = 0
    token_bytes: int = 0
    split: str = ""
    n_equal: int = 0
    n_similar: int = 0
    searched: bool = False
    mended: dict[str, int] = field(default_factory=dict)
    mended_in: dict[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    rows: str = ""
    fields: tuple[str, ...] = ()
    n_without_text: int = 0


@dataclass(frozen=True)
class Corpus(Facts):
    """A text that a study names, after reading it."""

    name: str = ""  # "austen", or the stem of a file, the name of a folder
    location: str = ""  # of `Request`: "named:NAME", an absolute path or glob, or JSON of several

    @property
    def holds_tokens(self) -> bool:
        """Whether the corpus consists of token files, not text."""
        return self.n_token_ids > 0

    @property
    def where(self) -> str:
        """Its path, for an error; "" where it comes with the package."""
        path = Request.of(self.location).train
        return "" if path.startswith(AT) else path


def find(spec: str, root: Path, reading: Reading = DEFAULT) -> Corpus:
    """Return the corpus that a study names.

    Reads all of it the first time, then only the sizes, times and some blocks of its files.

    Args:
        spec: austen, sotu, debian-docs, or a file, folder or glob; or JSON of `train` and
            `held_out`.
        root: the folder that relative paths count from.
        reading: how to read it, as [data] says.

    Raises:
        AblateError: it does not exist, has no text, or cannot be read.
    """
    train, held_out, explicit = split_spec(spec)
    with sources.readable(f"corpus {spec!r}"):
        first = _locate(train, root)
        if first.startswith(AT):
            if explicit:
                raise AblateError(f"corpus {train!r} defines its own held-out text; name it alone")
            location = first
        else:
            second = _locate(held_out, root) if held_out else ""
            if second.startswith(AT):
                raise AblateError(f"held_out = {held_out!r}: give a file, a folder or a glob")
            location = Request(first, second, reading, explicit).location
        facts = read(location)
    if not facts.n_documents:
        raise AblateError(f"corpus {spec!r} is empty: there is no text in it")
    path = Path(first.removeprefix(AT))
    name = path.name.split(".")[0] or path.parent.name
    while sources.is_glob(name):  # the name of a glob is that of its folder
        path = path.parent
        name = path.name
    return Corpus(**vars(facts), name=name, location=location)


def read(location: str) -> Facts:
    """Return the facts of a corpus, from the cache unless one of its files changed."""
    return read_with_split(location)[0]


def read_with_split(location: str) -> tuple[Facts, Split]:
    """Return the facts of a corpus and which of its documents are held out, as `read` does."""
    source = sources.at(location)
    stats = [_stamp(path) for path in source.files]
    key = hashlib.sha256(json.dumps([_FORMAT, location, stats]).encode()).hexdigest()
    known = cache.folder() / "corpora" / key
    if known.is_dir():
        with cache.usable():
            return _load(known)
    facts, split = _of_tokens(source) if source.holds_tokens else _of_text(source)
    if all(time.time() - mtime / 1e9 > _SETTLED for _, _, mtime, _, _ in stats):
        cache.built("corpora", key, lambda folder: _save(folder, facts, split))
    return facts, split


def unchanged(location: str, hash: str) -> tuple[Facts, Split]:
    """Return the facts of a corpus and which of its documents are held out.

    Raises:
        AblateError: its content is not the one that was planned.
    """
    facts, split = read_with_split(location)
    if facts.hash != hash:
        raise AblateError(
            f"corpus {Request.of(location).train} has changed since the study was planned: run the"
            " study again"
        )
    return facts, split


def _stamp(path: Path) -> tuple[str, int, int, int, str]:
    """Return what tells a file from one of another content: name, size, times and some blocks.

    The time of the last change of its entry cannot be set back as that of its content can.
    """
    stat = path.stat()
    digest = hashlib.sha256()
    with path.open("rb") as file:
        last = max(0, stat.st_size - _BLOCK)
        for number in range(_BLOCKS if last > _BLOCK * _BLOCKS else 1 + last // _BLOCK):
            file.seek(min(last, number * (last // (_BLOCKS - 1) if last else 0)))
            digest.update(file.read(_BLOCK))
    return str(path), stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, digest.hexdigest()


def _save(folder: Path, facts: Facts, split: Split) -> None:
    (folder / "facts.json").write_text(json.dumps(asdict(facts)))
    if split.held_out is not None:
        np.save(folder / "held_out.npy", split.held_out)


def _load(folder: Path) -> tuple[Facts, Split]:
    stored = json.loads((folder / "facts.json").read_text())
    tuples = {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
    facts = Facts(**(stored | tuples))
    array = folder / "held_out.npy"
    return facts, Split(facts.split, np.load(array) if array.exists() else None)


def _locate(spec: str, root: Path) -> str:
    if spec in NAMED and spec != "debian-docs":
        return AT + spec
    if spec == "debian-docs":
        if not (cache.folder() / "debian-docs" / "corpus" / "text").is_dir():
            raise AblateError(
                f"corpus 'debian-docs' is not in {cache.folder()}: build it with `python"
                " studies/corpora/debian_docs.py` (on Debian or Ubuntu, no root needed)"
            )
        return AT + spec
    path = spec.removeprefix("hf:")
    location = sources.absolute(path, root)
    if path != spec and not location.is_dir():
        raise AblateError(f"corpus {spec!r:.200}: there is no folder {location!s:.200}")
    if not location.exists() and not sources.is_glob(path):
        meant = _meant(path, location, root)
        raise AblateError(
            f"corpus {spec!r:.200}: there is no such corpus, and no such file or folder in"
            f" {location.parent!s:.200}"
            + (
                ""
                if Path(path).expanduser().is_absolute()
                else "; paths are relative to the study file's folder"
            )
            + (f"; did you mean {meant!r}?" if meant else ".")
            + f" Named corpora: {', '.join(NAMED)}."
        )
    return str(location)


def _meant(path: str, location: Path, root: Path) -> str:
    """Return the path from `root` of a similar or equally named file of text; else ""."""
    if Path(path).exists():
        return os.path.relpath(path, root)
    near = list(NAMED)
    if location.parent.is_dir():
        endings = {location.suffix, *TEXTS}
        entries = [entry for entry in location.parent.iterdir() if not entry.name.startswith(".")]
        near += [
            entry.name
            for entry in entries
            if entry.is_dir() or (entry.is_file() and entry.suffix in endings)
        ]
    alike = difflib.get_close_matches(path, near, n=1, cutoff=0.5) or difflib.get_close_matches(
        location.name, near, n=1
    )
    return alike[0] if alike else ""


def _of_text(source: Source) -> tuple[Facts, Split]:
    """Read a text: hash its documents, find equal and similar ones, and split it."""
    digest, n_bytes, not_utf8 = hashlib.sha256(), 0, ""
    mended, groups = Mended(), Groups()
    lengths: list[int] = []  # bytes of each document, with its separator
    given: list[bool | None] = []
    tails = [0, 0]  # bytes to train on and held out, if the tail of each document is held out
    for document, held_out in source.placed(mended):
        for piece in document.pieces(_CHUNK):
            digest.update(piece)
            not_utf8 = not_utf8 or _undecodable(piece)
        digest.update(SEPARATOR)
        lengths.append(len(document) + len(SEPARATOR))
        given.append(held_out)
        n_bytes += lengths[-1]
        if not source.how:
            for part, last in TAILS.parts(document, 0):
                tails[last] += len(part) + len(SEPARATOR)
        if not source.named:
            groups.add(document)
    split = _split(source, len(lengths), given, groups)
    n = [0, 0]
    if split.held_out is None:
        n_train, n_held_out = tails
        n = [len(lengths)] * 2
    else:
        sizes = np.array(lengths)
        n_train, n_held_out = int(sizes[~split.held_out].sum()), int(sizes[split.held_out].sum())
        n = [int((~split.held_out).sum()), int(split.held_out.sum())]
    if split.held_out is not None and (source.is_held_out or not source.named):
        # the same text with another split is another corpus
        digest.update(b"\f" + len(lengths).to_bytes(8, "big"))
        digest.update(np.packbits(split.held_out).tobytes())
    facts = Facts(
        digest.hexdigest(),
        len(lengths),
        n_bytes,
        n_train,
        n_held_out,
        not_utf8=not_utf8,
        n_train_documents=n[0],
        n_held_out_documents=n[1],
        split=split.how,
        n_equal=groups.n_equal,
        n_similar=groups.n_similar,
        searched=groups.searched and not source.named,
        mended=dict(mended),
        mended_in=mended.places,
        unread=source.unread,
        formats=() if source.named else source.formats,
        rows=_rows(source),
        fields=tuple(mended.fields),
        n_without_text=mended.n_without_text,
    )
    return facts, split


def _split(source: Source, n: int, given: Sequence[bool | None], groups: Groups) -> Split:
    """Return the split of a text: the package's, the text's own, or ours."""
    if source.how:
        return Split(source.how, np.array(given, bool))
    if source.named:
        return every_tenth(n)
    if n < WHOLE_FROM or (held_out := groups.held_out(1 / EVERY)) is None:
        return TAILS
    return Split(
        f"about one document in {EVERY}, by the hash of its content, with those similar to it",
        held_out,
    )


def _rows(source: Source) -> str:
    """Say how the rows of tables became documents, where that is in doubt."""
    first = source.parts[0]
    if first.format.rows is None:
        return ""
    if readers.lines_in(first.files, first.format, source.reading):
        keep = '; if each is a document, give [data] rows = "documents"'
        return (
            "rows are lines of running text and were joined; headings of WikiText begin documents"
            + (keep if source.reading.rows == "auto" else "")
        )
    if (
        source.reading.rows == "auto"
        and not source.reading.pairs
        and readers.single_lines(first.files, first.format, source.reading)
    ):
        return (
            "each row is one line and was taken as a document, so that lines are shuffled apart;"
            ' if they are running text, give [data] rows = "lines"'
        )
    return ""


def _undecodable(piece: bytes) -> str:
    try:
        piece.decode()
    except UnicodeDecodeError as error:
        return repr(piece[max(0, error.start - 20) : error.start + 20])
    return ""


@dataclass(frozen=True)
class TokenParts:
    """The tokens of a corpus of token files: arrays of each part, and where documents end."""

    train: list[token_files.Part]
    held_out: list[token_files.Part]
    how: str


def tokens_of(source: Source) -> TokenParts:
    """Return the tokens of token files, mapped from disk, in their parts.

    Without a held-out part the last tenth is held out, from the end of a document on where ends are
    known and the last document is shorter than that.
    """
    found = token_files.read(source.files, source.reading)
    n_train = len(source.parts[0].files)
    if source.parts[1:]:
        return TokenParts(found[:n_train], found[n_train:], source.how)
    total = sum(len(part.tokens) for part in found)
    left = total - total // EVERY
    train, held_out = list[token_files.Part](), list[token_files.Part]()
    for part in found:
        cut = min(left, len(part.tokens))
        ends = part.ends
        if ends is not None and 0 < cut < len(part.tokens):
            end = int(ends[np.searchsorted(ends, cut)])
            # the last document is cut: else nothing may be held out
            if end < len(part.tokens) or part is not found[-1]:
                cut = end
        left = max(0, left - cut)
        if cut:
            before = None if ends is None else np.append(ends[ends < cut], cut)
            train.append(token_files.Part(part.tokens[:cut], before))
        if cut < len(part.tokens):
            after = None if ends is None else ends[ends > cut] - cut
            held_out.append(token_files.Part(part.tokens[cut:], after))
    return TokenParts(train, held_out, TAIL_OF_TOKENS)


def pieces(part: Sequence[token_files.Part]) -> Iterator[np.ndarray]:
    """Yield the tokens of a part in pieces that fit into memory."""
    for one in part:
        for start in range(0, len(one.tokens), _CHUNK):
            yield one.tokens[start : start + _CHUNK]


def _of_tokens(source: Source) -> tuple[Facts, Split]:
    """Read token files: the hash is that of the tokens, whatever their width and files."""
    token_files.check_widths(source.files, source.reading)
    found, digest, largest = tokens_of(source), hashlib.sha256(), 0
    for part in (found.train, found.held_out):
        digest.update(sum(len(one.tokens) for one in part).to_bytes(8, "big"))
        for chunk in pieces(part):
            largest = max(largest, int(chunk.max()))
            if largest >= token_files.LARGEST:
                raise AblateError(
                    f"{source.files[0]}: token {largest} is no number of a vocabulary: the tokens"
                    " are negative, or of another type, which [data] dtype can name"
                )
            digest.update(chunk.astype("<u4").tobytes())
    n = [sum(len(one.tokens) for one in part) for part in (found.train, found.held_out)]
    documents = [
        sum(1 if one.ends is None else len(one.ends) for one in part)
        for part in (found.train, found.held_out)
    ]
    size = found.train[0].tokens.itemsize if found.train else 2
    facts = Facts(
        digest.hexdigest(),
        max(1, sum(documents)),
        sum(n) * size,
        n[0] * size,
        n[1] * size,
        largest + 1,
        n_train_documents=documents[0],
        n_held_out_documents=documents[1],
        token_bytes=size,
        split=found.how,
        unread=source.unread,
        formats=source.formats,
    )
    return facts, Split(found.how)
