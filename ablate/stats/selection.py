"""The rate that tuning runs choose for an arm, and what the luck of that choice does to effects.

All pairs of a contrast are trained at rates that a few tuning runs chose. An arm's *regret* is its
expected metric at the chosen rate less that at its best rate. It is the same in every pair, so no
number of pairs averages it out. Its root mean square, over the posterior of the arm's tuning curve,
is an error of its own beside the noise over seeds; the estimand is the difference of the arms at
their best rates. Regrets are at least 0, so (R − R₀)² ≤ R² + R₀² whatever two arms' tuning runs
share, and the squares are added.

The curve over the log rate is a quartic. Its level, slope and curvature are free; its cubic and
quartic terms are small next to the curvature, as in the tuning curves of transformers; a quintic
term is noise of each rate. So distant rates count for little. A seed's noise has a part that all
rates share, which moves no optimum, and one of each rate, which is estimated from the interaction
of seed and rate. Rates at a cliff or beyond (where a run diverged, or the metric is sharply worse)
are left out.

`fit`, `choose` and `regret` take leading axes, for many arms at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ablate.stats.families import together
from ablate.stats.pairs import Effect, Equivalence, equivalence, noise_of
from ablate.stats.values import Floats, Noise, Values, finite, satterthwaite

# sd of each term next to the curvature, in powers of ln rate; 1.5 times what 39 tuning curves of
# transformers show (0.13 and 0.06 for cubic and quartic)
CUBIC, QUARTIC, QUINTIC = 0.2, 0.1, 0.03
SHARP = 6.0  # a rise so many times as steep as that below the best rate is a cliff
CERTAIN = 4.0  # standard errors that the rise to a cliff is at least
GAIN = 1.64  # standard errors that the gain of a rate beside a cliff must exceed
EDGE = 0.01  # steps within which two rates are one: rates have three digits
NODES = 41  # places at which a drawn curve is evaluated
DRAWS = 200  # curves drawn from a posterior; each has its mirror image
TERMS = np.arange(5)

Bools = npt.NDArray[np.bool_]


# -- tuning curves ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curves:
    """Fitted tuning curves. A place is a log rate in ladder steps from the best rate tried.

    Attributes:
        centre: [...], log rate of the best rate tried.
        step: Log ratio of neighbouring rates of the ladder.
        floor: [...], mean cost at the best rate tried.
        terms: [..., 5], coefficients of the powers 0 to 4 of the place, without `floor`.
        root: [..., 5, 5], a root of their covariance.
        df: [...], degrees of freedom of the noise.
        low: [...], lowest place considered.
        high: [...], highest place considered, below any cliff.
        safe: [...], highest of the tried places that are not next to a cliff.
        first: [...], lowest place tried.
        last: [...], highest place tried, perhaps beyond a cliff.
        usable: [..., K], rates tried that are not beyond a cliff.
    """

    centre: Floats
    step: float
    floor: Floats
    terms: Floats
    root: Floats
    df: Floats
    low: Floats
    high: Floats
    safe: Floats
    first: Floats
    last: Floats
    usable: Bools

    def place(self, logs: npt.ArrayLike) -> Floats:
        """Return the places of log rates [...]."""
        return (np.asarray(logs, float) - self.centre) / self.step


def fit(
    logs: Values, costs: npt.ArrayLike, step: float, noise: tuple[float, int] | None = None
) -> Curves:
    """Fit tuning curves.

    Args:
        logs: [K], log rates, ascending.
        costs: [..., S, K], what is minimised, a row a seed: inf where a run diverged, NaN at rates
            that were not tried. At some rate all are finite.
        step: Log ratio of neighbouring rates of the ladder.
        noise: Sd of a run's noise with its degrees of freedom, for curves of one seed; without it
            the roughness of the curve is used.
    """
    logs, costs = np.asarray(logs, float), np.asarray(costs, float)
    with np.errstate(invalid="ignore"):
        means = costs.mean(axis=-2)
    tried, whole = ~np.isnan(means), np.isfinite(means)
    ranked = np.where(whole, means, np.inf)
    centre, floor = logs[ranked.argmin(axis=-1)], ranked.min(axis=-1)
    x = (logs - centre[..., None]) / step
    excess = np.where(whole, means - floor[..., None], 0.0)
    usable = _usable(x, excess, tried, whole, costs)
    terms, root, df = _terms(x, costs, means, floor, usable, step, noise)
    places = np.where(usable, x, np.nan)
    low, high = np.nanmin(places, axis=-1), np.nanmax(places, axis=-1)
    beside = (tried & (x > high[..., None])).any(axis=-1)
    below = np.where(usable & (x < high[..., None]), x, -np.inf).max(axis=-1)
    safe = np.where(beside & np.isfinite(below), below, high)
    return Curves(
        centre,
        step,
        floor,
        terms,
        root,
        df,
        np.maximum(low, -1.0),
        np.minimum(high, 1.0),
        np.minimum(safe, 1.0),
        np.where(tried, x, np.inf).min(axis=-1),
        np.where(tried, x, -np.inf).max(axis=-1),
        usable,
    )


def _terms(
    x: Floats,
    costs: Floats,
    means: Floats,
    floor: Floats,
    usable: Bools,
    step: float,
    noise: tuple[float, int] | None,
) -> tuple[Floats, Floats, Floats]:
    """Coefficients of a curve at places x less `floor`, a root of their covariance, and df."""
    excess = np.where(np.isfinite(means), means - floor[..., None], 0.0)
    near = usable & (np.abs(x) < 1.05)
    sd, df = _noise(costs, near) if costs.shape[-2] > 1 else _noise_of_one(x, means, usable, noise)
    reach = np.where(near, np.abs(excess), 0.0).max(axis=-1)
    tiny = 1e-12 * (1 + np.abs(floor))
    terms, root = _posterior(
        x, excess, usable, step, sd**2 / costs.shape[-2] + (1e-3 * reach + tiny) ** 2, reach + sd
    )
    return terms, root, df


def _usable(x: Floats, excess: Floats, tried: Bools, whole: Bools, costs: Floats) -> Bools:
    """Rates around the best one, from the next one that diverged up to the next cliff."""
    broken = np.where(tried & ~whole & (x < 0), x, -np.inf).max(axis=-1, keepdims=True)
    below = whole & (x <= 0) & (x > broken)
    distance = (np.abs(x) + 0.25) ** 2
    slope = below & (x < 0) & (x > -2.1)
    with np.errstate(invalid="ignore", divide="ignore"):
        rise = np.where(slope, excess, 0).sum(-1) / np.where(slope, distance, 0).sum(-1)
    sd, _ = _noise(costs, below & (x > -1.05))
    error = np.nan_to_num(sd) * math.sqrt(2 / costs.shape[-2])
    with np.errstate(invalid="ignore"):
        sharp = (excess > SHARP * rise[..., None] * distance) & (
            excess > CERTAIN * error[..., None]
        )
    stop = np.where(tried & (x > 0) & (~whole | sharp), x, np.inf).min(axis=-1, keepdims=True)
    return below | (whole & (x > 0) & (x < stop))


def _noise(costs: Floats, at: Bools) -> tuple[Floats, Floats]:
    """Sd of the noise that rates do not share, from the interaction of seed and rate, and its df.

    NaN with one seed or rate.
    """
    mask = np.broadcast_to(at[..., None, :], costs.shape)
    y = np.where(mask, costs, 0.0)
    y = np.where(mask, y - y.mean(axis=-2, keepdims=True), 0.0)
    n = at.sum(axis=-1)
    own = y.sum(axis=-1, keepdims=True) / np.maximum(n, 1)[..., None, None]
    df = (costs.shape[-2] - 1) * (n - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        squares = (np.where(mask, y - own, 0.0) ** 2).sum(axis=(-1, -2))
        return np.where(df > 0, np.sqrt(squares / df), 0.0), np.maximum(df, 1).astype(float)


def _noise_of_one(
    x: Floats, means: Floats, usable: Bools, noise: tuple[float, int] | None
) -> tuple[Floats, Floats]:
    """The noise given, or residuals of a cubic over two steps on each side."""
    if noise is not None:
        shape = means.shape[:-1]
        return np.full(shape, noise[0]), np.full(shape, float(noise[1]))
    at = usable & (np.abs(x) < 2.1)
    powers = np.where(at[..., None], x[..., None] ** TERMS[:4], 0.0)
    y = np.where(at, means, 0.0)
    residual = y - (powers @ (np.linalg.pinv(powers) @ y[..., None]))[..., 0]
    df = np.maximum(at.sum(axis=-1) - 4, 1).astype(float)
    return np.sqrt((residual**2).sum(axis=-1) / df), df


def _posterior(
    x: Floats, excess: Floats, usable: Bools, step: float, variance: Floats, scale: Floats
) -> tuple[Floats, Floats]:
    """Coefficients [..., 5] of the curve, and a root of their covariance.

    Args:
        x: [..., K], places.
        excess: [..., K], mean costs less the lowest.
        usable: [..., K].
        step: Log ratio of a step.
        variance: [...], of a mean cost.
        scale: [...], of the costs within a step; wide priors are multiples of it.
    """
    scale = scale + np.sqrt(variance)
    powers = x[..., None] ** TERMS
    curvature = scale
    for _ in range(2):  # the prior of the higher terms follows the curvature
        own = curvature[..., None] * np.array([CUBIC * step, QUARTIC * step**2])
        prior = np.concatenate([scale[..., None] * np.array([1e3, 10.0, 10.0]), own], axis=-1)
        misfit = QUINTIC * step**3 * curvature[..., None] * np.abs(x) ** 5
        weight = usable / (variance[..., None] + misfit**2)
        precision = np.einsum("...k,...ki,...kj->...ij", weight, powers, powers)
        precision += np.eye(len(TERMS)) / prior[..., None, :] ** 2
        right = np.einsum("...k,...k,...ki->...i", weight, excess, powers)
        unit = np.sqrt(np.einsum("...ii->...i", precision))
        scaled = precision / (unit[..., :, None] * unit[..., None, :])
        terms = np.linalg.solve(scaled, (right / unit)[..., None])[..., 0] / unit
        curvature = np.maximum(terms[..., 2], 0.1 * scale)
    inverse = np.linalg.inv(np.linalg.cholesky(scaled))
    return terms, inverse.swapaxes(-1, -2) / unit[..., :, None]


def near_cliff(curves: Curves) -> Bools:
    """Return whether a cliff begins within a step above the best rate tried [...]."""
    return (curves.safe < curves.high) & (curves.high < 1)


def choose(curves: Curves, candidates: Values) -> npt.NDArray[np.intp]:
    """Return which candidate has the lowest expected cost.

    A rate above the highest that is not next to a cliff is chosen only for a gain beyond noise.

    Args:
        curves: Curves [...].
        candidates: [G], log rates, the lowest first; some are between the rates tried.

    Returns:
        [...], indices of candidates.
    """
    places = (np.asarray(candidates, float) - curves.centre[..., None]) / curves.step
    inside = (places >= curves.low[..., None] - EDGE) & (places <= curves.high[..., None] + EDGE)
    costs = np.where(inside, expected(curves, candidates), np.inf)
    safely = np.where(places <= curves.safe[..., None] + EDGE, costs, np.inf)
    first, second = safely.argmin(axis=-1), costs.argmin(axis=-1)
    powers = np.take_along_axis(places, np.stack([first, second], -1), -1)[..., None] ** TERMS
    change = powers[..., 0, :] - powers[..., 1, :]
    gain = (change * curves.terms).sum(axis=-1)
    error = np.linalg.norm((change[..., None, :] @ curves.root)[..., 0, :], axis=-1)
    return np.where(gain > GAIN * error, second, first)


def expected(curves: Curves, logs: Values) -> Floats:
    """Return the expected costs [..., G] at log rates [G]."""
    places = (np.asarray(logs, float) - curves.centre[..., None]) / curves.step
    return curves.floor[..., None] + (places[..., None] ** TERMS @ curves.terms[..., None])[..., 0]


def regret(curves: Curves, chosen: npt.ArrayLike) -> Floats:
    """Return the root mean square regret of chosen log rates [...].

    Curves are drawn from their posterior, always with the same random numbers. What is not known of
    the noise counts in the degrees of freedom (see `regret_df`).
    The best rate of each is sought within a step of the best rate tried, below any cliff, and a
    step beyond the chosen one where that is the lowest or highest tried.
    """
    at = curves.place(chosen)
    drawn = _drawn(curves.terms, curves.root, seed=0)
    best = (drawn @ (_places(curves, at)[..., None] ** TERMS).swapaxes(-1, -2)).min(axis=-1)
    here = (drawn @ (at[..., None] ** TERMS)[..., None])[..., 0]
    return np.sqrt((np.maximum(here - best, 0.0) ** 2).mean(axis=-1))


def _drawn(terms: Floats, root: Floats, seed: int) -> Floats:
    """Coefficients [..., 2 DRAWS, 5] of curves drawn from a posterior."""
    z = np.random.default_rng(seed).normal(size=(DRAWS, len(TERMS)))
    moved = z @ root.swapaxes(-1, -2)
    return terms[..., None, :] + np.concatenate([moved, -moved], axis=-2)


def _places(curves: Curves, at: Floats) -> Floats:
    """Places [..., NODES] at which the best rate of a drawn curve is sought.

    They reach a step beyond the place of the choice where nothing beyond it was tried.
    """
    low, high = np.minimum(curves.low, at), np.maximum(curves.high, at)
    low = np.where(at <= curves.first + EDGE, np.minimum(low, at - 1), low)
    high = np.where(at >= curves.last - EDGE, np.maximum(high, at + 1), high)
    return low[..., None] + (high - low)[..., None] * np.linspace(0, 1, NODES)


def regret_df(curves: Curves) -> Floats:
    """Return the degrees of freedom of squared `regret` [...]: half of the noise's, at least 1.

    The square of `regret` grows with the square of the noise's variance, which alone would leave a
    quarter; adding the squares of two arms' regrets is conservative already.
    """
    return np.maximum(curves.df / 2, 1.0)


# -- the choice in an effect -----------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """The error that the choice of rates adds to a mean difference.

    Attributes:
        error: The error.
        df: Its degrees of freedom.
    """

    error: float = 0.0
    df: float = math.inf


def choice_error(
    rates: Values,
    values: npt.ArrayLike,
    chosen: float,
    *,
    step: float,
    goal: str = "min",
    noise: tuple[float, int] | None = None,
    outcomes: npt.ArrayLike | None = None,
) -> Choice:
    """Return the error of one arm's choice: the root mean square regret of the chosen rate.

    Args:
        rates: [K], rates tried, ascending.
        values: [S, K], the metric that decided, a row a tuning seed; NaN where a run diverged.
        chosen: The rate of the compared runs, however it was chosen.
        step: Log ratio of neighbouring rates of the ladder.
        goal: "min" or "max", of the metric that decided.
        noise: As in `fit`, of the metric that is compared.
        outcomes: [S, K], the metric that is compared, where another one decided; then the error is
            the root mean square of this metric at the chosen rate less that at the rate which is
            best by the one that decided. Curves of both are drawn, independently of each other.

    Returns:
        No error where no rate was finite on all seeds, since then nothing is compared.
    """
    signed = np.asarray(values, float) * (1 if goal == "min" else -1)
    costs = np.where(np.isfinite(signed), signed, np.inf)
    if not np.isfinite(costs).all(axis=0).any():
        return Choice()
    logs = np.log(np.asarray(rates, float))
    if outcomes is not None:
        curves = fit(logs, costs, step)
        return _outcome(curves, logs, np.asarray(outcomes, float), math.log(chosen), noise)
    curves = fit(logs, costs, step, noise)
    return Choice(float(regret(curves, math.log(chosen))), float(regret_df(curves)))


def _outcome(
    curves: Curves, logs: Floats, outcomes: Floats, chosen: float, noise: tuple[float, int] | None
) -> Choice:
    """The choice of one arm where another metric decided; arguments as in `choice_error`."""
    x = (logs - curves.centre) / curves.step
    with np.errstate(invalid="ignore"):
        means = outcomes.mean(axis=0)
    usable = curves.usable & np.isfinite(means)
    near = usable & (np.abs(x) < 2.1)
    # priors are those of a bowl; another metric may just as well be a hill
    if near.sum() > 2 and np.polyfit(x[near], means[near], 2)[0] < 0:
        outcomes, means = -outcomes, -means
    level = means[np.where(usable, np.abs(x), np.inf).argmin()]
    terms, root, df = _terms(x, outcomes, means, level, usable, curves.step, noise)
    at = curves.place(chosen)
    places = _places(curves, at)
    lowest = (_drawn(curves.terms, curves.root, seed=0) @ (places[:, None] ** TERMS).T).argmin(-1)
    moved = at**TERMS - places[lowest, None] ** TERMS
    error = (_drawn(terms, root, seed=1) * moved).sum(axis=-1)
    freedom = max(1.0, float(np.minimum(df, curves.df)) / 2)
    return Choice(math.sqrt((error**2).mean()), freedom)


def combined(choices: Sequence[tuple[float, Choice]]) -> Choice:
    """Return the error of a sum of arms.

    Args:
        choices: Weight of an arm in the sum, and its choice. Arms that share a decision are one,
            with the sum of their weights.
    """
    squares = [(weight * choice.error) ** 2 for weight, choice in choices]
    return Choice(
        math.sqrt(math.fsum(squares)), satterthwaite(squares, [choice.df for _, choice in choices])
    )


def widened(noise: Noise, choice: Choice) -> Noise:
    """Return the noise of a mean with the error of a choice added (Welch 1947).

    The noise without it stays beside it: by its degrees of freedom it may be the wider of the two.
    """
    if not choice.error > 0:
        return noise
    added = tuple(
        (
            math.hypot(error, choice.error),
            satterthwaite([error**2, choice.error**2], [df, choice.df]),
        )
        for error, df in noise.errors
        if df > 0 and math.isfinite(error)
    )
    return Noise((*noise.errors, *added))


def with_choices(effects: Sequence[Effect], choices: Sequence[Choice]) -> list[Effect]:
    """Return a family's effects with the errors of their choices in interval and p.

    Args:
        effects: As `family` gives them, with Bonferroni intervals.
        choices: The choice in each.
    """
    if not any(choice.error > 0 for choice in choices):
        return list(effects)
    wide = []
    for effect, choice in zip(effects, choices, strict=True):
        noise = widened(effect.noise, choice)
        half, p = noise.half(effect.confidence), 2 * noise.tail(abs(effect.mean))
        wide.append(replace(effect, noise=noise, lo=effect.mean - half, hi=effect.mean + half, p=p))
    return together(wide, confidence=wide[0].confidence)


def equivalence_with(
    differences: Values,
    margin: float,
    choice: Choice,
    *,
    pilot: Values = (),
    resolution: float | None = None,
    crossed: npt.ArrayLike | None = None,
) -> Equivalence:
    """Return `stats.equivalence` at 5%, with the error of a choice of rates.

    Args:
        differences: [n], paired by seed.
        margin: above 0.
        choice: of the arms' rates.
        pilot: as in `noise_of`.
        resolution: as in `noise_of`.
        crossed: as in `noise_of`.
    """
    test = equivalence(differences, margin, pilot=pilot, resolution=resolution, crossed=crossed)
    if not choice.error > 0:
        return test
    d, _ = finite(differences)
    noise = widened(noise_of(differences, pilot, resolution, crossed), choice)
    mean = float(d.mean()) if len(d) else math.nan
    half, p = noise.half(0.9), noise.tail(margin - abs(mean))
    return replace(test, p=p, lo=mean - half, hi=mean + half, equivalent=p < 0.05)


# -- the effect at each rate -----------------------------------------------------------------------


def by_rate(
    rates: Values,
    values: npt.ArrayLike,
    baseline_values: npt.ArrayLike,
    *,
    confidence: float = 0.95,
) -> list[tuple[float, int, float, float, float]]:
    """Return the effect of an arm at each learning rate, on tuning seeds.

    Args:
        rates: [K], rates at which both arms were trained.
        values: [S, K], the metric, a row a tuning seed; NaN where a run diverged or is missing.
        baseline_values: [S, K], the baseline's, of the same seeds.
        confidence: of the intervals.

    Returns:
        A row for each rate with a whole pair: (rate, n, mean, lo, hi), n the whole pairs, mean the
        mean paired difference, lo and hi the ends of its t interval; NaN with one pair.
    """
    a, b = np.asarray(values, float), np.asarray(baseline_values, float)
    assert a.shape == b.shape and a.shape[1] == len(rates), (a.shape, b.shape, len(rates))
    rows = []
    for rate, column in zip(rates, (a - b).T, strict=True):
        d, _ = finite(column)
        if not len(d):
            continue
        half = noise_of(d).half(confidence) if len(d) > 1 else math.nan
        mean = float(d.mean())
        rows.append((float(rate), len(d), mean, mean - half, mean + half))
    return rows
