"""Ctrl-C and SIGTERM while a study runs: counted here, and felt at once by a selector."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Signals:
    """A context manager within which SIGINT, SIGTERM and SIGHUP end nothing. Readable (`fileno`)
    when one has come.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._before: dict[int, Any] = {}
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def __enter__(self) -> Self:
        if (
            threading.current_thread() is threading.main_thread()
        ):  # elsewhere Python lets nobody handle signals
            self._before = {
                number: signal.signal(number, self._receive)
                for number in (signal.SIGINT, signal.SIGTERM)
            }
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which `nohup` asks for
                self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        return self._read

    def drain(self) -> None:
        """Make it unreadable until the next signal."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 64):
                pass

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        with contextlib.suppress(
            BlockingIOError
        ):  # full of signals that nobody has read yet: one more says nothing new
            os.write(self._write, b"!")
