"""`ablate check`: run the tests of built-in levels on levels of a user's own, and try their
metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli.render import console

if TYPE_CHECKING:
    from ablate.trying import Tried

PRINTED = 5  # lines that a part itself prints and that are shown


def check(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…",
            help="Python files, or packages, with levels and metrics of your own; FILE.py:NAME, or"
            " MODULE:NAME of a package, is a whole model.",
            show_default=False,
        ),
    ],
) -> None:
    """Try levels and metrics of your own in a small model, and print one line for each test. The
    exit code is 1 if a test fails.
    """
    from pathlib import Path

    from ablate import outside, used
    from ablate.code import short
    from ablate.study.values import label
    from ablate.trying import tried, tried_metric

    models = [name for name in files if used.MODEL.fullmatch(name)]
    out = console()
    with outside.refusing() as refused:
        try:
            found = outside.find([name for name in files if name not in models], Path(), models)
        finally:  # also where the import of a file fails after that
            for error in refused:
                out.print(f"FAILED {error}", markup=False)
    failed = len(refused)
    for code in found:
        out.print(f"{code.name} ({short(code.version)})", style="bold", markup=False)
        levels, metrics = outside.levels(code), outside.metrics(code)
        parts = [(f"{one.factor} = {one.name}", one.fields, tried(one)) for one in levels]
        parts += [(f"metric {one.name}", one.fields, tried_metric(one)) for one in metrics]
        for called, fields, trials in parts:
            out.print(called, markup=False)
            for own in fields:
                out.print(
                    f"  field  {own.name} = {label(own.default)}: {own.meaning}", markup=False
                )
            printed = StringIO()
            while one := _next(trials, printed):
                failed += one.verdict == "FAILED"
                out.print(f"  {one.verdict:7}{one.what}: {one.text}", markup=False)
            lines = list(dict.fromkeys(printed.getvalue().splitlines()))
            for line in lines[:PRINTED]:
                out.print(f"  prints {line}", markup=False)
            if len(lines) > PRINTED:
                out.print(f"  prints {len(lines) - PRINTED} other lines")
    if failed:
        out.print(f"Failed: {failed}", markup=False)
    raise typer.Exit(int(failed > 0))


def _next(trials: Iterator[Tried], printed: StringIO) -> Tried | None:
    """Return what came of the next trial, and take what the part prints and warns of meanwhile."""
    with redirect_stdout(printed), redirect_stderr(printed):
        return next(trials, None)
