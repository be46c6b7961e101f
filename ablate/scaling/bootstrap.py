"""Bootstrap intervals: the constants of a form, and those of every replicate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ablate.scaling.forms import Form, Problem
from ablate.scaling.shared import Shared, shared_errors
from ablate.scaling.solve import Floats, Solution, descend, minimise, negligible
from ablate.stats.distributions import norm_sf, t_isf

BOOTSTRAPS = 1000
CONFIDENCE = 0.95  # of every interval
# a round of new starts has found a lower optimum where the loss falls by this share
LOWER = 1e-4
ALIKE = 1e-6  # log loss: curves that are closer to the runs than that are equally good
SETTLED = 0.01  # no further round after one that improves no larger share of replicates
ROUNDS = 10  # the most
MANY = 0.05  # share that the first round improves where starts from least squares pay


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval."""

    value: float
    lo: float
    hi: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.lo:.4g}, {self.hi:.4g}]"


@dataclass(frozen=True)
class Band:
    """A curve at P points with the interval of the curve, not of a single run."""

    value: Floats
    lo: Floats
    hi: Floats


@dataclass(frozen=True)
class Estimate:
    """The constants of a form [K] and of its bootstrap replicates [B, K]."""

    value: Floats
    replicates: Floats
    missed: float  # as `replicate` returns
    bounds: dict[str, str]  # as `Problem.bounds` returns
    shared: Shared | None
    sds: Floats  # [B, F], of the errors that runs share, in every replicate


def estimate(
    form: Form,
    columns: dict[str, Floats],
    log_loss: Floats,
    rng: np.random.Generator,
    bootstraps: int,
    *,
    floor: bool = True,
    near: Floats | None = None,
) -> Estimate:
    """Estimate the constants, and those of every bootstrap replicate; without a floor, E is zero.

    The bootstrap is Bayesian (Rubin 1981): every run is weighted by a standard exponential draw.
    Resampling whole runs would leave replicates of a small grid without one of its sizes. The runs
    of a size, of a budget and of a point are shifted together, by as much as residuals suggest.

    Args:
        form: Of the curve.
        columns: [P] each.
        log_loss: [P].
        rng: For the replicates.
        bootstraps: Number of replicates.
        floor: Whether there is one.
        near: Constants that are close to the best [K]; the search then is quick and local.
    """
    problem = Problem.build(form, columns, log_loss)
    if not floor:
        problem.design.upper[0] = 0.0
    weights = rng.exponential(size=(bootstraps, len(log_loss)))
    shared, sds = None, np.zeros((bootstraps, 0))

    def shift(theta: Floats) -> Floats | None:
        nonlocal shared, sds
        constants = problem.constants(theta[None])[0]
        residuals = log_loss - np.log(form.loss(constants, columns))
        shared = shared_errors(form, constants, columns, residuals)
        if shared is None:
            return None
        shifts, sds = shared.shifts(rng, bootstraps)
        return shifts

    theta, replicates, missed = replicate(problem, log_loss, weights, shift, near)
    return Estimate(
        problem.constants(theta[None])[0],
        problem.constants(replicates),
        missed,
        problem.bounds(theta),
        shared,
        sds,
    )


def widened(lo: Floats, hi: Floats, replicates: Floats, dof: int) -> tuple[Floats, Floats]:
    """Widen limits [K] to the floor 0, and to the limits of a curve without a floor.

    A floor cannot be below zero, so if it may be zero, replicates are skewed, and with them the
    exponents: of a pure power law their percentiles alone contained the truth in 86 to 89% of
    tables.

    Args:
        lo: Lower limits [K].
        hi: Upper limits [K].
        replicates: Constants without a floor [B, K].
        dof: Runs minus constants.
    """
    low, high = limits(replicates, dof)
    low, high = np.minimum(lo, low), np.maximum(hi, high)
    low[0] = 0.0
    return low, high


def replicate(
    problem: Problem,
    log_loss: Floats,
    weights: Floats,
    shift: Callable[[Floats], Floats | None] = lambda theta: None,
    near: Floats | None = None,
) -> tuple[Floats, Floats, float]:
    """Fit the best θ [K] from a grid of starts, and θ [B, K] of weighted replicates.

    The robust loss has several minima. Replicates start from the best θ and then from each other's
    optima, round after round until a round improves few of them; where the first round improves
    many, they descend from least squares too. The best θ is also searched from their optima.

    Args:
        problem: The form at P points.
        log_loss: [P].
        weights: [B, P], of every replicate.
        shift: θ → what to add to the log losses of every replicate [B, P], or None.
        near: Constants to start from [K] instead of the grid; there is one round then.

    Returns:
        θ, its replicates, and the share of replicates that the last round improved or that did not
        converge, which may have missed their optimum; NaN if the fit itself did not converge.
    """
    design, count = problem.design, len(weights)
    grid = problem.starts(log_loss) if near is None else problem.theta(near)[None]
    quick = near is not None
    rounds = 1 if quick else ROUNDS
    equal = np.ones((len(grid), len(log_loss)))
    begun = minimise(design, log_loss, equal, grid, rough=True, quick=quick).theta
    fits = lowest(
        minimise(design, log_loss, equal, begun, quick=quick),
        descend(design, log_loss, equal, grid, quick),
    )
    at = fits.loss.argmin()
    if not count:
        return fits.theta[at], fits.theta[:0], 0.0 if fits.converged[at] else math.nan
    start = np.tile(fits.theta[at], (count, 1))
    shifts = shift(fits.theta[at])
    losses = log_loss if shifts is None else log_loss + shifts
    copies = minimise(design, losses, weights, start, quick=quick)
    for turn in range(rounds):
        others = np.roll(copies.theta, 1 + turn * count // rounds, axis=0)
        new = lowest(copies, minimise(design, losses, weights, others, quick=quick))
        improved = copies.loss - new.loss > LOWER * copies.loss + negligible(weights, ALIKE)
        copies = new
        if improved.mean() <= SETTLED:
            break
        if turn == 0 and improved.mean() > MANY:
            copies = lowest(copies, descend(design, losses, weights, start, quick))
    some = copies.theta[:: math.ceil(count / len(grid))]
    again = minimise(design, log_loss, equal[: len(some)], some, quick=quick)
    if again.loss.min() < fits.loss[at]:
        fits, at = again, again.loss.argmin()
    missed = float((improved | ~copies.converged).mean())
    return fits.theta[at], copies.theta, missed if fits.converged[at] else math.nan


def lowest(a: Solution, b: Solution) -> Solution:
    """Return the better of two solutions, fit by fit."""
    better = b.loss < a.loss
    return Solution(
        np.where(better[:, None], b.theta, a.theta),
        np.where(better, b.loss, a.loss),
        np.where(better, b.converged, a.converged),
    )


def limits(replicates: Floats, dof: float) -> tuple[Floats, Floats]:
    """Return percentile intervals over replicates (axis 0), with dof = runs − constants.

    Bootstrap percentiles are those of a normal distribution; for few runs they are moved out to
    those of a t (Hesterberg 2015, The American Statistician 69, 371–386). His further factor
    √(n/dof) is left out: replicates of this robust fit scatter more than the fit itself, and with
    it coverage was 98 to 99% instead of 95 to 97%.
    """
    tail = norm_sf(t_isf((1 - CONFIDENCE) / 2, max(dof, 1)))
    lo, hi = np.nanquantile(replicates, [tail, 1 - tail], axis=0)
    return lo, hi
