"""Which windows of the text a step trains on, and which are held out: pure functions of seed and length.

A window is n_ctx + 1 tokens, whatever the objective, so that every arm of a seed reads the same text in the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

_BLOCK = 1024  # tokens that held-out windows tile together, where n_ctx divides them: arms with other n_ctx then score the same
_SCORED = 4  # at every length the last n_ctx // 4 tokens of a window are scored


def windows_per_epoch(n_tokens: int, n_ctx: int) -> int:
    """Windows an epoch reads: as many as fit behind each other, whatever the epoch's offset; they share only end tokens."""
    assert n_tokens > n_ctx
    return max(1, (n_tokens - n_ctx) // n_ctx)


def epochs(tokens: int, n_tokens: int, n_ctx: int) -> float:
    """How often a run of `tokens` tokens reads a text of `n_tokens`."""
    return tokens / n_ctx / windows_per_epoch(n_tokens, n_ctx)


def order(seed: int, n_tokens: int, n_ctx: int, batch_size: int, steps: int) -> np.ndarray:
    """The start of every window that a run reads, [steps, B] int64.

    Each epoch reads every window once, in an order and from an offset in [0, n_ctx) of its own, both drawn from
    (seed, epoch). A longer run's order begins with a shorter one's.
    """
    per_epoch = windows_per_epoch(n_tokens, n_ctx)
    slack = min(n_ctx, n_tokens - n_ctx - (per_epoch - 1) * n_ctx)  # offsets that leave room for the last window
    starts = np.empty(steps * batch_size, np.int64)
    for epoch, first in enumerate(range(0, len(starts), per_epoch)):
        offset, *rest = _words(seed, epoch, per_epoch + 1)
        chosen = np.argsort(rest, kind="stable")[: len(starts) - first]
        starts[first : first + per_epoch] = int(offset) % slack + chosen * n_ctx
    return starts.reshape(steps, batch_size)


def _words(seed: int, epoch: int, n: int) -> np.ndarray:
    """n random 64-bit words; numpy promises that a bit generator's raw words stay the same from version to version."""
    key = np.frombuffer(hashlib.sha256(f"order:{seed}:{epoch}".encode()).digest()[:16], "<u8")
    return np.random.Philox(key=key).random_raw(n)


class Batches:
    """The training text on a device, and the windows [K, B, n_ctx + 1] of each step for K seeds.

    Tokens stay in their 8, 16 or 32 bits; where the runs read less than the text, only what they read is moved.
    """

    def __init__(
        self, train: np.ndarray, seeds: Sequence[int], n_ctx: int, batch_size: int, steps: int, device: torch.device | str
    ):
        starts = np.stack([order(seed, len(train), n_ctx, batch_size, steps) for seed in seeds])
        self.windows_per_epoch = windows_per_epoch(len(train), n_ctx)
        span = n_ctx + 1
        if torch.device(device).type != "cpu" and starts.size * span < len(train):
            used, where = np.unique(starts, return_inverse=True)
            train = np.concatenate([train[start : start + span] for start in used])
            starts = where.reshape(starts.shape) * span
        self._tokens = on_device(train, device)
        self._starts = torch.from_numpy(starts).to(device)
        self._within = torch.arange(span, device=device)

    def __call__(self, step: Tensor) -> Tensor:
        """The windows of a step, [K, B, n_ctx + 1] int64; `step` a whole number in a tensor on the device. Never waits."""
        starts = self._starts.index_select(1, step.reshape(1)).squeeze(1)
        return self._tokens[starts[..., None] + self._within].long()

    def epochs(self, step: int) -> float:
        """How often the text has been read when `step` steps are done."""
        return step * self._starts.shape[2] / self.windows_per_epoch


def on_device(tokens: np.ndarray, device: torch.device | str) -> Tensor:
    """Tokens on a device, in their own type; on the CPU a mapped file stays one."""
    if torch.device(device).type == "cpu" and not tokens.flags.writeable:
        return torch.frombuffer(memoryview(tokens).cast("B"), dtype=_TYPES[tokens.dtype.itemsize])
    return torch.from_numpy(np.array(tokens)).to(device)


_TYPES = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}


def held_out_windows(held_out: np.ndarray, n_ctx: int, tokens: int) -> Tensor:
    """Windows that every arm is tested on, [W, n_ctx + 1] int64 on the CPU, W = tokens / n_ctx as far as the text reaches.

    They share only end tokens and are spread over the text in blocks of about 1024 tokens: the same for every seed.
    """
    per_block = max(1, _BLOCK // n_ctx)
    fit = (len(held_out) - 1) // n_ctx
    wanted = max(1, min(tokens // n_ctx, fit))
    blocks = -(-wanted // per_block)
    first = np.linspace(0, fit - min(per_block, fit), blocks).astype(np.int64) if blocks > 1 else np.zeros(1, np.int64)
    spread = (first // per_block * per_block)[:, None] + np.arange(per_block)
    chosen = np.unique(spread[spread < fit])[:wanted] if blocks * per_block < fit else np.arange(wanted)
    return gather(held_out, chosen * n_ctx, n_ctx + 1)


@dataclass(frozen=True)
class LengthWindows:
    """Windows of other lengths that end in the same tokens: `windows` [W, length + 1], the last `n_scored` of them scored."""

    windows: Tensor
    n_scored: int


def length_windows(held_out: np.ndarray, n_ctx: int, factors: Sequence[float], tokens: int) -> dict[float, LengthWindows]:
    """For each factor, windows of factor × n_ctx + 1 held-out tokens, whose last n_ctx // 4 tokens are scored.

    The scored tokens are the same at every factor, and have at least three quarters of n_ctx before them at factor 1:
    more text can only help a model that can use it. Raises `AblateError` where the text or a factor is too short.
    """
    n_scored = max(1, n_ctx // _SCORED)
    lengths = {factor: round(factor * n_ctx) for factor in factors}
    longest = max(lengths.values())
    for factor, length in lengths.items():
        if length < n_scored:
            raise AblateError(f"eval.lengths: {factor:g} × n_ctx = {length} is shorter than the {n_scored} tokens that are scored")
    if len(held_out) < longest + 1:
        raise AblateError(
            f"eval.lengths: {max(factors):g} × n_ctx = {longest} needs {longest + 1} held-out tokens; there are {len(held_out)}"
        )
    count = max(1, min(tokens // n_scored, (len(held_out) - longest - 1) // n_scored + 1))
    ends = np.linspace(longest + 1, len(held_out), count).astype(np.int64)
    return {
        factor: LengthWindows(gather(held_out, ends - length - 1, length + 1), n_scored) for factor, length in lengths.items()
    }


def gather(tokens: np.ndarray, starts: np.ndarray, span: int) -> Tensor:
    """The windows of `span` tokens at `starts`, [W, span] int64 on the CPU."""
    return torch.from_numpy(tokens[starts[:, None] + np.arange(span)].astype(np.int64))
