"""List and claim runs, each for one owner at a time, and close what a worker left open."""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, text

from ablate import journal
from ablate.evaluation import Evaluation
from ablate.journal import Event
from ablate.kinds import Fields, Run, kind
from ablate.plan import Plan
from ablate.store.database import Database, whole
from ablate.store.evaluated import differing, evaluations, fallback
from ablate.store.ingest import ingest, utc
from ablate.store.owners import Owner, mark_dead, stale_attempts
from ablate.store.records import FAILED, WEIGHTS, Candidate, Claim
from ablate.store.schema import RUNS
from ablate.study import Keep

_OPEN = f"""
run.status IN {("planned", "stopped", *FAILED)}
OR run.status = 'complete' AND NOT EXISTS (
    SELECT 1 FROM attempt WHERE run_id = run.id AND status = 'complete'
           AND evaluation = study.evaluation)
"""
# a complete run that a study compares, or starts others from, without the weights that it keeps;
# `candidates` leaves out those from which no run is to start
_UNKEPT = """
run.status = 'complete' AND :kept <> ''
AND NOT EXISTS (SELECT 1 FROM artifact WHERE run_id = run.id AND kind = :kept)
AND EXISTS (SELECT 1 FROM member AS of_run JOIN cell AS its ON its.id = of_run.cell_id
            WHERE of_run.run_id = run.id AND its.study_id = study.id AND its.active
                  AND of_run.role <> 'tune' AND run.kind <> 'finetune')
"""
_RUN = f"""
({_UNKEPT}) AS unkept,
run.id, run.key, run.kind, run.fields, run.seed, run.status, study.evaluation,
(SELECT parent.key FROM run AS parent WHERE parent.id = run.parent_run_id) AS parent
"""
_CANDIDATES = f"""
SELECT {_RUN}, run.flops, min(cell.label) AS cell, min(member.role) AS role,
       (SELECT count(*) FROM attempt WHERE run_id = run.id AND status IN ('failed', 'timeout')
              AND owner = :owner) AS failures,
       (SELECT count(*) FROM attempt WHERE run_id = run.id AND status IN ('dead', 'oom')
              AND owner = :owner) AS losses,
       EXISTS (SELECT 1 FROM artifact WHERE run_id = run.id AND kind = 'checkpoint') AS checkpoint,
       (SELECT iif(parent.status <> 'complete' OR EXISTS
                   (SELECT 1 FROM artifact WHERE run_id = parent.id AND kind = :weights),
                   parent.status, 'planned')
        FROM run AS parent WHERE parent.id = run.parent_run_id) AS parent_status
{RUNS}
WHERE study.id = :study AND cell.active AND ({_OPEN} OR {_UNKEPT})
GROUP BY run.id ORDER BY min(member.ordinal)
"""
_CHOSEN = f"""
SELECT {_RUN}, (SELECT coalesce(max(n), 0) FROM attempt WHERE run_id = run.id) AS tries
FROM json_each(:ids) AS chosen JOIN run ON run.id = chosen.value, study
WHERE study.id = :study AND ({_OPEN} OR {_UNKEPT}) ORDER BY chosen.key
"""

_IN_QUEUE = """
SELECT attempt.id AS attempt, attempt.n, attempt.journal, run.id, run.kind, run.fields, run.seed,
       (SELECT parent.key FROM run AS parent WHERE parent.id = run.parent_run_id) AS parent,
       attempt.evaluation, run.flops, min(cell.label) AS cell, min(member.role) AS role
FROM attempt JOIN run ON run.id = attempt.run_id
     LEFT JOIN (member JOIN cell ON cell.id = member.cell_id
                JOIN study ON study.id = cell.study_id AND study.name = :study)
     ON member.run_id = run.id
WHERE attempt.status = 'running' AND substr(attempt.owner, 1, length(:queue)) = :queue
GROUP BY attempt.id ORDER BY attempt.id
"""


def candidates(db: Database, study_id: int, owner: Owner, keep: Keep = "none") -> list[Candidate]:
    """Return the runs of a study that can be claimed, in the order of its plan.

    They are planned, stopped or failed, belonged to an owner that no longer runs, or are complete
    but lack a final that the study's evaluation needs, or weights. Stale attempts are closed.

    Args:
        db: The database.
        study_id: The study.
        owner: Who asks; `failures` and `losses` count its own attempts.
        keep: Which weights the study keeps.
    """
    stale = stale_attempts(db, owner, study_id)
    if stale:
        with db.begin() as connection:
            for attempt_id, beat, reason in stale:
                mark_dead(connection, attempt_id, reason, beat)
    with db.read() as connection:
        values = {"study": study_id, "owner": str(owner), "kept": WEIGHTS.get(keep, "")}
        values |= {"weights": WEIGHTS["final"]}
        # a run whose parent diverged has failed, and would fail again
        listed = [
            one
            for one in _unfinished(connection, _CANDIDATES, values)
            if (one.row.status, one.row.parent_status) != ("failed", "diverged")
        ]
        started_from = {one.run.parent for one in listed}
        return [
            Candidate(
                row.id,
                run,
                row.flops,
                row.cell,
                row.role,
                row.failures,
                row.losses,
                bool(row.checkpoint),
                row.parent_status or "",
            )
            for row, run, has_result in listed
            if not has_result or row.role != "pretrain" or run.key in started_from
        ]


def claim(
    db: Database, study_id: int, owner: Owner, run_ids: Sequence[int], keep: Keep = "none"
) -> list[Claim]:
    """Begin a new attempt of each of these runs, unless another process was quicker.

    One transaction. From then on the attempts are `owner`'s.

    Args:
        db: The database.
        study_id: The study by whose evaluation they are measured.
        owner: The launcher that claims.
        run_ids: Runs that `candidates` returned.
        keep: As for `candidates`.

    Returns:
        The claims, in the order of `run_ids`.
    """
    with db.begin() as connection:
        ids, kept = json.dumps(list(run_ids)), WEIGHTS.get(keep, "")
        values = {"study": study_id, "ids": ids, "kept": kept}
        return [
            _attempt(connection, db, owner, one.row, one.run)
            # read before anything is written
            for one in list(_unfinished(connection, _CHOSEN, values))
        ]


def adopt(
    db: Database, study: str, owner: Owner, journals: Collection[str]
) -> list[tuple[Claim, Candidate]]:
    """Make the attempts in a cluster's queue, which an earlier launcher left there, `owner`'s.

    Attempts that are no longer in the queue, or whose run the study no longer has, are closed as
    "stopped", their journals ingested.

    Args:
        db: The database.
        study: Name of the study.
        owner: The launcher, whose host names the queue.
        journals: Names of the journals of what is in the queue.

    Returns:
        The attempts in the queue, and their runs.
    """
    values = {"study": study, "queue": f"{owner.host.rpartition('/')[0]}/"}
    with db.read() as connection:
        rows = connection.execute(text(_IN_QUEUE), values).all()
    found = []
    for row in rows:
        if row.journal not in journals:
            finish(db, row.attempt, "stopped", "it was no longer in the queue of its cluster")
        elif row.cell is None:  # such as one of a seed that was taken out of the study file
            finish(db, row.attempt, "stopped", f"study {study} no longer has the run")
        else:
            found.append(row)
    with db.begin() as connection:
        for row in found:
            connection.exec_driver_sql(
                "UPDATE attempt SET owner = ? WHERE id = ? AND status = 'running'",
                (str(owner), row.attempt),
            )
    adopted = []
    for row in found:
        run = Run(row.kind, _fields(row.fields), row.seed, row.parent or "")
        evaluation = Evaluation.model_validate_json(row.evaluation)
        journal = db.journals / row.journal
        parent = "complete" if run.parent else ""  # else it would not be in the queue
        adopted.append(
            (
                Claim(row.attempt, row.id, row.n, run, journal, evaluation),
                Candidate(row.id, run, row.flops, row.cell, row.role, 0, 0, False, parent),
            )
        )
    return adopted


def done(db: Database, runs: Sequence[Run], evaluation: Evaluation) -> frozenset[str]:
    """Return the keys of the runs that a study with this evaluation would not train again."""
    wanted = evaluation.model_dump_json()
    of = {run.key: run for run in runs}
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT run.id, run.key, run.status = 'diverged' OR EXISTS (SELECT 1 FROM attempt WHERE"
            " run_id = run.id AND status = 'complete' AND evaluation = ?) FROM json_each(?) AS"
            " chosen JOIN run ON run.key = chosen.value WHERE run.status IN ('complete',"
            " 'diverged')",
            (wanted, json.dumps(list(of))),
        ).all()
        return frozenset(
            key
            for run_id, key, same in rows
            if same or not _lacks_finals(connection, run_id, of[key], wanted)
        )


def keeps(run: Run, role: str) -> bool:
    """Return whether a study that keeps weights keeps those of a run of this role."""
    return role != "tune" and not kind(run.kind).no_weights


def unkept(db: Database, plan: Plan) -> frozenset[str]:
    """Return the keys of complete runs of a plan without weights which it keeps or starts from.

    Their file may be missing or cut short, such as after the database alone was copied. A parent
    counts if a run that starts from it is to be trained.
    """
    study = plan.study
    if study.keep == "none":
        return frozenset()
    runs = {one.run.key: one.run for one in plan.runs}
    finished = done(db, [one for one in runs.values() if one.parent], study.evaluation)
    parents = {one.parent for key, one in runs.items() if key not in finished}
    kept = {
        one.run.key
        for one in plan.runs
        if keeps(one.run, one.role) and (one.role != "pretrain" or one.run.key in parents)
    }
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT run.key, artifact.kind, artifact.path FROM json_each(?) AS chosen JOIN run ON"
            " run.key = chosen.value LEFT JOIN artifact ON run_id = run.id AND artifact.kind = ?"
            " WHERE run.status = 'complete'",
            (json.dumps([*kept]), WEIGHTS[study.keep]),
        ).all()
    having = {row.key for row in rows if row.path is not None and whole(db.kept(*row))}
    return frozenset(row.key for row in rows) - having


def forget_lost_weights(db: Database, keys: Collection[str]) -> None:
    """Forget the weights of runs whose file is missing or cut short."""
    listed = (
        "SELECT run.key, artifact.kind, artifact.path, run_id FROM json_each(?) AS chosen JOIN run"
        " ON run.key = chosen.value JOIN artifact ON run_id = run.id WHERE artifact.kind <>"
        " 'checkpoint'"
    )
    with db.begin() as connection:  # another launcher may have trained some of them again
        rows = connection.exec_driver_sql(listed, (json.dumps([*keys]),)).all()
        for key, its, path, run_id in rows:
            if not whole(db.kept(key, its, path)):
                connection.exec_driver_sql(
                    "DELETE FROM artifact WHERE run_id = ? AND kind = ? AND path = ?",
                    (run_id, its, path),
                )


def without_weights(unkept: Collection[str]) -> str:
    """Return a sentence on the runs that `unkept` returns, without its full stop."""
    n = len(unkept)
    who, them = ("1 complete run has", "it") if n == 1 else (f"{n:,} complete runs have", "them")
    return f"{who} no weights, which the study needs: `ablate run` trains {them} again"


class _Unfinished(NamedTuple):
    row: Row[Any]
    run: Run
    has_result: bool  # it lacks weights alone


def _unfinished(connection: Connection, sql: str, values: dict[str, Any]) -> Iterator[_Unfinished]:
    """Yield the runs that a query finds, but for complete ones that lack neither finals nor
    weights.
    """
    for row in connection.execute(text(sql), values):
        run = Run(row.kind, _fields(row.fields), row.seed, row.parent or "")
        has_result = row.status == "complete" and not _lacks_finals(
            connection, row.id, run, row.evaluation
        )
        if row.unkept or not has_result:
            yield _Unfinished(row, run, has_result)


@functools.lru_cache(maxsize=1 << 14)
def _fields(text: str) -> Fields:
    """The fields of runs; the many that differ in nothing but their seed share them in memory."""
    fields: Fields = json.loads(text)
    return fields


def _attempt(connection: Connection, db: Database, owner: Owner, row: Row[Any], run: Run) -> Claim:
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
    return Claim(attempt_id, row.id, n, run, db.journals / name, evaluation)


def _lacks_finals(connection: Connection, run_id: int, run: Run, evaluation: str) -> bool:
    """Whether a complete run is to be done again for finals that it lacks.

    A final that an earlier attempt should have reported, but did not, will never be reported.
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


def covered_by_checkpoint(db: Database, run_id: int) -> int:
    """Return the step up to which a checkpoint of a run can be continued from; 0 for none.

    A checkpoint may be newer than what was ingested: that of a worker which trained on after its
    run was taken over, or whose journal a power failure cut short. The points between would be
    missing. Those up to the last checkpoint in the ingested part of the journals are stored.
    """
    with db.read() as connection:
        attempts = connection.exec_driver_sql(
            "SELECT journal, journal_offset FROM attempt WHERE run_id = ? ORDER BY n", (run_id,)
        ).all()
    covered = 0
    for name, offset in attempts:
        path, events = db.journal(name), list[Event]()
        if path is not None:
            with contextlib.suppress(OSError, ValueError):  # missing, or damaged
                events, _ = journal.read(path, 0, offset)
        if offset and not events:
            covered = 0  # it may have begun anywhere
        for event in events:
            if event["event"] == "start":
                covered = min(covered, event["step"])  # later points were deleted
            elif event["event"] == "checkpoint":
                covered = event["step"]
    return covered


def finish(db: Database, attempt_id: int, status: str, error: str = "") -> bool:
    """Close an attempt whose worker died: ingest its journal, then give it `status`.

    Returns:
        False if the attempt had ended already, or another launcher has closed it.
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


def explain(db: Database, attempt_ids: Collection[int], reason: str) -> None:
    """Record why attempts were stopped whose journals do not say it."""
    with db.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE attempt SET error = ? WHERE status = 'stopped' AND error IS NULL AND id IN"
            " (SELECT value FROM json_each(?))",
            (reason, json.dumps(list(attempt_ids))),
        )


def status_of(db: Database, run_id: int) -> str:
    """Return the status of a run."""
    with db.read() as connection:
        rows = connection.exec_driver_sql("SELECT status FROM run WHERE id = ?", (run_id,))
        return str(rows.scalar_one())
