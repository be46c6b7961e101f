"""Questions: they cannot write, end in time, help where they are wrong, and show every value as it
is.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hostile import NUMBERS, TEXTS, VALUES, from_shown, markdown_cells, parse_csv, same
from hypothesis import given, settings
from hypothesis import strategies as st
from store_plans import do_all, fresh, names, plan_of, rows

from ablate import formats
from ablate.errors import AblateError
from ablate.store import Database, query, runs


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with fresh(tmp_path_factory.mktemp("query") / "ablate.db") as db, runs.Owner.here(db) as owner:
        do_all(db, runs.register(db, plan_of()), owner)
        yield db


# -- what a query may do ---------------------------------------------------------------------------

WRITES = [
    "ATTACH 'file:{folder}/x?mode=rwc' AS x",
    "ATTACH '{folder}/x' AS x",
    "ATTACH ':memory:' AS x",
    "PRAGMA query_only = off",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA writable_schema = on",
    "PRAGMA user_version",
    "SELECT * FROM pragma_journal_mode('delete')",
    "WITH x AS (SELECT 1) INSERT INTO series (name, unit, goal) SELECT 'x', '', '' FROM x",
    "INSERT INTO series (name, unit, goal) VALUES ('x', '', '') RETURNING id",
    "REPLACE INTO series VALUES (1, 'x', '', '')",
    "UPDATE run SET status = 'planned'",
    "DELETE FROM metric",
    "DROP VIEW runs",
    "CREATE TABLE x (y)",
    "CREATE TEMP TABLE x (y)",
    "CREATE VIRTUAL TABLE x USING fts5(y)",
    "ALTER TABLE run ADD COLUMN x",
    "SELECT load_extension('x')",
    "SELECT 1; SELECT 2",
    "SELECT 1; DELETE FROM metric",
    "/* SELECT */ DELETE FROM metric",
    "EXPLAIN DELETE FROM metric",
    "VACUUM",
    "VACUUM INTO '{folder}/x'",
    "BEGIN IMMEDIATE",
    "COMMIT",
    "SAVEPOINT x",
    "REINDEX",
    "ANALYZE",
    "DETACH main",
    "",
    " ; ",
    "-- nothing",
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

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # ignored where tests run in the background
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
    with pytest.raises(
        AblateError,
        match=r"unknown table 'curvez'; did you mean 'curves'\? Choices: runs, curves, pairs",
    ):
        query.run(db, "SELECT * FROM curvez")
    with pytest.raises(
        AblateError,
        match=r"unknown column 'los'; did you mean 'loss'\? Columns of runs: study, cell",
    ):
        query.run(db, "SELECT los FROM runs")
    with pytest.raises(
        AblateError, match=r"unknown column 'c\.valu'; did you mean 'value'\? Columns of curves"
    ):
        query.run(db, "SELECT c.valu FROM curves c")
    with pytest.raises(AblateError, match="no such function: median"):
        query.run(db, "SELECT median(loss) FROM runs")
    with pytest.raises(AblateError, match="syntax error"):
        query.run(db, "SELECT FROM runs")


def test_tables_and_views_with_columns(db: Database) -> None:
    listed = query.tables(db)
    assert [name for name, kind, _ in listed if kind == "view"] == [
        "runs",
        "curves",
        "pairs",
        "effects",
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


# -- formats ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_table_shows_every_value_so_that_it_can_be_told(value: Any) -> None:
    text = formats.render(["x"], [(value,)], "table").split("\n")[2]
    assert same(from_shown(text), value)
    assert text.isprintable()


def test_table_is_aligned() -> None:
    text = formats.render(["cell", "loss"], [("日本", 1.5), ("e\u0301", None), ("abc", 22.25)])
    assert text == "cell   loss\n────  ─────\n日本    1.5\ne\u0301      NULL\nabc   22.25\n"
    assert formats.render(["a", "b"], []) == "a  b\n─  ─\n"


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_csv_gives_every_value_back(value: Any) -> None:
    text = formats.render(["x", "y"], [(value, 7)], "csv")
    _, (first, second) = parse_csv(text)
    assert second == ("7", False)
    field, quoted = first
    if value is None:
        assert (field, quoted) == ("", False)
    elif isinstance(value, str):
        assert field == value
        assert quoted or isinstance(from_shown(value), str)
    else:
        assert not quoted and same(from_shown(field), value)
    if value != "\x00":  # which Python's reader cannot
        assert list(csv.reader(io.StringIO(text, newline="")))[1] == [field, "7"]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_json_gives_every_value_back(value: Any) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    (row,) = json.loads(formats.render(["x"], [(value,)], "json"), parse_constant=refuse)
    if isinstance(value, float) and not math.isfinite(value):
        assert same(float(row["x"]), value)
    elif isinstance(value, bytes):
        assert row["x"] == f"x'{value.hex()}'"
    else:
        assert same(row["x"], value)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_markdown_gives_every_value_back_and_renders_none_of_it(value: Any) -> None:
    text = formats.render(["x", "y"], [(value, "end")], "md")
    assert text.count("\n") == 3
    assert markdown_cells(text) == [["x", "y"], [formats.shown(value), "end"]]
    assert same(from_shown(markdown_cells(text)[1][0]), value)


def test_hostile_column_names_and_repeated_ones() -> None:
    columns = ["a", "a", "<b>", "x|y", "", 'q"', "NULL"]
    row = tuple(range(7))
    assert list(json.loads(formats.render(columns, [row], "json"))[0].values()) == list(row)
    assert [field for field, _ in parse_csv(formats.render(columns, [row], "csv"))[0]] == columns
    assert [
        from_shown(text) for text in markdown_cells(formats.render(columns, [row], "md"))[0]
    ] == columns


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.floats(), st.integers(-(2**63), 2**63 - 1), st.text()),
            st.text(),
        ),
        max_size=5,
    )
)
def test_any_value_through_any_format(table: list[tuple[Any, str]]) -> None:
    columns = ["a", "b"]
    for (value, _), line in zip(
        table, formats.render(columns, table, "table").split("\n")[2:], strict=False
    ):
        assert line.isprintable() and line.startswith((formats.shown(value).rstrip(), " "))
    assert [
        [field for field, _ in line]
        for line in parse_csv(formats.render(columns, table, "csv"))[1:]
    ] == [
        ["" if value is None else value if isinstance(value, str) else formats.shown(value), text]
        for value, text in table
    ]
    back = json.loads(formats.render(columns, table, "json"))
    assert [row["b"] for row in back] == [text for _, text in table]
    cells = markdown_cells(formats.render(columns, table, "md"))[1:]
    assert all(
        same(from_shown(cell), value)
        for pair, line in zip(table, cells, strict=True)
        for value, cell in zip(pair, line, strict=True)
    )


def test_a_thousand_metrics_from_the_database_through_every_format(tmp_path: Path) -> None:
    values = dict(
        zip(
            (f"{text}{i}" for i, text in zip(range(1000), itertools.cycle(TEXTS))),
            itertools.cycle(NUMBERS),
        )
    )
    with fresh(tmp_path / "x.db") as db, runs.Owner.here(db) as owner:
        do_all(
            db,
            runs.register(db, plan_of(seeds=(0,))),
            owner,
            finals=[(name, 0, value) for name, value in values.items()],
        )
        sql = (  # NULL in `value` is NaN
            "SELECT name, coalesce(value, 'NaN') AS value FROM final WHERE run_id = 1"
        )
        columns, found = query.run(db, sql)
    assert {name: float(value) for name, value in found}.keys() == values.keys()
    assert all(same(float(value), float(values[name])) for name, value in found)
    frame = pd.read_csv(
        io.StringIO(formats.render(columns, found, "csv").replace("\0", "")), dtype={"name": str}
    )
    assert (
        len(frame) == 1000
        and frame["value"].dtype == float
        and frame["value"].isna().sum() == sum(v != v for v in values.values())
    )
    parsed = json.loads(formats.render(columns, found, "json"))
    assert all(same(float(row["value"]), float(values[row["name"]])) for row in parsed)
    cells = markdown_cells(formats.render(columns, found, "md"))[1:]
    assert {from_shown(name) for name, _ in cells} == values.keys()


def test_unknown_format() -> None:
    with pytest.raises(
        AblateError, match=r"unknown format 'markdown'.*Choices: table, csv, json, md"
    ):
        formats.render(["a"], [], "markdown")
