"""The journal of an attempt: whole JSON lines that only its worker appends, and anyone reads.

Every line is an object with an `event`, and at its end `crc`: the CRC-32, in hexadecimal, of the
line without it. Journals of earlier versions have none.

| event | further keys |
| --- | --- |
| start | step (made before), time, host, pid, device, device_name, threads, pack_size,
          compile_mode, note, versions, commit, dirty |
| heartbeat | n: int, grows; shows that the worker lives, also while it compiles; done, long: how
              far the job is, see `ablate.kinds.Progress` |
| metrics | steps: [int], series: {name: [float]}, one value a step |
| final | values: [[name, at, float]] |
| windows | name, at, tokens; layout and losses as `ablate.windows` packs them, in base64 |
| checkpoint | step, path |
| weights | keep (final, best), step, path: the name of a file in the database's folder of weights |
| end | status (complete, diverged, failed, oom, timeout, stopped), step, error, device_seconds,
        peak_bytes, note, time |

NaN and ±Infinity are written as Python's `json` writes them. The writer holds an operating-system
lock on the file while it lives, so that on its own host a dead worker is distinguished from a slow
one at once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import zlib
from pathlib import Path
from typing import Any, Self

from pydantic_core import from_json  # four times as fast as `json`, and as exact

Event = dict[str, Any]


class Journal:
    """The writing end. A line is written whole; only a kill can leave a torn one, at the end.

    Args:
        path: The file; it and its folder are made if they do not exist.

    Raises:
        OSError: The file cannot be written, or another process writes it.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def append(self, event: str, **values: Any) -> None:
        """Write an event. One thread at a time.

        Raises:
            OSError: The disk is full; nothing of the line is left.
        """
        text = json.dumps({"event": event, **values}, separators=(",", ":"), ensure_ascii=False)
        # Half a surrogate, as in an odd file's name, is no text to a database.
        body = text.encode(errors="replace")
        line = body[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(body)
        size = os.fstat(self._fd).st_size
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError:
            # Leave no half line that the next one would continue.
            os.ftruncate(self._fd, size)
            raise

    def close(self) -> None:
        """Release the lock and close the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(path: Path, offset: int = 0, end: int | None = None) -> tuple[list[Event], int]:
    """Return the events from byte `offset` on, and the offset after the last of them.

    A torn last line is left for the next call.

    Args:
        path: The file.
        offset: Where a line begins.
        end: Where a line ends, after which nothing is read; None for the end of the file.

    Raises:
        OSError: It cannot be read, or is not a regular file.
        ValueError: A line is not JSON, or not what its checksum says.
    """
    try:
        with os.fdopen(_open(path), "rb") as file:
            file.seek(offset)
            data = file.read(-1 if end is None else end - offset)
    except FileNotFoundError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    lines = whole.splitlines()
    if _CRC.search(whole):  # else an earlier version wrote it
        lines = list(map(_verified, lines))
    return list(map(from_json, lines)), offset + len(whole)


_CRC = re.compile(rb',"crc":"([0-9a-f]{8})"}$', re.MULTILINE)


def _verified(line: bytes) -> bytes:
    """Return a line without its checksum."""
    found = _CRC.search(line)
    body = line[: found.start()] + b"}" if found else line
    if found is None or zlib.crc32(body) != int(found[1], 16):
        raise ValueError(f"a line of {len(line)} bytes does not have its checksum")
    return body


def alive(path: Path) -> bool:
    """Return whether a process on this host has the journal open for writing.

    Raises:
        OSError: This user may not open it, or it is not a regular file.
    """
    try:
        fd = _open(path)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    """Open a regular file to read; a pipe in its place would block the caller."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd
