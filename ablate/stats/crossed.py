"""Crossed sources of noise: the parts of a variance of initialisation and of data order.

A pair of seeds is one run, or the difference of two. Runs that share either seed are alike, so N ×
M pairs of seeds say less of a mean than as many independent ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ablate.stats.distributions import chi2_isf, chi2_ppf, f_ppf
from ablate.stats.values import Floats, Noise, Values, spread

NAN = float("nan")
DRAWS = 20_000  # of generalised pivotal quantities, for the intervals of shares


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
    share_lo: float
    share_hi: float


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
    Burdick, Graybill, Jeyaratnam & Lu (1990) for a difference of mean squares. Those of the shares
    are generalised intervals (Weerahandi 1993): each mean square's expectation is drawn from its
    fiducial distribution, by a generator of fixed seed, so equal values give equal intervals.

    Args:
        values: [init, data], one run each. A value that is not finite is a lost run: the seeds of
            initialisation or data order with the most lost runs are left out until none is. With
            fewer than two of either, everything is NaN.
        confidence: of each interval.

    Returns:
        The variance, in the squared unit of the values, and the share of each component, with
        intervals.
    """
    x = np.asarray(values, float)
    lost = int((~np.isfinite(x)).sum())
    x = whole(x)
    inits, orders = x.shape
    if min(inits, orders) < 2:
        nothing = Component(*(NAN,) * 6)
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
            n_rest * rest / float(chi2_isf(tail, n_rest)),
            n_rest * rest / float(chi2_ppf(tail, n_rest)),
        ),
    }
    total = sum(one[0] for one in found.values())
    ends = share_intervals((row, column, rest), (inits, orders), tail)
    parts = {
        name: Component(*one, one[0] / total if total > 0 else NAN, *its)
        for (name, one), its in zip(found.items(), ends, strict=True)
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
    f = float(f_ppf(1 - tail, df, df_rest))
    g1 = 1 - df / float(chi2_isf(tail, df))
    h2 = df_rest / float(chi2_ppf(tail, df_rest)) - 1
    g12 = ((f - 1) ** 2 - g1**2 * f**2 - h2**2) / f
    low = g1**2 * square**2 + h2**2 * rest**2 + g12 * square * rest
    # high end: the reverse
    f = float(f_ppf(tail, df, df_rest))
    h1 = df / float(chi2_ppf(tail, df)) - 1
    g2 = 1 - df_rest / float(chi2_isf(tail, df_rest))
    h12 = ((1 - f) ** 2 - h1**2 * f**2 - g2**2) / f
    high = h1**2 * square**2 + g2**2 * rest**2 + h12 * square * rest
    return (
        max(0.0, centre - math.sqrt(max(low, 0.0))) / size,
        max(0.0, centre + math.sqrt(max(high, 0.0))) / size,
    )


def share_intervals(
    squares: tuple[float, float, float], shape: tuple[int, int], tail: float
) -> list[tuple[float, float]]:
    """Return the intervals of the shares of rows, columns and residual in the variance of a run.

    Args:
        squares: as `mean_squares` returns them.
        shape: rows and columns.
        tail: the chance to miss on each side.
    """
    if not squares[2] > 0:
        return [(NAN, NAN)] * 3
    rows, columns = shape
    df = (rows - 1, columns - 1, (rows - 1) * (columns - 1))
    rng = np.random.default_rng(0)
    row, column, rest = (
        square * n / rng.chisquare(n, DRAWS) for square, n in zip(squares, df, strict=True)
    )
    parts = np.stack(
        [np.maximum(row - rest, 0) / columns, np.maximum(column - rest, 0) / rows, rest]
    )
    low, high = np.quantile(parts / parts.sum(axis=0), (tail, 1 - tail), axis=1)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def whole(x: Floats) -> Floats:
    """Return a table without the rows and columns that have the most lost runs, until none has."""
    while not np.isfinite(x).all():
        missing = ~np.isfinite(x)
        rows, columns = missing.mean(axis=1), missing.mean(axis=0)
        axis = int(columns.max() > rows.max())
        x = np.delete(x, int((rows, columns)[axis].argmax()), axis=axis)
    return x


def table(values: Values, seeds: npt.ArrayLike) -> Floats:
    """Return values as [init, data], by ascending seeds; NaN where there is none.

    Args:
        values: [n], one a pair of seeds.
        seeds: [n, 2], seeds of initialisation and of data order; no pair twice.
    """
    pairs = np.asarray(seeds, int).reshape(-1, 2)
    assert len(np.unique(pairs, axis=0)) == len(pairs), pairs
    inits, row = np.unique(pairs[:, 0], return_inverse=True)
    orders, column = np.unique(pairs[:, 1], return_inverse=True)
    x = np.full((len(inits), len(orders)), NAN)
    x[row, column] = np.asarray(values, float)
    return x


def crossed_noise(values: Values, seeds: npt.ArrayLike) -> Noise:
    """Return the noise of the mean of values whose seeds are crossed, for new seeds of both kinds.

    Model: value = mean + init + data + residual, all random. The mean's variance is the sum of the
    parts' variances, each times the sum of its squared weights in the mean: over the numbers of
    seeds and of runs where no run is lost. A negative estimate counts as zero; degrees of freedom
    are Satterthwaite's (1946), which are too many where a part of few degrees of freedom decides.
    So the interval is never narrower than that for either seed alone, with the mean square of its
    own: simulated, it misses at most 5.2% with 2 to 8 seeds of either kind, where an interval of
    N × M independent pairs misses up to 68% (docs/method.md has the table).

    Args:
        values: [n]; a value that is not finite is a lost pair.
        seeds: [n, 2], as in `table`.
    """
    d = np.asarray(values, float)
    finite = np.isfinite(d)
    n, sd = int(finite.sum()), spread(d[finite])
    if sd == 0 and not d[finite].any():
        return Noise(((0.0, n - 1),))
    x = table(d, seeds)
    known = whole(x)
    rows, columns = known.shape
    if min(rows, columns) < 2 or not sd > 0:
        return Noise(((NAN, max(n - 1, 1)),))
    row, column, rest = mean_squares(known)
    counts = np.isfinite(x)
    # a mean square times these is what the part adds to the mean's variance
    of_row = float((counts.sum(axis=1) ** 2).sum()) / n**2 / columns
    of_column = float((counts.sum(axis=0) ** 2).sum()) / n**2 / rows
    parts = [(of_row, row, rows - 1), (of_column, column, columns - 1)]
    counted = [part for part in parts if part[1] > rest]
    left = 1 / n - sum(weight for weight, _, _ in counted)
    terms = [*counted, (left, rest, (rows - 1) * (columns - 1))]
    variance = max(sum(weight * square for weight, square, _ in terms), 0.0)
    spread_of_it = sum((weight * square) ** 2 / df for weight, square, df in terms)
    df = max(1.0, variance**2 / spread_of_it)
    each = [(math.sqrt(weight * square), float(df)) for weight, square, df in parts]
    return Noise(((math.sqrt(variance), df), *each))
