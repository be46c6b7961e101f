"""Distribution functions. `scipy.stats` has the same ones, but takes half a second to import.

`cdf` is the chance of values up to x, `sf` that of values above it; `ppf` and `isf` are their
inverses.
"""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import ArrayLike
from scipy import special


def norm_cdf(x: ArrayLike) -> Any:
    """Of the standard normal distribution."""
    return special.ndtr(x)


def norm_sf(x: Any) -> Any:
    """Of the standard normal distribution."""
    return special.ndtr(-x)


def norm_isf(p: ArrayLike) -> Any:
    """Of the standard normal distribution."""
    return -special.ndtri(p)


def norm_pdf(x: float) -> float:
    """Return the density of the standard normal distribution."""
    return math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


def t_cdf(x: ArrayLike, df: ArrayLike) -> Any:
    """Of Student's t."""
    return special.stdtr(df, x)


def t_sf(x: Any, df: ArrayLike) -> Any:
    """Of Student's t."""
    return special.stdtr(df, -x)


def t_isf(p: ArrayLike, df: ArrayLike) -> Any:
    """Of Student's t."""
    return -special.stdtrit(df, p)


def chi2_cdf(x: ArrayLike, df: ArrayLike) -> Any:
    """Of χ²."""
    return special.chdtr(df, x)


def chi2_ppf(p: ArrayLike, df: Any) -> Any:
    """Of χ²."""
    return 2 * special.gammaincinv(df / 2, p)


def chi2_isf(p: ArrayLike, df: ArrayLike) -> Any:
    """Of χ²."""
    return special.chdtri(df, p)


def f_sf(x: ArrayLike, df: ArrayLike, df_rest: ArrayLike) -> Any:
    """Of Fisher's F."""
    return special.fdtrc(df, df_rest, x)


def f_ppf(p: ArrayLike, df: ArrayLike, df_rest: ArrayLike) -> Any:
    """Of Fisher's F."""
    return special.fdtri(df, df_rest, p)


def binomial_p(k: int, n: int) -> float:
    """Return the two-sided p of k heads in n throws of a fair coin."""
    return min(1.0, 2 * float(special.bdtr(min(k, n - k), n, 0.5)))


def correlation_p(r: float, n: int) -> float:
    """Return the two-sided p of a correlation of n > 2 pairs of uncorrelated normal numbers."""
    half = n / 2 - 1
    return 2 * float(special.betaincc(half, half, (1 + min(abs(r), 1.0)) / 2))
