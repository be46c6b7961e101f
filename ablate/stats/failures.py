"""Failed training as an outcome: rates of failure, and ranks in which a failure is the worst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ablate.stats.distributions import binomial_p
from ablate.stats.pairs import wilson
from ablate.stats.ranks import doubled_ranks, signed_p
from ablate.stats.values import Values

NAN = float("nan")
Goal = Literal["min", "max"]
Flags = Sequence[bool] | npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FailureRates:
    """How often the runs of two arms fail, paired by seed."""

    n: int  # pairs
    failed: int  # of the level
    baseline_failed: int
    only_level: int  # pairs in which the level alone fails
    only_baseline: int
    interval: tuple[float, float]  # of the level's rate (Wilson 1927)
    p: float  # two-sided, exact, of equal rates; NaN without pairs


def failure_rates(failed: Flags, baseline: Flags, *, confidence: float = 0.95) -> FailureRates:
    """Compare the failure rates of two arms by McNemar's exact test (1947).

    Only pairs in which one run fails tell the rates apart: under equal rates each arm is the one
    that fails with the chance 1/2.

    Args:
        failed: [n], whether the level's run failed, one a seed.
        baseline: [n], of the same seeds. Pairs with a run that has not ended are left out by the
            caller.
        confidence: of the interval.

    Returns:
        Counts of failed runs and pairs, Wilson's interval of the level's rate, and the two-sided p
        of equal rates.
    """
    a, b = np.asarray(failed, bool), np.asarray(baseline, bool)
    assert a.shape == b.shape and a.ndim == 1, (a.shape, b.shape)
    n, only_a, only_b = len(a), int((a & ~b).sum()), int((b & ~a).sum())
    p = binomial_p(only_a, only_a + only_b) if only_a + only_b else 1.0
    return FailureRates(
        n=n,
        failed=int(a.sum()),
        baseline_failed=int(b.sum()),
        only_level=only_a,
        only_baseline=only_b,
        interval=wilson(int(a.sum()), n, confidence=confidence),
        p=p if n else NAN,
    )


@dataclass(frozen=True)
class WorstRank:
    """A paired comparison in which a failed run is worse than every number."""

    n: int  # pairs
    ties: int  # pairs without a difference, both failed among them
    worse: int  # pairs in which the level is worse
    better: int
    rank_sum_worse: float  # sum of the ranks of the pairs in which the level is worse
    rank_sum_better: float
    p: float  # two-sided, exact; NaN without pairs


def worst_rank(values: Values, baseline: Values, *, goal: Goal = "min") -> WorstRank:
    """Compare two arms by Wilcoxon's signed-rank test with failures as the worst value.

    A value that is not finite is a failed run (Lachin 1999). A pair of which one run failed has the
    largest difference, tied with all such pairs; a pair of which both failed has none. Pairs
    without a difference are left out of the ranks (Wilcoxon 1945). p counts all sign patterns of
    the ranks, so ties do not make it approximate; for more than `ranks.EXACT` pairs it is that of
    the normal distribution.

    Args:
        values: [n], one a seed.
        baseline: [n], of the same seeds. Pairs with a run that has not ended are left out by the
            caller.
        goal: the better direction of the metric.

    Returns:
        Pairs in which the level is better and worse, their rank sums, and the two-sided p.
    """
    a, b = np.asarray(values, float), np.asarray(baseline, float)
    assert a.shape == b.shape and a.ndim == 1, (a.shape, b.shape)
    sign = 1.0 if goal == "min" else -1.0
    a, b = (np.where(np.isfinite(x), sign * x, np.inf) for x in (a, b))
    with np.errstate(invalid="ignore"):
        d = np.nan_to_num(a - b, nan=0.0, posinf=np.inf, neginf=-np.inf)  # both failed: a tie
    # differences that are equal but for rounding are ties
    numbers = np.abs(np.concatenate([a, b]))
    d = np.round(d / (numbers[np.isfinite(numbers)].max(initial=0.0) or 1.0), 12)
    moved = d[d != 0]
    ranks = doubled_ranks(np.abs(moved))
    worse = sum(rank for rank, one in zip(ranks, moved, strict=True) if one > 0)
    return WorstRank(
        n=len(d),
        ties=len(d) - len(moved),
        worse=int((moved > 0).sum()),
        better=int((moved < 0).sum()),
        rank_sum_worse=worse / 2,
        rank_sum_better=(sum(ranks) - worse) / 2,
        p=signed_p(ranks, worse) if len(d) else NAN,
    )
