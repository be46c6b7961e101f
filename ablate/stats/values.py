"""Shared parts: a column of differences, its spread, and the t interval of its mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
    """Return the standard deviation of finite values as `spreads` does; NaN below two."""
    return float(spreads(d))


def spreads(d: Floats) -> Floats:
    """Return the standard deviation of each row on n − 1 degrees of freedom, [...].

    Exactly 0 where values differ by rounding only; NaN below two values.

    Args:
        d: [..., n]; values that are not finite are lost.
    """
    known = np.isfinite(d)
    _, _, sd = _moments(d, known)
    return np.where(sd <= SAME * largest(d, known), 0.0, sd)


def _moments(d: Floats, known: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[Any], Floats, Floats]:
    """Return number, mean and standard deviation of the known values of each row."""
    n = known.sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(known, d, 0.0).sum(axis=-1) / n
        squares = np.where(known, d - mean[..., None], 0.0) ** 2
        return n, mean, np.where(n < 2, math.nan, np.sqrt(squares.sum(axis=-1) / (n - 1)))


def largest(column: Floats, known: npt.ArrayLike = True) -> Floats:
    """Return the largest absolute value of the known values of each row; 0 without any."""
    return np.asarray(np.where(known, np.abs(column), 0.0).max(axis=-1, initial=0.0))


def differences(values: npt.ArrayLike, baseline: npt.ArrayLike) -> Floats:
    """Return the differences [..., n] of pairs, without what is rounding error of their values.

    If those of a row differ from each other by no more than that, they are equal; and if they
    differ from 0 by no more, they are 0.

    Args:
        values: [..., n], one a seed.
        baseline: [..., n], of the same seeds.
    """
    one, other = np.asarray(values, float), np.asarray(baseline, float)
    with np.errstate(invalid="ignore"):  # inf − inf
        d: Floats = one - other
    known = np.isfinite(d)
    rounding = SAME * np.maximum(largest(one, known), largest(other, known))
    n, mean, sd = _moments(d, known)
    equal = (n == 1) | (sd <= rounding)
    mean = np.where(np.abs(mean) <= rounding, 0.0, mean)
    return np.where(known & equal[..., None], mean[..., None], d)


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
