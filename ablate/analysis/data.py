"""The frames of a study that its findings and its report are made of, read once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from ablate import results
from ablate.analysis import paired
from ablate.components import CATALOGUE
from ablate.components.catalogue import OF_MODELS
from ablate.config import field_info
from ablate.errors import AblateError
from ablate.metrics import final
from ablate.plan.check import comparable
from ablate.store import status
from ablate.store.code import Made, made
from ablate.store.records import FAILED

if TYPE_CHECKING:
    from ablate.store import Database


def values(runs: pd.DataFrame, field: str) -> set[Any]:
    """Return a field's values in runs; those of earlier versions lack it, and had its default."""
    known, default = runs[field], field_info(field).default
    if isinstance(default, tuple):  # as in the database
        default = json.dumps(default)
    return {default if missing else one for one, missing in zip(known, known.isna(), strict=True)}


@dataclass(frozen=True)
class StudyData:
    """The frames of a study, from `ablate.results` and `ablate.analysis`, and its file.

    What not every reader needs is read, or computed, on first use: a page that shows runs and
    curves alone needs no effects.
    """

    study: results.StudyRow
    runs: pd.DataFrame  # every member, all roles
    arms: pd.DataFrame
    decisions: pd.DataFrame
    attempts: pd.DataFrame
    waiting: list[str]  # decisions that wait for runs that failed
    levels: dict[str, dict[str, str]]  # cell → factor → level
    orders: dict[str, list[str]]  # factor → its levels, baseline first
    code: list[Made]  # versions of code from outside, and their runs
    db: Database

    @cached_property
    def pairs(self) -> pd.DataFrame:
        """Each run of a contrast with its baseline's run of the same seed."""
        return results.pairs(self.study.name, self.db)

    @cached_property
    def finals(self) -> pd.DataFrame:
        """Final values of compared runs."""
        return results.finals(self.study.name, db=self.db)

    @cached_property
    def pilots(self) -> dict[str, paired.Pilot]:
        """Stratum → what decided on its seeds."""
        return paired.pilots(self.study.name, self.db)

    @cached_property
    def choices(self) -> dict[str, paired.Chosen]:
        """Cell → its tuned rate."""
        return paired.choices(self.decisions, self.pairs)

    @cached_property
    def untrained(self) -> frozenset[str]:
        """Cells that did not learn beyond token frequencies."""
        own = self.study.own
        return paired.untrained(self.finals, self.runs, self.study.metric, own=own)

    @cached_property
    def lossy(self) -> frozenset[str]:
        """Cells whose tokenizer loses text, which another tokenizer of their stratum may not."""
        return paired.lossy(self.finals, self.compared, self.study.metric, own=self.study.own)

    @property
    def sizeless(self) -> frozenset[str]:
        """Cells whose contrasts have no effect size."""
        return self.untrained | self.lossy

    @cached_property
    def effects(self) -> pd.DataFrame:
        """The effect of each contrast, see `ablate.analysis.paired.effects_of`."""
        return self._effects_of(self.pairs, self.pilots)

    @cached_property
    def successive_pairs(self) -> pd.DataFrame:
        """Each run of a factor of `[report] successive` with that of its seed one level before."""
        named = (self.settings.get("report") or {}).get("successive", [])
        if not isinstance(named, list):
            raise AblateError(
                f"study {self.study.name!r}: [report] successive = {named!r:.80} is no list of"
                " factors"
            )
        parts = [
            part
            for factor in self.factors
            if factor in named
            for part in paired.successive(
                self.pairs[self.pairs["factor"] == factor], self.orders[factor]
            )
        ]
        return pd.concat(parts) if parts else self.pairs.head(0)

    @cached_property
    def successive(self) -> pd.DataFrame:
        """The effects of `successive_pairs`, as in `effects`.

        The difference of a level from the baseline is that of `effects`: two arms have one verdict.
        """
        # a pilot aims at differences from the baseline
        pilots = {stratum: paired.Pilot(one.seeds) for stratum, one in self.pilots.items()}
        found = self._effects_of(self.successive_pairs, pilots)
        arms = ["cell", "baseline"]
        stated = found[arms].merge(self.effects.drop(columns=["family", "arm"]), "left", arms)
        shared = stated["n"].notna().to_numpy()
        for name in found.columns.intersection(stated.columns):
            found.loc[shared, name] = stated.loc[shared, name].to_numpy()
        return found

    def _effects_of(self, pairs: pd.DataFrame, pilots: Mapping[str, paired.Pilot]) -> pd.DataFrame:
        return paired.effects_of(
            pairs,
            pilots,
            self.choices,
            self.sizeless,
            settings=self.settings,
            levels=self.levels,
            arms=self.arms,
        )

    @cached_property
    def changes(self) -> pd.DataFrame:
        """Changes of the effects, from one stratum to another."""
        return paired.changes(
            self.pairs,
            self.pilots,
            self.choices,
            against=self._against,
            crossed=self.crossed,
            sizeless=self.sizeless,
        )

    @property
    def _against(self) -> dict[str, list[str]]:
        """Stratum → the strata that it is compared with.

        These differ from it in one factor of `within`, which has its first level there, or the
        first one of a grid with gaps. A stratum that differs from all others in several factors is
        compared with the study's first one.
        """
        cells = self.pairs.drop_duplicates("stratum").set_index("stratum")["cell"]
        place = {
            str(stratum): tuple(
                self.orders[factor].index(self.levels[cell][factor]) for factor in self.within
            )
            for stratum, cell in cells.items()
            if self.levels[cell].keys() >= {*self.within}
        }
        strata = {one: stratum for stratum, one in place.items()}
        against = {}
        for stratum, one in place.items():
            near = []
            for at, level in enumerate(one):
                before = ((*one[:at], earlier, *one[at + 1 :]) for earlier in range(level))
                near += [strata[other] for other in before if other in strata][:1]
            if near:
                against[stratum] = near
        linked = {*against, *(first for near in against.values() for first in near)}
        first, *others = map(str, cells.index) if len(cells) else ("",)
        return against | {one: [first] for one in others if one not in linked}

    @cached_property
    def interactions(self) -> pd.DataFrame:
        """Interactions of factors that are varied together."""
        return paired.interactions(self.pairs, self.pilots, self.choices, crossed=self.crossed)

    @property
    def series(self) -> list[str]:
        """Names of the curves of the study; the metric's has no points if it is measured once."""
        usual = () if self.study.own else ("loss", "train_loss")
        return list(dict.fromkeys((*usual, self.study.reported)))

    @cached_property
    def ends(self) -> pd.DataFrame:
        """The ends of these curves, see `ablate.results.ends`."""
        return results.ends(self.study.name, self.series, self.db)

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
        compared = self.runs["role"] == "compare"
        # a selection is a copy, even of all
        return self.runs if compared.all() else self.runs[compared].reset_index(drop=True)

    @cached_property
    def good(self) -> pd.DataFrame:
        """Compared runs with a metric that counts."""
        whole = (self.compared["status"] == "complete") & self.compared["metric"].notna()
        return self.compared[whole].reset_index(drop=True)

    @property
    def broken(self) -> pd.Series:
        """Which of `compared` ended without a metric that counts."""
        ended = self.compared["status"].isin(paired.ENDED)
        return ended & ~self.compared["run"].isin(self.good["run"])

    @cached_property
    def unplanned(self) -> frozenset[str]:
        """Cells without a run to compare, because tuning runs failed and none is left to run."""
        tuning = self.runs.loc[self.runs["role"] == "tune", "status"]
        if tuning.isin(status.UNFINISHED).any() or not tuning.isin(FAILED).any():
            return frozenset()
        return frozenset(self.arms["cell"]) - frozenset(self.compared["cell"])

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
        changed = any(CATALOGUE[name].group in OF_MODELS for name in names & set(CATALOGUE))
        found = set()
        for cell, runs in self.good.groupby("cell"):
            if changed and len(runs) < 2:
                continue
            shares = {
                name: runs[name].astype(float).fillna(0)
                for name in ("prune_share", "shuffle_heads")
                if name in runs
            }
            # all heads are no draw, but heads of all blocks are shuffled in a drawn order
            drawn = any(
                ((share > 0) & ((share < 1) | (name == "shuffle_heads"))).any()
                for name, share in shares.items()
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
        runs = self.compared
        objectives = set(runs["objective"].dropna()) if "objective" in runs else set()
        fields = comparable(self.study.metric, objectives)
        if stratum is not None:
            runs = runs[runs["stratum"] == stratum]
        return [name for name in fields if name in runs and len(values(runs, name)) > 1]

    @property
    def factors(self) -> list[str]:
        """Factors of the study, in the order of its labels."""
        return list(self.orders)

    @cached_property
    def within(self) -> list[str]:
        """Factors whose levels form the strata, in the order of `factors`."""
        within = set()
        for cell, stratum in self.arms.drop_duplicates("stratum")[["cell", "stratum"]].to_numpy():
            named = {f"{factor}={level}, ": factor for factor, level in self.levels[cell].items()}
            rest = f"{stratum}, "
            while first := next(filter(rest.startswith, named), ""):
                within.add(named[first])
                rest = rest.removeprefix(first)
        return [factor for factor in self.factors if factor in within]

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
    # texts of fields, of which a study has few: as text they take most of the memory
    types = runs.dtypes.astype(str)
    fields = [name for name in types.index[types == "str"] if name not in results.TEXT]
    runs = runs.astype(dict.fromkeys(fields, "category")).copy()  # with its numbers in one block
    arms = results.arms(study, db)
    strata = list(dict.fromkeys(arms["stratum"]))
    arms = arms.sort_values(
        "stratum", key=lambda column: column.map(strata.index), kind="stable"
    ).reset_index(drop=True)
    return StudyData(
        study=results.study(study, db),
        runs=runs,
        arms=arms,
        decisions=results.decisions(study, db),
        # what a report does not tell, a third of the frame
        attempts=results.attempts(study, db).drop(columns="evaluation"),
        waiting=status.waiting(db, study),
        levels=results.levels(study, db),
        orders=results.orders(study, db),
        code=made(db, study),
        db=db,
    )
