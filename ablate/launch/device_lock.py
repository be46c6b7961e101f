"""A lock on a device: of the workers that share it, one trains while the others prepare jobs."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

POLL = 0.02  # seconds between two tries


@contextmanager
def device_lock(file: int, stop: Callable[[], bool]) -> Iterator[None]:
    """Hold the lock of a device. The system releases it when its process ends, in any way.

    Waits until no other process holds it, or until `stop()`, so that a job that is to stop can
    record that.

    Args:
        file: Descriptor, open for writing, of the file that the device's workers share.
        stop: Asked between two tries.
    """
    while not stop():
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except (BlockingIOError, PermissionError):  # which of the two depends on the system
            time.sleep(POLL)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)
