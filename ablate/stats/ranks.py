"""Null distributions of rank sums, ties included: exact for up to `EXACT` ranks, else normal."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ablate.stats.distributions import norm_cdf, norm_sf
from ablate.stats.values import Floats

EXACT = 150  # ranks up to which sums are counted; the time grows as the third power


def doubled_ranks(values: Floats) -> list[int]:
    """Return twice the rank of each value, ties at their mean rank: whole numbers."""
    ordered = np.sort(values)
    below, up_to = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return [int(rank) for rank in below + up_to + 1]


def signed_p(weights: Sequence[int], observed: int) -> float:
    """Return the two-sided p of the sum of a random subset, every subset equally likely.

    Args:
        weights: [n], whole and not negative.
        observed: the sum.
    """
    if len(weights) <= EXACT:
        return two_sided(signed_sums(weights), observed)
    of = np.asarray(weights, float)
    return _normal_p(observed - of.sum() / 2, float(of @ of) / 4)


def signed_below(n: int) -> Floats:
    """Return the chances that Wilcoxon's signed-rank sum of n pairs is at most 0, 1, …, half of the
    largest one.
    """
    whole = n * (n + 1) // 2
    if n <= EXACT:
        return np.cumsum(signed_sums(range(1, n + 1)))[: whole // 2 + 1]
    sd = np.sqrt(whole * (2 * n + 1) / 12)
    return norm_cdf((np.arange(whole // 2 + 1) + 0.5 - whole / 2) / sd)


def chosen_p(weights: Sequence[int], size: int, observed: int) -> float:
    """Return the two-sided p of the sum of `size` weights, drawn without replacement.

    Args:
        weights: [n], whole and not negative.
        size: at most n.
        observed: the sum.
    """
    n = len(weights)
    if n <= EXACT:
        return two_sided(chosen_sums(weights, size), observed)
    of = np.asarray(weights, float)
    variance = size * (1 - size / n) * float(of.var(ddof=1))
    return _normal_p(observed - size * of.mean(), variance)


def _normal_p(distance: float, variance: float) -> float:
    return float(2 * norm_sf(abs(distance) / np.sqrt(variance))) if variance else 1.0


def signed_sums(weights: Sequence[int]) -> Floats:
    """Return the chance of each sum of a random subset, every subset equally likely.

    Args:
        weights: [n], whole and not negative.

    Returns:
        [Σ weights + 1], the chance of the sums 0, 1, …; the null distribution of Wilcoxon's
        signed-rank sum where the weights are ranks.
    """
    chance: Floats = np.ones(1)
    for weight in weights:
        more = np.zeros(len(chance) + weight)
        more[: len(chance)] += chance / 2
        more[weight:] += chance / 2
        chance = more
    return chance


def chosen_sums(weights: Sequence[int], size: int) -> Floats:
    """Return the chance of each sum of `size` weights, drawn without replacement.

    Args:
        weights: [n], whole and not negative.
        size: at most n.

    Returns:
        [Σ weights + 1], the chance of the sums 0, 1, …; the null distribution of the rank sum of
        one of two groups where the weights are ranks.
    """
    ways = np.zeros((size + 1, sum(weights) + 1))
    ways[0, 0] = 1
    for weight in weights:
        ways[1:, weight:] += ways[:-1, : ways.shape[1] - weight].copy()
    return ways[size] / ways[size].sum()


def two_sided(chance: Floats, observed: int) -> float:
    """Return the chance of a sum at least as far from its expectation as the observed one.

    Args:
        chance: as `signed_sums` and `chosen_sums` give it.
        observed: the sum.
    """
    sums = np.arange(len(chance))
    middle = float(sums @ chance)
    far = np.abs(sums - middle) >= abs(observed - middle) - 1e-6
    return min(1.0, float(chance[far].sum()))
