"""What transformers of a study differ in besides its factors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ablate.evaluation import HELD_OUT_BLOCK, LABELLED, PASSAGE
from ablate.plan.model import Cell, Confound
from ablate.study import Study

READ = 0.01  # relative difference in the text that is read beyond which it is named


def of_pairs(study: Study, pairs: Sequence[tuple[Cell, Cell]]) -> Iterator[Confound]:
    """Yield the confounds of cells with their baselines that are particular to transformers.

    Args:
        study: The study.
        pairs: Each compared cell with its baseline.
    """
    probes = study.evaluation.downstream
    limits: list[tuple[float, str]] = []
    limits += [(PASSAGE, "passages of")] * any(name != LABELLED for name in probes)
    limits += [(math.inf, "of a text its first")] * (LABELLED in probes)
    for pair in pairs:
        yield from _of_text(*pair)
        yield from _read(*pair)
        yield from _passages(*pair, limits)


def shared_rate(cells: Sequence[Cell]) -> Iterator[Confound]:
    """Yield that all cells share a learning rate, where they do and none is tuned."""
    rates = {cell.config.lr for cell in cells if cell.config.steps}
    if len(rates) == 1:
        text = (
            f"all cells share lr = {rates.pop():g}: a disadvantage for cells that need another"
            " learning rate"
        )
        yield Confound("learning rate", "", text)


def _of_text(cell: Cell, baseline: Cell) -> Iterator[Confound]:
    if cell.config.corpus_hash != baseline.config.corpus_hash:
        yield Confound(
            "corpus", cell.label, f"a different text from {baseline.label!r}, also held out"
        )
    elif not _scored_alike(cell, baseline):
        yield Confound(
            "held-out text",
            cell.label,
            f"scored on different parts of the held-out text from {baseline.label!r}",
        )


def _read(cell: Cell, baseline: Cell) -> Iterator[Confound]:
    """Tokens of another tokenizer are more text, or less."""
    one, other = cell.config, baseline.config
    if one.corpus_hash != other.corpus_hash or one.tokenizer_hash == other.tokenizer_hash:
        return
    if cell.estimated or baseline.estimated:
        text = (
            "the same number of tokens covers more or less text than with the tokenizer of"
            f" {baseline.label!r}"
        )
        yield Confound("text read", cell.label, text)
    elif cell.epochs and baseline.epochs and abs(more := cell.epochs / baseline.epochs - 1) > READ:
        yield Confound(
            "text read", cell.label, f"reads {more:+.0%} text relative to {baseline.label!r}"
        )


def _passages(
    cell: Cell, baseline: Cell, limits: Sequence[tuple[float, str]]
) -> Iterator[Confound]:
    """Passages of two lengths, of which the longer ones are easier for a linear probe."""
    for most, what in limits:
        length, other = (min(most, one.config.n_ctx) for one in (cell, baseline))
        if length != other:
            text = (
                f"its linear probe reads {what} {length} tokens, instead of {other} as in"
                f" {baseline.label!r}"
            )
            yield Confound("passages", cell.label, text)


def _scored_alike(cell: Cell, baseline: Cell) -> bool:
    """Return whether both are scored on the same held-out tokens.

    `ablate.data.batches.held_out_starts` chooses them.
    """
    one, other = cell.config, baseline.config
    tiled = all(HELD_OUT_BLOCK % config.n_ctx == 0 for config in (one, other))
    return one.tokenizer_hash == other.tokenizer_hash and (one.n_ctx == other.n_ctx or tiled)
