"""Many contrasts at once: a family is the levels of one factor in one stratum on one metric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ablate.stats.distributions import t_sf
from ablate.stats.pairs import Effect, after_pilot, pair_correlation, paired
from ablate.stats.values import Floats, Values

DRAWS = 20_000  # of a family without effects, for the max-t interval


def family(
    differences: npt.ArrayLike,
    *,
    confidence: float = 0.95,
    method: str = "bonferroni",
    rng: np.random.Generator | None = None,
    pilot: npt.ArrayLike | None = None,
    resolution: float | None = None,
    crossed: npt.ArrayLike | None = None,
) -> list[Effect]:
    """Return the effects of a family of contrasts.

    Args:
        differences: [S, M], a row a seed, a column a contrast with the shared baseline; NaN is a
            lost pair.
        confidence: of each interval, and of the family's intervals together.
        method: "bonferroni", or "max-t", which is narrower where contrasts are correlated, as a
            shared baseline makes them, and needs `rng`.
        rng: for "max-t".
        pilot: [S], whether a row belongs to the pilot that decided on S; intervals and tests are
            then those of `after_pilot`.
        resolution: the half width that the pilot decided for.
        crossed: [S, 2], as in `paired`; without a pilot.

    Returns:
        M effects as `paired` gives them, with Holm's p and the family's intervals.
    """
    columns = np.asarray(differences, float).T
    first = np.zeros(columns.shape[1], bool) if pilot is None else np.asarray(pilot, bool)
    effects = [
        after_pilot(
            paired(column, confidence=confidence, crossed=crossed),
            column,
            column[first],
            resolution,
        )
        for column in columns
    ]
    if method == "bonferroni":
        return together(effects, confidence=confidence)
    assert method == "max-t" and rng is not None, method
    each = max_t(columns.T, rng, confidence=confidence)
    halves = [effect.noise.half(each) for effect in effects]
    return [
        replace(effect, family_lo=effect.mean - half, family_hi=effect.mean + half)
        for effect, half in zip(together(effects), halves, strict=True)
    ]


def together(effects: Sequence[Effect], *, confidence: float = 0.95) -> list[Effect]:
    """Return effects with Holm's p, and Bonferroni intervals, over all of them.

    Args:
        effects: each with its own noise, such as those of several families.
        confidence: of all intervals together.
    """
    adjusted = holm([effect.p for effect in effects])
    each = 1 - (1 - confidence) / max(len(effects), 1)
    halves = [effect.noise.half(each) for effect in effects]
    return [
        replace(effect, p_holm=float(p), family_lo=effect.mean - half, family_hi=effect.mean + half)
        for effect, half, p in zip(effects, halves, adjusted, strict=True)
    ]


def holm(p: Values) -> Floats:
    """Return Holm's step-down p-values [M], in the order given (Holm 1979).

    A NaN (a contrast that could not be tested) stays NaN and counts in the size of the family.

    Args:
        p: [M], of the contrasts of a family.

    >>> holm([0.01, 0.04, 0.03]).round(3).tolist()
    [0.03, 0.06, 0.06]
    """
    raw: Floats = np.asarray(p, float)
    order = np.argsort(raw)  # NaN last
    stepped = raw[order] * np.arange(len(raw), 0, -1)
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(np.maximum.accumulate(stepped), 1.0)
    return adjusted


def max_t(
    differences: npt.ArrayLike, rng: np.random.Generator, *, confidence: float = 0.95
) -> float:
    """Return the confidence of each t interval with which a family's intervals hold together.

    The smallest p of a family without effects is simulated with normal noise of the contrasts'
    correlation: its (1 − confidence) quantile is what each test may use. The correlation is one
    number for all pairs of contrasts, their mean: from few seeds a whole matrix is mostly noise.
    Never wider than Bonferroni, never narrower than a single interval.

    Args:
        differences: [S, M], NaN a lost pair.
        rng: for the simulation.
        confidence: of all intervals together.
    """
    d = np.asarray(differences, float)
    alpha, size = 1 - confidence, d.shape[1]
    d = d[:, np.isfinite(d).sum(axis=0) >= 2]
    if d.shape[1] < 2:
        return 1 - alpha / max(size, 1)
    smallest = smallest_p(mean_correlation(d), np.isfinite(d), rng)
    # contrasts that cannot be tested still count
    each = float(np.quantile(smallest, alpha)) * d.shape[1] / size
    return 1 - min(max(each, alpha / size), alpha)


def smallest_p(r: float, complete: npt.NDArray[np.bool_], rng: np.random.Generator) -> Floats:
    """Return draws of the smallest p of a family without effects.

    Args:
        r: the correlation of the normal noise of any two contrasts.
        complete: [S, M], which pairs are complete.
        rng: for the draws.
    """
    seeds, n = len(complete), complete.sum(axis=0)
    out = []
    block = max(1, 1_000_000 // complete.size)
    for low in range(0, DRAWS, block):
        rows = min(block, DRAWS - low)
        noise = np.sqrt(1 - r) * rng.normal(size=(rows, *complete.shape)) + np.sqrt(r) * rng.normal(
            size=(rows, seeds, 1)
        )
        mean = (noise * complete).sum(axis=1) / n
        variance = (((noise - mean[:, None]) * complete) ** 2).sum(axis=1) / (n - 1)
        out.append((2 * t_sf(np.abs(mean) / np.sqrt(variance / n), n - 1)).min(axis=1))
    return np.concatenate(out)


def mean_correlation(d: Floats) -> float:
    """Return the mean correlation of the columns of d [S, M], clipped to [0, 1].

    0 where no two columns share three rows.
    """
    correlations = [pair_correlation(d[:, i], d[:, j]) for i in range(d.shape[1]) for j in range(i)]
    known = [r for r in correlations if np.isfinite(r)]
    return float(np.clip(np.mean(known), 0.0, 1.0)) if known else 0.0
