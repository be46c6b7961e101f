"""Documents: ranges of bytes in memory or in a mapped file, and the split that holds some out.

Form feeds (U+000C) separate documents. White space around a document is dropped, and so are empty
documents.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

SEPARATOR = b"\f"
WHOLE_FROM = 50  # from this many documents on, whole ones are held out
EVERY = 10  # one in EVERY is held out; of fewer documents, the last 1/EVERY of each

_SPACE = b" \t\r\n"


@dataclass(frozen=True)
class Document:
    """Bytes `start` to `end` of a buffer, which may be larger than memory."""

    buffer: bytes | mmap.mmap
    start: int
    end: int
    origin: str = ""  # the file that it was read from; "" if that is not known

    def __len__(self) -> int:
        return self.end - self.start

    def pieces(self, size: int = 1 << 16) -> Iterator[bytes]:
        """Yield the document in pieces of about `size` bytes.

        Each piece but the first begins with white space after a word. No pre-tokenizer in use
        joins a word to the white space after it, so the pieces' tokens are the whole's. Text
        without white space is cut between characters.
        """
        start = self.start
        while self.end - start > size:
            cut = self._before_space(start, start + size)
            yield self.buffer[start:cut]
            start = cut
        yield self.buffer[start : self.end]

    def split(self) -> tuple[Document, Document]:
        """Return the document without its last tenth, and that tenth, cut between lines."""
        ninety = self.end - len(self) // EVERY
        line = self.buffer.rfind(b"\n", self.start, ninety) + 1
        cut = line if line > self.end - len(self) // EVERY * 2 else self._between_characters(ninety)
        return (
            _strip(self.buffer, self.start, cut, self.origin),
            _strip(self.buffer, cut, self.end, self.origin),
        )

    def _before_space(self, start: int, end: int) -> int:
        for space in (b"\n", b" "):
            at = self.buffer.rfind(space, start + 1, end)
            while at > start and self.buffer[at - 1] in _SPACE:
                at -= 1
            if at > start:
                return at
        return self._between_characters(end)

    def _between_characters(self, at: int) -> int:
        """Return the start of the UTF-8 character at byte `at`; `at` itself if it is not UTF-8."""
        for back in range(4 if at < self.end else 0):
            if at - back > self.start and self.buffer[at - back] & 0xC0 != 0x80:
                return at - back
        return at


def documents(buffer: bytes | mmap.mmap, origin: str = "") -> Iterator[Document]:
    """Yield the documents of a buffer, in order; `origin` is the file that it was read from."""
    start = 0
    while start < len(buffer):
        end = buffer.find(SEPARATOR, start)
        end = len(buffer) if end < 0 else end
        document = _strip(buffer, start, end, origin)
        if len(document):
            yield document
        start = end + 1


@dataclass(frozen=True, eq=False)
class Split:
    """Which text is held out.

    Lines are never shuffled: a model would have to fill in between lines that it has seen.

    Attributes:
        how: A phrase for readers, such as "every tenth document".
        held_out: Whether each document is held out, [documents] bool; None where the last tenth of
            each one is.
    """

    how: str
    held_out: np.ndarray | None = None

    def parts(self, document: Document, number: int) -> list[tuple[Document, bool]]:
        """Return the parts of a document, each with whether it is held out.

        Args:
            document: To split.
            number: Its index in the corpus.
        """
        if self.held_out is not None:
            return [(document, bool(self.held_out[number]))]
        train, held_out = document.split()
        return [(part, part is held_out) for part in (train, held_out) if len(part)]


TAILS = Split("the last tenth of each document")


def every_tenth(n_documents: int) -> Split:
    """Return the split of the corpora that come with the package.

    Of 50 documents or more every tenth is held out; otherwise the last tenth of each.
    """
    if n_documents < WHOLE_FROM:
        return TAILS
    return Split("every tenth document", np.arange(n_documents) % EVERY == EVERY - 1)


def _strip(buffer: bytes | mmap.mmap, start: int, end: int, origin: str) -> Document:
    while start < end and buffer[start] in _SPACE:
        start += 1
    while end > start and buffer[end - 1] in _SPACE:
        end -= 1
    return Document(buffer, start, end, origin)
