"""(`Study`, decisions) → the ordered runs, strata, contrasts and prices of a study. A pure function."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from ablate.errors import AblateError
from ablate.plan.cells import build
from ablate.plan.check import check
from ablate.plan.compare import confounds, contrasts
from ablate.plan.model import Cell, Confound, Contrast, Decision, Plan, PlannedRun
from ablate.study import Study

__all__ = ["Cell", "Confound", "Contrast", "Decision", "Plan", "PlannedRun", "plan"]


def plan(study: Study, decisions: Sequence[Decision] = ()) -> Plan:
    """Everything that `study` means, resolved. Raises `AblateError`, naming the cell, where it means nothing."""
    cells, excluded, sources = build(study)
    cells = _decided(cells, decisions)
    compared = contrasts(study, cells)
    check(study, cells, compared)
    runs = tuple(PlannedRun(cell.label, cell.config.model_copy(update={"seed": seed})) for seed in study.seeds for cell in cells)
    return Plan(study, cells, compared, runs, sources, confounds(study, cells, compared), excluded, _hash(study, cells))


def _decided(cells: tuple[Cell, ...], decisions: Sequence[Decision]) -> tuple[Cell, ...]:
    """The cells with what was decided for them."""
    changes: dict[str, dict[str, float]] = {cell.label: {} for cell in cells}
    for decision in decisions:
        if decision.cell not in changes:
            raise AblateError(f"a decision on {decision.name} is for cell {decision.cell!r}, which the study no longer has")
        changes[decision.cell][decision.name] = decision.value
    return tuple(
        Cell(**{**vars(cell), "config": cell.config.model_copy(update=changes[cell.label])}) if changes[cell.label] else cell
        for cell in cells
    )


def _hash(study: Study, cells: tuple[Cell, ...]) -> str:
    """SHA-256 of what decides the study's results and their comparison."""
    content = {
        "metric": study.metric,
        "goal": study.goal,
        "seeds": study.seeds,
        "evaluation": study.evaluation.model_dump(mode="json"),
        "cells": [[cell.label, cell.levels, cell.stratum, cell.config.key] for cell in cells],
    }
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()
