"""Numbers of runs that were made elsewhere: written once, whole, and compared with new ones."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from ablate.journal import Event
from ablate.kinds import Run
from ablate.store.database import Database
from ablate.store.ingest import apply
from ablate.store.schema import from_db

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


def runs(db: Database, study: str) -> list[Stored]:
    """Return the imported runs that a study has, in its order; [] if there is no such study."""
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT run.id, run.fields, run.seed, run.status FROM study JOIN cell ON cell.study_id"
            " = study.id JOIN member ON member.cell_id = cell.id JOIN run ON run.id = run_id WHERE"
            " study.name = ? AND cell.active AND run.kind = 'imported' ORDER BY member.ordinal",
            (study,),
        ).all()
        return [
            Stored(Run("imported", json.loads(fields), seed), status, *_held(connection, run_id))
            for run_id, fields, seed, status in rows
        ]


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


def agrees(old: Stored, new: Numbers) -> bool:
    """Return whether new numbers of a run hold all that are stored of it, unchanged.

    Finals at a step are points of a curve.
    """
    finals = all(
        _equal(value, new.finals.get((name, at)))
        for (name, at), value in old.finals.items()
        if not at
    )
    points = all(
        _equal(value, new.points.get(name, {}).get(step))
        for name, curve in old.points.items()
        for step, value in curve.items()
    )
    return old.status == new.status and finals and points


def _equal(one: float, other: float | None) -> bool:
    return other is not None and (one == other or (math.isnan(one) and math.isnan(other)))


def insert(db: Database, study_id: int, numbers: Sequence[Numbers]) -> int:
    """Write the numbers of runs that a study has and that have none yet; return how many.

    One transaction. Each run gets one attempt, whose journal is named after the run's key and never
    exists: equal runs of two databases have one attempt when they are merged.
    """
    with db.begin() as connection:
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
        series = dict(db.series_ids)
        for one in new:
            _write(connection, series, waiting[one.key], one, evaluation)
    db.series_ids.update(series)
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
