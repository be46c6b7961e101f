"""Questions: they cannot write, end in time and help where they are wrong."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator

import pytest
from store_plans import do_all, fresh, names, plan_of, rows

from ablate.errors import AblateError
from ablate.store import Database, owners, query, register


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


def test_ctrl_c_amid_a_query_is_no_query_that_took_too_long(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes while Python looks at the clock: SQLite, which called for that, makes an interrupt
    of its own of it.
    """
    looks = itertools.count()

    def clock() -> float:
        if next(looks) == 1:
            signal.raise_signal(signal.SIGINT)
        return 0.0

    # ignored where tests run in the background
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(query.time, "monotonic", clock)
            query.run(
                db,
                "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n) SELECT max(k)"
                " FROM n",
            )
    finally:
        signal.signal(signal.SIGINT, before)


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
