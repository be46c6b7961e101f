"""A study and its decisions → ordered runs, strata, contrasts and prices: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ablate.errors import AblateError
from ablate.plan.cells import build, check_levels
from ablate.plan.compare import confounds, contrasts, uncompared
from ablate.plan.kinds import planning_of
from ablate.plan.model import ROLES, Cell, Confound, Contrast, Decision, Group, Plan, PlannedRun
from ablate.plan.probes import labelled
from ablate.plan.tuning import Tuning, groups
from ablate.study import Study

__all__ = [
    "ROLES",
    "Cell",
    "Confound",
    "Contrast",
    "Decision",
    "Group",
    "Plan",
    "PlannedRun",
    "Tried",
    "decide",
    "plan",
]

Tried = Mapping[str, Sequence[float]]


def plan(study: Study) -> Plan:
    """Return the plan of a study before anything is decided: cells, comparisons and runs.

    Args:
        study: The study as its file states it.

    Raises:
        AblateError: The study has no meaning; the message names the cell.
    """
    study, files = labelled(study)
    built = build(study)
    built.sources.update(files)
    return planning_of(study).measured(decide(built, (), {}))


def decide(base: Plan, decisions: Sequence[Decision], tried: Tried) -> Plan:
    """Return a plan of the same study with these decisions. No cell is resolved again.

    Args:
        base: A plan of the study, with whatever decisions, or what `build` returns.
        decisions: All decisions in force.
        tried: Representative of a group → the learning rates tried there, or to be tried next; a
            group that is not named has those of the ladder.

    Raises:
        AblateError: A decision is for a cell that the study no longer has.
    """
    study = base.study
    _refuse_unknown(base.cells, decisions)
    rates = {decision.cell: decision.value for decision in decisions if decision.name != "seeds"}
    tuning = Tuning(study, groups(study, base.cells), rates, tried)
    cells = tuning.cells(base.cells)
    compared = contrasts(study, cells)
    of_kind = planning_of(study)
    check_levels(study, cells, base.too_long)
    for complaint in of_kind.complaints(study, cells, compared, base.texts):
        raise AblateError(complaint)
    undecided = {label for group in tuning.undecided for label in group.cells}
    runs = list(_compared_runs(study, cells, decisions))
    return replace(
        base,
        cells=cells,
        contrasts=compared,
        runs=with_parents((*tuning.runs(cells), *(r for r in runs if r.cell not in undecided))),
        later=with_parents((*tuning.later(cells), *(r for r in runs if r.cell in undecided))),
        groups=tuning.groups,
        undecided=tuning.undecided,
        confounds=confounds(study, cells, compared, tuning.groups),
        notes=(*of_kind.notes(study, cells, base.texts), *uncompared(study, cells, compared)),
    )


def with_parents(runs: Iterable[PlannedRun]) -> tuple[PlannedRun, ...]:
    """Return runs, each after the run that it starts from, which has the role "pretrain"."""
    found: dict[tuple[str, str], PlannedRun] = {}
    for one in runs:
        if parent := one.run.parent_run:
            found.setdefault((one.cell, parent.key), PlannedRun(one.cell, parent, "pretrain"))
        found[one.cell, one.run.key] = one
    return tuple(found.values())


def _refuse_unknown(cells: Sequence[Cell], decisions: Sequence[Decision]) -> None:
    labels = {cell.label for cell in cells}
    for decision in decisions:
        if decision.cell not in labels:
            raise AblateError(
                f"a decision on {decision.name} is for cell {decision.cell!r}, which the study no"
                " longer has"
            )


def _compared_runs(
    study: Study, cells: Sequence[Cell], decisions: Sequence[Decision]
) -> Iterator[PlannedRun]:
    """Yield the runs that are compared, seed after seed, so that pairs are complete early."""
    stratum = {cell.label: cell.stratum for cell in cells}
    decided = {
        stratum[decision.cell]: int(decision.value)
        for decision in decisions
        if decision.name == "seeds"
    }
    more = range(len(study.seeds), max(decided.values(), default=0))
    for number, seed in enumerate((*study.seeds, *more)):
        for cell in cells:
            if number < decided.get(cell.stratum, len(study.seeds)):
                run = cell.run.with_(seed=seed, **study.seed_fields(seed))
                yield PlannedRun(cell.label, run)
