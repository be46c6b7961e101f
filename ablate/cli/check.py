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
    out, failed = console(), 0
    for code in outside.find([name for name in files if name not in models], Path(), models):
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
            for one in trials:
                failed += one.verdict == "FAILED"
                out.print(f"  {one.verdict:7}{one.what}: {one.text}", markup=False)
    if failed:
        out.print(f"Failed: {failed}", markup=False)
    raise typer.Exit(int(failed > 0))
