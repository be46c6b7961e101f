"""Values in a database that ablate does not write, such as text where a number belongs.

SQLite stores any value in any column, and a database may come from elsewhere. Readers rely on the
types of the columns. Where one fails, `explain` looks for what it failed at.
"""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, compress
from pathlib import Path
from typing import Any

from sqlalchemy import Boolean, Column, Float, Integer, LargeBinary, Table, Text

from ablate import metrics, windows
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.plan import ROLES
from ablate.store import schema, sqlite
from ablate.store.records import ATTEMPT_STATUS, RUN_STATUS
from ablate.store.views import field

SHOWN = 40  # characters of a value
_LARGE = ("metric",)  # tables that only SQL looks through

Problem = str  # "" if there is none


def explain(path: Path, error: BaseException) -> AblateError | None:
    """Return the one-line error for a failure that a value of the database explains.

    Args:
        path: The database file.
        error: What a reader raised.

    Returns:
        None if the database holds what ablate writes: the failure is an error of this program.
    """
    deep = isinstance(error, RecursionError)  # of JSON
    if not isinstance(error, Exception) or isinstance(error, AblateError | OSError):
        return None
    if isinstance(error, RuntimeError) and not deep:  # such as Typer's exit
        return None
    with contextlib.suppress(sqlite3.Error, AblateError):
        for problem in chain(unsound(path), _dangling(path)):
            return AblateError(
                f"database {path} holds a value that ablate does not write: {problem};"
                " `ablate db check` lists all"
            )
    return None


def unsound(path: Path) -> Iterator[str]:
    """Yield each value that ablate does not write, as "run.seed is 'x' in row 3: no integer"."""
    with contextlib.closing(sqlite.connect(path, "ro")) as connection:
        connection.text_factory = bytes
        existing = {
            name.decode(errors="replace")
            for (name,) in connection.execute("SELECT name FROM sqlite_master")
        }
        for table in schema.metadata.sorted_tables:
            if table.name in existing:
                large = table.name in _LARGE
                yield from (_of_large if large else _of_table)(connection, table)
        if {"run", "run_field"} <= existing:
            yield from _of_fields(connection)


def _dangling(path: Path) -> Iterator[str]:
    """Yield each kind of rows that refer to nothing; `check` counts and repairs them."""
    with contextlib.closing(sqlite.connect(path, "ro")) as connection:
        for table, _, parent, _ in connection.execute("PRAGMA foreign_key_check"):
            yield f"a row of {table} refers to a {parent} that does not exist"


def _of_table(connection: sqlite3.Connection, table: Table) -> Iterator[str]:
    columns = list(table.columns)
    names = ", ".join(f'"{column.name}"' for column in columns)
    whole = _WHOLE.get(table.name)
    for number, row in enumerate(connection.execute(f"SELECT {names} FROM {table.name}"), start=1):
        values, sound = {}, True
        for column, value in zip(columns, row, strict=True):
            values[column.name], problem = _checked(column, value)
            if problem:
                sound = False
                place = f"{row[0]}" if columns[0].name == "id" else f"{number}"
                shown = values[column.name]
                text = shown if isinstance(shown, str) else repr(shown)
                yield f"{table.name}.{column.name} is {text[:SHOWN]!r} in row {place}: {problem}"
        if sound and whole and (problem := _said(whole, values)):
            yield f"{table.name}, row {number}: {problem}"


def _of_large(connection: sqlite3.Connection, table: Table) -> Iterator[str]:
    for column in table.columns:
        types = _TYPES[type(column.type)][0]
        allowed = [*types, *(["null"] if column.nullable else [])]
        bad = connection.execute(
            f'SELECT count(*), min("{column.name}") FROM {table.name} WHERE'
            f' typeof("{column.name}") NOT IN ({", ".join("?" * len(allowed))})',
            allowed,
        ).fetchone()
        if bad[0]:
            yield f"{table.name}.{column.name} is {bad[1]!r:.{SHOWN}} in {bad[0]} rows"


def _of_fields(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield values of `run_field` that are of another type than the field of the run is."""
    columns = connection.execute("SELECT name FROM pragma_table_info('run_field')")
    names = [name.decode(errors="replace") for (name,) in columns]
    names = [name for name in names if name != "run_id" and name.isidentifier()]
    kinds = ", ".join(f"typeof({field(name)}) AS kind{n}" for n, name in enumerate(names))
    differ = ", ".join(f'typeof(copy."{name}") <> kind{n}' for n, name in enumerate(names))
    if not names:
        return
    rows = connection.execute(  # one row a run, so that its JSON is parsed once
        f"SELECT run_id, {differ} FROM run_field AS copy JOIN"
        f" (SELECT id, {kinds} FROM run WHERE json_valid(fields)) ON id = run_id"
    )
    for run, *flags in rows:
        for name in compress(names, flags):
            (value,) = connection.execute(
                f'SELECT "{name}" FROM run_field WHERE run_id = ?', (run,)
            ).fetchone()
            text = value.decode(errors="replace") if isinstance(value, bytes) else repr(value)
            yield f"run_field.{name} is {text[:SHOWN]!r} in run {run}, whose fields differ"


def _checked(column: Column[Any], value: Any) -> tuple[Any, Problem]:
    """Return a value as text where it is one, and what is wrong with it."""
    kind_of = type(column.type)
    if isinstance(value, bytes) and kind_of is not LargeBinary:
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return value, "not UTF-8 text"
    if value is None:
        return None, "" if column.nullable else "it must not be NULL"
    _, python, called = _TYPES[kind_of]
    if not isinstance(value, python):
        return value, f"it must be {called}"
    if kind_of is Boolean and value not in (0, 1):
        return value, "it must be 0 or 1"
    check = _COLUMNS.get(f"{column.table.name}.{column.name}")
    return value, _said(check, value) if check else ""


def _said(check: Callable[[Any], Any], value: Any) -> Problem:
    """What a check raises, on one line; a check that returns False says nothing more."""
    try:
        return "" if check(value) is not False else "it has no meaning"
    except (ValueError, TypeError, LookupError, ArithmeticError, AblateError) as error:
        return " ".join(f"{error}".split())[:200] or type(error).__name__


_TYPES: Mapping[type, tuple[tuple[str, ...], type | tuple[type, ...], str]] = {
    Integer: (("integer",), int, "an integer"),
    Boolean: (("integer",), int, "0 or 1"),
    Float: (("real", "integer"), (float, int), "a number"),
    Text: (("text",), str, "text"),
    LargeBinary: (("blob",), bytes, "bytes"),
}


def _object(text: str) -> bool:
    return isinstance(json.loads(text), dict)


def _natural(value: int) -> bool:
    return value >= 0


def _finite(value: float) -> bool:
    return math.isfinite(value) and value >= 0


# keys that the evidence of a decision has had in every version
_OF_SEEDS = ("stratum", "metric", "pilot", "resolution", "wanted", "capped")
_OF_FIELD = ("group", "cells", "metric", "seeds", "ladder", "rates", "values", "at_edge")


def _evidence(row: Mapping[str, Any]) -> None:
    evidence = json.loads(row["evidence"])
    wanted = _OF_SEEDS if row["name"] == "seeds" else _OF_FIELD
    if missing := [key for key in wanted if key not in evidence]:
        raise ValueError(f"its evidence lacks {missing[0]}")


def _windows(row: Mapping[str, Any]) -> None:
    windows.unpacked(*(row[name] for name in ("name", "at", "tokens", "layout", "losses")))


_SIZES = ("seed", "steps", "tokens", "n_params", "n_params_body")
# what a value of a column must be, beyond its type
_COLUMNS: Mapping[str, Callable[[Any], Any]] = {
    "study.metric": metrics.final,
    "study.goal": {*metrics.GOALS.values()}.__contains__,
    "study.evaluation": Evaluation.model_validate_json,
    "run.status": RUN_STATUS.__contains__,
    "run.fields": _object,
    **{f"run.{name}": _natural for name in _SIZES},
    "run.flops": _finite,
    "member.role": ROLES.__contains__,
    "attempt.status": ATTEMPT_STATUS.__contains__,
    "attempt.evaluation": Evaluation.model_validate_json,
    "attempt.versions": _object,
    "attempt.journal_offset": _natural,
    "decision.value": lambda text: isinstance(json.loads(text), int | float),
    "decision.evidence": _object,
    "finding.data": _object,
    "code.about": _object,
}
# what all values of a row must be together
_WHOLE: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "decision": _evidence,
    "window_loss": _windows,
}
