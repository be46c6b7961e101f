"""What is printed, and streams that cannot be written: a full disk, no reader, no UTF-8."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import sys
import unicodedata
from collections.abc import Iterator
from typing import IO, Any

from ablate.errors import AblateError
from ablate.formats import harmless

_UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO)
_ASCII = {  # what tables and sentences use
    **dict.fromkeys("−–─━", "-"),
    "×": "x",
    "±": "+/-",
    "→": "->",
    "←": "<-",
    "≤": "<=",
    "≥": ">=",
    "…": "...",
    "·": "*",
    **dict.fromkeys("“”", '"'),
    **dict(zip("▁▂▃▄▅▆▇█", "12345678", strict=True)),
}
_RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


class Dispensable:
    """Standard output of a command that continues, after one line, when it cannot be written.

    Args:
        file: the stream, which leads to /dev/null after its first failure.
    """

    def __init__(self, file: IO[str]):
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def write(self, text: str) -> int:
        """Write `text`, or drop it once the stream has failed."""
        with self._tolerant():
            self.file.write(text)
        return len(text)

    def flush(self) -> None:
        """Write out the buffer, or drop it once the stream has failed."""
        with self._tolerant():
            self.file.flush()

    @contextlib.contextmanager
    def _tolerant(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            silence(self.file)
            complain(f"standard output cannot be written ({error.strerror}); the study continues")


def encodable() -> None:
    """Let standard streams that are not UTF-8 take all text: spelt in ASCII, or escaped."""
    codecs.register_error("ablate", _spelt)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="ablate")


def _spelt(error: UnicodeError) -> tuple[str, int]:
    """Return what is written for characters that the encoding lacks: "10^-3" for "10⁻³"."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    raised = text.translate(_RAISED)
    if raised != text and raised.lstrip("-").isdigit():
        return f"^{raised}", error.end
    return "".join(map(_spelling, text)), error.end


def _spelling(char: str) -> str:
    if char in _ASCII:
        return _ASCII[char]
    plain = unicodedata.normalize("NFKD", char).encode("ascii", "ignore").decode()
    return plain or char.encode("ascii", "backslashreplace").decode()


@contextlib.contextmanager
def written() -> Iterator[None]:
    """Run a command and write out its output.

    Raises:
        AblateError: standard output cannot be written.
        SystemExit: with code 1, if standard output has no reader any more, as in click.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        # An error of a file names it; the writing of a stream has no file name.
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        silence(sys.stdout)
        if error.errno == errno.EPIPE:
            sys.exit(1)
        raise AblateError(f"standard output cannot be written: {error.strerror}") from None


def echo(*lines: str, error: bool = False) -> None:
    """Print lines on standard output, or standard error, that cannot act on the terminal."""
    for line in lines:
        print(harmless(line), file=sys.stderr if error else sys.stdout)


def deliver(content: str | bytes) -> None:
    """Print content for another program as it is, and text on a terminal with escapes.

    Raises:
        AblateError: Bytes would go to a terminal.
    """
    if isinstance(content, str):
        print(harmless(content) if sys.stdout.isatty() else content, end="")
    elif sys.stdout.isatty():
        raise AblateError(
            "the output is not text for a terminal: name a file, or redirect the output"
        )
    else:
        sys.stdout.buffer.write(content)


def complain(text: str) -> None:
    """Print a line on standard error, where that can be written."""
    try:
        print(f"ablate: {harmless(text)}", file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


def silence(file: IO[str]) -> None:
    """Point a stream to /dev/null, or Python would fail to flush it again as it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)
