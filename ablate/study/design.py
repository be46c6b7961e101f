"""Which combinations of levels a design asks for. Labels only: no configuration is built here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

DESIGNS = {
    "grid": "every combination of levels",
    "one-factor": "the baseline, and one factor at a time moved to each of its other levels",
    "leave-one-out": (
        "two levels per factor, with and without: all parts together, and all parts but one"
    ),
    "add-one-in": "two levels per factor, without and with: no part, and each part alone",
}
PARTWISE = ("leave-one-out", "add-one-in")  # of which one question is asked: which part matters
MAX_CELLS = 4096  # beyond which a study is refused, before anything is built
MAX_RUNS = 200_000

Levels = Mapping[str, Sequence[str]]  # factor → its levels' labels, the baseline first
Combination = dict[str, str]  # factor → one level's label


def combinations(
    design: str, levels: Levels, within: Sequence[str], interactions: Sequence[Sequence[str]] = ()
) -> Iterator[Combination]:
    """Yield every combination once, stratum after stratum, each with its baseline first."""
    inner = {factor: names for factor, names in levels.items() if factor not in within}
    for stratum in _grid({factor: levels[factor] for factor in levels if factor in within}):
        seen: set[tuple[str, ...]] = set()
        for choice in _inner(design, inner, interactions):
            if (identity := tuple(choice.values())) not in seen:
                seen.add(identity)
                both = stratum | choice
                yield {factor: both[factor] for factor in levels}


def count(
    design: str, levels: Levels, within: Sequence[str], interactions: Sequence[Sequence[str]] = ()
) -> int:
    """Return how many combinations there are at most (interactions may share some)."""
    strata = math.prod(len(names) for factor, names in levels.items() if factor in within)
    sizes = {factor: len(names) for factor, names in levels.items() if factor not in within}
    if design == "grid":
        return strata * math.prod(sizes.values())
    alone = 1 + sum(size - 1 for size in sizes.values())
    return strata * (
        alone + sum(math.prod(sizes[factor] - 1 for factor in group) for group in interactions)
    )


def _inner(
    design: str, levels: Levels, interactions: Sequence[Sequence[str]]
) -> Iterator[Combination]:
    if design == "grid":
        yield from _grid(levels)
        return
    baseline = {factor: names[0] for factor, names in levels.items()}
    yield baseline
    for factor, names in levels.items():
        for name in names[1:]:
            yield baseline | {factor: name}
    for group in interactions:
        for choice in _grid({factor: levels[factor] for factor in levels if factor in group}):
            yield baseline | choice


def _grid(levels: Levels) -> Iterator[Combination]:
    for choice in itertools.product(*levels.values()):
        yield dict(zip(levels, choice, strict=True))
