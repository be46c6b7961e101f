"""Journals → tables, exactly once: the offset moves, by compare-and-set, in the transaction that inserts the rows."""

from __future__ import annotations

import datetime
import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
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

Points = defaultdict[int, list[int | float]]  # series → step, value, step, value, …; SQLite makes NULL of NaN

_TOGETHER = 40  # points that one statement inserts: 2.6 times as fast as one each


def _inserting(n: int) -> str:
    rows = ", ".join(f"(?1, ?2, ?{k}, ?{k + 1})" for k in range(3, 3 + 2 * n, 2))
    columns, key = "run_id, series_id, step, value", "run_id, series_id, step"
    return f"INSERT INTO metric ({columns}) VALUES {rows} ON CONFLICT ({key}) DO UPDATE SET value = excluded.value"


INSERT_METRIC = _inserting(1)
_INSERT_MANY = _inserting(_TOGETHER)
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
        found = (
            _driver(connection)
            .execute("SELECT run_id, journal, journal_offset FROM attempt WHERE id = ? AND status = 'running'", (attempt_id,))
            .fetchone()
        )
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
        moved = _driver(connection).execute(
            "UPDATE attempt SET journal_offset = ? WHERE id = ? AND journal_offset = ? AND status = 'running'",
            (end, attempt_id, offset),
        )
        if moved.rowcount != 1:
            return []
        fresh = _apply(connection, db.series_ids, run_id, attempt_id, events)
    db.series_ids.update(fresh)
    return events


def _driver(connection: Connection) -> sqlite3.Connection:
    """The driver's own connection, in the same transaction: SQLAlchemy takes longer for a small statement than SQLite."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def _apply(connection: Connection, known: dict[str, int], run_id: int, attempt_id: int, events: list[Event]) -> dict[str, int]:
    """Carry out the events, in order; the ids of the series that they name."""
    driver = _driver(connection)
    names = dict.fromkeys(name for event in events if event["event"] == "metrics" for name in event["series"])
    ids = _series_ids(driver, known, names)
    points: Points = defaultdict(list)
    for event in events:
        kind = event["event"]
        if kind == "metrics":
            for name, values in event["series"].items():
                assert len(values) == len(event["steps"]), f"series {name!r} has not one value a step"
                points[ids[name]] += chain.from_iterable(zip(event["steps"], values, strict=True))
        elif kind == "start":
            _insert(driver, run_id, points)
            _start(connection, run_id, attempt_id, event)
        elif kind == "final":
            driver.executemany(_INSERT_FINAL, [(run_id, name, float(at), to_db(value)) for name, at, value in event["values"]])
        elif kind == "checkpoint":
            driver.execute(
                "INSERT INTO artifact (run_id, kind, path) VALUES (?, 'checkpoint', ?) ON CONFLICT DO NOTHING",
                (run_id, event["path"]),
            )
        elif kind == "end":
            _end(connection, run_id, attempt_id, event)
        else:
            raise AssertionError(f"journal event {kind!r}")
    _insert(driver, run_id, points)
    return ids


def _insert(driver: sqlite3.Connection, run_id: int, points: Points) -> None:
    """Insert all, in the table's own order, and forget them."""
    for series in sorted(points):
        flat = points[series]
        whole = len(flat) - len(flat) % (2 * _TOGETHER)
        for statement, first, end, width in ((_INSERT_MANY, 0, whole, 2 * _TOGETHER), (INSERT_METRIC, whole, len(flat), 2)):
            if first < end:
                driver.executemany(statement, [(run_id, series, *flat[k : k + width]) for k in range(first, end, width)])
    points.clear()


def _series_ids(driver: sqlite3.Connection, known: dict[str, int], names: Iterable[str]) -> dict[str, int]:
    ids = {}
    for name in names:
        if name not in known:
            driver.execute(
                "INSERT INTO series (name, unit, goal) VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING",
                (name, *KNOWN_SERIES.get(name, ("", ""))),
            )
            (ids[name],) = driver.execute("SELECT id FROM series WHERE name = ?", (name,)).fetchone()
        else:
            ids[name] = known[name]
    return ids


def _start(connection: Connection, run_id: int, attempt_id: int, event: Event) -> None:
    driver = _driver(connection)
    driver.execute("DELETE FROM metric WHERE run_id = ? AND step > ?", (run_id, event["step"]))
    if driver.execute("SELECT 1 FROM attempt WHERE run_id = ? AND status IN ('complete', 'superseded')", (run_id,)).fetchone():
        _delete_other_measures(connection, run_id, attempt_id)
    _update_attempt(
        driver,
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
    driver, status = _driver(connection), event["status"]
    if status in ACCEPTED:
        driver.execute(
            "UPDATE attempt SET status = 'superseded' WHERE run_id = ? AND id <> ? AND status IN ('complete', 'diverged')",
            (run_id, attempt_id),
        )
    _update_attempt(
        driver,
        attempt_id,
        {name: event.get(name) for name in ("error", "device_seconds", "peak_bytes")}
        | {"status": status, "ended": utc(event.get("time"))},
    )
    if status in ("failed", "oom"):
        status = fallback(connection, run_id, attempt_id, status)
    diverged_at = event.get("step") if status == "diverged" else None
    driver.execute("UPDATE run SET status = ?, diverged_at = ? WHERE id = ?", (status, diverged_at, run_id))


def _update_attempt(driver: sqlite3.Connection, attempt_id: int, values: dict[str, Any]) -> None:
    names = ", ".join(f'"{name}" = ?' for name in values)
    driver.execute(f"UPDATE attempt SET {names} WHERE id = ?", (*values.values(), attempt_id))


def utc(time: float | str | None) -> str | None:
    """Seconds since 1970 as ISO 8601, which SQLite's date functions and people read; text stays as it is."""
    if time is None or isinstance(time, str) or not math.isfinite(time):
        return time if isinstance(time, str) else None
    return datetime.datetime.fromtimestamp(time, datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
