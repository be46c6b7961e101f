"""The command line. `ablate --help` loads typer only: a command imports what it uses."""

from __future__ import annotations

import errno
import gc
import os
import sys
from traceback import walk_tb
from typing import Annotated

import typer

from ablate.cli import (
    answers,
    board,
    check,
    compare,
    complete,
    data,
    database,
    export,
    factors,
    figure,
    fit,
    importing,
    new,
    output,
    planning,
    power,
    prune,
    query,
    running,
    sample,
    show,
    studies,
)
from ablate.cli.flags import Command, Group, UsageError, wrong
from ablate.errors import AblateError

app = typer.Typer(
    name="ablate",
    cls=Group,
    help="Find out whether a part of a model matters, and by how much.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=(
        "First steps: ablate new wiring --factor topology=serial,parallel, then ablate plan, run"
        " and report wiring."
    ),
)

PANELS = {
    "Before a run": (
        new.new,
        studies.studies,
        factors.factors,
        check.check,
        data.data,
        planning.plan,
    ),
    "Run": (running.run, running.status, board.board, running.cancel, importing.import_),
    "After a run": (
        answers.report,
        figure.figure,
        answers.analyse,
        fit.fit,
        power.power,
        show.show,
        compare.compare,
        sample.sample,
        prune.prune,
        query.query,
        query.browse,
        export.export,
    ),
}
for panel, commands in PANELS.items():
    for command in commands:
        name = command.__name__.strip("_")  # `import` is a word of Python's
        app.command(name, cls=Command, rich_help_panel=panel)(command)
app.add_typer(database.app, name="db", rich_help_panel="After a run")


def _version(requested: bool) -> None:
    if requested:
        from ablate import __version__

        print(f"ablate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command `ablate`; a user's mistake is one line on standard error and exit code 2."""
    # No command opens a window. A notebook's backend may not be installed here, and matplotlib
    # refuses to be imported then.
    os.environ["MPLBACKEND"] = "agg"
    # Imports and figures make objects that stay: to look for garbage after every 700 of them took
    # a tenth of the time of a report.
    gc.set_threshold(50_000)
    output.encodable()
    try:
        with output.written(), complete.words_of_bash():
            sys.exit(app(standalone_mode=False) or 0)
    except UsageError as error:
        if not error.message and not hasattr(error, "param"):  # the help is printed
            sys.exit(2)
        output.complain(" ".join(str(wrong(error)).split()))
        sys.exit(2)
    except AblateError as error:
        output.complain(" ".join(str(error).split()))
        sys.exit(2)
    except UnicodeDecodeError as error:
        where = {frame.f_globals["__name__"] for frame, _ in walk_tb(error.__traceback__)}
        if "matplotlib" not in where:
            raise
        output.complain(
            "matplotlib cannot read your settings: a matplotlibrc, in this folder, at $MATPLOTLIBRC"
            " or in matplotlib's own folder, is not UTF-8 text"
        )
        sys.exit(2)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        # wherever a name that the user has given is looked up
        output.complain(f"{error.filename!s:.100}…: {error.strerror}")
        sys.exit(2)
