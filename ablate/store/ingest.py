"""Journals → tables, exactly once: the offset moves, by compare-and-set, in the transaction that inserts the rows."""

from __future__ import annotations

import datetime
import json
import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any

from sqlalchemy import Connection

from ablate import journal
from ablate.config import Evaluation
from ablate.errors import AblateError
from ablate.journal import Event
from ablate.store.database import Database
from ablate.store.evaluated import differing, evaluations, fallback
from ablate.store.schema import ACCEPTED, to_db

KNOWN_SERIES = {  # name → unit, goal
    "train_loss": ("nats", "min"),
    "loss": ("nats", "min"),
    "lr": ("", ""),
    "grad_norm": ("", ""),
    "tokens_per_second": ("tokens/s", "max"),
}

Points = defaultdict[int, list[tuple[int, int, int, float]]]  # series → rows of `metric`; SQLite makes NULL of NaN

INSERT_METRIC = (
    "INSERT INTO metric (run_id, series_id, step, value) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (run_id, series_id, step) DO UPDATE SET value = excluded.value"
)
_INSERT_FINAL = (
    "INSERT INTO final (run_id, name, at, value) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (run_id, name, at) DO UPDATE SET value = excluded.value"
)
_FROM_START = ("host", "device", "device_name", "threads", "pack_size", "compile_mode", "commit", "dirty")


def ingest(db: Database, attempt_id: int) -> list[Event]:
    """What the journal of an attempt holds beyond the stored offset, put into the tables and returned.

    Nothing, where another process was quicker or the attempt is no longer the one that runs. A `start` at step s
    deletes the run's points beyond s; an `end` decides the attempt's and the run's status. A run that is done again for
    further finals keeps its accepted attempt and its finals until the new attempt has a result.
    """
    with db.read() as connection:
        found = connection.exec_driver_sql(
            "SELECT run_id, journal, journal_offset FROM attempt WHERE id = ? AND status = 'running'", (attempt_id,)
        ).first()
    if found is None:
        return []
    run_id, name, offset = found
    try:
        events, end = journal.read(db.journals / name, offset)
    except ValueError as error:
        raise AblateError(f"journal {db.journals / name} is damaged behind byte {offset}: {error}") from None
    if not events:
        return []
    with db.begin() as connection:
        moved = connection.exec_driver_sql(
            "UPDATE attempt SET journal_offset = ? WHERE id = ? AND journal_offset = ? AND status = 'running'",
            (end, attempt_id, offset),
        )
        if moved.rowcount != 1:
            return []
        fresh = _apply(connection, db.series_ids, run_id, attempt_id, events)
    db.series_ids.update(fresh)
    return events


def _apply(connection: Connection, known: dict[str, int], run_id: int, attempt_id: int, events: list[Event]) -> dict[str, int]:
    """Carry out the events, in order; the ids of the series that they name."""
    names = dict.fromkeys(name for event in events if event["event"] == "metrics" for name in event["series"])
    ids = _series_ids(connection, known, names)
    points: Points = defaultdict(list)
    for event in events:
        kind = event["event"]
        if kind == "metrics":
            for name, values in event["series"].items():
                assert len(values) == len(event["steps"]), f"series {name!r} has not one value a step"
                series = ids[name]
                points[series] += zip(repeat(run_id), repeat(series), event["steps"], values)
        elif kind == "start":
            _insert(connection, points)
            _start(connection, run_id, attempt_id, event)
        elif kind == "final":
            rows = [(run_id, name, float(at), to_db(value)) for name, at, value in event["values"]]
            if rows:
                connection.exec_driver_sql(_INSERT_FINAL, rows)
        elif kind == "checkpoint":
            connection.exec_driver_sql(
                "INSERT INTO artifact (run_id, kind, path) VALUES (?, 'checkpoint', ?) ON CONFLICT DO NOTHING",
                (run_id, event["path"]),
            )
        elif kind == "end":
            _end(connection, run_id, attempt_id, event)
        else:
            raise AssertionError(f"journal event {kind!r}")
    _insert(connection, points)
    return ids


def _insert(connection: Connection, points: Points) -> None:
    """Insert all, in the table's own order, and forget them."""
    rows = list(chain.from_iterable(points[series] for series in sorted(points)))
    points.clear()
    if rows:
        connection.exec_driver_sql(INSERT_METRIC, rows)


def _series_ids(connection: Connection, known: dict[str, int], names: Iterable[str]) -> dict[str, int]:
    ids = {}
    for name in names:
        if name not in known:
            connection.exec_driver_sql(
                "INSERT INTO series (name, unit, goal) VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING",
                (name, *KNOWN_SERIES.get(name, ("", ""))),
            )
            ids[name] = connection.exec_driver_sql("SELECT id FROM series WHERE name = ?", (name,)).scalar_one()
        else:
            ids[name] = known[name]
    return ids


def _start(connection: Connection, run_id: int, attempt_id: int, event: Event) -> None:
    connection.exec_driver_sql("DELETE FROM metric WHERE run_id = ? AND step > ?", (run_id, event["step"]))
    _delete_other_measures(connection, run_id, attempt_id)
    _update_attempt(
        connection,
        attempt_id,
        {name: event.get(name) for name in _FROM_START}
        | {"resumed_step": event["step"], "started": utc(event.get("time")), "versions": json.dumps(event.get("versions") or {})},
    )


def _delete_other_measures(connection: Connection, run_id: int, attempt_id: int) -> None:
    """Delete the finals that the attempt measures otherwise: no old number stands beside new ones."""
    own = connection.exec_driver_sql("SELECT evaluation FROM attempt WHERE id = ?", (attempt_id,)).scalar_one()
    names = differing(Evaluation.model_validate_json(own), evaluations(connection, run_id))
    if "loss" in names:
        connection.exec_driver_sql("DELETE FROM final WHERE run_id = ?", (run_id,))
    elif names:
        connection.exec_driver_sql("DELETE FROM final WHERE run_id = ? AND name = ?", [(run_id, name) for name in names])


def _end(connection: Connection, run_id: int, attempt_id: int, event: Event) -> None:
    status = event["status"]
    if status in ACCEPTED:
        connection.exec_driver_sql(
            "UPDATE attempt SET status = 'superseded' WHERE run_id = ? AND id <> ? AND status IN ('complete', 'diverged')",
            (run_id, attempt_id),
        )
    _update_attempt(
        connection,
        attempt_id,
        {name: event.get(name) for name in ("error", "device_seconds", "peak_bytes")}
        | {"status": status, "ended": utc(event.get("time"))},
    )
    if status in ("failed", "oom"):
        status = fallback(connection, run_id, attempt_id, status)
    connection.exec_driver_sql(
        "UPDATE run SET status = ?, diverged_at = ? WHERE id = ?",
        (status, event.get("step") if status == "diverged" else None, run_id),
    )


def _update_attempt(connection: Connection, attempt_id: int, values: dict[str, Any]) -> None:
    names = ", ".join(f'"{name}" = ?' for name in values)
    connection.exec_driver_sql(f"UPDATE attempt SET {names} WHERE id = ?", (*values.values(), attempt_id))


def utc(time: float | str | None) -> str | None:
    """Seconds since 1970 as ISO 8601, which SQLite's date functions and people read; text stays as it is."""
    if time is None or isinstance(time, str) or not math.isfinite(time):
        return time if isinstance(time, str) else None
    return datetime.datetime.fromtimestamp(time, datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
