"""Who trains which run: a launcher lists candidates and claims some, each run by one owner."""

from __future__ import annotations

import functools
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, text

from ablate.config import Evaluation, RunConfig
from ablate.store.database import Database
from ablate.store.evaluated import differing, evaluations, fallback
from ablate.store.ingest import ingest, utc
from ablate.store.owners import Owner, bury, dead, fallen, owned
from ablate.store.register import register

__all__ = [
    "Candidate",
    "Claim",
    "Owner",
    "candidates",
    "claim",
    "counts",
    "dead",
    "finish",
    "owned",
    "register",
]


@dataclass(frozen=True)
class Candidate:
    """A run of a study that has no result yet and that nobody trains.

    Attributes:
        run_id: The run in the database.
        config: What it trains.
        flops: Floating-point operations of its training; None if unknown.
        cell: Label of a cell that it belongs to.
        role: "compare" or "tune".
        failures: Attempts by this owner in which it failed by itself.
        losses: Attempts by this owner that lost their worker or ran out of memory.
        checkpoint: Whether an attempt left a checkpoint.
        parent_complete: Whether its parent run, where it has one, is complete.
    """

    run_id: int
    config: RunConfig
    flops: float | None
    cell: str
    role: str
    failures: int
    losses: int
    checkpoint: bool
    parent_complete: bool


@dataclass(frozen=True)
class Claim:
    """A new attempt of a run, which this process trains.

    Attributes:
        attempt_id: The attempt in the database.
        run_id: Its run.
        n: 1 for the first attempt of the run.
        config: What the run trains.
        journal: File that its worker writes.
        evaluation: How it is measured: as the study says now.
    """

    attempt_id: int
    run_id: int
    n: int
    config: RunConfig
    journal: Path
    evaluation: Evaluation


_OPEN = """
run.status IN ('planned', 'stopped', 'failed', 'oom')
OR run.status = 'complete' AND NOT EXISTS (
    SELECT 1 FROM attempt WHERE run_id = run.id AND status = 'complete'
           AND evaluation = study.evaluation)
"""
_CANDIDATES = f"""
SELECT run.id, run.config, run.status, run.flops, study.evaluation,
       min(cell.label) AS cell, min(member.role) AS role,
       (SELECT count(*) FROM attempt WHERE run_id = run.id AND status = 'failed'
              AND owner = :owner) AS failures,
       (SELECT count(*) FROM attempt WHERE run_id = run.id AND status IN ('dead', 'oom')
              AND owner = :owner) AS losses,
       EXISTS (SELECT 1 FROM artifact WHERE run_id = run.id AND kind = 'checkpoint') AS checkpoint,
       NOT EXISTS (SELECT 1 FROM run AS parent WHERE parent.id = run.parent_run_id
                   AND parent.status <> 'complete') AS parent_complete
FROM study JOIN cell ON cell.study_id = study.id JOIN member ON member.cell_id = cell.id
     JOIN run ON run.id = member.run_id
WHERE study.id = :study AND cell.active AND ({_OPEN})
GROUP BY run.id ORDER BY min(member.ordinal)
"""


def candidates(db: Database, study_id: int, owner: Owner) -> list[Candidate]:
    """Return the runs of a study that can be claimed, in the order of its plan.

    They are planned, stopped or failed, belonged to an owner that is gone, or are complete but lack
    a final that the study's evaluation asks for. Ends the attempts of owners that are gone.

    Args:
        db: The database.
        study_id: The study.
        owner: Who asks; `failures` and `losses` count its own attempts.
    """
    gone = fallen(db, owner, study_id)
    if gone:
        with db.begin() as connection:
            for attempt_id, beat, reason in gone:
                bury(connection, attempt_id, reason, beat)
    with db.read() as connection:
        values = {"study": study_id, "owner": str(owner)}
        found = []
        for row in connection.execute(text(_CANDIDATES), values):
            config = _parse(row.config)
            if row.status != "complete" or _again(connection, row.id, config, row.evaluation):
                candidate = Candidate(
                    row.id,
                    config,
                    row.flops,
                    row.cell,
                    row.role,
                    row.failures,
                    row.losses,
                    bool(row.checkpoint),
                    bool(row.parent_complete),
                )
                found.append(candidate)
        return found


def claim(db: Database, study_id: int, owner: Owner, run_ids: Sequence[int]) -> list[Claim]:
    """Begin a new attempt of each of these runs, and return those that nobody else was quicker on.

    One transaction. From now on the attempts are `owner`'s.

    Args:
        db: The database.
        study_id: The study by whose evaluation they are measured.
        owner: Who trains them.
        run_ids: Runs that `candidates` returned.
    """
    with db.begin() as connection:
        rows = connection.execute(
            text(
                "SELECT run.id, run.key, run.config, run.status, study.evaluation,"
                " (SELECT coalesce(max(n), 0) FROM attempt WHERE run_id = run.id) AS tries"
                " FROM json_each(:ids) AS chosen JOIN run ON run.id = chosen.value, study"
                f" WHERE study.id = :study AND ({_OPEN}) ORDER BY chosen.key"
            ),
            {"study": study_id, "ids": json.dumps(list(run_ids))},
        ).all()
        return [
            _attempt(connection, db, owner, row)
            for row in rows
            if row.status != "complete"
            or _again(connection, row.id, _parse(row.config), row.evaluation)
        ]


@functools.lru_cache(maxsize=1 << 14)
def _parse(config: str) -> RunConfig:
    return RunConfig(**json.loads(config))


def _attempt(connection: Connection, db: Database, owner: Owner, row: Row[Any]) -> Claim:
    n = row.tries + 1
    name = f"{row.key[:12]}-{n}-{secrets.token_hex(4)}.jsonl"
    attempt_id = connection.exec_driver_sql(
        "INSERT INTO attempt (run_id, n, status, owner, heartbeat, journal, journal_offset,"
        " evaluation) VALUES (?, ?, 'running', ?, 0, ?, 0, ?) RETURNING id",
        (row.id, n, str(owner), name, row.evaluation),
    ).scalar_one()
    connection.exec_driver_sql(
        "UPDATE run SET status = 'running', diverged_at = NULL WHERE id = ?", (row.id,)
    )
    evaluation = Evaluation.model_validate_json(row.evaluation)
    return Claim(attempt_id, row.id, n, _parse(row.config), db.journals / name, evaluation)


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
