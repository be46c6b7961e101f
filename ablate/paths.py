"""Paths as users write them, and names of files for any text."""

from __future__ import annotations

import hashlib
import re
import unicodedata
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
