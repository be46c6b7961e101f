"""Frequencies of tokens, and the loss of a model that has learnt nothing else."""

from __future__ import annotations

import numpy as np

from ablate.text.tokenizers import TokenizerInfo
from ablate.text.tokens import Tokens
from ablate.units import count

SAMPLE = 1 << 26  # most tokens of a text that are counted: 0.2 s, and each share to four digits
_PIECE = 1 << 16


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


def nats(found: np.ndarray) -> np.ndarray:
    """Return −log p of each token by how often each was found, [V] float64.

    One is added to each count, so that a token that training never shows has a finite loss.
    """
    return np.log((found + 1).sum()) - np.log(found + 1)


def unigram_loss(tokens: Tokens) -> float:
    """Return the loss of these frequencies on the held-out text, in nats per token."""
    found = counts(tokens.held_out, tokens.n_vocab)
    return float(found @ nats(counts(tokens.train, tokens.n_vocab)) / max(1, found.sum()))


def line(tokenizer: TokenizerInfo, tokens: Tokens) -> str:
    """Return a sentence on the tokens of a text and on what their frequencies alone predict."""
    parts = (tokens.train, tokens.held_out)
    train, held_out = (f"{len(part):,}" if len(part) < 1e4 else count(len(part)) for part in parts)
    return (
        f"Tokens: {tokenizer.name}, {tokenizer.n_vocab:,} in the vocabulary; {train} to train on,"
        f" {held_out} held out, to which the frequencies of the training text alone give"
        f" {unigram_loss(tokens):.3f} nats per token"
    )
