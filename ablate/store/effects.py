"""Store the effects of a study's contrasts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ablate.store import schema
from ablate.store.database import Database
from ablate.store.schema import to_db

_NUMBERS = ("mean", "sd", "lo", "hi", "p", "p_holm")


def write(db: Database, study_id: int, rows: Iterable[Any]) -> None:
    """Replace all effects of a study. NaN is stored as NULL.

    Args:
        db: The database.
        study_id: The study.
        rows: Each with the names of its contrast, which is in the plan, and with the columns of the
            table `effect` as attributes.
    """
    with db.begin() as connection:
        ids = {
            tuple(row[1:]): row[0]
            for row in connection.exec_driver_sql(
                "SELECT x.id, x.family, x.stratum, x.factor, x.level, c.label, b.label FROM"
                " contrast AS x JOIN cell AS c ON c.id = x.cell_id JOIN cell AS b ON b.id ="
                " x.baseline_id WHERE x.study_id = ?",
                (study_id,),
            )
        }
        values = [
            {
                "contrast_id": ids[
                    row.family, row.stratum, row.factor, row.level, row.cell, row.baseline
                ],
                "metric": row.metric,
                "method": row.method,
                "n": int(row.n),
                "lost": int(row.lost),
                "input_hash": row.input_hash,
                **{name: to_db(float(getattr(row, name))) for name in _NUMBERS},
            }
            for row in rows
        ]
        connection.exec_driver_sql(
            "DELETE FROM effect WHERE contrast_id IN (SELECT id FROM contrast WHERE study_id = ?)",
            (study_id,),
        )
        if values:
            connection.execute(schema.effect.insert(), values)
