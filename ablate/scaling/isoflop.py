"""IsoFLOP curves: the size of lowest loss in each budget, and how it grows with the budget.

The minimum is read off an Akima interpolation of log loss over log size (Porian et al. 2024,
arXiv:2406.19146): a parabola through the whole range is pulled aside by the steeper flank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.interpolate import Akima1DInterpolator

from ablate.errors import AblateError
from ablate.scaling.bootstrap import BOOTSTRAPS, CONFIDENCE, Interval
from ablate.scaling.fit import Fit, clean, fit
from ablate.scaling.forms import FLOPS_PER_PARAM_TOKEN, FORMS, level_of
from ablate.scaling.noise import REPEATS, Noise, noise_of_repeats
from ablate.scaling.shared import Shared, errors_about, factors, without
from ablate.scaling.solve import Floats

LEAST_SIZES = 4  # in a budget
LEAST_BUDGETS = 3


@dataclass(frozen=True)
class Minimum:
    """One budget: the size of lowest loss, or why there is none."""

    c: float
    sizes: Floats  # measured, ascending
    losses: Floats  # geometric mean over the runs of a size
    n: Interval
    d: float
    loss: float
    reason: str = ""  # why this budget has no minimum; then n, d and loss are NaN

    def curve(self, points: int = 200) -> tuple[Floats, Floats]:
        """Return sizes and losses of the interpolation."""
        x = np.log(self.sizes)
        dense = np.linspace(x[0], x[-1], points)
        return np.exp(dense), np.exp(Akima1DInterpolator(x, np.log(self.losses))(dense))


@dataclass(frozen=True)
class IsoFlop:
    """N_opt = n_scale · C^n_exponent, likewise D_opt; with enough minima, their loss over C."""

    minima: tuple[Minimum, ...]
    n_exponent: Interval
    d_exponent: Interval
    n_scale: float
    d_scale: float
    noise: float  # sd of log loss from run to run
    noise_from: str  # "repeated runs" | "roughness of the curves"
    rough: Noise | None  # that roughness, if no run is repeated
    frontier: Fit | None
    notes: tuple[str, ...]

    def best_split(self, c: Floats) -> tuple[Floats, Floats]:
        """Return compute-optimal parameters and tokens at budgets [P]."""
        budget = np.asarray(c, float)
        return (
            self.n_scale * budget**self.n_exponent.value,
            self.d_scale * budget**self.d_exponent.value,
        )


@dataclass(frozen=True)
class Budget:
    """The runs of one budget: ascending sizes, each the mean of its runs, in logarithms [S]."""

    c: float
    sizes: Floats
    losses: Floats
    tokens: Floats
    runs: Floats  # of each size
    rows: npt.NDArray[np.intp]  # runs of this budget
    size: npt.NDArray[np.intp]  # of each of these runs

    def means(self, errors: Floats) -> Floats:
        """Return errors of all runs [B, P] as those of the sizes' means [S, B]."""
        return np.eye(len(self.sizes))[self.size].T @ errors[:, self.rows].T / self.runs[:, None]

    def smooth(self) -> Floats:
        """Return an orthonormal basis [R, k] of polynomials in log size, at its runs.

        They are cubic, of higher degree for more than seven sizes and parabolas for four: fewer
        sizes show no noise.
        """
        sizes = len(self.sizes)
        degree = min(max(3, sizes // 2), sizes - 2) if sizes >= LEAST_SIZES else sizes - 1
        x = self.sizes - self.sizes.mean()
        return np.linalg.qr(np.vander(x[self.size], degree + 1))[0]

    def lowest(self, losses: Floats) -> tuple[Floats, Floats]:
        """Return where interpolated losses [S, B] are lowest, and how low; NaN [B] at an end."""
        # each [S − 1, B]
        cubic, square, slope, constant = Akima1DInterpolator(self.sizes, losses, axis=0).c
        widths = np.diff(self.sizes)[:, None]
        with np.errstate(invalid="ignore", divide="ignore"):  # pieces without a minimum
            step = -slope / (square + np.sqrt(square**2 - 3 * cubic * slope))
            value = ((cubic * step + square) * step + slope) * step + constant
        value = np.where((step >= 0) & (step <= widths), value, np.inf)
        piece = value.argmin(axis=0)[None]
        at = np.take_along_axis(self.sizes[:-1, None] + step, piece, axis=0)[0]
        least = np.take_along_axis(value, piece, axis=0)[0]
        inside = least < np.minimum(losses[0], losses[-1])
        return np.where(inside, at, np.nan), np.where(inside, least, np.nan)

    def minimum(self, errors: Floats) -> tuple[Minimum, Floats]:
        """Return the size of lowest loss, and its log in replicates with these errors [S, B]."""
        at, loss, copies, reason = math.nan, math.nan, np.full(errors.shape[1], np.nan), ""
        if len(self.sizes) < LEAST_SIZES:
            reason = f"{len(self.sizes)} sizes, {LEAST_SIZES} needed"
        else:
            (at,), (loss,) = self.lowest(self.losses[:, None])
            copies, _ = self.lowest(self.losses[:, None] + errors)
            if math.isnan(at):
                reason = (
                    f"lowest at its {'smallest' if self.losses[0] < self.losses[-1] else 'largest'}"
                    " size"
                )
        tokens = math.nan if reason else float(np.exp(np.interp(at, self.sizes, self.tokens)))
        lo, hi = (math.nan, math.nan) if reason else percentiles(copies)
        n = Interval(*(float(np.exp(value)) for value in (at, lo, hi)))
        return (
            Minimum(
                self.c,
                np.exp(self.sizes),
                np.exp(self.losses),
                n,
                tokens,
                float(np.exp(loss)),
                reason,
            ),
            copies,
        )


def isoflop(
    loss: Floats,
    *,
    n: Floats,
    c: Floats,
    d: Floats | None = None,
    rng: np.random.Generator,
    bootstraps: int = BOOTSTRAPS,
) -> IsoFlop:
    """Find minima and exponents from P runs.

    Budgets within 5% are one, and so are sizes. A budget needs four sizes and a minimum that is not
    at its smallest or largest; three such budgets are needed for exponents. Intervals are
    percentiles over replicates in which every run gets fresh noise. Its size is that of repeated
    runs, or the roughness of the curves if no run is repeated.

    Args:
        loss: [P].
        n: Parameters [P].
        c: FLOPs [P].
        d: Tokens [P], by default c/6n.
        rng: For the replicates.
        bootstraps: Number of replicates.
    """
    tokens = c / (FLOPS_PER_PARAM_TOKEN * n) if d is None else d
    columns, log_loss, lost = clean(loss, {"n": n, "d": tokens, "c": c}, FORMS["nd"])
    budgets = split(columns, log_loss)
    noise = run_noise(columns, log_loss, budgets)
    errors = np.zeros((bootstraps, len(log_loss)))
    if any(len(budget.sizes) >= LEAST_SIZES for budget in budgets):
        errors = run_errors(columns, log_loss, budgets).errors(rng, bootstraps)
    results = [(budget, *budget.minimum(budget.means(errors))) for budget in budgets]
    minima = tuple(minimum for _, minimum, _ in results)
    complete = [one for one in results if not one[1].reason]
    if len(complete) < LEAST_BUDGETS:
        raise AblateError(too_few(minima))
    best = [minimum for _, minimum, _ in complete]
    c_good = np.array([minimum.c for minimum in best])
    copies_n = np.array([copies for *_, copies in complete])
    # NaN stays NaN
    copies_d = np.array(
        [np.interp(copies, budget.sizes, budget.tokens) for budget, _, copies in complete]
    )
    n_exponent, n_scale = growth(c_good, np.array([minimum.n.value for minimum in best]), copies_n)
    d_exponent, d_scale = growth(c_good, np.array([minimum.d for minimum in best]), copies_d)
    notes = (
        [
            f"No minimum in {len(minima) - len(complete)} of {len(minima)} budgets:"
            f" {reasons(minima)}."
        ]
        if len(complete) < len(minima)
        else []
    )
    notes += [f"{lost} runs without a finite loss left out."] if lost else []
    try:
        losses = np.array([minimum.loss for minimum in best])
        frontier = fit(losses, "c", c=c_good, rng=rng, bootstraps=bootstraps)
        notes += [f"The curve of the lowest loss over C: {note}" for note in frontier.notes]
    except AblateError as error:
        frontier = None
        notes.append(f"No curve of the lowest loss over C: {error}")
    return IsoFlop(
        minima,
        n_exponent,
        d_exponent,
        n_scale,
        d_scale,
        noise.sd,
        noise.of,
        None if noise.of == REPEATS else noise,
        frontier,
        tuple(notes),
    )


def growth(c: Floats, best: Floats, copies: Floats) -> tuple[Interval, float]:
    """Fit best [P] = scale · c^exponent in logarithms, also for log replicates [P, B]."""
    slope, start = line(np.log(c), np.log(best)[:, None])
    slopes, _ = line(np.log(c), copies)
    return Interval(float(slope[0]), *percentiles(slopes)), float(np.exp(start[0]))


def split(columns: dict[str, Floats], log_loss: Floats) -> list[Budget]:
    """Return the runs by budget, ascending."""
    budgets = []
    of = level_of(columns["c"])
    for index in range(of.max() + 1):
        here = of == index
        member = level_of(columns["n"][here])
        runs = np.bincount(member)
        sizes, losses, tokens = (
            np.bincount(member, values[here]) / runs
            for values in (np.log(columns["n"]), log_loss, np.log(columns["d"]))
        )
        c = float(np.exp(np.log(columns["c"][here]).mean()))
        where = np.flatnonzero(here)
        budgets.append(Budget(c, sizes, losses, tokens, runs.astype(float), where, member))
    return budgets


def run_noise(columns: dict[str, Floats], log_loss: Floats, budgets: list[Budget]) -> Noise:
    """Return the standard deviation of log loss from run to run, and its source."""
    repeats = noise_of_repeats(np.stack([level_of(columns["c"]), level_of(columns["n"])]), log_loss)
    if repeats is not None:
        return repeats
    off = [
        roughness(budget.sizes, budget.losses)
        for budget in budgets
        if len(budget.sizes) >= LEAST_SIZES
    ]
    together = np.concatenate(off) if off else np.zeros(1)
    # neighbouring differences have points in common: about half of them are independent
    dof = max(len(together) // 2, 1)
    return Noise(float(np.sqrt((together**2).mean())), dof, "roughness of the curves")


def run_errors(columns: dict[str, Floats], log_loss: Floats, budgets: list[Budget]) -> Shared:
    """Return the posterior of the runs' errors about smooth curves, a polynomial a budget."""
    found = factors(FORMS["nd"], columns)
    found.pop("budget", None)  # it shifts a whole curve, and not its minimum
    bases = [budget.smooth() for budget in budgets]

    def off(x: Floats) -> Floats:
        x = x.copy()
        for budget, basis in zip(budgets, bases, strict=True):
            x[budget.rows] = without(x[budget.rows], basis)
        return x

    return errors_about(found, off, log_loss, sum(basis.shape[1] for basis in bases))


def roughness(x: Floats, y: Floats) -> Floats:
    """Return scaled fourth differences of neighbouring points [S] → [S − 4], noise-sized.

    Divided differences (third ones of four points), scaled to the standard deviation of the noise:
    the difference-based estimate (Gasser, Sroka & Jennen-Steinmetz 1986), of an order to which a
    smooth minimum adds little.
    """
    width = min(5, len(x))
    out = []
    for first in range(len(x) - width + 1):
        near = x[first : first + width]
        shares = 1 / np.prod(near[:, None] - near + np.eye(width), axis=1)
        out.append(shares @ y[first : first + width] / np.linalg.norm(shares))
    return np.array(out)


def line(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Fit slopes and intercepts of y [P, B] over x [P] by least squares, without NaN points."""
    finite = np.isfinite(y)
    count = finite.sum(axis=0)
    at, value = np.where(finite, x[:, None], 0.0), np.where(finite, y, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        centre, mean = at.sum(axis=0) / count, value.sum(axis=0) / count
        off = np.where(finite, at - centre, 0.0)
        slope = (off * value).sum(axis=0) / (off**2).sum(axis=0)
    slope = np.where(count >= 2, slope, np.nan)
    return slope, mean - slope * centre


def percentiles(copies: Floats) -> tuple[float, float]:
    """Return percentiles of the finite replicates; NaN if fewer than half are finite."""
    finite = copies[np.isfinite(copies)]
    if len(finite) < len(copies) / 2:
        return float("nan"), float("nan")
    lo, hi = np.quantile(finite, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(lo), float(hi)


def reasons(minima: tuple[Minimum, ...]) -> str:
    """Return why budgets have no minimum, one sentence for each reason."""
    by_reason: dict[str, list[str]] = {}
    for minimum in minima:
        if minimum.reason:
            by_reason.setdefault(minimum.reason, []).append(f"{minimum.c:.3g}")
    return "; ".join(
        f"C = {', '.join(c[:3])}{', …' if len(c) > 3 else ''}: {reason}"
        for reason, c in by_reason.items()
    )


def too_few(minima: tuple[Minimum, ...]) -> str:
    """Return why there are no exponents, and which runs would give them."""
    complete = sum(not minimum.reason for minimum in minima)
    return (
        f"isoFLOP exponents need {LEAST_BUDGETS} budgets of {LEAST_SIZES} or more sizes with the"
        f" lowest loss in between; of {len(minima)} budgets {complete}"
        f" have that{f' ({reasons(minima)})' if complete < len(minima) else ''}. {LEAST_BUDGETS}"
        " budgets, each four times the last, of 7 sizes from 1/8 to 8 times the best would suffice."
    )
