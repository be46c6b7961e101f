"""Make a database fit to be published: drop points of training curves and losses of windows of
tuning runs, names of hosts and folders of users; keep evaluations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.formats import without_folders, without_home
from ablate.store.database import Database

THINNED = (
    "train_loss",
    "lr",
    "grad_norm",
    "tokens_per_second",
)  # series of training itself; all others are evaluations


@dataclass(frozen=True)
class Thinned:
    """What `thin` did.

    Attributes:
        runs: Runs that lost points.
        deleted: Points deleted.
        kept: Points of the training series that are left.
        tuned: Tuning runs that lost their losses of single windows.
        private: Texts that named a host or a user's folder.
        waiting: Runs without a result, whose points were not touched.
    """

    runs: int
    deleted: int
    kept: int
    tuned: int
    private: int
    waiting: int


def thin(db: Database, keep: int) -> Thinned:
    """Thin the training series of every run that has a result, and drop the losses of single
    windows of runs that serve for tuning alone, which no analysis reads. Take names of hosts and
    folders of users out of what is not running.

    Each run is thinned in a separate transaction, so that a launcher can continue. A second call
    deletes nothing more.

    Args:
        db: The database.
        keep: Most points to keep of a series of a run, at least 2: evenly spaced, first and last
            among them.
    """
    assert keep >= 2
    with db.read() as connection:
        marks = ", ".join("?" * len(THINNED))
        series = list(
            connection.exec_driver_sql(
                f"SELECT id FROM series WHERE name IN ({marks})", THINNED
            ).scalars()
        )
        ids = list(
            connection.exec_driver_sql(
                "SELECT id FROM run WHERE status IN ('complete', 'diverged')"
            ).scalars()
        )
        waiting = connection.exec_driver_sql(
            "SELECT count(DISTINCT run_id) FROM metric JOIN run ON run.id = run_id WHERE status NOT"
            " IN ('complete', 'diverged') OR EXISTS (SELECT 1 FROM attempt WHERE attempt.run_id ="
            " run.id AND attempt.status = 'running')"
        ).scalar_one()
    lost = [_thin_run(db, run_id, series, keep) for run_id in ids]
    tuned, private = _drop_windows(db), _take_out_names(db)
    db.vacuum()
    points = _points(db, series)
    return Thinned(sum(map(bool, lost)), sum(lost), points, tuned, private, waiting)


def _thin_run(db: Database, run_id: int, series: list[int], keep: int) -> int:
    """Thin a run; return how many points were deleted.

    Of n points one is kept each time that index · (keep − 1) / (n − 1) passes a whole number.
    """
    with db.begin() as connection:
        marks = ", ".join("?" * len(series))
        return connection.exec_driver_sql(
            "DELETE FROM metric WHERE run_id = ? AND (series_id, step) IN (SELECT series_id, step"
            " FROM (SELECT series_id, step, count(*) OVER (PARTITION BY series_id) AS n,"
            " row_number() OVER (PARTITION BY series_id ORDER BY step) - 1 AS i FROM metric"
            f" WHERE run_id = ? AND series_id IN ({marks})) WHERE n > ? AND i > 0 AND i *"
            " (? - 1) / (n - 1) = (i - 1) * (? - 1) / (n - 1)) AND NOT EXISTS (SELECT 1 FROM"
            " attempt WHERE run_id = ? AND status = 'running')",
            (run_id, run_id, *series, keep, keep, keep, run_id),
        ).rowcount


def _drop_windows(db: Database) -> int:
    """Delete the losses of windows of finished tuning runs; return how many runs lost them."""
    with db.begin() as connection:
        return len(
            set(
                connection.exec_driver_sql(
                    "DELETE FROM window_loss WHERE run_id IN (SELECT id FROM run JOIN member ON"
                    " member.run_id = run.id WHERE run.status IN ('complete', 'diverged') GROUP BY"
                    " run.id HAVING max(role) = 'tune' AND min(role) = 'tune') AND NOT EXISTS"
                    " (SELECT 1 FROM attempt WHERE attempt.run_id = window_loss.run_id AND"
                    " attempt.status = 'running') RETURNING run_id"
                ).scalars()
            )
        )


def _points(db: Database, series: list[int]) -> int:
    with db.read() as connection:
        marks = ", ".join("?" * len(series))
        return connection.exec_driver_sql(
            f"SELECT count(*) FROM metric WHERE series_id IN ({marks})", tuple(series)
        ).scalar_one()


def _take_out_names(db: Database) -> int:
    """Take names of hosts and folders out; return how many texts had one."""
    with db.begin() as connection:
        attempts = connection.exec_driver_sql(
            "SELECT id, host, owner, error FROM attempt WHERE status <> 'running'"
        ).all()
        hosts = {row.host for row in attempts} | {row.owner.rsplit(":", 2)[0] for row in attempts}
        names = "|".join(re.escape(host) for host in hosts if host)
        of_host = re.compile(rf"(?<![\w.-])(?:{names})(?![\w-])") if names else None
        changed = [
            (error, row.id)
            for row in attempts
            if (error := _anonymous(row.error, of_host)) != row.error or row.host or row.owner
        ]
        if changed:
            connection.exec_driver_sql(
                "UPDATE attempt SET host = NULL, owner = '', error = ? WHERE id = ?", changed
            )
        number = len(changed)
        for table, key, column, of_text in _NAMING:
            rows = connection.exec_driver_sql(f"SELECT {key}, {column} FROM {table}").all()
            changed = [(new, row[0]) for row in rows if (new := of_text(row[1])) != row[1]]
            if changed:
                connection.exec_driver_sql(
                    f"UPDATE {table} SET {column} = ? WHERE {key} = ?", changed
                )
            number += len(changed)
        sources = connection.exec_driver_sql("SELECT study_id, name, version, text FROM code").all()
        named = [
            (name, text, row.study_id, row.name, row.version)
            for row in sources
            for name, text in [(without_folders(row.name), row.text and without_home(row.text))]
            if (name, text) != (row.name, row.text)
        ]
        if named:
            connection.exec_driver_sql(
                "UPDATE OR REPLACE code SET name = ?, text = ? WHERE study_id = ? AND name = ? AND"
                " version = ?",
                named,
            )
        rows = connection.exec_driver_sql("SELECT run_id, kind, path FROM artifact").all()
        paths = [(Path(row.path).name, *row) for row in rows if "/" in row.path]
        if paths:
            connection.exec_driver_sql(
                "UPDATE OR REPLACE artifact SET path = ? WHERE run_id = ? AND kind = ? AND path ="
                " ?",
                paths,
            )
        return number + len(named) + len(paths)


def _anonymous(error: str | None, host: re.Pattern[str] | None) -> str | None:
    if error is None:
        return None
    return without_folders(host.sub("a host", error) if host else error)


def _without_folders(fields: str) -> str:
    """The fields of a run, whose texts are named without folders."""
    read = json.loads(fields)
    named: dict[str, Any] = {
        name: without_folders(read[name]) for name in _TEXTS if isinstance(read.get(name), str)
    }
    if isinstance(labels := read.get("code"), list):
        named["code"] = [without_folders(str(label)) for label in labels]
    return fields if named.items() <= read.items() else json.dumps(read | named)


_TEXTS = ("corpus", "tokenizer")  # fields that may name files
# table, key, column, and what takes its folders out
_NAMING: tuple[tuple[str, str, str, Callable[[Any], Any]], ...] = (
    ("study", "id", "toml", without_home),  # in which ~ means what it meant
    ("run", "id", "fields", _without_folders),
    *(
        ("run_field", "run_id", f'"{name}"', lambda text: text and without_folders(text))
        for name in (*_TEXTS, "code")
    ),
)
