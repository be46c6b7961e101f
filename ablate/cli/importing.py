"""`ablate import`: make a study from existing results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli.flags import option
from ablate.cli.render import Db, next_command, show_all, working
from ablate.units import plural

if TYPE_CHECKING:
    from ablate.imported.study import Prepared

COLUMNS = "What the columns are"  # panel


def _column(help: str, *names: str, metavar: str = "COLUMN") -> Any:
    return option(help, *names, metavar=metavar, rich_help_panel=COLUMNS)


Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE…",
        help=(
            "Tables (CSV, TSV, JSON lines, Parquet, .xlsx, also compressed), exports of Weights &"
            " Biases, MLflow's database or mlruns, TensorBoard log folders, Optuna storages."
        ),
        show_default=False,
    ),
]


def import_(
    context: typer.Context,
    files: Files,
    study: Annotated[str, option("Name of the study to make.", metavar="NAME")] = "",
    metric: Annotated[
        list[str],
        _column("The metric that is compared. May be repeated; the others are stored too."),
    ] = [],  # noqa: B006
    factor: Annotated[list[str], _column("A factor: a column that varies. May be repeated.")] = [],  # noqa: B006
    seed: Annotated[str, _column("The seed: runs with the same seed are compared.")] = "",
    step: Annotated[str, _column("The step, if a run has several rows.")] = "",
    at: Annotated[
        str,
        _column(
            "The value of a curve that is compared; by default the last.", metavar="last|best|STEP"
        ),
    ] = "",
    pattern: Annotated[
        str,
        _column(
            "A regular expression for names of runs, folders or wide columns; its named groups"
            " become columns: '(?P<optimizer>\\w+)-s(?P<seed>\\d+)'.",
            metavar="REGEX",
        ),
    ] = "",
    n: Annotated[str, _column("Parameters, for `ablate fit`.")] = "",
    d: Annotated[str, _column("Training tokens, for `ablate fit`.")] = "",
    flops: Annotated[str, _column("Training FLOPs.")] = "",
    where: Annotated[
        list[str],
        _column(
            "Import only rows with this value; also <, >, <=, >= and !=. May be repeated.",
            metavar="COLUMN=VALUE",
        ),
    ] = [],  # noqa: B006
    goal: Annotated[
        str,
        option(
            "Which direction of the metric is better; by default told from its name.",
            metavar="lower|higher",
        ),
    ] = "",
    within: Annotated[
        list[str], option("A factor; each of its levels has its own baseline.", metavar="FACTOR")
    ] = [],  # noqa: B006
    baseline: Annotated[
        list[str],
        option(
            "The level that others are compared with; by default the first in the file.",
            metavar="FACTOR=LEVEL",
        ),
    ] = [],  # noqa: B006
    question: Annotated[str, option("The question that the report answers.", metavar="TEXT")] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the runs that this study already has.")
    ] = False,
    db: Db = None,
) -> None:
    """Make a study from existing results, for report, compare, query and other commands."""
    import re
    from pathlib import Path

    from ablate import store
    from ablate.analysis import analyse
    from ablate.cli.database import existing
    from ablate.errors import AblateError, unknown
    from ablate.imported.model import Asked
    from ablate.imported.runs import gather
    from ablate.imported.study import Told, completed, prepare, write
    from ablate.store import imported as stored
    from ablate.study.imported import FLOPS, PARAMS, TOKENS
    from ablate.study.parse import NAME, NAMED

    if not study:
        raise AblateError("--study NAME is missing: the name of the study to make")
    if not re.fullmatch(NAME, study):
        raise AblateError(f"--study {study!r:.80}: {NAMED} are allowed, a letter or digit first")
    if at not in ("", "last", "best") and not at.isdecimal():
        raise unknown("value of --at", at, ["last", "best", "5000"])
    if goal not in ("", "lower", "higher"):
        raise unknown("goal", goal, ["lower", "higher"])
    resources = {PARAMS: n, TOKENS: d, FLOPS: flops}
    asked = Asked(
        tuple(metric),
        tuple(factor),
        seed,
        step,
        int(at) if at.isdecimal() else at,
        goal,
        tuple(where),
        pattern,
        {name: column for name, column in resources.items() if column},
    )
    paths = [Path(file.removeprefix("sqlite:///")).expanduser() for file in files]
    told = Told(study, question, tuple(within), tuple(baseline), replace)
    with working("Reading …") as progress:
        before = None
        if (database := existing(db)) is not None:
            with database:
                before = stored.study(database, study)
        asked, told = completed(asked, told, before)
        found = gather(paths, asked, extends=before is not None and not replace)
        progress("Storing …")
        prepared = prepare(paths, found, asked, told, before)
        with store.open(db, create=True) as database:
            added = write(database, prepared)
            analyse(database, study)
    show_all([_said(prepared, added), *prepared.notes])
    show_all([f"Next: {next_command(context, 'report', study)}"])


def _said(prepared: Prepared, added: int) -> str:
    """Return a sentence with the numbers of cells, seeds and runs."""
    study = prepared.plan.study
    cells, seeds = len(prepared.plan.cells), len(study.seeds)
    before = {one.run.key for one in prepared.before.runs} if prepared.before else set()
    known = sum(one.key in before for one in prepared.numbers)
    shared = len(prepared.numbers) - added - known
    were = f", {known:,} {'was' if known == 1 else 'were'} there" if known else ""
    were += f", {shared:,} shared with another study" if shared else ""
    return (
        f"{study.name}: {cells:,} cells, {plural(seeds, 'seed')},"
        f" {len(prepared.plan.runs):,} runs; {added:,} added{were}."
    )
