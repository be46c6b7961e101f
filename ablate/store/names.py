"""Names of series and finals: one that neither the database nor the package knows is refused, with
the nearest that is there.
"""

from __future__ import annotations

from collections.abc import Iterable

from ablate.errors import unknown
from ablate.metrics import METRICS
from ablate.store.database import Database
from ablate.store.thin import THINNED

_SERIES = (
    "loss",
    *THINNED,
)  # what a run may record; a study whose runs did not has none of it, which is no mistake
_FINALS = (*METRICS, "train_seconds", "epochs")


def require_series(db: Database, names: Iterable[str]) -> None:
    """`AblateError` for the first of `names` that no run can have as a series of points."""
    _require(db, "series", names, _SERIES, "SELECT name FROM series")


def require_final(db: Database, name: str) -> None:
    """`AblateError` for a name that no run can have as a final."""
    _require(db, "final", [name], _FINALS, "SELECT DISTINCT name FROM final")


def _require(
    db: Database, kind: str, names: Iterable[str], usual: tuple[str, ...], sql: str
) -> None:
    if strange := [name for name in names if name not in usual]:
        with db.read() as connection:
            stored = sorted(connection.exec_driver_sql(sql).scalars())
        for name in strange:
            if name not in stored:
                raise unknown(kind, name, stored or usual)
