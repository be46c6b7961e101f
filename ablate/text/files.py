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
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ablate import cache
from ablate.errors import AblateError
from ablate.text.options import BYTES, Reading
from ablate.units import listed

Buffer = bytes | mmap.mmap


# what is done to bytes that are no text in their encoding; counted by their places, not by files
REPLACED = "bytes that are no text, now U+FFFD"
_NAMED = 3  # files that are named for each change


class Mended(Counter[str]):
    """What was changed in files as they were read → in how many files or rows, or places.

    Attributes:
        fields: Keys or columns that held the text; keys of a dictionary, in order.
        n_without_text: Rows without text, which were skipped.
    """

    def __init__(self) -> None:
        super().__init__()
        self._files: dict[str, list[str]] = {}
        self._n_files = Counter[str]()
        self._last: dict[str, str] = {}
        self.fields: dict[str, None] = {}
        self.n_without_text = 0

    def add(self, what: str, file: Path | str, n: int = 1, where: str = "") -> None:
        """Count a change.

        Args:
            what: The change.
            file: That it was made in; files come one after the other.
            n: How often.
            where: Its first place in the file.
        """
        self[what] += n
        if self._last.get(what) != str(file):
            self._last[what] = str(file)
            self._n_files[what] += 1
            if self._n_files[what] <= _NAMED:
                self._files.setdefault(what, []).append(Path(file).name + where)

    @property
    def places(self) -> dict[str, str]:
        """The changes → the files that they were made in."""
        return {
            what: listed([*named, *([f"{more:,} more"] if more > 0 else [])])
            for what, named in self._files.items()
            for more in [self._n_files[what] - _NAMED]
        }


_CHUNK = 1 << 20
_SPARSE = 16  # bytes that are no ASCII, too few to tell code pages apart by
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
# Places that are no text and are replaced, where most of a file is text in its encoding: so many,
# or this share of its characters that are no ASCII. More are another encoding within the file.
_FEW, _FEW_OF = 10, 0.1
_ERRORS = "ablate.replaced"  # under which codecs find what counts such places
_EACH = 0.4  # share of NUL bytes from which about every second one is
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
    A few places that are no text in its encoding become U+FFFD.

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
        mark, encoding = _stated(path, buffer, reading)
        at = _not_utf8(buffer) if encoding in ("", "utf-8") else None
        if not encoding:
            encoding = "utf-8" if at is None or _most_is_utf8(buffer) else _guess(path, buffer, at)
        windows = reading.line_ends == "lf" and buffer.find("\r\n".encode(encoding)) >= 0
        if mark:
            mended.add("byte order mark", path)
        if windows:
            mended.add("line ends of Windows", path)
        if encoding != "utf-8":
            mended.add(f"encoding {encoding}", path)
        if not mark and encoding == "utf-8" and at is None and not windows:
            yield buffer
            return
        with _unnamed() as into:
            decoded = _Decoded(buffer, len(mark), encoding)
            try:
                _convert(decoded, windows, into)
            except UnicodeError as error:  # such as UTF-16 without a mark
                raise AblateError(
                    f"{path} is not text in the encoding {encoding}: {error!s:.120}; give [data]"
                    " encoding, or convert it"
                ) from None
            if decoded.n_bad:
                _check_bad(path, decoded, mark, reading)
                mended.add(REPLACED, path, decoded.n_bad, f" from line {decoded.line:,}")
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


def _stated(path: Path, buffer: Buffer, reading: Reading) -> tuple[bytes, str]:
    """Return the byte order mark of a file, b"" for none, and the encoding that it is said to have:
    by the study, by this mark or by its NUL bytes; "" if nothing says it.
    """
    mark = next((mark for mark in _MARKS if buffer[:4].startswith(mark)), b"")
    if reading.encoding:
        try:
            named = codecs.lookup(reading.encoding).name
            "".encode(named)  # codecs that are none of text, such as base64, are refused
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
        # ASCII between some of which a NUL stands; in UTF-16 it has one for each character, and
        # characters of other scripts are no plain text if they are read as ASCII
        rest = head.replace(b"\0", b"")
        parted = rest.isascii() and sum(zeros) < _EACH * len(head) and _is_plain(rest, "ascii")
        for other, name in ((zeros[0], "utf-16-le"), (zeros[1], "utf-16-be")):
            if not parted and not other and _is_plain(head, name):
                return b"", name
        raise AblateError(
            f"{path} is not text: it holds NUL bytes; leave it out by a glob such as '*.txt', or"
            " give [data] encoding"
        )
    return b"", ""


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


def _most_is_utf8(buffer: Buffer) -> bool:
    """Return whether most of the characters that are no ASCII are valid in UTF-8.

    Those of another encoding are rarely valid by chance: of European ones hardly any, of Chinese,
    Japanese and Korean ones up to a third.
    """
    decoded = _Decoded(buffer, 0, "utf-8")
    for _ in decoded.pieces():
        pass
    return decoded.mostly_text


def _guess(path: Path, buffer: Buffer, at: int) -> str:
    """Return the encoding that explains a text best, from the bytes around one that is no UTF-8."""
    from charset_normalizer import from_bytes

    start = max(0, at - _SAMPLE // 2) // 4 * 4
    sample = bytes(buffer[start : start + _SAMPLE])
    if sum(byte > 127 for byte in sample) < _SPARSE:
        with suppress(UnicodeDecodeError):
            sample.decode("cp1252")
            return "cp1252"
    found = from_bytes(sample)
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


def as_utf8(content: bytes) -> tuple[str, int]:
    """Return bytes as text, with U+FFFD where they are no UTF-8, and the number of such places."""
    decoded = _Decoded(content, 0, "utf-8")
    return "".join(decoded.pieces()), decoded.n_bad


class _Decoded:
    """The text of a buffer, in pieces, with U+FFFD where it is no text in its encoding.

    Attributes:
        encoding: The encoding.
        n_bad: Places that are no text.
        n_valid: Characters that are text, and would be no text in most other encodings: those that
            are no ASCII, all of UTF-16 and UTF-32.
        cut: Whether its end is within a character of UTF-8, of which two bytes or more are there.
        line: Line of the first place that is no text.
        wide: Whether the encoding is UTF-16 or UTF-32.
    """

    def __init__(self, buffer: Buffer, start: int, encoding: str) -> None:
        self.encoding = encoding
        self.n_bad = self.n_valid = self.line = 0
        self.cut = False
        self._buffer, self._start, self._lines = buffer, start, 1
        self.wide = encoding.startswith(("utf-16", "utf-32"))

    @property
    def mostly_text(self) -> bool:
        """Whether most of the characters that are no ASCII are text. A cut one at the end is: in
        other encodings a text hardly ever ends in such bytes.
        """
        return self.n_valid >= self.n_bad - self.cut

    def pieces(self) -> Iterator[str]:
        """Yield the text; the last piece may be empty."""
        codecs.register_error(_ERRORS, self._replaced)
        decoder = codecs.getincrementaldecoder(self.encoding)(_ERRORS)
        for start in range(self._start, len(self._buffer) + 1, _CHUNK):
            before = self.n_bad
            last = start + _CHUNK > len(self._buffer)
            piece = decoder.decode(self._buffer[start : start + _CHUNK], last)
            ascii = 0 if self.wide else len(piece.encode("ascii", "ignore"))
            self.n_valid += len(piece) - ascii - (self.n_bad - before)
            self._lines += piece.count("\n")
            yield piece

    def _replaced(self, error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        if not self.n_bad:
            before = error.object[: error.start].decode(self.encoding, "ignore")
            self.line = self._lines + before.count("\n")
        self.n_bad += 1
        self.cut = error.reason == "unexpected end of data" and error.end - error.start > 1
        return "\ufffd", error.end


def _check_bad(path: Path, decoded: _Decoded, mark: bytes, reading: Reading) -> None:
    """Check that few places of a text are no text.

    Raises:
        AblateError: They are many, so that the encoding is another one, or one of several.
    """
    most = mark or decoded.mostly_text
    if most and decoded.n_bad <= max(_FEW, _FEW_OF * decoded.n_valid):
        return
    do = (
        "leave [data] encoding out to find it"
        if reading.encoding and not most
        else "convert it to one encoding, or give [data] encoding, such as 'cp1252', or 'bytes' to"
        " train on its bytes"
    )
    raise AblateError(
        f"{path} is not text in the encoding {decoded.encoding}:"
        f" {decoded.n_bad:,} of its {decoded.n_bad + decoded.n_valid:,} characters"
        f"{'' if decoded.wide else ' that are no ASCII'} are not, the first in line"
        f" {decoded.line:,}; {do}"
    )


def _convert(decoded: _Decoded, windows: bool, into: BinaryIO) -> None:
    """Write a text as UTF-8, without line ends of Windows if it has some that are to be mended."""
    kept = ""
    for piece in decoded.pieces():
        piece = kept + piece
        kept = "\r" if windows and piece.endswith("\r") else ""
        piece = piece.removesuffix(kept)
        if windows:
            piece = piece.replace("\r\n", "\n")
        with cache.usable():
            into.write(piece.encode())
    with cache.usable():
        into.write(kept.encode())
