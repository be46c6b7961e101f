"""What a plan costs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from ablate import sizes
from ablate.plan.model import Plan


@dataclass(frozen=True)
class Price:
    """The sum over the distinct runs of a plan, with those that wait for a learning rate."""

    runs: int  # models to train: one that stands in several cells counts once
    tuning: int  # those of them that tune
    tokens: int
    flops: float  # of training: three forward passes a token
    memory: int  # bytes that the largest run takes when it is trained alone
    # seeds, which is pairs a contrast, of the cell that has fewest: the pilot's, before its noise
    # is known
    pairs: int
    largest_family: int  # contrasts that are corrected together, at most


def price(plan: Plan) -> Price:
    """The price of `plan`, from closed forms."""
    planned = (*plan.runs, *plan.later)
    runs = {run.config.key: run.config for run in planned}.values()
    return Price(
        runs=len(runs),
        tuning=len({run.config.key for run in planned if run.role == "tune"}),
        tokens=sum(config.tokens for config in runs),
        flops=math.fsum(sizes.train_flops(config) for config in runs),
        memory=max(sizes.memory_bytes(config, 1) for config in runs),
        pairs=min(Counter(run.cell for run in planned if run.role == "compare").values()),
        largest_family=max(
            Counter(contrast.family for contrast in plan.contrasts).values(), default=0
        ),
    )
