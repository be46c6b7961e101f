"""Random numbers as a pure function of (seed, stream, step, index): Philox4x32-10 on tensors.

There is no state, so that a draw is the same in any order, pack, micro-batch or process, and after
a resume. All functions can be compiled and captured in a CUDA graph, with `step` a tensor on the
device. Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"; constants as in
Random123.
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
    """Return four words from a counter of four words and a key of two.

    Each is an int64 tensor in [0, 2³²); shapes broadcast.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # a product of two words can exceed 2⁶³ and wrap; its 64 bits are still right
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
    """Return the number of a stream, in [0, 2³²): the first four bytes of its name's SHA-256."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def words(
    seed: Tensor,
    stream: Tensor | int,
    step: Tensor | int,
    shape: Sequence[int],
    row: Tensor | int = 0,
) -> Tensor:
    """Draw independent 32-bit words.

    A word depends on its seed, stream, step, row and number within the row alone, so that a
    micro-batch that starts at row 8 gets what the whole batch gets from there on. A last axis of 4
    costs no more than one of 1.

    Args:
        seed: [K]; words are made on its device.
        stream: Number of the stream, a tensor [] where code is compiled once for several streams.
        step: Number of the step, a tensor [] in captured code.
        shape: Shape of one member's words; the first axis counts rows, sequences of a batch.
        row: Row of the batch at which the words begin.

    Returns:
        [K, *shape] int64 in [0, 2³²).
    """
    rows, rest = shape[0], tuple(shape[1:])
    size = math.prod(rest)
    blocks = -(-size // 4)
    # the mask keeps a compiler from making this a 32-bit loop index
    index = torch.arange(blocks, device=seed.device) & _WORD
    which = torch.arange(rows, device=seed.device)[:, None] + row
    zero = torch.zeros_like(index)
    keys = (seed[:, None, None] & _WORD, zero + stream)
    drawn = philox4x32((index, which & _WORD, zero + step & _WORD, zero), keys)
    return torch.stack(drawn, -1).flatten(2)[..., :size].reshape(len(seed), rows, *rest)


def uniforms(
    seed: Tensor,
    stream: Tensor | int,
    step: Tensor | int,
    shape: Sequence[int],
    row: Tensor | int = 0,
) -> Tensor:
    """Draw uniform numbers in [0, 1), [K, *shape] float32, multiples of 2⁻²⁴.

    Arguments are those of `words`.
    """
    return (words(seed, stream, step, shape, row) >> 8).float() * 2.0**-24
