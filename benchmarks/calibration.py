"""Are the intervals and tests what they claim to be? Simulated studies with a known answer.

    python benchmarks/calibration.py [--studies 10000] [--fits 200] [--only Fitted]
                                     [--seed 0] [--processes N]

Prints the tables of docs/method.md. Effects: A/A studies of a baseline and four levels that differ
in nothing, so every difference found is false; then of eight arms whose rates are tuned. Fits:
curves with known constants. Effects are
computed for all studies at once; on the first studies of every case the arithmetic is checked
against `ablate.stats` itself.
"""

from __future__ import annotations

import argparse
import itertools
import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
from cores import Cores, arguments, processor_seconds
from printing import row, table
from scipy import stats as st

from ablate import scaling, stats
from ablate.scaling.bootstrap import estimate, limits
from ablate.scaling.design import USUAL, usual_constants
from ablate.scaling.forms import FORMS, best_split
from ablate.stats import selection
from ablate.stats.families import smallest_p
from ablate.study import Tune
from ablate.tune import search

Floats = npt.NDArray[np.float64]
LEVELS = 4
SEEDS = (3, 4, 5, 6, 8, 10)
CHECKED = 20  # studies a case whose numbers are compared with ablate.stats
REPLICATES = 200  # of a fit's bootstrap


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.normal(size=shape)


def heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.standard_t(3, size=shape)


def correlated(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """A seed moves all arms together, three times as far as an arm moves alone: correlation 0.9."""
    return 3 * rng.normal(size=(*shape[:-1], 1)) + rng.normal(size=shape)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """The same long right tail in every arm: differences are symmetric and heavy-tailed."""
    return np.exp(rng.normal(size=shape))


def skewed_unequal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """A right tail in the levels (skewness 1.7), hardly one in the baseline, with equal means:
    differences are skewed.
    """
    return log_normal(rng, shape, 0.5)


def very_skewed_unequal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """The same with skewness 6.2: an arm whose seeds now and then all but fail."""
    return log_normal(rng, shape, 1.0)


def log_normal(rng: np.random.Generator, shape: tuple[int, ...], spread: float) -> Floats:
    sd = np.array([0.1] + [spread] * (shape[-1] - 1))
    return np.exp(sd * rng.normal(size=shape) - sd**2 / 2)


NOISES: tuple[Callable[..., Floats], ...] = (
    normal,
    heavy,
    correlated,
    skewed,
    skewed_unequal,
    very_skewed_unequal,
)


def title(noise: Callable[..., Floats]) -> str:
    return noise.__name__.replace("_unequal", ", unequal").replace("_", " ")


def effects(cores: Cores, studies: int) -> None:
    table(
        "noise",
        "seeds",
        "p ≤ 0.05",
        "coverage",
        "Holm",
        "Bonferroni intervals",
        "max-t intervals",
        "sign-flip",
        "TOST",
    )
    cases = [(*case, studies) for case in itertools.product(NOISES, SEEDS)]
    for (noise, seeds, _), (rates,) in zip(cases, cores.each(effect_rates, cases), strict=True):
        row(title(noise), seeds, *rates)


def effect_rates(
    rng: np.random.Generator, noise: Callable[..., Floats], seeds: int, studies: int
) -> list[float]:
    arms = noise(rng, (studies, seeds, 1 + LEVELS))
    d = arms[..., 1:] - arms[..., :1]
    p = paired_p(d)
    check(d, p)
    smallest = p.min(axis=1)
    flips = np.array(list(itertools.product((-1, 1), repeat=seeds)))
    sums = np.abs(d[..., 0] @ flips.T)
    sign_flip = (sums >= np.abs(d[..., 0].sum(axis=1))[:, None] - 1e-9).mean(axis=1)
    # the true difference lies on the margin: "equivalent" is false
    margin = 2 * float(np.std(d))
    tost = equivalence_p(d[..., 0] + margin, margin)
    found = (
        p <= 0.05,
        p > 0.05,
        smallest * LEVELS <= 0.05,  # Holm's first step decides whether anything is found
        smallest < 0.05 / LEVELS,
        smallest < max_t_levels(d, rng),
        sign_flip <= 0.05,
        tost < 0.05,
    )
    return [float(one.mean()) for one in found]


def paired_p(d: Floats) -> Floats:
    """Two-sided p of paired t-tests along the seeds of d [R, S, M] → [R, M]."""
    seeds = d.shape[1]
    t = d.mean(axis=1) / (d.std(axis=1, ddof=1) / np.sqrt(seeds))
    return 2 * st.t.sf(np.abs(t), seeds - 1)


def equivalence_p(d: Floats, margin: float) -> Floats:
    """The larger one-sided p of TOST on d [R, S] → [R]."""
    seeds = d.shape[1]
    return st.t.sf(
        (margin - np.abs(d.mean(axis=1))) / (d.std(axis=1, ddof=1) / np.sqrt(seeds)), seeds - 1
    )


def max_t_levels(d: Floats, rng: np.random.Generator) -> Floats:
    """What `stats.max_t` lets each test of a study use: d [R, S, M] → [R].

    Its simulation depends on a study's mean correlation only, so it is done for 21 correlations,
    not for every study.
    """
    z = d - d.mean(axis=1, keepdims=True)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    r = np.mean(
        [(z[..., i] * z[..., j]).sum(axis=1) for i in range(LEVELS) for j in range(i)], axis=0
    ).clip(0, 1)
    grid = np.linspace(0, 1, 21)
    there = np.ones(d.shape[1:], bool)
    levels = [np.quantile(smallest_p(at, there, rng), 0.05) for at in grid]
    return np.interp(r, grid, np.clip(levels, 0.05 / LEVELS, 0.05))


def check(d: Floats, p: Floats) -> None:
    """The numbers above are those of `ablate.stats`."""
    for study, expected in zip(d[:CHECKED], p[:CHECKED], strict=True):
        family = stats.family(study)
        assert np.allclose([effect.p for effect in family], expected)
        assert all(
            (effect.lo <= 0 <= effect.hi) == (one > 0.05)
            for effect, one in zip(family, expected, strict=True)
        )
        assert (min(effect.p_holm for effect in family) <= 0.05) == (
            expected.min() * LEVELS <= 0.05
        )
        outside = any(not effect.family_lo <= 0 <= effect.family_hi for effect in family)
        assert outside == (expected.min() < 0.05 / LEVELS)


STAGES = list(itertools.product(NOISES, (3, 5, 8)))  # noise and seeds of the pilot
MOST, RESOLUTION, PATIENCE = 400, 0.6, 30


def two_stage(cores: Cores, studies: int) -> None:
    table(
        "noise",
        "pilot",
        "mean N",
        "Stein's interval misses",
        "t interval of all N misses",
        "stopping when significant or narrow",
    )
    cases = [(*case, studies) for case in STAGES]
    for (noise, pilot, _), (found,) in zip(cases, cores.each(stage_rates, cases), strict=True):
        mean_n, *rates = found
        row(title(noise), pilot, f"{mean_n:.1f}", *rates)


def stage_rates(
    rng: np.random.Generator, noise: Callable[..., Floats], pilot: int, studies: int
) -> list[float]:
    arms = noise(rng, (studies, MOST, 2))
    d = arms[..., 1] - arms[..., 0]
    d /= d.std()
    t, s = st.t.isf(0.025, pilot - 1), d[:, :pilot].std(axis=1, ddof=1)
    n = np.minimum(np.maximum(np.ceil((t * s / RESOLUTION) ** 2), pilot), MOST).astype(int)
    counts, rows = np.arange(1, MOST + 1), np.arange(studies)
    means = d.cumsum(axis=1) / counts
    sds = np.sqrt(
        np.maximum((d**2).cumsum(axis=1) - counts * means**2, 0) / np.maximum(counts - 1, 1)
    )
    halves = st.t.isf(0.025, np.maximum(counts - 1, 1)) * sds / np.sqrt(counts)
    stein, mean = t * s / np.sqrt(n), means[rows, n - 1]
    for i in range(CHECKED):
        assert n[i] == stats.two_stage(d[i, :pilot], RESOLUTION, most=MOST)
        after = stats.after_pilot(
            stats.paired(d[i, : n[i]]), d[i, : n[i]], d[i, :pilot], RESOLUTION
        )
        assert np.allclose((after.lo, after.hi), (mean[i] - stein[i], mean[i] + stein[i]))
    stop = (halves <= RESOLUTION) | (np.abs(means) > halves)
    # looked at after every seed from the pilot on
    stop[:, : pilot - 1], stop[:, PATIENCE - 1 :] = False, True
    at = stop.argmax(axis=1)
    misses = (
        np.abs(mean) > stein,
        np.abs(mean) > halves[rows, n - 1],
        np.abs(means[rows, at]) > halves[rows, at],
    )
    return [float(n.mean()), *(float(one.mean()) for one in misses)]


def families_after_a_pilot(cores: Cores, studies: int) -> None:
    """Four levels and one baseline; as many seeds for all as the noisiest contrast of the pilot
    asks for.
    """
    block = 500
    table(
        "noise",
        "pilot",
        "mean N",
        "one contrast: misses",
        "Holm",
        "the pilot's noise alone: misses",
        "Holm",
    )
    cases = [(*case, block) for case in STAGES]
    results = cores.each(family_rates, cases, -(-studies // block))
    for (noise, pilot, _), found in zip(cases, results, strict=True):
        mean_n, *rates = np.concatenate(found).mean(axis=0)
        row(title(noise), pilot, f"{mean_n:.1f}", *map(float, rates))


def family_rates(
    rng: np.random.Generator, noise: Callable[..., Floats], pilot: int, studies: int
) -> Floats:
    """Return of each study its N and what it found [R, 5]."""
    arms = noise(rng, (studies, MOST, 1 + LEVELS))
    d = arms[..., 1:] - arms[..., :1]
    d /= d.std()
    s = d[:, :pilot].std(axis=1, ddof=1)
    wanted = np.ceil((st.t.isf(0.025, pilot - 1) * s / RESOLUTION) ** 2)
    wanted = wanted.clip(pilot, MOST).astype(int)
    n = wanted.max(axis=1)
    study, size = np.arange(studies), n[:, None]
    mean = d.cumsum(axis=1)[study, n - 1] / size
    sd = np.sqrt(((d**2).cumsum(axis=1)[study, n - 1] - size * mean**2) / (size - 1))
    alone = 2 * st.t.sf(np.abs(mean) / (s / np.sqrt(size)), pilot - 1)
    p = np.where(
        wanted < size,
        np.maximum(alone, 2 * st.t.sf(np.abs(mean) / (sd / np.sqrt(size)), size - 1)),
        alone,
    )
    for i in range(2):
        family = stats.family(d[i, : n[i]], pilot=np.arange(n[i]) < pilot, resolution=RESOLUTION)
        assert n[i] == MOST or np.allclose([effect.p for effect in family], p[i])
    rates = [
        rate
        for each in (p, alone)
        for rate in ((each <= 0.05).mean(1), each.min(1) * LEVELS <= 0.05)
    ]
    return np.column_stack([n, *rates])


# -- tuned rates -----------------------------------------------------------------------------------

HALF = 0.38  # ln of half a step of the ladder, as in the stored studies
LADDER = Tune(1e-3, 1e-3 * math.exp(12 * HALF), 7, 3, ())
ENDS = 2  # steps beyond each end of the ladder that a simulated search may widen to
PLACES = np.arange(-4 * ENDS, 4 * (LADDER.points - 1 + ENDS) + 1) / 2  # in half steps
ARMS = 8
PAIRS = (5, 8, 16)
BLOCK = 250  # studies at once: curves drawn from their posteriors take memory


def bowl(x: Floats, a: Floats) -> Floats:
    return a * x**2


def skew(x: Floats, a: Floats) -> Floats:
    """Steeper above than below: two exponentials."""
    return a * (2 * np.exp(-0.3 * x) + np.exp(0.6 * x) - 3) / 0.27


def cliff(x: Floats, a: Floats) -> Floats:
    """A bowl with a cliff half a step above the best rate."""
    return a * x**2 + np.where(x > 1, 300 * a, 0)


def near_cliff(x: Floats, a: Floats) -> Floats:
    """A bowl with a cliff a sixth of a step above the best rate."""
    return a * x**2 + np.where(x > 1 / 3, 300 * a, 0)


def diverging(x: Floats, a: Floats) -> Floats:
    """A bowl; runs diverge from half a step above the best rate on."""
    return np.where(x > 1, np.inf, a * x**2)


def plateau(x: Floats, a: Floats) -> Floats:
    """A bowl that flattens away from the best rate."""
    return 30 * a * (1 - np.exp(-(x**2) / 30))


def tuning_noise(
    rng: np.random.Generator, shape: tuple[int, ...], rho: float, fading: bool
) -> Floats:
    """Noise of sd 1; two rates of a seed have correlation rho, or rho to the power of their
    distance in half steps if it is fading.
    """
    if not fading:
        common = rng.normal(size=(*shape[:-1], 1))
        return np.sqrt(rho) * common + np.sqrt(1 - rho) * rng.normal(size=shape)
    root = np.linalg.cholesky(rho ** np.abs(PLACES[:, None] - PLACES))
    return rng.normal(size=shape) @ root.T


def searched(full: Floats, logs: Floats, rungs: Sequence[int], step: float) -> Floats:
    """What `ablate.tune.search` tries of costs at all quarter steps [R, S, K]; NaN elsewhere."""
    means, studies = full.mean(axis=1), np.arange(len(full))
    tried = np.zeros(means.shape, bool)
    tried[:, rungs] = True
    low, high = np.full(len(full), rungs[0]), np.full(len(full), rungs[-1])
    last = means.shape[1] - 1

    def best() -> npt.NDArray[np.intp]:
        return np.where(tried, means, np.inf).argmin(axis=1)

    def refine(off: int, where: npt.NDArray[np.bool_]) -> None:
        at = best()
        for near in (at - off, at + off):
            inside = where & (near > low) & (near < high)
            tried[studies[inside], near[inside]] = True

    while True:
        at = best()
        down = (at == low) & (low > 0)
        up = (at == high) & (high < last) & ~down
        if not (down | up).any():
            break
        low, high = np.where(down, low - 4, low), np.where(up, high + 4, high)
        tried[studies[down], low[down]] = True
        tried[studies[up], high[up]] = True
    refine(2, np.ones(len(full), bool))
    half = np.where(tried[:, None], full, np.nan)
    refine(1, selection.near_cliff(selection.fit(logs, half, step)))
    return np.where(tried[:, None], full, np.nan)


@dataclass(frozen=True)
class Arms:
    """Tuned arms: regrets in sd of a seed, and the error that is estimated for them, [R, A]."""

    regret: Floats  # of the rate chosen now
    argmin: Floats  # of the rate with the lowest cost of the first seed
    error: Floats
    df: Floats


def tuned_arms(
    rng: np.random.Generator,
    studies: int,
    curve: Callable[[Floats, Floats], Floats],
    a: Floats,
    rho: float,
    *,
    seeds: int = 3,
    fading: bool = False,
) -> Arms:
    logs = math.log(LADDER.low) + HALF * PLACES
    rungs = [int(k) for k in np.flatnonzero(PLACES % 2 == 0)][ENDS : ENDS + LADDER.points]
    eighths = np.arange(PLACES[0], PLACES[-1] + 0.1, 0.25)
    lowest = curve(np.linspace(-2, 2, 4001), np.ones(1)).min()
    blocks = []
    for start in range(0, studies, BLOCK):
        size = min(BLOCK, studies - start)
        # the best rate lies anywhere between two rungs, at the same place for all arms
        x = PLACES - rng.uniform(5, 7, size=(size, 1, 1))
        costs = curve(x, a[:, None])[:, :, None]
        full = costs + tuning_noise(rng, (size, len(a), seeds, len(PLACES)), rho, fading)
        rows = full.reshape(-1, seeds, len(PLACES))
        some = searched(rows, logs, rungs, 2 * HALF)
        curves = selection.fit(logs, some, 2 * HALF)
        candidates = math.log(LADDER.low) + HALF * eighths
        chosen = candidates[selection.choose(curves, candidates)]
        first = searched(rows[:, :1], logs, rungs, 2 * HALF)[:, 0]
        argmin = PLACES[np.where(np.isnan(first), np.inf, first).argmin(axis=1)]
        if start == 0:
            check_search(rows, some, chosen, logs)
        if seeds == 1:
            # of so many compared runs the noise is as good as known
            curves = selection.fit(logs, some, 2 * HALF, (1.0, 15))
        offset = PLACES[0] - x[:, 0, :1]
        place = (chosen - math.log(LADDER.low)) / HALF
        blocks.append(
            [
                curve(place.reshape(size, -1) - offset, a) - lowest * a,
                curve(argmin.reshape(size, -1) - offset, a) - lowest * a,
                selection.regret(curves, chosen).reshape(size, -1),
                selection.regret_df(curves).reshape(size, -1),
            ]
        )
    return Arms(*(np.concatenate(part) for part in zip(*blocks, strict=True)))


def check_search(rows: Floats, some: Floats, chosen: Floats, logs: Floats) -> None:
    """The searches above are those of `ablate.tune`, where they do not reach the ends.

    Its rates have three digits, so one near the limit of what counts as a cliff may differ.
    """
    differ = 0
    for full, tried, log_rate in zip(rows[:CHECKED], some, chosen, strict=False):
        at = ~np.isnan(tried[0])
        if at[0] or at[-1]:
            continue
        costs = full.T.tolist()

        def of(lr: float, costs: list[list[float]] = costs) -> list[float]:
            return costs[int(np.abs(logs - math.log(lr)).argmin())]

        found = search(LADDER, of)
        same = len(found.rates) == at.sum() and np.allclose(
            np.log(found.rates), logs[at], atol=0.006
        )
        assert found.best
        differ += not same or abs(math.log(found.best) - log_rate) > 0.3 * HALF
    assert differ <= 1, differ


def judged(noise: Floats, regret: Floats, error: Floats, df: Floats) -> tuple[float, float, float]:
    """False positives of one contrast, of a family after Holm, and the mean width of an interval.

    Args:
        noise: [R, S, A], of the compared seeds.
        regret: [R, A], true.
        error: [R, A], estimated; 0 for none.
        df: [R, A].
    """
    d, pairs = regret[:, None] + noise, noise.shape[1]
    d = d[..., 1:] - d[..., :1]
    own = d.std(axis=1, ddof=1) ** 2 / pairs
    squares = np.stack([own, error[:, 1:] ** 2, np.broadcast_to(error[:, :1] ** 2, own.shape)])
    dfs = np.stack(
        [np.full(own.shape, pairs - 1.0), df[:, 1:], np.broadcast_to(df[:, :1], own.shape)]
    )
    total = np.maximum(squares.sum(axis=0), 1e-30)  # exactly equal arms: p is 1
    welch = total**2 / np.maximum((squares**2 / dfs).sum(axis=0), 1e-60)
    away, own = np.abs(d.mean(axis=1)), np.maximum(own, 1e-30)
    p = np.maximum(
        2 * st.t.sf(away / np.sqrt(total), welch), 2 * st.t.sf(away / np.sqrt(own), pairs - 1)
    )
    for study in range(2):
        base = selection.Choice(error[study, 0], df[study, 0])
        choices = [
            selection.combined([(1, selection.Choice(one, at)), (-1, base)])
            for one, at in zip(error[study, 1:], df[study, 1:], strict=True)
        ]
        effects = selection.with_choices(stats.family(d[study]), choices)
        assert np.allclose([effect.p for effect in effects], p[study], rtol=0.02, atol=1e-4)
    width = 2 * np.maximum(
        st.t.isf(0.025, welch) * np.sqrt(total), st.t.isf(0.025, pairs - 1) * np.sqrt(own)
    )
    return (
        float((p <= 0.05).mean()),
        float((p.min(axis=1) * p.shape[1] <= 0.05).mean()),
        float(width.mean()),
    )


def tuned_rates(cores: Cores, studies: int) -> None:
    """Eight arms of one best loss, each with its own tuned rate."""
    same = np.ones(ARMS)
    other = np.linspace(0.3, 2, ARMS)  # each arm another curvature
    cases: list[tuple[str, Callable[[Floats, Floats], Floats], Floats, float, dict[str, Any]]] = [
        ("bowl", bowl, a * same, rho, {}) for a in (0.5, 1.0) for rho in (0.0, 0.5, 0.8)
    ]
    cases += [
        (name, curve, a * same, rho, {})
        for name, curve in (
            ("skew", skew),
            ("plateau", plateau),
            ("cliff", cliff),
            ("near cliff", near_cliff),
            ("diverging", diverging),
        )
        for a in (0.5, 1.0)
        for rho in (0.0, 0.8)
    ]
    cases += [
        (f"{name}, other curvature", curve, other, rho, {})
        for name, curve in (("bowl", bowl), ("skew", skew), ("cliff", cliff))
        for rho in (0.0, 0.8)
    ]
    cases += [("bowl, fading", bowl, a * same, 0.8, {"fading": True}) for a in (0.5, 1.0)]
    cases += [
        ("bowl, one seed", bowl, a * same, rho, {"seeds": 1})
        for a in (0.5, 1.0)
        for rho in (0.0, 0.8)
    ]
    table(
        "curve",
        "a/sd",
        "rho",
        "pairs",
        "regret, argmin of a seed",
        "regret",
        "argmin of a seed: p ≤ 0.05",
        "Holm",
        "curve, plain t: p ≤ 0.05",
        "Holm",
        "curve, with choice: p ≤ 0.05",
        "Holm",
        "width over plain t",
    )
    pieces = [(*case[1:], studies // 5) for case in cases]
    results = cores.each(tuned_cells, pieces)
    for (name, _, a, rho, _), (cells,) in zip(cases, results, strict=True):
        for pairs, some in zip(PAIRS, cells, strict=True):
            row(
                name,
                f"{a[0]:g}" if a[0] == a[-1] else f"{a[0]:g}–{a[-1]:g}",
                f"{rho:g}",
                pairs,
                *some,
            )


def tuned_cells(
    rng: np.random.Generator,
    curve: Callable[[Floats, Floats], Floats],
    a: Floats,
    rho: float,
    more: dict[str, Any],
    studies: int,
) -> list[list[float | str]]:
    """Return the cells of a row for each of `PAIRS`."""
    arms = tuned_arms(rng, studies, curve, a, rho, **more)
    none, cells = np.zeros_like(arms.error), []
    for pairs in PAIRS:
        noise = rng.normal(size=(len(arms.regret), pairs, len(a)))
        argmin = judged(noise, arms.argmin, none, arms.df)
        plain = judged(noise, arms.regret, none, arms.df)
        wide = judged(noise, arms.regret, arms.error, arms.df)
        cells.append(
            [
                f"{arms.argmin.mean():.3f}",
                f"{arms.regret.mean():.3f}",
                *argmin[:2],
                *plain[:2],
                *wide[:2],
                f"{wide[2] / plain[2]:.2f}",
            ]
        )
    return cells


def grid(sizes: int, ratios: int, seeds: int = 1) -> dict[str, Floats]:
    n = np.repeat(np.geomspace(5e7, 5e9, sizes), ratios)
    columns = {"n": n, "d": n * np.tile(np.geomspace(5, 160, ratios), sizes)}
    return {name: np.tile(column, seeds) for name, column in columns.items()}


def fits(cores: Cores, studies: int) -> None:
    sizes = np.geomspace(5e7, 5e9, 8)
    cases: tuple[tuple[str, str, dict[str, Floats], float, Callable[..., Floats]], ...] = (
        ("6 sizes × 6 ratios", "nd", grid(6, 6), 0.01, normal),
        ("6 sizes × 6 ratios", "nd", grid(6, 6), 0.01, heavy),
        ("6 sizes × 6 ratios, 3 seeds", "nd", grid(6, 6, 3), 0.01, normal),
        ("4 sizes × 4 ratios", "nd", grid(4, 4), 0.005, normal),
        ("8 sizes", "n", {"n": sizes}, 0.003, normal),
        ("5 sizes, 3 seeds", "n", {"n": np.tile(np.geomspace(5e7, 5e9, 5), 3)}, 0.003, normal),
    )
    table(
        "curve",
        "runs",
        "noise",
        "E",
        "A",
        "alpha",
        "B",
        "beta",
        "a",
        "width of alpha",
        "expected width",
    )
    results = cores.each(fitted, [case[1:] for case in cases], studies)
    for (name, key, columns, sd, noise), found in zip(cases, results, strict=True):
        form, truth, runs = FORMS[key], usual_constants(FORMS[key]), len(columns["n"])
        hits, widths = zip(*found, strict=True)
        cover = [*map(float, np.mean(hits, axis=0)), "", "", ""][:6]
        expected = scaling.expected_width(form, truth, columns, sd)["alpha"]
        row(
            f"{form.symbol}: {name}",
            runs,
            f"{sd:.1%} {title(noise)}",
            *cover,
            f"{np.median(widths):.3f}",
            f"{expected:.3f}",
        )


def fitted(
    rng: np.random.Generator,
    key: str,
    columns: dict[str, Floats],
    sd: float,
    noise: Callable[..., Floats],
) -> tuple[npt.NDArray[np.bool_], float]:
    """Return which intervals contain the truth [K], of L(N, D) a too, and the width of alpha's."""
    form, truth, runs = FORMS[key], usual_constants(FORMS[key]), len(columns["n"])
    answers = np.append(truth, truth[4] / (truth[2] + truth[4])) if key == "nd" else truth
    draws = noise(rng, (runs,)) / (np.sqrt(3) if noise is heavy else 1)
    log_loss = np.log(form.loss(truth, columns)) + sd * draws
    copies = estimate(form, columns, log_loss, rng, REPLICATES).replicates
    if key == "nd":
        copies = np.column_stack([copies, copies[:, 4] / (copies[:, 2] + copies[:, 4])])
    lo, hi = limits(copies, runs - len(truth))
    return (lo <= answers) & (answers <= hi), float(hi[2] - lo[2])


def further(cores: Cores, studies: int) -> None:
    table("what", "simulated", "result")
    (trusted,) = cores.each(held_out, [()], studies)
    row(
        "36 runs, 1% noise: the miss of the largest size is within its interval",
        studies,
        float(np.mean(trusted)),
    )
    noises = [(0.002,), (0.01,)]
    truth = USUAL[4] / (USUAL[2] + USUAL[4])
    for (sd,), results in zip(noises, cores.each(isoflop, noises, studies), strict=True):
        hits, found = zip(*results, strict=True)
        off = f"bias {np.mean(found) - truth:+.3f}, sd {np.std(found):.3f}"
        row(
            f"isoFLOP, 6 budgets × 8 sizes, {sd:.1%} noise: the exponent lies in its interval"
            f" ({off})",
            studies,
            float(np.mean(hits)),
        )
    (said,) = cores.each(groups, [()], studies)
    for what, rate in zip(
        ("exponents differ, own floors", "exponents differ, one floor", "an offset"),
        np.mean(said, axis=0),
        strict=True,
    ):
        row(f"two groups of one curve, 36 runs each, said to differ: {what}", studies, float(rate))


def held_out(rng: np.random.Generator) -> bool:
    columns = grid(6, 6)
    loss = FORMS["nd"].loss(USUAL, columns) * np.exp(0.01 * rng.normal(size=36))
    found = scaling.fit(loss, rng=rng, bootstraps=REPLICATES, **columns)
    assert found.held_out is not None
    return found.held_out.trusted


def isoflop(rng: np.random.Generator, sd: float) -> tuple[bool, float]:
    """Six budgets of eight sizes, whose middle is off the best one by up to a third."""
    c = np.repeat(np.geomspace(1e19, 1e21, 6), 8)
    truth = USUAL[4] / (USUAL[2] + USUAL[4])
    n = (
        best_split(USUAL, c)[0]
        * np.tile(np.geomspace(1 / 10, 10, 8), 6)
        * np.repeat(np.exp(rng.uniform(-0.3, 0.3, 6)), 8)
    )
    loss = FORMS["nd"].loss(USUAL, {"n": n, "d": c / 6 / n}) * np.exp(sd * rng.normal(size=48))
    one = scaling.isoflop(loss, n=n, c=c, rng=rng, bootstraps=REPLICATES)
    return one.n_exponent.lo <= truth <= one.n_exponent.hi, one.n_exponent.value


def groups(rng: np.random.Generator) -> list[bool]:
    """Two groups of one curve; half of the noise is the seed's and shared."""
    columns = grid(6, 6)
    both = {name: np.tile(column, 2) for name, column in columns.items()}
    noise = 0.007 * (np.tile(rng.normal(size=36), 2) + rng.normal(size=72))
    loss = np.tile(FORMS["nd"].loss(USUAL, columns), 2) * np.exp(noise)
    (one,) = scaling.fit_table(
        loss, group=["a"] * 36 + ["b"] * 36, rng=rng, bootstraps=REPLICATES, **both
    ).comparisons
    own, shared = (
        any(test.p_holm <= 0.05 for test in tests.values())
        for tests in (one.exponents, one.one_floor)
    )
    return [own, shared, one.verdict == "offset"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--studies", type=int, default=10_000, help="simulated studies of effects a case"
    )
    parser.add_argument("--fits", type=int, default=200, help="simulated tables of losses a case")
    parser.add_argument("--only", default="", help="part of the heading of the tables to print")
    arguments(parser)
    options = parser.parse_args()
    print(
        f"{date.today()}, Python {platform.python_version()}, numpy {np.__version__}, scipy"
        f" {scipy.__version__}, {options}\n",
        flush=True,
    )
    started = time.perf_counter()
    with Cores(options) as cores:
        for heading, part, count in (
            ("A/A studies", effects, options.studies),
            ("Two stages", two_stage, options.studies),
            ("Fitted constants: how often the 95% interval holds the truth", fits, options.fits),
            ("Further checks", further, options.fits),
            ("Families after a pilot", families_after_a_pilot, options.studies),
            ("Tuned rates", tuned_rates, options.studies),
        ):
            if options.only and options.only not in heading:
                continue
            begun = time.perf_counter()
            print(f"## {heading}\n")
            part(cores, count)
            print(f"\n{time.perf_counter() - begun:.0f} s\n", flush=True)
    print(f"{time.perf_counter() - started:.0f} s, {processor_seconds():.0f} s of processor time")


if __name__ == "__main__":
    main()
