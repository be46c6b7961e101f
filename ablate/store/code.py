"""The code from outside of ablate that runs of a study depend on, in every version."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text
from sqlalchemy.dialects.sqlite import insert

from ablate.code import Code, identity, short
from ablate.plan import Plan
from ablate.store import schema
from ablate.store.database import Database
from ablate.store.records import ACCEPTED

# runs with a result that a version of the code made: their field `code` names it; or measured: so
# does the evaluation of the attempt that is accepted
_MADE = f"""
FROM code JOIN run ON run.status IN {ACCEPTED} AND (
     instr(coalesce(json_extract(run.fields, '$.code'), ''), code.version)
     OR EXISTS (SELECT 1 FROM attempt WHERE run_id = run.id AND status IN {ACCEPTED}
                AND instr(coalesce(json_extract(evaluation, '$.own'), ''), code.version)))
"""
_BY_CELL = f"""
SELECT cell.label, count(DISTINCT run.id) {_MADE}
     JOIN member ON member.run_id = run.id
     JOIN cell ON cell.id = member.cell_id AND cell.study_id = code.study_id AND cell.active
WHERE code.rowid = :code GROUP BY cell.id ORDER BY cell.id
"""
# whose the runs were is known only of a version that one study has; runs that older code made too
# are counted as runs by that
_LEFT = f"""
SELECT count(*) {_MADE}
WHERE code.rowid = :code AND run.id NOT IN (SELECT run_id FROM member)
      AND NOT EXISTS (SELECT 1 FROM code AS same
                      WHERE same.version = code.version AND same.study_id <> code.study_id)
      AND NOT (code.active AND EXISTS (
          SELECT 1 FROM code AS older WHERE older.study_id = code.study_id AND NOT older.active
          AND instr(coalesce(json_extract(run.fields, '$.code'), ''), older.version)))
"""
_RESULTS = f"""
SELECT json_extract(run.fields, '$.code') AS code, count(DISTINCT run.id) AS number
{schema.RUNS}
WHERE study.name = :study AND cell.active AND run.status IN {ACCEPTED}
      AND cell.label IN (SELECT value FROM json_each(:cells)) GROUP BY code ORDER BY min(run.id)
"""
_OF_STUDY = """
SELECT code.rowid AS number, code.* FROM code JOIN study ON study.id = code.study_id
WHERE study.name = :study ORDER BY code.rowid
"""


@dataclass(frozen=True)
class Made:
    """Runs of one version of a study's code.

    Attributes:
        code: The code.
        active: Whether the study's plan has this version.
        cells: Cell → number of its runs, which count.
        left: Runs of the study that no cell of any study has any more; 0 where other studies have
            this version too, since no table says whose such runs were.
    """

    code: Code
    active: bool
    cells: dict[str, int]
    left: int


def write(connection: Connection, study_id: int, sources: Sequence[Code]) -> None:
    """Add the code of a study's plan; versions that the plan no longer has stay, inactive."""
    connection.execute(
        schema.code.update().where(schema.code.c.study_id == study_id).values(active=False)
    )
    rows = [
        {
            "study_id": study_id,
            "name": one.name,
            "version": one.version,
            "active": True,
            "text": one.text,
            "about": json.dumps(one.about),
        }
        for one in sources
    ]
    if rows:
        statement = insert(schema.code)
        statement = statement.on_conflict_do_update(
            index_elements=["study_id", "name", "version"],
            set_={"active": True, "about": statement.excluded.about},
        )
        connection.execute(statement, rows)


def made(db: Database, study: str) -> list[Made]:
    """Return the versions of a study's code and their runs with a result, the oldest first."""
    found = []
    with db.read() as connection:
        for row in connection.execute(text(_OF_STUDY), {"study": study}).all():
            cells = connection.execute(text(_BY_CELL), {"code": row.number}).all()
            left = connection.execute(text(_LEFT), {"code": row.number}).scalar_one()
            code = Code(row.name, row.version, row.text, json.loads(row.about))
            counts = {label: number for label, number in cells}  # noqa: C416 (rows, for mypy)
            found.append(Made(code, bool(row.active), counts, left))
    return found


def leaving(db: Database, plan: Plan) -> dict[str, int]:
    """Return the code, in short, of which the plan has no run → the number of runs with a result
    that it made in cells of the plan: they leave the study when the plan is registered.
    """
    planned = [*(cell.run for cell in plan.cells), *(one.run for one in plan.runs)]
    kept = {_versions(run.fields.get("code")) for run in planned}
    values = {"study": plan.study.name, "cells": json.dumps([cell.label for cell in plan.cells])}
    found: dict[str, int] = {}
    with db.read() as connection:
        for row in connection.execute(text(_RESULTS), values):
            code = row.code if plan.study.command else json.loads(row.code or "[]")
            if (versions := _versions(code)) not in kept:
                name = ", ".join(short(one.rpartition("@")[2]) for one in versions) or "no code"
                found[name] = found.get(name, 0) + row.number
    return found


def _versions(code: object) -> tuple[str, ...]:
    """Return what of the field `code` of a run enters its key."""
    labels = code if isinstance(code, list | tuple) else [code]
    return tuple(identity(str(one) for one in labels if one))
