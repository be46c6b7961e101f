"""Fit a scaling curve: constants with intervals, the held-out check, and notes of caution."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ablate.errors import AblateError, unknown
from ablate.scaling.bootstrap import (
    BOOTSTRAPS,
    SETTLED,
    Band,
    Estimate,
    Interval,
    estimate,
    limits,
    widened,
)
from ablate.scaling.design import NAMES, demand
from ablate.scaling.forms import FORMS, STEEPEST, Cost, Form, best_split, level_of
from ablate.scaling.held_out import HeldOut, check, chosen_check
from ablate.scaling.noise import Noise, far_off, misfit, noise_of_repeats, residual_sd
from ablate.scaling.shared import Shared
from ablate.scaling.solve import Floats

FLAT = 1e-6  # an exponent below this is zero
# the smallest runs follow another curve if without them the loss at FURTHER times the largest
# budget moves by a share of MOVED, and by two of its standard deviations
FURTHER, MOVED, FEW_REPLICATES = 10.0, 0.01, 100
NAMED = 4  # runs named of those far off
NO_FLOOR = 0.01  # a floor below this share of the lowest loss counts as zero


@dataclass(frozen=True)
class Fit:
    """A fitted curve.

    Attributes:
        replicates: Constants of every bootstrap replicate [B, K], in the form's order.
    """

    form: Form
    constants: dict[str, Interval]
    runs: int
    lost: int  # runs without a finite loss; they are not fitted
    noise: float  # sd of log loss about the curve, corrected for the constants fitted
    replicates: Floats = field(repr=False)
    columns: dict[str, Floats] = field(repr=False)
    loss: Floats = field(repr=False)
    held_out: HeldOut | None
    notes: tuple[str, ...]
    cost: Cost
    describes: bool  # whether the curve describes its runs well enough to be used
    shared: Shared | None = field(repr=False)  # what is known of errors that runs share
    sds: Floats = field(repr=False)  # of these errors in every replicate [B, F]

    @property
    def values(self) -> Floats:
        """The constants [K], in the form's order."""
        return np.array([self.constants[name].value for name in self.form.constants])

    @property
    def trusted(self) -> bool:
        """Whether the curve describes its runs and predicted what was held out."""
        return self.describes and (self.held_out is None or self.held_out.trusted)

    @property
    def dof(self) -> int:
        """Runs minus constants."""
        return self.runs - len(self.form.constants)

    def predict(self, **columns: Floats) -> Band:
        """Return the curve at P points: the form's columns, [P] each, by name."""
        missing = [name for name in self.form.columns if name not in columns]
        assert not missing, f"{self.form.symbol} needs {missing}"
        value, copies = (
            self.form.loss(self.values, columns),
            self.form.loss(self.replicates, columns),
        )
        return Band(value, *limits(copies, self.dof))

    def best_split(self, c: Floats) -> tuple[Band, Band, Band]:
        """Return parameters, tokens and loss of the compute-optimal frontier at budgets c [P]."""
        assert self.form.columns == ("n", "d"), self.form.symbol
        values, copies = (
            best_split(constants, c, self.cost) for constants in (self.values, self.replicates)
        )
        n, d, loss = (
            Band(value, *limits(copy, self.dof)) for value, copy in zip(values, copies, strict=True)
        )
        return n, d, loss

    @property
    def n_exponent(self) -> Interval:
        """a = β/(α + γβ) of L(N, D): the best size grows as C^a.

        With C = 6·N·D, γ is 1, and tokens grow as C^(1 − γa). The interval includes that γ is not
        the same for all sizes.
        """
        assert self.form.columns == ("n", "d"), self.form.symbol

        def a(constants: Floats, gamma: float | Floats) -> Floats:
            # NaN for a replicate that falls along neither resource: it has no best size
            with np.errstate(invalid="ignore"):
                return np.asarray(
                    constants[..., 4] / (constants[..., 2] + gamma * constants[..., 4])
                )

        z = np.random.default_rng(0).normal(size=len(self.replicates))
        gammas = np.maximum(self.cost.gamma + self.cost.spread * z, 0.1 * self.cost.gamma)
        lo, hi = limits(a(self.replicates, gammas), self.dof)
        return Interval(float(a(self.values, self.cost.gamma)), float(lo), float(hi))

    @property
    def budgets(self) -> Floats:
        """FLOPs of every run [P]."""
        n, d = self.columns["n"], self.columns["d"]
        return self.columns.get("c", self.cost.k * n**self.cost.gamma * d)

    def residuals(self) -> Floats:
        """Log loss minus the curve's, of every run [P]."""
        return np.log(self.loss) - np.log(self.form.loss(self.values, self.columns))


def fit(
    loss: Floats,
    form: str = "",
    *,
    rng: np.random.Generator,
    hold_out: str = "",
    bootstraps: int = BOOTSTRAPS,
    **columns: Floats,
) -> Fit:
    """Fit the losses of P finished runs.

    Args:
        loss: [P].
        form: "n", "d", "c" or "nd"; by default from the names of the columns.
        rng: For the bootstrap.
        hold_out: "largest size", "largest tokens" or "largest budget"; by default the largest size
            if the form has sizes, else the form's resource.
        bootstraps: Number of replicates.
        columns: n (parameters), d (tokens), c (FLOPs), as the form needs, [P] each.

    Raises:
        AblateError: Sizes, budgets or runs are too few; the message names a grid that suffices.
    """
    chosen = chosen_form(form, columns)
    what = chosen_check(hold_out, chosen, columns)
    table, log_loss, lost = clean(loss, columns, chosen)
    demand(chosen, table)
    found = estimate(chosen, table, log_loss, rng, bootstraps)
    value, replicates, missed = found.value, found.replicates, [found.missed]
    demand_a_fall(chosen, value)
    dof, lowest = len(log_loss) - len(value), float(np.exp(log_loss.min()))
    lo, hi = limits(replicates, dof)
    if lo[0] < NO_FLOOR * lowest:
        without = estimate(chosen, table, log_loss, rng, bootstraps, floor=False)
        lo, hi = widened(lo, hi, without.replicates, dof)
        missed.append(without.missed)
    residuals = log_loss - np.log(chosen.loss(value, table))
    noise, near = residual_sd(residuals, len(value)), ~far_off(residuals, len(value))
    cells = np.stack([level_of(table[name]) for name in chosen.columns])
    usual = residual_sd(residuals[near], len(value))
    off = misfit(usual, dof, log_loss, noise_of_repeats(cells, log_loss))
    notes: tuple[str, ...] = () if off is None else (str(off),)
    notes += moved(chosen, table, log_loss, found, rng)
    notes += bounds_reached(found, lowest) + few(len(log_loss), len(value)) + open_ended(chosen, hi)
    notes += outside(chosen, value, table) + without_far(
        chosen, table, log_loss, residuals, near, rng
    )
    held_out = None
    try:
        held_out = check(chosen, table, log_loss, what, rng, bootstraps)
        missed.append(held_out.missed)
    except AblateError as error:
        notes += (f"No held-out check: {error}",)
    notes += not_converged(float(np.max(missed)))
    return Fit(
        form=chosen,
        constants={
            name: Interval(*map(float, row))
            for name, *row in zip(chosen.constants, value, lo, hi, strict=True)
        },
        runs=len(log_loss),
        lost=lost,
        noise=noise,
        replicates=replicates,
        columns=table,
        loss=np.exp(log_loss),
        held_out=held_out,
        notes=notes,
        cost=Cost.of(table),
        describes=off is None or off.describes,
        shared=found.shared,
        sds=found.sds,
    )


def with_noise(one: Fit, noise: Noise) -> Fit:
    """Return a fit whose residuals are compared with a noise that is known from elsewhere."""
    off = misfit(one.noise, one.dof, np.log(one.loss), noise)
    if off is None or not one.describes:
        return one
    return replace(one, describes=off.describes, notes=(str(off), *one.notes))


def chosen_form(form: str, columns: dict[str, Floats]) -> Form:
    """Return the form by its name, or by the columns given."""
    name = form or ("nd" if {"n", "d"} <= columns.keys() else "".join(columns))
    if name not in FORMS:
        raise unknown("form of scaling curve", name, FORMS)
    missing = [column for column in FORMS[name].columns if column not in columns]
    if missing:
        raise AblateError(
            f"{FORMS[name].symbol} needs the column{'s' if len(missing) > 1 else ''}"
            f" {', '.join(missing)}."
        )
    return FORMS[name]


def clean(
    loss: Floats, columns: dict[str, Floats], form: Form
) -> tuple[dict[str, Floats], Floats, int]:
    """Return columns and log losses of runs with a finite loss, and how many had none."""
    values = np.asarray(loss, float)
    table = {name: np.asarray(column, float) for name, column in columns.items()}
    for name, column in table.items():
        if column.shape != values.shape:
            raise AblateError(f"column {name} has {column.size} values for {values.size} losses.")
        if not (np.isfinite(column) & (column > 0)).all():
            raise AblateError(f"column {name} of {form.symbol} must be positive numbers.")
    if (values[np.isfinite(values)] <= 0).any():
        raise AblateError("a loss of zero or below cannot be fitted: the fit is of its logarithm.")
    keep = np.isfinite(values)
    return (
        {name: column[keep] for name, column in table.items()},
        np.log(values[keep]),
        int((~keep).sum()),
    )


def demand_a_fall(form: Form, value: Floats) -> None:
    """Check that the loss falls along each resource: else no best split of a budget follows."""
    flat = [
        name.upper()
        for name, exponent in zip(form.columns, value[2::2], strict=True)
        if exponent < FLAT
    ]
    if flat:
        alone = (
            f" Without {flat[0]} the others may be fitted." if len(flat) < len(form.columns) else ""
        )
        raise AblateError(
            f"{form.symbol}: the losses do not fall with {' or '.join(flat)}. The curves are of a"
            f" loss, which is better where it is lower.{alone}"
        )


def bounds_reached(found: Estimate, lowest: float) -> tuple[str, ...]:
    """Return a note for each constant at the edge of its range, and for a floor near zero."""
    notes = []
    if found.value[0] < NO_FLOOR * lowest:
        at = "is 0, the least it can be" if "E" in found.bounds else "is practically zero"
        notes.append(f"The floor E {at}: the losses bend too little to show one.")
    notes += [
        f"{name} is at the {end} value searched; the best may lie beyond it."
        for name, end in found.bounds.items()
        if (name, end) != ("E", "least")
    ]
    return tuple(notes)


def not_converged(missed: float) -> tuple[str, ...]:
    """Return a note if replicates, or the fit itself (NaN), may have missed their optimum."""
    if math.isnan(missed):
        return ("A fit did not converge: its constants are not those of the best curve.",)
    if missed <= SETTLED:
        return ()
    return (
        f"{missed:.1%} of the bootstrap fits may not have reached their optimum: the last of"
        " several rounds of new starts still improved them. The intervals are approximate.",
    )


def few(runs: int, constants: int) -> tuple[str, ...]:
    """Return a note if there are few runs for the number of constants."""
    if runs >= 2 * constants:
        return ()
    return (
        f"{runs} runs for {constants} constants: a 95% interval contains the true value in about"
        " 90% of cases.",
    )


def moved(
    form: Form,
    columns: dict[str, Floats],
    log_loss: Floats,
    found: Estimate,
    rng: np.random.Generator,
) -> tuple[str, ...]:
    """Return notes on the smallest size and budget, if without them the curve goes elsewhere.

    Where it goes is its loss at `FURTHER` times the largest budget.
    """
    cost, resources = Cost.of(columns), {name: columns[name] for name in form.columns}
    if form.columns == ("n", "d"):
        resources["c"] = columns.get("c", cost.k * columns["n"] ** cost.gamma * columns["d"])
        n, d, _ = best_split(found.value, FURTHER * resources["c"].max(keepdims=True), cost)
        there = {"n": n, "d": d}
    else:
        there = {name: FURTHER * x.max(keepdims=True) for name, x in resources.items()}
    before = float(np.log(form.loss(found.value, there))[0])
    notes = []
    for name, x in resources.items():
        kept = level_of(x) > 0
        rest = {key: column[kept] for key, column in columns.items()}
        try:
            demand(form, rest)
        except AblateError:
            continue
        other = estimate(form, rest, log_loss[kept], rng, FEW_REPLICATES, near=found.value)
        after = float(np.log(form.loss(other.value, there))[0])
        lo, hi = np.quantile(np.log(form.loss(other.replicates, there)) - after, [0.16, 0.84])
        if abs(after - before) > max(MOVED, hi - lo):  # these quantiles are two sds apart
            notes.append(
                f"Without the smallest {NAMES[name]}s ({name.upper()} below {x[kept].min():.3g},"
                f" {int((~kept).sum())} runs) the loss predicted at {FURTHER:g} times the"
                f" largest {NAMES[form.columns[0] if len(form.columns) == 1 else 'c']} changes by"
                f" {np.expm1(after - before):+.1%}: they follow another curve."
            )
    return tuple(notes)


def open_ended(form: Form, high: Floats) -> tuple[str, ...]:
    """Return a note for each exponent without an upper limit."""
    named = dict(zip(form.constants, high, strict=True))
    return tuple(
        f"{name} has no upper limit here: replicates reach {STEEPEST:g}, the steepest searched."
        for name in ("alpha", "beta")
        if named.get(name, 0.0) > 0.99 * STEEPEST
    )


def outside(form: Form, value: Floats, columns: dict[str, Floats]) -> tuple[str, ...]:
    """Return a note if best sizes of the middle half of budgets are outside those measured."""
    if form.columns != ("n", "d"):
        return ()
    cost, n = Cost.of(columns), columns["n"]
    budgets = np.quantile(cost.k * n**cost.gamma * columns["d"], [0.25, 0.75])
    best = best_split(value, budgets, cost)[0]
    if not np.isfinite(best).all() or (n.min() <= best.min() and best.max() <= n.max()):
        return ()
    return (
        f"The best sizes of the middle half of the budgets, {best.min():.3g} to"
        f" {best.max():.3g}, reach beyond those measured, {n.min():.3g} to {n.max():.3g}:"
        " statements on best sizes are extrapolated.",
    )


def without_far(
    form: Form,
    columns: dict[str, Floats],
    log_loss: Floats,
    residuals: Floats,
    near: npt.NDArray[np.bool_],
    rng: np.random.Generator,
) -> tuple[str, ...]:
    """Return a note on the runs that are not `near` [P] the curve, and the fit without them."""
    count = int((~near).sum())
    if not count:
        return ()
    farthest = np.abs(residuals).argsort()[::-1][: min(count, NAMED)]
    points = [
        ", ".join(f"{name.upper()} = {columns[name][at]:.3g}" for name in form.columns)
        for at in farthest
    ]
    named = "; ".join(
        f"at {point} by {np.expm1(residuals[at]):+.1%}"
        for point, at in zip(points, farthest, strict=True)
    )
    value = estimate(
        form, {name: column[near] for name, column in columns.items()}, log_loss[near], rng, 0
    ).value
    constants = ", ".join(
        f"{name} = {one:.4g}" for name, one in zip(form.constants, value, strict=True)
    )
    one, them = ("run lies", "it") if count == 1 else ("runs lie", "them")
    more = f"; and {count - NAMED} more" if count > NAMED else ""
    return (
        f"{count} {one} far off, {named}{more}. The others lie"
        f" {residual_sd(residuals[near], len(value)):.2%} off the curve; without {them}"
        f" {constants}.",
    )
