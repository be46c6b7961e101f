"""Which cells are compared, in which families, and what differs besides the factor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ablate.errors import AblateError
from ablate.evaluation import HELD_OUT_BLOCK, LABELLED, PASSAGE
from ablate.plan.cells import baseline_levels
from ablate.plan.model import Cell, Confound, Contrast, Group
from ablate.study import Study
from ablate.study.design import PARTWISE
from ablate.study.source import Source

# relative difference beyond which parameters, tokens or FLOPs are named as a confound
MISMATCH = 0.01
PARTS = "parts"  # the family of a design's single parts


def contrasts(study: Study, cells: tuple[Cell, ...]) -> tuple[Contrast, ...]:
    """Return each cell's contrast with its stratum's baseline.

    The family is what differs between them, in that stratum. Where parts are removed or added one
    at a time, the question is which of them matters: they are one family, `PARTS`.

    Raises:
        AblateError: A stratum has no baseline.
    """
    first = baseline_levels(study)
    baselines: dict[str, Cell] = {}
    for cell in cells:
        if all(
            level == first[factor]
            for factor, level in cell.levels.items()
            if factor not in study.within
        ):
            baselines.setdefault(cell.stratum, cell)
    compared = []
    for cell in cells:
        if cell.stratum not in baselines:
            source = Source(study.path, study.toml)
            without = "without its baseline, the first level of each factor"
            if study.exclude:
                raise AblateError(
                    f"{source.where('exclude')}: [[exclude]] leaves {cell.stratum or 'the study'}"
                    f" {without}"
                )
            raise AblateError(
                f"{source.where('within')}: cell {cell.label!r} is {without}: a factor of within"
                " has no effect there"
            )
        baseline = baselines[cell.stratum]
        differs = {
            factor: level
            for factor, level in cell.levels.items()
            if level != baseline.levels.get(factor, first[factor])
        }
        if cell is not baseline:
            factor = " × ".join(differs)
            name = PARTS if study.design in PARTWISE and len(differs) == 1 else factor
            family = f"{name} | {cell.stratum}" if cell.stratum else name
            compared.append(
                Contrast(
                    family,
                    cell.stratum,
                    factor,
                    " × ".join(differs.values()),
                    cell.label,
                    baseline.label,
                )
            )
    return tuple(compared)


def confounds(
    study: Study,
    cells: tuple[Cell, ...],
    compared: tuple[Contrast, ...],
    groups: tuple[Group, ...] = (),
) -> tuple[Confound, ...]:
    """Return the confounds: what a comparison cannot separate from its factor."""
    by_label = {cell.label: cell for cell in cells}
    pairs = [(by_label[contrast.cell], by_label[contrast.baseline]) for contrast in compared]
    probes = study.evaluation.downstream
    limits: list[tuple[float, str]] = []
    limits += [(PASSAGE, "passages of")] * any(name != LABELLED for name in probes)
    limits += [(math.inf, "of a text its first")] * (LABELLED in probes)
    found = [one for pair in pairs for one in (*_of_pair(*pair), *_passages(*pair, limits))]
    keys: dict[str, str] = {}
    for cell in cells:
        twin = keys.setdefault(cell.run.key, cell.label)
        if twin != cell.label:
            found.append(
                Confound(
                    "same configuration",
                    cell.label,
                    f"is the same configuration as {twin!r}; trained once",
                )
            )
    return (*found, *_rates(cells, compared, groups))


def _rates(
    cells: tuple[Cell, ...], compared: tuple[Contrast, ...], groups: tuple[Group, ...]
) -> Iterator[Confound]:
    """Learning rates that a cell shares with its baseline."""
    rates = {cell.config.lr for cell in cells}
    if not groups and len(rates) == 1:
        text = (
            f"all cells share lr = {rates.pop():g}: a disadvantage for cells that need another"
            " learning rate"
        )
        yield Confound("learning rate", "", text)
    of = {label: group for group in groups for label in group.cells}
    for group in dict.fromkeys(
        of[one.cell] for one in compared if of and of[one.cell] is of[one.baseline]
    ):
        text = (
            f"lr is tuned on {group.representative!r} and shared by {len(group.cells) - 1} more"
            " cells: a disadvantage for cells that need"
        )
        yield Confound("learning rate", "", f"{text} another learning rate")


def _of_pair(cell: Cell, baseline: Cell) -> Iterator[Confound]:
    one, other = cell.cost, baseline.cost
    total = _difference(one.params, other.params)
    body = _difference(one.params_body, other.params_body)
    tokens = _difference(one.tokens, other.tokens)
    flops = _difference(one.flops, other.flops)
    sized_alike = max(abs(total), abs(body)) <= MISMATCH
    if not sized_alike:
        known = None not in (one.params_body, other.params_body)
        of_body = f"body {body:+.1%}" if known else "body unknown"
        text = f"{total:+.1%} parameters ({of_body}) against {baseline.label!r}"
        yield Confound("parameters", cell.label, text)
    if abs(tokens) > MISMATCH:
        yield Confound(
            "tokens", cell.label, f"{tokens:+.1%} training tokens against {baseline.label!r}"
        )
    elif sized_alike and abs(flops) > MISMATCH:  # else parameters or tokens say so
        yield Confound(
            "FLOPs", cell.label, f"{flops:+.1%} training FLOPs against {baseline.label!r}"
        )
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


def _difference(value: float | None, baseline: float | None) -> float:
    """Return the relative difference, 0 if either is unknown."""
    return 0.0 if value is None or baseline is None else value / baseline - 1


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
