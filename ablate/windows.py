"""Losses of the windows of held-out text, and the compact bytes that a journal and the database
keep of them."""

from __future__ import annotations

import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class WindowLosses(NamedTuple):
    """The loss of every window of held-out text that a run's final evaluation scored.

    A window is known by where it starts, so that runs of different n_ctx have the same windows
    where their n_ctx divides `tokens`. The mean of `losses`, weighted by `scored`, is the final.

    Attributes:
        name: Name of the final.
        at: Its `at`.
        tokens: Tokens of held-out text from the start of a window to its end; the last window of a
            text may have fewer.
        starts: Number of a window's first token among the held-out tokens, [W] int64.
        scored: Scored tokens of a window, [W] int64.
        losses: Mean loss of a window's scored tokens in nats, [W] float32; NaN where none is.
    """

    name: str
    at: float
    tokens: int
    starts: NDArray[np.int64]
    scored: NDArray[np.int64]
    losses: NDArray[np.float32]

    def packed(self) -> tuple[bytes, bytes]:
        """Return the layout and the losses as bytes.

        The layout is zlib of little-endian int64: the W distances of each start from the one
        before, the first from 0, then the W numbers of scored tokens. Losses are little-endian
        float32: in half precision a loss between 1 and 2 would be off by up to 0.0005 nats, as much
        as separates two similar runs.
        """
        layout = np.concatenate([np.diff(self.starts, prepend=0), self.scored])
        return zlib.compress(layout.astype("<i8").tobytes(), 9), self.losses.astype("<f4").tobytes()


def unpacked(name: str, at: float, tokens: int, layout: bytes, losses: bytes) -> WindowLosses:
    """Return the windows of `WindowLosses.packed`.

    Raises:
        ValueError: The bytes do not belong together.
    """
    try:
        steps, scored = np.frombuffer(zlib.decompress(layout), "<i8").reshape(2, -1)
    except zlib.error as error:
        raise ValueError(f"layout of windows: {error}") from None
    values = np.frombuffer(losses, "<f4")
    if len(values) != len(steps):
        raise ValueError(f"{len(values)} losses of {len(steps)} windows")
    return WindowLosses(name, at, tokens, np.cumsum(steps), scored, values)
