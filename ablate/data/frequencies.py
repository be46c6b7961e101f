"""Frequencies of tokens, and two measures made of them: the unigram loss and the copy probe."""

from __future__ import annotations

import numpy as np
import torch

from ablate import draws
from ablate.data.objectives import Example
from ablate.text import Tokens

SAMPLE = 1 << 26  # most tokens of a text that are counted: 0.2 s, and each share to four digits
_PIECE = 1 << 16
_COPY = draws.stream("copy probe")
_SEED = 0  # of the copy probe, whatever the run's seed


def counts(stream: np.ndarray, n_vocab: int) -> np.ndarray:
    """Return how often each token stands in a stream, [V] int64.

    Of a stream of more than `SAMPLE` tokens, that many are counted, in pieces spread evenly over
    it.
    """
    pieces = -(-len(stream) // _PIECE)
    n = min(pieces, SAMPLE // _PIECE)
    found = np.zeros(n_vocab, np.int64)
    for piece in np.linspace(0, pieces - 1, n).astype(np.int64):
        part = stream[piece * _PIECE : (piece + 1) * _PIECE]
        found += np.bincount(part, minlength=n_vocab)
    return found


def unigram_nats(tokens: Tokens) -> np.ndarray:
    """Return −log p of each token under the frequencies of the training text, [V] float64.

    One is added to each count, so that a token that training never shows has a finite loss.
    """
    found = counts(tokens.train, tokens.n_vocab) + 1
    return np.log(found.sum()) - np.log(found)


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
