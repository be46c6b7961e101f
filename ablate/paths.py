"""Paths as users write them, names of files for any text, files written whole, and locks."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LONGEST = 120  # bytes of a file name before its hash
_HASHED = re.compile(r"-[0-9a-f]{8}")


def expanded(path: str) -> Path:
    """Return a path with ~ and ~USER as a shell expands them; an unknown user's stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # there is no such user
        return Path(path)


def file_name(text: str, also: str = "") -> str:
    """Return a name for the files of `text`, which no other text has on any file system.

    It is the text itself where that consists of lower-case letters, digits, - and _. Otherwise the
    part of it that is valid everywhere is followed by a hash, because a file system may ignore
    case or the way in which accents are written.

    Args:
        text: What the files are about.
        also: Other characters to keep within the name.
    """
    composed = unicodedata.normalize("NFC", text)
    valid = re.sub(rf"[^\w{re.escape(also)}-]+", "-", composed).encode()[:_LONGEST]
    kept = valid.decode(errors="ignore").strip(f"-{also}")
    if kept and kept == text == composed.casefold() and not _HASHED.fullmatch(kept[-9:]):
        return kept
    return f"{kept}-{digest(text)}".lstrip("-")


def digest(text: str, digits: int = 8) -> str:
    """Return hexadecimal digits that tell `text` from other texts."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:digits]


def temporary(path: Path) -> Path:
    """Return the name that a file has while it is written; see `atomic`."""
    return path.with_name(path.name + ".tmp")


@contextmanager
def atomic(path: Path, earlier: Path | None = None) -> Iterator[Path]:
    """Yield the name under which a file is to be written; then sync it and rename it to `path`.

    After an error the new file is deleted, and an existing one stays.

    Args:
        path: The file, in a folder that exists.
        earlier: The name that an existing file gets; None to replace it.

    Raises:
        OSError: `path` is a device or pipe, or it cannot be written.
    """
    if path.is_symlink():
        path = path.resolve()
    if path.exists() and not (path.is_file() or path.is_dir()):  # it would be replaced by a file
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    part = temporary(path)
    try:
        yield part
        _sync(part)
        if earlier is not None and path.exists():
            path.replace(earlier)
        part.replace(path)
    except BaseException:  # such as a full disk: free the space
        part.unlink(missing_ok=True)
        raise
    _sync(path.parent)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made, with its folder, where there is none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
