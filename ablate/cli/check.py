"""`ablate check`: run the tests of built-in levels on levels of a user's own, and try their
metrics."""

from __future__ import annotations

from typing import Annotated

import typer

from ablate.cli.render import console


def check(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…",
            help="Python files, or installed packages, with levels and metrics of your own;"
            " FILE.py:NAME is a whole model.",
            show_default=False,
        ),
    ],
) -> None:
    """Try levels and metrics of your own in a small model, and print one line for each test. The
    exit code is 1 if a test fails.
    """
    from pathlib import Path

    from ablate import outside
    from ablate.code import short
    from ablate.study.parse import MODEL
    from ablate.trying import tried, tried_metric

    models = [name for name in files if MODEL.fullmatch(name)]
    out, failed = console(), 0
    for code in outside.find([name for name in files if name not in models], Path(), models):
        out.print(f"{code.name} ({short(code.version)})", style="bold", markup=False)
        trials = {f"{one.factor} = {one.name}": tried(one) for one in outside.levels(code)}
        trials |= {f"metric {one.name}": tried_metric(one) for one in outside.metrics(code)}
        for called, its in trials.items():
            out.print(called, markup=False)
            for one in its:
                failed += one.verdict == "FAILED"
                out.print(f"  {one.verdict:7}{one.what}: {one.text}", markup=False)
    if failed:
        out.print(f"Failed: {failed}", markup=False)
    raise typer.Exit(int(failed > 0))
