"""MLflow's own SQLite store, read and never written; without MLflow, whatever its version."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate.errors import AblateError

_INFINITE = 1.79e308  # MLflow stores infinity as the largest number


def tables(path: Path) -> frozenset[str]:
    """Return the names of the tables of an SQLite file; none if it is no such file."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            return frozenset()
    with contextlib.suppress(sqlite3.Error), _opened(path) as connection:
        return frozenset(name for (name,) in connection.execute("SELECT name FROM sqlite_master"))
    return frozenset()


def runs(path: Path) -> list[dict[str, Any]]:
    """Return the runs that are not deleted, in the order of their start.

    Each has `id`, `name`, `status` (FINISHED, FAILED, …), `experiment`, `params`, `tags` and
    `metrics`: name → step → value.

    Raises:
        AblateError: The file is no such store.
    """
    try:
        with _opened(path) as connection:
            found = {
                row[0]: dict(
                    zip(("id", "name", "status", "experiment"), row, strict=True),
                    params={},
                    tags={},
                    metrics={},
                )
                for row in connection.execute(
                    "SELECT r.run_uuid, coalesce(r.name, ''), r.status, e.name FROM runs AS r LEFT"
                    " JOIN experiments AS e ON e.experiment_id = r.experiment_id WHERE"
                    " r.lifecycle_stage = 'active' ORDER BY r.start_time, r.run_uuid"
                )
            }
            for kind in ("params", "tags"):
                for run, key, value in connection.execute(
                    f"SELECT run_uuid, key, value FROM {kind}"
                ):
                    if run in found:
                        found[run][kind][key] = value
            for run, key, step, value in _points(connection):
                if run in found:
                    found[run]["metrics"].setdefault(key, {})[step] = value
    except sqlite3.Error as error:
        raise AblateError(f"{path}: cannot be read as a store of MLflow ({error})") from None
    return list(found.values())


def _points(connection: sqlite3.Connection) -> Iterator[tuple[str, str, int, float]]:
    """Yield run, metric, step and value; of one step the latest value comes last."""
    for run, key, step, value, nan in connection.execute(
        "SELECT run_uuid, key, step, value, is_nan FROM metrics ORDER BY run_uuid, key, step,"
        " timestamp"
    ):
        if nan:
            value = math.nan
        elif abs(value) >= _INFINITE:
            value = math.copysign(math.inf, value)
        yield run, key, int(step), float(value)


def _opened(path: Path) -> contextlib.closing[sqlite3.Connection]:
    return contextlib.closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True))
