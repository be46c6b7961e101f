"""Effects of each factor of a full grid over all levels of the others, and variance explained."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ablate import stats
from ablate.errors import AblateError
from ablate.report.data import ReportData
from ablate.report.document import Table, Value
from ablate.report.labels import decimals, ends, p_digits, percent, plural, signed
from ablate.store.questions import quoted
from ablate.units import listed


@dataclass(frozen=True)
class Fitted:
    """The least-squares fit of a study's runs, or why there is none."""

    effects: stats.GridEffects | None
    note: str  # end of the caption
    without: str = ""  # why there is none


def fitted(data: ReportData) -> Fitted | None:
    """Return the fit with interactions of two factors, or None if the study has no grid.

    Interactions are left out if cells of the grid are missing. A run in several cells is one
    observation, which counts in the first of them.
    """
    if len(data.factors) < 2 or data.settings.get("design", "grid") != "grid" or data.good.empty:
        return None
    if fields := data.incomparable:
        across = listed(name.removesuffix("_hash") for name in fields)
        return Fitted(
            None,
            "",
            f"{data.labels.phrase} is not comparable across {across}, which the grid varies",
        )
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
        effects = stats.grid_effects(
            runs["metric"].to_numpy(float),
            named,
            list(runs["seed"]),
            interactions=2 if whole else 1,
        )
    except AblateError as error:
        return Fitted(None, "", str(error).removeprefix("grid: ").partition(";")[0])
    return Fitted(effects, " ".join(_notes(data, whole)))


def _notes(data: ReportData, whole: bool) -> list[str]:
    ended = data.compared[data.compared["status"].isin(["diverged", "failed", "oom"])][
        "run"
    ].nunique()
    return [
        *(
            ["Some combinations of levels have no run, so effects of factors are assumed additive."]
            if not whole
            else []
        ),
        *(
            [
                f"{plural(ended, 'run')} that diverged or failed {'is' if ended == 1 else 'are'}"
                " left out."
            ]
            if ended
            else []
        ),
        *(
            ["F and p treat the number of seeds as fixed, although a pilot decided it."]
            if data.pilots
            else []
        ),
    ]


def notes(data: ReportData) -> list[str]:
    """Return a sentence if a grid has no such tables."""
    fit = fitted(data)
    return (
        [f"The variance that factors explain is not shown: {fit.without}."]
        if fit and fit.without
        else []
    )


def factors(data: ReportData) -> Table:
    """Return a table of the variance that each factor and pair of factors of a grid explains."""
    fit, rows = fitted(data), []
    if fit and fit.effects:
        rows = [
            (
                term.name,
                Value(percent(term.explained), term.explained),
                Value(f"{term.df}", term.df),
                Value(f"{term.f:,.3g}", term.f),
                Value(p_digits(term.p), term.p),
            )
            for term in fit.effects.terms
        ]
        rest = Value(percent(fit.effects.residual), fit.effects.residual)
        df = Value(f"{fit.effects.df_residual}", fit.effects.df_residual)
        rows.append(("residual", rest, df, Value("", None), Value("", None)))
    caption = (
        "Share of the metric's variance that each term explains: least squares over all complete"
        " runs, with the seeds as blocks, each term tested with the others in the model (type"
        " III). " + (fit.note if fit else "")
    )
    columns = ("term", "variance explained", "degrees of freedom", "F", "p")
    return Table("factors", caption.strip(), columns, tuple(rows), _sql(data))


def main_effects(data: ReportData) -> Table:
    """Return a table of each level's effect, averaged over all levels of the other factors."""
    fit, rows = fitted(data), []
    for factor in data.factors if fit and fit.effects else []:
        levels = [level for level in fit.effects.levels if level.factor == factor]  # type: ignore[union-attr]
        for level, p_holm in zip(levels, stats.holm([level.p for level in levels]), strict=True):
            places = decimals((level.hi - level.lo) / 2)
            interval = Value(ends(level.lo, level.hi, places), level.lo)
            effect = Value(signed(level.mean, places), level.mean)
            tests = (Value(p_digits(p), p) for p in (level.p, float(p_holm)))
            rows.append((factor, level.level, data.orders[factor][0], effect, interval, *tests))
    caption = (
        f"The effect of each level on {data.labels.axis}, averaged over all levels of the other"
        " factors with equal weight, from the same least-squares fit. Holm's correction is over the"
        " levels of a factor. " + (fit.note if fit else "")
    )
    columns = ("factor", "level", "against", "effect", "95% interval", "p", "Holm p")
    return Table("main-effects", caption.strip(), columns, tuple(rows), _sql(data))


def _sql(data: ReportData) -> str:
    return (
        "-- the values that the model is fitted to\nSELECT cell, seed, metric\nFROM runs\n"
        f"WHERE study = {quoted(data.study.name)} AND role = 'compare' AND status = 'complete';"
    )
