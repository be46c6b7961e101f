"""Forms of a curve: a floor and a power law for each resource; the best split of a budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ablate.scaling.solve import Design, Floats

# forward and backward pass, the usual estimate C = 6·N·D (Kaplan et al. 2020)
FLOPS_PER_PARAM_TOKEN = 6.0
# sizes and budgets closer than this ratio count as one: steps and widths are whole numbers
SAME = 1.05

# scales are searched down to e^−8 of the lowest loss: 0.03% of it, practically zero
SCALE_BELOW = 8.0
HIGHEST_FLOOR = 1.1  # of the lowest loss
STEEPEST = 4.0  # the largest exponent searched


@dataclass(frozen=True)
class Form:
    """One equation for the loss. The order of constants is E, A, alpha (, B, beta)."""

    symbol: str
    equation: str
    columns: tuple[str, ...]  # the resources: "n" parameters, "d" tokens, "c" FLOPs
    constants: tuple[str, ...]

    def loss(self, constants: Floats, columns: dict[str, Floats]) -> Floats:
        """Return the loss at P points: constants [..., K], each column [P] → [..., P]."""
        total = constants[..., :1]
        for term, name in enumerate(self.columns):
            scale, exponent = constants[..., 1 + 2 * term, None], constants[..., 2 + 2 * term, None]
            total = total + scale * np.asarray(columns[name], float) ** -exponent
        return np.asarray(total)


FORMS = {
    "n": Form("L(N)", "E + A/N^alpha", ("n",), ("E", "A", "alpha")),
    "d": Form("L(D)", "E + A/D^alpha", ("d",), ("E", "A", "alpha")),
    "c": Form("L(C)", "E + A/C^alpha", ("c",), ("E", "A", "alpha")),
    "nd": Form("L(N, D)", "E + A/N^alpha + B/D^beta", ("n", "d"), ("E", "A", "alpha", "B", "beta")),
}


@dataclass(frozen=True)
class Problem:
    """A form at P points of one group or several, as the solver wants it.

    Every group has a scale and an exponent of its own for each resource; the floor E is one for
    all. Inside the solver a resource is measured from the centre of its logarithms, so that scale
    and exponent hardly depend on each other.
    """

    form: Form
    design: Design
    centre: Floats  # [V], one for each resource
    groups: int

    @staticmethod
    def build(
        form: Form,
        columns: dict[str, Floats],
        log_loss: Floats,
        group: npt.NDArray[np.intp] | None = None,
    ) -> Problem:
        """Build the fit of one form to all groups.

        Args:
            form: Of the curve.
            columns: [P] each.
            log_loss: [P], which sets the bounds.
            group: Group of each run, [P] from 0; None for one group.
        """
        logs = np.log([columns[name] for name in form.columns])
        centre = logs.mean(axis=1)
        resources, points = logs.shape
        member = np.zeros(points, int) if group is None else group
        groups = int(member.max()) + 1
        x = np.zeros((resources, points, 1 + 2 * resources * groups))
        for v in range(resources):
            scale = 1 + 2 * (member * resources + v)
            x[v, np.arange(points), scale] = 1
            x[v, np.arange(points), scale + 1] = centre[v] - logs[v]
        low, high = float(log_loss.min()), float(log_loss.max())
        pairs = resources * groups
        lower = np.array([0.0] + [low - SCALE_BELOW, 0.0] * pairs)
        upper = np.array([HIGHEST_FLOOR] + [high + 2.0, STEEPEST] * pairs)
        return Problem(form, Design(x, low, lower, upper), centre, groups)

    def starts(self, log_loss: Floats) -> Floats:
        """Return the grid of starts, equal in every group, from shares of the lowest loss."""
        low = float(log_loss.min())
        exponents = (0.1, 0.3, 0.8) if len(self.centre) > 1 else (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
        choices = np.stack(
            np.meshgrid([0.3, 0.8], [0.1, 0.4], *[exponents] * len(self.centre)), -1
        ).reshape(-1, 2 + len(self.centre))
        rows = []
        for floor, scale, *slopes in choices:
            terms = [value for slope in slopes for value in (low + np.log(scale), slope)]
            rows.append([floor, *terms * self.groups])
        return np.array(rows)

    def theta(self, constants: Floats) -> Floats:
        """Return the solver's θ [K] from E, A, alpha (, B, beta), for one group."""
        out = [constants[0] * np.exp(-self.design.unit)]
        for v, centre in enumerate(self.centre):
            scale, exponent = constants[1 + 2 * v], constants[2 + 2 * v]
            out += [np.log(scale) - exponent * centre, exponent]
        return np.array(out)

    def bounds(self, theta: Floats) -> dict[str, str]:
        """Return "least" or "largest" for each constant of θ [K] at a bound, for one group."""
        ends = (("least", theta <= self.design.lower), ("largest", theta >= self.design.upper))
        return {
            name: end
            for end, reached in ends
            for name, there in zip(self.form.constants, reached, strict=True)
            if there
        }

    def constants(self, theta: Floats, group: int = 0) -> Floats:
        """Return E, A, alpha (, B, beta) of one group [B, k] from the solver's θ [B, K]."""
        out = [theta[:, 0] * np.exp(self.design.unit)]
        for v, centre in enumerate(self.centre):
            scale = 1 + 2 * (group * len(self.centre) + v)
            out += [np.exp(theta[:, scale] + theta[:, scale + 1] * centre), theta[:, scale + 1]]
        return np.stack(out, axis=1)


@dataclass(frozen=True)
class Cost:
    """What N parameters and D tokens cost: C = k·N^γ·D; 6·N·D is inaccurate for small models."""

    k: float = FLOPS_PER_PARAM_TOKEN
    gamma: float = 1.0
    spread: float = 0.0  # sd of the local γ, from one size to the next: the path is no power law

    @staticmethod
    def of(columns: dict[str, Floats]) -> Cost:
        """Fit log FLOPs a token over log size if n, d and c [P] are known; else return 6·N·D."""
        if not {"n", "d", "c"} <= columns.keys():
            return Cost()
        x, y = np.log(columns["n"]), np.log(columns["c"] / columns["d"])
        if len(levels(columns["n"])) == 1:
            return Cost(float(np.exp((y - x).mean())))
        off = x - x.mean()
        gamma = float(off @ y / (off @ off))
        of = level_of(columns["n"])
        runs = np.bincount(of)
        steps = np.diff(np.bincount(of, x) / runs)
        slopes = np.diff(np.bincount(of, y) / runs) / steps
        spread = math.sqrt(np.average((slopes - gamma) ** 2, weights=steps))
        return Cost(float(np.exp(y.mean() - gamma * x.mean())), gamma, spread)


def best_split(constants: Floats, c: Floats, cost: Cost = Cost()) -> tuple[Floats, Floats, Floats]:
    """Return the N and D that reach the lowest loss of L(N, D) within C FLOPs, and that loss.

    With C = k·N^γ·D: N ∝ C^(β/(α+γβ)); for γ = 1 it is equation 4 of Hoffmann et al. 2022.

    Args:
        constants: [..., 5].
        c: budgets [P].
        cost: of N parameters and D tokens.

    Returns:
        N, D and loss, [..., P] each.
    """
    floor, a, alpha, b, beta = (constants[..., i, None] for i in range(5))
    budget = np.asarray(c, float) / cost.k
    steep = alpha + cost.gamma * beta
    # an exponent of zero has no best split: NaN
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        n = (alpha * a / (cost.gamma * beta * b)) ** (1 / steep) * budget ** (beta / steep)
        d = budget / n**cost.gamma
        return n, d, floor + a * n**-alpha + b * d**-beta


def levels(x: Floats) -> Floats:
    """Return the distinct values of a column, ascending; values within 5% are one."""
    lowest: list[float] = []
    for value in np.sort(x):
        if not lowest or value > lowest[-1] * SAME:
            lowest.append(float(value))
    return np.array(lowest)


def level_of(x: Floats) -> npt.NDArray[np.intp]:
    """Return for every value the index of its level in `levels(x)`."""
    return np.searchsorted(levels(x), x, side="right") - 1
