"""Run one SELECT of the user's, which can only read, for a limited time; explain its errors."""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import select
import signal
import sqlite3
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate.errors import AblateError, nearest, unknown
from ablate.store import sqlite
from ablate.store.database import Database
from ablate.store.schema import VERSION_TABLE
from ablate.units import memory

_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_STEPS = 1000  # of SQLite's virtual machine between looks at the clock
_PATIENCE = 1.0  # seconds in which a statement that was stopped must end
LONGEST = 1 << 26  # bytes of one text or blob
LARGEST = 1 << 28  # bytes of an answer


def run(
    db: Database, sql: str, values: Mapping[str, Any] = {}, *, limit_seconds: float = 10
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and rows of one SELECT.

    On Linux it runs in a process of its own: SQLite looks at the clock between the steps of a
    statement, but not within a function such as `instr` of two long texts.

    Args:
        db: The database.
        sql: One statement that reads.
        values: Name → value of the parameters, which the statement writes as `:name`.
        limit_seconds: The statement is stopped after this time.

    Raises:
        AblateError: The statement is wrong, takes too long, gives more than `LARGEST` bytes, or
            does anything but read.
    """
    with sqlite.consistent_read(db.path), sqlite.translate_errors(db.path, limit_seconds):
        asked = db.path, sql, values, limit_seconds
        answer = _elsewhere(*asked) if sys.platform == "linux" else _select(*asked)
    if (error := answer.error) is not None:
        code = getattr(error, "sqlite_errorcode", 0)
        if code == sqlite3.SQLITE_INTERRUPT:
            raise AblateError(
                f"the query was stopped after {limit_seconds:g} s; narrow it with WHERE or LIMIT"
            )
        if answer.refused or code == sqlite3.SQLITE_AUTH:
            raise AblateError(
                "a query must be one SELECT on tables and views, which only reads"
                f" ({answer.refused or error})"
            )
        raise sqlite.explain(error, db.path, limit_seconds) or _explained(db, sql, error)
    if answer.columns is None:
        raise AblateError(
            "a query is one SELECT, such as: SELECT cell, avg(loss) FROM runs GROUP BY cell"
        )
    if answer.too_large:
        raise AblateError(
            f"the answer is larger than {memory(LARGEST)}; narrow it with WHERE or LIMIT, or select"
            " fewer columns"
        )
    return answer.columns, answer.rows


@dataclass
class _Answer:
    """What SQLite answered.

    Attributes:
        columns: None of a statement that is not a SELECT.
        rows: All of them, unless they are too large.
        too_large: Whether they are larger than `LARGEST`.
        error: Why there is no answer.
        refused: The first thing that the statement may not do.
    """

    columns: list[str] | None = None
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    too_large: bool = False
    error: BaseException | None = None
    refused: str = ""


def _select(path: Path, sql: str, values: Mapping[str, Any], seconds: float) -> _Answer:
    """Ask SQLite, in this process."""
    end = time.monotonic() + seconds
    answer = _Answer()

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action in _READS:
            return sqlite3.SQLITE_OK
        answer.refused = answer.refused or " ".join(name for name in (first, second) if name)
        return sqlite3.SQLITE_DENY

    with contextlib.closing(sqlite.connect(path, "ro", timeout=seconds)) as connection:
        connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
        connection.set_authorizer(authorize)
        connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        try:
            cursor = connection.execute(sql, values)
            size = 0
            for row in cursor:
                size += sum(map(_size, row))
                if size > LARGEST:
                    answer.rows, answer.too_large = [], True
                    break
                answer.rows.append(row)
        except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_INTERRUPT and (
                time.monotonic() <= end
            ):  # a Ctrl-C came while Python looked at the clock, and SQLite was told to stop
                raise KeyboardInterrupt from None
            return _Answer(error=error, refused=answer.refused)
    if cursor.description is not None:
        answer.columns = [column[0] for column in cursor.description]
    return answer


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else 8


def _elsewhere(path: Path, sql: str, values: Mapping[str, Any], seconds: float) -> _Answer:
    """Ask SQLite in a fork, and kill that if it exceeds its time."""
    end = time.monotonic() + seconds + _PATIENCE
    source, target = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent kills it
            try:
                answer = _select(path, sql, values, seconds)
            except Exception as error:  # such as of a file that cannot be opened
                answer = _Answer(error=error)
            with os.fdopen(target, "wb") as file:
                pickle.dump(answer, file, pickle.HIGHEST_PROTOCOL)
        os._exit(0)
    os.close(target)
    try:
        data = bytearray()
        while select.select([source], [], [], max(0.0, end - time.monotonic()))[0]:
            if not (part := os.read(source, 1 << 20)):
                break
            data += part
            end = max(end, time.monotonic() + _PATIENCE)  # what comes now is the answer
        else:
            late = sqlite3.OperationalError("interrupted")
            late.sqlite_errorcode = sqlite3.SQLITE_INTERRUPT
            return _Answer(error=late)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(source)
    try:
        answer = pickle.loads(data)  # which this program wrote
    except (EOFError, pickle.UnpicklingError):
        answer = _Answer(error=MemoryError("it ended before it had an answer; is memory short?"))
    assert isinstance(answer, _Answer)
    return answer


def tables(db: Database) -> list[tuple[str, str, list[str]]]:
    """Return every view and table as (name, "view" or "table", columns), the views first."""
    with db.read() as connection:
        found = connection.exec_driver_sql(
            "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE"
            " 'sqlite_%' AND name <> ? ORDER BY type = 'table', rowid",
            (VERSION_TABLE,),
        ).all()
        return [
            (
                name,
                kind,
                list(
                    connection.exec_driver_sql(
                        "SELECT name FROM pragma_table_info(?)", (name,)
                    ).scalars()
                ),
            )
            for name, kind in found
        ]


def _explained(db: Database, sql: str, error: BaseException) -> AblateError:
    """The error with the existing tables, or the columns of the tables that the query names."""
    message = " ".join(str(error).split())
    known = {name: columns for name, _, columns in tables(db)}
    if table := re.match(r"no such table: (?:main\.)?(.+)", message):
        return unknown("table", table[1], known)
    if column := re.match(r"no such column: (.+)", message):
        wanted = column[1].rpartition(".")[2].strip('"')
        with db.read() as connection:
            ends = "SELECT 1 FROM final WHERE name = ? LIMIT 1"
            if connection.exec_driver_sql(ends, (wanted,)).first():
                return AblateError(
                    f"{column[1]!r} is no column, but a value that runs end with: SELECT cell,"
                    " seed, value FROM runs JOIN final ON final.run_id = runs.run WHERE name ="
                    f" '{wanted}'"
                )
            levels = "SELECT 1 FROM cell_level WHERE factor = ? LIMIT 1"
            named_level = connection.exec_driver_sql(levels, (wanted,)).first()
            if named_level and wanted not in known["runs"]:
                return AblateError(
                    f"{column[1]!r} is no column, but a factor whose levels have names: SELECT"
                    " level, avg(loss) FROM runs JOIN cell ON cell.label = runs.cell JOIN study ON"
                    " study.id = study_id AND study.name = runs.study JOIN cell_level ON cell_id ="
                    f" cell.id WHERE runs.study = 'STUDY' AND factor = '{wanted}' GROUP BY level"
                )
        named = [name for name in known if re.search(rf"\b{name}\b", sql, re.IGNORECASE)] or list(
            known
        )
        others = [column for name in named for column in known[name] if column != wanted]
        meant = nearest(wanted, others)
        compared = rf"(=|<>|\blike\b|\bin\s*\([^()]*)\s*\"?{re.escape(wanted)}\b(?!\s*[.(])"
        if not meant and re.search(compared, sql, re.IGNORECASE):
            return AblateError(
                f"{wanted!r} is no column; if it is a value, write it in single quotes, such as"
                f" cell = '{wanted}'"
            )
        lists = "; ".join(f"{name}: {', '.join(known[name])}" for name in named)
        return AblateError(
            f"unknown column {column[1]!r}{f'; did you mean {meant!r}?' if meant else '.'} Columns"
            f" of {lists}."
        )
    if parameter := re.match(r"You did not supply a value for binding parameter :(\w+)", message):
        return AblateError(
            f"the query has a parameter :{parameter[1]}; add {parameter[1]}=VALUE after the query"
        )
    if "one statement at a time" in message:
        return AblateError("a query is one statement; run the second one separately")
    return AblateError(f"the query is wrong: {message}")
