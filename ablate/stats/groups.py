"""Do an arm's seeds fall into two separated groups, and what goes together with the groups?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ablate.stats.distributions import t_isf, t_sf
from ablate.stats.planning import ALPHA
from ablate.stats.ranks import chosen_p, doubled_ranks
from ablate.stats.values import Floats, Values
from ablate.units import SAME

NAN = float("nan")
DRAWS = 20_000  # of each kind of noise without groups


@dataclass(frozen=True)
class SeedGroups:
    """The most separated split of an arm's seeds into two groups."""

    members: tuple[tuple[int, ...], ...]  # positions in the values, the lower group first
    means: tuple[float, ...]
    gap: float  # between the groups' nearest values
    within: float  # pooled sd within the groups, n − 2 degrees of freedom
    p: float  # of no groups; NaN below three values

    @property
    def separated(self) -> bool:
        """Whether p is at most 0.05."""
        return self.p <= ALPHA


def seed_groups(values: Values) -> SeedGroups:
    """Test whether the values of an arm fall into two groups.

    Every split of the sorted values is a candidate; its ratio is the gap over the pooled sd within
    the groups. Ratios are judged among splits with as many values in the smaller group, because
    heavy tails often leave one value apart and rarely three. The smallest of these p-values is
    calibrated by simulation: normal, t3 and exponential noise are each called separated in at most
    5% of samples. From a generator of fixed seed, so equal values give an equal p.

    Args:
        values: [n], one a seed; values that are not finite take no part. Below three values, and
            where the values within every split are equal, p is NaN.

    Returns:
        The split with the smallest p, whether it is significant or not.
    """
    x = np.asarray(values, float)
    there = np.flatnonzero(np.isfinite(x))
    order = there[np.argsort(x[there], kind="stable")]
    n = len(order)
    ratios = split_ratios(x[order][None])[0] if n >= 3 else np.array([-np.inf])
    if not (ratios > -np.inf).any():
        whole = (float(x[there].mean()),) if n else ()
        return SeedGroups((tuple(map(int, there)),) if n else (), whole, NAN, NAN, NAN)
    null = null_ratios(n)
    p_split = np.array(
        [null.tail(min(at, n - at), ratio) for at, ratio in enumerate(ratios, start=1)]
    )
    # among equal p the widest gap
    best = min(range(n - 1), key=lambda at: (p_split[at], -ratios[at]))
    low, high = order[: best + 1], order[best + 1 :]
    gap = float(x[high[0]] - x[low[-1]])
    return SeedGroups(
        members=(tuple(sorted(map(int, low))), tuple(sorted(map(int, high)))),
        means=(float(x[low].mean()), float(x[high].mean())),
        gap=gap,
        within=gap / float(ratios[best]),
        p=null.p(float(p_split[best])),
    )


def split_ratios(x: Floats) -> Floats:
    """Return the gap over the pooled sd within groups, of all splits.

    Args:
        x: [R, n], each row sorted.

    Returns:
        [R, n − 1], of the splits into 1, 2, … lowest values and the rest; −inf where there is no
        gap, or the values within both groups are equal.
    """
    n = x.shape[1]
    below = np.arange(1, n)
    size = np.abs(x).max(axis=1, keepdims=True)
    x = x - x.mean(axis=1, keepdims=True)
    total, squares = x.cumsum(axis=1), (x**2).cumsum(axis=1)
    low = squares[:, :-1] - total[:, :-1] ** 2 / below
    rest, rest_squares = total[:, -1:] - total[:, :-1], squares[:, -1:] - squares[:, :-1]
    high = rest_squares - rest**2 / (n - below)
    within = np.sqrt(np.maximum(low + high, 0) / (n - 2))
    known = within > 1e-7 * np.abs(x).max(axis=1, keepdims=True)
    gap = np.diff(x, axis=1)
    known &= (within > SAME * size) & (gap > 0)
    return np.where(known, gap / np.where(known, within, 1.0), -np.inf)


@dataclass(frozen=True)
class NullRatios:
    """Simulated ratios of noise without groups, of n values."""

    ratios: Floats  # [3 kinds of noise, n // 2 sizes of the smaller group, DRAWS], sorted
    smallest: Floats  # [3, DRAWS], the smallest tail over the sizes, sorted

    def tail(self, smaller: int, ratio: float) -> float:
        """Return the chance of a ratio as large among splits of one size, the worst noise's."""
        return float(tails(self.ratios[:, smaller - 1], np.array([ratio])).max())

    def p(self, tail: float) -> float:
        """Return the chance of a tail as small among all sizes, the worst noise's."""
        below = [np.searchsorted(row, tail, side="right") for row in self.smallest]
        return float((max(below) + 1) / (DRAWS + 1))


def tails(null: Floats, ratios: Floats) -> Floats:
    """Return how often each kind of noise reaches each ratio, [3, R], from `null` [3, DRAWS]."""
    above = np.array([DRAWS - np.searchsorted(row, ratios, side="left") for row in null])
    return np.asarray((above + 1) / (DRAWS + 1), float)


@lru_cache(maxsize=64)
def null_ratios(n: int) -> NullRatios:
    """Simulate the ratios of n values of normal, t3 and exponential noise."""
    rng = np.random.Generator(np.random.Philox(n))
    shape = (DRAWS, n)
    kinds = (rng.normal(size=shape), rng.standard_t(3, shape), rng.exponential(size=shape))
    largest = []  # of each kind [n // 2, DRAWS]
    for noise in kinds:
        ratios = split_ratios(np.sort(noise, axis=1))
        both = np.maximum(ratios, ratios[:, ::-1])  # split k of n has size min(k, n − k)
        largest.append(both[:, : n // 2].T)
    null = np.sort(np.array(largest), axis=2)
    smallest = [
        np.min([tails(null[:, at], row).max(axis=0) for at, row in enumerate(kind)], axis=0)
        for kind in largest
    ]
    return NullRatios(null, np.sort(np.array(smallest), axis=1))


@dataclass(frozen=True)
class Association:
    """Whether another measure of the seeds goes together with their groups."""

    n: int  # seeds in a group and with a finite measure
    means: tuple[float, float]  # of the measure, in the lower group and the higher
    above: float  # chance that a seed of the higher group has the larger measure; ties half
    p: float  # two-sided, exact rank-sum test


def group_association(groups: SeedGroups, measure: Values) -> Association:
    """Test whether a measure, such as copy loss, differs between two groups of seeds.

    Wilcoxon's rank-sum test, exact over all assignments of the ranks, ties at their mean rank.

    Args:
        groups: of an arm's losses.
        measure: [n], at the same positions; a value that is not finite takes no part.

    Returns:
        The means of both groups, the chance that a seed of the higher group has the larger measure,
        and the two-sided p.
    """
    x = np.asarray(measure, float)
    parts = [x[list(one)] for one in groups.members]
    low, high = ([part[np.isfinite(part)] for part in parts] + [np.empty(0)] * 2)[:2]
    if not (len(low) and len(high)):
        return Association(0, (NAN, NAN), NAN, NAN)
    ranks = doubled_ranks(np.concatenate([low, high]))
    observed = sum(ranks[len(low) :])
    larger = (observed / 2 - len(high) * (len(high) + 1) / 2) / (len(low) * len(high))
    p = chosen_p(ranks, len(high), observed)
    return Association(len(ranks), (float(low.mean()), float(high.mean())), larger, p)


@dataclass(frozen=True)
class Difference:
    """The mean difference between marked and other values of the same group."""

    mean: float
    lo: float  # of the 95% interval
    hi: float
    p: float  # two-sided t test; NaN without a degree of freedom


def within_groups(values: Values, marked: Values, groups: Sequence[str]) -> Difference:
    """Compare marked values with the others of their group: least squares, groups as fixed effects.

    Args:
        values: [n], finite.
        marked: [n], 1 or 0; both occur in every group.
        groups: [n], the group of each value.

    Returns:
        The difference in the unit of the values, its 95% interval and the two-sided p.
    """
    _, at, sizes = np.unique(list(groups), return_inverse=True, return_counts=True)
    y, x = (
        column - (np.bincount(at, column) / sizes)[at]
        for column in (np.asarray(values, float), np.asarray(marked, float))
    )
    mean = float(x @ y / (x @ x))
    df = len(x) - len(set(groups)) - 1
    if df < 1:
        return Difference(mean, NAN, NAN, NAN)
    error = math.sqrt(float(((y - mean * x) ** 2).sum()) / df / float(x @ x))
    half = float(t_isf(ALPHA / 2, df)) * error
    p = 2 * float(t_sf(abs(mean) / error, df)) if error else NAN
    return Difference(mean, mean - half, mean + half, p)
