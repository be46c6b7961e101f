"""Many robust fits at once: the log of a sum of power laws to log losses, by the summed Huber loss.

Every form of a scaling curve is a log-sum-exp of terms that are linear in their parameters: with e
= ln E, a = ln A,

    ln L = ln(e^e + e^(a − α ln x) + …) = logsumexp_t(X_t θ)

so one solver serves them all. The Huber loss is summed, not averaged: averaged over runs it is so
small that a solver's stopping rule ends the fit before it has converged (Besiroglu et al. 2024,
arXiv:2404.10102).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# log loss at which the Huber loss changes from square to absolute (Hoffmann et al. 2022)
DELTA = 1e-3
# points of replicates per block: large enough for numpy, small enough for the CPU cache
BLOCK = 16_384
ITERATIONS = 200
TOLERANCE = 1e-8  # stop when a step lowers the loss by a smaller share


@dataclass(frozen=True)
class Design:
    """A form for the solver: P points, T terms, K parameters."""

    x: Floats  # [T, P, K], term t at point p is x[t, p] · θ
    lower: Floats  # [K] box that θ stays in
    upper: Floats

    def terms(self, theta: Floats) -> Floats:
        """Return the logarithm of every term [B, T, P] at θ [B, K]."""
        t, p, k = self.x.shape
        return (theta @ self.x.reshape(t * p, k).T).reshape(-1, t, p)


def minimise(
    design: Design, log_loss: Floats, weights: Floats, start: Floats
) -> tuple[Floats, Floats]:
    """Minimise Σ_p weights[b, p] · huber(prediction − log_loss[p]) for every replicate b.

    log_loss [P], weights [B, P], start [B, K] → θ [B, K] and the loss reached [B].
    """
    theta, reached = np.empty_like(start), np.empty(len(start))
    block = max(BLOCK // len(log_loss), 16)
    for low in range(0, len(start), block):
        rows = slice(low, low + block)
        theta[rows], reached[rows] = _block(design, log_loss, weights[rows], start[rows])
    return theta, reached


def _block(
    design: Design, log_loss: Floats, weights: Floats, start: Floats
) -> tuple[Floats, Floats]:
    """Minimise by Levenberg–Marquardt, damped with the reweighted least-squares matrix.

    Newton's matrix of the summed Huber loss comes from the few points within ±δ only: its steps
    are fast near the optimum and unstable far from it. Reweighting every point by δ/|residual|
    bounds the loss from above: safe and slow. The step solves
    (newton + damping · reweighted) step = −gradient. Damping falls after a step that lowered the
    loss and rises after one that did not.
    """
    theta = np.clip(start, design.lower, design.upper)
    loss, gradient, newton, reweighted = _derivatives(design, log_loss, weights, theta)
    damping, quiet = np.ones(len(theta)), np.zeros(len(theta), int)
    todo = np.arange(len(theta))
    for _ in range(ITERATIONS):
        step = _step(
            design,
            theta[todo],
            gradient[todo],
            newton[todo] + damping[todo, None, None] * reweighted[todo],
        )
        tried = np.clip(theta[todo] + step, design.lower, design.upper)
        new = _derivatives(design, log_loss, weights[todo], tried)
        better = new[0] < loss[todo]
        gain = np.where(better, loss[todo] - new[0], 0.0)
        quiet[todo] = np.where(
            gain > TOLERANCE * loss[todo], 0, quiet[todo] + (better | (damping[todo] >= 1))
        )
        rows = todo[better]
        theta[rows] = tried[better]
        for kept, fresh in zip((loss, gradient, newton, reweighted), new, strict=True):
            kept[rows] = fresh[better]
        damping[todo] = np.clip(damping[todo] * np.where(better, 0.25, 4.0), 1e-4, 1e6)
        todo = todo[quiet[todo] < 4]
        if len(todo) == 0:
            break
    return theta, loss


def _derivatives(
    design: Design, log_loss: Floats, weights: Floats, theta: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return loss [B], gradient [B, K] and the two curvature matrices [B, K, K]."""
    eta = design.terms(theta)
    top = eta.max(axis=1)
    share = np.exp(eta - top[:, None])
    total = share.sum(axis=1)
    residual = top + np.log(total) - log_loss
    share /= total[:, None]
    jacobian = np.zeros((len(theta), theta.shape[1], share.shape[2]))
    for t, k in zip(*np.nonzero(np.any(design.x != 0, axis=1)), strict=True):
        jacobian[:, k] += share[:, t] * design.x[t, :, k]
    size = np.abs(residual)
    inside = size <= DELTA
    loss: Floats = (
        weights * np.where(inside, 0.5 * residual**2, DELTA * (size - 0.5 * DELTA))
    ).sum(axis=1)
    gradient = (jacobian @ (weights * np.clip(residual, -DELTA, DELTA))[..., None])[..., 0]
    transposed: Floats = np.swapaxes(jacobian, 1, 2)
    newton = (jacobian * (weights * inside)[:, None]) @ transposed
    reweighted = (jacobian * (weights * DELTA / np.maximum(size, DELTA))[:, None]) @ transposed
    return loss, gradient, newton, reweighted


def _step(design: Design, theta: Floats, gradient: Floats, matrix: Floats) -> Floats:
    """Solve for the step, without parameters that press against their bound."""
    leaning = ((theta <= design.lower) & (gradient > 0)) | (
        (theta >= design.upper) & (gradient < 0)
    )
    free = ~leaning
    matrix = matrix * (free[:, :, None] & free[:, None, :])
    diagonal = np.einsum("bkk->bk", matrix)
    diagonal += np.where(free, 1e-9 * diagonal.max(axis=1, keepdims=True) + 1e-300, 1.0)
    step = np.linalg.solve(matrix, (gradient * free)[..., None])[..., 0]
    return np.asarray(-step, float)
