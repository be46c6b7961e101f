"""Names of studies, series and finals in a database. An unknown name is refused with the nearest
existing one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from ablate import metrics, study
from ablate.errors import AblateError, unknown
from ablate.metrics import METRICS
from ablate.store.database import Database
from ablate.store.thin import THINNED

# what a run may record; asking for it is not an error, even if no run of the study recorded it
_SERIES = ("loss", "copy_loss", "copy_loss_first", *THINNED)
_FINALS = (*METRICS, "train_seconds", "epochs")


def studies(db: Database) -> dict[str, str]:
    """Return study name → its metric, in the order in which the studies were registered."""
    with db.read() as connection:
        rows = connection.exec_driver_sql("SELECT name, metric FROM study ORDER BY id")
        return {row.name: row.metric for row in rows}


def require_study(db: Database, name: str) -> None:
    """Raise `AblateError` for a study that the database does not hold."""
    if name not in studies(db):
        raise unknown_study(db, name)


def unknown_study(db: Database, name: str) -> AblateError:
    """Return the error for a study that the database does not hold, but perhaps another one."""
    with contextlib.suppress(AblateError):
        if study.find(name).suffix == ".toml":
            return AblateError(
                f"study {name!r} is not in the database {db.path}: `ablate run {name}` trains it"
                " there; --db or ABLATE_DB selects another database"
            )
    return unknown(f"study in {db.path}", name, studies(db), every="ablate status")


def require_series(db: Database, names: Iterable[str]) -> None:
    """Raise `AblateError` for the first of `names` that no run can have as a series."""
    own = map(metrics.series, studies(db).values())
    _require(db, "series", names, (*_SERIES, *own), "SELECT name FROM series")


def require_final(db: Database, name: str) -> None:
    """Raise `AblateError` for a name that no run can have as a final."""
    _require(db, "final", [name], _FINALS, "SELECT DISTINCT name FROM final")


def _require(
    db: Database, kind: str, names: Iterable[str], usual: tuple[str, ...], sql: str
) -> None:
    if unknown_names := [name for name in names if name not in usual]:
        with db.read() as connection:
            stored = sorted(connection.exec_driver_sql(sql).scalars())
        for name in unknown_names:
            if name not in stored:
                raise unknown(kind, name, stored or usual)
