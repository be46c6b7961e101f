"""Questions: they cannot write, end in time and help where they are wrong."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_helpers import processes
from store_plans import do_all, fresh, names, plan_of, rows

from ablate import store
from ablate.errors import AblateError
from ablate.store import Database, owners, query, register
from ablate.store.names import require_study


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with (
        fresh(tmp_path_factory.mktemp("query") / "ablate.db") as db,
        owners.Owner.here(db) as owner,
    ):
        do_all(db, register.register(db, plan_of()), owner)
        yield db


# -- what a query may do ---------------------------------------------------------------------------

WRITES = [
    "ATTACH 'file:{folder}/x?mode=rwc' AS x",
    "ATTACH '{folder}/x' AS x",
    "PRAGMA query_only = off",
    "SELECT * FROM pragma_journal_mode('delete')",
    "WITH x AS (SELECT 1) INSERT INTO series (name, unit, goal) SELECT 'x', '', '' FROM x",
    "UPDATE run SET status = 'planned'",
    "DELETE FROM metric",
    "CREATE TABLE x (y)",
    "CREATE VIRTUAL TABLE x USING fts5(y)",
    "SELECT load_extension('x')",
    "SELECT 1; DELETE FROM metric",
    "EXPLAIN DELETE FROM metric",
    "VACUUM",
    "VACUUM INTO '{folder}/x'",
    "BEGIN IMMEDIATE",
    "DETACH main",
    "",
    "SELECT '\0'",
    "SELECT '\ud800'",
    "SELECT writefile('{folder}/x', 'y')",
]


@pytest.mark.parametrize("sql", WRITES)
def test_query_cannot_write_attach_or_set(db: Database, sql: str) -> None:
    files, content = names(db.path.parent), db.path.read_bytes()
    with pytest.raises(AblateError) as error:
        query.run(db, sql.replace("{folder}", str(db.path.parent)))
    assert "\n" not in str(error.value)
    assert names(db.path.parent) == files and db.path.read_bytes() == content
    assert rows(db.path, "SELECT (SELECT count(*) FROM metric), (SELECT count(*) FROM run)") == [
        (24, 4)
    ]


def test_query_gives_columns_and_rows(db: Database) -> None:
    sql = "SELECT cell, count(*), avg(loss) FROM runs GROUP BY cell"
    assert query.run(db, sql) == (["cell", "count(*)", "avg(loss)"], rows(db.path, sql))
    assert query.run(db, "SELECT 1 WHERE 0;") == (["1"], [])
    assert query.run(db, "WITH a AS (SELECT 1 AS b) SELECT b, b FROM a -- twice") == (
        ["b", "b"],
        [(1, 1)],
    )


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE a(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a) SELECT max(x) FROM a",
        (
            "SELECT count(*) FROM metric a, metric b, metric c, metric d, metric e, metric f WHERE"
            " a.value + f.value < 0"
        ),
    ],
)
def test_query_is_stopped_in_time(db: Database, sql: str) -> None:
    start = time.monotonic()
    with pytest.raises(AblateError, match=r"stopped after 0\.2 s"):
        query.run(db, sql, limit_seconds=0.2)
    assert time.monotonic() - start < 2


LONG = "printf('%.*c', 5000000, 'a')"
WITHIN_A_FUNCTION = f"SELECT instr({LONG}, printf('%.*c', 2500000, 'a') || 'b')"


def children() -> list[int]:
    """Pids of this process's children."""
    return [pid for pid, parent, _ in processes() if parent == os.getpid()]


@pytest.mark.parametrize("sql", [WITHIN_A_FUNCTION, "SELECT printf('%.*c', 2000000000, 'x')"])
def test_a_query_is_stopped_within_a_function(db: Database, sql: str) -> None:
    """SQLite looks at the clock only when the function has returned, in a minute."""
    before, start = children(), time.monotonic()
    with pytest.raises(AblateError, match=r"stopped after 0\.2 s"):
        query.run(db, sql, limit_seconds=0.2)
    assert time.monotonic() - start < 5
    assert children() == before


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT zeroblob(100000000)",
        "SELECT hex(zeroblob(60000000))",
        "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n LIMIT 40)"
        " SELECT zeroblob(60000000) FROM n",
    ],
)
def test_answers_have_a_largest_size(db: Database, sql: str) -> None:
    with pytest.raises(AblateError, match=r"larger than 256 MiB|too big"):
        query.run(db, sql)


def test_an_answer_of_many_rows_is_whole(db: Database) -> None:
    sql = "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n LIMIT :n) SELECT k FROM n"
    assert query.run(db, sql, {"n": 123_456})[1] == [(k,) for k in range(1, 123_457)]


def test_ctrl_c_amid_a_query_is_no_query_that_took_too_long(db: Database) -> None:
    # ignored where tests run in the background
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            query.run(db, WITHIN_A_FUNCTION)
    finally:
        signal.signal(signal.SIGINT, before)
        timer.join()


def test_errors_say_what_was_meant(db: Database) -> None:
    with pytest.raises(AblateError, match=r"'curvez'.*'curves'.* runs"):
        query.run(db, "SELECT * FROM curvez")
    with pytest.raises(AblateError, match=r"'los'.*'loss'.* of runs: study"):
        query.run(db, "SELECT los FROM runs")
    with pytest.raises(AblateError, match=r"'c.valu'.*'value'.* of curves"):
        query.run(db, "SELECT c.valu FROM curves c")
    with pytest.raises(AblateError, match="no such function: median"):
        query.run(db, "SELECT median(loss) FROM runs")
    with pytest.raises(AblateError, match="syntax error"):
        query.run(db, "SELECT FROM runs")


def test_tables_and_views_with_columns(db: Database) -> None:
    listed = query.tables(db)
    assert [name for name, kind, _ in listed if kind == "view"] == [
        "all_runs",
        "runs",
        "all_curves",
        "curves",
        "pairs",
        "effects",
        "findings",
        "finals_wide",
    ]
    assert [kind for _, kind, _ in listed] == sorted((kind for _, kind, _ in listed), reverse=True)
    assert {name: columns for name, _, columns in listed}["metric"] == [
        "run_id",
        "series_id",
        "step",
        "value",
    ]
    for name, _, columns in listed:
        assert query.run(db, f'SELECT * FROM "{name}" LIMIT 0')[0] == columns


def test_a_database_without_a_study_has_none_to_choose_from(tmp_path: Path) -> None:
    with (
        store.open(str(tmp_path / "a.db"), create=True) as empty,
        pytest.raises(AblateError, match="'norms'") as error,
    ):
        require_study(empty, "norms")
    assert "Choices" not in str(error.value)
