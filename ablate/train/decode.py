"""Targets that a model of pairs writes, greedily or by beam search, and how good they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ablate.data.objectives import Example
from ablate.model.decoding import decoder
from ablate.text import Tokens
from ablate.text.pairs import marks, spelled

BINS = 8  # of sources by their length, with about equally many pairs


class Match(NamedTuple):
    """A decoded target beside the true one."""

    decoded: str
    true: str


def targets(model: Any, example: Example, beam: int, end: int) -> Tensor:
    """Decode the targets of an example, of which only what comes before the target is read.

    Args:
        model: A model with the interface of `ablate.model.transformer.Transformer`.
        example: What the objective `pairs` makes of rows, [K, W, T].
        beam: Hypotheses kept of each row; 1 is greedy decoding. The one of the highest probability
            is returned, without a correction for length.
        end: The token that ends a target.

    Returns:
        Tokens of the targets, [K, W, T], `end` behind them.
    """
    pack, rows, length = example.inputs.shape
    index = torch.arange(length, device=example.inputs.device)
    # the place of the mark, after which the target begins
    first = torch.where(example.weights > 0, index, length - 1).amin(-1)
    inputs = torch.where(index <= first[..., None], example.inputs, end)
    inputs = inputs[:, :, None].expand(-1, -1, beam, -1)  # [K, W, beam, T]
    score = torch.full((pack, rows, beam), -torch.inf, device=first.device)
    score[..., 0] = 0  # all hypotheses are equal at first
    done = torch.zeros(pack, rows, beam, dtype=torch.bool, device=first.device)
    row = torch.arange(pack * rows, device=first.device).view(pack, rows, 1) * beam
    with decoder(model, (example.source, example.source_starts), beam) as texts:
        for at in range(int(first.min()) + 1, length):  # the place of the next token
            logits = texts.next(inputs[..., :at].flatten(1, 2))
            nats = logits.float().log_softmax(-1).unflatten(1, (rows, beam))
            # what comes before the target is given, and nothing follows its end
            given = (first >= at)[..., None]
            known = torch.where(given, inputs[..., at], end)[..., None]
            certain = torch.full_like(nats, -torch.inf).scatter(-1, known, 0.0)
            total = score[..., None] + torch.where((given | done)[..., None], certain, nats)
            score, best = total.flatten(2).topk(beam, -1)  # [K, W, beam]
            parent, token = best // nats.shape[-1], best % nats.shape[-1]
            if beam > 1:
                texts.choose((row + parent).flatten())
            chosen = parent[..., None].expand(-1, -1, -1, length)
            inputs = inputs.gather(2, chosen).scatter(
                3, torch.full_like(parent, at)[..., None], token[..., None]
            )
            done = done.gather(2, parent) | ((token == end) & ~given)
            if done.all():
                break
    place = first[..., None] + 1 + index
    return torch.where(place < length, inputs[:, :, 0].gather(2, place.clamp(max=length - 1)), end)


def matches(decoded: Tensor, windows: Tensor, tokens: Tokens) -> list[Match]:
    """Return decoded and true targets as texts.

    Args:
        decoded: Tokens of one model's targets, [W, T].
        windows: The rows that they are of, [W, T + 1].
        tokens: The text.
    """
    mark, end = marks(tokens)
    found = []
    for written, row in zip(decoded.cpu().numpy(), windows.cpu().numpy(), strict=True):
        target = row[int(np.argmax(row == mark)) + 1 :]
        found.append(Match(*(spelled(tokens, _until(part, end)) for part in (written, target))))
    return found


def _until(stream: np.ndarray, end: int) -> np.ndarray:
    ends = np.flatnonzero(stream == end)
    return stream[: ends[0]] if len(ends) else stream


def exact(found: Sequence[Match]) -> float:
    """Return the share of targets without an error."""
    return sum(one.decoded == one.true for one in found) / len(found)


def error_rate(found: Sequence[Match]) -> float:
    """Return the edits (insertions, deletions, substitutions) per symbol of the true targets.

    Symbols are words; characters if no true target has a space.
    """
    words = any(" " in one.true for one in found)
    split = (lambda text: text.split()) if words else list
    symbols = [(split(one.decoded), split(one.true)) for one in found]
    total = sum(len(true) for _, true in symbols)
    return sum(edits(*pair) for pair in symbols) / total if total else math.nan


def by_length(found: Sequence[Match], lengths: np.ndarray) -> list[tuple[int, float]]:
    """Return the error rate of sources of similar length.

    Args:
        found: Decoded targets.
        lengths: Tokens of the source of each, [N] int.

    Returns:
        (shortest length, error rate) of each bin of lengths; a bin ends where the next begins.
    """
    firsts = np.unique(np.sort(lengths)[np.arange(BINS) * len(lengths) // BINS])
    bins = np.searchsorted(firsts, lengths, side="right") - 1
    return [
        (int(first), error_rate([found[row] for row in np.flatnonzero(bins == number).tolist()]))
        for number, first in enumerate(firsts)
    ]


def edits(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the least insertions, deletions and substitutions from one to the other.

    Source: Levenshtein 1966.
    """
    row = list(range(len(other) + 1))
    for i, symbol in enumerate(one, 1):
        diagonal, row[0] = row[0], i
        for j, wanted in enumerate(other, 1):
            diagonal, row[j] = (
                row[j],
                min(row[j] + 1, row[j - 1] + 1, diagonal + (symbol != wanted)),
            )
    return row[-1]
