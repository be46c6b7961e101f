"""Make a database fit to be published: drop points of training curves and losses of windows of
tuning runs, names of hosts and folders; keep evaluations.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from ablate.formats import each_text, without_absolute, without_folders, without_home
from ablate.store.database import Database
from ablate.store.records import ACCEPTED

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
        private: Texts that named a host or a folder.
        named: Names of levels that name folders, and of studies in whose files folders stay.
        waiting: Runs without a result, whose points were not touched.
    """

    runs: int
    deleted: int
    kept: int
    tuned: int
    private: int
    named: tuple[str, ...]
    waiting: int


def thin(db: Database, keep: int) -> Thinned:
    """Thin the training series of every run that has a result, and drop the losses of single
    windows of runs that serve for tuning alone, which no analysis reads. Take names of hosts and
    folders out of what is not running. Names of levels stay, and so do the texts of code, but for
    the home folders in them.

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
            connection.exec_driver_sql(f"SELECT id FROM run WHERE status IN {ACCEPTED}").scalars()
        )
        waiting = connection.exec_driver_sql(
            "SELECT count(DISTINCT run_id) FROM metric JOIN run ON run.id = run_id WHERE status NOT"
            f" IN {ACCEPTED} OR EXISTS (SELECT 1 FROM attempt WHERE attempt.run_id ="
            " run.id AND attempt.status = 'running')"
        ).scalar_one()
    lost = [_thin_run(db, run_id, series, keep) for run_id in ids]
    tuned, private = _drop_windows(db), _take_out_names(db)
    db.vacuum()
    points = _points(db, series)
    named = _named_by_folders(db)
    return Thinned(sum(map(bool, lost)), sum(lost), points, tuned, private, named, waiting)


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
                    f" member.run_id = run.id WHERE run.status IN {ACCEPTED} GROUP BY"
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
    parts = (_of_attempts, _of_texts, _of_inactive_cells, _of_code, _of_files)
    with db.begin() as connection:
        return sum(part(connection) for part in parts)


def _of_attempts(connection: Connection) -> int:
    attempts = connection.exec_driver_sql(
        "SELECT id, host, owner, error, note FROM attempt WHERE status <> 'running'"
    ).all()
    hosts = {row.host for row in attempts} | {row.owner.rsplit(":", 2)[0] for row in attempts}
    names = "|".join(re.escape(host) for host in hosts if host)
    of_host = (
        re.compile(rf"(?<![\w.-])(?:{names})(?:\.[\w-]+)*(?![\w-])", re.IGNORECASE)
        if names
        else None
    )
    changed = [
        (*texts, row.id)
        for row in attempts
        for texts in [(_anonymous(row.error, of_host), _anonymous(row.note, of_host))]
        if texts != (row.error, row.note) or row.host or row.owner
    ]
    if changed:
        connection.exec_driver_sql(
            "UPDATE attempt SET host = NULL, owner = '', error = ?, note = ? WHERE id = ?", changed
        )
    return len(changed)


def _of_texts(connection: Connection) -> int:
    fields = connection.exec_driver_sql("SELECT name FROM pragma_table_info('run_field')")
    of_field = [("run_field", f'"{name}"', _in_field) for name in fields.scalars()]
    number = 0
    for table, column, of_text in (*_NAMING, *of_field):
        rows = connection.exec_driver_sql(
            f"SELECT rowid, {column} FROM {table} WHERE {column} LIKE '%/%'"
        ).all()
        changed = [(new, row[0]) for row in rows if (new := of_text(row[1])) != row[1]]
        if changed:
            connection.exec_driver_sql(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", changed)
        number += len(changed)
    return number


def _of_inactive_cells(connection: Connection) -> int:
    """Delete cells named by folders that their study has under other names now."""
    inactive = connection.exec_driver_sql(
        "SELECT DISTINCT cell.id, level FROM cell JOIN cell_level ON cell_level.cell_id = cell.id"
        " WHERE NOT active AND level LIKE '%/%' AND NOT EXISTS (SELECT 1 FROM member WHERE cell_id"
        " = cell.id AND run_id NOT IN (SELECT run_id FROM member JOIN cell AS kept ON kept.id ="
        " cell_id WHERE kept.active AND kept.study_id = cell.study_id))"
    ).all()
    named = {(row.id,) for row in inactive if without_folders(row.level) != row.level}
    if named:
        connection.exec_driver_sql("DELETE FROM cell WHERE id = ?", list(named))
    return len(named)


def _of_code(connection: Connection) -> int:
    sources = connection.exec_driver_sql("SELECT study_id, name, version, text FROM code").all()
    changed = [
        (name, text, row.study_id, row.name, row.version)
        for row in sources
        for name, text in [(without_folders(row.name), row.text and without_home(row.text))]
        if (name, text) != (row.name, row.text)
    ]
    if changed:
        connection.exec_driver_sql(
            "UPDATE OR REPLACE code SET name = ?, text = ? WHERE study_id = ? AND name = ? AND"
            " version = ?",
            changed,
        )
    return len(changed)


def _of_files(connection: Connection) -> int:
    rows = connection.exec_driver_sql("SELECT run_id, kind, path FROM artifact").all()
    changed = [(Path(row.path).name, *row) for row in rows if "/" in row.path]
    if changed:
        connection.exec_driver_sql(
            "UPDATE OR REPLACE artifact SET path = ? WHERE run_id = ? AND kind = ? AND path = ?",
            changed,
        )
    return len(changed)


def _anonymous(error: str | None, host: re.Pattern[str] | None) -> str | None:
    if error is None:
        return None
    return without_folders(host.sub("a host", error) if host else error)


def _named_by_folders(db: Database) -> tuple[str, ...]:
    with db.read() as connection:
        levels = connection.exec_driver_sql("SELECT DISTINCT level FROM cell_level ORDER BY level")
        found = [level for level in levels.scalars() if without_folders(level) != level]
        files = connection.exec_driver_sql("SELECT name, toml FROM study ORDER BY name").all()
    return (*found, *(name for name, toml in files if without_absolute(toml) != toml))


def _in_field(text: str) -> str:
    return str(each_text(text, without_folders))


def _in_file(toml: str) -> str:
    """The text of a study file without folders; as it is if that renames keys, which are levels."""
    try:
        parsed = tomllib.loads(toml)
        new = toml
        for text in sorted(_texts(parsed), key=len, reverse=True):
            short = without_absolute(text)
            # as a literal string has it, and as a basic one, whose escapes are those of JSON
            new = new.replace(text, short).replace(_escaped(text), _escaped(short))
        new = without_absolute(new)
        same = tomllib.loads(new) == each_text(parsed, without_absolute)
    except tomllib.TOMLDecodeError:
        return toml
    return new if same else toml


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _texts(value: object) -> set[str]:
    found: set[str] = set()
    each_text(value, lambda text: found.add(text) or text)  # type: ignore[func-returns-value]
    return {text for text in found if "/" in text}


# table with a rowid, column, and what takes folders out of it
_NAMING: tuple[tuple[str, str, Callable[[str], str]], ...] = (
    ("study", "question", without_absolute),
    ("study", "toml", _in_file),
    ("study", "evaluation", _in_field),
    ("attempt", "evaluation", _in_field),
    ("run", "fields", _in_field),
    ("code", "about", _in_field),
)
