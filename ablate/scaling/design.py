"""Before the runs: the expected width of each constant's interval, and which grid suffices."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ablate.errors import AblateError
from ablate.scaling.bootstrap import CONFIDENCE, limits
from ablate.scaling.forms import Form, best_split, levels
from ablate.scaling.shared import Shared, expected_errors
from ablate.scaling.solve import DELTA, Floats
from ablate.stats.distributions import norm_cdf, norm_pdf, norm_sf, t_isf
from ablate.units import listed, plural

# E, A, alpha, B, beta of Hoffmann et al.'s runs as refitted by Besiroglu et al. 2024
# (arXiv:2404.10102), C = 6·N·D: they judge a grid before its text has been fitted.
USUAL = np.array([1.8172, 482.01, 0.3478, 2085.43, 0.3658])
USUAL_NOISE = 0.01  # sd of log loss from run to run
TARGET = 0.2  # the width of an exponent's interval to aim for
# the smallest of those runs; a grid of smaller models is judged as if it began here
LOWEST = {"n": 5e7, "d": 1e9, "c": 1e18}
SPAN = 100.0  # largest size over smallest, in a proposed grid
RATIOS = (5.0, 160.0)  # tokens per parameter, in a proposed grid
LEAST_LEVELS, MOST_LEVELS = 4, 30  # of a grid
DRAWS = 4000  # of a planned interval
NAMES = {"n": "size", "d": "token count", "c": "budget"}
SAME_LINE = 0.98  # above this correlation of ln N with ln D their terms are not identifiable

T = TypeVar("T")


@dataclass(frozen=True)
class Grid:
    """A grid that would suffice, and the width of alpha's interval to expect from it."""

    text: str
    runs: int
    width: float

    def __str__(self) -> str:
        return f"{self.text} ({self.runs} runs, interval of alpha {self.width:.2f} wide)"


def expected_width(
    form: Form, constants: Floats, columns: dict[str, Floats], noise: float
) -> dict[str, float]:
    """Return the expected width of every constant's interval [K] from runs at these points.

    The width follows from the first-order covariance of the Huber estimate under normal noise, and
    from what residuals will leave unknown of errors that runs share. It is infinite with fewer runs
    than constants, or if the points do not identify the constants.

    Args:
        form: Of the curve.
        constants: Where to take the curve's slopes [K].
        columns: The points, [P] each.
        noise: Standard deviation of log loss from run to run.
    """
    runs, k = len(next(iter(columns.values()))), len(constants)
    unknown = dict.fromkeys(form.constants, math.inf)
    if runs <= k:
        return unknown
    slopes = np.empty((runs, k))
    for i in range(k):  # of ln loss by ln constant, except for exponents
        step = 1e-5
        up, down = constants.copy(), constants.copy()
        if i in (2, 4):
            up[i], down[i] = constants[i] + step, constants[i] - step
        else:
            up[i], down[i] = constants[i] * math.exp(step), constants[i] * math.exp(-step)
        slopes[:, i] = (np.log(form.loss(up, columns)) - np.log(form.loss(down, columns))) / (
            2 * step
        )
    information = slopes.T @ slopes
    scale = np.sqrt(np.diag(information))
    if not (scale > 0).all() or np.linalg.cond(information / np.outer(scale, scale)) > 1e13:
        return unknown
    inverse = np.linalg.inv(information)
    variance = noise**2 * huber_variance(noise) * np.diag(inverse)
    shared = expected_errors(form, constants, columns, noise)
    if shared is None:
        half = t_isf((1 - CONFIDENCE) / 2, runs - k) * np.sqrt(variance)
    else:
        half = _mixed(shared, inverse @ slopes.T, variance, runs - k)
    with np.errstate(over="ignore"):  # an infinite width
        absolute = np.where(np.isin(np.arange(k), (2, 4)), 2 * half, constants * 2 * np.sinh(half))
    return dict(zip(form.constants, map(float, absolute), strict=True))


def _mixed(shared: Shared, influence: Floats, variance: Floats, dof: int) -> Floats:
    """Return half of the intervals of constants [K] whose replicates share errors.

    Args:
        shared: What will be known of these errors.
        influence: Change of each constant with each run's log loss [K, P].
        variance: Of the constants, without shared errors [K].
        dof: Runs minus constants.
    """
    rng = np.random.default_rng(0)
    _, sds = shared.sds(rng, DRAWS)
    total = np.tile(variance, (DRAWS, 1))
    for of, sd in zip(shared.members, sds.T, strict=True):
        of_level = influence @ np.eye(of.max() + 1)[of]
        total += sd[:, None] ** 2 * (of_level**2).sum(axis=1)
    draws = np.sqrt(total) * rng.normal(size=(DRAWS, 1))
    return limits(np.concatenate([draws, -draws]), dof)[1]


def huber_variance(noise: float) -> float:
    """Return the variance of the Huber estimate over that of least squares, under normal noise.

    It is between 1 (noise far below δ) and π/2.
    """
    edge = DELTA / noise
    inside = 2 * norm_cdf(edge) - 1
    square = inside - 2 * edge * norm_pdf(edge) + 2 * edge**2 * norm_sf(edge)
    return float(square / inside**2)


def sufficient_grid(
    form: Form,
    noise: float = USUAL_NOISE,
    *,
    target: float = TARGET,
    constants: Floats | None = None,
    columns: dict[str, Floats] | None = None,
) -> Grid | None:
    """Return the smallest grid whose interval of alpha is at most `target` wide.

    The grid covers a hundredfold range; None if 30 levels do not suffice.

    Args:
        form: Of the curve.
        noise: Standard deviation of log loss from run to run.
        target: Width of the interval.
        constants: Of a fit; None for the usual ones.
        columns: Of a fit, which set the grid's lowest size and tokens per parameter.

    >>> from ablate.scaling.forms import FORMS
    >>> print(sufficient_grid(FORMS["nd"]))
    5 sizes × 5 tokens per parameter, 5 to 160 (25 runs, interval of alpha 0.18 wide)
    """
    truth = usual_constants(form) if constants is None else constants
    lowest = LOWEST[form.columns[0]] if columns is None else float(columns[form.columns[0]].min())
    low, high = RATIOS if columns is None or len(form.columns) == 1 else measured_ratios(columns)

    def grid(count: int) -> Grid:
        x = lowest * np.geomspace(1, SPAN, count)
        if form.columns == ("n", "d"):
            n = np.repeat(x, count)
            points = {"n": n, "d": n * np.tile(np.geomspace(low, high, count), count)}
            text = f"{count} sizes × {count} tokens per parameter, {low:.3g} to {high:.3g}"
        else:
            points = {form.columns[0]: x}
            text = f"{count} {NAMES[form.columns[0]]}s over a range of {SPAN:g}"
        width = expected_width(form, truth, points, noise)["alpha"]
        return Grid(text, len(points[form.columns[0]]), width)

    return smallest(grid, lambda found: found.width <= target)


def smallest(make: Callable[[int], T], suffices: Callable[[T], bool]) -> T | None:
    """Return what `make` returns for the fewest levels that suffice; None if none do."""
    found, low, high = None, LEAST_LEVELS, MOST_LEVELS
    while low <= high:
        middle = (low + high) // 2
        if suffices(one := make(middle)):
            found, high = one, middle - 1
        else:
            low = middle + 1
    return found


def measured_ratios(columns: dict[str, Floats]) -> tuple[float, float]:
    """Return the lowest and highest tokens per parameter, at least as far apart as in a grid."""
    ratio = columns["d"] / columns["n"]
    return float(ratio.min()), float(max(ratio.max(), ratio.min() * RATIOS[1] / RATIOS[0]))


def usual_constants(form: Form) -> Floats:
    """Return `USUAL` for any form: with the other resource unlimited, or at the best split."""
    floor, a, alpha, b, beta = USUAL
    if form.columns == ("c",):
        low, high = best_split(USUAL, np.array([1.0, 10.0]))[2] - floor
        return np.array([floor, low, math.log10(low / high)])
    if form.columns == ("n",):
        return np.array([floor, a, alpha])
    if form.columns == ("d",):
        return np.array([floor, b, beta])
    return USUAL


def demand(form: Form, columns: dict[str, Floats], where: str = "") -> None:
    """Check that the form can be fitted to these points.

    Raises:
        AblateError: It cannot; the message names a grid that would suffice.
    """
    runs = len(columns[form.columns[0]])
    least = 4 if len(form.columns) == 1 else 3
    counts = [(len(levels(columns[name])), NAMES[name]) for name in form.columns]
    least_runs = len(form.constants) + 2
    required = [f"{least} {NAMES[name]}s" for name in form.columns] + [f"{least_runs} runs"]
    existing = [plural(count, noun) for count, noun in (*counts, (runs, "run"))]
    if runs < least_runs or min(counts)[0] < least:
        raise AblateError(
            f"{where}{form.symbol} needs at least {listed(required)}; there are"
            f" {listed(existing)}.{proposal(form)}"
        )
    if len(form.columns) == 2:
        together = np.corrcoef(np.log(columns["n"]), np.log(columns["d"]))[0, 1]
        if abs(together) > SAME_LINE:
            why = (
                "tokens rise with size at one ratio"
                if together > 0
                else "every run has the same budget"
            )
            raise AblateError(
                f"{where}{form.symbol} cannot separate size from tokens: {why} (correlation of ln N"
                f" and ln D {together:.3f}).{proposal(form)}"
            )


def proposal(form: Form) -> str:
    """Return a sentence that names a sufficient grid; "" if none suffices."""
    grid = sufficient_grid(form)
    return f" At {USUAL_NOISE:.0%} noise this grid would suffice: {grid}." if grid else ""
