"""The journal of an attempt: whole JSON lines that only its worker appends, and anyone reads from
an offset.

Every line is an object with an `event`:

| event | further keys |
| --- | --- |
| start | step (made before), time, host, pid, device, device_name, threads, pack_size,
          compile_mode, versions, commit, dirty |
| metrics | steps: [int], series: {name: [float]}, one value a step |
| final | values: [[name, at, float]] |
| checkpoint | step, path |
| heartbeat | n: how many were before; a sign of life between other events |
| end | status (complete, diverged, failed, oom, stopped), step, error, device_seconds,
        peak_bytes, time |

NaN and ±Infinity are written as Python's `json` writes them. The writer holds an operating-system
lock on the file while it lives, so that on one host a dead worker is told from a slow one at once.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic_core import from_json  # four times as fast as `json`, and as exact

Event = dict[str, Any]


class Journal:
    """The writing end. One `os.write` a line, so that a line is there whole or, at the very end,
    torn; never mixed.
    """

    def __init__(self, path: Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def append(self, event: str, **values: Any) -> None:
        text = json.dumps({"event": event, **values}, separators=(",", ":"), ensure_ascii=False)
        line = (
            text.encode(errors="replace") + b"\n"
        )  # half a surrogate, as in an odd file's name, is no text to a database
        size = os.fstat(self._fd).st_size
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError:  # a full disk: leave no half line for the next one to run into
            os.ftruncate(self._fd, size)
            raise

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read(path: Path, offset: int = 0) -> tuple[list[Event], int]:
    """The whole lines from byte `offset` on, and the offset behind the last of them. A torn last
    line stays for later.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    return [from_json(line) for line in whole.splitlines()], offset + len(whole)


def alive(path: Path) -> bool:
    """Whether a process on this host holds the journal open for writing. `OSError` where it may not
    be looked at.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
