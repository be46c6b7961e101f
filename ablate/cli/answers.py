"""Commands that answer a study's question: report, analyse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ablate.cli import complete
from ablate.cli.database import to_write
from ablate.cli.output import echo
from ablate.cli.render import Db, Stored, console, table, writing

if TYPE_CHECKING:
    from ablate.store import Database


def report(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY",
            help="Name or file of a study; without it, all studies.",
            show_default=False,
            autocompletion=complete.stored,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder to write reports to.")
    ] = Path("results"),
    figures: Annotated[
        str,
        typer.Option(
            "--figures",
            metavar="KINDS",
            help="Formats of the figures, such as svg,pdf,png; svg is always written.",
        ),
    ] = "svg",
    as_: Annotated[
        Literal["text", "json"],
        typer.Option(
            "--format",
            help="text: print the answer and write the page; json: print the findings only.",
        ),
    ] = "text",
    db: Db = None,
) -> None:
    """Print the answer to a study's question; write a page with tables and figures."""
    from ablate import report as reports
    from ablate import store
    from ablate.cli.stored import name_of, notes
    from ablate.paths import file_name
    from ablate.store.names import studies

    show = console()
    kinds = _kinds(figures)
    with store.open(db) as database:
        file = study or ""
        study = study and name_of(study, database)
        if as_ == "json":
            echo(_json(database, study))
            return
        if study is None:
            with writing(out):
                page = reports.index(database, list(studies(database)), out, kinds)
        else:
            data = reports.gather(database, study)
            show.print(reports.answer(data), markup=False, soft_wrap=True)
            for note in notes(study, database, file):
                show.print(note, markup=False, soft_wrap=True)
            with writing(out):
                page = reports.write(data, out / file_name(study), kinds)
        show.print(f"\nReport: {page}", markup=False, soft_wrap=True)


def _kinds(given: str) -> list[str]:
    """Return the kinds of files of figures, "svg" among them.

    Raises:
        AblateError: There is no such kind.
    """
    from ablate.errors import unknown
    from ablate.figures.saving import KINDS

    asked = given.replace(",", " ").split()
    for kind in asked:
        if kind not in KINDS:
            raise unknown("format for --figures", kind, KINDS)
    return [kind for kind in KINDS if kind == "svg" or kind in asked]


def _json(database: Database, study: str | None) -> str:
    """Return the findings of a study, or study → findings of all studies, as JSON."""
    from ablate.analysis import findings
    from ablate.store.names import studies

    names = list(studies(database)) if study is None else [study]
    found = {name: findings(name, database).rows() for name in names}
    return json.dumps(found if study is None else found[study], indent=1, ensure_ascii=False)


def analyse(study: Stored, db: Db = None) -> None:
    """Recompute a study's effects and findings from its stored results, and store them."""
    from ablate import analysis
    from ablate.report.labels import p_digits
    from ablate.report.sentences import places
    from ablate.units import ends, signed

    with to_write(db) as database:
        rows = analysis.analyse(database, study)
    headings = ["family", "factor", "level", "pairs", "lost", "effect", "95% interval", "Holm p"]
    lines = [
        (
            row.family,
            row.factor,
            row.level,
            str(row.n),
            str(row.lost),
            signed(row.mean, places(row)),
            ends(row.lo, row.hi, places(row)),
            p_digits(row.p_holm),
        )
        for row in rows
    ]
    console().print(table(headings, lines, right=["pairs", "lost", "effect", "Holm p"]))
