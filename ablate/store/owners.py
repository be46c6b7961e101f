"""Who owns a running attempt, and whether its owner is still alive.

The journal shows that an owner is alive: the worker writes a `heartbeat` every few seconds. An
attempt of another host that has shown no new heartbeat for `LEASE_SECONDS`, measured by the
observer's own clock, is stale: the clocks of two hosts are never compared.

On one host there is a quicker answer: launcher and worker each hold a lock on a file while they
live.

An attempt whose owner's host begins with `QUEUE` waits or runs in a cluster's queue, which knows
whether it lives. It outlasts its launcher and is never stale: the next launcher of its study on
that cluster adopts it, see `ablate.store.runs.adopt`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Row

from ablate import journal
from ablate.errors import AblateError
from ablate.journal import Journal
from ablate.store.database import Database
from ablate.store.evaluated import fallback
from ablate.store.ingest import ingest, utc

LEASE_SECONDS = 60.0  # without a new heartbeat, after which an attempt on another host is stale

QUEUE = "slurm"

# Status of `run`; "queued" instead of "running" while its attempt waits in a cluster's queue
STATUS = f"""
CASE WHEN run.status = 'running' AND EXISTS (
    SELECT 1 FROM attempt WHERE attempt.run_id = run.id AND attempt.status = 'running'
    AND attempt.device IS NULL AND substr(attempt.owner, 1, {len(QUEUE) + 1}) = '{QUEUE}/')
THEN 'queued' ELSE run.status END
"""

REASON = 2000  # most bytes of why a launcher ended
_GONE = "its launcher and its worker no longer ran"


@dataclass
class Owner:
    """A launcher, as `host:pid:token`. It holds the lock of a file in the journals' folder.

    Attributes:
        host: Name of its host.
        pid: Number of its process.
        token: Random text that distinguishes processes of equal number.
        lease: Seconds after which an attempt of another host is stale.
        seen: Attempt of another host → its newest heartbeat, and when this process first saw that,
            by its own monotonic clock.
    """

    host: str
    pid: int
    token: str
    lease: float = LEASE_SECONDS
    seen: dict[int, tuple[int, float]] = field(default_factory=dict)
    _lock: Journal | None = None
    _file: Path | None = None
    _left: bool = False

    @classmethod
    def here(cls, db: Database, lease: float = LEASE_SECONDS, *, on: str = "") -> Self:
        """Return this process as an owner. `close` it, or use it as a context manager.

        Args:
            db: The database.
            lease: Seconds after which an attempt of another host is stale.
            on: The queue in which its attempts outlast it, such as "slurm/STUDY".

        Raises:
            AblateError: The folder of the journals cannot be written.
        """
        host = f"{on}/{socket.gethostname()}" if on else socket.gethostname()
        owner = cls(host, os.getpid(), secrets.token_hex(4), lease)
        owner._file = _lock_file(db, str(owner))
        try:
            owner._lock = Journal(owner._file)
            with contextlib.suppress(OSError):
                owner._file.write_bytes(b"\n")  # a block on the disk, for `leave` on a full one
        except OSError as error:
            raise AblateError(f"folder {db.journals} cannot be written: {error.strerror}") from None
        return owner

    def leave(self, reason: str) -> None:
        """Say why attempts that this owner does not end are dead, to who finds them so."""
        if self._file:
            with contextlib.suppress(OSError), self._file.open("r+b") as file:
                file.write(reason.encode(errors="replace")[:REASON])
                self._left = True

    def close(self) -> None:
        """Release the lock."""
        if self._lock and self._file:
            if not self._left:
                self._file.unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.token}"


def owned(db: Database, owner: Owner) -> set[int]:
    """Return the running attempts of an owner; the caller stops workers of any other attempt."""
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT id FROM attempt WHERE owner = ? AND status = 'running'", (str(owner),)
        )
        return set(rows.scalars())


def dead(db: Database, study_id: int | None = None) -> set[int]:
    """Return running runs whose launcher and worker, on this host, are gone. Changes nothing.

    A run whose journal this user may not read is not known to be dead.
    """
    here, found = socket.gethostname(), set()
    for row in _running(db, study_id):
        with contextlib.suppress(AblateError):
            if _is_local(row, here) and not _holds_lock(db, row):
                found.add(row.run_id)
    return found


def running_here(db: Database) -> int:
    """Return how many attempts are alive on this host."""
    here = socket.gethostname()
    return sum(_is_local(row, here) and _holds_lock(db, row) for row in _running(db))


def mark_all_dead(db: Database) -> set[int]:
    """Ingest what the journals of `dead` runs hold, make the runs planned again, return them."""
    here = socket.gethostname()
    gone = [row for row in _running(db) if _is_local(row, here) and not _holds_lock(db, row)]
    for row in gone:
        _, reason = _drain(db, row, _why(db, row.owner))
        with db.begin() as connection:
            mark_dead(connection, row.id, reason)
    return {row.run_id for row in gone}


def stale_attempts(db: Database, owner: Owner, study_id: int) -> list[tuple[int, int | None, str]]:
    """Return running attempts of a study whose owner is dead, their journals ingested.

    Returns:
        (attempt, the heartbeat by which it is dead, reason): the arguments of `mark_dead`. The
        heartbeat is None if it does not matter, or is in a journal that cannot be ingested.
    """
    stale, reasons = [], dict[str, str]()
    for row in _running(db, study_id):
        if row.owner == str(owner) or row.owner.startswith(f"{QUEUE}/"):
            continue
        if _is_local(row, owner.host):
            if _holds_lock(db, row):
                continue
            newest, reason = None, reasons.setdefault(row.owner, _why(db, row.owner))
            remove(_lock_file(db, row.owner))
        else:
            newest = _heartbeat(db, row)
            last, since = owner.seen.get(row.id, (None, 0.0))
            if last != newest:
                owner.seen[row.id] = (newest, time.monotonic())
                continue
            if time.monotonic() - since < owner.lease:
                continue
            host = row.owner.rsplit(":", 2)[0]
            reason = f"its worker on {host} sent no heartbeat for {owner.lease:g} s"
        ingested, reason = _drain(db, row, reason)
        stale.append((row.id, newest if ingested else None, reason))
    return stale


def _heartbeat(db: Database, row: Row[Any]) -> int:
    """Return an attempt's newest heartbeat; its launcher may not have ingested it yet."""
    path = db.journal(row.journal)
    if path is None:
        return row.heartbeat
    with contextlib.suppress(OSError, ValueError, LookupError):
        events, _ = journal.read(path, row.journal_offset)
        beats = [event["n"] for event in events if event["event"] == "heartbeat"]
        return max([row.heartbeat, *beats])
    return row.heartbeat


def mark_dead(
    connection: Connection, attempt_id: int, reason: str, beat: int | None = None
) -> None:
    """Mark an attempt dead and its run as to be done.

    Does nothing if the attempt ended in the meantime, or its heartbeat is no longer `beat`.
    """
    run_id = connection.exec_driver_sql(
        "UPDATE attempt SET status = 'dead', error = ?, ended = ? WHERE id = ? AND status ="
        " 'running' AND heartbeat = coalesce(?, heartbeat) RETURNING run_id",
        (reason, utc(time.time()), attempt_id, beat),
    ).scalar_one_or_none()
    if run_id is not None:
        status = fallback(connection, run_id, attempt_id, "planned")
        connection.exec_driver_sql("UPDATE run SET status = ? WHERE id = ?", (status, run_id))


def _drain(db: Database, row: Row[Any], reason: str) -> tuple[bool, str]:
    """Ingest what a dead attempt still wrote; return whether that worked, and the reason.

    The reason gets the error of a journal that cannot be ingested: the run is done again.
    """
    try:
        ingest(db, row.id)
    except AblateError as error:
        return False, f"{reason}; {error}"
    return True, reason


def _running(db: Database, study_id: int | None = None) -> list[Row[Any]]:
    """The running attempts of a study's runs, or of all."""
    with db.read() as connection:
        return list(
            connection.exec_driver_sql(
                "SELECT id, run_id, owner, host, journal, journal_offset, heartbeat FROM attempt"
                " WHERE status = 'running' AND (?1 IS NULL OR run_id IN (SELECT run_id FROM member"
                " JOIN cell ON cell.id = cell_id WHERE study_id = ?1))",
                (study_id,),
            )
        )


def _is_local(row: Row[Any], here: str) -> bool:
    return row.owner.rsplit(":", 2)[0] == here and row.host in (None, here)


def _holds_lock(db: Database, row: Row[Any]) -> bool:
    """Whether launcher or worker of an attempt lives. `AblateError` if this user may not look."""
    try:
        return journal.alive(_lock_file(db, row.owner)) or _journal_alive(db, row)
    except OSError as error:
        raise AblateError(
            f"cannot find out whether run {row.run_id} is still running: {error.filename}:"
            f" {error.strerror}"
        ) from None


def _journal_alive(db: Database, row: Row[Any]) -> bool:
    path = db.journal(row.journal)
    return path is not None and journal.alive(path)


def _why(db: Database, owner: str) -> str:
    """Why an owner of this host no longer runs: what it left, such as that the disk was full."""
    try:
        said = _lock_file(db, owner).read_text(errors="replace").strip()
    except OSError:
        said = ""
    return said or _GONE


def remove(lock: Path) -> bool:
    """Delete the lock file of an owner that is gone; return False if only its user may."""
    try:
        lock.unlink(missing_ok=True)
    except PermissionError:
        return False
    return True


def _lock_file(db: Database, owner: str) -> Path:
    return db.journals / f"{owner.replace(':', '-').replace('/', '-')}.owner"
