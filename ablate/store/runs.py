"""Who does which run: the next ones are claimed in plan order, each by one owner at a time."""

from __future__ import annotations

import functools
import json
import secrets
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, text

from ablate.config import RunConfig
from ablate.evaluation import Evaluation
from ablate.store.database import Database
from ablate.store.evaluated import differing, evaluations, fallback
from ablate.store.ingest import ingest, utc
from ablate.store.owners import Owner, bury, dead, fallen, heartbeat
from ablate.store.register import register

__all__ = ["Claim", "Owner", "claim", "counts", "dead", "finish", "heartbeat", "register"]

# tries that an owner gives a run whose worker dies or has too little memory; one that fails by
# itself has one
RETRIES = 3


@dataclass(frozen=True)
class Claim:
    """A run to do, and the attempt that does it."""

    attempt_id: int
    run_id: int
    n: int  # 1 for the first attempt of the run
    config: RunConfig
    journal: Path
    resume: bool  # an earlier attempt left a checkpoint
    # by which it is to be measured: the study's now, whatever it was when its plan was made
    evaluation: Evaluation
    cell: str  # label of a cell that it is of
    role: str  # "compare" | "tune" | "parent"


_CANDIDATES = """
SELECT run.id, run.key, run.config, run.status, min(member.ordinal) AS place,
       min(cell.label) AS cell, min(member.role) AS role,
       (SELECT count(*) FROM attempt WHERE run_id = run.id AND status = 'failed'
              AND owner = :owner) AS failures,
       (SELECT count(*) FROM attempt WHERE run_id = run.id AND status IN ('dead', 'oom')
              AND owner = :owner) AS deaths,
       (SELECT coalesce(max(n), 0) FROM attempt WHERE run_id = run.id) AS tries,
       EXISTS (SELECT 1 FROM artifact WHERE run_id = run.id AND kind = 'checkpoint') AS checkpoint
FROM cell JOIN member ON member.cell_id = cell.id JOIN run ON run.id = member.run_id
WHERE cell.study_id = :study AND cell.active
  AND (run.status IN ('planned', 'stopped', 'failed', 'oom')
       OR run.status = 'complete' AND NOT EXISTS (
           SELECT 1 FROM attempt WHERE run_id = run.id AND status = 'complete'
                  AND evaluation = :evaluation))
GROUP BY run.id ORDER BY failures + deaths > 0, CASE WHEN :longest_first THEN -run.flops END, place
"""


def claim(
    db: Database,
    study_id: int,
    owner: Owner,
    limit: int | Callable[[RunConfig, int], int],
    *,
    alike: Callable[[RunConfig], Hashable] | None = None,
    longest_first: bool = False,
) -> list[Claim]:
    """The next runs to do, in plan order or the longest first, at most `limit`: a new attempt of
    each is `owner`'s from now on.

    To do are runs that are planned or stopped, were not tried in vain by this owner (see `RETRIES`;
    those tried before come last), belong to the dead, or are complete but lack a final that the
    study's evaluation asks for. With `alike`, all are like the first: of equal `alike(config)`.
    `limit` may be a function of the first and of how many are like it.
    """
    gone = fallen(db, owner, study_id)
    with db.begin() as connection:
        for attempt_id, beat, reason in gone:
            bury(connection, attempt_id, reason, beat)
        evaluation = connection.exec_driver_sql(
            "SELECT evaluation FROM study WHERE id = ?", (study_id,)
        ).scalar_one()
        rows = _candidates(connection, study_id, owner, evaluation, longest_first)
        chosen: list[tuple[Row[Any], RunConfig]] = []
        like: Hashable = None
        for row in rows:
            if len(chosen) == limit:
                break
            if row.failures or row.deaths >= RETRIES:
                continue
            config = _parse(row.config)
            if alike and chosen and alike(config) != like:
                continue
            if row.status == "complete" and not _again(connection, row.id, config, evaluation):
                continue
            if alike and not chosen:
                like = alike(config)
            chosen.append((row, config))
        if callable(limit) and chosen:
            chosen = chosen[: limit(chosen[0][1], len(chosen))]
        return [_attempt(connection, db, owner, row, config, evaluation) for row, config in chosen]


@functools.lru_cache(maxsize=1 << 14)
def _parse(config: str) -> RunConfig:
    return RunConfig(**json.loads(config))


def _candidates(
    connection: Connection, study: int, owner: Owner, evaluation: str, longest_first: bool
) -> list[Row[Any]]:
    values = {
        "study": study,
        "owner": str(owner),
        "evaluation": evaluation,
        "longest_first": longest_first,
    }
    return list(connection.execute(text(_CANDIDATES), values))


def _attempt(
    connection: Connection,
    db: Database,
    owner: Owner,
    row: Row[Any],
    config: RunConfig,
    evaluation: str,
) -> Claim:
    n = row.tries + 1
    name = f"{row.key[:12]}-{n}-{secrets.token_hex(4)}.jsonl"
    attempt_id = connection.exec_driver_sql(
        "INSERT INTO attempt (run_id, n, status, owner, heartbeat, journal, journal_offset,"
        " evaluation) VALUES (?, ?, 'running', ?, 0, ?, 0, ?) RETURNING id",
        (row.id, n, str(owner), name, evaluation),
    ).scalar_one()
    connection.exec_driver_sql(
        "UPDATE run SET status = 'running', diverged_at = NULL WHERE id = ?", (row.id,)
    )
    measured = Evaluation.model_validate_json(evaluation)
    return Claim(
        attempt_id,
        row.id,
        n,
        config,
        db.journals / name,
        bool(row.checkpoint),
        measured,
        row.cell,
        row.role,
    )


def _again(connection: Connection, run_id: int, config: RunConfig, evaluation: str) -> bool:
    """Whether a complete run is to be done again for finals. A final that was asked for before and
    did not come, never will.
    """
    wanted = Evaluation.model_validate_json(evaluation)
    earlier = evaluations(connection, run_id)
    if differing(wanted, earlier):
        return True
    there = {
        (name, at)
        for name, at in connection.exec_driver_sql(
            "SELECT name, at FROM final WHERE run_id = ?", (run_id,)
        )
    }
    tried = {
        final for past in earlier if not differing(wanted, [past]) for final in past.finals(config)
    }
    return bool(set(wanted.finals(config)) - there - tried)


def finish(db: Database, attempt_id: int, status: str, error: str = "") -> bool:
    """Close an attempt whose worker cannot (it died): what its journal holds first, then `status`.
    False if it had ended.
    """
    ingest(db, attempt_id)
    with db.begin() as connection:
        run_id = connection.exec_driver_sql(
            "UPDATE attempt SET status = ?, error = ?, ended = ? WHERE id = ? AND status ="
            " 'running' RETURNING run_id",
            (status, error, utc(time.time()), attempt_id),
        ).scalar_one_or_none()
        if run_id is not None:
            of_run = "failed" if status == "dead" else status
            if status != "stopped":
                of_run = fallback(connection, run_id, attempt_id, of_run)
            connection.exec_driver_sql("UPDATE run SET status = ? WHERE id = ?", (of_run, run_id))
        return run_id is not None


def counts(db: Database, study_id: int) -> dict[str, int]:
    """Runs of the study by status."""
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT status, count(*) AS number FROM run WHERE id IN (SELECT run_id FROM member JOIN"
            " cell ON cell.id = cell_id WHERE study_id = ? AND active) GROUP BY status",
            (study_id,),
        )
        return {row.status: row.number for row in rows}
