"""Which cells are compared, in which families, and what differs besides the factor."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ablate.errors import AblateError
from ablate.plan.cells import baseline_levels
from ablate.plan.kinds import planning_of
from ablate.plan.model import Cell, Confound, Contrast, Group
from ablate.study import Study
from ablate.study.design import PARTWISE
from ablate.study.source import Source
from ablate.study.values import BUDGETS
from ablate.units import listed

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


def not_compared(
    within: Collection[str], levels: Iterable[Mapping[str, str]], compared: Collection[str]
) -> list[str]:
    """Return the factors of which no level is compared with another one alone.

    Args:
        within: Factors whose levels form strata.
        levels: Factor → level, of each cell.
        compared: Factors of the contrasts, several joined by " × ".
    """
    found: dict[str, set[str]] = {}
    for of_cell in levels:
        for factor, level in of_cell.items():
            found.setdefault(factor, set()).add(level)
    return [
        factor
        for factor, names in found.items()
        if len(names) > 1 and factor not in within and factor not in compared
    ]


def why_not_compared(factors: Sequence[str]) -> str:
    """Return a sentence, without full stop, on factors that `not_compared` returns."""
    alone = "one of them" if len(factors) > 1 else "it"
    return (
        f"No contrast compares the levels of {listed(factors)} with each other: no cell differs"
        f" from a baseline in {alone} alone"
    )


def uncompared(
    study: Study, cells: tuple[Cell, ...], compared: tuple[Contrast, ...]
) -> Iterator[str]:
    """Yield which factors a design does not compare."""
    factors = {one.factor for one in compared}
    for factor in not_compared(study.within, (cell.levels for cell in cells), factors):
        yield (
            f"{why_not_compared([factor])}. Another factor decides whether {factor} has a meaning:"
            f" make its level that uses {factor} the first, so that it is the baseline, or add it"
            " to within"
        )


def confounds(
    study: Study,
    cells: tuple[Cell, ...],
    compared: tuple[Contrast, ...],
    groups: tuple[Group, ...] = (),
) -> tuple[Confound, ...]:
    """Return the confounds: what a comparison cannot separate from its factor."""
    by_label = {cell.label: cell for cell in cells}
    pairs = [(by_label[contrast.cell], by_label[contrast.baseline]) for contrast in compared]
    of_kind = planning_of(study)
    found = []
    for contrast, pair in zip(compared, pairs, strict=True):
        own = _own_fields(study, contrast)
        found += [one for one in _of_pair(*pair) if not _OWN.get(one.kind, frozenset()) & own]
    found += of_kind.confounds(study, pairs)
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
    rate = "finetune_lr" if study.finetunes else "lr"
    if not study.tune or study.tune.field != rate:
        found += of_kind.shared_rate(cells)
    return (*found, *_rates(study, compared, groups))


# fields that decide what a confound is about: in a study that varies them it is none
_SIZE = frozenset(("n_layer", "d_model", "d_mlp", "params"))
_OWN = {"parameters": _SIZE, "tokens": frozenset(BUDGETS), "FLOPs": _SIZE | frozenset(BUDGETS)}


def _own_fields(study: Study, contrast: Contrast) -> frozenset[str]:
    """Return the fields that the factors of a contrast set."""
    return frozenset(
        name
        for factor in contrast.factor.split(" × ")
        for fields in study.factors.get(factor, {}).values()
        for name in fields
    )


def _rates(
    study: Study, compared: tuple[Contrast, ...], groups: tuple[Group, ...]
) -> Iterator[Confound]:
    """Tuned numbers, such as learning rates, that a cell shares with its baseline."""
    of = {label: group for group in groups for label in group.cells}
    for group in dict.fromkeys(
        of[one.cell] for one in compared if one.cell in of and of[one.cell] is of.get(one.baseline)
    ):
        assert study.tune
        text = (
            f"{study.tune.field} is tuned on {group.representative!r} and shared by"
            f" {len(group.cells) - 1} more cells: a disadvantage for cells that need another"
            f" {study.tune.what}"
        )
        yield Confound("learning rate", "", text)


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
    if math.inf in (tokens, flops):
        yield Confound("training", cell.label, f"trains, and {baseline.label!r} does not")
    elif abs(tokens) > MISMATCH:
        yield Confound(
            "tokens", cell.label, f"{tokens:+.1%} training tokens against {baseline.label!r}"
        )
    elif sized_alike and abs(flops) > MISMATCH:  # else parameters or tokens say so
        yield Confound(
            "FLOPs", cell.label, f"{flops:+.1%} training FLOPs against {baseline.label!r}"
        )


def _difference(value: float | None, baseline: float | None) -> float:
    """Return the relative difference, 0 if either is unknown."""
    if value is None or baseline is None or value == baseline:
        return 0.0
    return value / baseline - 1 if baseline else math.inf
