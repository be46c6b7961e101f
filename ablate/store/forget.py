"""Delete a study from a database, except for what other studies share."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

from sqlalchemy import Connection

from ablate.errors import AblateError, unknown
from ablate.store import owners
from ablate.store.database import KEY, Database

_ITS_RUNS = "SELECT run_id FROM member JOIN cell ON cell.id = cell_id WHERE study_id = :study"
# runs by an earlier version of its code have left their cell
_FORMER = (
    "SELECT run.id FROM code JOIN run ON instr(coalesce(json_extract(run.fields, '$.code'), ''),"
    " code.version) WHERE code.study_id = :study AND run.id NOT IN (SELECT run_id FROM member)"
)
_OTHERS = "SELECT run_id FROM member JOIN cell ON cell.id = cell_id WHERE study_id <> :study"
_OWN = f"{_ITS_RUNS} UNION {_FORMER} EXCEPT {_OTHERS}"
_COUNTED = {
    "cells": "SELECT count(*) FROM cell WHERE study_id = :study",
    "decisions": "SELECT count(*) FROM decision WHERE study_id = :study",
    "effects": (
        "SELECT count(*) FROM effect JOIN contrast ON contrast.id = contrast_id WHERE study_id ="
        " :study"
    ),
    "runs": f"SELECT count(*) FROM ({_OWN})",
    "points": f"SELECT count(*) FROM metric WHERE run_id IN ({_OWN})",
    "finals": f"SELECT count(*) FROM final WHERE run_id IN ({_OWN})",
    "attempts": f"SELECT count(*) FROM attempt WHERE run_id IN ({_OWN})",
}


@dataclass(frozen=True)
class Part:
    """A study's own part of a database.

    Attributes:
        rows: What → how many rows.
        files: Journals, checkpoints, weights, and what scripts printed and wrote.
        shared: Number of its runs that other studies have too, and that stay.
    """

    rows: dict[str, int]
    files: tuple[Path, ...]
    shared: int


def part(db: Database, name: str) -> Part:
    """Return what `forget` would delete. Changes nothing."""
    with db.read() as connection:
        return _part(db, connection, _study(connection, name))


def forget(db: Database, name: str) -> Part:
    """Delete a study, its runs that no other study has, and everything that belongs to them.

    One transaction, then the files.

    Raises:
        AblateError: There is no such study, or one of its runs is running.
    """
    owners.mark_all_dead(db)
    with db.begin() as connection:
        study = {"study": _study(connection, name)}
        if running := connection.exec_driver_sql(
            f"SELECT min(id) FROM run WHERE status = 'running' AND id IN ({_ITS_RUNS})", study
        ).scalar():
            raise AblateError(
                f"study {name!r} cannot be deleted while its run {running} is running; stop `ablate"
                " run` with Ctrl-C"
            )
        gone = _part(db, connection, study["study"])
        # metric has no foreign keys; what else belongs to a run is deleted by cascade
        connection.exec_driver_sql(f"DELETE FROM metric WHERE run_id IN ({_OWN})", study)
        connection.exec_driver_sql(f"DELETE FROM run WHERE id IN ({_OWN})", study)
        connection.exec_driver_sql("DELETE FROM study WHERE id = :study", study)
    for file in gone.files:
        file.unlink(missing_ok=True)
    return gone


def _study(connection: Connection, name: str) -> int:
    ids = {
        known: study_id
        for study_id, known in connection.exec_driver_sql("SELECT id, name FROM study ORDER BY id")
    }
    if name not in ids:
        raise unknown("study in the database", name, ids, every="ablate status")
    return ids[name]


def _part(db: Database, connection: Connection, study_id: int) -> Part:
    study = {"study": study_id}
    rows = {
        what: connection.exec_driver_sql(sql, study).scalar_one() for what, sql in _COUNTED.items()
    }
    shared = connection.exec_driver_sql(
        f"SELECT count(*) FROM ({_ITS_RUNS} INTERSECT {_OTHERS})", study
    ).scalar_one()
    journals = connection.exec_driver_sql(
        f"SELECT journal FROM attempt WHERE run_id IN ({_OWN})", study
    ).scalars()
    written = connection.exec_driver_sql(
        f"SELECT path, run_id IN ({_OWN}) FROM artifact WHERE kind = 'checkpoint'", study
    ).all()
    weights = connection.exec_driver_sql(
        "SELECT key, artifact.kind, path FROM artifact JOIN run ON run.id = run_id"
        f" WHERE artifact.kind <> 'checkpoint' AND run_id IN ({_OWN})",
        study,
    )
    checkpoints = {
        own: {file for path, its in written if its == own for file in db.checkpoint(path)[1]}
        for own in (0, 1)
    }
    # a checkpoint that a pack wrote together stays as long as one of its runs
    names = list(journals)
    keys = connection.exec_driver_sql(f"SELECT key FROM run WHERE id IN ({_OWN})", study).scalars()
    outputs = [db.outputs / key[:12] for key in keys if KEY.fullmatch(key)]
    files = sorted(
        file
        for file in {
            *map(db.journal, names),
            *map(db.log, names),
            *(checkpoints[1] - checkpoints[0]),
            *starmap(db.kept, weights),
            *(file for folder in outputs for file in folder.rglob("*")),
        }
        if file is not None and file.is_file()
    )
    return Part(rows, tuple(files), shared)
