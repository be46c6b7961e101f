"""Tokens: a corpus through a tokenizer, split into training and held-out text, from the cache."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import numpy as np

from ablate import cache
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.text import corpora, sources, token_files, tokenizers
from ablate.text.corpora import Corpus
from ablate.text.documents import Document, Split
from ablate.text.options import Request
from ablate.text.sources import Source
from ablate.text.tokenizers import Tokenizer, TokenizerInfo, is_own

_FORMAT = 3  # increased when tokens are made or stored differently
_BATCH = 256  # pieces encoded at a time
# shares from which a tokenizer is lossy: of bytes, of which separators lose less, and of words and
# signs, of which a rare sign that it does not know is less
LOST_BYTES, LOST_TEXT = 0.02, 0.001
# held-out text that is decoded again: bytes in all, and documents of which it is the beginning
_AGAIN, _BEGINNINGS = 1 << 18, 64
_PARTS = re.compile(r"\w+|\W")  # words and signs
FIRST = 1000  # texts of a table, of which it is tried how much is encoded
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") | frozenset(
    range(128, 256)
)


@dataclass(frozen=True)
class Tokens:
    """The training and held-out tokens of a run.

    `train` and `held_out` are streams of uint8, uint16 or uint32: documents one after the other,
    the tokenizer's separator after each. Documents are numbered as in the corpus; part i of a
    stream is `stream[bounds[i] : bounds[i + 1]]` and belongs to document `documents[i]`.
    """

    train: np.ndarray
    held_out: np.ndarray
    n_vocab: int  # without [MASK]
    # bytes of each token, b"" for special ones; None if unknown
    spelling: tuple[bytes, ...] | None
    train_bounds: np.ndarray
    train_documents: np.ndarray
    held_out_bounds: np.ndarray
    held_out_documents: np.ndarray
    separator: tuple[int, ...] = ()  # tokens after each document; () if unknown
    byte_coverage: float = 1.0  # bytes that the tokens encode per byte of held-out text
    # share of the words and signs of held-out text that its tokens still hold, by a sample
    text_kept: float = 1.0

    def of_pairs(self, n_ctx: int) -> Tokens:
        """Return the tokens with n_ctx separators behind each stream, so that a row of n_ctx + 1
        tokens may begin at every document.
        """
        assert len(self.separator) == 1, "`ablate.data.pairs.check` refuses this"
        fill = np.full(n_ctx, self.separator[0], self.train.dtype)
        return replace(
            self,
            train=np.concatenate([self.train, fill]),
            held_out=np.concatenate([self.held_out, fill]),
        )

    def of_model(self, n_vocab: int) -> Tokens:
        """Return the tokens for a model with more of them, of which some are in no text."""
        spelling = self.spelling and (*self.spelling, *[b""] * n_vocab)[:n_vocab]
        return replace(self, n_vocab=n_vocab, spelling=spelling)

    @property
    def lost(self) -> dict[str, float]:
        """How much of held-out text the tokens hold, where a tokenizer is lossy by it."""
        return {
            name: share
            for name, share, most in (
                ("byte_coverage", self.byte_coverage, LOST_BYTES),
                ("text_kept", self.text_kept, LOST_TEXT),
            )
            if abs(share - 1) > most
        }

    @property
    def n_train(self) -> int:
        """Number of training tokens."""
        return len(self.train)

    @cached_property
    def byte_lengths(self) -> np.ndarray | None:
        """Bytes of each token, [V] int32, which turn nats per token into bits per byte."""
        return (
            None
            if self.spelling is None
            else np.array([len(token) for token in self.spelling], dtype=np.int32)
        )

    @property
    def word_edges(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Whether a word starts at each token, and after it, [V] bool each; None if unknown.

        A word is a run of letters, digits and bytes from 128 on, with the one space before it;
        anything else is alone, as in BERT's basic tokenizer.
        """
        if self.spelling is None:
            return None
        at = [not token or token[0] not in _LETTERS for token in self.spelling]
        behind = [not token or token[-1] not in _LETTERS | {32} for token in self.spelling]
        return np.array(at), np.array(behind)


def load(config: RunConfig, sources: Mapping[str, str]) -> Tokens:
    """Return the tokens of a run, from the cache if it has them.

    Args:
        config: of the run.
        sources: content hash of the corpus and of a tokenizer from a file → location.

    Raises:
        AblateError: a text changed since the plan, or is too short for a window of n_ctx + 1.
    """
    corpus, tokenizer = (config.corpus_hash, config.tokenizer_hash)
    tokens = _tokens(sources[corpus], corpus, _location(config, sources), tokenizer)
    if config.part("objective").pairs:
        return tokens.of_pairs(config.n_ctx)
    _long_enough(config.corpus, len(tokens.train), len(tokens.held_out), config.n_ctx)
    if config.part("start").given:  # a vocabulary of another tool may be larger than its tokenizer
        return tokens.of_model(config.n_vocab - config.part("objective").n_added(config))
    return tokens


def of(corpus: Corpus, tokenizer: TokenizerInfo) -> Tokens:
    """Return the tokens of a corpus, from the cache if it has them; may train the tokenizer."""
    return _tokens(corpus.location, corpus.hash, tokenizer.location, tokenizer.hash)


def counted(corpus: Corpus, tokenizer: TokenizerInfo) -> bool:
    """Return whether `of` takes no longer than to read the text once."""
    key = _key(corpus.hash, tokenizer.hash)
    return corpus.holds_tokens or tokenizer.location == "byte" or cache.holds("tokens", key)


def shipped(name: str, config: RunConfig, tokens: Tokens, sources: Mapping[str, str]) -> Tokens:
    """Return the tokens of a corpus of the package with the tokenizer of a run.

    Args:
        name: Of the corpus.
        config: Of the run.
        tokens: Those of the run, which are returned if they are of this corpus.
        sources: As for `load`.
    """
    found = corpora.find(name, Path())
    if found.hash == config.corpus_hash:
        return tokens
    tokenizer = _location(config, sources)
    if tokenizer != "byte":
        encoder(config, sources)  # which is in the cache then, and not trained on this corpus
    return _tokens(found.location, found.hash, tokenizer, config.tokenizer_hash)


def encoder(config: RunConfig, sources: Mapping[str, str]) -> Tokenizer:
    """Return the tokenizer of a run, for other text than its corpus; arguments as for `load`."""
    corpus = sources[config.corpus_hash]
    location = _location(config, sources)
    return _encoder(corpus, corpora.read(corpus), location, config.tokenizer_hash)


def content(config: RunConfig, sources: Mapping[str, str]) -> bytes:
    """Return the tokenizer.json of a run; b"" for bytes, and for a corpus of tokens without one.

    Args:
        config: of the run.
        sources: as for `load`.

    Raises:
        AblateError: the file has changed since the plan, or is gone.
    """
    location = _location(config, sources)
    return b"" if location in ("byte", "tokens") else encoder(config, sources).content


def n_train(corpus: Corpus, tokenizer: TokenizerInfo) -> int:
    """Return the training tokens of a corpus, which make an epoch; may train the tokenizer."""
    if tokenizer.location == "byte":
        return corpus.n_train_bytes
    return len(of(corpus, tokenizer).train)


def n_held_out(corpus: Corpus, tokenizer: TokenizerInfo) -> int:
    """Return the held-out tokens of a corpus; may train the tokenizer."""
    if tokenizer.location == "byte":
        return corpus.n_held_out_bytes
    return len(of(corpus, tokenizer).held_out)


def byte_coverage(corpus: Corpus, tokenizer: TokenizerInfo) -> float:
    """Return the bytes that tokens encode per byte of held-out text; 1 if none is lost."""
    return of(corpus, tokenizer).byte_coverage


def text_kept(corpus: Corpus, tokenizer: TokenizerInfo) -> float:
    """Return the share of the words and signs of a text that its tokens hold; 1 if unknown."""
    if corpus.holds_tokens or tokenizer.location == "byte" or not counted(corpus, tokenizer):
        return 1.0
    return of(corpus, tokenizer).text_kept


def lengths(texts: Sequence[str], corpus: Corpus, tokenizer: TokenizerInfo) -> list[int] | None:
    """Return the tokens of each of some texts; None where the tokenizer is still to be trained."""
    pieces = [one.encode() for one in texts]
    if tokenizer.location == "byte":
        return [*map(len, pieces)]
    if tokenizer.location == "tokens" or not counted(corpus, tokenizer):
        return None
    opened = _encoder(
        corpus.location, corpora.read(corpus.location), tokenizer.location, tokenizer.hash
    )
    return [*map(len, opened.encode(pieces))]


def share_read(texts: Sequence[str], tokenizer: TokenizerInfo) -> float:
    """Return the bytes that tokens encode per byte of texts other than the corpus.

    Args:
        texts: Of which the first thousand are read.
        tokenizer: One from a file may have no tokens for other text; all others lose nothing.
    """
    location = tokenizer.location
    if location in ("byte", "tokens") or location.startswith("bpe:") or is_own(location):
        return 1.0
    pieces = [text.encode() for text in texts[:FIRST]]
    opened = tokenizers.open(location, tokenizer.hash, iter(()), 0)
    # what an unknown word becomes, such as [UNK], is spelled, too, but not in the text
    n = sum(
        len(spelled)
        for piece, row in zip(pieces, opened.encode(pieces), strict=True)
        for spelled in (opened.spelling[token] for token in row)
        if spelled.strip().lower() in piece.lower()
    )
    return n / max(1, sum(map(len, pieces)))


def check(corpus: Corpus, tokenizer: TokenizerInfo, n_ctx: int, longest: int = 0) -> None:
    """Check that a corpus is long enough. Counts tokens only if the bytes do not decide it.

    Args:
        corpus: to train on.
        tokenizer: of the run.
        n_ctx: training and held-out text need n_ctx + 1 tokens.
        longest: held-out text needs longest + 1 tokens.

    Raises:
        AblateError: a part is too short.
    """
    lengths = (corpus.n_train_bytes, corpus.n_held_out_bytes)
    if min(lengths) < 64 * (max(n_ctx, longest) + 1) and tokenizer.location != "byte":
        tokens = of(corpus, tokenizer)
        lengths = (len(tokens.train), len(tokens.held_out))
    location = f" ({corpus.where})" if corpus.where else ""
    _long_enough(corpus.name, *lengths, n_ctx, location)
    if lengths[1] < longest + 1:
        raise AblateError(
            f"corpus {corpus.name!r} is too short for [eval] lengths: its held-out part has"
            f" {lengths[1]} tokens, but a context of {longest / n_ctx:g} × n_ctx needs"
            f" {longest + 1}{location}"
        )


def _long_enough(name: str, train: int, held_out: int, n_ctx: int, location: str = "") -> None:
    for part, length in (("training", train), ("held-out", held_out)):
        if length < n_ctx + 1:
            raise AblateError(
                f"corpus {name!r} is too short: its {part} part has {length} tokens, but one window"
                f" needs n_ctx + 1 = {n_ctx + 1}{location}"
            )


def _tokens(corpus: str, corpus_hash: str, tokenizer: str, tokenizer_hash: str) -> Tokens:
    """Return the tokens of a corpus with a tokenizer, by their locations and hashes."""
    with sources.readable(f"corpus {Request.of(corpus).train}"):
        source = sources.at(corpus)
        if source.holds_tokens:
            return _from_token_files(corpus, source, corpus_hash, tokenizer, tokenizer_hash)
        return _mapped(
            cache.built(
                "tokens",
                _key(corpus_hash, tokenizer_hash),
                lambda folder: _make(folder, corpus, corpus_hash, tokenizer, tokenizer_hash),
            )
        )


def _location(config: RunConfig, sources: Mapping[str, str]) -> str:
    """Return the location of a run's tokenizer."""
    named = tokenizers.located(config.tokenizer, config.model_extra or {})
    return sources.get(config.tokenizer_hash, named)


def _key(corpus_hash: str, tokenizer_hash: str) -> str:
    return hashlib.sha256(f"{_FORMAT}:{corpus_hash}:{tokenizer_hash}".encode()).hexdigest()


def _from_token_files(
    corpus: str, source: Source, corpus_hash: str, tokenizer: str, tokenizer_hash: str
) -> Tokens:
    facts = corpora.unchanged(corpus, corpus_hash)[0]
    parts = corpora.tokens_of(source)
    spelling: tuple[bytes, ...] | None = None
    separator: tuple[int, ...] = ()
    if tokenizer != "tokens":
        opened = tokenizers.open(tokenizer, tokenizer_hash, iter(()), 0)
        spelling, separator = tuple(opened.spelling), tuple(opened.separator)
    n_vocab = len(spelling) if spelling else facts.n_token_ids
    (train, train_bounds), (held_out, held_out_bounds) = (
        _stream(part, f"{corpus_hash}:{name}", n_vocab)
        for part, name in ((parts.train, "train"), (parts.held_out, "held_out"))
    )
    n_train = len(train_bounds) - 1
    return Tokens(
        train,
        held_out,
        n_vocab,
        spelling,
        train_bounds,
        np.arange(n_train),
        held_out_bounds,
        n_train + np.arange(len(held_out_bounds) - 1),
        separator,
    )


def _stream(parts: list[token_files.Part], key: str, n_vocab: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of a part as one mapped array, and the bounds of its documents.

    A single file of at most 32 bits is mapped as it is; others are joined in the cache.
    """
    ends = np.concatenate(
        [
            (np.array([len(one.tokens)]) if one.ends is None else one.ends) + start
            for one, start in zip(
                parts, np.cumsum([0, *(len(one.tokens) for one in parts)]), strict=False
            )
        ]
        or [np.zeros(0, np.int64)]
    )
    bounds = np.concatenate([[0], ends]).astype(np.int64)
    if not parts:
        return np.zeros(0, np.uint16), bounds
    if len(parts) == 1 and parts[0].tokens.itemsize <= 4:
        return parts[0].tokens, bounds
    dtype = np.min_scalar_type(n_vocab - 1).newbyteorder("<")

    def join(folder: Path) -> None:
        with (folder / "tokens.bin").open("wb") as file:
            for chunk in corpora.pieces(parts):
                file.write(chunk.astype(dtype).tobytes())

    name = hashlib.sha256(f"{key}:{dtype.str}".encode()).hexdigest()
    folder = cache.built("joined", name, join)
    return np.memmap(folder / "tokens.bin", dtype, "r"), bounds


def _make(folder: Path, corpus: str, corpus_hash: str, tokenizer: str, tokenizer_hash: str) -> None:
    """Write the tokens of a corpus into a folder of the cache."""
    facts, split = corpora.unchanged(corpus, corpus_hash)
    encoder = _encoder(corpus, facts, tokenizer, tokenizer_hash)
    streams = {
        held_out: _Stream(folder / name, encoder)
        for name, held_out in (("train", False), ("held_out", True))
    }
    kept = _Kept(encoder, facts.n_held_out_documents)
    known = tokenizer == "byte" or tokenizer.startswith("bpe:")  # to lose nothing
    for number, part, held_out in _parts(corpus, split):
        streams[held_out].append(number, part.pieces())
        if held_out and not known:
            kept.add(part)
    for stream in streams.values():
        stream.close()
    spelling = [token.hex() for token in encoder.spelling]
    made = {
        "dtype": streams[False].dtype,
        "spelling": spelling,
        "separator": list(encoder.separator),
        "byte_coverage": 1.0 if known else streams[True].n_bytes() / max(1, facts.n_held_out_bytes),
        "text_kept": kept.share,
    }
    (folder / "tokens.json").write_text(json.dumps(made))


def _encoder(corpus: str, facts: corpora.Facts, tokenizer: str, tokenizer_hash: str) -> Tokenizer:
    """Return the tokenizer of a corpus, trained on its training part unless the cache has it."""

    def training() -> Iterator[bytes]:
        for _, part, held_out in _parts(corpus, corpora.read_with_split(corpus)[1]):
            if not held_out:
                yield from part.pieces()

    return tokenizers.open(tokenizer, tokenizer_hash, training(), facts.n_train_bytes)


def _parts(corpus: str, split: Split) -> Iterator[tuple[int, Document, bool]]:
    """Yield the number of each document, its parts, and whether each part is held out."""
    for number, document in enumerate(sources.at(corpus).documents()):
        for part, held_out in split.parts(document, number):
            yield number, part, held_out


class _Kept:
    """What tokens hold of a text: words and signs that are there again when they are decoded."""

    def __init__(self, tokenizer: Tokenizer, n_documents: int):
        self._tokenizer = tokenizer
        self._every = -(-n_documents // _BEGINNINGS) or 1
        self._size = _AGAIN // max(1, min(n_documents, _BEGINNINGS))
        self._documents = self._kept = self._all = 0

    @property
    def share(self) -> float:
        """The share of all that were tried; 1 if none was."""
        return self._kept / self._all if self._all else 1.0

    def add(self, document: Document) -> None:
        """Try the beginning of a document, if it is its turn."""
        self._documents += 1
        if self._documents % self._every:
            return
        piece = next(document.pieces(self._size))
        (tokens,) = self._tokenizer.encode([piece])
        # A decoder may put spaces into words, or tokens may have no text of their own: one of the
        # ways to read them is enough.
        spelled = b"".join(self._tokenizer.spelling[token] for token in tokens)
        decoded = (self._tokenizer.decode(tokens), spelled.decode(errors="replace"))
        parts, *again = (Counter(_PARTS.findall(one.strip())) for one in (piece.decode(), *decoded))
        self._all += parts.total()
        self._kept += max((parts & one).total() for one in again)


class _Stream:
    """A file of tokens to which documents are appended."""

    def __init__(self, stem: Path, tokenizer: Tokenizer):
        self.dtype = np.min_scalar_type(len(tokenizer.spelling) - 1).newbyteorder("<").str
        self._stem, self._tokenizer = stem, tokenizer
        self._file = stem.with_suffix(".bin").open("wb")
        self._bounds, self._documents = [0], list[int]()

    def append(self, number: int, pieces: Iterator[bytes]) -> None:
        length = self._bounds[-1]
        while batch := list(islice(pieces, _BATCH)):
            for tokens in self._tokenizer.encode(batch):
                length += self._write(tokens)
        self._bounds.append(length + self._write(self._tokenizer.separator))
        self._documents.append(number)

    def close(self) -> None:
        self._file.close()
        np.save(self._stem.with_suffix(".bounds.npy"), np.array(self._bounds, np.int64))
        np.save(self._stem.with_suffix(".documents.npy"), np.array(self._documents, np.int64))

    def n_bytes(self) -> int:
        """Return the bytes of all tokens of the closed stream."""
        tokens = np.fromfile(self._file.name, self.dtype)
        lengths = [len(token) for token in self._tokenizer.spelling]
        return int(np.bincount(tokens, minlength=len(lengths)) @ np.array(lengths))

    def _write(self, tokens: Sequence[int]) -> int:
        self._file.write(
            tokens if isinstance(tokens, bytes) else np.array(tokens, self.dtype).tobytes()
        )
        return len(tokens)


def _mapped(folder: Path) -> Tokens:
    facts = json.loads((folder / "tokens.json").read_text())

    def part(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        bounds, documents = (
            np.load(folder / f"{name}.bounds.npy"),
            np.load(folder / f"{name}.documents.npy"),
        )
        path = folder / f"{name}.bin"
        if path.stat().st_size != bounds[-1] * np.dtype(facts["dtype"]).itemsize:
            raise AblateError(f"{path} is damaged: delete {folder} and run again")
        stream = np.memmap(path, facts["dtype"], "r") if bounds[-1] else np.zeros(0, facts["dtype"])
        return stream, bounds, documents

    train, train_bounds, train_documents = part("train")
    held_out, held_out_bounds, held_out_documents = part("held_out")
    spelling = tuple(bytes.fromhex(token) for token in facts["spelling"])
    return Tokens(
        train,
        held_out,
        len(spelling),
        spelling,
        train_bounds,
        train_documents,
        held_out_bounds,
        held_out_documents,
        tuple(facts["separator"]),
        facts["byte_coverage"],
        facts["text_kept"],
    )
