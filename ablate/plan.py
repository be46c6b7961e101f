"""(`Study`, decisions) → the ordered runs, strata, contrasts and prices of a study. A pure function."""

from __future__ import annotations

from dataclasses import dataclass

from ablate.config import RunConfig
from ablate.study import Study


@dataclass(frozen=True)
class Cell:
    """One combination of levels: everything but the seed."""

    label: str  # "topology=parallel, n_layer=12"; unique in its study
    levels: dict[str, str]  # factor → level's label
    stratum: str  # the levels of the `within` factors, "n_layer=12"; "" without
    config: RunConfig  # with seed 0


@dataclass(frozen=True)
class Contrast:
    """A cell against the baseline of its stratum. `factor` names what differs, joined by " × " where several do."""

    family: str  # the contrasts that are corrected together: one factor in one stratum
    stratum: str
    factor: str
    level: str
    cell: str  # labels
    baseline: str


@dataclass(frozen=True)
class PlannedRun:
    """A run of the plan: a cell with one of its seeds."""

    cell: str
    config: RunConfig
    role: str = "compare"  # "compare" | "tune" | "parent"


@dataclass(frozen=True)
class Plan:
    """What a study will do, in the order in which it is done."""

    study: Study
    cells: tuple[Cell, ...]
    contrasts: tuple[Contrast, ...]
    runs: tuple[PlannedRun, ...]
