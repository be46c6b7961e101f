"""Many robust fits at once: the log of a sum of power laws to log losses, by the summed Huber loss.

Every form of a scaling curve is a floor and terms whose logarithms are linear in their parameters:

    L = E + e^(a − α ln x) + …

so one solver serves them all. The Huber loss is summed, not averaged: averaged over runs it is so
small that a solver's stopping rule ends the fit before it has converged (Besiroglu et al. 2024,
arXiv:2404.10102).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# log loss at which the Huber loss changes from square to absolute (Hoffmann et al. 2022)
DELTA = 1e-3
# points of replicates per block: large enough for numpy, small enough for the CPU cache
BLOCK = 32_768
ITERATIONS = 2000
QUICK = 100  # iterations where a fit need not have converged: predictions hardly change after that
TOLERANCE = 1e-7  # share of the loss: a fit has converged where a step can lower it by no more
ROUGH = 1e-3  # the same for a rough fit
EXACT = 1e-9  # log loss: fits of a smaller residual are exact
DAMPING = 1e-7, 1e7  # the least and the most
# values of δ on the way to `DELTA`: noise of all runs is within the first
WIDER = (0.1, 0.03, 0.01, 0.003)


class Slope(NamedTuple):
    """A term's slopes by one parameter."""

    at: int  # of the parameter
    x: Floats  # [P]
    products: list[tuple[int, Floats]]  # with those of a parameter no further on, [P] each


@dataclass(frozen=True)
class Design:
    """A form for the solver: P points, T power laws, K parameters.

    The loss at point p is θ[0] · e^unit + Σ_t e^(x[t, p] · θ). The floor itself is a parameter, not
    its logarithm, because it may be zero.
    """

    x: Floats  # [T, P, K]
    unit: float  # log loss
    lower: Floats  # [K] box that θ stays in
    upper: Floats

    @cached_property
    def slopes(self) -> list[list[Slope]]:
        """Of each term, those that are not zero."""
        found = []
        for x in self.x:
            used = np.flatnonzero(x.any(axis=0)).tolist()
            products = [[(j, x[:, i] * x[:, j]) for j in used if j <= i] for i in used]
            found.append(
                [
                    Slope(i, x[:, i].copy(), [(j, both) for j, both in some if both.any()])
                    for i, some in zip(used, products, strict=True)
                ]
            )
        return found


@dataclass(frozen=True)
class Solution:
    """Where B fits ended."""

    theta: Floats  # [B, K]
    loss: Floats  # [B], the summed Huber loss
    converged: Bools  # [B]


@dataclass(frozen=True)
class State:
    """Summed Huber loss and its derivatives at θ."""

    theta: Floats  # [B, K]
    loss: Floats  # [B]
    gradient: Floats  # [B, K]
    second: Floats  # [B, K, K], derivatives of the gradient; for a rough fit of a straight curve
    reweighted: Floats  # [B, K, K], points weighted by δ/|residual|

    def at(self, rows: npt.NDArray[np.intp]) -> State:
        """Return a copy of some rows."""
        return State(*(part[rows] for part in self._parts()))

    def put(self, rows: npt.NDArray[np.intp], new: State, chosen: Bools) -> None:
        """Replace rows by the chosen ones of `new`."""
        for part, other in zip(self._parts(), new._parts(), strict=True):
            part[rows] = other[chosen]

    def _parts(self) -> tuple[Floats, ...]:
        return self.theta, self.loss, self.gradient, self.second, self.reweighted


def minimise(
    design: Design,
    log_loss: Floats,
    weights: Floats,
    start: Floats,
    delta: float = DELTA,
    rough: bool = False,
    quick: bool = False,
) -> Solution:
    """Find a local minimum of Σ_p weights[b, p] · huber(prediction − log_loss[p]) for each b.

    Args:
        design: The form at P points.
        log_loss: [P], or [B, P] where every fit has its own.
        weights: [B, P].
        start: [B, K].
        delta: Where the Huber loss changes from square to absolute.
        rough: Whether the end is only the start of another fit, which may be far from here.
        quick: Whether it need not converge.
    """
    theta, loss = np.empty_like(start), np.empty(len(start))
    converged = np.empty(len(start), bool)
    block = max(BLOCK // weights.shape[1], 16)
    log_loss = np.broadcast_to(log_loss, weights.shape)
    for low in range(0, len(start), block):
        rows = slice(low, low + block)
        theta[rows], loss[rows], converged[rows] = _block(
            design, log_loss[rows], weights[rows], start[rows], delta, rough, quick
        )
    return Solution(theta, loss, converged)


def descend(
    design: Design, log_loss: Floats, weights: Floats, start: Floats, quick: bool = False
) -> Solution:
    """Minimise as `minimise` with ever smaller δ, each time from where the last one ended.

    The Huber loss of a δ far below the noise has many local minima. That of a large δ is least
    squares, which hardly has any; following its minimum ends in a low one more often.
    """
    for delta in WIDER:
        start = minimise(design, log_loss, weights, start, delta, rough=True, quick=quick).theta
    return minimise(design, log_loss, weights, start, quick=quick)


def negligible(weights: Floats, residual: float) -> Floats:
    """Return the summed Huber loss [B] of a residual, below δ, at every point."""
    return np.asarray(0.5 * residual**2 * weights.sum(axis=1))


def _block(
    design: Design,
    log_loss: Floats,
    weights: Floats,
    start: Floats,
    delta: float,
    rough: bool,
    quick: bool,
) -> tuple[Floats, Floats, Bools]:
    """Minimise by Newton's method, damped with the reweighted least-squares matrix.

    Second derivatives of the Huber loss come from the few points within ±δ and from the curvature
    of the form. With both, steps follow the long curved valley of a law that is nearly flat; far
    from the optimum the curvature misleads to worse minima, and a rough fit leaves it out.
    Reweighting every point by δ/|residual| bounds the loss from above: safe and slow. The step
    solves (second + damping · reweighted) step = −gradient. Damping falls after a step that lowers
    the loss as expected and rises after one that does not. A small expected gain counts as
    convergence only as far as damping does not cause it.
    """
    begun = np.clip(start, design.lower, design.upper)
    state = _state(design, log_loss, weights, begun, delta, rough)
    damping = np.ones(len(start))
    todo = np.arange(len(start))
    exact, tolerance = negligible(weights, EXACT), ROUGH if rough else TOLERANCE
    for _ in range(min(QUICK, ITERATIONS) if quick or rough else ITERATIONS):
        now, damped = state.at(todo), damping[todo]
        tried, expected = _step(design, now, damped)
        new = _state(design, log_loss[todo], weights[todo], tried, delta, rough)
        gain = now.loss - new.loss
        better = gain > 0
        state.put(todo[better], new, better)
        factor = np.where(gain < 0.25 * expected, 2.0, np.where(gain < 0.75 * expected, 0.5, 0.1))
        damping[todo] = (damped * np.where(better, factor, 5.0)).clip(*DAMPING)
        todo = todo[expected * np.maximum(damped, 1.0) > tolerance * now.loss + exact[todo]]
        if len(todo) == 0:
            break
    converged = np.ones(len(start), bool)
    converged[todo] = False
    return state.theta, state.loss, converged


def _state(
    design: Design, log_loss: Floats, weights: Floats, theta: Floats, delta: float, rough: bool
) -> State:
    """Return the summed Huber loss and its derivatives at θ [B, K]."""
    (replicates, k), (terms, points, _) = theta.shape, design.x.shape
    logs = (theta @ design.x.reshape(terms * points, k).T).reshape(replicates, terms, points)
    share = np.exp(logs - log_loss[:, None])  # of the measured loss, then of the predicted one
    unit = np.exp(design.unit - log_loss)
    total = share.sum(axis=1) + theta[:, :1] * unit
    share /= total[:, None]
    residual = np.log(total)
    size = np.abs(residual)
    inside = size <= delta
    pull = weights * residual.clip(-delta, delta)
    jacobian = np.zeros((replicates, k, points))
    jacobian[:, 0] = unit / total
    curvature = np.zeros((replicates, k, k))
    for term, slopes in enumerate(design.slopes):
        of = share[:, term]
        for i, x, _ in slopes:
            jacobian[:, i] += of * x
        if not rough:
            pulled = pull * of
            for i, _, products in slopes:
                for j, both in products:
                    curvature[:, i, j] = curvature[:, j, i] = pulled @ both
    loss: Floats = (
        weights * np.where(inside, 0.5 * residual**2, delta * (size - 0.5 * delta))
    ).sum(axis=1)
    gradient = (jacobian @ pull[..., None])[..., 0]
    transposed: Floats = np.swapaxes(jacobian, 1, 2)
    bends = weights * inside
    if not rough:
        bends -= pull
    second = (jacobian * bends[:, None]) @ transposed
    second += curvature
    reweighted = (jacobian * (weights * delta / np.maximum(size, delta))[:, None]) @ transposed
    return State(theta, loss, gradient, second, reweighted)


def _step(design: Design, now: State, damping: Floats) -> tuple[Floats, Floats]:
    """Return θ after a step within the box [B, K], and the gain that the matrix expects [B].

    Parameters that press against their bound stay. If the step would leave the box, the parameters
    that would leave it go to the bound, and the others take the best step that goes with it.
    """
    matrix = now.second + damping[:, None, None] * now.reweighted
    held = ((now.theta <= design.lower) & (now.gradient > 0)) | (
        (now.theta >= design.upper) & (now.gradient < 0)
    )
    step = _solve(matrix, now.gradient, held, np.zeros_like(now.theta))
    tried = (now.theta + step).clip(design.lower, design.upper)
    beyond = tried != now.theta + step
    cut = np.flatnonzero(beyond.any(axis=1))
    if len(cut):
        to_bound = np.where(beyond, tried - now.theta, 0.0)[cut]
        step = _solve(matrix[cut], now.gradient[cut], (held | beyond)[cut], to_bound)
        tried[cut] = (now.theta[cut] + step).clip(design.lower, design.upper)
    step = tried - now.theta
    quadratic = (step[:, None] @ matrix @ step[..., None])[:, 0, 0]
    return tried, -(now.gradient * step).sum(axis=1) - 0.5 * quadratic


def _solve(matrix: Floats, gradient: Floats, held: Bools, moved: Floats) -> Floats:
    """Return Newton's step [B, K] in which the held parameters move as given."""
    free = ~held
    gradient = gradient + (matrix @ moved[..., None])[..., 0]
    matrix = matrix * (free[:, :, None] & free[:, None, :])
    diagonal = np.einsum("bkk->bk", matrix)
    least = 1e-12 * np.abs(diagonal).max(axis=1, keepdims=True) + 1e-300
    diagonal += np.where(free, least, 1.0)
    step = np.linalg.solve(matrix, (gradient * free)[..., None])[..., 0]
    return np.where(free, -step, moved)
