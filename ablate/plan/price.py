"""What a plan costs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ablate.plan.model import Plan, PlannedRun, before

T = TypeVar("T")


@dataclass(frozen=True)
class Price:
    """The sum over the distinct runs of a plan, with those that wait for a learning rate.

    A cost that is not known enters no sum; a number is None where that of no run is known.

    Attributes:
        runs: Models to train: one that is in several cells counts once.
        tuning: Those of them that tune.
        pretraining: Those of them that others start from.
        unknown: Those of them of which tokens, FLOPs or memory are not known.
        tokens: Tokens trained on.
        flops: FLOPs of training.
        memory: Bytes that the largest run takes when it is trained alone.
        weights: Models whose weights are kept, and the bytes of these.
        pairs: Seeds, which is pairs a contrast, of the cell that has fewest: the pilot's, before
            its noise is known.
        largest_family: Contrasts that are corrected together, at most.
    """

    runs: int
    tuning: int
    pretraining: int
    unknown: int
    tokens: int | None
    flops: float | None
    memory: int | None
    weights: tuple[int, int]
    pairs: int
    largest_family: int


def price(plan: Plan) -> Price:
    """Return the price of `plan`, by what the runs of its cells say that they cost."""
    planned = (*plan.runs, *plan.later)
    keys = [planned_run.run.key for planned_run in planned]
    distinct = dict(zip(keys, planned, strict=True))
    by_cell = {(cell.label, False): cell.cost for cell in plan.cells}  # seed and rate change none
    by_cell |= {(cell.label, True): first.cost for cell in plan.cells if (first := before(cell))}
    costs = [by_cell[one.cell, one.role == "pretrain"] for one in distinct.values()]
    numbers = [(cost.tokens, cost.flops, cost.bytes) for cost in costs]
    tokens = _known(cost.tokens for cost in costs)
    flops = _known(cost.flops for cost in costs)
    return Price(
        runs=len(distinct),
        tuning=_of_role(planned, "tune"),
        pretraining=_of_role(planned, "pretrain"),
        unknown=sum(None in row for row in numbers),
        tokens=sum(tokens) if tokens else None,
        flops=math.fsum(flops) if flops else None,
        memory=max(_known(cost.bytes for cost in costs), default=None),
        weights=_weights(plan, planned),
        pairs=min(Counter(run.cell for run in planned if run.role == "compare").values()),
        largest_family=len(plan.contrasts)
        if plan.study.reporting.correction == "study"
        else max(Counter(contrast.family for contrast in plan.contrasts).values(), default=0),
    )


def _of_role(planned: Sequence[PlannedRun], role: str) -> int:
    return len({one.run.key for one in planned if one.role == role})


def _weights(plan: Plan, planned: Sequence[PlannedRun]) -> tuple[int, int]:
    """Return the models whose weights are kept, and the bytes of these."""
    if plan.study.keep == "none":
        return 0, 0
    by_cell = {
        cell.label: (cell.cost.params or 0) * cell.config.part("precision").stream
        for cell in plan.cells
    }
    role = "pretrain" if plan.study.finetunes else "compare"
    kept = {one.run.key: by_cell[one.cell] for one in planned if one.role == role}
    return len(kept), sum(kept.values())


def _known(values: Iterable[T | None]) -> list[T]:
    return [value for value in values if value is not None]
