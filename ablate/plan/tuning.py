"""What [tune] plans: groups of cells, a ladder of learning rates, seeds that are not compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from ablate.errors import AblateError
from ablate.evaluation import VALIDATION
from ablate.kinds import Run, kind
from ablate.plan.model import Cell, Group, PlannedRun
from ablate.study import Study, Tune
from ablate.study.source import Source

LAST_SEED = (1 << 31) - 1


def seeds(study: Study) -> tuple[int, ...]:
    """Return the seeds of the tuning runs: the last ones below 2³¹ that the file does not name.

    A pilot adds seeds from 0 on, so that no run both tunes and is compared.
    """
    assert study.tune
    unnamed = (seed for seed in range(LAST_SEED, -1, -1) if seed not in study.seeds)
    return tuple(islice(unnamed, study.tune.seeds))


def deciding(study: Study, run: Run) -> str:
    """Return the metric that decides the rate of a run: on a validation part, if there is one."""
    assert study.tune
    return on_validation(study.tune.metric, run)


def on_validation(metric: str, run: Run) -> str:
    """Return a metric as it is measured on the validation part of a run's task, if it has one."""
    return VALIDATION.get(metric, metric) if run.fields.get("n_validation") else metric


def groups(study: Study, cells: Sequence[Cell]) -> tuple[Group, ...]:
    """Return the groups of cells that share the levels of [tune] per; none without [tune].

    A cell in which the tuned field has no meaning is in no group.

    Raises:
        AblateError: It has none in any cell.
    """
    if not study.tune:
        return ()
    if not (cells := [cell for cell in cells if _has(cell.run, study.tune)]):
        field = study.tune.field
        location = Source(study.path, study.toml).where("tune", field)
        raise AblateError(f"{location}: no cell has a level that {field} belongs to")
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


def _has(run: Run, tune: Tune) -> bool:
    """Return whether a field has a meaning for a run: what has none is left out, or reset."""
    if tune.field == "lr":
        return True
    check = kind(run.kind).check
    values = [check({**run.fields, tune.field: value}) for value in (tune.rate(0), tune.high)]
    return values[0].get(tune.field) != values[1].get(tune.field)


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
        tune = self.study.tune
        middle = tune.rate((tune.points - 1) // 2)
        by_cell = {
            label: tune.value(self.rates.get(group.representative, middle))
            for group in self.groups
            for label in group.cells
        }
        return tuple(
            replace(cell, run=cell.run.with_(seed=None, **{tune.field: by_cell[cell.label]}))
            if cell.label in by_cell
            else cell
            for cell in cells
        )

    def runs(self, cells: Sequence[Cell]) -> tuple[PlannedRun, ...]:
        """Return the tuning runs of every group's representative."""
        return self._runs(
            cells, lambda group: self.tried.get(group.representative) or self._table.ladder
        )

    def later(self, cells: Sequence[Cell]) -> tuple[PlannedRun, ...]:
        """Return two runs around the ladder's middle for each group that is not yet refined.

        They have the price of the refinement; where it will lie is not known.
        """
        return self._runs(cells, self._refinement)

    def _refinement(self, group: Group) -> tuple[float, ...]:
        tune = self._table
        rungs = {tune.rate(rung) for rung in range(-tune.down, tune.points + tune.up)}
        if group.representative in self.rates or not rungs.issuperset(
            self.tried.get(group.representative, ())
        ):
            return ()
        middle = (tune.points - 1) // 2
        return tune.rate(middle - 0.5), tune.rate(middle + 0.5)

    @property
    def _table(self) -> Tune:
        assert self.study.tune
        return self.study.tune

    def _runs(
        self, cells: Sequence[Cell], rates: Callable[[Group], Sequence[float]]
    ) -> tuple[PlannedRun, ...]:
        of_cell = {cell.label: cell.run for cell in cells}

        def run(label: str, seed: int, lr: float) -> PlannedRun:
            own = {self._table.field: self._table.value(lr)}
            return PlannedRun(label, of_cell[label].with_(seed=seed, **own), "tune")

        return tuple(
            run(label, seed, lr)
            for group in self.groups
            for label in [group.representative]
            for seed in seeds(self.study)
            for lr in rates(group)
        )
