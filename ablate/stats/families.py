"""Many contrasts at once: a family is the levels of one factor in one stratum on one metric."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy import stats as st

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
) -> list[Effect]:
    """The effects of a family: differences [S, M], a row a seed, a column a contrast with the
    shared baseline; NaN a lost pair.

    Every effect is that of `paired`, with Holm's p and an interval that holds for all M contrasts
    together with this confidence: Bonferroni's, or "max-t" (needs `rng`), which is narrower where
    contrasts are correlated, as a shared baseline makes them. pilot: whether a row [S] belongs to
    the pilot that decided on S, for this resolution; intervals and tests are then those of
    `after_pilot`.
    """
    columns = np.asarray(differences, float).T
    first = np.zeros(columns.shape[1], bool) if pilot is None else np.asarray(pilot, bool)
    effects = [
        after_pilot(paired(column, confidence=confidence), column, column[first], resolution)
        for column in columns
    ]
    adjusted = holm([effect.p for effect in effects])
    if method == "bonferroni":
        each = 1 - (1 - confidence) / max(len(effects), 1)
    else:
        assert method == "max-t" and rng is not None, method
        each = max_t(columns.T, rng, confidence=confidence)
    halves = [effect.noise.half(each) for effect in effects]
    return [
        replace(effect, p_holm=float(p), family_lo=effect.mean - half, family_hi=effect.mean + half)
        for effect, half, p in zip(effects, halves, adjusted, strict=True)
    ]


def holm(p: Values) -> Floats:
    """Holm's step-down p-values [M], in the order given (Holm 1979).

    A NaN (a contrast that could not be tested) stays NaN and still counts in the size of the
    family.

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
    """The confidence each t interval of a family needs so that all of them hold together:
    differences [S, M], NaN a lost pair.

    The smallest p of a family without effects, simulated with normal noise of the contrasts'
    correlation: its (1 − confidence) quantile is what each test may use. The correlation is one
    number for all pairs of contrasts, their mean: from few seeds a whole matrix of them is mostly
    noise. Never wider than Bonferroni, never narrower than a single interval.
    """
    d = np.asarray(differences, float)
    alpha, size = 1 - confidence, d.shape[1]
    d = d[:, np.isfinite(d).sum(axis=0) >= 2]
    if d.shape[1] < 2:
        return 1 - alpha / max(size, 1)
    smallest = smallest_p(mean_correlation(d), np.isfinite(d), rng)
    each = (
        float(np.quantile(smallest, alpha)) * d.shape[1] / size
    )  # contrasts that cannot be tested still count
    return 1 - min(max(each, alpha / size), alpha)


def smallest_p(r: float, there: npt.NDArray[np.bool_], rng: np.random.Generator) -> Floats:
    """Draws of the smallest p of a family without effects: normal noise of correlation r, pairs
    where `there` [S, M].
    """
    seeds, n = len(there), there.sum(axis=0)
    out = []
    block = max(1, 1_000_000 // there.size)
    for low in range(0, DRAWS, block):
        rows = min(block, DRAWS - low)
        noise = np.sqrt(1 - r) * rng.normal(size=(rows, *there.shape)) + np.sqrt(r) * rng.normal(
            size=(rows, seeds, 1)
        )
        mean = (noise * there).sum(axis=1) / n
        variance = (((noise - mean[:, None]) * there) ** 2).sum(axis=1) / (n - 1)
        out.append((2 * st.t.sf(np.abs(mean) / np.sqrt(variance / n), n - 1)).min(axis=1))
    return np.concatenate(out)


def mean_correlation(d: Floats) -> float:
    """The mean correlation of the columns of d [S, M], between 0 and 1; 0 below three shared
    rows.
    """
    found = [pair_correlation(d[:, i], d[:, j]) for i in range(d.shape[1]) for j in range(i)]
    known = [r for r in found if np.isfinite(r)]
    return float(np.clip(np.mean(known), 0.0, 1.0)) if known else 0.0
