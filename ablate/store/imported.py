"""Numbers of runs that were made elsewhere: written once, whole, and compared with new ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from ablate.errors import AblateError
from ablate.journal import Event
from ablate.kinds import Run
from ablate.plan import Plan
from ablate.store.database import Database
from ablate.store.ingest import apply
from ablate.store.register import register_in
from ablate.store.schema import RUNS, from_db

Finals = Mapping[tuple[str, float], float]  # (name, at) → value
Points = Mapping[str, Mapping[int, float]]  # series → step → value


@dataclass(frozen=True)
class Numbers:
    """What a run reported.

    Attributes:
        key: Of the run.
        status: As the table `run` has it.
        finals: Finals.
        points: Curves.
        diverged_at: Step; None for a run that has not diverged.
        error: Why it failed.
    """

    key: str
    status: str
    finals: Finals
    points: Points
    diverged_at: int | None = None
    error: str = ""


@dataclass(frozen=True)
class Stored:
    """A run that a study has, and its numbers."""

    run: Run
    status: str
    finals: Finals
    points: Points


@dataclass(frozen=True)
class StoredStudy:
    """A study that is in the database already, imported or not.

    Attributes:
        toml: The text of its file.
        revision: Of the study: it rises when its cells, comparisons or runs change.
        runs: Its imported runs, in its order.
    """

    toml: str
    revision: int
    runs: Sequence[Stored]


def study(db: Database, name: str) -> StoredStudy | None:
    """Return a study with its imported runs; None if there is no study of this name."""
    with db.read() as connection:
        if (version := _version(connection, name)) is None:
            return None
        rows = connection.exec_driver_sql(
            f"SELECT run.id, run.fields, run.seed, run.status {RUNS} WHERE study.name = ? AND"
            " cell.active AND run.kind = 'imported' ORDER BY member.ordinal",
            (name,),
        ).all()
        runs = [
            Stored(Run("imported", json.loads(fields), seed), status, *_held(connection, run_id))
            for run_id, fields, seed, status in rows
        ]
        return StoredStudy(*version, runs)


def _version(connection: Connection, name: str) -> tuple[str, int] | None:
    """Return the text of a study's file and its revision."""
    row = connection.exec_driver_sql(
        "SELECT toml, revision FROM study WHERE name = ?", (name,)
    ).one_or_none()
    return None if row is None else (row.toml, row.revision)


def _held(connection: Connection, run_id: int) -> tuple[Finals, Points]:
    finals = {
        (name, at): from_db(value)
        for name, at, value in connection.exec_driver_sql(
            "SELECT name, at, value FROM final WHERE run_id = ?", (run_id,)
        )
    }
    points: dict[str, dict[int, float]] = {}
    for name, step, value in connection.exec_driver_sql(
        "SELECT series.name, step, value FROM metric JOIN series ON series.id = series_id WHERE"
        " run_id = ?",
        (run_id,),
    ):
        points.setdefault(name, {})[step] = from_db(value)
    return finals, points


@dataclass(frozen=True)
class Difference:
    """A number of a run that is not the same twice.

    Attributes:
        name: Of the metric; "status" where one of the runs is complete and the other is not.
        step: Of a point of a curve; None for a final.
        old: As stored; None where there is none.
        new: As read.
    """

    name: str
    step: int | None
    old: float | str | None
    new: float | str | None


def differences(old: Stored | Numbers, new: Stored | Numbers) -> Iterator[Difference]:
    """Yield the numbers of a run that its later numbers do not have, or have otherwise.

    Finals at a step are points of a curve.
    """
    for (name, at), value in old.finals.items():
        other = new.finals.get((name, at))
        if not at and not _equal(value, other):
            yield Difference(name, None, value, other)
    for name, curve in old.points.items():
        for step, value in curve.items():
            other = new.points.get(name, {}).get(step)
            if not _equal(value, other):
                yield Difference(name, step, value, other)
    if old.status != new.status:
        yield Difference("status", None, old.status, new.status)


def _equal(one: float, other: float | None) -> bool:
    return other is not None and (one == other or (math.isnan(one) and math.isnan(other)))


def write(
    db: Database,
    plan: Plan,
    numbers: Sequence[Numbers],
    before: StoredStudy | None,
    *,
    replace: bool,
) -> int:
    """Store a study and the numbers of its runs that have none yet; return how many those are.

    One transaction. Runs whose place others took, and that no study has any more, are deleted.

    Args:
        db: The database.
        plan: The study, with all runs.
        numbers: What the runs reported.
        before: The study as the plan was made from it; None if there was none.
        replace: See `register`.

    Raises:
        AblateError: The study is no longer the one that the plan was made from.
    """
    name = plan.study.name
    with db.begin() as connection:
        if _version(connection, name) != (before and (before.toml, before.revision)):
            raise AblateError(
                f"study {name!r} has changed while the files were read; import them again"
            )
        study_id = register_in(connection, plan, db.path, replace=replace)
        superseded = "FROM run WHERE kind = 'imported' AND id NOT IN (SELECT run_id FROM member)"
        # metric has no foreign keys; what else belongs to a run is deleted by cascade
        connection.exec_driver_sql(f"DELETE FROM metric WHERE run_id IN (SELECT id {superseded})")
        connection.exec_driver_sql(f"DELETE {superseded}")
        series = dict(db.series_ids)
        added = _insert(connection, series, study_id, numbers)
    db.series_ids.update(series)
    return added


def _insert(
    connection: Connection, series: dict[str, int], study_id: int, numbers: Sequence[Numbers]
) -> int:
    """Write the numbers of runs that a study has and that have none yet; return how many.

    Each run gets one attempt, whose journal is named after the run's key and never exists: equal
    runs of two databases have one attempt when they are merged.
    """
    waiting = {
        key: run_id
        for run_id, key in connection.exec_driver_sql(
            "SELECT id, key FROM run WHERE kind = 'imported' AND NOT EXISTS (SELECT 1 FROM"
            " attempt WHERE run_id = run.id) AND id IN (SELECT run_id FROM member JOIN cell ON"
            " cell.id = cell_id WHERE study_id = ? AND active)",
            (study_id,),
        )
    }
    new = [one for one in numbers if one.key in waiting]
    evaluation = connection.exec_driver_sql(
        "SELECT evaluation FROM study WHERE id = ?", (study_id,)
    ).scalar_one()
    for one in new:
        _write(connection, series, waiting[one.key], one, evaluation)
    return len(new)


def _write(
    connection: Connection, series: dict[str, int], run_id: int, one: Numbers, evaluation: str
) -> None:
    attempt_id = connection.exec_driver_sql(
        "INSERT INTO attempt (run_id, n, status, owner, heartbeat, journal, journal_offset,"
        " evaluation) VALUES (?, 1, 'running', '', 0, ?, 0, ?) RETURNING id",
        (run_id, f"{one.key[:12]}-1-{one.key[12:20]}.jsonl", evaluation),
    ).scalar_one()
    apply(connection, series, run_id, attempt_id, _events(one))


def _events(one: Numbers) -> Iterator[Event]:
    """Yield what the journal of such a run would hold."""
    for name, curve in one.points.items():
        steps = sorted(curve)
        yield {
            "event": "metrics",
            "steps": steps,
            "series": {name: [curve[step] for step in steps]},
        }
    values = [[name, at, value] for (name, at), value in one.finals.items()]
    yield {"event": "final", "values": values}
    error = one.error or None
    yield {"event": "end", "status": one.status, "error": error, "step": one.diverged_at}
