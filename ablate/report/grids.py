"""Tables of a full grid: the variance that factors explain, and the mean effect of each level."""

from __future__ import annotations

from collections import Counter

from ablate.analysis.records import GridLevel, GridNote, GridTerm
from ablate.report.answers import MOST
from ablate.report.data import ReportData
from ablate.report.document import Span, Table, Value
from ablate.report.labels import p_digits, percent
from ablate.report.sentences import say
from ablate.store.questions import quoted
from ablate.units import decimals, ends, signed


def notes(data: ReportData) -> list[str]:
    """Return a sentence if a grid has no such tables."""
    missing = data.findings.of(GridNote, lambda one: bool(one.reason))
    return [say("grid_missing", one, data.labels) for one in missing]


def _note(data: ReportData) -> str:
    return " ".join(say("grid_note", one, bool(data.pilots)) for one in data.findings.of(GridNote))


def averaged(data: ReportData) -> str:
    """Return a sentence on main effects, where several factors are compared; else ""."""
    found = data.findings.of(GridLevel, lambda one: one.factor not in data.within)
    sizes = Counter(one.factor for one in found)
    if len(sizes) < 2:
        return ""
    said = say("main_effects", found, sizes, data.labels, len(found) <= MOST)
    return f"{said} {_note(data)}".strip()


def factors(data: ReportData) -> Table:
    """Return a table of the variance that each factor and pair of factors of a grid explains."""
    rows = tuple(
        (
            one.term,
            Value(percent(one.explained) if one.explained == one.explained else "–", one.explained),
            Value(f"{one.df}", one.df),
            Value("" if one.f != one.f else f"{one.f:,.3g}", one.f),
            Value("" if one.p != one.p else p_digits(one.p), one.p),
        )
        for one in data.findings.of(GridTerm)
    )
    caption = (
        "Share of the metric's variance that each term explains: least squares over all complete"
        " runs, with the seeds as blocks, each term tested with the others in the model (type"
        f" III). {_note(data)}"
    )
    columns = ("term", "variance explained", "degrees of freedom", "F", "p")
    return Table("factors", caption.strip(), columns, rows, _sql(data))


def main_effects(data: ReportData) -> Table:
    """Return a table of each level's effect, averaged over all levels of the other factors."""
    rows: list[tuple[str | Value, ...]] = []
    for one in data.findings.of(GridLevel):
        places = decimals((one.hi - one.lo) / 2)
        text = ends(one.lo, one.hi, places) if one.lo == one.lo else "–"
        interval = Span(text, one.lo, one.hi)
        effect = Value(signed(one.mean, places), one.mean)
        tests = (Value(p_digits(p), p) for p in (one.p, one.p_holm))
        rows.append((one.factor, one.level, one.baseline_level, effect, interval, *tests))
    caption = (
        f"The effect of each level on {data.labels.axis}, averaged over all levels of the other"
        " factors with equal weight, from the same least-squares fit. Holm's correction is over the"
        f" levels of a factor. {_note(data)}"
    )
    columns = ("factor", "level", "against", "effect", "95% interval", "p", "Holm p")
    return Table("main-effects", caption.strip(), columns, tuple(rows), _sql(data))


def _sql(data: ReportData) -> str:
    return (
        "-- the values that the model is fitted to\nSELECT cell, seed, metric\nFROM runs\n"
        f"WHERE study = {quoted(data.study.name)} AND role = 'compare' AND status = 'complete';"
    )
