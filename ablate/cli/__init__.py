"""The command line. Commands are thin and import what they use when they run: `ablate --help` loads typer alone."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ablate.cli import answers, complete, database, fit, new, planning, power, running, show
from ablate.errors import AblateError

app = typer.Typer(
    name="ablate",
    help="Find out whether a part of a transformer matters, and by how much.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="First steps: ablate plan quickstart, ablate run quickstart, ablate report quickstart.",
)

BEFORE, DURING, AFTER = "Before a run", "Run", "After a run"
app.command(rich_help_panel=BEFORE)(new.new)
app.command(rich_help_panel=BEFORE)(planning.factors)
app.command(rich_help_panel=BEFORE)(planning.plan)
app.command(rich_help_panel=DURING)(running.run)
app.command(rich_help_panel=DURING)(running.status)
app.command(rich_help_panel=AFTER)(answers.report)
app.command(rich_help_panel=AFTER)(answers.analyse)
app.command(rich_help_panel=AFTER)(fit.fit)
app.command(rich_help_panel=AFTER)(power.power)
app.command(rich_help_panel=AFTER)(show.show)
app.command(rich_help_panel=AFTER)(answers.query)
app.add_typer(database.app, name="db", rich_help_panel=AFTER)


def _version(wanted: bool) -> None:
    if wanted:
        from ablate import __version__

        print(f"ablate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None: ...


def main() -> None:
    """The command `ablate`. What the user can put right is one line on standard error and exit code 2."""
    try:
        with complete.words_of_bash():
            app()
    except AblateError as error:
        print(f"ablate: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
