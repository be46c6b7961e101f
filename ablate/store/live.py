"""What a board shows of a study beside its status: failures, the queue, devices. Nothing writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ablate.store.database import Database
from ablate.store.owners import STATUS
from ablate.store.records import FAILED
from ablate.store.schema import RUNS
from ablate.store.status import TRIED, selected, settings, tried
from ablate.study import tuned_field


@dataclass(frozen=True)
class Failed:
    """A run that ended without a result.

    Attributes:
        run: Its number.
        cell: A cell that it belongs to.
        seed: Its seed.
        role: "compare", "tune" or "pretrain".
        tried: What a tuning run tries, such as "lr 0.003"; "" for others.
        status: One of `ablate.store.records.FAILED`.
        attempts: How often it was tried.
        error: What its last attempt ended with; "" if it said nothing.
        journal: The journal of that attempt; "" if there is none.
    """

    run: int
    cell: str
    seed: int
    role: str
    tried: str
    status: str
    attempts: int
    error: str
    journal: str


@dataclass(frozen=True)
class Waiting:
    """A run that waits to be trained, or to be continued."""

    run: int
    cell: str
    seed: int
    role: str
    tried: str  # as of `Failed`
    status: str  # planned, stopped
    attempts: int


@dataclass(frozen=True)
class DeviceUse:
    """What a study used of one device.

    Attributes:
        host: Name of the host; None if it is not known.
        device: Torch's name, such as "cuda:0".
        name: The maker's name; None if it is not known.
        training: Running attempts.
        ended: Ended attempts.
        seconds: Device seconds of the ended attempts.
        peak_bytes: Most memory that one of them took; None if it is not known.
    """

    host: str | None
    device: str
    name: str | None
    training: int
    ended: int
    seconds: float
    peak_bytes: int | None


def failed(db: Database, study: str) -> list[Failed]:
    """Return the runs of a study that failed, those whose last attempt is newest first."""
    field = _tuned(db, study)
    rows = selected(
        db,
        f"""
        SELECT run.id AS run, min(cell.label) AS cell, run.seed, min(member.role) AS role,
               {TRIED} AS tried, run.status, last.n AS attempts, last.error, last.journal
        {RUNS} LEFT JOIN attempt AS last ON last.run_id = run.id
             AND last.n = (SELECT max(n) FROM attempt WHERE run_id = run.id)
        WHERE study.name = :study AND cell.active AND run.status IN {FAILED}
        GROUP BY run.id ORDER BY last.id DESC
        """,
        study=study,
        field=field,
    )
    return [
        Failed(
            row.run,
            row.cell,
            row.seed,
            row.role,
            tried(field, row.tried),
            row.status,
            row.attempts or 0,
            row.error or "",
            row.journal or "",
        )
        for row in rows
    ]


def queue(db: Database, study: str, most: int) -> list[Waiting]:
    """Return the first `most` runs of a study that wait, in the order of its plan."""
    field = _tuned(db, study)
    rows = selected(
        db,
        f"""
        SELECT run.id AS run, min(cell.label) AS cell, run.seed, min(member.role) AS role,
               {TRIED} AS tried, run.status,
               (SELECT count(*) FROM attempt WHERE run_id = run.id) AS attempts
        {RUNS}
        WHERE study.name = :study AND cell.active AND run.status IN ('planned', 'stopped')
        GROUP BY run.id ORDER BY min(member.ordinal) LIMIT :most
        """,
        study=study,
        field=field,
        most=most,
    )
    return [
        Waiting(
            row.run, row.cell, row.seed, row.role, tried(field, row.tried), row.status, row.attempts
        )
        for row in rows
    ]


def devices(db: Database, study: str) -> list[DeviceUse]:
    """Return what a study used of each device, by host and name."""
    rows = selected(
        db,
        f"""
        SELECT attempt.host, attempt.device, max(attempt.device_name) AS name,
               sum(attempt.status = 'running') AS training,
               sum(attempt.status <> 'running') AS ended,
               total(attempt.device_seconds) AS seconds, max(attempt.peak_bytes) AS peak_bytes
        FROM attempt WHERE attempt.device IS NOT NULL AND attempt.run_id IN
             (SELECT run.id {RUNS} WHERE study.name = :study AND cell.active)
        GROUP BY attempt.host, attempt.device ORDER BY attempt.host, attempt.device
        """,
        study=study,
    )
    return [DeviceUse(*row) for row in rows]


def unplanned(db: Database, study: str) -> bool:
    """Return whether a study will plan more runs, when it has decided on a rate or on seeds."""
    tables = settings(_toml(db, study))
    seeds = tables.get("seeds")
    parts = []
    if "tune" in tables:
        parts.append(
            "NOT EXISTS (SELECT 1 FROM member WHERE cell_id = cell.id AND role = 'compare')"
        )
    if isinstance(seeds, dict) and "pilot" in seeds:
        parts.append(
            "NOT EXISTS (SELECT 1 FROM decision JOIN cell AS its ON its.id = cell_id WHERE"
            " decision.study_id = study.id AND decision.name = 'seeds' AND its.stratum ="
            " cell.stratum)"
        )
    sql = (
        "SELECT 1 FROM study JOIN cell ON cell.study_id = study.id WHERE study.name = :study AND"
        f" cell.active AND ({' OR '.join(parts)}) LIMIT 1"
    )
    return bool(parts and selected(db, sql, study=study))


@dataclass(frozen=True)
class Mark:
    """What tells that a run, or its numbers, changed.

    Attributes:
        key: The run's key: numbers of runs that were deleted are given again.
        state: Changes with the status of the run, and with its attempts.
        read: Bytes of its journals that are in the tables.
    """

    key: str
    state: tuple[Any, ...]
    read: float


def marks(db: Database, study: str) -> dict[int, Mark]:
    """Return run → its mark, for the runs of every role."""
    rows = selected(
        db,
        f"""
        SELECT run.id, run.key, {STATUS}, max(attempt.journal), count(attempt.id),
               total(attempt.journal_offset)
        FROM (SELECT DISTINCT run.id {RUNS} WHERE study.name = :study AND cell.active) AS its
             JOIN run ON run.id = its.id LEFT JOIN attempt ON attempt.run_id = run.id
        GROUP BY run.id
        """,
        study=study,
    )
    return {run: Mark(key, tuple(state), read) for run, key, *state, read in rows}


def _tuned(db: Database, study: str) -> str:
    """The field that a study tunes."""
    return tuned_field(settings(_toml(db, study)))


def _toml(db: Database, study: str) -> str:
    found = selected(db, "SELECT toml FROM study WHERE name = :study", study=study)
    return str(found[0].toml) if found else ""
