"""Tokenizers: bytes, BPE trained on the training part, `tokenizer.json`, a corpus's own tokens,
and those of a user's own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, Protocol

import numpy as np

from ablate import cache
from ablate.code import identity, place
from ablate.components import CATALOGUE, plain
from ablate.config import own_value
from ablate.errors import AblateError, unknown
from ablate.text import sources
from ablate.text.corpora import Corpus
from ablate.text.documents import SEPARATOR

_SPECS = ("byte", "bpe:SIZE", "tokens", "tokenizer.json")
_BPE_SIZES = (257, 1 << 18)
_BPE_TEXT = 1 << 28  # bytes of training text that BPE reads; of a larger text, evenly spaced pieces
_GAPS, _SPARE = 2, 1024  # more unused numbers than these allow are a fault of the file
_LARGEST = 1 << 24  # tokens of a vocabulary
_FORMAT = 1  # increased when BPE is trained or read differently
# tokens that may end a document, else U+000C
_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


@dataclass(frozen=True)
class TokenizerInfo:
    """What a tokenizer is, before it is trained or read."""

    name: str  # "byte", "bpe:8192", "tokens", a level, or the name of a tokenizer's file
    n_vocab: int  # without [MASK]
    hash: str  # SHA-256 of what decides the tokens
    # "byte", "bpe:8192", "tokens", an absolute path, or a level, with its hyper-parameters as JSON
    location: str


class Tokenizer(Protocol):
    """Turns text into tokens, and knows the bytes of each token."""

    separator: Sequence[int]  # tokens after each document
    spelling: list[bytes]  # the bytes of each token; b"" for one without text
    content: bytes  # its tokenizer.json; b"" for bytes

    def encode(self, pieces: list[bytes]) -> Sequence[Sequence[int]]:
        """Return the tokens of each piece.

        Raises:
            AblateError: the tokenizer has no token for it.
        """

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; bytes that are no UTF-8 become U+FFFD."""


def located(spec: str, fields: Mapping[str, Any]) -> str:
    """Return what tells the tokenizers of a study apart, by what a run names.

    Args:
        spec: As for `describe`.
        fields: Of the run, with those of the level's own hyper-parameters that are set.

    Raises:
        AblateError: A hyper-parameter has a value of another type.
    """
    row = CATALOGUE["tokenizer"]
    own = type(row[spec]).fields if spec in row.names else ()
    values = {one.name: own_value(one, fields.get(one.name, one.default)) for one in own}
    return spec + (f":{json.dumps(values, sort_keys=True)}" if values else "")


def describe(
    spec: str, corpus: Corpus, root: Path, fields: Mapping[str, Any] = MappingProxyType({})
) -> TokenizerInfo:
    """Return what a tokenizer is, without training it.

    Args:
        spec: byte, bpe:SIZE, tokens, a level, or the path of a `tokenizer.json`.
        corpus: what it is used on.
        root: the folder that relative paths count from.
        fields: of a run, where a level's hyper-parameters have other values than their defaults.

    Raises:
        AblateError: there is no such tokenizer, or not for this corpus.
    """
    if spec == "tokens" or (spec == "byte" and corpus.holds_tokens):
        if spec == "byte" or not corpus.holds_tokens:
            tokens = "tokens, not text; use 'tokens', or the tokenizer.json that made them"
            holds = tokens if corpus.holds_tokens else "text, not tokens"
            raise AblateError(f"tokenizer = {spec!r}: corpus {corpus.name!r} holds {holds}")
        return TokenizerInfo(
            "tokens", corpus.n_token_ids, _hash(f"tokens:{corpus.n_token_ids}"), "tokens"
        )
    if spec == "byte":
        return TokenizerInfo("byte", 256, _hash("byte"), "byte")
    if corpus.not_utf8:
        problem = f"corpus {corpus.name!r} is not UTF-8 around {corpus.not_utf8}"
        raise AblateError(f"tokenizer = {spec!r}: {problem}: convert it, or use tokenizer = 'byte'")
    if spec.startswith("bpe:"):
        size = _size(spec)
        if corpus.holds_tokens:
            raise AblateError(
                f"tokenizer = {spec!r}: corpus {corpus.name!r} holds tokens, not text, and BPE is"
                " trained on text"
            )
        return TokenizerInfo(spec, size, _hash(f"{spec}:{_FORMAT}:{corpus.hash}"), spec)
    if is_own(spec):
        location = located(spec, fields)
        made = Own(location)
        _check_size(spec, len(made.spelling), corpus)
        return TokenizerInfo(spec, len(made.spelling), made.hash, location)
    with sources.readable(f"tokenizer = {spec!r}"):
        path = sources.absolute(spec, root)
        if not path.is_file():
            if "/" in spec or spec.endswith(".json"):
                raise AblateError(f"tokenizer = {spec!r:.200}: there is no file {path}")
            raise unknown("tokenizer", spec, [*_SPECS, *CATALOGUE["tokenizer"].names])
        content = _content(path)
    n_vocab = len(_spelling(_library(path, content)))
    _check_size(spec, n_vocab, corpus)
    return TokenizerInfo(path.name, n_vocab, hashlib.sha256(content).hexdigest(), str(path))


def open(location: str, hash: str, training: Iterator[bytes], n_bytes: int) -> Tokenizer:
    """Return the tokenizer at a location; BPE is trained unless the cache has it.

    Args:
        location: of `TokenizerInfo`.
        hash: of `TokenizerInfo`.
        training: pieces to train BPE on.
        n_bytes: of these pieces together.
    """
    if location == "byte":
        return Bytes()
    if location.startswith("bpe:"):
        size = _size(location)
        trained = cache.built(
            "tokenizers", hash, lambda folder: _train_bpe(size, training, n_bytes, folder)
        )
        return Library("tokenizer.json", _content(trained / "tokenizer.json"), size)
    if is_own(location):
        own = Own(location)
        if own.hash != hash:
            raise AblateError(
                f"tokenizer {location!r} has changed since the study was planned: run it again"
            )
        return own
    path = Path(location)
    content = _content(path)
    if hashlib.sha256(content).hexdigest() != hash:
        raise AblateError(
            f"tokenizer {path} has changed since the study was planned: run the study again"
        )
    return Library(str(path), content)


def of_content(name: str, content: bytes, n_vocab: int) -> Tokenizer:
    """Return a tokenizer by what `Tokenizer.content` had.

    Args:
        name: Its name, or what `located` returns for it.
        content: Of the tokenizer.
        n_vocab: Tokens that it has.
    """
    if is_own(name):
        return Own(name)
    return Library(name, content, n_vocab) if content else Bytes()


def special(location: str, spellings: Sequence[str]) -> int:
    """Return the number of a special token in a tokenizer, -1 if it has none.

    Args:
        location: Of `TokenizerInfo`.
        spellings: How tokenizers write the token; the first one that there is counts.
    """
    if location in ("byte", "tokens") or location.startswith("bpe:") or is_own(location):
        return -1
    path = Path(location)
    library = _library(path, _content(path))
    found = (library.token_to_id(one) for one in spellings)
    return next((number for number in found if number is not None), -1)


def is_own(location: str) -> bool:
    """Return whether a tokenizer is one of the user's own, which `use` loads."""
    return location.partition(":{")[0] in CATALOGUE["tokenizer"].names


def check_separator(tokenizer: TokenizerInfo) -> None:
    """Check that one token ends a document, which is how a window shows where documents are.

    Raises:
        AblateError: none does, several do, or it is unknown which.
    """
    if tokenizer.location == "byte" or tokenizer.location.startswith("bpe:"):
        return
    what = "the tokens of tokenizer = 'tokens' do not say where documents end"
    use = f"use a tokenizer.json with one of {', '.join(_ENDS)}"
    if tokenizer.location != "tokens":
        own, path = is_own(tokenizer.location), Path(tokenizer.location)
        opened: Tokenizer = Own(tokenizer.location) if own else Library(str(path), _content(path))
        n = len(opened.separator)
        if n == 1:
            return
        what = f"tokenizer {tokenizer.name!r} ends a document with {n} tokens"
        use = "give it an attribute end, the token after a document" if own else use
    raise AblateError(f"document_mask = 'attention': {what}; {use}")


class Bytes:
    """Every byte is a token, so any file can be read; U+000C follows each document."""

    def __init__(self) -> None:
        self.separator: Sequence[int] = SEPARATOR
        self.spelling = [bytes([value]) for value in range(256)]
        self.content = b""

    def encode(self, pieces: list[bytes]) -> Sequence[Sequence[int]]:
        """Return the pieces: their bytes are the tokens."""
        return pieces

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; see `Tokenizer`."""
        return bytes(tokens).decode(errors="replace")


class Library:
    """A tokenizer of the tokenizers library, from its `tokenizer.json`."""

    def __init__(self, name: str, content: bytes, n_vocab: int = 0):
        """Open a tokenizer.json; `n_vocab` above its size adds tokens that never occur."""
        self._name, self.content = name, content
        self._tokenizer = _library(name, content)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self.spelling = _spelling(self._tokenizer)
        self.spelling += [b""] * (n_vocab - len(self.spelling))
        ends = [self._tokenizer.token_to_id(end) for end in _ENDS]
        self.separator: Sequence[int] = next(
            ([end] for end in ends if end is not None), self.encode([SEPARATOR])[0]
        )

    def encode(self, pieces: list[bytes]) -> list[list[int]]:
        """Return the tokens of each piece.

        Raises:
            AblateError: the library cannot encode it.
        """
        texts = [piece.decode() for piece in pieces]
        with _readable(f"tokenizer {self._name} cannot encode the text"):
            return [
                encoding.ids
                for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)
            ]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, as the library's decoder makes it; see `Tokenizer`."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text


class Own:
    """A tokenizer of a user's own: `encode(text)` → numbers, `decode(numbers)` → text or bytes, and
    `n_vocab`; `end`, the token after a document, where it has one, else those of U+000C.

    Args:
        location: What `located` returns for it.

    Raises:
        AblateError: It lacks one of them, or they do not fit together.
    """

    def __init__(self, location: str) -> None:
        name, _, values = location.partition(":")
        component = CATALOGUE["tokenizer"][name]
        self._code = component.origin
        # of what decides the tokens: the code, and the hyper-parameters
        self.hash = _hash(f"own:{location}:{':'.join(identity(component.origin))}")
        given = json.loads(values or "{}")
        own = {
            one.name: own_value(one, given.get(one.name, one.default)) for one in component.fields
        }
        self._called = component.called(SimpleNamespace(**own))
        with self._failing():
            self._plain = plain.construct(component.plain, SimpleNamespace(**own))
        for name in ("encode", "decode", "n_vocab"):
            if not hasattr(self._plain, name):
                raise AblateError(f"{self._called} has no {name}; it needs encode, decode, n_vocab")
        n_vocab = self._plain.n_vocab
        if not isinstance(n_vocab, int) or not 2 <= n_vocab <= _LARGEST:
            raise AblateError(f"{self._called}: n_vocab = {n_vocab!r:.80}: a whole number above 1")
        self._n_vocab, self.content = n_vocab, b""
        self.spelling = [self._bytes([token]) for token in range(n_vocab)]
        end = getattr(self._plain, "end", None)
        self.separator: Sequence[int] = self._checked(
            self.encode([SEPARATOR])[0] if end is None else [end]
        )

    def encode(self, pieces: list[bytes]) -> list[list[int]]:
        """Return the tokens of each piece.

        Raises:
            AblateError: The tokenizer fails, or makes no tokens.
        """
        with self._failing():
            found = [self._plain.encode(piece.decode()) for piece in pieces]
        return [self._checked(tokens) for tokens in found]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; see `Tokenizer`.

        Raises:
            AblateError: The tokenizer fails, or makes something else.
        """
        return self._bytes(list(tokens)).decode(errors="replace")

    def _bytes(self, tokens: list[int]) -> bytes:
        with self._failing():
            made = self._plain.decode(tokens)
        if not isinstance(made, str | bytes):
            raise AblateError(
                f"{self._called}: decode returns {type(made).__name__}, where text or bytes are"
                " expected"
            )
        return made.encode() if isinstance(made, str) else made

    def _checked(self, tokens: Any) -> list[int]:
        with self._failing():
            found = np.asarray(tokens)
        if not found.size:
            return []
        wrong = found if found.dtype.kind not in "iu" or found.ndim != 1 else found[found < 0]
        wrong = wrong if wrong.size else found[found >= self._n_vocab]
        if wrong.size:
            raise AblateError(
                f"{self._called}: encode returns {wrong.flat[0]!s:.80}, no whole number from 0 to"
                f" n_vocab - 1 = {self._n_vocab - 1}"
            )
        numbers: list[int] = found.tolist()
        return numbers

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            said = " ".join(str(error).split())[:200]
            where = place(error, self._code)
            raise AblateError(
                f"{self._called}{f' ({where})' if where else ''}: {type(error).__name__}: {said}"
            ) from error


def _check_size(spec: str, n_vocab: int, corpus: Corpus) -> None:
    if n_vocab < 2:
        raise AblateError(f"tokenizer = {spec!r} has {n_vocab} tokens: there is nothing to predict")
    if corpus.n_token_ids > n_vocab:
        raise AblateError(
            f"tokenizer = {spec!r} has {n_vocab} tokens, but corpus {corpus.name!r} contains token"
            f" {corpus.n_token_ids - 1}: another tokenizer made it"
        )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _size(spec: str) -> int:
    least, most = _BPE_SIZES
    digits = spec.removeprefix("bpe:")
    if not digits.isascii() or not digits.isdigit() or not least <= int(digits[:9]) <= most:
        raise AblateError(
            f"tokenizer = {spec!r}: 'bpe:' is followed by a whole number from {least} to {most}, as"
            " in 'bpe:8192'"
        )
    return int(digits)


def _content(path: Path) -> bytes:
    if not path.is_file():
        raise AblateError(f"tokenizer {path}: there is no such file")
    return path.read_bytes()


def _library(name: object, content: bytes) -> Any:
    import tokenizers

    with _readable(f"tokenizer {name} is not a tokenizer.json of the tokenizers library"):
        return tokenizers.Tokenizer.from_buffer(content)


@contextmanager
def _readable(what: str) -> Iterator[None]:
    """Raise an `AblateError` that begins with `what` for any error of the library, even a panic."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic is no Exception
        raise AblateError(f"{what}: {error}") from None


def _train_bpe(size: int, training: Iterable[bytes], n_bytes: int, folder: Path) -> None:
    """Train a byte-level BPE as GPT-2's (Sennrich et al. 2016; Radford et al. 2019)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    every = -(-n_bytes // _BPE_TEXT)
    texts = (piece.decode() for number, piece in enumerate(training) if number % every == 0)
    bpe.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    (folder / "tokenizer.json").write_text(bpe.to_str())


def _spelling(tokenizer: Any) -> list[bytes]:
    """Return the bytes of each token, as the library's decoder makes them."""
    decoder = json.dumps(json.loads(tokenizer.to_str()).get("decoder") or {})
    from_byte_level = {letter: value for value, letter in byte_level().items()}
    added = {
        number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
    }

    def spell(token: str) -> bytes:
        if "ByteLevel" in decoder and all(letter in from_byte_level for letter in token):
            return bytes(from_byte_level[letter] for letter in token)
        if "WordPiece" in decoder:
            return token[2:].encode() if token.startswith("##") else f" {token}".encode()
        if "ByteFallback" in decoder and len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        return token.replace("\u2581", " ").encode()

    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    largest = max(vocabulary.values(), default=-1)
    if largest > _GAPS * (len(vocabulary) + _SPARE):
        raise AblateError(
            f"a tokenizer of {len(vocabulary):,} tokens has one with number {largest:,}: the model"
            " would have an embedding for each number; give its tokens the numbers 0, 1, …"
        )
    spelled = [b""] * (largest + 1)
    for token, number in vocabulary.items():
        if number not in added:
            spelled[number] = spell(token)
    return spelled


def byte_level() -> dict[int, str]:
    """Return byte → its letter in byte-level vocabularies. Source: GPT-2's `bytes_to_unicode`."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [value for value in range(256) if value not in shown]
    return {value: chr(value) for value in shown} | {
        value: chr(256 + n) for n, value in enumerate(hidden)
    }
