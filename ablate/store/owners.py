"""The living and the dead: who owns a running attempt, and whether its owner is still there.

On one host the operating system tells: launcher and worker each hold a lock on a file while they
live. On another host the worker's heartbeats show that it lives, which it writes into its journal;
nobody's wall clock is compared with anybody's.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import Connection, Row

from ablate import journal
from ablate.errors import AblateError
from ablate.journal import Journal
from ablate.store.database import Database
from ablate.store.evaluated import fallback
from ablate.store.ingest import ingest, utc

LEASE_SECONDS = 60.0  # without a new heartbeat, after which a run on another host is taken over


@dataclass
class Owner:
    """A launcher, as `host:pid:token`. It holds the lock of a file beside the journals while it
    lives.

    `seen` is what it saw of owners on other hosts: attempt → (heartbeat, when first seen, by this
    process's own clock).
    """

    host: str
    pid: int
    token: str
    lease: float = LEASE_SECONDS
    seen: dict[int, tuple[int, float]] = field(default_factory=dict)
    _lock: Journal | None = None
    _file: Path | None = None

    @classmethod
    def here(cls, db: Database, lease: float = LEASE_SECONDS) -> Self:
        """This process. Use it as a context manager, or `close` it: the lock is let go at the
        end.
        """
        owner = cls(socket.gethostname(), os.getpid(), secrets.token_hex(4), lease)
        owner._file = _lock_file(db, str(owner))
        try:
            owner._lock = Journal(owner._file)
        except OSError as error:
            raise AblateError(f"folder {db.journals} cannot be written: {error.strerror}") from None
        return owner

    def close(self) -> None:
        if self._lock and self._file:
            self._file.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.token}"


def owned(db: Database, owner: Owner) -> set[int]:
    """Return the running attempts of an owner. One that is missing was taken over: stop it."""
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT id FROM attempt WHERE owner = ? AND status = 'running'", (str(owner),)
        )
        return set(rows.scalars())


def dead(db: Database, study_id: int | None = None) -> set[int]:
    """Runs, said to be running, whose launcher and worker on this host are gone. Changes nothing.

    One whose journal is closed to this user is not known to be dead.
    """
    here, found = socket.gethostname(), set()
    for row in _running(db, study_id):
        with contextlib.suppress(AblateError):
            if _is_local(row, here) and not _is_alive(db, row):
                found.add(row.run_id)
    return found


def running_here(db: Database) -> int:
    """How many attempts live on this host."""
    here = socket.gethostname()
    return sum(_is_local(row, here) and _is_alive(db, row) for row in _running(db))


def mark_all_dead(db: Database) -> set[int]:
    """Take the runs of `dead` back, with what their journals hold ingested: they are to be done
    again.
    """
    here = socket.gethostname()
    gone = [row for row in _running(db) if _is_local(row, here) and not _is_alive(db, row)]
    for row in gone:
        reason = _last_words(db, row.id, _GONE)
        with db.begin() as connection:
            mark_dead(connection, row.id, reason)
    return {row.run_id for row in gone}


def stale_attempts(db: Database, owner: Owner, study_id: int) -> list[tuple[int, int | None, str]]:
    """Attempts of dead owners, (id, heartbeat, why), with what their journals hold ingested."""
    found = []
    for row in _running(db, study_id):
        if row.owner == str(owner):
            continue
        if _is_local(row, owner.host):
            if _is_alive(db, row):
                continue
            reason, newest = _GONE, None
            remove(_lock_file(db, row.owner))
        else:
            newest = _heartbeat(db, row)
            beat, since = owner.seen.get(row.id, (None, 0.0))
            if beat != newest:
                owner.seen[row.id] = (newest, time.monotonic())
                continue
            if time.monotonic() - since < owner.lease:
                continue
            reason = (
                f"its worker on {row.owner.rsplit(':', 2)[0]} gave no sign of life for"
                f" {owner.lease:g} s"
            )
        found.append((row.id, newest, _last_words(db, row.id, reason)))
    return found


def _heartbeat(db: Database, row: Row[Any]) -> int:
    """The newest heartbeat of an attempt's journal. Its launcher alone puts it into the tables."""
    with contextlib.suppress(OSError, ValueError, LookupError):
        events, _ = journal.read(db.journals / row.journal, row.journal_offset)
        beats = [event["n"] for event in events if event["event"] == "heartbeat"]
        return max([row.heartbeat, *beats])
    return row.heartbeat


def mark_dead(
    connection: Connection, attempt_id: int, reason: str, beat: int | None = None
) -> None:
    """Mark an attempt dead and its run as to be done; not if it ended meanwhile, or its heartbeat
    is no longer `beat`.
    """
    run_id = connection.exec_driver_sql(
        "UPDATE attempt SET status = 'dead', error = ?, ended = ? WHERE id = ? AND status ="
        " 'running' AND heartbeat = coalesce(?, heartbeat) RETURNING run_id",
        (reason, utc(time.time()), attempt_id, beat),
    ).scalar_one_or_none()
    if run_id is not None:
        status = fallback(connection, run_id, attempt_id, "planned")
        connection.exec_driver_sql("UPDATE run SET status = ? WHERE id = ?", (status, run_id))


_GONE = "its launcher and its worker were gone"


def _last_words(db: Database, attempt_id: int, reason: str) -> str:
    """Ingest what a dead attempt still wrote. A damaged journal goes into its history, and the run
    is done again.
    """
    try:
        ingest(db, attempt_id)
    except AblateError as error:
        return f"{reason}; {error}"
    return reason


def _running(db: Database, study_id: int | None = None) -> list[Row[Any]]:
    """The running attempts of a study's runs, or of all."""
    with db.read() as connection:
        return list(
            connection.exec_driver_sql(
                "SELECT id, run_id, owner, host, journal, journal_offset, heartbeat FROM attempt"
                " WHERE status = 'running' AND (? IS NULL OR run_id IN (SELECT run_id FROM member"
                " JOIN cell ON cell.id = cell_id WHERE study_id = ?))",
                (study_id, study_id),
            )
        )


def _is_local(row: Row[Any], here: str) -> bool:
    return row.owner.rsplit(":", 2)[0] == here and row.host in (None, here)


def _is_alive(db: Database, row: Row[Any]) -> bool:
    """`AblateError` where this user may not look."""
    try:
        return journal.alive(_lock_file(db, row.owner)) or journal.alive(db.journals / row.journal)
    except OSError as error:
        raise AblateError(
            f"whether run {row.run_id} is still at work cannot be seen: {error.filename}:"
            f" {error.strerror}"
        ) from None


def remove(lock: Path) -> bool:
    """Delete the lock file of one who is gone; False where each user may delete his own alone. It
    is in nobody's way.
    """
    try:
        lock.unlink(missing_ok=True)
    except PermissionError:
        return False
    return True


def _lock_file(db: Database, owner: str) -> Path:
    return db.journals / f"{owner.replace(':', '-').replace('/', '-')}.owner"
