"""The copy probe: random tokens with the frequencies of a text, each half of them twice."""

from __future__ import annotations

import numpy as np
import torch

from ablate import draws
from ablate.data.objectives import Example
from ablate.text import Tokens
from ablate.text.frequencies import counts

_COPY = draws.stream("copy probe")
_SEED = 0  # of the copy probe, whatever the run's seed


def repeated(tokens: Tokens, half: int, count: int, device: torch.device | str) -> Example:
    """Return sequences of two equal halves of random tokens, equal for all runs on one text.

    Tokens are drawn from the frequencies of the held-out text, each for itself, so that the
    first half cannot be predicted, but the second can, from the first: a model that has learnt to
    copy (Olsson et al. 2022, arXiv:2209.11895) has a low loss there. Position t of a sequence is to
    predict token t + 1; scored are positions 0 … half − 2, and half … 2·half − 2, whose targets
    have an equal place in both halves.

    Args:
        tokens: The text.
        half: Tokens of a half.
        count: Sequences.
        device: Where they are made.

    Returns:
        [1, count, 2·half] each.
    """
    share = np.cumsum(counts(tokens.held_out, tokens.n_vocab)).astype(np.float64)
    edges = torch.from_numpy(share / share[-1])
    drawn = draws.uniforms(torch.tensor([_SEED]), _COPY, 0, (count, half))
    once = torch.searchsorted(edges, drawn.double(), right=True).to(device)
    inputs = torch.cat([once, once], -1)
    weights = torch.ones(inputs.shape, device=device)
    weights[..., half - 1], weights[..., -1] = 0, 0
    return Example(inputs, inputs.roll(-1, -1), weights)
