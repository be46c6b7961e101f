"""Run one SELECT of the user's, which can only read, for a limited time; explain its errors."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections.abc import Mapping
from typing import Any

from ablate.errors import AblateError, nearest, unknown
from ablate.store import sqlite
from ablate.store.database import Database
from ablate.store.schema import VERSION_TABLE

_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
_STEPS = 1000  # of SQLite's virtual machine between looks at the clock


def run(
    db: Database, sql: str, values: Mapping[str, Any] = {}, *, limit_seconds: float = 10
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and rows of one SELECT.

    Args:
        db: The database.
        sql: One statement that reads.
        values: Name → value of the parameters, which the statement writes as `:name`.
        limit_seconds: The statement is stopped after this time.

    Raises:
        AblateError: The statement is wrong, takes too long, or does anything but read.
    """
    end = time.monotonic() + limit_seconds
    refused: list[str] = []

    def authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
        if action in _READS:
            return sqlite3.SQLITE_OK
        refused.append(" ".join(name for name in (first, second) if name))
        return sqlite3.SQLITE_DENY

    with (
        sqlite.consistent_read(db.path),
        sqlite.translate_errors(db.path, limit_seconds),
        contextlib.closing(sqlite.connect(db.path, "ro", timeout=limit_seconds)) as connection,
    ):
        connection.text_factory = lambda data: data.decode("utf-8", "backslashreplace")
        connection.set_authorizer(authorize)
        connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        try:
            cursor = connection.execute(sql, values)
            rows = cursor.fetchall()
        except (sqlite3.Error, sqlite3.Warning, ValueError, MemoryError) as error:
            code = getattr(error, "sqlite_errorcode", 0)
            if code == sqlite3.SQLITE_INTERRUPT:
                if (
                    time.monotonic() <= end
                ):  # a Ctrl-C came while Python looked at the clock, and SQLite was told to stop
                    raise KeyboardInterrupt from None
                raise AblateError(
                    f"the query was stopped after {limit_seconds:g} s; narrow it with WHERE or"
                    " LIMIT"
                ) from None
            if refused or code == sqlite3.SQLITE_AUTH:
                raise AblateError(
                    "a query must be one SELECT on tables and views, which only reads"
                    f" ({refused[0] if refused else error})"
                ) from None
            raise sqlite.explain(error, db.path, limit_seconds) or _explained(
                db, sql, error
            ) from None
    if cursor.description is None:
        raise AblateError(
            "a query is one SELECT, such as: SELECT cell, avg(loss) FROM runs GROUP BY cell"
        )
    return [column[0] for column in cursor.description], rows


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
        named = [name for name in known if re.search(rf"\b{name}\b", sql, re.IGNORECASE)] or list(
            known
        )
        meant = nearest(wanted, [column for name in named for column in known[name]])
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
