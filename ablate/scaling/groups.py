"""Comparison of groups' curves: do they differ in offset or exponent, and where do they cross?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ablate.scaling.bootstrap import CONFIDENCE, Interval, limits, replicate
from ablate.scaling.fit import Fit
from ablate.scaling.forms import Problem, best_split, level_of
from ablate.scaling.shared import Shared, levels_shared, shared_errors
from ablate.scaling.solve import Floats
from ablate.stats.distributions import norm_isf, t_isf, t_sf
from ablate.stats.families import holm
from ablate.stats.values import satterthwaite

BEYOND = 100.0  # how far outside the measured range, as a ratio, crossings are searched
LEAST_POINTS = 3  # fewest points of both curves for their mean difference
POINTS = 401  # points of the range at which two curves are compared


@dataclass(frozen=True)
class Difference:
    """An exponent minus the baseline's, with p from the replicates of the interval."""

    interval: Interval
    p: float
    p_holm: float


@dataclass(frozen=True)
class Crossing:
    """Where two curves meet.

    Attributes:
        at: The crossing; NaN if there is none in the range searched; lo 0 and hi ∞ mean beyond it.
    """

    at: Interval
    inside: bool  # whether it is in the measured range
    share_inside: float  # share of replicates that cross in it

    def __str__(self) -> str:
        return self.text("{:.3g}".format)

    def text(self, write: Callable[[float], str]) -> str:
        """Return the crossing with interval and share of replicates; `write` formats a value."""
        if math.isnan(self.at.value):
            text = f"no crossing within {BEYOND:g} times the measured range"
        else:
            text = (
                f"crossing at {write(self.at.value)}, {'inside' if self.inside else 'outside'} the"
                " measured range"
            )
        ends = (
            write(self.at.lo) if self.at.lo else "no lower end",
            write(self.at.hi) if self.at.hi < math.inf else "no upper end",
        )
        interval = " to ".join(ends)
        if self.at.lo == 0 < self.at.hi == math.inf:
            interval = "it may be anywhere, or nowhere"
        elif self.at.lo == self.at.hi:
            interval = f"beyond that {'below' if self.at.hi == 0 else 'above'}, or nowhere"
        return (
            f"{text} (interval: {interval}); {self.share_inside:.0%} of replicates cross inside it"
        )


@dataclass(frozen=True)
class Comparison:
    """A group's curve against the baseline's.

    axis: the resource compared along; for L(N, D) the budget C, each curve at its own best split of
    it.
    """

    group: str
    baseline: str
    axis: str
    low: float  # the measured range of the axis, of both groups together
    high: float
    # each curve with its own floor: no assumption, wide intervals
    exponents: dict[str, Difference]
    one_floor: dict[str, Difference]  # if both curves had the same floor E
    gap: Interval  # loss over the baseline's − 1, geometric mean over the range
    gap_low: Interval  # at its low end
    gap_high: Interval
    # loss over the baseline's − 1, by pairs of runs at the same points
    measured: Interval | None
    doubts: tuple[str, ...]  # why the comparison is not reliable, and of which group
    crossing: Crossing
    missed: float  # as `replicate` returns, of the fits with one floor

    @property
    def trusted(self) -> bool:
        """Whether both curves describe their runs and predicted what was held out."""
        return not self.doubts

    @property
    def verdict(self) -> str:
        """What differs significantly: "exponent", "offset" (the loss alone) or "inconclusive"."""
        if any(difference.p_holm <= 1 - CONFIDENCE for difference in self.exponents.values()):
            return "exponent"
        gap = self.measured or self.gap
        return "inconclusive" if gap.lo <= 0 <= gap.hi else "offset"


def compare_groups(
    fits: Mapping[str, Fit], against: Mapping[str, str], *, rng: np.random.Generator
) -> list[Comparison]:
    """Compare groups with their baselines.

    Groups of the same points are compared as pairs, run by run, which removes noise common to runs
    of one seed and errors common to a size.

    Args:
        fits: Group → its fit; all of one form.
        against: Group → its baseline.
        rng: For the replicates of pairs.

    Returns:
        A comparison for each of `against`, with Holm's p over all groups and exponents.
    """
    assert len({(fit.form, len(fit.replicates)) for fit in fits.values()}) == 1, (
        "fits of one form with as many replicates"
    )
    comparisons = [
        compare(fits[name], fits[base], name, base, rng) for name, base in against.items()
    ]
    exponents = corrected([one.exponents for one in comparisons])
    one_floor = corrected([one.one_floor for one in comparisons])
    return [
        replace(one, exponents=a, one_floor=b)
        for one, a, b in zip(comparisons, exponents, one_floor, strict=True)
    ]


def corrected(family: list[dict[str, Difference]]) -> list[dict[str, Difference]]:
    """Return the differences with Holm's p over all of them."""
    p = iter(holm([difference.p for one in family for difference in one.values()]))
    return [
        {name: replace(difference, p_holm=float(next(p))) for name, difference in one.items()}
        for one in family
    ]


def compare(fit: Fit, base: Fit, name: str, baseline: str, rng: np.random.Generator) -> Comparison:
    """Compare the curve of a group with its baseline's; p without Holm's correction."""
    form, names = (
        fit.form,
        [constant for constant in fit.form.constants if constant in ("alpha", "beta")],
    )
    at = [form.constants.index(constant) for constant in names]
    draw = Draw.of(fit, base, rng)
    own, base_own = draw.own(fit, base)
    apart = fit.values[at] - base.values[at], own[:, at] - base_own[:, at]
    dofs = draw.dofs(fit, base, own[:, at], base_own[:, at])
    joined, joined_copies, missed = one_floor(fit, base, at, draw)
    axis, low, high = measured_range(fit, base)
    x = np.geomspace(low / BEYOND, high * BEYOND, POINTS)
    value = log_curve(fit, fit.values, axis, x) - log_curve(base, base.values, axis, x)
    curves = log_curve(fit, own, axis, x), log_curve(base, base_own, axis, x)
    copies = curves[0] - curves[1]
    within = np.flatnonzero((x >= 0.999 * low) & (x <= 1.001 * high))
    parts = within, within[:1], within[-1:]
    means = [np.stack([one[:, part].mean(axis=1) for part in parts], axis=1) for one in curves]
    gap_dofs = draw.dofs(fit, base, *means)
    gaps = [
        gap(value[part], copies[:, part], dof) for part, dof in zip(parts, gap_dofs, strict=True)
    ]
    return Comparison(
        group=name,
        baseline=baseline,
        axis=axis,
        low=low,
        high=high,
        exponents=differences(names, *apart, dofs),
        # the floor is the one constant that they need not estimate twice
        one_floor=differences(names, joined, joined_copies, dofs + 1),
        gap=gaps[0],
        gap_low=gaps[1],
        gap_high=gaps[2],
        measured=measured(fit, base),
        doubts=(*doubts(name, fit), *doubts(baseline, base)),
        crossing=crossing(x, value, copies, low, high, gap_dofs[0]),
        missed=missed,
    )


def doubts(name: str, fit: Fit) -> Iterator[str]:
    """Yield why the curve of a group is not to be trusted."""
    if not fit.describes:
        yield f"the curve of {name} does not describe its runs"
    if fit.held_out is not None and not fit.held_out.trusted:
        yield f"that of {name} missed the {fit.held_out.what} by {fit.held_out.miss:+.2%}"


def measured(fit: Fit, base: Fit) -> Interval | None:
    """Return the mean relative difference at the points of both groups, without a curve.

    The interval is the widest of Student's over points, sizes and budgets; None with fewer than
    `LEAST_POINTS` points.
    """
    names = fit.form.columns
    both = [level_of(np.concatenate([base.columns[name], fit.columns[name]])) for name in names]
    of, back = np.unique(np.stack(both), axis=1, return_index=True, return_inverse=True)[1:]
    back = back.reshape(-1)
    sums, runs = [], []
    for part, losses in ((back[: base.runs], base.loss), (back[base.runs :], fit.loss)):
        sums.append(np.bincount(part, np.log(losses), minlength=len(of)))
        runs.append(np.bincount(part, minlength=len(of)))
    shared = (runs[0] > 0) & (runs[1] > 0)
    if shared.sum() < LEAST_POINTS:
        return None
    apart = sums[1][shared] / runs[1][shared] - sums[0][shared] / runs[0][shared]
    points = {
        name: np.concatenate([base.columns[name], fit.columns[name]])[of[shared]] for name in names
    }
    half = max(
        half_width(apart, level)
        for level in (np.arange(len(apart)), *levels_shared(fit.form, points).values())
    )
    return Interval(*(float(np.expm1(apart.mean() + side)) for side in (0.0, -half, half)))


def half_width(apart: Floats, of: npt.NDArray[np.intp]) -> float:
    """Return half of Student's interval of the mean of differences [P], by means of levels [P].

    The differences of a level, as of a size, may share an error: levels are what is independent.
    """
    runs = np.bincount(of)
    if len(runs) < LEAST_POINTS:
        return 0.0
    sums = np.bincount(of, apart - apart.mean())
    sd = math.sqrt((sums**2).sum() * len(runs) / (len(runs) - 1)) / runs.sum()
    return float(t_isf((1 - CONFIDENCE) / 2, len(runs) - 1)) * sd


def gap(value: Floats, copies: Floats, dof: float) -> Interval:
    """Return the mean of log ratios [X], with replicates [B, X], as a relative change of loss."""
    lo, hi = limits(copies.mean(axis=1), dof)
    return Interval(*(float(np.expm1(one)) for one in (value.mean(), lo, hi)))


def differences(
    names: list[str], value: Floats, copies: Floats, dofs: Floats
) -> dict[str, Difference]:
    """Return intervals of differences [k] with replicates [B, k], and p by inverting them."""
    found = {}
    for name, one, copy, dof in zip(names, value, copies.T, dofs, strict=True):
        lo, hi = limits(copy, dof)
        interval = Interval(float(one), float(lo), float(hi))
        found[name] = Difference(interval, p_of_zero(copy, dof), math.nan)
    return found


def p_of_zero(copies: Floats, dof: float) -> float:
    """Return the two-sided p at which the interval of `limits` touches zero."""
    below, above = (copies < 0).mean(), (copies > 0).mean()
    tail = max(min(below, above), 0.5 / len(copies))  # the smallest that B replicates can show
    return min(1.0, float(2 * t_sf(norm_isf(tail), max(dof, 1))))


@dataclass(frozen=True)
class Draw:
    """What B replicates of a pair of groups weigh their runs by, and add to their log losses."""

    paired: bool  # whether both groups have the same points
    weights: Floats  # [B, P], the baseline's runs first
    shifts: Floats  # [B, P]
    base_runs: int

    @staticmethod
    def of(fit: Fit, base: Fit, rng: np.random.Generator) -> Draw:
        """Draw them. Of pairs, weights are the same, and shared errors those of the difference."""
        count = len(fit.replicates)
        paired = same_points(fit.columns, base.columns, fit.form.columns)
        weights = rng.exponential(size=(count, base.runs))
        if paired:
            apart = fit.residuals() - base.residuals()
            found = shared_errors(fit.form, base.values, base.columns, apart)
            half = _shifts(found, base.runs, count, rng) / 2
            return Draw(True, np.tile(weights, 2), np.concatenate([-half, half], axis=1), base.runs)
        other = rng.exponential(size=(count, fit.runs))
        shifts = [_shifts(one.shared, one.runs, count, rng) for one in (base, fit)]
        return Draw(
            False,
            np.concatenate([weights, other], axis=1),
            np.concatenate(shifts, axis=1),
            base.runs,
        )

    def own(self, fit: Fit, base: Fit) -> tuple[Floats, Floats]:
        """Return the constants [B, K] of both groups' replicates, each with its own floor."""
        if not self.paired:
            return fit.replicates, base.replicates
        of = slice(self.base_runs, None), slice(None, self.base_runs)
        return tuple(  # type: ignore[return-value]
            refit(one, self.weights[:, runs], self.shifts[:, runs])
            for one, runs in zip((fit, base), of, strict=True)
        )

    def dofs(self, fit: Fit, base: Fit, own: Floats, base_own: Floats) -> Floats:
        """Return the degrees of freedom of differences [k], from both groups' replicates [B, k].

        Of pairs only the differences of their residuals count, and the difference of two curves
        takes as many constants as one curve. Of others each group counts by its share of the
        squared error.
        """
        if self.paired:
            return np.full(own.shape[1], float(fit.dof))
        return np.array(
            [
                satterthwaite([_spread(a) ** 2, _spread(b) ** 2], [fit.dof, base.dof])
                for a, b in zip(own.T, base_own.T, strict=True)
            ]
        )


def _spread(copies: Floats) -> float:
    """Return the sd of replicates [B] by the middle two thirds: their tails may be very long."""
    low, high = np.nanquantile(copies, [0.16, 0.84])
    return float(high - low) / 2


def _shifts(shared: Shared | None, runs: int, count: int, rng: np.random.Generator) -> Floats:
    return np.zeros((count, runs)) if shared is None else shared.shifts(rng, count)[0]


def refit(fit: Fit, weights: Floats, shifts: Floats) -> Floats:
    """Return the constants [B, K] of replicates of a fit."""
    log_loss = np.log(fit.loss)
    problem = Problem.build(fit.form, fit.columns, log_loss)
    return problem.constants(replicate(problem, log_loss, weights, lambda theta: shifts)[1])


def one_floor(fit: Fit, base: Fit, at: list[int], draw: Draw) -> tuple[Floats, Floats, float]:
    """Return differences of exponents [k] with one floor, replicates [B, k], and their misses."""
    columns = {
        name: np.concatenate([base.columns[name], fit.columns[name]]) for name in fit.form.columns
    }
    log_loss = np.log(np.concatenate([base.loss, fit.loss]))
    problem = Problem.build(fit.form, columns, log_loss, np.repeat([0, 1], [base.runs, fit.runs]))
    theta, copies, missed = replicate(problem, log_loss, draw.weights, lambda theta: draw.shifts)
    both = np.concatenate([theta[None], copies])
    apart = problem.constants(both, 1)[:, at] - problem.constants(both, 0)[:, at]
    return apart[0], apart[1:], missed


def same_points(a: dict[str, Floats], b: dict[str, Floats], names: tuple[str, ...]) -> bool:
    """Return whether two tables have the same points in the same order, within 5%.

    Matching budgets changes parameters a little.
    """
    return all(
        a[name].shape == b[name].shape and bool((np.abs(np.log(a[name] / b[name])) < 0.05).all())
        for name in names
    )


def measured_range(fit: Fit, base: Fit) -> tuple[str, float, float]:
    """Return the resource to compare two curves along, and its range in both groups."""
    if len(fit.form.columns) == 1:
        name, both = (
            fit.form.columns[0],
            np.concatenate([one.columns[fit.form.columns[0]] for one in (fit, base)]),
        )
    else:
        name, both = "c", np.concatenate([fit.budgets, base.budgets])
    return name, float(both.min()), float(both.max())


def log_curve(fit: Fit, constants: Floats, axis: str, x: Floats) -> Floats:
    """Return ln of the loss [..., X] at x [X] of the axis, for constants [..., K].

    The loss of L(N, D) is that of the best split.
    """
    if len(fit.form.columns) == 2:
        return np.log(best_split(constants, x, fit.cost)[2])
    return np.log(fit.form.loss(constants, {axis: x}))


def crossing(
    x: Floats, value: Floats, copies: Floats, low: float, high: float, dof: float
) -> Crossing:
    """Return where curves cross, nearest to the middle of the measured range.

    A replicate that does not cross counts as crossing beyond the end at which its curves are
    closer.

    Args:
        x: Values of the resource [X].
        value: Difference of log losses [X].
        copies: Its replicates [B, X].
        low: Low end of the measured range.
        high: High end of the measured range.
        dof: Degrees of freedom of the difference.
    """
    at = meeting(x, value[None], low, high)[0]
    crossings = meeting(x, copies, low, high)
    ends = limits(np.log(np.clip(crossings, x[0] / 2, x[-1] * 2)), dof)
    lo, hi = (
        0.0 if end < np.log(x[0]) else math.inf if end > np.log(x[-1]) else float(np.exp(end))
        for end in ends
    )
    shown = float(at) if x[0] <= at <= x[-1] else math.nan
    inside = (crossings >= low) & (crossings <= high)
    return Crossing(Interval(shown, lo, hi), bool(low <= at <= high), float(inside.mean()))


def meeting(x: Floats, gaps: Floats, low: float, high: float) -> Floats:
    """Return where each row of gaps [B, X] changes sign nearest the middle of [low, high].

    Rows without such a change give 0 or ∞.
    """
    log_x = np.log(x)
    middle = (math.log(low) + math.log(high)) / 2
    changes = np.sign(gaps[:, :-1]) * np.sign(gaps[:, 1:]) < 0
    with np.errstate(invalid="ignore", divide="ignore"):
        share = gaps[:, :-1] / (gaps[:, :-1] - gaps[:, 1:])
    crossings = np.where(changes, log_x[:-1] + share * np.diff(log_x), np.nan)
    away = np.where(changes, np.abs(crossings - middle), np.inf)
    nearest = np.exp(np.take_along_axis(crossings, away.argmin(axis=1)[:, None], axis=1)[:, 0])
    beyond = np.where(np.abs(gaps[:, 0]) < np.abs(gaps[:, -1]), 0.0, np.inf)
    return np.where(changes.any(axis=1), nearest, beyond)
