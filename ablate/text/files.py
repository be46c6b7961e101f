"""Files of text: unpacked, decoded, mapped into memory."""

from __future__ import annotations

import codecs
import gzip
import lzma
import mmap
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ablate.errors import AblateError
from ablate.text import cache
from ablate.text.options import BYTES, Reading

Buffer = bytes | mmap.mmap


class Mended(Counter[str]):
    """What was changed in files as they were read → in how many.

    Attributes:
        fields: Keys or columns that held the text; keys of a dictionary, in order.
        n_without_text: Rows without text, which were skipped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fields: dict[str, None] = {}
        self.n_without_text = 0


_CHUNK = 1 << 20
_SAMPLE = 1 << 16  # bytes from which an encoding is guessed
_HEAD = 4096  # bytes in which a NUL says that a file is no text
# byte order mark → encoding; those of UTF-32 begin with those of UTF-16
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}
# Of encodings that share most of their letters, the library finds one as good as another, and of 18
# texts in 12 of them took a wrong one for 4, such as cp1257 for French in cp1252. The common ones
# are tried first: a guess takes one whose words are as likely, by the library's scores from 0 to 1.
# That leaves one wrong, Hungarian in cp1250.
_COMMON = ("cp1252", "cp1251")
_LESS_COHERENT, _MORE_CHAOTIC = 0.01, 0.2
_PLAIN = 0.98  # share of printable characters from which bytes are text in an encoding


def _open_zst(file: BinaryIO) -> Any:
    try:
        from compression import zstd  # type: ignore[import-not-found, unused-ignore]  # Python 3.14

        return zstd.open(file)
    except ImportError:
        import zstandard

        return zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)


_PACKED: dict[str, Callable[[BinaryIO], Any]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    ".zst": _open_zst,
}
_OTHER_PACKERS = (".bz2", ".zip", ".7z", ".rar", ".tar", ".tgz", ".lz4", ".lzma")


def suffix(path: Path) -> str:
    """Return the end of a file's name that says its format, without that of a packer."""
    name = path.name.lower()
    for packer in _PACKED:
        name = name.removesuffix(packer)
    return Path(name).suffix


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file; a packed one is first unpacked into an unnamed file of the cache."""
    with path.open("rb") as file:
        unpack = _PACKED.get(path.suffix.lower())
        if unpack is None:
            yield file
            return
        with _unnamed() as unpacked:
            try:
                with unpack(file) as packed:
                    while chunk := packed.read(_CHUNK):
                        with cache.usable():
                            unpacked.write(chunk)
            except AblateError:
                raise
            except Exception as error:
                if not _is_damage(error):
                    raise
                raise AblateError(f"{path} cannot be unpacked: {str(error).lower()}") from None
            unpacked.flush()
            unpacked.seek(0)
            yield unpacked


def _is_damage(error: Exception) -> bool:
    known = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)
    return isinstance(error, known) or type(error).__name__ == "ZstdError"


@contextmanager
def text(path: Path, reading: Reading, mended: Mended) -> Iterator[Buffer]:
    """Map a file as UTF-8 with line ends of Unix and without a byte order mark.

    A file that is so is mapped as it is; any other is converted into an unnamed file of the cache.

    Args:
        path: The file.
        reading: Its encoding, if known, and what is kept.
        mended: Counts what was changed.

    Raises:
        AblateError: It is not text, or not in its encoding.
    """
    if path.suffix.lower() in _OTHER_PACKERS and reading.encoding != BYTES:
        raise AblateError(f"{path} is packed: unpack it; .gz, .xz and .zst are read")
    with opened(path) as file, mapped(file) as buffer:
        if reading.encoding == BYTES:
            yield buffer
            return
        mark, encoding = _encoding(path, buffer, reading)
        if encoding == "utf-8" and reading.encoding and _not_utf8(buffer) is not None:
            raise AblateError(
                f"{path} is not text in the encoding utf-8; leave [data] encoding out to find it"
            )
        windows = reading.line_ends == "lf" and buffer.find(b"\r\n") >= 0
        mended["byte order mark"] += bool(mark)
        mended["line ends of Windows"] += windows
        if encoding != "utf-8":
            mended[f"encoding {encoding}"] += 1
        if not mark and encoding == "utf-8" and not windows:
            yield buffer
            return
        with _unnamed() as into:
            _convert(path, buffer, mark, encoding, windows, into)
            into.flush()
            with mapped(into) as converted:
                yield converted


@contextmanager
def spooled(pieces: Iterator[bytes]) -> Iterator[Buffer]:
    """Map pieces of text, one after the other, from an unnamed file of the cache."""
    with _unnamed() as into:
        for piece in pieces:
            with cache.usable():
                into.write(piece)
        into.flush()
        with mapped(into) as buffer:
            yield buffer


@contextmanager
def mapped(file: BinaryIO) -> Iterator[Buffer]:
    """Map the bytes of an open file."""
    file.seek(0, 2)
    if not file.tell():
        yield b""
        return
    buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        yield buffer
    finally:
        buffer.close()


def lines(buffer: Buffer) -> Iterator[bytes]:
    """Yield the lines of a buffer, each with its end."""
    start = 0
    while start < len(buffer):
        end = buffer.find(b"\n", start) + 1 or len(buffer)
        yield buffer[start:end]
        start = end


@contextmanager
def _unnamed() -> Iterator[BinaryIO]:
    with cache.usable():
        cache.folder().mkdir(parents=True, exist_ok=True)
        into = tempfile.TemporaryFile(dir=cache.folder())  # noqa: SIM115 (what its user raises is not the cache's)
    with into:
        yield into


def _encoding(path: Path, buffer: Buffer, reading: Reading) -> tuple[bytes, str]:
    """Return the byte order mark of a file, b"" for none, and its encoding."""
    mark = next((mark for mark in _MARKS if buffer[:4].startswith(mark)), b"")
    if reading.encoding:
        try:
            named = codecs.lookup(reading.encoding).name
        except (LookupError, ValueError):
            raise AblateError(
                f"[data] encoding = {reading.encoding!r:.80}: there is no such encoding; examples:"
                " utf-8, cp1252, utf-16-le, bytes"
            ) from None
        return mark if _MARKS.get(mark, "") in (named, f"{named}-le", f"{named}-be") else b"", (
            _MARKS[mark] if mark and _MARKS[mark].startswith(named) else named
        )
    if mark:
        return mark, _MARKS[mark]
    head = buffer[:_HEAD]
    if head.count(b"\0"):
        zeros = [head[start::2].count(b"\0") for start in (0, 1)]
        for other, name in ((zeros[0], "utf-16-le"), (zeros[1], "utf-16-be")):
            if not other and _is_plain(head, name):
                return b"", name
        raise AblateError(
            f"{path} is not text: it holds NUL bytes; leave it out by a glob such as '*.txt', or"
            " give [data] encoding"
        )
    at = _not_utf8(buffer)
    return b"", "utf-8" if at is None else _guess(path, buffer, at)


def _is_plain(head: bytes, encoding: str) -> bool:
    """Return whether the beginning of a file is text of printable characters in an encoding."""
    text = head[: len(head) // 2 * 2].decode(encoding, "replace")
    return sum(c.isprintable() or c.isspace() for c in text) > _PLAIN * len(text)


def _not_utf8(buffer: Buffer) -> int | None:
    """Return near where a buffer is not UTF-8; None if it is."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(buffer), _CHUNK):
        piece = buffer[start : start + _CHUNK]
        try:
            decoder.decode(piece, start + _CHUNK >= len(buffer))
        except UnicodeDecodeError as error:
            return start + min(error.start, len(piece))
    return None


def _guess(path: Path, buffer: Buffer, at: int) -> str:
    """Return the encoding that explains a text best, from the bytes around one that is no UTF-8."""
    from charset_normalizer import from_bytes

    start = max(0, at - _SAMPLE // 2) // 4 * 4
    found = from_bytes(bytes(buffer[start : start + _SAMPLE]))
    best = found.best()
    if best is None:
        raise AblateError(
            f"{path} is not text in an encoding that is recognised: leave it out by a glob, or give"
            " [data] encoding, such as 'cp1252', or 'bytes' to train on its bytes"
        )
    for name in _COMMON:
        for match in found:
            if (
                name in (match.encoding, *match.could_be_from_charset)
                and match.coherence >= best.coherence - _LESS_COHERENT
                and match.chaos <= best.chaos + _MORE_CHAOTIC
            ):
                return name
    return str(best.encoding).replace("_", "-")


def _convert(
    path: Path, buffer: Buffer, mark: bytes, encoding: str, windows: bool, into: BinaryIO
) -> None:
    decoder, kept = codecs.getincrementaldecoder(encoding)(), ""
    for start in range(len(mark), len(buffer) + 1, _CHUNK):
        last = start + _CHUNK > len(buffer)
        try:
            piece = kept + decoder.decode(buffer[start : start + _CHUNK], last)
        except UnicodeError as error:
            raise AblateError(
                f"{path} is not text in the encoding {encoding}: {error!s:.120}; give [data]"
                " encoding, or convert it"
            ) from None
        kept = ""
        if windows:
            if piece.endswith("\r") and not last:
                piece, kept = piece[:-1], "\r"
            piece = piece.replace("\r\n", "\n")
        with cache.usable():
            into.write(piece.encode())
