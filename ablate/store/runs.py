"""Claim runs, in plan order, each by one owner at a time, and close what a worker left open."""

from __future__ import annotations

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
from ablate.kinds import Run, kind
from ablate.kinds.transformer import config_of
from ablate.store.database import Database
from ablate.store.evaluated import differing, evaluations, fallback
from ablate.store.ingest import ingest, utc
from ablate.store.owners import Owner, dead, heartbeat, mark_dead, stale_attempts
from ablate.store.register import register

__all__ = ["Claim", "Owner", "claim", "counts", "dead", "finish", "heartbeat", "register"]

# tries that an owner gives a run whose worker dies or has too little memory; one that fails by
# itself has one
RETRIES = 3


@dataclass(frozen=True)
class Claim:
    """A run to do, and the attempt that does it.

    Attributes:
        attempt_id: Row of the table `attempt`.
        run_id: Row of the table `run`.
        n: Number of the attempt among those of its run, from 1.
        run: What to train.
        journal: File that the worker writes.
        evaluation: How to measure it: the study's evaluation now, whatever it was when the plan was
            made.
        cell: Label of a cell that the run belongs to.
        role: "compare" or "tune".
    """

    attempt_id: int
    run_id: int
    n: int
    run: Run
    journal: Path
    evaluation: Evaluation
    cell: str
    role: str

    @property
    def config(self) -> RunConfig:
        """Typed configuration of a run of the kind "transformer"."""
        return config_of(self.run)


_CANDIDATES = """
SELECT run.id, run.key, run.kind, run.fields, run.seed, run.status,
       (SELECT parent.key FROM run AS parent WHERE parent.id = run.parent_run_id) AS parent,
       min(member.ordinal) AS ordinal, min(cell.label) AS cell, min(member.role) AS role,
       (SELECT count(*) FROM attempt WHERE run_id = run.id AND status = 'failed'
              AND owner = :owner) AS failures,
       (SELECT count(*) FROM attempt WHERE run_id = run.id AND status IN ('dead', 'oom')
              AND owner = :owner) AS deaths,
       (SELECT coalesce(max(n), 0) FROM attempt WHERE run_id = run.id) AS tries
FROM cell JOIN member ON member.cell_id = cell.id JOIN run ON run.id = member.run_id
WHERE cell.study_id = :study AND cell.active
  AND (run.status IN ('planned', 'stopped', 'failed', 'oom')
       OR run.status = 'complete' AND NOT EXISTS (
           SELECT 1 FROM attempt WHERE run_id = run.id AND status = 'complete'
                  AND evaluation = :evaluation))
GROUP BY run.id
ORDER BY failures + deaths > 0, CASE WHEN :longest_first THEN -run.flops END, ordinal
"""


def claim(
    db: Database,
    study_id: int,
    owner: Owner,
    limit: int | Callable[[Run, int], int],
    *,
    alike: Callable[[Run], Hashable] | None = None,
    longest_first: bool = False,
) -> list[Claim]:
    """Claim the next runs of a study: each gets a new attempt, which is `owner`'s.

    To do are runs that are planned or stopped; that failed, but not for this owner (one whose
    worker died or ran out of memory is retried up to `RETRIES` times, after all others); that
    belong to stale attempts; and complete runs that lack a final of the study's evaluation.

    Args:
        db: The database.
        study_id: The study.
        owner: The launcher that claims.
        limit: Most runs to claim, or a function of the first run and of how many are like it.
        alike: All claimed runs have the same `alike(run)` as the first.
        longest_first: Claim in order of falling FLOPs instead of plan order.

    Returns:
        The claims, in order; empty if nothing is to do now.
    """
    stale = stale_attempts(db, owner, study_id)
    with db.begin() as connection:
        for attempt_id, beat, reason in stale:
            mark_dead(connection, attempt_id, reason, beat)
        evaluation = connection.exec_driver_sql(
            "SELECT evaluation FROM study WHERE id = ?", (study_id,)
        ).scalar_one()
        rows = _candidates(connection, study_id, owner, evaluation, longest_first)
        chosen: list[tuple[Row[Any], Run]] = []
        like: Hashable = None
        for row in rows:
            if len(chosen) == limit:
                break
            if row.failures or row.deaths >= RETRIES:
                continue
            run = Run(row.kind, json.loads(row.fields), row.seed, row.parent or "")
            if alike and chosen and alike(run) != like:
                continue
            if row.status == "complete" and not _lacks_finals(connection, row.id, run, evaluation):
                continue
            if alike and not chosen:
                like = alike(run)
            chosen.append((row, run))
        if callable(limit) and chosen:
            chosen = chosen[: limit(chosen[0][1], len(chosen))]
        return [_attempt(connection, db, owner, row, run, evaluation) for row, run in chosen]


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
    connection: Connection, db: Database, owner: Owner, row: Row[Any], run: Run, evaluation: str
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
    return Claim(attempt_id, row.id, n, run, db.journals / name, measured, row.cell, row.role)


def _lacks_finals(connection: Connection, run_id: int, run: Run, evaluation: str) -> bool:
    """Whether a complete run is to be done again for finals that it lacks.

    A final that an earlier attempt was asked for and did not report will never come.
    """
    finals = kind(run.kind).finals
    wanted = Evaluation.model_validate_json(evaluation)
    earlier = evaluations(connection, run_id)
    if differing(wanted, earlier):
        return True
    stored = {
        (name, at)
        for name, at in connection.exec_driver_sql(
            "SELECT name, at FROM final WHERE run_id = ?", (run_id,)
        )
    }
    tried = {
        final
        for past in earlier
        if not differing(wanted, [past])
        for final in finals(run.fields, past)
    }
    return bool(set(finals(run.fields, wanted)) - stored - tried)


def finish(db: Database, attempt_id: int, status: str, error: str = "") -> bool:
    """Close an attempt whose worker died: ingest its journal, then give it `status`.

    Returns:
        False if the attempt had ended already.
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
    """Return status → number of runs of a study."""
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT status, count(*) AS number FROM run WHERE id IN (SELECT run_id FROM member JOIN"
            " cell ON cell.id = cell_id WHERE study_id = ? AND active) GROUP BY status",
            (study_id,),
        )
        return {row.status: row.number for row in rows}
