"""Workers that share a device train one at a time; meanwhile the others make their next job
ready.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

POLL = 0.02  # seconds between two looks whether the device is free


@contextmanager
def turn(file: int, stop: Callable[[], bool]) -> Iterator[None]:
    """Wait until no other process has its turn, or until `stop()`. A turn ends with its process,
    however that ends.

    file: a descriptor, open for writing, of the file that the processes have in common.
    """
    while not stop():
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except (
            BlockingIOError,
            PermissionError,
        ):  # what the two kinds of Unix say of a lock that another holds
            time.sleep(POLL)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)
