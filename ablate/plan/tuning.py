"""What [tune] plans: groups of cells, a ladder of learning rates, seeds that are not compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ablate.plan.model import Cell, Group, PlannedRun
from ablate.study import Study, Tune

LAST_SEED = (1 << 31) - 1
WIDEST = 4  # steps beyond each end of the ladder that a search may go


def rate(tune: Tune, rung: float) -> float:
    """Return the learning rate of a rung of the ladder, to three digits.

    Args:
        tune: The study's [tune].
        rung: 0 for the lowest rate, points − 1 for the highest; halves lie between two rungs,
            numbers below 0 and from `points` on beyond the ends.
    """
    return float(f"{tune.low * (tune.high / tune.low) ** (rung / (tune.points - 1)):.3g}")


def ladder(tune: Tune) -> tuple[float, ...]:
    """Return the learning rates that every group begins with."""
    return tuple(rate(tune, rung) for rung in range(tune.points))


def seeds(study: Study) -> tuple[int, ...]:
    """Return the seeds of the tuning runs: the last ones below 2³¹ that the file does not name.

    A pilot adds seeds from 0 on, so that no run both tunes and is compared.
    """
    assert study.tune
    unnamed = (seed for seed in range(LAST_SEED, -1, -1) if seed not in study.seeds)
    return tuple(islice(unnamed, study.tune.seeds))


def groups(study: Study, cells: Sequence[Cell]) -> tuple[Group, ...]:
    """Return the groups of cells that share the levels of [tune] per; none without [tune]."""
    if not study.tune:
        return ()
    if len(study.tune.per) == len(study.factors):
        return tuple(Group(cell.label, (cell.label,)) for cell in cells)
    found: dict[str, list[str]] = {}
    for cell in cells:
        levels = {
            factor: level for factor, level in cell.levels.items() if factor in study.tune.per
        }
        label = ", ".join(f"{factor}={level}" for factor, level in levels.items())
        found.setdefault(label, []).append(cell.label)
    return tuple(Group(label or "all cells", tuple(labels)) for label, labels in found.items())


@dataclass(frozen=True)
class Tuning:
    """The learning rates of a study, as far as they are decided.

    Attributes:
        study: The study.
        groups: Its groups of cells, each with one learning rate.
        rates: Representative of a group → its decided rate.
        tried: Representative → rates tried and to be tried; the ladder where it is not named.
    """

    study: Study
    groups: tuple[Group, ...]
    rates: Mapping[str, float]
    tried: Mapping[str, Sequence[float]]

    @property
    def undecided(self) -> tuple[Group, ...]:
        """The groups without a decided rate."""
        return tuple(group for group in self.groups if group.representative not in self.rates)

    def cells(self, cells: Sequence[Cell]) -> tuple[Cell, ...]:
        """Return `cells` with the rate of their group, or the ladder's middle if undecided."""
        if not self.study.tune:
            return tuple(cells)
        middle = rate(self.study.tune, (self.study.tune.points - 1) // 2)
        by_cell = {
            label: self.rates.get(group.representative, middle)
            for group in self.groups
            for label in group.cells
        }
        field = self.study.tune.field
        return tuple(
            replace(cell, run=cell.run.with_(seed=None, **{field: by_cell[cell.label]}))
            for cell in cells
        )

    def runs(self, cells: Sequence[Cell]) -> tuple[PlannedRun, ...]:
        """Return the tuning runs of every group's representative."""
        return self._runs(
            cells, lambda group: self.tried.get(group.representative) or ladder(self._table)
        )

    def later(self, cells: Sequence[Cell]) -> tuple[PlannedRun, ...]:
        """Return two runs around the ladder's middle for each group that is not yet refined.

        They have the price of the refinement; where it will lie is not known.
        """
        return self._runs(cells, self._refinement)

    def _refinement(self, group: Group) -> tuple[float, ...]:
        tune = self._table
        rungs = {rate(tune, rung) for rung in range(-WIDEST, tune.points + WIDEST)}
        if group.representative in self.rates or not rungs.issuperset(
            self.tried.get(group.representative, ())
        ):
            return ()
        middle = (tune.points - 1) // 2
        return rate(tune, middle - 0.5), rate(tune, middle + 0.5)

    @property
    def _table(self) -> Tune:
        assert self.study.tune
        return self.study.tune

    def _runs(
        self, cells: Sequence[Cell], rates: Callable[[Group], Sequence[float]]
    ) -> tuple[PlannedRun, ...]:
        of_cell = {cell.label: cell.run for cell in cells}
        return tuple(
            PlannedRun(label, of_cell[label].with_(seed=seed, **{self._table.field: lr}), "tune")
            for group in self.groups
            for label in [group.representative]
            for seed in seeds(self.study)
            for lr in rates(group)
        )
