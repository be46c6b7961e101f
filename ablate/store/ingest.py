"""Read journals into the tables, exactly once: the offset moves, by compare-and-set, in the
transaction that inserts the rows.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from ablate import journal, windows
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.journal import Event
from ablate.store.database import Database
from ablate.store.evaluated import differing, evaluations, fallback
from ablate.store.records import ACCEPTED, FAILED, WEIGHTS
from ablate.store.schema import to_db

KNOWN_SERIES = {  # name → unit, goal
    "train_loss": ("nats", "min"),
    "loss": ("nats", "min"),
    "copy_loss": ("nats", "min"),
    "copy_loss_first": ("nats", "min"),
    "lr": ("", ""),
    "grad_norm": ("", ""),
    "tokens_per_second": ("tokens/s", "max"),
}

Points = defaultdict[
    int, list[int | float]
]  # series → step, value, step, value, …; SQLite makes NULL of NaN

_TOGETHER = (50, 10, 1)  # points that one statement inserts: 50 are 2.6 times as fast as one each


def _inserting(n: int) -> str:
    rows = ", ".join(f"(?1, ?2, ?{k}, ?{k + 1})" for k in range(3, 3 + 2 * n, 2))
    columns, key = "run_id, series_id, step, value", "run_id, series_id, step"
    return (
        f"INSERT INTO metric ({columns}) VALUES {rows} ON CONFLICT ({key}) DO UPDATE SET value ="
        " excluded.value"
    )


_INSERT = {n: _inserting(n) for n in _TOGETHER}
INSERT_METRIC = _INSERT[1]
_INSERT_FINAL = (
    "INSERT INTO final (run_id, name, at, value) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (run_id, name, at) DO UPDATE SET value = excluded.value"
)
_INSERT_WINDOWS = (
    "INSERT INTO window_loss (run_id, name, at, tokens, layout, losses) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (run_id, name, at) DO UPDATE SET tokens = excluded.tokens,"
    " layout = excluded.layout, losses = excluded.losses"
)
# raised by a line that is JSON but not an event of ours; none of these is raised by a full or
# locked database
_NOT_UNDERSTOOD = (
    *(LookupError, TypeError, ValueError, AttributeError, OverflowError),
    *(sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, sqlite3.ProgrammingError),
)
_FROM_START = (
    "host",
    "device",
    "device_name",
    "threads",
    "pack_size",
    "compile_mode",
    "note",
    "commit",
    "dirty",
)


class IngestError(AblateError):
    """Journals that cannot be ingested.

    Attributes:
        ingested: Attempt → what was new in the other journals, and is in the tables.
    """

    def __init__(self, errors: Sequence[AblateError], ingested: dict[int, list[Event]]):
        several = (
            f"; it is one of {len(errors)} journals that cannot be ingested"
            if len(errors) > 1
            else ""
        )
        super().__init__(f"{errors[0]}{several}")
        self.ingested = ingested


@dataclass(frozen=True)
class _Piece:
    """What an attempt's journal holds beyond the stored offset."""

    attempt_id: int
    run_id: int
    path: Path
    offset: int  # bytes that are in the tables
    end: int  # where the last whole line ends
    events: list[Event]


def ingest(db: Database, attempt_id: int) -> list[Event]:
    """Put what the journal of an attempt holds beyond the stored offset into the tables.

    A `start` at step s deletes the run's points beyond s; an `end` decides the attempt's and the
    run's status. A run that is done again for further finals keeps its accepted attempt and its
    finals until the new attempt has a result.

    Returns:
        The new events; none if another process was quicker or the attempt is no longer running.

    Raises:
        IngestError: The journal is damaged, holds an unknown event, or cannot be read.
    """
    return ingest_all(db, [attempt_id])[attempt_id]


def ingest_all(db: Database, attempt_ids: Sequence[int]) -> dict[int, list[Event]]:
    """Ingest several attempts, such as those of a pack, in one transaction; see `ingest`.

    Returns:
        Attempt → its new events.

    Raises:
        IngestError: Some journals cannot be ingested; the others are in the tables.
    """
    pieces, errors = _unread(db, attempt_ids)
    new: dict[int, list[Event]] = {attempt_id: [] for attempt_id in attempt_ids}
    try:
        new |= _store(db, pieces)
    except _NOT_UNDERSTOOD:  # of one of them
        for piece in pieces:
            try:
                new |= _store(db, [piece])
            except _NOT_UNDERSTOOD as error:
                errors.append(_damaged(piece.path, piece.offset, error))
    if errors:
        raise IngestError(errors, new)
    return new


def _damaged(path: Path, offset: int, error: Exception) -> AblateError:
    why = f"key {error} is missing" if isinstance(error, KeyError) else error
    return AblateError(f"journal {path} is damaged after byte {offset}: {why}")


def _unread(db: Database, attempt_ids: Sequence[int]) -> tuple[list[_Piece], list[AblateError]]:
    """What is to be ingested of those attempts that are running, and what is wrong with the
    journals of the others.
    """
    with db.read() as connection:
        attempts = _driver(connection).execute(
            "SELECT id, run_id, journal, journal_offset FROM attempt WHERE status = 'running' "
            "AND id IN (SELECT value FROM json_each(?)) ORDER BY run_id",
            (json.dumps(list(attempt_ids)),),
        )
        found = attempts.fetchall()
    pieces: list[_Piece] = []
    errors: list[AblateError] = []
    for attempt_id, run_id, name, offset in found:
        path = db.journal(name)
        if path is None:
            errors.append(AblateError(f"attempt {attempt_id}: {name!r} is not a journal's name"))
            continue
        try:
            events, end = journal.read(path, offset)
        except OSError as error:
            errors.append(AblateError(f"journal {path} cannot be read: {error.strerror}"))
        except ValueError as error:
            errors.append(_damaged(path, offset, error))
        else:
            if events:
                pieces.append(_Piece(attempt_id, run_id, path, offset, end, events))
    return pieces, errors


def _store(db: Database, pieces: Sequence[_Piece]) -> dict[int, list[Event]]:
    """Put the pieces into the tables, all or none: attempt → its events, where no other process was
    quicker.
    """
    if not pieces:
        return {}
    stored = {}
    with db.begin() as connection:
        series = dict(db.series_ids)
        for piece in pieces:
            moved = _driver(connection).execute(
                "UPDATE attempt SET journal_offset = ? WHERE id = ? AND journal_offset = ? AND"
                " status = 'running'",
                (piece.end, piece.attempt_id, piece.offset),
            )
            if moved.rowcount == 1:
                apply(connection, series, piece.run_id, piece.attempt_id, piece.events)
                stored[piece.attempt_id] = piece.events
    db.series_ids.update(series)
    return stored


def _driver(connection: Connection) -> sqlite3.Connection:
    """The driver's own connection, in the same transaction: SQLAlchemy takes longer for a small
    statement than SQLite.
    """
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def apply(
    connection: Connection,
    series: dict[str, int],
    run_id: int,
    attempt_id: int,
    events: Iterable[Event],
) -> None:
    """Apply events of an attempt, in order.

    Args:
        connection: A connection in a transaction.
        series: Name → id of series; the ids of those that the events name are added.
        run_id: The run.
        attempt_id: Its attempt.
        events: As journals have them.
    """
    driver = _driver(connection)
    points: Points = defaultdict(list)
    for event in events:
        kind = event["event"]
        if kind == "metrics":
            for name, values in event["series"].items():
                if len(values) != len(event["steps"]):
                    raise ValueError(f"series {name!r} does not have one value per step")
                if name not in series:
                    series[name] = _series_id(driver, name)
                points[series[name]] += chain.from_iterable(
                    zip(event["steps"], values, strict=True)
                )
        elif kind == "start":
            _insert(driver, run_id, points)
            _start(connection, run_id, attempt_id, event)
        elif kind == "final":
            driver.executemany(
                _INSERT_FINAL,
                [(run_id, name, float(at), to_db(value)) for name, at, value in event["values"]],
            )
        elif kind == "windows":
            layout, losses = (base64.b64decode(event[part]) for part in ("layout", "losses"))
            row = event["name"], float(event["at"]), int(event["tokens"]), layout, losses
            windows.unpacked(*row)  # what cannot be read later is refused now
            driver.execute(_INSERT_WINDOWS, (run_id, *row))
        elif kind == "checkpoint":
            driver.execute(
                "INSERT INTO artifact (run_id, kind, path) VALUES (?, 'checkpoint', ?) ON CONFLICT"
                " DO NOTHING",
                (run_id, event["path"]),
            )
        elif kind == "weights":
            driver.execute(
                "INSERT INTO artifact (run_id, kind, path) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                (run_id, WEIGHTS[event["keep"]], event["path"]),
            )
        elif kind == "heartbeat":
            driver.execute(
                "UPDATE attempt SET heartbeat = ? WHERE id = ?", (event["n"], attempt_id)
            )
        elif kind == "end":
            _end(connection, run_id, attempt_id, event)
        else:
            raise ValueError(f"event {kind!r} is unknown")
    _insert(driver, run_id, points)


def _insert(driver: sqlite3.Connection, run_id: int, points: Points) -> None:
    """Insert all, in the table's own order, and forget them."""
    for series in sorted(points):
        flat, first = points[series], 0
        for n, statement in _INSERT.items():
            end = len(flat) - (len(flat) - first) % (2 * n)
            if first < end:
                driver.executemany(
                    statement,
                    [(run_id, series, *flat[k : k + 2 * n]) for k in range(first, end, 2 * n)],
                )
            first = end
    points.clear()


def _series_id(driver: sqlite3.Connection, name: str) -> int:
    driver.execute(
        "INSERT INTO series (name, unit, goal) VALUES (?, ?, ?) ON CONFLICT (name) DO NOTHING",
        (name, *KNOWN_SERIES.get(name, ("", ""))),
    )
    (series_id,) = driver.execute("SELECT id FROM series WHERE name = ?", (name,)).fetchone()
    return int(series_id)


def _start(connection: Connection, run_id: int, attempt_id: int, event: Event) -> None:
    driver = _driver(connection)
    driver.execute("DELETE FROM metric WHERE run_id = ? AND step > ?", (run_id, event["step"]))
    if driver.execute(
        "SELECT 1 FROM attempt WHERE run_id = ? AND status IN ('complete', 'superseded')", (run_id,)
    ).fetchone():
        _delete_other_measures(connection, run_id, attempt_id)
    _update_attempt(
        driver,
        attempt_id,
        {name: event.get(name) for name in _FROM_START}
        | {
            "resumed_step": event["step"],
            "started": utc(event.get("time")),
            "versions": json.dumps(event.get("versions") or {}),
        },
    )


def _delete_other_measures(connection: Connection, run_id: int, attempt_id: int) -> None:
    """Delete the finals, and losses of windows, that the attempt measures differently, so that old
    and new numbers do not mix.
    """
    own = connection.exec_driver_sql(
        "SELECT evaluation FROM attempt WHERE id = ?", (attempt_id,)
    ).scalar_one()
    names = differing(Evaluation.model_validate_json(own), evaluations(connection, run_id))
    for table in ("final", "window_loss"):
        if "loss" in names:
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
        elif names:
            connection.exec_driver_sql(
                f"DELETE FROM {table} WHERE run_id = ? AND name = ?",
                [(run_id, name) for name in names],
            )


def _end(connection: Connection, run_id: int, attempt_id: int, event: Event) -> None:
    driver, status = _driver(connection), event["status"]
    if status in ACCEPTED:
        driver.execute(
            "UPDATE attempt SET status = 'superseded' WHERE run_id = ? AND id <> ? AND status IN"
            f" {ACCEPTED}",
            (run_id, attempt_id),
        )
    _update_attempt(
        driver,
        attempt_id,
        {name: event.get(name) for name in ("error", "device_seconds", "peak_bytes")}
        | ({"note": event["note"]} if event.get("note") else {})
        | {"status": status, "ended": utc(event.get("time"))},
    )
    if status in FAILED:
        status = fallback(connection, run_id, attempt_id, status)
    diverged_at = event.get("step") if status == "diverged" else None
    driver.execute(
        "UPDATE run SET status = ?, diverged_at = ? WHERE id = ?", (status, diverged_at, run_id)
    )


def _update_attempt(driver: sqlite3.Connection, attempt_id: int, values: dict[str, Any]) -> None:
    names = ", ".join(f'"{name}" = ?' for name in values)
    driver.execute(f"UPDATE attempt SET {names} WHERE id = ?", (*values.values(), attempt_id))


def utc(time: float | str | None) -> str | None:
    """Seconds since 1970 as ISO 8601, which SQLite's date functions and people read; text stays as
    it is.
    """
    if time is None or isinstance(time, str) or not math.isfinite(time):
        return time if isinstance(time, str) else None
    return (
        datetime.datetime.fromtimestamp(time, datetime.UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )
