"""The frames of a study that its findings and its report are made of, read once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from ablate import results
from ablate.analysis import paired
from ablate.components import CATALOGUE
from ablate.metrics import final
from ablate.plan.check import COMPARABLE
from ablate.store import status
from ablate.store.code import Made, made

if TYPE_CHECKING:
    from ablate.store import Database


POINTS = 200  # of a curve in a figure

_MODEL = ("block", "attention", "position", "embedding")  # groups of fields that may add parameters


@dataclass(frozen=True)
class StudyData:
    """The frames of a study, from `ablate.results` and `ablate.analysis`, and its file."""

    study: results.StudyRow
    runs: pd.DataFrame  # every member, all roles
    arms: pd.DataFrame
    pairs: pd.DataFrame
    effects: pd.DataFrame
    changes: pd.DataFrame  # of the effects, from the first stratum to each other
    interactions: pd.DataFrame  # of factors that are varied together
    untrained: frozenset[str]  # cells that did not learn beyond token frequencies
    pilots: dict[str, paired.Pilot]  # stratum → what decided on its seeds
    choices: dict[str, paired.Chosen]  # cell → its tuned rate
    decisions: pd.DataFrame
    finals: pd.DataFrame  # of compared runs
    attempts: pd.DataFrame
    waiting: list[str]  # decisions that wait for runs that failed
    levels: dict[str, dict[str, str]]  # cell → factor → level
    orders: dict[str, list[str]]  # factor → its levels, baseline first
    code: list[Made]  # versions of code from outside, and their runs
    db: Database

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Losses of compared runs over training; read on first use, as the answer needs none."""
        names = [self.study.reported] if self.study.own else ["loss", "train_loss"]
        return results.curves(self.study.name, names, self.db, points=POINTS)

    @cached_property
    def windows(self) -> dict[str, pd.DataFrame]:
        """Cell → loss of held-out windows, seeds × windows, each times its weight in the metric.

        The mean of a row is the run's metric. {} if the metric is no such loss.
        """
        name, _ = final(self.study.metric)
        if name not in ("loss", "probe_loss", "reconstruction_loss") or self.study.own:
            return {}
        return results.weighted_windows(self.study.name, self.db, self.study.metric)

    @property
    def settings(self) -> dict[str, Any]:
        """The study file's tables; empty if the database holds no readable one."""
        return self.study.settings

    @property
    def correction(self) -> str:
        """What Holm's correction covers: "family" or "study"."""
        return paired.correction(self.settings)

    @property
    def crossed(self) -> bool:
        """Whether seeds of initialisation and of data order are crossed."""
        return paired.crossed(self.settings)

    @cached_property
    def compared(self) -> pd.DataFrame:
        """The runs that are compared, not those that tuned something."""
        return self.runs[self.runs["role"] == "compare"].reset_index(drop=True)

    @cached_property
    def good(self) -> pd.DataFrame:
        """Compared runs with a metric that counts."""
        whole = (self.compared["status"] == "complete") & self.compared["metric"].notna()
        return self.compared[whole].reset_index(drop=True)

    @cached_property
    def exact(self) -> frozenset[str]:
        """Cells of given weights that were evaluated as they are: their seeds change nothing.

        Where something is drawn by the seed, the runs of a cell differ. Of a single run, it is only
        known where the study changes no field of the model: that may add parameters.
        """
        if "start_hash" not in self.good or self.study.kind != "transformer":
            return frozenset()
        tables = [self.settings.get(name) or {} for name in ("base", "factors")]
        names = {name for table in tables for name in table}
        for levels in tables[1].values():
            for level in levels.values() if isinstance(levels, dict) else ():
                names |= set(level) if isinstance(level, dict) else set()
        changed = any(CATALOGUE[name].group in _MODEL for name in names & set(CATALOGUE))
        found = set()
        for cell, runs in self.good.groupby("cell"):
            if changed and len(runs) < 2:
                continue
            drawn = any(
                name in runs and (runs[name].astype(float).fillna(0) % 1 > 0).any()
                for name in ("prune_share", "shuffle_heads")
            )
            given = (runs["start_hash"].astype(object).fillna("") != "").all()
            untrained = (runs["tokens"] == 0).all() and runs["metric"].nunique() == 1
            if given and untrained and not drawn:
                found.add(str(cell))
        return frozenset(found)

    def incomparable(self, stratum: str | None = None) -> list[str]:
        """Return fields across which the metric does not compare, but which differ between cells.

        Args:
            stratum: Whose cells are looked at; None for those of the study.
        """
        fields = COMPARABLE.get(final(self.study.metric)[0], ())
        runs = self.compared
        if stratum is not None:
            runs = runs[runs["stratum"] == stratum]
        return [name for name in fields if name in runs and runs[name].nunique(dropna=False) > 1]

    @property
    def factors(self) -> list[str]:
        """Factors of the study, in the order of its labels."""
        return list(self.orders)

    @property
    def metrics(self) -> list[tuple[str, str, str, str]]:
        """Name, goal, unit and meaning of the metrics of the user's own that runs are measured by.

        Their code is not loaded: the study keeps this.
        """
        return [
            tuple(row)
            for one in self.code
            if one.active
            for row in one.code.about.get("metrics", ())
        ]

    @property
    def strata(self) -> list[str]:
        """Strata of the study; [""] without any."""
        return list(dict.fromkeys(self.arms["stratum"]))


def read(db: Database, study: str) -> StudyData:
    """Read the frames of a study.

    Raises:
        AblateError: The database does not know the study.
    """
    runs = results.load(study, db, role=None)
    seconds = (
        results.finals(study, "train_seconds", db, role=None)
        .drop_duplicates("run")
        .set_index("run")["value"]
    )
    runs["seconds"] = runs["run"].map(seconds).astype(float)
    arms = results.arms(study, db)
    strata = list(dict.fromkeys(arms["stratum"]))
    arms = arms.sort_values(
        "stratum", key=lambda column: column.map(strata.index), kind="stable"
    ).reset_index(drop=True)
    pairs, pilots = results.pairs(study, db), paired.pilots(study, db)
    decisions = results.decisions(study, db)
    choices = paired.choices(decisions, pairs)
    finals = results.finals(study, db=db)
    row = results.study(study, db)
    below = paired.untrained(finals, runs, row.metric)
    crossed = paired.crossed(row.settings)
    return StudyData(
        study=row,
        runs=runs,
        arms=arms,
        pairs=pairs,
        effects=paired.effects_of(study, db, pairs, pilots, choices, below),
        changes=paired.changes(pairs, pilots, choices, crossed=crossed),
        interactions=paired.interactions(pairs, pilots, choices, crossed=crossed),
        untrained=below,
        pilots=pilots,
        choices=choices,
        decisions=decisions,
        finals=finals,
        attempts=results.attempts(study, db),
        waiting=status.waiting(db, study),
        levels=results.levels(study, db),
        orders=results.orders(study, db),
        code=made(db, study),
        db=db,
    )
