"""Shared parts: a column of differences, its spread, and the t interval of its mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ablate.stats.distributions import t_isf, t_sf
from ablate.units import SAME

Floats = npt.NDArray[np.float64]
Values = Sequence[float] | npt.NDArray[np.float64]


def finite(values: Values) -> tuple[Floats, int]:
    """Return the finite values, and how many were not."""
    array = np.asarray(values, float)
    assert array.ndim == 1, array.shape
    keep = np.isfinite(array)
    return array[keep], int((~keep).sum())


def spread(d: Floats) -> float:
    """Return the standard deviation on n − 1 degrees of freedom.

    Exactly 0 where values differ by rounding only; NaN below two values.
    """
    if len(d) < 2:
        return math.nan
    sd = float(d.std(ddof=1))
    return 0.0 if sd <= SAME * largest(d) else sd


def largest(*columns: npt.ArrayLike) -> float:
    """Return the largest absolute value of finite numbers; 0 without any."""
    each = (np.abs(np.asarray(column, float)) for column in columns)
    return float(max(one.max(where=np.isfinite(one), initial=0.0) for one in each))


def differences(values: npt.ArrayLike, baseline: npt.ArrayLike) -> Floats:
    """Return the differences [n] of pairs, without what is rounding error of their values.

    If they differ from each other by no more than that, they are equal; and if they differ from 0
    by no more, they are 0.

    Args:
        values: [n], one a seed.
        baseline: [n], of the same seeds.
    """
    one, other = np.asarray(values, float), np.asarray(baseline, float)
    with np.errstate(invalid="ignore"):  # inf − inf
        d: Floats = one - other
    known = np.isfinite(d)
    rounding = SAME * largest(one[known], other[known])
    if known.any() and (known.sum() < 2 or d[known].std(ddof=1) <= rounding):
        mean = float(d[known].mean())
        d[known] = 0.0 if abs(mean) <= rounding else mean
    return d


def satterthwaite(squares: Sequence[float], dfs: Sequence[float]) -> float:
    """Return the degrees of freedom of a sum of squared errors (Satterthwaite 1946)."""
    below = math.fsum(square**2 / df for square, df in zip(squares, dfs, strict=True))
    return math.fsum(squares) ** 2 / below if below > 0 else math.inf


@dataclass(frozen=True)
class Noise:
    """The noise of a mean: standard errors with their degrees of freedom; the widest counts."""

    errors: tuple[tuple[float, float], ...]  # a NaN for noise that is not known

    def half(self, confidence: float) -> float:
        """Return half the width of the mean's t interval."""
        return max(quantile(df, confidence) * error for error, df in self.errors)

    def tail(self, distance: float) -> float:
        """Return the chance that a mean is so far on one side of its expectation."""
        sure = math.copysign(math.inf, distance) if distance else 0.0  # without any noise
        return max(
            float(t_sf(distance / error if error else sure, df)) for error, df in self.errors
        )

    @property
    def df(self) -> float:
        """The fewest degrees of freedom."""
        return min(df for _, df in self.errors)


def quantile(df: float, confidence: float) -> float:
    """Return the two-sided quantile of Student's t."""
    return float(t_isf((1 - confidence) / 2, df))
