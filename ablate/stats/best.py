"""Which arms are the best, or not distinguishable from it: multiple comparisons with the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ablate.stats.pairs import half_widths
from ablate.stats.values import Floats, Noise, differences

NAN = float("nan")


@dataclass(frozen=True)
class ArmAgainstBest:
    """An arm against the best of the others."""

    n: int  # finite values
    mean: float  # of them
    rival: int  # position of the best other arm; −1 where no pair tells
    difference: float  # mean paired difference, this arm minus its rival
    lo: float  # constrained interval of the true difference from the best of the others: 0 is in it
    hi: float  # and is an end of it where this arm is not a candidate, or the only one
    candidate: bool  # whether it is the best or not distinguishable from it


@dataclass(frozen=True)
class BestArms:
    """The arms that may be the best."""

    arms: tuple[ArmAgainstBest, ...]  # in the order given
    candidates: tuple[int, ...]  # positions of the arms that may be the best, the best mean first
    confidence: float  # that the true best is a candidate and all intervals hold, together
    clear: bool  # whether the first candidate is significantly better than every arm that is none


def best_arms(
    values: npt.ArrayLike,
    *,
    goal: Literal["min", "max"] = "min",
    confidence: float = 0.95,
    noise: Callable[[Floats, int, int], Noise] | None = None,
    decided: Mapping[tuple[int, int], bool] = {},
) -> BestArms:
    """Return the arms that are the best or not distinguishable from it (Hsu 1984).

    The seeds are blocks and the noise of each difference is that of its own pairs, because arms
    vary differently and lose different seeds. So every pair of arms has a Student quantile of its
    own, two-sided at (1 − confidence) / (M − 1): with M arms the true best is compared with M − 1
    others, and Bonferroni's inequality holds whatever their correlation. Two-sided, so that of two
    arms one is the best exactly where their contrast is significant. Arm i is a candidate if no
    other arm is significantly better in these comparisons. The intervals are those of Edwards & Hsu
    (1983) for unequal quantiles.

    Args:
        values: [S, M], a row a seed, a column an arm; a value that is not finite is a lost run, and
            costs its pairs only. Arms that share fewer than two seeds, or whose differences are
            equal but not zero, cannot be distinguished. An arm without any value is no candidate.
        goal: the better direction of the metric.
        confidence: of the set and of all intervals, together.
        noise: the noise of the mean of the differences [S] of two arms, given by their positions;
            None for `noise_of` of the differences alone, which thousands of arms need to be quick.
        decided: positions of two arms → whether the second is significantly better, by another test
            that takes the place of the comparison in the set; intervals are as without it.
    """
    x = np.asarray(values, float)
    arms = x.shape[1]
    assert arms >= 2, x.shape
    sign = 1.0 if goal == "max" else -1.0
    each = 1 - (1 - confidence) / (arms - 1)
    mean, half = np.zeros((arms, arms)), np.zeros((arms, arms))
    columns = np.ascontiguousarray(x.T)  # sums of rows, as of each alone
    for i in range(1, arms):
        d = sign * differences(columns[i], columns[:i])
        known = np.isfinite(d)
        with np.errstate(invalid="ignore"):
            mean[i, :i] = np.where(known, d, 0.0).sum(axis=1) / known.sum(axis=1)
        if noise is None:
            half[i, :i] = half_widths(d, each)
        else:
            half[i, :i] = [noise(one, i, j).half(each) for j, one in enumerate(d)]
    mean -= mean.T
    half = np.where(np.isnan(half), math.inf, half)
    half += half.T
    others = ~np.eye(arms, dtype=bool)
    upper = np.where(others & np.isfinite(half), mean + half, math.inf)
    lower = np.where(np.isfinite(half), mean - half, -math.inf)
    beaten = upper < 0  # by the arm of the column
    for pair, better in decided.items():
        beaten[pair] = better
    candidate = ~beaten.any(axis=1) & np.isfinite(x).any(axis=0)
    rows = []
    for i in range(arms):
        known = np.flatnonzero(others[i] & np.isfinite(mean[i]))
        rival = int(known[np.argmin(mean[i, known])]) if len(known) else -1
        lo = float(lower[i, candidate].min(initial=0.0))
        hi = max(0.0, float(upper[i].min()))
        if not np.isfinite(x[:, i]).any():
            lo = hi = NAN
        here = x[np.isfinite(x[:, i]), i]
        rows.append(
            ArmAgainstBest(
                n=len(here),
                mean=float(here.mean()) if len(here) else NAN,
                rival=rival,
                difference=sign * float(mean[i, rival]) if rival >= 0 else NAN,
                lo=lo if goal == "max" else 0.0 - hi,
                hi=hi if goal == "max" else 0.0 - lo,
                candidate=bool(candidate[i]),
            )
        )
    named = [i for i in range(arms) if candidate[i]]
    named.sort(key=lambda i: (math.isnan(rows[i].mean), -sign * rows[i].mean))
    clear = bool(named) and bool(beaten[~candidate, named[0]].all())
    return BestArms(tuple(rows), tuple(named), confidence, clear)
