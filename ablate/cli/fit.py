"""`ablate fit`: scaling curves of a study, or of any table of losses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli.flags import option
from ablate.cli.output import echo
from ablate.cli.render import Db, show_all, working, writing

if TYPE_CHECKING:
    from ablate.scaling import Losses, TableFit

TABLE = "Any table of losses"  # panel of the options for a table only
STANDARD = "-"  # instead of a file


def _table(help: str, *names: str, metavar: str | None = "COLUMN") -> Any:
    return option(help, *names, metavar=metavar, rich_help_panel=TABLE)


Study = Annotated[
    str | None,
    typer.Argument(metavar="[STUDY]", help="A study in the database.", show_default=False),
]
Groups = Annotated[
    list[str], option("The factor, or columns, whose levels get a curve each.", metavar="NAME")
]
Baseline = Annotated[
    str,
    option(
        "The level of --group that the others are compared with; by default the first.",
        metavar="LEVEL",
    ),
]
Form = Annotated[
    str, option("L(N), L(D), L(C) or L(N, D); by default chosen from the runs.", metavar="n|d|c|nd")
]
HoldOut = Annotated[
    str,
    option(
        'Runs to hold out as a check: "largest size", "largest tokens" or "largest budget".',
        metavar="WHAT",
    ),
]
Predict = Annotated[
    list[str],
    option("Predict the loss here, with its interval. May be repeated.", metavar="N=3e9,D=6e10"),
]
Count = Annotated[
    str,
    option(
        "What counts as N and C in a study: `headless` leaves the head out.",
        metavar="body|total|headless",
        show_default=True,
    ),
]
Csv = Annotated[
    Path | None,
    _table(
        "Fit this table instead of a study: CSV, TSV, Markdown, JSON, Parquet or .xlsx. - is"
        " standard input.",
        "--csv",
        metavar="FILE",
    ),
]
Sizes = Annotated[
    str, _table('The column of parameters, or arithmetic on columns: "layers * width^2 * 12".')
]
Tokens = Annotated[str, _table('The column of training tokens, likewise: "step * batch".')]
Flops = Annotated[str, _table("The column of training FLOPs, likewise.")]
Loss = Annotated[
    str, _table('The column of losses, likewise: "1 - acc"; log(COLUMN) of a perplexity.')
]
Where = Annotated[
    list[str],
    _table(
        "Keep only rows with this value; also <, >, <=, >= and !=. May be repeated.",
        metavar="COLUMN=VALUE",
    ),
]
Lowest = Annotated[
    bool, _table("Keep only the best run of each point, as of a sweep.", "--lowest", metavar=None)
]
Json = Annotated[bool, option("Print the whole result as JSON: a list of findings.", "--json")]
Plot = Annotated[
    Path | None, option("Draw the report's figures into this folder.", "--plot", metavar="FOLDER")
]


def fit(
    study: Study = None,
    group: Groups = [],  # noqa: B006
    baseline: Baseline = "",
    form: Form = "",
    hold_out: HoldOut = "",
    predict: Predict = [],  # noqa: B006
    count: Count = "body",
    csv: Csv = None,
    n: Sizes = "",
    d: Tokens = "",
    flops: Flops = "",
    loss: Loss = "",
    where: Where = [],  # noqa: B006
    lowest: Lowest = False,
    json: Json = False,
    plot: Plot = None,
    db: Db = None,
) -> None:
    """Fit scaling curves with intervals and a held-out check; compare a factor's levels."""
    from ablate.errors import AblateError
    from ablate.study.values import point

    if (study is None) is (csv is None):
        raise AblateError("give a study, or a table with --csv FILE")
    if study and not study.endswith(".toml") and Path(study).is_file():
        raise AblateError(f"{study}: a table is given as --csv {study}")
    table: dict[str, Any] = {
        "n": n,
        "d": d,
        "flops": flops,
        "loss": loss,
        "where": where,
        "lowest": lowest,
    }
    if csv is not None:
        losses = _of_table(csv, group=group, baseline=baseline, **table)
    elif for_tables := [name for name, value in table.items() if value]:
        raise AblateError(f"--{for_tables[0]} is for tables only; add --csv FILE")
    else:
        losses, settings = _of_study(str(study), group, baseline, count, db)
        hold_out = hold_out or str(settings.get("hold_out", ""))
        predict = predict or list(settings.get("predict", []))
    options = {"form": form, "hold_out": hold_out, "predict": [point(at) for at in predict]}
    table_fit = _fitted(losses, json, **options)
    if json:
        echo(_json(losses, table_fit))
    else:
        show_all(table_fit.lines())
    if plot:
        _plot(losses, table_fit, loss or "loss", plot)
        if not json:
            show_all([f"Figures: {plot}"])


def _of_table(csv: Path, *, loss: str, **options: Any) -> Losses:
    from ablate.errors import AblateError
    from ablate.scaling.read import read

    if not loss:
        raise AblateError("--csv needs --loss COLUMN, and one or more of --n, --d and --flops")
    return read(Path("/dev/stdin") if str(csv) == STANDARD else csv, loss=loss, **options)


def _fitted(losses: Losses, json: bool, **options: Any) -> TableFit:
    """Fit the losses, and print what was read, as that may explain why nothing can be fitted."""
    from ablate.errors import AblateError

    read_first = (losses.measured(), *losses.notes)
    if not json:
        show_all(read_first)
    try:
        with working("Fitting …") as progress:
            return losses.fit(progress=progress, **options)
    except AblateError:
        if json:
            echo(*read_first, error=True)
        raise


def _json(losses: Losses, table_fit: TableFit) -> str:
    """Return the findings on the curves as JSON, as `ablate report --format json` has them."""
    from json import dumps

    from ablate.analysis.collection import Findings
    from ablate.analysis.curves import Scaled, scaling

    found = Findings(tuple(scaling(Scaled(losses, table_fit, ""))))
    return dumps(found.rows(), indent=1, ensure_ascii=False)


def _of_study(
    name: str, group: list[str], baseline: str, count: str, db: str | None
) -> tuple[Losses, Mapping[str, Any]]:
    """Return the study's losses, and its [fit]."""
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
        if row.own and not resource_fields(settings):
            how = (
                "import the runs with --n and --d"
                if row.kind == "imported"
                else "name them with n and d under [fit]"
            )
            raise AblateError(f"study {name!r} has no numbers of parameters and tokens: {how}")
        chosen = group[0] if group else str(settings.get("group", ""))
        losses = of_study(
            runs,
            levels,
            group=chosen,
            baseline=baseline,
            count=count,
            own=resource_fields(settings),
        )
        return losses, settings


def _plot(losses: Losses, table_fit: TableFit, label: str, folder: Path) -> None:
    """Save the figures of the report's scaling section as .svg, .pdf and .png."""
    from ablate.report.figure_set import FigureSet
    from ablate.report.labels import MetricLabels
    from ablate.report.scaled import Scaled, plots

    with writing(folder):
        figure_set = FigureSet(folder)
        plots(figure_set, Scaled(losses, table_fit, ""), MetricLabels(label, "", "min"))
        figure_set.draw()
