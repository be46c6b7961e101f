"""Tables of the result, each with the SQL on the views that gives its numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from ablate import stats
from ablate.analysis.records import Change, Contrast, Interaction, Successive, Tested
from ablate.components import CATALOGUE
from ablate.formats import without_folders
from ablate.report.data import ReportData
from ablate.report.document import Span, Table, Value
from ablate.report.labels import p_digits
from ablate.store.questions import quoted
from ablate.units import count, decimals, ends, number, power, signed

FOLDED = 12  # from this many rows on, explanations are shown on request


def measured(value: float, places: int) -> Value:
    """Return a cell with a number of `places` decimals."""
    return Value(number(value, places), value)


def effects(data: ReportData) -> Table:
    """Return a table of all contrasts: effect with both intervals, test, pairs."""
    found = data.findings.of(Contrast)
    several = {
        "stratum": any(data.strata),
        "factor": len({one.factor for one in found}) > 1,
        "baseline": len({one.baseline_level for one in found}) > 1,
    }
    rows: list[tuple[str | Value, ...]] = [
        (
            *(getattr(one, name) for name in ("stratum", "factor") if several[name]),
            one.level,
            *((one.baseline_level,) if several["baseline"] else ()),
            _pairs(one),
            *_tested(one, ("p", "p_holm", "p_sign_flip"), (one.family_lo, one.family_hi)),
            measured(one.correlation, 2),
            measured(one.mean / one.sd if one.sd > 0 else math.nan, 2),
            measured(one.detectable, decimals((one.hi - one.lo) / 2)),
        )
        for one in found
    ]
    columns = (
        *(name for name in ("stratum", "factor") if several[name]),
        "level",
        *(("baseline",) if several["baseline"] else ()),
        "pairs",
        "effect",
        "95% interval",
        "family interval",
        "p",
        "Holm p",
        "sign-flip p",
        "r",
        "effect / sd",
        "detectable",
    )
    name = quoted(data.study.name)
    return Table(
        "effects",
        f"Effects on {data.labels.axis}: the mean paired difference from the baseline. The"
        " family interval holds for all contrasts of a family together; r is the correlation of"
        " the two arms over seeds; sd is that of the paired differences; “detectable” is"
        " the smallest true effect detected with 80% power, for this number of pairs, noise"
        " and correction.",
        columns,
        tuple(rows),
        "SELECT family, factor, level, count(difference) AS pairs, avg(difference) AS effect\nFROM"
        f" pairs\nWHERE study = {name} AND status = 'complete' AND baseline_status ="
        " 'complete'\nGROUP BY family, cell, baseline;\n\n-- with interval and p, as last"
        " analysed\nSELECT family, factor, level, n, lost, mean, lo, hi, p, p_holm\nFROM"
        f" effects\nWHERE study = {name};",
        data=_with_detectable(data.effects, found),
    )


def _pairs(one: Contrast | Successive) -> Value:
    return Value(f"{one.n}" + (f" ({one.lost} lost)" if one.lost else ""), one.n)


def _with_detectable(
    frame: pd.DataFrame, found: Sequence[Contrast | Successive | Change | Interaction]
) -> pd.DataFrame:
    """Return a frame of effects with their smallest detectable effect, a column of the table."""
    if frame.empty:
        return frame
    names = [name for name in ("stratum", "first", "factor", "level") if name in frame]
    known = {tuple(getattr(one, name) for name in names): one.detectable for one in found}
    keys = frame[names].itertuples(index=False, name=None)
    return frame.assign(detectable=[known.get(key, math.nan) for key in keys])


def _interval(low: float, high: float, places: int) -> Span:
    return Span("–" if math.isnan(low) else ends(low, high, places), low, high)


def _tested(
    one: Contrast | Tested, p: Sequence[str], *more: tuple[float, float]
) -> Iterator[Value]:
    """Yield the columns of an effect, its 95% interval, further intervals, and p values."""
    places = decimals((one.hi - one.lo) / 2)
    yield Value(signed(one.mean, places), one.mean)
    for low, high in ((one.lo, one.hi), *more):
        yield _interval(low, high, places)
    for name in p:
        yield Value(p_digits(getattr(one, name)), getattr(one, name))


def cells(data: ReportData) -> Table:
    """Return a table of all cells: levels, cost, metric, effect."""
    effect = {one.cell: one for one in data.findings.of(Contrast)}
    rows = [_cell(data, arm, effect.get(arm["cell"])) for arm in data.arms.to_dict("records")]
    labels = data.labels
    columns = (
        *(("stratum",) if any(data.strata) else ()),
        "arm",
        "runs",
        *(() if data.study.own else ("parameters", "body", "FLOPs")),
        "seconds",
        labels.phrase,
        "sd",
        "effect",
        "95% interval",
    )
    return Table(
        "cells",
        "The compared cells and the cost of one run of each."
        f"{'' if data.study.own else ' The body is all parameters except embeddings and head;'}"
        f" {labels.axis} is the mean over completed runs, and sd its"
        " standard deviation over seeds.",
        columns,
        tuple(rows),
        "SELECT stratum, cell, count(metric) AS runs, n_params, n_params_body, flops,"
        " avg(device_seconds) AS device_seconds,\n       avg(metric) AS metric\nFROM runs\nWHERE"
        f" study = {quoted(data.study.name)} AND role = 'compare' AND status ="
        " 'complete'\nGROUP BY cell;",
    )


def levels(data: ReportData) -> Table:
    """Return a table of the meaning and the source of the levels of the study's factors."""
    rows = [
        (factor, level.name, level.meaning, level.source)
        for factor, names in data.orders.items()
        if factor in CATALOGUE
        for level in CATALOGUE[factor].levels
        if level.name in names and not level.origin
    ]
    # levels from outside are told by what the study keeps: their code is not loaded here
    rows += [
        (factor, name, meaning, source or without_folders(one.code.name))
        for one in data.code
        if one.active
        for factor, name, meaning, source in one.code.about.get("levels", ())
        if name in data.orders.get(factor, ())
    ]
    return Table(
        "levels",
        (
            "What the levels mean. A and M are attention and MLP, with N1 and N2 (pre, peri) on"
            " their inputs and O1 and O2 (peri) on their outputs; P1 and P2 (post) act where they"
            " meet the stream."
            if "topology" in data.orders
            else "What the levels mean."
        ),
        ("factor", "level", "meaning", "source"),
        tuple(rows),
        folded=len(rows) > FOLDED,
    )


def _cell(
    data: ReportData, arm: Mapping[Any, Any], effect: Contrast | None
) -> tuple[str | Value, ...]:
    runs = data.compared[data.compared["cell"] == arm["cell"]]
    good = data.good[data.good["cell"] == arm["cell"]]
    first = (
        runs.iloc[0]
        if len(runs)
        else pd.Series({"n_params": math.nan, "n_params_body": math.nan, "flops": math.nan})
    )
    spread = stats.spread(good["metric"].dropna().to_numpy(float))
    change, interval = (
        tuple(_tested(effect, ()))
        if effect and effect.n
        else (Value("baseline" if arm["is_baseline"] else "–", None), Span("", math.nan, math.nan))
    )
    return (
        *((arm["stratum"],) if any(data.strata) else ()),
        str(arm["arm"]),
        Value(f"{len(good)} of {len(runs)}", len(good)),
        *(
            _size(first[name], write)
            for name, write in (("n_params", count), ("n_params_body", count), ("flops", power))
            if not data.study.own
        ),
        _duration(float(good["seconds"].mean())),
        measured(float(good["metric"].mean()), data.places),
        measured(spread, decimals(spread)),
        change,
        interval,
    )


def _duration(seconds: float) -> Value:
    return Value(
        "–" if math.isnan(seconds) else f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:#.3g}",
        seconds,
    )


def _size(value: Any, write: Callable[[float], str]) -> Value:
    return Value("–" if pd.isna(value) else write(float(value)), plain(value))


def plain(value: Any) -> float | int | None:
    """Return an int or float; None if missing."""
    return (
        None
        if pd.isna(value)
        else int(value)
        if float(value).is_integer() and abs(value) < 1e15
        else float(value)
    )


def changes(data: ReportData) -> Table:
    """Return a table of how effects change from one stratum to another."""
    rows: list[tuple[str | Value, ...]] = [
        (
            *(one.factor, one.level, one.first, one.stratum, Value(f"{one.n}", one.n)),
            *_tested(one, ("p", "p_holm")),
            measured(one.detectable, decimals((one.hi - one.lo) / 2)),
        )
        for one in data.findings.of(Change)
    ]
    name = quoted(data.study.name)
    apart = dict.fromkeys((one.first, one.stratum) for one in data.findings.of(Change))
    strata = ", ".join(f"({quoted(first)}, {quoted(stratum)})" for first, stratum in apart)
    return Table(
        "changes",
        f"Change of the effects on {data.labels.axis} from one stratum to another: the mean, over"
        " the seeds complete in both, of the difference from the baseline minus that in the first."
        " Holm's correction is over the levels of a stratum.",
        (
            "factor",
            "level",
            "from",
            "to",
            "seeds",
            "change",
            "95% interval",
            "p",
            "Holm p",
            "detectable",
        ),
        tuple(rows),
        "SELECT b.factor, b.level, a.stratum AS first, b.stratum,\n       count(b.difference -"
        " a.difference) AS seeds, avg(b.difference - a.difference) AS change\nFROM pairs a JOIN"
        " pairs b ON b.study = a.study AND b.factor = a.factor AND b.level = a.level AND b.seed ="
        f" a.seed\nWHERE a.study = {name} AND (a.stratum, b.stratum) IN (VALUES {strata})\n     "
        " AND a.status = 'complete' AND a.baseline_status = 'complete' AND b.status = 'complete'"
        " AND b.baseline_status = 'complete'\nGROUP BY b.factor, b.level, a.stratum, b.stratum;",
        data=_with_detectable(data.changes, data.findings.of(Change)),
    )


def successive(data: ReportData) -> Table:
    """Return a table of each level of a factor of [report] against the one before it."""
    found = data.findings.of(Successive)
    shown = {"stratum": any(data.strata), "factor": len({one.factor for one in found}) > 1}
    rows: list[tuple[str | Value, ...]] = [
        (
            *(getattr(one, name) for name in shown if shown[name]),
            *(one.level, one.before, _pairs(one)),
            *_tested(one, ("p", "p_holm")),
            measured(one.detectable, decimals((one.hi - one.lo) / 2)),
        )
        for one in found
    ]
    names = dict.fromkeys(one.factor for one in found)
    where = "" if data.correction == "study" else " of a factor and stratum"
    return Table(
        "successive",
        f"Each level against the previous one: the mean paired difference in {data.labels.axis}."
        f" Holm's correction is over these differences{where}.",
        (
            *(name for name in shown if shown[name]),
            *("level", "previous", "pairs", "difference", "95% interval", "p", "Holm p"),
            "detectable",
        ),
        tuple(rows),
        "-- the runs behind each difference\nSELECT stratum, factor, level, seed, value, status,"
        " baseline_value, baseline_status\n"
        f"FROM pairs\nWHERE study = {quoted(data.study.name)} AND factor IN"
        f" ({', '.join(map(quoted, names))})\nORDER BY stratum, seed, level;",
        data=_with_detectable(data.successive, found),
    )


def interactions(data: ReportData) -> Table:
    """Return a table of all interactions: the effect together minus the sum of effects alone."""
    several = any(data.strata)
    rows: list[tuple[str | Value, ...]] = [
        (
            *((one.stratum,) if several else ()),
            *(one.factor, one.level, Value(f"{one.n}", one.n)),
            *_tested(one, ("p", "p_holm")),
            measured(one.detectable, decimals((one.hi - one.lo) / 2)),
        )
        for one in data.findings.of(Interaction)
    ]
    return Table(
        "interactions",
        f"Joint effects of factors on {data.labels.axis} minus the sum of their separate effects:"
        " the mean, over the seeds complete in all of these cells, of the joint difference from"
        " the baseline minus the single differences. Holm's correction is over the levels"
        " of the same factors.",
        (
            *(("stratum",) if several else ()),
            "factors",
            "levels",
            "seeds",
            "beyond the sum",
            "95% interval",
            "p",
            "Holm p",
            "detectable",
        ),
        tuple(rows),
        "-- the differences that are added up and subtracted\nSELECT stratum, factor, level, seed,"
        f" difference\nFROM pairs\nWHERE study = {quoted(data.study.name)} AND status ="
        " 'complete' AND baseline_status = 'complete';",
        data=_with_detectable(data.interactions, data.findings.of(Interaction)),
    )
