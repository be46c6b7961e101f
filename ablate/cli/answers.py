"""Commands that answer a study's question: report, analyse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ablate.cli import complete
from ablate.cli.database import to_write
from ablate.cli.render import Db, Stored, console, table, writing


def report(
    study: Annotated[
        str | None,
        typer.Argument(
            metavar="STUDY",
            help="A study; by default all.",
            show_default=False,
            autocompletion=complete.stored,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder to write reports to.")
    ] = Path("results"),
    db: Db = None,
) -> None:
    """Print the answer to a study's question; write a page with tables and figures."""
    from ablate import report as reports
    from ablate import store
    from ablate.report.plots import slug
    from ablate.store.names import studies

    show = console()
    with store.open(db) as database:
        if study is None:
            with writing(out):
                page = reports.index(database, list(studies(database)), out)
        else:
            gathered = reports.gather(database, study)
            show.print(reports.answer(gathered), markup=False, soft_wrap=True)
            with writing(out):
                page = reports.write(gathered, out / slug(study))
        show.print(f"\nReport: {page}", markup=False, soft_wrap=True)


def analyse(study: Stored, db: Db = None) -> None:
    """Recompute a study's effects from the results in the database, and store them."""
    from ablate import analysis

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
            f"{row.mean:+.4g}",
            f"{row.lo:+.4g} to {row.hi:+.4g}",
            f"{row.p_holm:.2g}",
        )
        for row in rows
    ]
    console().print(table(headings, lines, right=["pairs", "lost", "effect", "Holm p"]))
