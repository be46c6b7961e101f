"""`ablate fit`: scaling curves of a study, or of any table of losses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli.flags import option
from ablate.cli.output import echo
from ablate.cli.render import Db, show_all, working, writing

if TYPE_CHECKING:
    from ablate.scaling import Losses, TableFit

TABLE = "Any table of losses"  # panel of the options for a table only


def _table(help: str, *names: str, metavar: str | None = "COLUMN") -> Any:
    return option(help, *names, metavar=metavar, rich_help_panel=TABLE)


def fit(
    study: Annotated[
        str | None,
        typer.Argument(metavar="[STUDY]", help="A study in the database.", show_default=False),
    ] = None,
    group: Annotated[
        list[str], option("The factor, or columns, whose levels get a curve each.", metavar="NAME")
    ] = [],  # noqa: B006
    form: Annotated[
        str,
        option("L(N), L(D), L(C) or L(N, D); by default chosen from the runs.", metavar="n|d|c|nd"),
    ] = "",
    hold_out: Annotated[
        str,
        option(
            'Runs to hold out as a check: "largest size", "largest tokens" or "largest budget".',
            metavar="WHAT",
        ),
    ] = "",
    predict: Annotated[
        list[str],
        option(
            "Predict the loss here, with its interval. May be repeated.", metavar="N=3e9,D=6e10"
        ),
    ] = [],  # noqa: B006
    count: Annotated[
        str,
        option(
            "What counts as N and C in a study: `headless` leaves the head out.",
            metavar="body|total|headless",
            show_default=True,
        ),
    ] = "body",
    csv: Annotated[
        Path | None,
        _table(
            "Fit this table instead of a study: CSV, TSV, Markdown, JSON, Parquet or .xlsx.",
            "--csv",
            metavar="FILE",
        ),
    ] = None,
    n: Annotated[
        str, _table('The column of parameters, or arithmetic on columns: "layers * width^2 * 12".')
    ] = "",
    d: Annotated[str, _table('The column of training tokens, likewise: "step * batch".')] = "",
    flops: Annotated[str, _table("The column of training FLOPs, likewise.")] = "",
    loss: Annotated[
        str, _table('The column of losses, likewise: "1 - acc"; log(COLUMN) of a perplexity.')
    ] = "",
    where: Annotated[
        list[str],
        _table(
            "Keep only rows with this value; also <, >, <=, >= and !=. May be repeated.",
            metavar="COLUMN=VALUE",
        ),
    ] = [],  # noqa: B006
    lowest: Annotated[
        bool,
        _table("Keep only the best run of each point, as of a sweep.", "--lowest", metavar=None),
    ] = False,
    baseline: Annotated[
        str,
        _table(
            "The level of --group that the others are compared with; by default the first.",
            metavar="LEVEL",
        ),
    ] = "",
    json: Annotated[
        bool, option("Print the whole result as JSON: a list of findings.", "--json")
    ] = False,
    plot: Annotated[
        Path | None,
        option("Draw the report's figures into this folder.", "--plot", metavar="FOLDER"),
    ] = None,
    db: Db = None,
) -> None:
    """Fit scaling curves with intervals and a held-out check; compare a factor's levels."""
    from ablate.errors import AblateError
    from ablate.study.values import point

    if (study is None) is (csv is None):
        raise AblateError("give a study, or a table with --csv FILE")
    if csv is None:
        only = {
            "n": n,
            "d": d,
            "flops": flops,
            "loss": loss,
            "where": where,
            "lowest": lowest,
            "baseline": baseline,
        }
        if table_only := [name for name, value in only.items() if value]:
            raise AblateError(f"--{table_only[0]} is for tables only; add --csv FILE")
        losses, hold_out, planned = _of_study(str(study), group, hold_out, count, db)
        predict = predict or planned
    else:
        from ablate.scaling.read import read

        if not loss:
            raise AblateError("--csv needs --loss COLUMN, and one or more of --n, --d and --flops")
        losses = read(
            csv,
            loss=loss,
            n=n,
            d=d,
            flops=flops,
            group=group,
            where=where,
            lowest=lowest,
            baseline=baseline,
        )
    # printed first, as they may explain why nothing can be fitted
    read_first = (losses.measured(), *losses.notes)
    if not json:
        show_all(read_first)
    try:
        with working("Fitting …") as progress:
            table_fit = losses.fit(
                form=form,
                hold_out=hold_out,
                predict=[point(at) for at in predict],
                progress=progress,
            )
    except AblateError:
        if json:
            for line in read_first:
                echo(line, error=True)
        raise
    if json:
        echo(_json(losses, table_fit))
    else:
        show_all(table_fit.lines())
    if plot:
        _plot(losses, table_fit, loss or "loss", plot)
        if not json:
            show_all([f"Figures: {plot}"])


def _json(losses: Losses, table_fit: TableFit) -> str:
    """Return the findings on the curves as JSON, as `ablate report --format json` has them."""
    from json import dumps

    from ablate.analysis.collection import Findings
    from ablate.analysis.curves import Scaled, scaling

    found = Findings(tuple(scaling(Scaled(losses, table_fit, ""))))
    return dumps(found.rows(), indent=1, ensure_ascii=False)


def _of_study(
    name: str, group: list[str], hold_out: str, count: str, db: str | None
) -> tuple[Losses, str, list[str]]:
    """Return the study's losses, what to hold out and where to predict, as in its [fit]."""
    from ablate import results, store
    from ablate.errors import AblateError
    from ablate.scaling.study import of_study
    from ablate.study import resource_fields

    if len(group) > 1:
        raise AblateError(f"--group takes one factor of a study; got {', '.join(group)}")
    with store.open(db) as database:
        row = results.study(name, database)
        runs, levels = results.load(name, database), results.levels(name, database)
        if row.goal != "min":
            raise AblateError(
                f"scaling curves need a loss, but higher is better for {row.metric}, the metric of"
                f" {name}"
            )
        settings = row.settings.get("fit", {})
        chosen = group[0] if group else str(settings.get("group", ""))
        return (
            of_study(runs, levels, group=chosen, count=count, own=resource_fields(settings)),
            hold_out or str(settings.get("hold_out", "")),
            list(settings.get("predict", [])),
        )


def _plot(losses: Losses, table_fit: TableFit, label: str, folder: Path) -> None:
    """Save the figures of the report's scaling section as .svg, .pdf and .png."""
    from ablate.report.figure_set import FigureSet
    from ablate.report.labels import MetricLabels
    from ablate.report.scaled import Scaled, plots

    with writing(folder):
        figure_set = FigureSet(folder)
        plots(figure_set, Scaled(losses, table_fit, ""), MetricLabels(label, "", "min"))
        figure_set.draw()
