"""`ablate check`: whether levels of a user's own pass what the built-in ones have to pass."""

from __future__ import annotations

from typing import Annotated

import typer

from ablate.cli.render import console


def check(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE…",
            help="Python files, or installed packages, with levels of your own.",
            show_default=False,
        ),
    ],
) -> None:
    """Try levels of your own in a small model, and say line by line what holds. Exit code 1 if
    something does not.
    """
    from pathlib import Path

    from ablate import outside
    from ablate.code import short
    from ablate.trying import tried

    out, failed = console(), 0
    for code in outside.find(files, Path()):
        out.print(f"{code.name} ({short(code.version)})", style="bold", markup=False)
        for component in outside.levels(code):
            out.print(f"{component.factor} = {component.name}", markup=False)
            for one in tried(component):
                failed += one.verdict == "FAILED"
                out.print(f"  {one.verdict:7}{one.what}: {one.text}", markup=False)
    if failed:
        out.print(f"Failed: {failed}", markup=False)
    raise typer.Exit(int(failed > 0))
