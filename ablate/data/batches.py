"""Windows of the text that a step trains on, and held-out windows: functions of seed and length.

A window is n_ctx + 1 tokens for every objective, so that all arms of a seed read the same text in
the same order.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ablate.evaluation import HELD_OUT_BLOCK, n_scored


def windows_per_epoch(n_tokens: int, n_ctx: int) -> int:
    """Return the windows that an epoch reads.

    They are as many as fit one after another at any offset; they share only end tokens.
    """
    assert n_tokens > n_ctx
    return max(1, (n_tokens - n_ctx) // n_ctx)


def epochs(tokens: int, n_tokens: int, n_ctx: int) -> float:
    """Return how often a run of `tokens` tokens reads a text of `n_tokens`."""
    return tokens / n_ctx / windows_per_epoch(n_tokens, n_ctx)


def order(
    seed: int,
    n_tokens: int,
    n_ctx: int,
    batch_size: int,
    steps: int,
    documents: np.ndarray | None = None,
) -> np.ndarray:
    """Return the start of every window that a run reads, [steps, B] int64.

    Each epoch reads every window once, in an order and from an offset in [0, n_ctx) of its own,
    both drawn from (seed, epoch). A longer run's order begins with a shorter one's.

    Args:
        seed: Of the order.
        n_tokens: Tokens of the text.
        n_ctx: Tokens of a window.
        batch_size: Windows of a step, B.
        steps: Steps.
        documents: Where documents start, if a window is a document; else a window may start
            anywhere.
    """
    per_epoch = windows_per_epoch(n_tokens, n_ctx) if documents is None else len(documents)
    # offsets that leave room for the last window
    slack = min(n_ctx, n_tokens - n_ctx - (per_epoch - 1) * n_ctx)
    starts = np.empty(steps * batch_size, np.int64)
    for epoch, first in enumerate(range(0, len(starts), per_epoch)):
        words = _words(seed, epoch, per_epoch + 1)
        chosen = _smallest(words[1:], len(starts) - first)
        starts[first : first + per_epoch] = (
            int(words[0]) % slack + chosen * n_ctx if documents is None else documents[chosen]
        )
    return starts.reshape(steps, batch_size)


def _smallest(words: np.ndarray, n: int) -> np.ndarray:
    """Return the indices of the n smallest words, the smallest first; of all, if they are fewer."""
    at = np.arange(len(words))
    if n < len(words):  # to sort all takes five times as long where few are read
        at = np.flatnonzero(words <= np.partition(words, n - 1)[n - 1])
    return at[np.argsort(words[at], kind="stable")][:n]


def _words(seed: int, epoch: int, n: int) -> np.ndarray:
    """Return n random 64-bit words; numpy promises that raw words are the same in all versions."""
    key = np.frombuffer(hashlib.sha256(f"order:{seed}:{epoch}".encode()).digest()[:16], "<u8")
    return np.random.Philox(key=key).random_raw(n)


class Batches:
    """The training text on a device, and the windows that K seeds read of it.

    Tokens stay in their 8, 16 or 32 bits; where the runs read less than the text, only that part is
    copied to the device.
    """

    def __init__(
        self,
        train: np.ndarray,
        seeds: Sequence[int],
        n_ctx: int,
        batch_size: int,
        steps: int,
        device: torch.device | str,
        documents: np.ndarray | None = None,
    ):
        n = len(train)
        starts = np.stack([order(seed, n, n_ctx, batch_size, steps, documents) for seed in seeds])
        self.windows_per_epoch = (
            windows_per_epoch(n, n_ctx) if documents is None else len(documents)
        )
        span = n_ctx + 1
        if torch.device(device).type != "cpu" and starts.size * span < len(train):
            train, starts = compact(train, starts, span)
        self._tokens = on_device(train, device)
        self._bits = (1 << 8 * train.itemsize) - 1
        self._starts = torch.from_numpy(starts).to(device)
        self._within = torch.arange(span, device=device)

    def several(self, first: int, n: int) -> Tensor:
        """Return the windows of steps `first` … `first + n − 1`, [n, K, B, n_ctx + 1] int64."""
        starts = self._starts[:, first : first + n].transpose(0, 1)
        return self._tokens[starts[..., None] + self._within].long() & self._bits

    def epochs(self, step: int) -> float:
        """Return how often the text has been read after `step` steps."""
        return step * self._starts.shape[2] / self.windows_per_epoch


def compact(tokens: np.ndarray, starts: np.ndarray, span: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the windows of `span` tokens at `starts` end to end, and their new starts."""
    used, index = np.unique(starts, return_inverse=True)
    return (
        np.concatenate([tokens[:0], *(tokens[start : start + span] for start in used)]),
        index.reshape(starts.shape) * span,
    )


def on_device(tokens: np.ndarray, device: torch.device | str) -> Tensor:
    """Return tokens on a device; on the CPU they share memory with the argument.

    Those of 16 and 32 bits become signed integers, which every device can index.
    """
    signed = tokens if tokens.itemsize == 1 else tokens.view(f"i{tokens.itemsize}")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(signed).to(device)


def block_tokens(n_ctx: int) -> int:
    """Return the tokens of a block of held-out windows: 1024, or one window where that is longer.

    Where n_ctx does not divide 1024 it is the nearest multiple below.
    """
    return max(1, HELD_OUT_BLOCK // n_ctx) * n_ctx


def held_out_starts(
    n_tokens: int, n_ctx: int, tokens: int, documents: np.ndarray | None = None
) -> np.ndarray:
    """Return the starts of the windows that every arm is evaluated on.

    They share only end tokens and are spread over the text in blocks.

    Args:
        n_tokens: Held-out tokens of the text.
        n_ctx: Context of a window.
        tokens: Tokens to read.
        documents: Where documents start, if a window is a document; they are spread evenly.

    Returns:
        [W] int64; W = tokens / n_ctx, or as many as the text has.
    """
    if documents is not None:
        count = max(1, min(tokens // n_ctx, len(documents)))
        return documents[np.linspace(0, len(documents) - 1, count).astype(np.int64)]
    per_block = block_tokens(n_ctx) // n_ctx
    fit = (n_tokens - 1) // n_ctx
    count = max(1, min(tokens // n_ctx, fit))
    if count >= fit // per_block * per_block:
        chosen = np.arange(count)
    else:
        blocks = np.linspace(0, fit // per_block - 1, -(-count // per_block)).astype(np.int64)
        chosen = (blocks[:, None] * per_block + np.arange(per_block)).ravel()[:count]
    return chosen * n_ctx


def length_windows(
    held_out: np.ndarray, n_ctx: int, factors: Sequence[float], tokens: int
) -> Tensor:
    """Return windows for contexts of several lengths.

    A shorter context is the end of a longer one (`Example.last`), and the last `n_scored(n_ctx)`
    tokens of each are scored, so that the same tokens are scored at every length.

    Returns:
        [W, longest + 1] int64 on the CPU; longest = the largest factor × n_ctx, W = tokens / n_ctx,
        or as many as the text has.
    """
    longest = round(max(factors) * n_ctx)
    assert round(min(factors) * n_ctx) >= n_scored(n_ctx) and len(held_out) > longest, (
        "the plan refuses this"
    )
    # windows that score no token twice
    apart = (len(held_out) - longest - 1) // n_scored(n_ctx) + 1
    starts = np.linspace(
        0, len(held_out) - longest - 1, max(1, min(tokens // n_ctx, apart))
    ).astype(np.int64)
    return gather(held_out, starts, longest + 1)


def gather(tokens: np.ndarray, starts: np.ndarray, span: int) -> Tensor:
    """Return the windows of `span` tokens at `starts`, [W, span] int64 on the CPU."""
    return torch.from_numpy(tokens[starts[:, None] + np.arange(span)].astype(np.int64))
