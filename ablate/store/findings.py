"""Store what was found in a study, and read it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ablate.formats import json_values
from ablate.store import schema
from ablate.store.database import Database
from ablate.store.names import require_study

COLUMNS = ("kind", "stratum", "factor", "level", "cell", "data")


@dataclass(frozen=True)
class FindingRow:
    """A row of the table `finding`.

    Attributes:
        kind: What was found, such as "effect".
        stratum: The stratum that it is about; None for the whole study.
        factor: The factor, or factors joined by " × "; None where it is about none.
        level: The level; None likewise.
        cell: Label of the cell; None likewise.
        data: The finding as JSON values; a number that is not finite is stored as null.
    """

    kind: str
    stratum: str | None = None
    factor: str | None = None
    level: str | None = None
    cell: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)


def write(db: Database, study_id: int, rows: Iterable[FindingRow]) -> None:
    """Replace all findings of a study by `rows`, in their order.

    Args:
        db: The database.
        study_id: Row of the table `study`.
        rows: The findings.
    """
    values = [
        {
            "study_id": study_id,
            "ordinal": ordinal,
            **{name: getattr(row, name) for name in COLUMNS},
            "data": json.dumps(json_values(row.data), allow_nan=False),
        }
        for ordinal, row in enumerate(rows)
    ]
    with db.begin() as connection:
        connection.exec_driver_sql("DELETE FROM finding WHERE study_id = ?", (study_id,))
        if values:
            connection.execute(schema.finding.insert(), values)


def read(db: Database, study: str) -> list[FindingRow]:
    """Return the findings of a study, in the order in which they were written.

    Raises:
        AblateError: There is no such study.
    """
    require_study(db, study)
    with db.read() as connection:
        found = connection.exec_driver_sql(
            f"SELECT {', '.join(COLUMNS)} FROM findings WHERE study = ? ORDER BY ordinal", (study,)
        )
        return [
            FindingRow(kind, stratum, factor, level, cell, json.loads(data))
            for kind, stratum, factor, level, cell, data in found
        ]
