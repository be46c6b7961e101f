"""What a plan costs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from ablate import sizes
from ablate.plan.model import Plan


@dataclass(frozen=True)
class Price:
    """The sum over the distinct runs of a plan."""

    runs: int  # models to train: one that stands in several cells counts once
    tokens: int
    flops: float  # of training: three forward passes a token
    memory: int  # bytes that the largest run takes when it is trained alone
    pairs: int  # seeds, which is pairs a contrast
    largest_family: int  # contrasts that are corrected together, at most


def price(plan: Plan) -> Price:
    """The price of `plan`, from closed forms."""
    runs = {run.config.key: run.config for run in plan.runs}.values()
    return Price(
        runs=len(runs),
        tokens=sum(config.tokens for config in runs),
        flops=math.fsum(sizes.train_flops(config) for config in runs),
        memory=max(sizes.memory_bytes(config, 1) for config in runs),
        pairs=len(plan.study.seeds),
        largest_family=max(Counter(contrast.family for contrast in plan.contrasts).values(), default=0),
    )
