"""Random numbers as a pure function of (seed, stream, step, index): Philox4x32-10 in tensor
operations.

Nothing here has a state, so that a draw is the same in whatever order, pack, micro-batch or process
it is made, and after a resume. All of it can be compiled and captured in a CUDA graph, with `step`
a tensor on the device. Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3";
constants as in Random123.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLY = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox4x32(
    counter: Sequence[Tensor], key: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four words from a counter of four words and a key of two; each an int64 tensor in [0, 2³²),
    shapes broadcast.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # A product of two words can pass 2⁶³ and then wraps; its 64 bits are right all the same.
        first, second = c0 * _MULTIPLY[0], c2 * _MULTIPLY[1]
        c0, c1, c2, c3 = (
            (second >> 32 & _WORD) ^ c1 ^ k0,
            second & _WORD,
            (first >> 32 & _WORD) ^ c3 ^ k1,
            first & _WORD,
        )
        k0, k1 = k0 + _WEYL[0] & _WORD, k1 + _WEYL[1] & _WORD
    return c0, c1, c2, c3


def stream(name: str) -> int:
    """The number of the stream called `name`, in [0, 2³²): the first four bytes of its SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def words(
    seed: Tensor, stream: int, step: Tensor | int, shape: Sequence[int], row: Tensor | int = 0
) -> Tensor:
    """Independent 32-bit words, [K, *shape] int64 in [0, 2³²), for seeds [K] on whose device they
    are made.

    The first axis of `shape` counts rows (sequences of a batch) from `row` on; a row's elements are
    numbered in row-major order. A word depends on its seed, stream, step, row and number alone, so
    that a micro-batch that starts at row 8 gets what the whole batch gets from there on. A last
    axis of 4 costs no more than one of 1.
    """
    rows, rest = shape[0], tuple(shape[1:])
    size = math.prod(rest)
    blocks = -(-size // 4)
    index = (
        torch.arange(blocks, device=seed.device) & _WORD
    )  # a tensor to a compiler too, and no 32-bit loop index
    which = torch.arange(rows, device=seed.device)[:, None] + row
    zero = torch.zeros_like(index)
    keys = (seed[:, None, None] & _WORD, zero + stream)
    drawn = philox4x32((index, which & _WORD, zero + step & _WORD, zero), keys)
    return torch.stack(drawn, -1).flatten(2)[..., :size].reshape(len(seed), rows, *rest)


def uniforms(
    seed: Tensor, stream: int, step: Tensor | int, shape: Sequence[int], row: Tensor | int = 0
) -> Tensor:
    """Uniform numbers in [0, 1), [K, *shape] float32, multiples of 2⁻²⁴; arguments as for
    `words`.
    """
    return (words(seed, stream, step, shape, row) >> 8).float() * 2.0**-24
