"""Bootstrap intervals over runs: the constants of a form, and those of every replicate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats as st

from ablate.scaling.forms import Form, Problem
from ablate.scaling.solve import Floats, minimise

BOOTSTRAPS = 1000
# runs × extra starts of a replicate: beyond 80 runs, one optimum is what all starts lead to
ROOM = 80
MOST_EXTRA = 6


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
    """A curve with its interval at P points; of the curve, not of a single run about it."""

    value: Floats
    lo: Floats
    hi: Floats


def estimate(
    form: Form,
    columns: dict[str, Floats],
    log_loss: Floats,
    rng: np.random.Generator,
    bootstraps: int,
) -> tuple[Floats, Floats]:
    """The constants [K], and those of every bootstrap replicate [B, K].

    The replicates are the Bayesian bootstrap's (Rubin 1981): every run is weighed by a standard
    exponential draw. Resampling runs whole would leave replicates of a small grid without one of
    its sizes.
    """
    problem = Problem.build(form, columns, log_loss)
    theta, replicates = replicate(
        problem, log_loss, rng.exponential(size=(bootstraps, len(log_loss)))
    )
    return problem.constants(theta[None])[0], problem.constants(replicates)


def without_floor(
    form: Form,
    columns: dict[str, Floats],
    log_loss: Floats,
    rng: np.random.Generator,
    bootstraps: int,
) -> Floats:
    """Replicates [B, K] of the constants with the floor E held at zero."""
    problem = Problem.build(form, columns, log_loss)
    problem.design.upper[0] = problem.design.lower[0]
    _, replicates = replicate(problem, log_loss, rng.exponential(size=(bootstraps, len(log_loss))))
    return problem.constants(replicates)


def widened(
    lo: Floats, hi: Floats, replicates: Floats, dof: int, confidence: float
) -> tuple[Floats, Floats]:
    """Limits [K] that reach the floor 0 and, for the other constants, also hold the limits of a
    curve without a floor.

    A floor cannot be below zero, so where it may be zero replicates lean to one side, and so do the
    exponents that go with them: of a pure power law their percentiles alone held the truth in 86 to
    89% of tables.
    """
    low, high = limits(replicates, dof, confidence)
    low, high = np.minimum(lo, low), np.maximum(hi, high)
    low[0] = 0.0
    return low, high


def replicate(problem: Problem, log_loss: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """The best θ [K] from a grid of starts, and θ [B, K] of the weighted replicates.

    Replicates start from that best θ; where runs are few, and the robust loss has several hollows,
    also from some of the grid.
    """
    grid = problem.starts(log_loss)
    runs = len(log_loss)
    theta, reached = minimise(problem.design, log_loss, np.ones((len(grid), runs)), grid)
    best = theta[reached.argmin()]
    copies, lowest = minimise(problem.design, log_loss, weights, np.tile(best, (len(weights), 1)))
    more = min(ROOM // runs, MOST_EXTRA)
    for start in grid[np.linspace(0, len(grid) - 1, more).astype(int)]:
        again, reached = minimise(
            problem.design, log_loss, weights, np.tile(start, (len(weights), 1))
        )
        copies[reached < lowest] = again[reached < lowest]
        lowest = np.minimum(lowest, reached)
    return best, copies


def limits(replicates: Floats, dof: int, confidence: float) -> tuple[Floats, Floats]:
    """Percentile interval over replicates (axis 0), with dof = runs − constants.

    The percentiles of a bootstrap are a normal's; from few runs they are moved out to those of a t
    (Hesterberg 2015, The American Statistician 69, 371–386). His further factor √(n/dof) is left
    out: replicates of this robust fit scatter more than the fit itself, and with it coverage was 98
    to 99% instead of 95 to 97%.
    """
    tail = st.norm.sf(st.t.isf((1 - confidence) / 2, max(dof, 1)))
    lo, hi = np.nanquantile(replicates, [tail, 1 - tail], axis=0)
    return lo, hi
