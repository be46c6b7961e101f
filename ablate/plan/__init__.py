"""(`Study`, decisions) → the ordered runs, strata, contrasts and prices of a study. A pure
function.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ablate.errors import AblateError
from ablate.plan.cells import build
from ablate.plan.check import check
from ablate.plan.compare import confounds, contrasts
from ablate.plan.model import Cell, Confound, Contrast, Decision, Group, Plan, PlannedRun
from ablate.plan.notes import notes
from ablate.plan.tuning import Tuning, groups
from ablate.study import Study

__all__ = ["Cell", "Confound", "Contrast", "Decision", "Group", "Plan", "PlannedRun", "plan"]


def plan(
    study: Study, decisions: Sequence[Decision] = (), tried: Mapping[str, Sequence[float]] = {}
) -> Plan:
    """Everything that `study` means, resolved, with what was decided so far.

    tried: a group's representative → the learning rates that were tried there, or are to be tried
    next; where a group is not named these are the ladder's. Raises `AblateError`, naming the cell,
    where the study means nothing.
    """
    built = build(study)
    _known(built.cells, decisions)
    rates = {decision.cell: decision.value for decision in decisions if decision.name == "lr"}
    tuning = Tuning(study, groups(study, built.cells), rates, tried)
    cells = tuning.cells(built.cells)
    compared = contrasts(study, cells)
    check(study, cells, built.too_long, compared)
    waiting = {label for group in tuning.undecided for label in group.cells}
    runs = list(_compare(study, cells, decisions))
    return Plan(
        study=study,
        cells=cells,
        contrasts=compared,
        runs=(*tuning.runs(cells), *(run for run in runs if run.cell not in waiting)),
        later=(*tuning.later(cells), *(run for run in runs if run.cell in waiting)),
        groups=tuning.groups,
        undecided=tuning.undecided,
        sources=built.sources,
        confounds=confounds(study, cells, compared, tuning.groups),
        notes=notes(study, cells),
        excluded=built.excluded,
        too_long=built.too_long,
    )


def _known(cells: Sequence[Cell], decisions: Sequence[Decision]) -> None:
    labels = {cell.label for cell in cells}
    for decision in decisions:
        if decision.cell not in labels:
            raise AblateError(
                f"a decision on {decision.name} is for cell {decision.cell!r}, which the study no"
                " longer has"
            )


def _compare(
    study: Study, cells: Sequence[Cell], decisions: Sequence[Decision]
) -> Iterator[PlannedRun]:
    """The runs that are compared: seed after seed, so that pairs are complete early."""
    stratum = {cell.label: cell.stratum for cell in cells}
    wanted = {
        stratum[decision.cell]: int(decision.value)
        for decision in decisions
        if decision.name == "seeds"
    }
    more = range(len(study.seeds), max(wanted.values(), default=0))
    for place, seed in enumerate((*study.seeds, *more)):
        for cell in cells:
            if place < wanted.get(cell.stratum, len(study.seeds)):
                yield PlannedRun(cell.label, cell.config.model_copy(update={"seed": seed}))
