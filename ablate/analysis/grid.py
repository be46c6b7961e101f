"""Findings on a full grid: the variance that factors explain, and the mean effect of each level."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from ablate import stats
from ablate.analysis import records
from ablate.analysis.data import StudyData
from ablate.errors import AblateError
from ablate.store.records import FAILED
from ablate.units import listed


def grid(data: StudyData) -> Iterator[records.Finding]:
    """Yield the least-squares fit of a study's runs; nothing if the study is no grid.

    Interactions are left out if cells of the grid are missing. A run in several cells is one
    observation, which counts in the first of them.
    """
    if len(data.factors) < 2 or data.settings.get("design", "grid") != "grid" or data.good.empty:
        return
    ended = data.compared[data.compared["status"].isin(["diverged", *FAILED])]
    note = partial(records.GridNote, left_out=int(ended["run"].nunique()))
    if reason := _unfit(data):
        yield note(reason=reason, additive=False)
        return
    cells = list(data.levels)
    runs = data.good.sort_values(
        "cell", key=lambda names: names.map(cells.index), kind="stable"
    ).drop_duplicates("run")
    named = {
        factor: [data.levels[cell].get(factor, "–") for cell in runs["cell"]]
        for factor in data.factors
    }
    whole = len(set(zip(*named.values(), strict=True))) == math.prod(
        len(set(levels)) for levels in named.values()
    )
    try:
        fit = stats.grid_effects(
            runs["metric"].to_numpy(float),
            named,
            list(runs["seed"]),
            interactions=2 if whole else 1,
        )
    except AblateError as error:
        reason = str(error).removeprefix("grid: ").partition(";")[0]
        yield note(reason=reason, additive=not whole)
        return
    yield note(reason="", additive=not whole)
    for term in fit.terms:
        yield records.GridTerm(
            term=term.name, explained=term.explained, df=term.df, f=term.f, p=term.p
        )
    yield records.GridTerm(
        term="residual", explained=fit.residual, df=fit.df_residual, f=math.nan, p=math.nan
    )
    for factor in data.factors:
        levels = [level for level in fit.levels if level.factor == factor]
        for level, p_holm in zip(levels, stats.holm([one.p for one in levels]), strict=True):
            yield records.GridLevel(
                factor=factor,
                level=level.level,
                baseline_level=data.orders[factor][0],
                mean=level.mean,
                lo=level.lo,
                hi=level.hi,
                p=level.p,
                p_holm=float(p_holm),
            )


def _unfit(data: StudyData) -> str:
    """Return why nothing can be fitted to the runs of a grid, "" if something can."""
    if data.untrained:
        return "some of its cells did not learn more than token frequencies"
    if data.sizeless:
        return "the tokenizers of some of its cells lose text"
    if fields := data.incomparable():
        across = listed(name.removesuffix("_hash") for name in fields)
        return f"the metric is not comparable across {across}, which the grid varies"
    if data.crossed:
        return "the fit takes runs as independent, and those of crossed seeds are not"
    return ""
