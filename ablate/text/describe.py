"""What is known about a corpus, for `plan`, `ablate data` and the report; kept in the cache."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from ablate import cache
from ablate.text import corpora, duplicates, sources
from ablate.text.corpora import Corpus
from ablate.text.documents import Document, Split
from ablate.text.files import REPLACED
from ablate.units import count, listed, plural

_FORMAT = 3  # raised when something is measured differently
_PIECE = 1 << 16
_SAMPLE = 160  # bytes of a sample
_FEW = 0.01  # share of a text below which its held-out part is small
_MANY = 0.3  # and above which it is large
# share of shared strings from which a held-out loss says more about memory than about the text
_MUCH = 0.05
# from which the parts are unlike: the ratio of mean lengths of documents, and the total variation
# distance of the frequencies of bytes (of two novels of one author 0.02, of prose and code 0.25)
_LENGTHS, _BYTES = 4.0, 0.1
_LETTERS = 512  # tokens of a vocabulary up to which a token is about as long as a byte
_ENOUGH = 2000  # bytes from which frequencies are known well enough


@dataclass(frozen=True)
class Description:
    """What was measured on the parts of a corpus.

    Attributes:
        shared: Share of the strings of the held-out text, of 48 bytes or 12 tokens (48 of a small
            vocabulary), that stand in the training text too.
        distance: Total variation distance of the parts' frequencies of bytes, from 0 to 1.
        mean_bytes: Mean length of the documents of the training part and of the held-out part.
        longest: Bytes of the longest document, and the file that it is in.
        shortest: The same of the shortest one.
        samples: The beginning of a document of each part.
    """

    shared: float
    distance: float = 0.0
    mean_bytes: tuple[float, float] = (0.0, 0.0)
    longest: tuple[int, str] = (0, "")
    shortest: tuple[int, str] = (0, "")
    samples: tuple[str, str] = ("", "")


def describe(corpus: Corpus) -> Description:
    """Return what is known about a corpus; reads it the first time.

    Raises:
        AblateError: it can no longer be read, or has changed.
    """
    key = hashlib.sha256(f"{_FORMAT}:{corpus.hash}:{corpus.location}".encode()).hexdigest()

    def build(folder: Path) -> None:
        with sources.readable(f"corpus {corpus.name}"):
            _, split = corpora.unchanged(corpus.location, corpus.hash)
            found = _of_tokens(corpus) if corpus.holds_tokens else _of_text(corpus, split)
            corpora.unchanged(corpus.location, corpus.hash)  # nor while it was measured
        (folder / "description.json").write_text(json.dumps(asdict(found)))

    folder = cache.built("descriptions", key, build)
    with cache.usable():
        stored = json.loads((folder / "description.json").read_text())
    tuples = {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
    return Description(**(stored | tuples))


def split_phrase(corpus: Corpus, found: Description) -> str:
    """Return how held-out text was chosen, and the share of it that stands in training text."""
    return (
        f"{corpus.split} ({_percent(found.shared)} of its {_strings(corpus)} stand in both parts)"
    )


def lines(corpus: Corpus, found: Description) -> list[str]:
    """Return sentences about a corpus: its parts, its split, what was done to read it, samples."""
    total = corpus.n_train_bytes + corpus.n_held_out_bytes
    held_out = corpus.n_held_out_bytes / total if total else 0.0
    train, tested = (_amount(corpus, n) for n in (corpus.n_train_bytes, corpus.n_held_out_bytes))
    documents = plural(corpus.n_documents, "document")
    whole = corpus.n_train_documents + corpus.n_held_out_documents == corpus.n_documents
    numbers = (
        [f"{n:,}, " for n in (corpus.n_train_documents, corpus.n_held_out_documents)]
        if whole and not corpus.holds_tokens
        else ["", ""]
    )
    said = [
        f"Text {corpus.name}: {documents}; trains on {numbers[0]}{train}, and holds out"
        f" {numbers[1]}{tested} ({_percent(held_out)}): {corpus.split}",
        f"{_percent(found.shared)} of the {_strings(corpus)} of its held-out text stand in the"
        f" training text{_duplicates(corpus)}",
    ]
    if corpus.mended:
        said.append(f"Mended as it was read: {listed(_mended(corpus))}")
    if corpus.fields:
        skipped = f"; rows without text, skipped: {corpus.n_without_text:,}"
        field = "field" if len(corpus.fields) == 1 else "fields"
        said.append(
            f"Read: the {field} {listed(f'{one!r:.60}' for one in corpus.fields)}"
            + (skipped if corpus.n_without_text else "")
        )
    if corpus.rows:
        said.append(f"Documents: {corpus.rows}")
    if corpus.unread:
        said.append(f"Not read: {listed(corpus.unread)}")
    if found.longest[0]:
        longest, shortest = (
            f"{count(size)} bytes" + (f" (in {file})" if file else "")
            for size, file in (found.longest, found.shortest)
        )
        said.append(f"Longest document: {longest}; shortest: {shortest}")
    for name, sample in zip(("training", "held out"), found.samples, strict=True):
        said.append(f"Sample, {name}: {sample}")
    return said


def warnings(
    corpus: Corpus, found: Description, held_out_tokens: float = 0, scored: int = 0
) -> list[str]:
    """Return what speaks against the held-out part of a corpus.

    Args:
        corpus: The corpus.
        found: What was measured on it.
        held_out_tokens: Its held-out tokens, perhaps estimated.
        scored: Tokens that an evaluation would read; 0 if that is not known.
    """
    total = corpus.n_train_bytes + corpus.n_held_out_bytes
    share = corpus.n_held_out_bytes / total if total else 0.0
    train, held_out = found.mean_bytes
    said = []
    if share < _FEW:
        said.append(
            f"the held-out part of {corpus.name} is {_percent(share)} of it"
            f" ({_amount(corpus, corpus.n_held_out_bytes)}): a loss on so little text is imprecise"
        )
    if held_out_tokens < scored:
        said.append(
            f"{corpus.name} holds out {count(held_out_tokens)} tokens: an evaluation, which would"
            f" read {count(scored)}, reads all of them"
        )
    if share > _MANY:
        said.append(f"the held-out part of {corpus.name} is {_percent(share)} of it")
    if n := corpus.mended.get(REPLACED):
        said.append(
            f"{corpus.name} has bytes that are no text in the encoding of their file, and were read"
            f" as U+FFFD, in {n:,} place{'' if n == 1 else 's'}: {corpus.mended_in[REPLACED]}"
        )
    if found.shared >= _MUCH:
        said.append(
            f"{_percent(found.shared)} of the held-out text of {corpus.name} stands in its training"
            " text: its loss rewards a model for what it has memorised"
        )
    if train and held_out and not 1 / _LENGTHS <= held_out / train <= _LENGTHS:
        said.append(
            f"the held-out documents of {corpus.name} are unlike the others: {count(held_out)}"
            f" bytes each, against {count(train)}"
        )
    elif found.distance > _BYTES:
        said.append(
            f"the held-out text of {corpus.name} is unlike the training text: the frequencies of"
            f" their bytes differ by {_percent(found.distance)}"
        )
    return said


def _mended(corpus: Corpus) -> Iterator[str]:
    for what, n in corpus.mended.items():
        times = plural(n, "place") if what == REPLACED else f"{plural(n, 'file')} or rows"
        yield f"{what} ({times}: {corpus.mended_in[what]})"


def _duplicates(corpus: Corpus) -> str:
    if corpus.holds_tokens or corpus.location.startswith(corpora.AT):
        return ""
    similar = f"similar to one: {corpus.n_similar:,}"
    if not corpus.searched:
        similar += " (only the first documents were compared, as there are too many)"
    return f"; documents equal to an earlier one: {corpus.n_equal:,}, {similar}"


def _amount(corpus: Corpus, n_bytes: int) -> str:
    if corpus.holds_tokens:
        return f"{count(n_bytes // corpus.token_bytes)} tokens of {8 * corpus.token_bytes} bits"
    return f"{count(n_bytes)} bytes"


def _strings(corpus: Corpus) -> str:
    length = _string_length(corpus)
    return f"strings of {length} tokens" if corpus.holds_tokens else f"{length}-byte strings"


def _string_length(corpus: Corpus) -> int:
    """Return the bytes or tokens of the strings that are looked for in both parts."""
    short = corpus.holds_tokens and corpus.n_token_ids > _LETTERS
    return duplicates.SHARED_TOKENS if short else duplicates.SHARED_BYTES


def _percent(share: float) -> str:
    """Return a share as percent with two digits."""
    return f"{100 * share:.2g}%" if share < 0.995 else f"{100 * share:.0f}%"


def _of_text(corpus: Corpus, split: Split) -> Description:
    source = sources.at(corpus.location)
    numbers, sizes = [0, 0], [0, 0]
    bytes_of = np.zeros((2, 256), np.int64)
    samples = ["", ""]
    longest, shortest = (0, ""), (1 << 62, "")

    def arrays(wanted: bool) -> Iterator[np.ndarray]:
        nonlocal longest, shortest
        for number, document in enumerate(source.documents()):
            if not wanted:  # in one of the two passes
                length = len(document), document.origin
                longest, shortest = max(longest, length), min(shortest, length)
            for part, held_out in split.parts(document, number):
                if held_out is not wanted:
                    continue
                numbers[wanted] += 1
                sizes[wanted] += len(part)
                # a document from the midst of its part: the number of the last power of two
                if numbers[wanted].bit_count() == 1:
                    samples[wanted] = _beginning(part)
                for piece in part.pieces(_PIECE):
                    values = np.frombuffer(piece, np.uint8)
                    bytes_of[int(wanted)] += np.bincount(values, minlength=256)
                    yield values

    train = arrays(False)
    shared = duplicates.shared(train, arrays(True), _string_length(corpus))
    deque(train, 0)  # not read yet if all held-out documents are shorter than the strings
    distance = 0.0
    if min(sizes) >= _ENOUGH:
        shares = bytes_of / bytes_of.sum(1, keepdims=True)
        distance = float(np.abs(shares[0] - shares[1]).sum() / 2)
    means = [size / max(1, n) for size, n in zip(sizes, numbers, strict=True)]
    return Description(
        shared,
        distance,
        (means[0], means[1]) if split.held_out is not None else (0.0, 0.0),
        _named(longest),
        _named(shortest),
        (samples[0], samples[1]),
    )


def _of_tokens(corpus: Corpus) -> Description:
    found = corpora.tokens_of(sources.at(corpus.location))
    parts = (found.train, found.held_out)
    samples = [" ".join(map(str, part[0].tokens[:24])) if part else "" for part in parts]
    shared = duplicates.shared(
        corpora.pieces(found.train), corpora.pieces(found.held_out), _string_length(corpus)
    )
    return Description(shared, samples=(samples[0], samples[1]))


def _named(length: tuple[int, str]) -> tuple[int, str]:
    """Return a length with the name of the file that it is in."""
    return length[0], Path(length[1]).name


def _beginning(document: Document) -> str:
    """Return the beginning of a document on one line."""
    text = next(document.pieces(4 * _SAMPLE))[:_SAMPLE].decode(errors="replace")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
