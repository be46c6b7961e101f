"""Commands around a run: run, status."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli import complete
from ablate.cli.planning import Size, StudyName, open_plan
from ablate.cli.render import Db, console, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ablate.store import Database

STATUSES = ("planned", "running", "complete", "diverged", "failed", "oom", "stopped")
WATCH_SECONDS = 2.0


def run(
    study: StudyName,
    size: Size = None,
    device: Annotated[
        str, typer.Option(metavar="auto|cpu|cuda|mps", help="Where to train.", autocompletion=complete.devices)
    ] = "auto",
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first run that fails.")] = False,
    db: Db = None,
) -> None:
    """Train what is missing of a study, and work out its effects. Ctrl-C stops it; run it again to go on."""
    from ablate import launch, store
    from ablate.analysis import analyse
    from ablate.launch import devices

    plan = open_plan(study, size)
    devices.find(device)  # refuses a device that is not there before a database is made
    out = console()
    with store.open(db, create=True) as database:
        for note in database.notes:
            out.print(note, markup=False)
        outcome = launch.run(plan, database, device=device, fail_fast=fail_fast, console=out)
        analyse(database, plan.study.name)
    out.print(f"Next: ablate report {plan.study.name}", markup=False)
    raise typer.Exit(outcome.exit_code)


def status(
    study: Annotated[str | None, typer.Argument(metavar="[STUDY]", help="One study, cell by cell.", show_default=False)] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it anew every two seconds, until Ctrl-C.")] = False,
    db: Db = None,
) -> None:
    """Show how far studies are: runs by status, and what is running now."""
    from ablate import store

    with store.open(db) as database:
        if not watch:
            console().print(_status(database, study))
            return
        from rich.live import Live

        with Live(_status(database, study), console=console(), screen=False, auto_refresh=False) as live:
            while True:
                try:
                    time.sleep(WATCH_SECONDS)
                except KeyboardInterrupt:
                    return
                live.update(_status(database, study), refresh=True)


def _status(database: Database, study: str | None) -> RenderableType:
    """One line a study, or a cell of one study: how many of its runs have each status."""
    from ablate.errors import unknown
    from ablate.store import query

    studies = [name for (name,) in query.run(database, "SELECT name FROM study ORDER BY id")[1]]
    if study is not None and study not in studies:
        raise unknown("study in the database", study, studies)
    by = "study" if study is None else "cell"
    _, rows = query.run(
        database, f"SELECT study, {by}, status, count(*) FROM runs GROUP BY study, {by}, status ORDER BY min(run)"
    )
    counts: dict[str, dict[str, int]] = {}
    for name, line, state, number in rows:
        if study in (None, name):
            counts.setdefault(line, {})[state] = number
    shown = [state for state in STATUSES if any(state in found for found in counts.values())]
    lines = [[name, str(sum(found.values())), *(str(found.get(state, "")) for state in shown)] for name, found in counts.items()]
    return table([by, "runs", *shown], lines, right=["runs", *shown])
