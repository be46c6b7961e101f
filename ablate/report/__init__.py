"""Write a study's answer as HTML, Markdown, LaTeX and CSV, with figures as SVG, PDF or PNG.

`gather` reads a study and derives its findings, once; `write` makes the files of a report, `answer`
the lines that the command line prints. `figures_of` gives the figures of a report one by one.
`index` is a page over several reports. The sentences are in templates/sentences.j2.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import jinja2

from ablate import __version__
from ablate.paths import file_name
from ablate.report import (
    answers,
    appendix,
    bundle,
    cited,
    explore,
    fairness,
    fitted,
    grids,
    masked,
    overview,
    pictures,
    plots,
    scaled,
    tables,
    tuned,
)
from ablate.report.data import ReportData, gather
from ablate.report.document import (
    Figure,
    Section,
    Table,
    exported,
    markdown,
    shown,
    to_csv,
    to_latex,
)
from ablate.report.figure_set import FigureSet
from ablate.report.labels import sentence
from ablate.report.method import paragraphs
from ablate.units import listed

if TYPE_CHECKING:
    from ablate.store import Database

__all__ = ["ReportData", "answer", "figures_of", "gather", "index", "lead", "write"]

PAGE = "report.html"
SVG = ("svg",)
# rows of a table of the page, which has to open from a mail, and where it would be too large with
# figures as images; the files have all
LONGEST, SHORTER = 1_500, 200
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # acts on the terminal that shows a file


@dataclass(frozen=True)
class Written:
    """One entry of an index: a study, its answer in short, and where its page is."""

    name: str
    question: str
    state: str
    headline: list[str]
    page: str  # address, relative to the index


def lead(data: ReportData) -> list[str]:
    """Return the first sentences of the answer."""
    curves = scaled.lead(data.curves_fitted) if data.curves_fitted else []
    best = [*answers.lead(data), *answers.at_edge(data)]
    return [*curves, *best, *answers.cells(data), *answers.lengths(data)]


def write(data: ReportData, out: Path, kinds: Sequence[str] = SVG) -> Path:
    """Write a report and return the path of its page.

    Args:
        data: from `gather`.
        out: gets report.html, report.md, references.bib, tables/*.csv and *.tex, figures/*.svg and
            other kinds.
        kinds: Files of each figure: "svg", which the page needs, and perhaps "pdf" and "png".
    """
    out.mkdir(parents=True, exist_ok=True)
    effects, *sections = _sections(data, FigureSet(out / "figures", kinds))
    for table in [table for section in (effects, *sections) for table in section.tables]:
        _save(out / "tables" / f"{table.name}.csv", to_csv(table))
        _save(out / "tables" / f"{table.name}.tex", to_latex(table))
    works = cited.works(data, (effects, *sections))
    _save(out / "references.bib", "\n".join(f"{one.text}\n" for one in works))
    content = {
        "study": data.study,
        "works": works,
        "effects": effects,
        "state": fairness.state(data),
        "headline": overview.headline(data),
        "badges": overview.badges(data),
        "matrix": overview.matrix(data),
        "metric": data.labels,
        "families": [
            *answers.families(data),
            *answers.successive(data),
            *answers.interactions(data),
            *answers.changes(data),
        ],
        "sections": sections,
    }
    _save(out / "report.md", _templates(False).get_template("report.md.j2").render(content))
    content |= {
        "bundle": bundle.packed(bundle.script()),
        "exploration": bundle.packed(explore.as_json(data)),
    }
    drawn = [figure for section in (effects, *sections) for figure in section.figures]
    template = _templates(True).get_template("report.html.j2")
    for longest in (LONGEST, SHORTER):
        page = pictures.with_figures(template.render(content, longest=longest), drawn)
        if len(page) <= pictures.PAGE:
            break
    _save(out / PAGE, page)
    return out / PAGE


def answer(data: ReportData) -> str:
    """Return the answer as plain text: question, state, a sentence a contrast, and fairness.

    A study with many contrasts gets a sentence a family.
    """
    lines = [data.study.question, fairness.state(data), *lead(data)]
    short = answers.brief(data)
    contrasts = answers.families(data) + answers.successive(data)
    further = answers.interactions(data) + answers.changes(data)
    lines += [answers.legend(data, contrasts + further)] if short else []
    for family in contrasts:
        lines += ["", f"{family.heading}:", *_lines(family, short)]
    for family in further:
        lines += [
            "",
            family.heading,
            *_lines(family, short),
            *([f"  {family.summary}"] if family.summary and not short else []),
        ]
    lines += ["", averaged] if (averaged := grids.averaged(data)) else []
    return "\n".join([*lines, "", *fairness.fairness(data), *answers.variances(data)])


def _lines(family: answers.Family, short: bool) -> list[str]:
    return (
        [f"  {family.brief}"] if short else [f"  {one.level} {one.text}" for one in family.answers]
    )


def index(db: Database, studies: Sequence[str], out: Path, kinds: Sequence[str] = SVG) -> Path:
    """Write a report for each study into a folder of `out`, and index.html; return its path.

    Args:
        db: The database.
        studies: Their names.
        out: The folder.
        kinds: As for `write`.
    """
    written = []
    for name in studies:
        data = gather(db, name)
        page = write(data, out / file_name(name), kinds)
        texts = fairness.state(data), overview.headline(data)
        written.append(
            Written(name, data.study.question, *texts, quote(page.relative_to(out).as_posix()))
        )
    _save(
        out / "index.html", _templates(True).get_template("index.html.j2").render(studies=written)
    )
    return out / "index.html"


def figures_of(data: ReportData) -> tuple[FigureSet, list[Figure]]:
    """Return a set with the figures of a report, of which none is drawn yet, and what they show."""
    figure_set = FigureSet()
    drawn = _figures(figure_set, data)
    return figure_set, [one for of_section in drawn.values() for one in of_section]


def _figures(figure_set: FigureSet, data: ReportData) -> dict[str, list[Figure]]:
    """Return the figures of each section that has any, in the order of the report."""
    curves = data.curves_fitted
    return {
        "effects": [*plots.effects(figure_set, data), *plots.effects_over(figure_set, data)],
        "cells": plots.heat(figure_set, data),
        "scaling": scaled.plots(figure_set, curves, data.labels) if curves else [],
        "seeds": plots.seeds(figure_set, data),
        "curves": plots.curves(figure_set, data),
        "over": plots.ordered(figure_set, data),
        "grids": plots.grids(figure_set, data),
        "time": plots.pareto(figure_set, data),
        "stream": plots.blocks(figure_set, data),
        "tuning": plots.tuning(figure_set, data),
    }


def _sections(data: ReportData, figure_set: FigureSet) -> list[Section]:
    """Return the section of effects, shown with the answer, and all others with content."""
    drawn = _figures(figure_set, data)
    effects = Section(
        "effects",
        "Effects",
        paragraphs=[*answers.cells(data), *answers.unranked(data), *answers.lengths(data)],
        figures=drawn["effects"],
        tables=_full(
            tables.effects(data),
            tables.successive(data),
            tables.interactions(data),
            tables.changes(data),
        ),
    )
    sections = [
        Section("basis", "Basis of the comparison", paragraphs=fairness.fairness(data)),
        Section(
            "cells",
            "What was compared",
            paragraphs=[*grids.notes(data), *plots.letters(data)],
            figures=drawn["cells"],
            tables=_full(
                tables.levels(data),
                tables.cells(data),
                grids.factors(data),
                grids.main_effects(data),
            ),
        ),
        _scaling(drawn["scaling"], data),
        Section("seeds", "Every seed", paragraphs=answers.variances(data), figures=drawn["seeds"]),
        Section("curves", "Learning curves", figures=drawn["curves"]),
        Section("over", "Over an ordered factor", figures=drawn["over"]),
        _grids(drawn["grids"], data),
        Section("time", sentence(f"{data.labels.phrase} against time"), figures=drawn["time"]),
        Section("stream", "Inside the model", figures=drawn["stream"]),
        Section(
            "tuning",
            sentence(data.tuned.values),
            paragraphs=tuned.paragraphs(data),
            figures=drawn["tuning"],
            tables=_full(tuned.rates(data), tuned.changed(data), tuned.by_rate(data)),
        ),
        *_spent(data),
        Section(
            "troubles",
            "Failed, diverged and excluded runs",
            paragraphs=appendix.excluded(data),
            tables=_full(appendix.troubles(data)),
        ),
        Section("method", "Method", paragraphs=paragraphs(data)),
        Section("runs", "All runs", tables=_full(appendix.runs(data))),
    ]
    figure_set.draw()
    return [
        effects,
        *(
            section
            for section in sections
            if section.figures or section.tables or section.paragraphs
        ),
    ]


def _spent(data: ReportData) -> list[Section]:
    """Return what the runs cost and where they ran; nothing of it is known of imported ones."""
    if data.study.kind == "imported":
        return []
    return [
        Section("cost", "What the study cost", tables=_full(appendix.cost(data))),
        Section("setting", "How it was run", tables=_full(appendix.setting(data))),
    ]


def _scaling(shown: list[Figure], data: ReportData) -> Section:
    curves = data.curves_fitted
    if curves is None:
        return Section("scaling", "Scaling")
    return Section(
        "scaling",
        "Scaling",
        paragraphs=scaled.paragraphs(curves),
        figures=shown,
        tables=_full(*fitted.tables(curves, data)),
    )


def _grids(shown: list[Figure], data: ReportData) -> Section:
    """Return the section on values along context and source, at probe ratios, of linear probes."""
    about_masks = masked.sentences(data)
    tables = _full(*masked.grids(data))
    named = [
        ("context", [one for one in shown if one.name.startswith(("positions", "loss-"))]),
        ("length of the source", [one for one in shown if one.name.startswith("error-")]),
        ("masking", about_masks),
        ("linear probes", [one for one in tables if one.name == "linear-probes"]),
    ]
    title = listed(name for name, found in named if found)
    return Section("grids", sentence(title), paragraphs=about_masks, figures=shown, tables=tables)


def _full(*tables: Table) -> list[Table]:
    return [table for table in tables if table.rows]


def _save(path: Path, text: str | Iterable[str]) -> None:
    """Write a text, or its parts one after another."""
    parts = [text] if isinstance(text, str) else text
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", errors="replace") as file:
        file.writelines(_CONTROL.sub("�", part) for part in parts)


@functools.cache
def _templates(escape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ablate.report"),
        autoescape=escape,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"md": markdown, "shown": shown}
    environment.globals |= {
        "shown": shown,
        "sort_key": _sort_key,
        "place": pictures.place,
        "version": __version__,
    }
    return environment


def _sort_key(cell: Any) -> str:
    value = exported(cell)
    return "" if value is None or value != value else str(value)
