"""Ctrl-C, SIGTERM and SIGHUP while a study runs: counted, so that the loop can end cleanly."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Signals:
    """A context manager within which SIGINT, SIGTERM and SIGHUP do not end the process.

    Attributes:
        received: Numbers of the signals that came, in order.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Python lets only the main thread handle signals.
        if threading.current_thread() is threading.main_thread():
            numbers = [signal.SIGINT, signal.SIGTERM]
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # which `nohup` sets
                numbers.append(signal.SIGHUP)
            self._before = {number: signal.signal(number, self._receive) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
