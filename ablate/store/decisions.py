"""The decisions that a study made while running, and the results that they rest on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

from ablate import metrics
from ablate.plan import Decision
from ablate.store.database import Database
from ablate.store.records import ACCEPTED, FAILED
from ablate.store.schema import from_db

# key in the evidence of a hash of what the decision depends on; if that changes, it is void
BASIS = "basis"


def read(db: Database, study: str) -> list[Decision]:
    """Return the decisions for a study's active cells; none for an unknown study."""
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT cell.label, decision.name, decision.value, decision.evidence FROM decision "
            "JOIN cell ON cell.id = decision.cell_id JOIN study ON study.id = decision.study_id "
            "WHERE study.name = ? AND cell.active ORDER BY decision.name, cell.id",
            (study,),
        )
        return [
            Decision(cell, name, float(json.loads(value)), json.loads(evidence))
            for cell, name, value, evidence in rows
        ]


def write(
    db: Database, study_id: int, new: Iterable[Decision], void: Iterable[Decision] = ()
) -> None:
    """Store decisions and remove void ones.

    A decision that another process has stored in the meantime stays.
    """
    with db.begin() as connection:
        for decision in void:
            connection.exec_driver_sql(
                "DELETE FROM decision WHERE study_id = ? AND name = ? AND json_extract(evidence,"
                f" '$.{BASIS}') IS ? AND cell_id IN (SELECT id FROM cell WHERE study_id = ? AND"
                " label = ?)",
                (study_id, decision.name, decision.evidence.get(BASIS), study_id, decision.cell),
            )
        for decision in new:
            connection.exec_driver_sql(
                "INSERT INTO decision (study_id, cell_id, name, value, evidence) "
                "SELECT study_id, id, ?, ?, ? FROM cell WHERE study_id = ? AND label = ? "
                "ON CONFLICT (study_id, cell_id, name) DO NOTHING",
                (
                    decision.name,
                    json.dumps(decision.value),
                    json.dumps(decision.evidence),
                    study_id,
                    decision.cell,
                ),
            )


def values(db: Database, keys: Sequence[str], metric: str) -> dict[str, float]:
    """Return key → metric of the runs that have a result.

    NaN for a run that diverged or ended without a number.
    """
    return finals(db, keys, *metrics.final(metric))


def failed_twice(db: Database, keys: Sequence[str]) -> set[str]:
    """Return the keys of the runs without a result that failed in two attempts or more."""
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT run.key FROM json_each(?) AS wanted JOIN run ON run.key = wanted.value AND"
            f" run.status NOT IN {ACCEPTED} JOIN attempt ON attempt.run_id = run.id AND"
            f" attempt.status IN {FAILED} GROUP BY run.id HAVING count(*) > 1",
            (json.dumps(list(keys)),),
        )
        return {key for (key,) in rows}


def finals(db: Database, keys: Sequence[str], name: str, at: float = 0.0) -> dict[str, float]:
    """Return key → final value of that name, as `values` does."""
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT run.key, run.status, final.run_id IS NOT NULL, final.value FROM json_each(?) AS"
            f" wanted JOIN run ON run.key = wanted.value AND run.status IN {ACCEPTED}"
            " LEFT JOIN final ON final.run_id = run.id AND final.name = ? AND final.at = ?",
            (json.dumps(list(keys)), name, at),
        )
        return {
            key: math.nan if status == "diverged" else from_db(value)
            for key, status, measured, value in rows
            if measured or status == "diverged"
        }
