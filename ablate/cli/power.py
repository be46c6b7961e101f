"""`ablate power`, and the noise that a database holds: how many seeds an effect needs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli import complete
from ablate.cli.database import existing, require
from ablate.cli.render import Db, console, table

if TYPE_CHECKING:
    from ablate.store import Database

ALPHA = 0.05
SHARES = (0.5, 1.0, 2.0)  # of the noise: the effects that are shown when none is given


@dataclass(frozen=True)
class Noise:
    """The standard deviation of paired differences in a metric, and where it was seen."""

    sd: float
    whence: str


def noise_of(study: str, metric: str, db: Database) -> Noise | None:
    """The median noise of this study's contrasts, else of all others in this metric; None where the database holds none."""
    from sqlalchemy import text

    with db.read() as connection:
        rows = connection.execute(
            text(
                "SELECT study, cell, difference FROM pairs WHERE metric = :metric AND difference IS NOT NULL "
                "AND status = 'complete' AND baseline_status = 'complete'"
            ),
            {"metric": metric},
        ).all()
    by_cell: dict[tuple[str, str], list[float]] = {}
    for name, cell, difference in rows:
        if math.isfinite(difference):
            by_cell.setdefault((name, cell), []).append(difference)
    spreads = {key: spread for key, found in by_cell.items() if len(found) > 2 and (spread := statistics.stdev(found)) > 0}
    own = [spread for (name, _), spread in spreads.items() if name == study]
    if not spreads:
        return None
    others = len({name for name, _ in spreads})
    whence = "this study's own pairs" if own else f"the pairs of {others} other {'study' if others == 1 else 'studies'}"
    return Noise(statistics.median(own or spreads.values()), f"{whence} in the database")


def power(
    study: Annotated[
        str, typer.Argument(metavar="STUDY", help="A study in the database, or a study file.", autocompletion=complete.studies)
    ],
    effect: Annotated[
        list[float],
        typer.Option(metavar="X", help="An effect to be found, in the metric's unit. May be repeated.", show_default=False),
    ] = [],  # noqa: B006
    chance: Annotated[float, typer.Option("--power", metavar="P", help="The chance of finding it.")] = 0.8,
    db: Db = None,
) -> None:
    """Say how many seeds an effect needs, from the noise that the database holds."""
    from ablate import metrics, stats, store
    from ablate.errors import AblateError

    if not all(x > 0 for x in effect):
        raise AblateError(f"--effect {next(x for x in effect if not x > 0):g}: an effect lies above 0; its sign does not matter")
    if not 0.05 < chance < 1:
        raise AblateError(f"--power {chance:g}: a chance between 0.05 and 1 is wanted")
    require(db)
    with store.open(db) as database:
        name, metric, largest = _named(study, database)
        noise = noise_of(name, metric, database)
        contrasts = _contrasts(name, database)
    if noise is None:
        raise AblateError(f"the database holds no noise in {metric}: three complete pairs of a contrast are needed, of any study")
    effects = sorted(effect) or [float(f"{share * noise.sd:.1g}") for share in SHARES]
    unit = metrics.parse(metric)[0].unit
    out = console()
    out.print(
        f"{name}: seeds that find an effect on {metric} ({unit}) in {chance:.0%} of studies. "
        f"Noise: sd {noise.sd:.2g} of a paired difference, from {noise.whence}.",
        markup=False,
        soft_wrap=True,
    )
    headings = ["contrast", "pairs", "sd", *(f"±{x:g}" for x in effects)]

    def needed(sd: float, family: int) -> list[str]:
        return [f"{stats.seeds_needed(x, sd, power=chance, alpha=ALPHA / family):,}" for x in effects]

    rows = [[label, str(n), f"{sd:.2g}", *needed(sd, size)] for label, n, sd, size in contrasts if sd > 0]
    corrected = max((size for *_, size in contrasts), default=largest)
    rows.append(["any, at the median noise", "", f"{noise.sd:.2g}", *needed(noise.sd, corrected)])
    out.print(table(headings, rows, right=headings[1:]))
    if corrected > 1:
        out.print("After correction for the contrasts of a family.", markup=False)


def _named(study: str, database: Database) -> tuple[str, str, int]:
    """The name, the metric and the size of the largest planned family of a study that the database (1 there) or a file holds."""
    from ablate.plan import plan
    from ablate.plan.price import price
    from ablate.store.query import run
    from ablate.study import load

    known = dict(run(database, "SELECT name, metric FROM study")[1])
    if study in known:
        return study, known[study], 1
    given = load(study)
    return given.name, given.metric, max(1, price(plan(given)).largest_family)


def _contrast(row: Mapping[Any, Any]) -> str:
    where = f" | {row['stratum']}" if row["stratum"] else ""
    return f"{row['factor']}{where}: {row['level']}"


def _contrasts(study: str, database: Database) -> list[tuple[str, int, float, int]]:
    """(what is compared, whole pairs, their standard deviation, contrasts in its family) of a study with pairs."""
    from ablate import analysis
    from ablate.store.query import run

    if study not in [name for (name,) in run(database, "SELECT name FROM study")[1]]:
        return []
    frame = analysis.effects(study, database)
    size = frame.groupby("family")["cell"].size()
    return [(_contrast(row), row["n"], row["sd"], int(size[row["family"]])) for row in frame.to_dict("records")]


def existing_noise(study: str, metric: str, db: str | None) -> Noise | None:
    """`noise_of` in the database of that name, where there is one."""
    if (database := existing(db)) is None:
        return None
    with database:
        return noise_of(study, metric, database)
