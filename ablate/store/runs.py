"""Who does which run: owners claim runs, show that they live, and take over from those that died."""

from __future__ import annotations

import functools
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Row, text

from ablate import journal
from ablate.config import Evaluation, RunConfig
from ablate.errors import AblateError
from ablate.journal import Journal
from ablate.store.database import Database
from ablate.store.evaluated import asked, measure
from ablate.store.ingest import ingest, utc
from ablate.store.register import register

__all__ = ["Claim", "Owner", "asked", "claim", "counts", "dead", "finish", "heartbeat", "register"]

RETRIES = 3  # tries that an owner gives a run whose worker dies or has too little memory; one that fails by itself has one
LEASE_SECONDS = 60.0  # how long another host's heartbeat may stand still


@dataclass
class Owner:
    """A launcher, as `host:pid:token`. It holds the lock of a file beside the journals while it lives.

    `seen` is what it saw of owners on other hosts: attempt → (heartbeat, when first seen, by this process's own clock).
    """

    host: str
    pid: int
    token: str
    lease: float = LEASE_SECONDS
    seen: dict[int, tuple[int, float]] = field(default_factory=dict)
    _lock: Journal | None = None

    @classmethod
    def here(cls, db: Database, lease: float = LEASE_SECONDS) -> Self:
        """This process. Use as a context manager: the lock is let go at the end."""
        owner = cls(socket.gethostname(), os.getpid(), secrets.token_hex(4), lease)
        owner._lock = Journal(_lock_file(db, str(owner)))
        return owner

    def close(self, db: Database) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None
            _lock_file(db, str(self)).unlink(missing_ok=True)

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.token}"


@dataclass(frozen=True)
class Claim:
    """A run to do, and the attempt that does it."""

    attempt_id: int
    run_id: int
    n: int  # 1 for the first attempt of the run
    config: RunConfig
    journal: Path
    resume: bool  # an earlier attempt left a checkpoint


def _lock_file(db: Database, owner: str) -> Path:
    return db.journals / f"{owner.replace(':', '-').replace('/', '-')}.owner"


# -- claiming -----------------------------------------------------------------------------------------------------

_CANDIDATES = """
SELECT run.id, run.key, run.config, run.status, min(member.ordinal) AS place,
       (SELECT count(*) FROM attempt WHERE run_id = run.id AND status = 'failed' AND owner = :owner) AS failures,
       (SELECT count(*) FROM attempt WHERE run_id = run.id AND status IN ('dead', 'oom') AND owner = :owner) AS deaths,
       (SELECT coalesce(max(n), 0) FROM attempt WHERE run_id = run.id) AS tries,
       EXISTS (SELECT 1 FROM artifact WHERE run_id = run.id AND kind = 'checkpoint') AS checkpoint
FROM cell JOIN member ON member.cell_id = cell.id JOIN run ON run.id = member.run_id
WHERE cell.study_id = :study AND cell.active
  AND (run.status IN ('planned', 'stopped', 'failed', 'oom')
       OR run.status = 'complete' AND NOT EXISTS (
           SELECT 1 FROM attempt WHERE run_id = run.id AND status = 'complete' AND evaluation = :evaluation))
GROUP BY run.id ORDER BY failures + deaths > 0, place
"""


def claim(
    db: Database,
    study_id: int,
    owner: Owner,
    limit: int | Callable[[RunConfig, int], int],
    *,
    alike: Callable[[RunConfig], Hashable] | None = None,
) -> list[Claim]:
    """The next runs to do, in plan order, at most `limit`: a new attempt of each belongs to `owner` from now on.

    To do are runs that are planned or stopped, were not tried in vain by this owner (see `RETRIES`; those tried before
    come last), belong to the dead, or are complete but lack a final that the study's evaluation asks for. With `alike`,
    all are like the first: of equal `alike(config)`. `limit` may be a function of the first and of how many are like it.
    """
    fallen = _fallen(db, study_id, owner)
    with db.begin() as connection:
        for attempt_id, beat, reason in fallen:
            _bury(connection, attempt_id, beat, reason)
        evaluation = connection.exec_driver_sql("SELECT evaluation FROM study WHERE id = ?", (study_id,)).scalar_one()
        rows = _candidates(connection, study_id, owner, evaluation)
        chosen: list[tuple[Row[Any], RunConfig]] = []
        for row in rows:
            if len(chosen) == limit:
                break
            if row.failures or row.deaths >= RETRIES:
                continue
            config = _parse(row.config)
            if alike and chosen and alike(config) != alike(chosen[0][1]):
                continue
            if row.status == "complete" and not _again(connection, row.id, config, evaluation):
                continue
            chosen.append((row, config))
        if callable(limit) and chosen:
            chosen = chosen[: limit(chosen[0][1], len(chosen))]
        return [_attempt(connection, db, owner, row, config, evaluation) for row, config in chosen]


@functools.lru_cache(maxsize=1 << 14)
def _parse(config: str) -> RunConfig:
    return RunConfig(**json.loads(config))


def _candidates(connection: Connection, study_id: int, owner: Owner, evaluation: str) -> list[Row[Any]]:
    return list(connection.execute(text(_CANDIDATES), {"study": study_id, "owner": str(owner), "evaluation": evaluation}))


def _attempt(connection: Connection, db: Database, owner: Owner, row: Row[Any], config: RunConfig, evaluation: str) -> Claim:
    n = row.tries + 1
    name = f"{row.key[:12]}-{n}-{secrets.token_hex(4)}.jsonl"
    attempt_id = connection.exec_driver_sql(
        "INSERT INTO attempt (run_id, n, status, owner, heartbeat, journal, journal_offset, evaluation) "
        "VALUES (?, ?, 'running', ?, 0, ?, 0, ?) RETURNING id",
        (row.id, n, str(owner), name, evaluation),
    ).scalar_one()
    connection.exec_driver_sql("UPDATE run SET status = 'running', diverged_at = NULL WHERE id = ?", (row.id,))
    return Claim(attempt_id, row.id, n, config, db.journals / name, bool(row.checkpoint))


def _again(connection: Connection, run_id: int, config: RunConfig, evaluation: str) -> bool:
    """Whether a complete run is to be done again for finals. A final that was asked for before and did not come, never will."""
    wanted = Evaluation.model_validate_json(evaluation)
    rows = connection.exec_driver_sql(
        "SELECT evaluation FROM attempt WHERE run_id = ? AND status IN ('complete', 'superseded') ORDER BY status", (run_id,)
    )
    earlier = [Evaluation.model_validate_json(text) for text in rows.scalars()]
    if earlier and measure(earlier[0]) != measure(wanted):  # the accepted attempt's, whose finals these are
        connection.exec_driver_sql("DELETE FROM final WHERE run_id = ?", (run_id,))
        return True
    there = {(name, at) for name, at in connection.exec_driver_sql("SELECT name, at FROM final WHERE run_id = ?", (run_id,))}
    tried = {final for past in earlier if measure(past) == measure(wanted) for final in asked(config, past)}
    return bool(asked(config, wanted) - there - tried)


# -- the living and the dead --------------------------------------------------------------------------------------


def heartbeat(db: Database, owner: Owner) -> set[int]:
    """Show that the owner lives; the attempts that are still its own. One that is missing was taken over: stop it."""
    with db.begin() as connection:
        rows = connection.exec_driver_sql(
            "UPDATE attempt SET heartbeat = heartbeat + 1 WHERE owner = ? AND status = 'running' RETURNING id", (str(owner),)
        )
        return set(rows.scalars())


def finish(db: Database, attempt_id: int, status: str, error: str = "") -> bool:
    """Close an attempt whose worker cannot (it died): what its journal holds first, then `status`. False if it had ended."""
    ingest(db, attempt_id)
    with db.begin() as connection:
        run_id = connection.exec_driver_sql(
            "UPDATE attempt SET status = ?, error = ?, ended = ? WHERE id = ? AND status = 'running' RETURNING run_id",
            (status, error, utc(time.time()), attempt_id),
        ).scalar_one_or_none()
        if run_id is not None:
            of_run = "failed" if status == "dead" else status
            connection.exec_driver_sql("UPDATE run SET status = ? WHERE id = ?", (of_run, run_id))
        return run_id is not None


def counts(db: Database, study_id: int) -> dict[str, int]:
    """Runs of the study by status."""
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT status, count(*) AS number FROM run WHERE id IN (SELECT run_id FROM member JOIN cell ON cell.id = cell_id "
            "WHERE study_id = ? AND active) GROUP BY status",
            (study_id,),
        )
        return {row.status: row.number for row in rows}


def dead(db: Database, study_id: int) -> set[int]:
    """Runs, said to be running, whose launcher and worker on this host are gone. Changes nothing."""
    here = socket.gethostname()
    return {row.run_id for row in _running(db, study_id) if _is_local(row, here) and not _is_alive(db, row)}


def _running(db: Database, study_id: int) -> list[Row[Any]]:
    with db.read() as connection:
        return list(
            connection.exec_driver_sql(
                "SELECT attempt.id, attempt.run_id, attempt.owner, attempt.host, attempt.journal, attempt.heartbeat FROM attempt "
                "WHERE attempt.status = 'running' AND attempt.run_id IN (SELECT run_id FROM member "
                "JOIN cell ON cell.id = cell_id WHERE study_id = ?)",
                (study_id,),
            )
        )


def _is_local(row: Row[Any], here: str) -> bool:
    return row.owner.rsplit(":", 2)[0] == here and row.host in (None, here)


def _is_alive(db: Database, row: Row[Any]) -> bool:
    return journal.alive(_lock_file(db, row.owner)) or journal.alive(db.journals / row.journal)


def _fallen(db: Database, study_id: int, owner: Owner) -> list[tuple[int, int, str]]:
    """Running attempts of dead owners, (id, heartbeat, why), with what their journals hold ingested."""
    fallen = []
    for row in _running(db, study_id):
        if row.owner == str(owner):
            continue
        if _is_local(row, owner.host):
            if _is_alive(db, row):
                continue
            reason = "its launcher and its worker were gone"
        else:
            beat, since = owner.seen.get(row.id, (None, 0.0))
            if beat != row.heartbeat:
                owner.seen[row.id] = (row.heartbeat, time.monotonic())
                continue
            if time.monotonic() - since < owner.lease:
                continue
            reason = f"its launcher on {row.owner.rsplit(':', 2)[0]} gave no sign of life for {owner.lease:.0f} s"
        try:
            ingest(db, row.id)
        except AblateError as error:  # a damaged journal: kept in the attempt's history, and the run is done again
            reason += f"; {error}"
        fallen.append((row.id, row.heartbeat, reason))
    return fallen


def _bury(connection: Connection, attempt_id: int, beat: int, reason: str) -> None:
    """Mark an attempt dead and its run as to be done, unless it ended, or showed life, meanwhile."""
    run_id = connection.exec_driver_sql(
        "UPDATE attempt SET status = 'dead', error = ?, ended = ? WHERE id = ? AND status = 'running' AND heartbeat = ? "
        "RETURNING run_id",
        (reason, utc(time.time()), attempt_id, beat),
    ).scalar_one_or_none()
    if run_id is not None:
        connection.exec_driver_sql("UPDATE run SET status = 'planned' WHERE id = ?", (run_id,))
