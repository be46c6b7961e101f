"""A full grid: the effect of each factor and interaction, by least squares with seed blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ablate.errors import AblateError
from ablate.stats.values import Floats, Values, differences, largest, spread
from ablate.units import SAME

SEED = "seed"


@dataclass(frozen=True)
class Term:
    """A factor, an interaction ("a × b") or the seeds: how much of the variance it explains."""

    name: str
    df: int
    sum_sq: float
    f: float
    p: float
    # share of the total sum of squares; shares add up to 1 with `residual` when no run is lost
    explained: float
    partial: float  # sum_sq / (sum_sq + residual sum of squares)


@dataclass(frozen=True)
class LevelEffect:
    """A level minus its factor's baseline, all other factors averaged over with equal weight."""

    factor: str
    level: str
    mean: float
    lo: float
    hi: float
    p: float


@dataclass(frozen=True)
class GridEffects:
    """The effects of a grid of factors, with what no term explains."""

    runs: int
    lost: int
    df_residual: int
    residual_sd: float
    residual: float  # share of the variance that nothing explains
    terms: tuple[Term, ...]
    levels: tuple[LevelEffect, ...]


def grid_effects(
    values: Values,
    factors: Mapping[str, Sequence[str]],
    seeds: Sequence[int],
    *,
    interactions: int = 2,
    confidence: float = 0.95,
) -> GridEffects:
    """Return main effects and interactions of a grid of runs.

    The model is value = seed + factors + interactions, coded to sum to zero, so that each term is
    tested with all others in the model (type III) and a lost run costs only its own information.

    Args:
        values: [P], one a run; a value that is not finite is a lost run.
        factors: name → the level of every run [P]; the level that appears first is the baseline.
        seeds: [P].
        interactions: the most factors in one interaction.
        confidence: of the intervals.

    Raises:
        AblateError: cells are missing, so that terms are not separable, or no run is left to
            estimate noise from.
    """
    y = np.asarray(values, float)
    keep = np.isfinite(y)
    columns = {SEED: [str(seed) for seed in seeds]} | {
        name: [str(level) for level in levels] for name, levels in factors.items()
    }
    order = {name: list(dict.fromkeys(levels)) for name, levels in columns.items()}
    coded = {name: sum_coded(levels, order[name])[keep] for name, levels in columns.items()}
    names = [name for name in factors if len(order[name]) > 1]
    groups: list[tuple[str, ...]] = [(SEED,)] * (len(order[SEED]) > 1)
    groups += [
        group
        for size in range(1, interactions + 1)
        for group in itertools.combinations(names, size)
    ]
    blocks = [product([coded[name] for name in group]) for group in groups]
    model = least_squares(y[keep], blocks)
    spans = spans_of(blocks)
    total = float(((y[keep] - y[keep].mean()) ** 2).sum()) if spread(y[keep]) > 0 else 0.0
    noise = math.sqrt(model.mse_resid)
    if noise <= SAME * largest(y[keep]):
        noise = 0.0
    exact = not noise or noiseless(y, columns)
    return GridEffects(
        runs=int(keep.sum()),
        lost=int((~keep).sum()),
        df_residual=int(model.df_resid),
        residual_sd=noise,
        residual=(float(model.ssr) if noise else 0.0) / total if total > 0 else math.nan,
        terms=tuple(
            term(" × ".join(group), model, span, total, exact=exact)
            for group, span in zip(groups, spans, strict=True)
        ),
        levels=tuple(
            level_effect(
                name,
                level,
                sum_contrast(at, len(order[name])),
                model,
                spans[groups.index((name,))],
                confidence,
                exact=exact,
            )
            for name in names
            for at, level in enumerate(order[name])
            if at > 0
        ),
    )


def noiseless(y: Floats, columns: Mapping[str, Sequence[str]]) -> bool:
    """Return whether every two cells differ by the same amount with each seed, of several.

    A model without the interactions of three factors leaves a residual then, which is no noise.

    Args:
        y: [P], one a run; a value that is not finite is a lost run.
        columns: the seed and every factor → its level of every run [P].
    """
    seeds = {seed: at for at, seed in enumerate(dict.fromkeys(columns[SEED]))}
    cells: dict[tuple[str, ...], Floats] = {}
    names = [name for name in columns if name != SEED]
    for value, seed, *cell in zip(
        y, columns[SEED], *(columns[name] for name in names), strict=True
    ):
        cells.setdefault(tuple(cell), np.full(len(seeds), math.nan))[seeds[seed]] = value
    first, *others = cells.values()
    apart = [spread(differences(other, first)) for other in others]
    return len(seeds) > 1 and any(one == 0 for one in apart) and not any(one > 0 for one in apart)


def sum_coded(levels: Sequence[str], order: Sequence[str]) -> Floats:
    """Return levels [P] as columns [P, L − 1] that sum to zero over the levels.

    Each level but the last has a column with ones; the last is −1 in all.
    """
    codes = np.vstack([np.eye(len(order) - 1), -np.ones((1, len(order) - 1))])
    return np.asarray(codes[[order.index(level) for level in levels]], float)


def sum_contrast(level: int, count: int) -> Floats:
    """Return the contrast of a level with the first, in the columns of `sum_coded`."""
    codes = sum_coded([str(i) for i in range(count)], [str(i) for i in range(count)])
    return codes[level] - codes[0]


def product(columns: Sequence[Floats]) -> Floats:
    """Return every product of one column of each: the columns of an interaction."""
    out = columns[0]
    for more in columns[1:]:
        out = (out[:, :, None] * more[:, None, :]).reshape(len(out), -1)
    return out


def spans_of(blocks: Sequence[Floats]) -> list[slice]:
    """Return the range of each block's columns after the intercept."""
    ends = np.cumsum([1, *(block.shape[1] for block in blocks)])
    return [slice(int(low), int(high)) for low, high in itertools.pairwise(ends)]


def least_squares(y: Floats, blocks: Sequence[Floats]) -> Any:
    """Fit y on an intercept and the blocks with statsmodels OLS.

    Raises:
        AblateError: The effects are not identifiable.
    """
    from statsmodels.regression.linear_model import OLS  # `statsmodels.api` imports much more

    design = np.concatenate([np.ones((len(y), 1)), *blocks], axis=1)
    runs, effects = design.shape
    if runs and np.linalg.matrix_rank(design) < effects:
        raise AblateError(
            "grid: combinations of levels without a run, so effects are not identifiable; leave out"
            " interactions."
        )
    if runs <= effects:
        raise AblateError(
            f"grid: {runs} runs for {effects} effects leave nothing to estimate noise from; add"
            " seeds."
        )
    return OLS(y, design).fit()


def term(name: str, model: Any, span: slice, total: float, *, exact: bool) -> Term:
    """Return the F test of the columns in `span` and their share of `total`.

    There is no test where the fit is exact, or its residual is no noise.
    """
    picked = np.eye(len(model.params))[span]
    if exact:
        own = model.params[span]
        sum_sq = float(own @ np.linalg.solve(model.normalized_cov_params[span, span], own))
        share = sum_sq / total if total > 0 else math.nan
        share = 0.0 if share <= SAME else share
        return Term(name, len(picked), sum_sq, math.nan, math.nan, share, math.nan)
    f = model.f_test(picked)
    sum_sq = float(f.fvalue) * len(picked) * float(model.mse_resid)
    return Term(
        name=name,
        df=len(picked),
        sum_sq=sum_sq,
        f=float(f.fvalue),
        p=float(f.pvalue),
        explained=sum_sq / total if total > 0 else math.nan,
        partial=sum_sq / (sum_sq + float(model.ssr)) if sum_sq + model.ssr > 0 else math.nan,
    )


def level_effect(
    factor: str,
    level: str,
    contrast: Floats,
    model: Any,
    span: slice,
    confidence: float,
    *,
    exact: bool,
) -> LevelEffect:
    """Return a level's effect with interval, by its contrast in the columns of `span`.

    There is no interval where the fit is exact, or its residual is no noise.
    """
    row = np.zeros(len(model.params))
    row[span] = contrast
    if exact:
        return LevelEffect(factor, level, float(row @ model.params), *[math.nan] * 3)
    test = model.t_test(row)
    lo, hi = test.conf_int(alpha=1 - confidence)[0]
    return LevelEffect(
        factor, level, float(test.effect[0]), float(lo), float(hi), float(test.pvalue)
    )
