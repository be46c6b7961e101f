"""`ablate power`, and the noise that a database holds: how many seeds an effect needs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli import complete
from ablate.cli.database import existing, require
from ablate.cli.render import Db, console, table
from ablate.units import listed

if TYPE_CHECKING:
    from ablate.plan import Plan
    from ablate.store import Database

ALPHA = 0.05
NEAR = 4  # ratio of tokens, and of parameters, up to which one study's noise stands for another's
SHARES = (0.5, 1.0, 2.0)  # of the noise: the effects that are shown when none is given


@dataclass(frozen=True)
class Kind:
    """What makes a difference in a metric comparable with another one: what is learnt, from which
    text, and about how much.
    """

    objective: str
    corpus_hash: str
    tokenizer_hash: str
    tokens: int
    n_params: int

    def like(self, other: Kind) -> bool:
        """Whether text and objective are the same and the budgets within a factor of `NEAR`."""
        same = (self.objective, self.corpus_hash, self.tokenizer_hash) == (
            other.objective,
            other.corpus_hash,
            other.tokenizer_hash,
        )
        budgets = ((self.tokens, other.tokens), (self.n_params, other.n_params))
        return same and all(one <= NEAR * two and two <= NEAR * one for one, two in budgets)


@dataclass(frozen=True)
class Noise:
    """The standard deviation of paired differences in a metric, and where it was seen."""

    sd: float
    whence: str


def noise_of(study: str, metric: str, kinds: Iterable[Kind], db: Database) -> Noise | None:
    """The median noise of this study's contrasts, else of all others in this metric, among runs
    like those of one of `kinds`.

    None where the database holds none: noise of another text, tokenizer, objective or budget says
    nothing about these runs.
    """
    from sqlalchemy import text

    kinds = set(kinds)
    like = {place for place, kind in _kinds(db) if any(kind.like(wanted) for wanted in kinds)}
    with db.read() as connection:
        rows = connection.execute(
            text(
                "SELECT study, cell, difference FROM pairs WHERE metric = :metric AND difference IS"
                " NOT NULL AND status = 'complete' AND baseline_status = 'complete'"
            ),
            {"metric": metric},
        ).all()
    by_cell: dict[tuple[str, str], list[float]] = {}
    for name, cell, difference in rows:
        if (name, cell) in like and math.isfinite(difference):
            by_cell.setdefault((name, cell), []).append(difference)
    spreads = {
        key: spread
        for key, found in by_cell.items()
        if len(found) > 2 and (spread := statistics.stdev(found)) > 0
    }
    used = {key: spread for key, spread in spreads.items() if key[0] == study} or spreads
    if not used:
        return None
    names = list(dict.fromkeys(name for name, _ in used))
    pairs = f"{sum(len(by_cell[key]) for key in used)} pairs"
    others = f"the {pairs} of {'study' if len(names) == 1 else 'studies'} {listed(names, most=4)}"
    whence = f"this study's own {pairs}" if names == [study] else others
    return Noise(statistics.median(used.values()), f"{whence} in the database")


def _kinds(db: Database) -> list[tuple[tuple[str, str], Kind]]:
    """(study, cell) and the kind of its runs that compare."""
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT DISTINCT study.name, cell.label, objective, corpus_hash, tokenizer_hash,"
            " run.tokens, coalesce(n_params, 0) FROM study JOIN cell ON cell.study_id = study.id"
            " JOIN member ON member.cell_id = cell.id JOIN run ON run.id = member.run_id WHERE"
            " cell.active AND role = 'compare'"
        )
        return [((study, cell), Kind(*kind)) for study, cell, *kind in rows]


def planned_kinds(plan: Plan) -> set[Kind]:
    """The kinds of the plan's cells."""
    return {
        Kind(
            c.config.objective,
            c.config.corpus_hash,
            c.config.tokenizer_hash,
            c.config.tokens,
            c.sizes.params,
        )
        for c in plan.cells
    }


def power(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY",
            help="A study in the database, or a study file.",
            autocompletion=complete.studies,
        ),
    ],
    effect: Annotated[
        list[float],
        typer.Option(
            metavar="X",
            help="An effect to be found, in the metric's unit. May be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    chance: Annotated[
        float, typer.Option("--power", metavar="P", help="The chance of finding it.")
    ] = 0.8,
    db: Db = None,
) -> None:
    """Say how many seeds an effect needs, from the noise that the database holds."""
    from ablate import metrics, stats, store
    from ablate.errors import AblateError

    if not all(x > 0 for x in effect):
        raise AblateError(
            f"--effect {next(x for x in effect if not x > 0):g}: an effect lies above 0; its sign"
            " does not matter"
        )
    if not 0.05 < chance < 1:
        raise AblateError(f"--power {chance:g}: a chance between 0.05 and 1 is wanted")
    require(db)
    with store.open(db) as database:
        name, metric, kinds, largest = _named(study, database)
        noise = noise_of(name, metric, kinds, database)
        contrasts = _contrasts(name, database)
    if noise is None:
        raise AblateError(
            f"the database holds no noise in {metric} for such runs: three complete pairs of a"
            " contrast are needed, of any study with this objective, corpus and tokenizer, and"
            f" tokens and parameters within a factor of {NEAR}"
        )
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
        return [
            f"{stats.seeds_needed(x, sd, power=chance, alpha=ALPHA / family):,}" for x in effects
        ]

    rows = [
        [label, str(n), f"{sd:.2g}", *needed(sd, size)]
        for label, n, sd, size in contrasts
        if sd > 0
    ]
    corrected = max((size for *_, size in contrasts), default=largest)
    rows.append(["any, at the median noise", "", f"{noise.sd:.2g}", *needed(noise.sd, corrected)])
    out.print(table(headings, rows, right=headings[1:]))
    if corrected > 1:
        out.print("After correction for the contrasts of a family.", markup=False)


def _named(study: str, database: Database) -> tuple[str, str, set[Kind], int]:
    """Name, metric, kinds of runs and size of the largest planned family of a study in the database
    (1 there) or a file.
    """
    from ablate.plan import plan
    from ablate.plan.price import price
    from ablate.store.query import run
    from ablate.study import load

    known = dict(run(database, "SELECT name, metric FROM study")[1])
    if study in known:
        return (
            study,
            known[study],
            {kind for (name, _), kind in _kinds(database) if name == study},
            1,
        )
    made = plan(load(study))
    return (
        made.study.name,
        made.study.metric,
        planned_kinds(made),
        max(1, price(made).largest_family),
    )


def _contrast(row: Mapping[Any, Any]) -> str:
    where = f" | {row['stratum']}" if row["stratum"] else ""
    return f"{row['factor']}{where}: {row['level']}"


def _contrasts(study: str, database: Database) -> list[tuple[str, int, float, int]]:
    """(what is compared, whole pairs, their standard deviation, contrasts in its family) of a study
    with pairs.
    """
    from ablate import analysis
    from ablate.store.query import run

    if study not in [name for (name,) in run(database, "SELECT name FROM study")[1]]:
        return []
    frame = analysis.effects(study, database)
    size = frame.groupby("family")["cell"].size()
    return [
        (_contrast(row), row["n"], row["sd"], int(size[row["family"]]))
        for row in frame.to_dict("records")
    ]


def existing_noise(plan: Plan, db: str | None) -> Noise | None:
    """`noise_of` for runs like the plan's in the database of that name, where there is one."""
    if (database := existing(db)) is None:
        return None
    with database:
        return noise_of(plan.study.name, plan.study.metric, planned_kinds(plan), database)
