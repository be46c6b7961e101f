"""A study's answer as one HTML page, as Markdown, LaTeX and CSV, with every figure as SVG, PDF and
PNG.

`gather` reads and fits what a report says, once; `write` makes the files of it, `answer` the lines
that the command line prints. `index` is a page over several reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from ablate import __version__
from ablate.report import (
    answers,
    basis,
    contexts,
    fitted,
    grids,
    joint,
    pictures,
    probes,
    record,
    scaled,
    tables,
    tuned,
)
from ablate.report import material as materials
from ablate.report.document import Section, Table, exported, markdown, shown, to_csv, to_latex
from ablate.report.gallery import Gallery
from ablate.report.material import Material
from ablate.report.method import paragraphs
from ablate.report.words import sentence

if TYPE_CHECKING:
    from ablate.store import Database

__all__ = ["Gathered", "answer", "gather", "index", "write"]

PAGE = "report.html"


@dataclass(frozen=True)
class Gathered:
    """What is known of a study, and the scaling curves of one that grows a model or its budget."""

    material: Material
    scaled: scaled.Scaled | None

    @property
    def lead(self) -> list[str]:
        """What the reader asks first."""
        curves = scaled.lead(self.scaled) if self.scaled else []
        return [*curves, *answers.lead(self.material), *contexts.sentences(self.material)]


@dataclass(frozen=True)
class Written:
    """One entry of an index: a study, what it says first, and where its page is."""

    name: str
    question: str
    state: str
    lead: list[str]
    verdict: list[str]
    page: Path


def gather(db: Database, study: str) -> Gathered:
    """Read a study, as far as it is, and fit its curves. Raises `AblateError` for one that the
    database does not know.
    """
    material = materials.gather(db, study)
    return Gathered(material, scaled.gather(material))


def write(gathered: Gathered, out: Path) -> Path:
    """Write a report into the folder `out` and return the path of its page.

    `out` gets report.html, report.md, tables/*.csv and *.tex, figures/*.svg, *.pdf and *.png.
    """
    material = gathered.material
    out.mkdir(parents=True, exist_ok=True)
    effects, *sections = _sections(gathered, out / "figures")
    for table in [table for section in (effects, *sections) for table in section.tables]:
        _save(out / "tables" / f"{table.name}.csv", to_csv(table))
        _save(out / "tables" / f"{table.name}.tex", to_latex(table))
    content = {
        "study": material.study,
        "effects": effects,
        "state": basis.state(material),
        "lead": gathered.lead,
        "brief": answers.brief(material),
        "legend": answers.legend(material),
        "families": (
            answers.families(material) + joint.families(material) + answers.changes(material)
        ),
        "fairness": basis.fairness(material),
        "sections": sections,
    }
    _save(out / "report.md", _templates(False).get_template("report.md.j2").render(content))
    _save(out / PAGE, _templates(True).get_template("report.html.j2").render(content))
    return out / PAGE


def answer(gathered: Gathered) -> str:
    """The answer as plain text: the question, how far the study is, a sentence a contrast, what the
    comparison rests on.

    Of a study with many contrasts a sentence a family.
    """
    material = gathered.material
    lines = [material.study.question, basis.state(material), *gathered.lead]
    short = answers.brief(material)
    lines += [answers.legend(material)] if short else []
    for family in answers.families(material):
        lines += ["", f"{family.heading}:", *_told(family, short)]
    for family in joint.families(material) + answers.changes(material):
        lines += [
            "",
            family.heading,
            *_told(family, short),
            *([f"  {family.summary}"] if family.summary and not short else []),
        ]
    return "\n".join([*lines, "", *basis.fairness(material)])


def _told(family: answers.Family, short: bool) -> list[str]:
    return (
        [f"  {family.brief}"] if short else [f"  {one.level} {one.text}" for one in family.answers]
    )


def index(db: Database, studies: Sequence[str], out: Path) -> Path:
    """Write the reports on several studies into folders of `out`, and index.html over them; the
    path of that page.
    """
    written = []
    for name in studies:
        gathered = gather(db, name)
        page = write(gathered, out / pictures.slug(name))
        said = basis.state(gathered.material), gathered.lead, answers.verdict(gathered.material)
        written.append(
            Written(name, gathered.material.study.question, *said, page.relative_to(out))
        )
    _save(
        out / "index.html", _templates(True).get_template("index.html.j2").render(studies=written)
    )
    return out / "index.html"


def _sections(gathered: Gathered, folder: Path) -> list[Section]:
    """The effects, which stand beside the answer, and what follows; what a study has nothing for is
    left out.
    """
    material = gathered.material
    gallery = Gallery(folder)
    effects = Section(
        "effects",
        "Effects",
        pictures=pictures.effects(gallery, material),
        tables=_full(
            tables.effects(material), joint.interactions(material), tables.changes(material)
        ),
    )
    sections = [
        Section(
            "cells",
            "What was compared",
            paragraphs=grids.notes(material),
            pictures=pictures.heat(gallery, material),
            tables=_full(
                tables.levels(material),
                tables.cells(material),
                grids.factors(material),
                grids.main_effects(material),
            ),
        ),
        _scaling(gallery, material, gathered.scaled),
        Section("curves", "Learning curves", pictures=pictures.curves(gallery, material)),
        Section("over", "Over an ordered factor", pictures=pictures.ordered(gallery, material)),
        _grids(gallery, material),
        Section("time", "Loss against time", pictures=pictures.pareto(gallery, material)),
        Section("stream", "Inside the model", pictures=pictures.blocks(gallery, material)),
        Section(
            "tuning",
            "Learning rates",
            paragraphs=tuned.paragraphs(material),
            pictures=pictures.tuning(gallery, material),
            tables=_full(tuned.rates(material), tuned.changed(material)),
        ),
        Section("cost", "What the study cost", tables=_full(record.cost(material))),
        Section("setting", "How it was run", tables=_full(record.setting(material))),
        Section(
            "troubles",
            "Failed, diverged and excluded runs",
            paragraphs=record.excluded(material),
            tables=_full(record.unstable(material), record.troubles(material)),
        ),
        Section("method", "Method", paragraphs=paragraphs(material)),
        Section("runs", "All runs", tables=_full(record.runs(material))),
    ]
    gallery.draw()
    return [
        effects,
        *(
            section
            for section in sections
            if section.pictures or section.tables or section.paragraphs
        ),
    ]


def _scaling(gallery: Gallery, material: Material, found: scaled.Scaled | None) -> Section:
    if found is None:
        return Section("scaling", "Scaling")
    return Section(
        "scaling",
        "Scaling",
        paragraphs=scaled.paragraphs(found),
        pictures=scaled.pictures(gallery, found, material.words),
        tables=_full(*fitted.tables(found, material)),
    )


def _grids(gallery: Gallery, material: Material) -> Section:
    """What was measured along the context, and of masked models at the probe ratios: named by what
    there is of it.
    """
    shown, masked = pictures.grids(gallery, material), probes.sentences(material)
    context = [picture for picture in shown if not picture.name.startswith("probe-")]
    title = " and ".join(["context"] * bool(context) + ["masking"] * bool(masked))
    return Section(
        "grids",
        sentence(title),
        paragraphs=masked,
        pictures=shown,
        tables=_full(probes.grid(material)),
    )


def _full(*given: Table) -> list[Table]:
    return [table for table in given if table.rows]


def _save(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="replace")


def _templates(escape: bool) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ablate.report"),
        autoescape=escape,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"md": markdown, "shown": shown}
    environment.globals |= {"shown": shown, "sort_key": _sort_key, "version": __version__}
    return environment


def _sort_key(cell: Any) -> str:
    value = exported(cell)
    return "" if value is None or value != value else str(value)
