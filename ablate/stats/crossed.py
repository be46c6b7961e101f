"""Crossed sources of noise: the parts of a variance of initialisation and of data order."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats as st

from ablate.stats.values import Floats

NAN = float("nan")


def mean_squares(x: Floats) -> tuple[float, float, float]:
    """Return the mean squares of rows, columns and residual of a two-way table [R, C].

    On R − 1, C − 1 and (R − 1)(C − 1) degrees of freedom.
    """
    rows, columns = x.shape
    centred = x - x.mean()
    row, column = centred.mean(axis=1), centred.mean(axis=0)
    rest = centred - row[:, None] - column[None, :]
    return (
        columns * float(row @ row) / (rows - 1),
        rows * float(column @ column) / (columns - 1),
        float((rest**2).sum()) / ((rows - 1) * (columns - 1)),
    )


@dataclass(frozen=True)
class Component:
    """One part of a variance."""

    variance: float  # not below 0
    lo: float
    hi: float
    share: float  # of the sum of the parts


@dataclass(frozen=True)
class Components:
    """The variance over seeds of initialisation crossed with seeds of the data order."""

    inits: int  # seeds of initialisation that count
    orders: int  # seeds of the data order that count
    lost: int  # runs that are not finite
    init: Component
    order: Component
    residual: Component  # what the combination adds, and noise of the hardware
    confidence: float  # of each interval


def components(values: npt.ArrayLike, *, confidence: float = 0.95) -> Components:
    """Split the variance of runs over seeds of initialisation and of the data order.

    A two-way random-effects analysis of variance with one run a combination. The residual's
    interval is chi-squared; those of the other two are the modified large-sample intervals of Ting,
    Burdick, Graybill, Jeyaratnam & Lu (1990) for a difference of mean squares.

    Args:
        values: [init, data], one run each. A value that is not finite is a lost run: the seeds of
            initialisation or data order with the most lost runs are left out until none is. With
            fewer than two of either, everything is NaN.
        confidence: of each interval.
    """
    x = np.asarray(values, float)
    lost = int((~np.isfinite(x)).sum())
    while not np.isfinite(x).all():
        missing = ~np.isfinite(x)
        rows, columns = missing.mean(axis=1), missing.mean(axis=0)
        axis = int(columns.max() > rows.max())
        x = np.delete(x, int((rows, columns)[axis].argmax()), axis=axis)
    inits, orders = x.shape
    if min(inits, orders) < 2:
        nothing = Component(NAN, NAN, NAN, NAN)
        return Components(inits, orders, lost, nothing, nothing, nothing, confidence)
    row, column, rest = mean_squares(x)
    n_row, n_column = inits - 1, orders - 1
    n_rest = n_row * n_column
    tail = (1 - confidence) / 2
    found = {
        "init": (max(row - rest, 0) / orders, *beyond(row, n_row, rest, n_rest, orders, tail)),
        "order": (
            max(column - rest, 0) / inits,
            *beyond(column, n_column, rest, n_rest, inits, tail),
        ),
        "residual": (
            rest,
            n_rest * rest / float(st.chi2.isf(tail, n_rest)),
            n_rest * rest / float(st.chi2.ppf(tail, n_rest)),
        ),
    }
    total = sum(one[0] for one in found.values())
    parts = {
        name: Component(*one, share=one[0] / total if total > 0 else NAN)
        for name, one in found.items()
    }
    return Components(inits, orders, lost, **parts, confidence=confidence)


def beyond(
    square: float, df: int, rest: float, df_rest: int, size: int, tail: float
) -> tuple[float, float]:
    """Return the interval of (E[square] − E[rest]) / size, not below 0 (Ting et al. 1990).

    Args:
        square: a mean square.
        df: of it.
        rest: the residual mean square.
        df_rest: of it.
        size: runs behind each mean of `square`.
        tail: the chance to miss on each side.
    """
    centre = square - rest
    # low end: `square` may be too large, `rest` too small
    f = float(st.f.isf(tail, df, df_rest))
    g1 = 1 - df / float(st.chi2.isf(tail, df))
    h2 = df_rest / float(st.chi2.ppf(tail, df_rest)) - 1
    g12 = ((f - 1) ** 2 - g1**2 * f**2 - h2**2) / f
    low = g1**2 * square**2 + h2**2 * rest**2 + g12 * square * rest
    # high end: the reverse
    f = float(st.f.ppf(tail, df, df_rest))
    h1 = df / float(st.chi2.ppf(tail, df)) - 1
    g2 = 1 - df_rest / float(st.chi2.isf(tail, df_rest))
    h12 = ((1 - f) ** 2 - h1**2 * f**2 - g2**2) / f
    high = h1**2 * square**2 + g2**2 * rest**2 + h12 * square * rest
    return (
        max(0.0, centre - math.sqrt(max(low, 0.0))) / size,
        max(0.0, centre + math.sqrt(max(high, 0.0))) / size,
    )
