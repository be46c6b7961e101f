"""Errors that all runs of a size, of a budget or of a point share, estimated from residuals.

A learning rate tuned a little better for one size shifts all runs of that size. A bootstrap over
runs takes them for independent, and its intervals are too narrow.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ablate.scaling.forms import Form, level_of
from ablate.scaling.solve import Floats

# sd of a shared error over that between runs: the values considered. Their prior is half of a
# Cauchy distribution of scale 1 (Gelman 2006, Bayesian Analysis 1, 515–534).
RATIOS = np.array([0.0, 0.07, 0.15, 0.3, 0.6, 1.0, 1.7, 3.0, 5.0, 8.0])
USUAL_RATIO = 0.5  # the ratio that a plan expects: of the studies here it was 0.5 to 1
MOST_LEVELS = 150  # of a factor; with more the sums below take long
ROWS = 32  # of ratios at a time
CLIPPED = 4.0  # times the usual residual: a run far off is one run, not a shared error


@dataclass(frozen=True)
class Shared:
    """What is known of the standard deviations of errors that runs share.

    Attributes:
        factors: What the runs share: of "size", "budget", "point" what the table repeats.
        members: Level of every run, [F, P].
        ratios: Sd of each shared error over that between runs, [G, F].
        weights: Posterior probability of each row of `ratios`, [G].
        squares: Sum of squares of the residuals under each, [G].
        dof: Runs minus constants.
    """

    factors: tuple[str, ...]
    members: npt.NDArray[np.intp]
    ratios: Floats
    weights: Floats
    squares: Floats
    dof: int

    def sds(self, rng: np.random.Generator, count: int) -> tuple[Floats, Floats]:
        """Draw the sd between runs [B] and those of shared errors [B, F] from their posterior."""
        at = rng.choice(len(self.weights), size=count, p=self.weights)
        run = np.sqrt(self.squares[at] / rng.chisquare(self.dof, size=count))
        return run, self.ratios[at] * run[:, None]

    def shifts(self, rng: np.random.Generator, count: int) -> tuple[Floats, Floats]:
        """Draw shared errors of every run [B, P], and their standard deviations [B, F]."""
        _, sds = self.sds(rng, count)
        return self._drawn(sds, rng), sds

    def errors(self, rng: np.random.Generator, count: int) -> Floats:
        """Draw the whole error of every run [B, P]: shared ones and its own."""
        run, sds = self.sds(rng, count)
        own = run[:, None] * rng.normal(size=(count, self.members.shape[1]))
        return own + self._drawn(sds, rng)

    def _drawn(self, sds: Floats, rng: np.random.Generator) -> Floats:
        total = np.zeros((len(sds), self.members.shape[1]))
        for of, sd in zip(self.members, sds.T, strict=True):
            total += (sd[:, None] * rng.normal(size=(len(sds), of.max() + 1)))[:, of]
        return total

    def fresh(
        self, form: Form, columns: dict[str, Floats], sds: Floats, rng: np.random.Generator
    ) -> Floats:
        """Draw shared errors of further runs [B, P], whose sizes and budgets are new.

        Args:
            form: Of the curve.
            columns: [P] each.
            sds: As `shifts` returned, [B, F].
            rng: For the draws.
        """
        by = levels_shared(form, columns)
        total = np.zeros((len(sds), len(columns[form.columns[0]])))
        for name, sd in zip(self.factors, sds.T, strict=True):
            of = by[name]
            total += (sd[:, None] * rng.normal(size=(len(sds), of.max() + 1)))[:, of]
        return total

    def usual(self) -> dict[str, float]:
        """Return the root of the mean variance of each shared error."""
        variance = self.squares / max(self.dof - 2, 1)
        means = self.weights @ (self.ratios**2 * variance[:, None])
        return dict(zip(self.factors, map(float, np.sqrt(means)), strict=True))


def new_errors(
    form: Form,
    shared: Shared | None,
    sds: Floats,
    residuals: Floats,
    constants: int,
    columns: dict[str, Floats],
    rng: np.random.Generator,
) -> Floats:
    """Draw what further runs differ from a curve by: shared errors and their own [B, P].

    Args:
        form: Of the curve.
        shared: What is known of shared errors.
        sds: Of these, in every replicate [B, F].
        residuals: Log losses of the fitted runs minus the curve's.
        constants: Their number.
        columns: Of the further runs [P] each.
        rng: For the draws.
    """
    runs = len(residuals)
    inflated = residuals * np.sqrt(runs / max(runs - constants, 1))
    own = rng.choice(inflated, size=(len(sds), len(columns[form.columns[0]])))
    return own if shared is None else own + shared.fresh(form, columns, sds, rng)


def factors(form: Form, columns: dict[str, Floats]) -> dict[str, npt.NDArray[np.intp]]:
    """Return what runs share, as the level of every run [P]: only what the runs repeat."""
    runs, kept = len(columns[form.columns[0]]), dict[str, npt.NDArray[np.intp]]()
    for name, of in levels_shared(form, columns).items():
        count = int(of.max()) + 1
        repeated = 2 < count <= min(runs // 2, MOST_LEVELS)
        if repeated and not any(_same(of, one) for one in kept.values()):
            kept[name] = of
    return kept


def levels_shared(form: Form, columns: dict[str, Floats]) -> dict[str, npt.NDArray[np.intp]]:
    """Return the size, budget and point of every run [P], as numbers of levels."""
    by = {name: level_of(columns[name]) for name in form.columns}
    points = np.unique(np.stack(list(by.values())), axis=1, return_inverse=True)[1].reshape(-1)
    if len(by) == 1:
        return {"point": points}
    # a budget is of FLOPs or of tokens, whichever the table repeats more
    flops = level_of(columns.get("c", columns["n"] * columns["d"]))
    budget = min(flops, by["d"], key=lambda of: int(of.max()))
    return {"size": by["n"], "budget": budget, "point": points}


def _same(a: npt.NDArray[np.intp], b: npt.NDArray[np.intp]) -> bool:
    pairs = len(set(zip(a.tolist(), b.tolist(), strict=True)))
    return bool(pairs == a.max() + 1 == b.max() + 1)


def shared_errors(
    form: Form, constants: Floats, columns: dict[str, Floats], residuals: Floats
) -> Shared | None:
    """Return the posterior of the shared errors; None if the table repeats nothing.

    The restricted likelihood (REML) of the residuals, with the curve linear in its constants near
    the fit, times the prior. Few sizes say little about how much sizes differ: the posterior is as
    wide as that, and so are intervals that are drawn from it.

    Args:
        form: Of the curve.
        constants: Of the fit [K].
        columns: [P] each.
        residuals: Log losses minus the curve's [P], or the difference of two groups'.
    """
    found = factors(form, columns)
    if not found:
        return None
    k = len(constants)
    usual = 1.4826 * np.median(np.sort(np.abs(residuals))[min(k, len(residuals) - 1) :])
    residuals = np.clip(residuals, -CLIPPED * usual, CLIPPED * usual)
    basis = tangent(form, constants, columns)
    return errors_about(found, lambda x: without(x, basis), residuals, basis.shape[1])


def errors_about(
    found: dict[str, npt.NDArray[np.intp]],
    off: Callable[[Floats], Floats],
    residuals: Floats,
    constants: int,
) -> Shared:
    """Return the posterior of errors about a curve that is linear in its constants.

    Args:
        found: What runs share, as the level of every run [P]; may be empty.
        off: What the curve does not explain of columns [P, Q] or of one [P].
        residuals: Log losses, or what is left of them by a first fit [P].
        constants: Their number.
    """
    z, residuals = off(_indicators(found, len(residuals))), off(residuals)
    right = z.T @ residuals
    dof = len(residuals) - constants
    return _posterior(found, z, np.outer(right, right), float(residuals @ residuals), dof)


def without(x: Floats, basis: Floats) -> Floats:
    """Return columns [P, Q], or one [P], without their part in an orthonormal basis [P, k]."""
    return np.asarray(x - basis @ (basis.T @ x))


def expected_errors(
    form: Form, constants: Floats, columns: dict[str, Floats], noise: float
) -> Shared | None:
    """Return `shared_errors` of planned runs, of whose errors `USUAL_RATIO` will be shared.

    Args:
        form: Of the curve.
        constants: Expected ones [K].
        columns: [P] each.
        noise: Sd of log loss from run to run.
    """
    found = factors(form, columns)
    if not found:
        return None
    basis = tangent(form, constants, columns)
    z = without(_indicators(found, len(basis)), basis)
    dof = len(z) - basis.shape[1]
    inner = z.T @ z
    right = noise**2 * (inner + USUAL_RATIO**2 * inner @ inner)
    total = noise**2 * (dof + USUAL_RATIO**2 * float(np.trace(inner)))
    return _posterior(found, z, right, total, dof)


def _indicators(found: dict[str, npt.NDArray[np.intp]], runs: int) -> Floats:
    """Return which level each run has [P, Q]."""
    each = [np.eye(of.max() + 1)[of] for of in found.values()]
    return np.concatenate([np.zeros((runs, 0)), *each], axis=1)


def _posterior(
    found: dict[str, npt.NDArray[np.intp]], z: Floats, right: Floats, total: float, dof: int
) -> Shared:
    """Return the posterior.

    Args:
        found: As of `errors_about`.
        z: Indicators of levels, what the curve does not explain of them [P, Q].
        right: Products of z and residuals, one with another [Q, Q].
        total: Sum of squares of the residuals.
        dof: Of the residuals.
    """
    members, inner = np.reshape(list(found.values()), (-1, len(z))).astype(np.intp), z.T @ z
    grid = RATIOS if len(found) < 3 else RATIOS[::2]
    ratios = np.array(list(itertools.product(grid, repeat=len(found))))
    levels = members.max(axis=1) + 1
    logdet, squares = np.empty(len(ratios)), np.empty(len(ratios))
    for low in range(0, len(ratios), ROWS):
        rows = slice(low, low + ROWS)
        scale = np.repeat(ratios[rows], levels, axis=1)
        both = scale[:, :, None] * scale[:, None, :]
        matrix = np.eye(len(inner)) + both * inner
        solved = np.linalg.solve(matrix, both * right)
        logdet[rows] = np.linalg.slogdet(matrix)[1]
        squares[rows] = total - np.trace(solved, axis1=1, axis2=2)
    squares = np.maximum(squares, 1e-12 * total + 1e-30)
    log_prior = np.log(np.gradient(grid) / (1 + grid**2))
    prior = np.array(list(itertools.product(log_prior, repeat=len(found)))).sum(axis=1)
    log_weight = prior - logdet / 2 - dof / 2 * np.log(squares)
    weights = np.exp(log_weight - log_weight.max())
    return Shared(tuple(found), members, ratios, weights / weights.sum(), squares, dof)


def tangent(form: Form, constants: Floats, columns: dict[str, Floats]) -> Floats:
    """Return an orthonormal basis [P, k] of how log loss changes with the constants."""
    loss = form.loss(constants, columns)
    slopes = [1 / loss]
    for term, name in enumerate(form.columns):
        part = constants[1 + 2 * term] * columns[name] ** -constants[2 + 2 * term] / loss
        slopes += [part, part * (np.log(columns[name]) - np.log(columns[name]).mean())]
    matrix = np.stack(slopes, axis=1)
    norm = np.linalg.norm(matrix, axis=0)
    matrix = matrix[:, norm > 0] / norm[norm > 0]
    u, size, _ = np.linalg.svd(matrix, full_matrices=False)
    return np.asarray(u[:, size > 1e-9 * size[0]])
