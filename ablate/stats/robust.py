"""Effects and spreads that a few bad seeds do not decide, and bad seeds that were not drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ablate.stats.ranks import signed_below
from ablate.stats.values import Values, finite, spread
from ablate.units import SAME

NAN = float("nan")
MAD_SD = 1.4826022185056018  # sd of normal noise over its median absolute deviation
# number of seeds → the score that the most outlying seed exceeds in 5% of normal samples; computed
# by benchmarks/seeds.py. From the last number on the last score holds: at most 5% up to 1,000.
# fmt: off
OUTLYING = {
    4: 62.1, 5: 13.8, 6: 13.0, 7: 8.24, 8: 8.08, 9: 6.49, 10: 6.43, 11: 5.63, 12: 5.66,
    13: 5.17, 14: 5.17, 15: 4.88, 16: 4.89, 17: 4.65, 18: 4.67, 19: 4.53, 20: 4.51, 21: 4.38,
    22: 4.41, 23: 4.31, 24: 4.31,
}
# fmt: on


@dataclass(frozen=True)
class HodgesLehmann:
    """The centre of symmetric differences, with an interval that assumes symmetry only."""

    n: int  # pairs that count
    lost: int  # pairs with a difference that is not finite
    estimate: float  # median of the Walsh averages (d_i + d_j) / 2, i ≤ j
    lo: float
    hi: float
    confidence: float  # achieved by [lo, hi], at least the one asked for


def hodges_lehmann(differences: Values, *, confidence: float = 0.95) -> HodgesLehmann:
    """Return the Hodges–Lehmann estimate with its exact interval (Hodges & Lehmann 1963).

    The interval's ends are Walsh averages, picked by the null distribution of Wilcoxon's
    signed-rank sum (Tukey 1949). Its confidence is one of few possible values, the lowest that
    suffices; above `ranks.EXACT` pairs the sum is taken as normal. Below six pairs none suffices
    for 95%: lo, hi and confidence are NaN, as they are where differences are equal but not zero.

    Args:
        differences: [n], one a seed; a value that is not finite is a lost pair.
        confidence: at least that of the interval.

    >>> one = hodges_lehmann([0.1, 0.2, 0.3, 0.4, 0.5, 9.0])
    >>> round(one.estimate, 2), one.lo, one.hi, round(one.confidence, 3)
    (0.35, 0.1, 9.0, 0.969)
    """
    d, lost = finite(differences)
    n = len(d)
    if n == 0:
        return HodgesLehmann(0, lost, NAN, NAN, NAN, NAN)
    first, second = np.triu_indices(n)
    walsh = np.sort((d[first] + d[second]) / 2)
    estimate = float(np.median(walsh))
    below = signed_below(n)  # P(signed-rank sum ≤ 0, 1, …)
    cut = int(np.searchsorted(below, (1 - confidence) / 2 * (1 + 1e-12), side="right"))
    if cut == 0 or (spread(d) == 0 and d.any()):
        return HodgesLehmann(n, lost, estimate, NAN, NAN, NAN)
    return HodgesLehmann(
        n=n,
        lost=lost,
        estimate=estimate,
        lo=float(walsh[cut - 1]),
        hi=float(walsh[-cut]),
        confidence=float(1 - 2 * below[cut - 1]),
    )


@dataclass(frozen=True)
class Outlying:
    """The seeds that carry the spread of an arm or a contrast."""

    seeds: tuple[int, ...]  # positions in the values, the farthest first
    scores: tuple[float, ...]  # one a value: |value − median| of the others in their MAD-sd
    threshold: float  # a score above it is outlying; NaN below four values


def outlying(values: Values) -> Outlying:
    """Name the values that lie far from all others.

    The score of a value is its distance from the median of the others, over 1.4826 times the median
    absolute deviation of the others. The threshold depends on n such that at most 5% of samples of
    normal noise have any outlying value. Values that are not finite take no part and have the score
    NaN, as has a value whose others do not vary.

    Args:
        values: [n], one a seed: the losses of an arm or the differences of a contrast.

    Returns:
        The positions of the outlying values, the score of each value and the threshold.
    """
    x = np.asarray(values, float)
    there = np.flatnonzero(np.isfinite(x))
    n = len(there)
    scores = np.full(len(x), NAN)
    if n < min(OUTLYING):
        return Outlying((), tuple(scores.tolist()), NAN)
    others = np.broadcast_to(x[there], (n, n))[~np.eye(n, dtype=bool)].reshape(n, n - 1)
    middle = np.median(others, axis=1)
    mad = MAD_SD * np.median(np.abs(others - middle[:, None]), axis=1)
    vary = mad > SAME * np.abs(others).max(axis=1)
    scores[there[vary]] = np.abs(x[there] - middle)[vary] / mad[vary]
    threshold = OUTLYING[min(n, max(OUTLYING))]
    far = [int(at) for at in np.argsort(-scores) if scores[at] > threshold]
    return Outlying(tuple(far), tuple(scores.tolist()), threshold)


def unseen(n: int, *, confidence: float = 0.95) -> float:
    """Return the upper bound of the rate of bad seeds after none of n was bad.

    The exact "rule of three": the rate at which n good seeds have the chance 1 − confidence.

    Args:
        n: Seeds, none of which was bad.
        confidence: of the bound.

    Returns:
        A share from 0 to 1.

    >>> round(unseen(8), 2), unseen(0)
    (0.31, 1.0)
    """
    assert n >= 0, n
    return 1 - math.pow(1 - confidence, 1 / n) if n else 1.0
