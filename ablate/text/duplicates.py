"""Duplicates: equal and similar documents, and text that stands in two parts of a corpus."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ablate.text.documents import Document

SIMILAR = 0.7  # Jaccard similarity of two documents' runs of words, from which they are similar
_WORDS = 5  # words of a run
_PERMUTATIONS = 128  # of MinHash: its error of a similarity of 0.7 is 0.04
# bands of a signature and numbers in each: documents alike in a band are compared; what datasketch
# finds best for `SIMILAR` by integrals, which take as long as a small text
_BANDS = (14, 9)
# the most documents, and bytes, among which similar ones are searched: 2 GB of memory, minutes
MOST_DOCUMENTS, MOST_BYTES = 300_000, 1 << 31
_BATCH = 1 << 12  # runs of words that are permuted at a time
_PIECE = 1 << 20
_GATHERED = 1 << 16  # bytes or tokens that are hashed at a time: they stay in a processor's cache
_ONE = np.uint64(1)

_P = np.uint64(0x9E3779B97F4A7C15)  # odd, so that it has an inverse modulo 2⁶⁴
_P_INVERSE = np.uint64(pow(int(_P), -1, 1 << 64))
_IS_WORD = np.zeros(256, bool)
_IS_WORD[[*range(48, 58), *range(65, 91), *range(97, 123), *range(128, 256)]] = True
_LOWER = np.arange(256, dtype=np.uint64)
_LOWER[65:91] += np.uint64(32)

SHARED_BYTES = 48  # length of the strings that are looked for in both parts of a text
SHARED_TOKENS = 12  # the same for tokens: about as long
# strings of the held-out part that are looked for; of more, some by their hash: the share of all
# is then known to 0.1%
_MOST_STRINGS = 1 << 18
_BITS_PER_STRING = 16  # of the filter before the search


@dataclass
class Groups:
    """Groups of equal and similar documents, found while documents are added one by one."""

    hashes: list[bytes] = field(default_factory=list)  # of each document, 16 bytes of its SHA-256
    n_equal: int = 0  # documents that are equal to an earlier one
    n_similar: int = 0  # others that are similar to an earlier one
    searched: bool = True  # whether similar ones were searched among all documents
    _first: dict[bytes, int] = field(default_factory=dict)
    _parent: list[int] = field(default_factory=list)
    _n_bytes: int = 0
    _index: _Similar | None = None

    def add(self, document: Document) -> None:
        """Add the next document."""
        number, digest = len(self.hashes), _digest(document)
        self.hashes.append(digest)
        self._parent.append(number)
        self._n_bytes += len(document)
        if digest in self._first:
            self.n_equal += 1
            self._join(self._first[digest], number)
            return
        self._first[digest] = number
        if number >= MOST_DOCUMENTS or self._n_bytes > MOST_BYTES:
            self.searched, self._index = False, None
        if self.searched:
            self._index = self._index or _Similar()
            similar = self._index.add(number, document)
            self.n_similar += bool(similar)
            for other in similar:
                self._join(other, number)

    def held_out(self, share: float) -> np.ndarray | None:
        """Return which documents are held out, [documents] bool: about `share`, never none.

        None if all documents are similar, so that no split parts like from like.

        The hash of one document decides for its group: the group is held out if this hash, as a
        number in [0, 1), is below `share`. The second halves of the hashes choose the document, so
        that large groups are held out as often as small ones. A document that is added moves none
        but those that are similar to it.
        """
        deciding: dict[int, bytes] = {}
        roots = [self._root(number) for number in range(len(self.hashes))]
        for root, digest in zip(roots, self.hashes, strict=True):
            deciding[root] = min(deciding.get(root, digest), digest, key=lambda one: one[8:])
        if len(deciding) < 2:
            return None
        limit = int(share * 2**64).to_bytes(8, "big")
        chosen = {root for root, digest in deciding.items() if digest[:8] < limit}
        by_hash = sorted(deciding, key=lambda root: deciding[root])
        chosen = chosen or {by_hash[0]}
        if len(chosen) == len(deciding):
            chosen.remove(by_hash[-1])
        return np.array([root in chosen for root in roots])

    def _root(self, number: int) -> int:
        while self._parent[number] != number:
            self._parent[number] = self._parent[self._parent[number]]
            number = self._parent[number]
        return number

    def _join(self, one: int, other: int) -> None:
        a, b = self._root(one), self._root(other)
        self._parent[max(a, b)] = min(a, b)


class _Similar:
    """An index of MinHash signatures, to search earlier documents that are similar.

    A document is compared by its first mebibyte.
    """

    def __init__(self) -> None:
        from datasketch import MinHash, MinHashLSH

        self._empty = MinHash(_PERMUTATIONS, seed=1, hashfunc=int, scheme="affine64")
        self._index = MinHashLSH(params=_BANDS, num_perm=_PERMUTATIONS)
        self._signatures: dict[int, np.ndarray] = {}

    def add(self, number: int, document: Document) -> list[int]:
        """Return the earlier documents that are similar to this one, and add it."""
        signature = self._empty.copy()
        runs = _runs(next(document.pieces(_PIECE)))
        for start in range(0, len(runs), _BATCH):
            signature.update_batch(runs[start : start + _BATCH].tolist())
        found = []
        for other in self._index.query(signature):
            alike = np.mean(self._signatures[other] == signature.hashvalues)
            if alike >= SIMILAR:
                found.append(other)
        self._signatures[number] = signature.hashvalues
        self._index.insert(number, signature, check_duplication=False)
        return found


def _digest(document: Document) -> bytes:
    digest = hashlib.sha256()
    for piece in document.pieces(_PIECE):
        digest.update(piece)
    return digest.digest()[:16]


def _runs(piece: bytes) -> np.ndarray:
    """Return a hash of each run of five words, without regard to case and punctuation; uint64."""
    values = np.frombuffer(piece, np.uint8)
    word = np.concatenate([[False], _IS_WORD[values], [False]])
    starts = np.flatnonzero(word[1:] & ~word[:-1])
    ends = np.flatnonzero(~word[1:] & word[:-1])
    if not len(starts):
        return np.frombuffer(hashlib.sha256(piece).digest()[:8], "<u8")
    words = _mixed(_polynomials(_LOWER[values] + _ONE, starts, ends))
    n = max(1, len(words) - _WORDS + 1)
    runs = np.zeros(n, np.uint64)
    for offset in range(min(_WORDS, len(words))):
        runs = runs * _P + words[offset : offset + n]
    return _mixed(runs)


def _mixed(hashes: np.ndarray) -> np.ndarray:
    """Return hashes whose every bit depends on all bits (the finaliser of MurmurHash3)."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        hashes = (hashes ^ (hashes >> np.uint64(33))) * np.uint64(factor)
    return hashes ^ (hashes >> np.uint64(33))


_SPREAD = _mixed(np.arange(1, 257, dtype=np.uint64))  # of each byte


def shared(train: Iterable[np.ndarray], held_out: Iterable[np.ndarray], length: int) -> float:
    """Return the share of the strings of `length` in held-out text that stand in training text.

    Args:
        train: Documents, or pieces of them, as integers.
        held_out: The same of the held-out part.
        length: Bytes or tokens of a string.
    """
    wanted, every = _strings(held_out, length)
    if not len(wanted):
        return 0.0
    known, counts = np.unique(wanted, return_counts=True)
    shift = np.uint64(64 - max(10, (len(known) * _BITS_PER_STRING - 1).bit_length()))
    likely = np.zeros(1 << (64 - int(shift)), bool)
    likely[known >> shift] = True
    seen = np.zeros(len(known), bool)
    for hashes in _hashes(train, length):
        chosen = _chosen(hashes, every)
        candidates = chosen[likely[chosen >> shift]]
        if len(candidates):
            at = np.searchsorted(known, candidates)
            at[at == len(known)] = 0
            seen[at[known[at] == candidates]] = True
    return float(counts[seen].sum() / counts.sum())


def _strings(parts: Iterable[np.ndarray], length: int) -> tuple[np.ndarray, int]:
    """Return the hashes of all strings, or of those that a number divides, and this number."""
    kept: list[np.ndarray] = []
    every, size = 1, 0
    for hashes in _hashes(parts, length):
        kept.append(_chosen(hashes, every))
        size += len(kept[-1])
        while size > _MOST_STRINGS:
            every *= 2
            kept = [_chosen(part, every) for part in kept]
            size = sum(map(len, kept))
    return (np.concatenate(kept) if kept else np.zeros(0, np.uint64)), every


def _chosen(hashes: np.ndarray, every: int) -> np.ndarray:
    """Return the hashes that `every`, a power of two, divides."""
    return hashes if every == 1 else hashes[hashes & np.uint64(every - 1) == 0]


def _hashes(parts: Iterable[np.ndarray], length: int) -> Iterator[np.ndarray]:
    """Yield a hash of each string of `length` integers, uint64; none crosses two parts."""
    gathered: list[np.ndarray] = []
    size = 0
    for part in parts:
        if len(part) >= length:
            gathered.append(part)
            size += len(part)
        if size >= _GATHERED:
            yield _rolling(gathered, length)
            gathered, size = [], 0
    if gathered:
        yield _rolling(gathered, length)


def _rolling(parts: list[np.ndarray], length: int) -> np.ndarray:
    """Return the hash of every string that lies within one part."""
    spread = [_SPREAD[part] if part.itemsize == 1 else _mixed(part + _ONE) for part in parts]
    values = spread[0] if len(spread) == 1 else np.concatenate(spread)
    starts = np.arange(len(values) - length + 1)
    if len(parts) > 1:
        inside = np.ones(len(values), bool)
        for end in np.cumsum([len(part) for part in parts]):
            inside[max(0, end - length + 1) : end] = False
        starts = np.flatnonzero(inside)
    return _mixed(_polynomials(values, starts, starts + length))


def _polynomials(values: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return Σ value·P^(place − start) of each range, modulo 2⁶⁴."""
    powers, inverse = _powers(1 << (len(values) - 1).bit_length())
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(values * powers[: len(values)], out=sums[1:])
    return (sums[ends] - sums[starts]) * inverse[starts]


@functools.lru_cache(maxsize=4)
def _powers(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return P⁰ … Pⁿ⁻¹ and their inverses."""
    found = []
    for base in (_P, _P_INVERSE):
        powers = np.full(n, base)
        powers[0] = 1
        found.append(np.cumprod(powers))
    return found[0], found[1]
