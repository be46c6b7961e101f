"""Fit a scaling curve: constants with bootstrap intervals over runs, and the check on a held-out largest size or budget."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy import stats as st

from ablate.errors import AblateError, unknown
from ablate.scaling.design import demand
from ablate.scaling.forms import FORMS, STEEPEST, Cost, Form, Problem, best_split, level_of, levels
from ablate.scaling.solve import Floats, minimise

HELD_OUT = {"largest size": "n", "largest tokens": "d", "largest budget": "c"}
BOOTSTRAPS = 1000
ROOM = 80  # runs × extra starts of a replicate: beyond 80 runs, one optimum is what all starts lead to
MOST_EXTRA = 6
NO_FLOOR = 0.01  # a floor below this share of the lowest loss is none
MISFIT = 2.0  # residuals larger than this times the noise from run to run are the form's fault


@dataclass(frozen=True)
class Interval:
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


@dataclass(frozen=True)
class HeldOut:
    """The fit without the largest size or budget, against what those runs reached."""

    what: str  # "largest size (N = 6e+06)"
    runs: int
    predicted: float  # geometric mean of the predicted losses
    actual: float  # geometric mean of the losses reached
    miss: float  # actual / predicted − 1
    lo: float  # interval of the miss that the fit expected: its own uncertainty and the noise of the runs
    hi: float
    column: str  # the resource: "n", "d" or "c"
    from_: float  # runs from here on were held out
    values: Floats = field(repr=False, compare=False)  # constants [K] without them

    @property
    def trusted(self) -> bool:
        return self.lo <= self.miss <= self.hi

    def __str__(self) -> str:
        text = (
            f"Fitted without the {self.what}, {self.runs} run{'s' if self.runs > 1 else ''}: predicted {self.predicted:.4f}, "
            f"reached {self.actual:.4f}, a miss of {self.miss:+.2%} (expected within {self.lo:+.2%} to {self.hi:+.2%})."
        )
        return text if self.trusted else text + " The miss exceeds the interval: do not trust the intervals beyond the runs."


@dataclass(frozen=True)
class Fit:
    """A fitted curve. `replicates` [B, K] holds the constants of every bootstrap replicate, in the form's order."""

    form: Form
    constants: dict[str, Interval]
    runs: int
    lost: int  # runs without a finite loss; they are not fitted
    noise: float  # sd of log loss about the curve, corrected for the constants fitted
    replicates: Floats = field(repr=False)
    columns: dict[str, Floats] = field(repr=False)
    loss: Floats = field(repr=False)
    confidence: float
    held_out: HeldOut | None
    notes: tuple[str, ...]
    cost: Cost
    describes: bool  # whether runs lie about as near to the curve as the noise from run to run says

    @property
    def values(self) -> Floats:
        """The constants [K], in the form's order."""
        return np.array([self.constants[name].value for name in self.form.constants])

    @property
    def trusted(self) -> bool:
        """Whether nothing speaks against the intervals: the curve describes its runs and foretold what was held out."""
        return self.describes and (self.held_out is None or self.held_out.trusted)

    @property
    def dof(self) -> int:
        return self.runs - len(self.form.constants)

    def predict(self, **columns: Floats) -> Band:
        """The curve at P points: the form's columns, [P] each, by name."""
        missing = [name for name in self.form.columns if name not in columns]
        assert not missing, f"{self.form.symbol} needs {missing}"
        value, copies = self.form.loss(self.values, columns), self.form.loss(self.replicates, columns)
        return Band(value, *limits(copies, self.dof, self.confidence))

    def best_split(self, c: Floats) -> tuple[Band, Band, Band]:
        """The compute-optimal frontier of L(N, D) at budgets c [P]: parameters, tokens, loss."""
        assert self.form.columns == ("n", "d"), self.form.symbol
        values, copies = (best_split(constants, c, self.cost) for constants in (self.values, self.replicates))
        n, d, loss = (Band(value, *limits(copy, self.dof, self.confidence)) for value, copy in zip(values, copies, strict=True))
        return n, d, loss

    @property
    def n_exponent(self) -> Interval:
        """a = β/(α+γβ) of L(N, D): the best size grows as C^a. γ is 1 where C = 6·N·D; then tokens grow as C^(1 − a)."""
        assert self.form.columns == ("n", "d"), self.form.symbol

        def a(constants: Floats) -> Floats:
            return np.asarray(constants[..., 4] / (constants[..., 2] + self.cost.gamma * constants[..., 4]))

        lo, hi = limits(a(self.replicates), self.dof, self.confidence)
        return Interval(float(a(self.values)), float(lo), float(hi))

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
    confidence: float = 0.95,
    **columns: Floats,
) -> Fit:
    """Fit the losses of P finished runs, [P]; columns n (parameters), d (tokens), c (FLOPs) as the form needs, [P] each.

    form: "n", "d", "c" or "nd"; by default the columns given. hold_out: "largest size", "largest tokens" or "largest budget"; by
    default size where the form has one, else what it has. AblateError where sizes, budgets or runs are too few, with a grid that
    would do.
    """
    chosen = chosen_form(form, columns)
    what = chosen_check(hold_out, chosen, columns)
    table, log_loss, lost = clean(loss, columns, chosen)
    demand(chosen, table)
    value, replicates = estimate(chosen, table, log_loss, rng, bootstraps)
    curve = np.log(chosen.loss(value, table))
    noise = residual_sd(log_loss - curve, len(value))
    lo, hi = limits(replicates, len(log_loss) - len(value), confidence)
    lowest = float(np.exp(log_loss.min()))
    if lo[0] < NO_FLOOR * lowest:
        lo, hi = widened(lo, hi, without_floor(chosen, table, log_loss, rng, bootstraps), len(log_loss) - len(value), confidence)
    constants = {name: Interval(*map(float, row)) for name, *row in zip(chosen.constants, value, lo, hi, strict=True)}
    held_out, notes = None, bounds_reached(chosen, value, lowest)
    if len(log_loss) < 2 * len(value):
        notes += (f"{len(log_loss)} runs for {len(value)} constants: a 95% interval holds the truth about 90% of the time.",)
    repeats, _ = repeated_noise(np.stack([level_of(table[name]) for name in chosen.columns]), log_loss)
    notes += open_ended(chosen, hi) + outside(chosen, value, table)
    describes = not noise > MISFIT * repeats  # without repeated runs, NaN: nothing is known against it
    notes += () if describes else (misfit(noise, repeats),)
    try:
        held_out = check(chosen, table, log_loss, what, rng, bootstraps, confidence)
    except AblateError as error:
        notes += (f"No held-out check: {error}",)
    return Fit(
        form=chosen,
        constants=constants,
        runs=len(log_loss),
        lost=lost,
        noise=noise,
        replicates=replicates,
        columns=table,
        loss=np.exp(log_loss),
        confidence=confidence,
        held_out=held_out,
        notes=notes,
        cost=Cost.of(table),
        describes=describes,
    )


def chosen_form(form: str, columns: dict[str, Floats]) -> Form:
    """The form by name, or by the columns given."""
    name = form or ("nd" if {"n", "d"} <= columns.keys() else "".join(columns))
    if name not in FORMS:
        raise unknown("form of scaling curve", name, FORMS)
    missing = [column for column in FORMS[name].columns if column not in columns]
    if missing:
        raise AblateError(f"{FORMS[name].symbol} needs the column{'s' if len(missing) > 1 else ''} {', '.join(missing)}.")
    return FORMS[name]


def clean(loss: Floats, columns: dict[str, Floats], form: Form) -> tuple[dict[str, Floats], Floats, int]:
    """The columns and log losses of runs with a finite loss, and how many had none."""
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
    return {name: column[keep] for name, column in table.items()}, np.log(values[keep]), int((~keep).sum())


def estimate(
    form: Form, columns: dict[str, Floats], log_loss: Floats, rng: np.random.Generator, bootstraps: int
) -> tuple[Floats, Floats]:
    """The constants [K], and those of every bootstrap replicate [B, K].

    The replicates are the Bayesian bootstrap's (Rubin 1981): every run is weighed by a standard exponential draw. Resampling runs
    whole would leave replicates of a small grid without one of its sizes.
    """
    problem = Problem.build(form, columns, log_loss)
    theta, replicates = solve(problem, log_loss, rng.exponential(size=(bootstraps, len(log_loss))))
    return problem.constants(theta[None])[0], problem.constants(replicates)


def without_floor(form: Form, columns: dict[str, Floats], log_loss: Floats, rng: np.random.Generator, bootstraps: int) -> Floats:
    """Replicates [B, K] of the constants with the floor E held at zero."""
    problem = Problem.build(form, columns, log_loss)
    problem.design.upper[0] = problem.design.lower[0]
    _, replicates = solve(problem, log_loss, rng.exponential(size=(bootstraps, len(log_loss))))
    return problem.constants(replicates)


def widened(lo: Floats, hi: Floats, replicates: Floats, dof: int, confidence: float) -> tuple[Floats, Floats]:
    """Limits [K] that reach the floor 0 and, for the other constants, also hold the limits of a curve without a floor.

    A floor cannot be below zero, so where it may be zero replicates lean to one side, and so do the exponents that go with them:
    of a pure power law their percentiles alone held the truth in 86 to 89% of tables.
    """
    low, high = limits(replicates, dof, confidence)
    low, high = np.minimum(lo, low), np.maximum(hi, high)
    low[0] = 0.0
    return low, high


def solve(problem: Problem, log_loss: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """The best θ [K] from a grid of starts, and θ [B, K] of the weighted replicates.

    Replicates start from that best θ; where runs are few, and the robust loss has several hollows, also from some of the grid.
    """
    grid = problem.starts(log_loss)
    runs = len(log_loss)
    theta, reached = minimise(problem.design, log_loss, np.ones((len(grid), runs)), grid)
    best = theta[reached.argmin()]
    copies, lowest = minimise(problem.design, log_loss, weights, np.tile(best, (len(weights), 1)))
    more = min(ROOM // runs, MOST_EXTRA)
    for start in grid[np.linspace(0, len(grid) - 1, more).astype(int)]:
        again, reached = minimise(problem.design, log_loss, weights, np.tile(start, (len(weights), 1)))
        copies[reached < lowest] = again[reached < lowest]
        lowest = np.minimum(lowest, reached)
    return best, copies


def limits(replicates: Floats, dof: int, confidence: float) -> tuple[Floats, Floats]:
    """Percentile interval over replicates (axis 0), with dof = runs − constants.

    The percentiles of a bootstrap are a normal's; from few runs they are moved out to those of a t (Hesterberg 2015, The American
    Statistician 69, 371–386). His further factor √(n/dof) is left out: replicates of this robust fit scatter more than the fit
    itself, and with it coverage was 98 to 99% instead of 95 to 97%.
    """
    tail = st.norm.sf(st.t.isf((1 - confidence) / 2, max(dof, 1)))
    lo, hi = np.nanquantile(replicates, [tail, 1 - tail], axis=0)
    return lo, hi


def chosen_check(hold_out: str, form: Form, columns: dict[str, Floats]) -> str:
    """What to hold out: as told, or the largest value of the form's first resource."""
    what = hold_out or next(what for what, column in HELD_OUT.items() if column == form.columns[0])
    if what not in HELD_OUT:
        raise unknown("hold_out", what, HELD_OUT)
    if HELD_OUT[what] not in columns:
        raise AblateError(f"hold_out {what!r} needs the column {HELD_OUT[what]}.")
    return what


def check(
    form: Form,
    columns: dict[str, Floats],
    log_loss: Floats,
    what: str,
    rng: np.random.Generator,
    bootstraps: int = BOOTSTRAPS,
    confidence: float = 0.95,
) -> HeldOut:
    """Fit without the largest size or budget, predict it, and set the miss against what the fit expected."""
    x = columns[HELD_OUT[what]]
    top = levels(x)[-1]
    out = x >= top
    rest = {name: column[~out] for name, column in columns.items()}
    demand(form, rest, f"without the {what}, ")
    value, replicates = estimate(form, rest, log_loss[~out], rng, bootstraps)
    there = {name: column[out] for name, column in columns.items()}
    predicted = np.log(form.loss(value, there)).mean()
    copies = np.log(form.loss(replicates, there)).mean(axis=1)
    residuals = log_loss[~out] - np.log(form.loss(value, rest))
    widened = residuals * np.sqrt(len(residuals) / (len(residuals) - len(value)))
    noise = rng.choice(widened, size=(len(copies), int(out.sum()))).mean(axis=1)
    lo, hi = limits(copies + noise - predicted, len(residuals) - len(value), confidence)
    actual = log_loss[out].mean()
    return HeldOut(
        what=f"{what} ({HELD_OUT[what].upper()} = {top:.3g})",
        runs=int(out.sum()),
        predicted=float(np.exp(predicted)),
        actual=float(np.exp(actual)),
        miss=float(np.expm1(actual - predicted)),
        lo=float(np.expm1(lo)),
        hi=float(np.expm1(hi)),
        column=HELD_OUT[what],
        from_=float(top),
        values=value,
    )


def repeated_noise(cells: npt.NDArray[np.intp], log_loss: Floats) -> tuple[float, int]:
    """The sd of log loss among runs of one cell, cells [V, P], and its degrees of freedom; NaN below five of them."""
    _, member, runs = np.unique(cells, axis=1, return_inverse=True, return_counts=True)
    within = log_loss - (np.bincount(member, log_loss) / runs)[member]
    spare = int((runs - 1).sum())
    return (float(np.sqrt((within**2).sum() / spare)) if spare >= 5 else float("nan")), spare


def misfit(residual: float, noise: float) -> str:
    return (
        f"Runs lie {residual:.2%} off the curve, though the noise from run to run is {noise:.2%}: the form does not describe "
        "them, and its intervals leave that out."
    )


def residual_sd(residuals: Floats, constants: int) -> float:
    return float(np.sqrt((residuals**2).sum() / max(len(residuals) - constants, 1)))


def open_ended(form: Form, high: Floats) -> tuple[str, ...]:
    named = dict(zip(form.constants, high, strict=True))
    return tuple(
        f"{name} has no upper limit here: replicates reach {STEEPEST:g}, the steepest that is looked for."
        for name in ("alpha", "beta")
        if named.get(name, 0.0) > 0.99 * STEEPEST
    )


def outside(form: Form, value: Floats, columns: dict[str, Floats]) -> tuple[str, ...]:
    """That the best sizes of the middle half of the budgets are not among the sizes measured."""
    if form.columns != ("n", "d"):
        return ()
    cost, n = Cost.of(columns), columns["n"]
    budgets = np.quantile(cost.k * n**cost.gamma * columns["d"], [0.25, 0.75])
    best = best_split(value, budgets, cost)[0]
    if not np.isfinite(best).all() or (n.min() <= best.min() and best.max() <= n.max()):
        return ()
    return (
        f"The best sizes of the middle half of the budgets, {best.min():.3g} to {best.max():.3g}, reach beyond those measured, "
        f"{n.min():.3g} to {n.max():.3g}: what is said of best sizes is extrapolated.",
    )


def bounds_reached(form: Form, value: Floats, lowest: float) -> tuple[str, ...]:
    """What a constant at the edge of its range means."""
    notes = []
    named = dict(zip(form.constants, value, strict=True))
    if named["E"] < NO_FLOOR * lowest:
        notes.append("The floor E is not told from zero: the losses bend too little to show it.")
    for name in ("alpha", "beta"):
        if named.get(name, 1.0) < 1e-6:
            notes.append(f"{name} is zero: the loss does not fall along this resource.")
    return tuple(notes)
