"""Find what is wrong with a database and its journals, and repair what can be repaired."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shlex import quote

from sqlalchemy import Connection

from ablate import journal
from ablate.errors import AblateError
from ablate.store import owners, sound
from ablate.store.database import JOURNAL, Database, folder, whole
from ablate.store.ingest import ingest
from ablate.store.records import ACCEPTED
from ablate.store.sqlite import Damaged

MOST = 20  # values that ablate does not write which are listed


@dataclass(frozen=True)
class Finding:
    """A problem, and how it was repaired: "" if it was not."""

    text: str
    repair: str = ""


def check(db: Database, *, repair: bool = False) -> list[Finding]:
    """Look for values that ablate does not write, rows that refer to nothing, doubled attempts,
    contradicting states, dead runs, stray journals, missing, cut and stray files of weights.

    Args:
        db: The database.
        repair: Repair what can be repaired. No measured number of a known run is deleted.

    Raises:
        Damaged: The file itself is broken; `cure` says what to do.
    """
    with db.read() as connection:
        damage = [
            line
            for (line,) in connection.exec_driver_sql("PRAGMA integrity_check(20)")
            if line != "ok"
        ]
    if damage:  # nothing below can be trusted
        raise Damaged(db.path, "; ".join(damage))
    findings = [Finding(text) for text in islice(sound.unsound(db.path), MOST)]
    if repair:
        with db.begin() as connection:
            findings += [finding for part in _PARTS for finding in part(connection, True)]
    else:
        with db.read() as connection:
            findings += [finding for part in _PARTS for finding in part(connection, False)]
    of_files = (_dead, _journals, _weights, _locks)
    return [*findings, *(finding for part in of_files for finding in part(db, repair))]


def cure(path: Path) -> str:
    """Return what to do about a damaged file, given the other files in its folder."""
    journals = folder(path, "journals")
    backups = sorted(
        path.parent.glob(f"{path.name}.before-*"), key=lambda copy: copy.stat().st_mtime
    )
    back = (
        f"restore the database by copying {backups[-1]} over it"
        if backups
        else "restore a backup of your own, if there is one"
    )
    name, saved = quote(str(path)), quote(str(path.with_name(f"{path.stem}.recovered.db")))
    kept = (
        f"The journals in {journals} hold all measurements: `ablate db check --repair` ingests"
        " those that the restored file lacks, for runs in the file; `ablate run STUDY` repeats"
        " the other runs."
    )
    return (
        f"ablate cannot repair it safely. Do not change the file; {back}. Otherwise save what"
        f" can still be read with\n    sqlite3 {name} .recover | sqlite3 {saved}\n"
        + (
            kept
            if journals.exists()
            else (
                f"There are no journals in {journals}: `ablate run STUDY` trains the missing runs"
                " again."
            )
        )
    )


def _references(connection: Connection, repair: bool) -> Iterator[Finding]:
    rows = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    for table, parent in sorted({(row[0], row[2]) for row in rows}):
        number = sum((row[0], row[2]) == (table, parent) for row in rows)
        done = ""
        if repair:
            keys = connection.exec_driver_sql(f"PRAGMA foreign_key_list({table})").all()
            column = {key[2]: (key[3], key[4] or "id") for key in keys}[parent]
            connection.exec_driver_sql(
                f"DELETE FROM {table} WHERE {column[0]} IS NOT NULL AND {column[0]} NOT IN (SELECT"
                f" {column[1]} FROM {parent})"
            )
            done = "deleted"
        yield Finding(f"{number} rows of {table} refer to a {parent} that does not exist", done)


def _points(connection: Connection, repair: bool) -> Iterator[Finding]:
    for column, parent in (("run_id", "run"), ("series_id", "series")):
        stray = f"FROM metric WHERE {column} NOT IN (SELECT id FROM {parent})"
        if number := connection.exec_driver_sql(f"SELECT count(*) {stray}").scalar_one():
            if repair:
                connection.exec_driver_sql(f"DELETE {stray}")
            yield Finding(
                f"{number} points belong to a {parent} that does not exist",
                "deleted" if repair else "",
            )


def _doubled(connection: Connection, repair: bool) -> Iterator[Finding]:
    for kind, statuses, instead in (
        ("accepted", ACCEPTED, "superseded"),
        ("running", ("running",), "dead"),
    ):
        among = f"({', '.join(map(repr, statuses))})"
        doubled = connection.exec_driver_sql(
            f"SELECT run_id, count(*), max(n) FROM attempt WHERE status IN {among} GROUP BY"
            " run_id HAVING count(*) > 1"
        ).all()
        for run_id, number, last in doubled:
            if repair:
                connection.exec_driver_sql(
                    f"UPDATE attempt SET status = ? WHERE run_id = ? AND status IN {among} AND"
                    " n < ?",
                    (instead, run_id, last),
                )
            yield Finding(
                f"run {run_id} has {number} {kind} attempts",
                f"the last one is kept, the others become {instead}" if repair else "",
            )


def _states(connection: Connection, repair: bool) -> Iterator[Finding]:
    for status in ("running", *ACCEPTED):
        lost = connection.exec_driver_sql(
            "SELECT id FROM run WHERE status = ? "
            "AND NOT EXISTS (SELECT 1 FROM attempt WHERE run_id = run.id AND status = run.status)",
            (status,),
        ).all()
        for (run_id,) in lost:
            if repair:
                connection.exec_driver_sql(
                    "UPDATE run SET status = 'planned' WHERE id = ?", (run_id,)
                )
            yield Finding(
                f"run {run_id} is {status}, but none of its attempts is",
                "planned again" if repair else "",
            )


_PARTS = (_references, _points, _doubled, _states)


def _dead(db: Database, repair: bool) -> Iterator[Finding]:
    for run_id in sorted(owners.mark_all_dead(db) if repair else owners.dead(db)):
        yield Finding(
            f"run {run_id} is marked running, but its launcher and worker no longer run",
            "planned again" if repair else "",
        )


def _journals(db: Database, repair: bool) -> Iterator[Finding]:
    with db.read() as connection:
        attempts = connection.exec_driver_sql("SELECT journal, journal_offset FROM attempt")
        offsets = {row.journal: row.journal_offset for row in attempts}
        keys = {
            key[:12]: run_id
            for run_id, key in connection.exec_driver_sql("SELECT id, key FROM run")
        }
    if db.journals.exists() and not os.access(db.journals, os.R_OK | os.X_OK):
        yield Finding(f"no permission to read folder {db.journals}: its journals were not checked")
        return
    for path in sorted(db.journals.glob("*.jsonl")):
        if path.name in offsets:
            if path.stat().st_size < offsets[path.name]:
                yield Finding(f"journal {path.name} is shorter than what was read from it")
            continue
        if not os.access(path, os.R_OK):
            yield Finding(f"journal {path.name} cannot be read by this user")
            continue
        named = JOURNAL.fullmatch(path.name)
        run_id = keys.get(named[1]) if named else None
        if run_id is None:
            yield Finding(f"journal {path.name} belongs to no run of this database")
        elif not journal.alive(path):
            yield Finding(
                f"journal {path.name} of run {run_id} belongs to no attempt",
                _adopt(db, path.name, run_id) if repair else "",
            )


def _adopt(db: Database, name: str, run_id: int) -> str:
    """Make an attempt for a journal without one; superseded if its run has a result."""
    with db.begin() as connection:
        needed = connection.exec_driver_sql(
            f"SELECT status NOT IN {(*ACCEPTED, 'running')} FROM run WHERE id = ?", (run_id,)
        ).scalar_one()
        attempt_id = connection.exec_driver_sql(
            "INSERT INTO attempt (run_id, n, status, owner, heartbeat, journal, journal_offset,"
            " evaluation) SELECT ?, (SELECT coalesce(max(n), 0) + 1 FROM attempt WHERE run_id = ?),"
            " ?, '', 0, ?, 0, coalesce((SELECT evaluation FROM study JOIN cell ON cell.study_id ="
            " study.id JOIN member ON member.cell_id = cell.id WHERE member.run_id = ? LIMIT 1),"
            " '{}') RETURNING id",
            (run_id, run_id, "running" if needed else "superseded", name, run_id),
        ).scalar_one()
    if not needed:
        return "kept as a superseded attempt"
    problem = ""
    try:
        ingest(db, attempt_id)
    except AblateError as error:
        problem = f": {error}"
    with db.begin() as connection:
        owners.mark_dead(
            connection, attempt_id, f"its journal was found without an attempt{problem}"
        )
    return f"ingested{problem}"


def _weights(db: Database, repair: bool) -> Iterator[Finding]:
    """Files of weights that are missing or cut short, and those that no run has."""
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT run_id, artifact.kind, path, key FROM artifact JOIN run ON run.id = run_id"
            " WHERE artifact.kind <> 'checkpoint' ORDER BY run_id"
        ).all()
        running = {
            key[:12]
            for (key,) in connection.exec_driver_sql("SELECT key FROM run WHERE status = 'running'")
        }
    if db.weights.exists() and not os.access(db.weights, os.R_OK | os.X_OK):
        yield Finding(f"no permission to read folder {db.weights}: weights were not checked")
        return
    known = set()
    for row in rows:
        file = db.kept(row.key, row.kind, row.path)
        known.add(file)
        if whole(file):
            continue
        if repair:
            with db.begin() as connection:
                connection.exec_driver_sql(
                    "DELETE FROM artifact WHERE run_id = ? AND kind = ? AND path = ?",
                    tuple(row[:3]),
                )
        name = "a file that ablate does not name" if file is None else file.name
        yield Finding(
            f"weights of run {row.run_id} are missing or cut short: {name}",
            "forgotten; `ablate run` trains it again if its study needs them" if repair else "",
        )
    for path in sorted(db.weights.glob("*")):
        if path not in known and path.name[:12] not in running:
            yield Finding(f"file {path} holds weights of no run; delete it if you do not need it")


def _locks(db: Database, repair: bool) -> Iterator[Finding]:
    for path in sorted(db.journals.glob("*.owner")):
        if os.access(path, os.R_OK) and not journal.alive(path):
            yield Finding(
                f"lock file {path.name} of a launcher that no longer runs",
                "deleted" if repair and owners.remove(path) else "",
            )
