"""`ablate fit`: scaling curves of a study, or of any table of losses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli.render import Db, console, writing

if TYPE_CHECKING:
    from ablate.scaling import Losses, TableFit

TABLE = "Any table of losses"  # panel of the options that only such a table takes


def _column(what: str) -> typer.models.OptionInfo:
    return typer.Option(
        metavar="COLUMN", help=f"The column of {what}.", show_default=False, rich_help_panel=TABLE
    )


def fit(
    study: Annotated[
        str | None,
        typer.Argument(metavar="[STUDY]", help="A study in the database.", show_default=False),
    ] = None,
    group: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="The factor, or column, with a curve a level. Columns may be several.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    form: Annotated[
        str,
        typer.Option(
            metavar="n|d|c|nd",
            help="L(N), L(D), L(C) or L(N, D); else what the runs can tell.",
            show_default=False,
        ),
    ] = "",
    hold_out: Annotated[
        str,
        typer.Option(
            metavar="WHAT",
            help='"largest size", "largest tokens" or "largest budget": what checks the fit.',
            show_default=False,
        ),
    ] = "",
    count: Annotated[
        str,
        typer.Option(
            metavar="body|total|headless",
            help="What counts as N and C in a study: `headless` leaves the head out.",
        ),
    ] = "body",
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv",
            metavar="FILE",
            help="Fit this table instead of a study.",
            show_default=False,
            rich_help_panel=TABLE,
        ),
    ] = None,
    n: Annotated[str, _column("parameters")] = "",
    d: Annotated[str, _column("training tokens")] = "",
    flops: Annotated[str, _column("training FLOPs")] = "",
    loss: Annotated[str, _column("losses; log(COLUMN) of a perplexity")] = "",
    where: Annotated[
        list[str],
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Only rows with this value; <, >, <=, >= and != too. May be repeated.",
            show_default=False,
            rich_help_panel=TABLE,
        ),
    ] = [],  # noqa: B006
    lowest: Annotated[
        bool,
        typer.Option(
            "--lowest",
            help="Of the runs of one point only the best, as of a sweep.",
            rich_help_panel=TABLE,
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FOLDER",
            help="Draw the figures into it, as the report does.",
            show_default=False,
        ),
    ] = None,
    db: Db = None,
) -> None:
    """Fit scaling curves with intervals and a held-out check, and compare the curves of a factor's
    levels.
    """
    from ablate.errors import AblateError

    if (study is None) is (csv is None):
        raise AblateError("give a study, or a table with --csv FILE")
    if csv is None:
        only = {"n": n, "d": d, "flops": flops, "loss": loss, "where": where, "lowest": lowest}
        if given := [name for name, value in only.items() if value]:
            raise AblateError(f"--{given[0]} is for a table, and goes with --csv FILE")
        losses, hold_out = _of_study(str(study), group, hold_out, count, db)
    else:
        from ablate.scaling.read import read

        if not loss:
            raise AblateError("--csv wants --loss COLUMN, and one or more of --n, --d and --flops")
        losses = read(
            csv, loss=loss, n=n, d=d, flops=flops, group=group, where=where, lowest=lowest
        )
    out = console()
    for line in (
        losses.measured(),
        *losses.notes,
    ):  # first, as they may say why nothing can be fitted
        out.print(line, markup=False, soft_wrap=True)
    found = losses.fit(form=form, hold_out=hold_out)
    for line in found.lines():
        out.print(line, markup=False, soft_wrap=True)
    if plot:
        _plot(losses, found, loss or "loss", plot)
        out.print(f"Figures: {plot}", markup=False, soft_wrap=True)


def _of_study(
    name: str, group: list[str], hold_out: str, count: str, db: str | None
) -> tuple[Losses, str]:
    """The study's losses, and what it holds out where that is not said: as its [fit] says."""
    import tomllib

    from ablate import results, store
    from ablate.errors import AblateError
    from ablate.scaling.study import of_study

    if len(group) > 1:
        raise AblateError(f"--group takes one factor of a study; given were {', '.join(group)}")
    with store.open(db) as database:
        row = results.study(name, database)
        runs, levels = results.load(name, database), results.levels(name, database)
    if row.goal != "min":
        raise AblateError(
            f"scaling curves are of a loss, and {row.metric}, the metric of {name}, is better where"
            " it is higher"
        )
    wanted = tomllib.loads(row.toml).get("fit", {})
    chosen = group[0] if group else str(wanted.get("group", ""))
    return of_study(runs, levels, group=chosen, count=count), hold_out or str(
        wanted.get("hold_out", "")
    )


def _plot(losses: Losses, found: TableFit, label: str, folder: Path) -> None:
    """The figures of the report's scaling section, as .svg, .pdf and .png."""
    from ablate.report.gallery import Gallery
    from ablate.report.scaled import Scaled, pictures
    from ablate.report.words import MetricWords

    with writing(folder):
        gallery = Gallery(folder)
        pictures(gallery, Scaled(losses, found, ""), MetricWords(label, "", "min"))
        gallery.draw()
