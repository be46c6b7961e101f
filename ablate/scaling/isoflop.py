"""IsoFLOP curves: the size of lowest loss in each budget, and how it grows with the budget.

The minimum is read off an Akima interpolation of log loss over log size (Porian et al. 2024, arXiv:2406.19146): a parabola through
the whole range is pulled aside by the steeper flank.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.interpolate import Akima1DInterpolator

from ablate.errors import AblateError
from ablate.scaling.fit import BOOTSTRAPS, Fit, Interval, clean, fit
from ablate.scaling.forms import FLOPS_PER_PARAM_TOKEN, FORMS, level_of, levels
from ablate.scaling.solve import Floats

LEAST_SIZES = 5  # in a budget
LEAST_BUDGETS = 3
POINTS = 801  # of the interpolation, at which the minimum is looked for


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
        """The interpolation: sizes, losses."""
        x = np.log(self.sizes)
        dense = np.linspace(x[0], x[-1], points)
        return np.exp(dense), np.exp(Akima1DInterpolator(x, np.log(self.losses))(dense))


@dataclass(frozen=True)
class IsoFlop:
    """N_opt = n_scale · C^n_exponent, likewise D_opt, and the losses at the minima as a curve of C where there are enough."""

    minima: tuple[Minimum, ...]
    n_exponent: Interval
    d_exponent: Interval
    n_scale: float
    d_scale: float
    noise: float  # sd of log loss from run to run
    noise_from: str  # "repeated runs" | "roughness of the curves"
    frontier: Fit | None
    notes: tuple[str, ...] = field(default=())

    def best_split(self, c: Floats) -> tuple[Floats, Floats]:
        """Compute-optimal parameters and tokens at budgets [P]."""
        budget = np.asarray(c, float)
        return self.n_scale * budget**self.n_exponent.value, self.d_scale * budget**self.d_exponent.value


@dataclass(frozen=True)
class _Budget:
    c: float
    x: Floats  # ln size, ascending
    y: Floats  # mean ln loss
    tokens: Floats  # mean ln tokens
    runs: Floats  # of each size

    def minima(self, y: Floats) -> tuple[Floats, Floats]:
        """Where the interpolated columns of y [S, B] are lowest, and the log loss there; NaN [B] for a minimum at an end."""
        dense = np.linspace(self.x[0], self.x[-1], POINTS)
        curves = Akima1DInterpolator(self.x, y, axis=0)(dense)
        at = curves.argmin(axis=0)
        inside = (at > 0) & (at < POINTS - 1)
        lowest = np.take_along_axis(curves, at[None], axis=0)[0]
        return np.where(inside, dense[at], np.nan), np.where(inside, lowest, np.nan)


def isoflop(
    loss: Floats,
    *,
    n: Floats,
    c: Floats,
    d: Floats | None = None,
    rng: np.random.Generator,
    bootstraps: int = BOOTSTRAPS,
    confidence: float = 0.95,
) -> IsoFlop:
    """Minima and exponents from P runs: loss, parameters n, FLOPs c, tokens d [P] (by default c/6n).

    Budgets within 5% are one. A budget counts with five sizes and a minimum that is not at its smallest or largest; three such
    budgets are needed. Intervals are percentiles over replicates in which every run gets fresh noise; its size is taken from
    repeated runs of a size in a budget, or where there are none from how far points lie off the cubic through their neighbours.
    """
    tokens = c / (FLOPS_PER_PARAM_TOKEN * n) if d is None else d
    columns, log_loss, lost = clean(loss, {"n": n, "d": tokens, "c": c}, FORMS["nd"])
    budgets = _budgets(columns, log_loss)
    noise, noise_from = _noise(columns, log_loss, budgets)
    minima, rows = [], []
    for budget in budgets:
        copies = np.full(bootstraps, np.nan)
        here, lowest, reason = np.nan, np.nan, f"{len(budget.x)} sizes, {LEAST_SIZES} needed"
        if len(budget.x) >= LEAST_SIZES:
            (here,), (lowest,) = budget.minima(budget.y[:, None])
            spread = noise / np.sqrt(budget.runs[:, None])
            copies, _ = budget.minima(budget.y[:, None] + spread * rng.normal(size=(len(budget.x), bootstraps)))
            reason = "" if np.isfinite(here) else f"lowest at its {'smallest' if budget.y[0] < budget.y[-1] else 'largest'} size"
        rows.append(copies)
        lo, hi = _percentiles(copies, confidence) if not reason else (np.nan, np.nan)
        minima.append(
            Minimum(
                c=budget.c,
                sizes=np.exp(budget.x),
                losses=np.exp(budget.y),
                n=Interval(*(float(np.exp(v)) for v in (here, lo, hi))),
                d=float(np.exp(np.interp(here, budget.x, budget.tokens))) if not reason else float("nan"),
                loss=float(np.exp(lowest)),
                reason=reason,
            )
        )
    good = [i for i, minimum in enumerate(minima) if not minimum.reason]
    if len(good) < LEAST_BUDGETS:
        raise AblateError(_too_few(minima, good))
    return _exponents(budgets, minima, rows, good, noise, noise_from, lost, rng, bootstraps, confidence)


def _exponents(
    budgets: list[_Budget],
    minima: list[Minimum],
    rows: list[Floats],
    good: list[int],
    noise: float,
    noise_from: str,
    lost: int,
    rng: np.random.Generator,
    bootstraps: int,
    confidence: float,
) -> IsoFlop:
    log_c = np.log([minima[i].c for i in good])
    log_n = np.log([minima[i].n.value for i in good])
    log_d = np.log([minima[i].d for i in good])
    copies_n = np.array([rows[i] for i in good])
    copies_d = np.array([np.interp(rows[i], budgets[i].x, budgets[i].tokens) for i in good])
    copies_d[np.isnan(copies_n)] = np.nan
    (slope_n, start_n), (slope_d, start_d) = line(log_c, log_n[:, None]), line(log_c, log_d[:, None])
    notes = [f"C = {minimum.c:.3g}: no minimum, {minimum.reason}." for minimum in minima if minimum.reason]
    if lost:
        notes.append(f"{lost} runs without a finite loss left out.")
    frontier = None
    try:
        losses = np.array([minima[i].loss for i in good])
        frontier = fit(losses, "c", c=np.exp(log_c), rng=rng, bootstraps=bootstraps, confidence=confidence)
    except AblateError as error:
        notes.append(f"No curve of the lowest loss over C: {error}")
    return IsoFlop(
        minima=tuple(minima),
        n_exponent=Interval(float(slope_n[0]), *_percentiles(line(log_c, copies_n)[0], confidence)),
        d_exponent=Interval(float(slope_d[0]), *_percentiles(line(log_c, copies_d)[0], confidence)),
        n_scale=float(np.exp(start_n[0])),
        d_scale=float(np.exp(start_d[0])),
        noise=noise,
        noise_from=noise_from,
        frontier=frontier,
        notes=tuple(notes),
    )


def _budgets(columns: dict[str, Floats], log_loss: Floats) -> list[_Budget]:
    found = []
    of = level_of(columns["c"])
    for index in range(len(levels(columns["c"]))):
        here = of == index
        sizes, member, runs = np.unique(columns["n"][here], return_inverse=True, return_counts=True)
        mean = lambda values: np.bincount(member, values) / runs  # noqa: E731, B023
        found.append(
            _Budget(
                c=float(np.exp(np.log(columns["c"][here]).mean())),
                x=np.log(sizes),
                y=mean(log_loss[here]),
                tokens=mean(np.log(columns["d"][here])),
                runs=runs.astype(float),
            )
        )
    return found


def _noise(columns: dict[str, Floats], log_loss: Floats, budgets: list[_Budget]) -> tuple[float, str]:
    """The sd of log loss from run to run, and what it was taken from."""
    cell = np.stack([level_of(columns["c"]), np.unique(columns["n"], return_inverse=True)[1]])
    _, member, runs = np.unique(cell, axis=1, return_inverse=True, return_counts=True)
    spare = int((runs - 1).sum())
    if spare >= 5:
        within = log_loss - (np.bincount(member, log_loss) / runs)[member]
        return float(np.sqrt((within**2).sum() / spare)), "repeated runs"
    off = [roughness(budget.x, budget.y) for budget in budgets if len(budget.x) >= LEAST_SIZES]
    together = np.concatenate(off) if off else np.zeros(1)
    return float(np.sqrt((together**2).mean())), "roughness of the curves"


def roughness(x: Floats, y: Floats) -> Floats:
    """How far each inner point lies off the cubic through its four neighbours, scaled to the noise's sd: [S] → [S − 4].

    The difference-based noise estimate (Gasser, Sroka & Jennen-Steinmetz 1986), of an order that a smooth minimum passes.
    """
    out = []
    for i in range(2, len(x) - 2):
        near = np.array([i - 2, i - 1, i + 1, i + 2])
        away = x[near] - x[i]
        shares = np.array([np.prod(np.delete(away, j) / (np.delete(away, j) - away[j])) for j in range(4)])  # Lagrange
        out.append((y[i] - shares @ y[near]) / np.sqrt(1 + shares @ shares))
    return np.array(out)


def line(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Slopes and intercepts of the columns of y [P, B] over x [P] by least squares; NaN points are left out."""
    there = np.isfinite(y)
    count = there.sum(axis=0)
    at, value = np.where(there, x[:, None], 0.0), np.where(there, y, 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        centre, mean = at.sum(axis=0) / count, value.sum(axis=0) / count
        off = np.where(there, at - centre, 0.0)
        slope = (off * value).sum(axis=0) / (off**2).sum(axis=0)
    slope = np.where(count >= 2, slope, np.nan)
    return slope, mean - slope * centre


def _percentiles(copies: Floats, confidence: float) -> tuple[float, float]:
    """Percentiles of the replicates that have a value; NaN where fewer than half have."""
    there = copies[np.isfinite(copies)]
    if len(there) < len(copies) / 2:
        return float("nan"), float("nan")
    lo, hi = np.quantile(there, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(lo), float(hi)


def _too_few(minima: list[Minimum], good: list[int]) -> str:
    why = "; ".join(f"C = {minimum.c:.3g}: {minimum.reason}" for minimum in minima if minimum.reason)
    return (
        f"isoFLOP exponents need {LEAST_BUDGETS} budgets of {LEAST_SIZES} or more sizes with the lowest loss in between; "
        f"{len(good)} of {len(minima)} {'has' if len(good) == 1 else 'have'} that"
        + (f" ({why})" if why and len(minima) <= 12 else "")
        + f". {LEAST_BUDGETS} budgets, each four times the last, of 7 sizes from 1/8 to 8 times the best would do."
    )
