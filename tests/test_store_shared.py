"""A database in use elsewhere: locked, or written while it is read without a lock."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from store_plans import execute, fresh, rows

from ablate import store
from ablate.errors import AblateError
from ablate.store import Database, query, sqlite


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ablate.db"
    fresh(path).close()
    return path


@pytest.fixture
def held(path: Path) -> Iterator[Path]:
    """A database under an exclusive lock, as in a commit without a log."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a lock."""
    connect = sqlite.connect
    monkeypatch.setattr(sqlite, "connect", lambda path, mode, timeout=0.0: connect(path, mode, 0.0))


@pytest.mark.usefixtures("impatient")
def test_a_lock_of_another_process_is_no_error_while_closing_a_database(held: Path) -> None:
    Database(held, owned=True).close()
    sqlite.set_journal_mode(held, "WAL")
    assert sqlite.at_rest(held)


@pytest.mark.usefixtures("impatient")
def test_the_time_waited_for_a_lock_is_reported_exactly(held: Path) -> None:
    with (
        pytest.raises(AblateError, match=r"is locked: another process has held it for 60 s"),
        Database(held, owned=False).read(),
    ):
        pass
    with pytest.raises(AblateError, match=r"is locked: another process has held it for 2\.5 s"):
        query.run(Database(held, owned=False), "SELECT 1 FROM run", limit_seconds=2.5)


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_a_connection_that_could_not_be_set_up_is_closed(
    held: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, connect = [], sqlite3.connect

    def remember(*args: Any, **options: Any) -> sqlite3.Connection:
        made.append(connect(*args, **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", remember)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite.connect(held, mode, timeout=0.0)
    (connection,) = made
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


@pytest.fixture
def foreign(path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A database at rest in WAL mode which this user may only read, and so reads without a lock."""
    rows(path, "PRAGMA journal_mode = WAL")
    os.utime(path, (0, 0))
    monkeypatch.setattr(os, "access", lambda name, mode: mode == os.R_OK)
    return store.open(str(path))


WRITTEN = r"ablate\.db was written while it was read; try again"
ADD = "INSERT INTO series (name, unit, goal) VALUES ('a', '', '')"


def test_what_a_writer_may_have_mixed_up_is_no_answer(foreign: Database) -> None:
    with pytest.raises(AblateError, match=WRITTEN), foreign.read() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM run").scalar_one()
        execute(foreign.path, ADD)
    with foreign.read() as connection:
        assert connection.exec_driver_sql("SELECT name FROM series").all() == [("a",)]


def test_what_a_writer_may_have_mixed_up_is_not_taken_for_damage(foreign: Database) -> None:
    with pytest.raises(AblateError, match=WRITTEN), foreign.read():
        execute(foreign.path, ADD)
        raise sqlite.Damaged(foreign.path, "two pages contradict each other")


def test_a_query_is_not_answered_by_what_a_writer_may_have_mixed_up(foreign: Database) -> None:
    class Late(dict[str, int]):
        """A value that is found when the query has begun."""

        def __missing__(self, name: str) -> int:
            execute(foreign.path, ADD)
            return 1

    with pytest.raises(AblateError, match=WRITTEN):
        query.run(foreign, "SELECT :late", Late())
