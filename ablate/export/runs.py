"""The runs of a study, in the form that experiment trackers need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pandas as pd

from ablate import formats, results
from ablate.errors import AblateError
from ablate.store import Database
from ablate.store.status import queued

PLACE = ["run", "cell", "role"]  # a study may have a run in several cells
TAGS = ("cell", "stratum", "role", "key", "status")
IDENTITY = ("key", "cell", "role")  # tags that no other run of the study has
SIZES = ("tokens", "n_params", "n_params_body", "flops")


@dataclass(frozen=True)
class Run:
    """A run in a cell of a study.

    Attributes:
        cell: Label of its cell.
        stratum: Label of its stratum, "" if the study has only one.
        role: "compare" or "tune".
        key: The key of the run in the database.
        status: Its status; see `ablate.store.records.RUN_STATUS`.
        seed: Its seed.
        which: Text that distinguishes it from the other runs of its cell.
        config: Its fields, the levels of factors that are no fields, and its sizes. Arrays are
            lists; what is not set or not known is left out.
        started: When its first attempt began, in seconds since 1970; None if unknown.
        ended: When its last attempt ended; None if it has not, or if that is unknown.
        curves: Its points: columns series, step, value (NaN where it had no number).
        finals: Name → value. The name is `final/NAME`, so that it does not continue a curve, or
            `final/NAME@AT` at a length factor, a probe ratio or a block.
    """

    cell: str
    stratum: str
    role: str
    key: str
    status: str
    seed: int
    which: str
    config: Mapping[str, Any]
    started: float | None
    ended: float | None
    curves: pd.DataFrame = field(repr=False)
    finals: dict[str, float]

    @property
    def identity(self) -> tuple[str, ...]:
        """The tags that find the run in a destination that it was written to before."""
        return tuple(self.tags[name] for name in IDENTITY)

    @property
    def name(self) -> str:
        """Its name in a tracker; no other run of the study has this name."""
        return f"{self.cell}, {self.which}"

    @property
    def points(self) -> list[tuple[int, dict[str, float]]]:
        """Each step that has points, in order, and the value of each series there."""
        found: dict[int, dict[str, float]] = {}
        columns = (self.curves[name].tolist() for name in ("series", "step", "value"))
        for series, step, value in zip(*columns, strict=True):
            found.setdefault(step, {})[series] = value
        return sorted(found.items())

    @property
    def series(self) -> list[str]:
        """The series of its points."""
        return list(self.curves["series"].unique())

    @property
    def last(self) -> int:
        """The last step that has a point, 0 without any."""
        return int(self.curves["step"].max()) if len(self.curves) else 0

    @property
    def tags(self) -> dict[str, str]:
        """The tags that identify it in its study, and its status."""
        return {name: getattr(self, name) for name in TAGS}


@dataclass(frozen=True)
class Exported:
    """A study and its runs that have begun.

    Attributes:
        about: The study as stored.
        runs: The runs.
        waiting: How many others have not begun.
    """

    about: results.StudyRow
    runs: list[Run]
    waiting: int

    def said(self, where: object) -> str:
        """Return the line that says what was written."""
        left = f"; {self.waiting:,} have not begun" if self.waiting else ""
        return f"{where}: {len(self.runs):,} runs of {self.about.name}{left}"


def read(database: Database, study: str, role: str) -> Exported:
    """Return a study with its runs that have begun.

    Args:
        database: The database.
        study: Name of the study.
        role: As in `ablate.load`.

    Raises:
        AblateError: There is no such study, or none of its runs has begun.
    """
    frame = results.load(study, database, role=role)
    waits = frame["run"].isin(queued(database, study)) | (frame["status"] == "planned")
    begun = frame[~waits]
    if begun.empty:
        which = "tuning run" if role == "tune" else "run"
        raise AblateError(f"no {which} of study {study!r} has begun: ablate run {study}")
    fields, levels = results.fields(study, database), results.levels(study, database)
    curves = results.curves(study, db=database, role=role)
    points = dict(iter(curves.groupby(PLACE)))
    finals = {
        place: _finals(part)
        for place, part in results.finals(study, db=database, role=role).groupby(PLACE)
    }
    times = _times(results.attempts(study, database))
    runs = []
    for row in begun.to_dict("records"):
        place = tuple(row[name] for name in PLACE)
        tags = {name: row[name] for name in TAGS}
        known = {**levels.get(row["cell"], {}), **fields[row["run"]]}
        known |= {name: row[name] for name in SIZES if not pd.isna(row[name])}
        started, ended = times.get(row["run"], (None, None))
        runs.append(
            Run(
                **tags,
                seed=row["seed"],
                which=_which(row),
                config={name: value for name, value in known.items() if value is not None},
                started=started,
                ended=None if row["status"] == "running" else ended,
                curves=points.get(place, curves[:0]),
                finals=finals.get(place, {}),
            )
        )
    return Exported(results.study(study, database), runs, len(frame) - len(begun))


def _which(row: Mapping[Any, Any]) -> str:
    """Tuning runs of a cell differ in more than the seed: their keys tell them apart."""
    seed = f"seed {row['seed']}"
    return seed if row["role"] == "compare" else f"{seed}, {row['role']} {row['key'][:8]}"


def _finals(finals: pd.DataFrame) -> dict[str, float]:
    """The finals of one run."""
    columns = (finals[name].tolist() for name in ("name", "at", "value"))
    return {
        f"final/{name}@{formats.number(at).removesuffix('.0')}" if at else f"final/{name}": value
        for name, at, value in zip(*columns, strict=True)
    }


def _times(attempts: pd.DataFrame) -> dict[Any, tuple[float | None, float | None]]:
    """Run → when its first attempt began and its last one ended."""
    found: dict[Any, tuple[float | None, float | None]] = {}
    for run, part in attempts.groupby("run"):
        started, ended = (
            [datetime.fromisoformat(time).timestamp() for time in part[name].dropna()]
            for name in ("started", "ended")
        )
        found[run] = (min(started, default=None), max(ended, default=None))
    return found
