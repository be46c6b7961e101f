"""Names and numbers meant to break things come back as they went in, by every way out of the
database.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hostile import NUMBERS, TEXTS, from_shown, markdown_cells, parse_csv, same
from report_study import Levels, Outcome, study, svg_only  # noqa: F401
from typer.testing import CliRunner

import ablate
from ablate import formats, report, results
from ablate.cli import app
from ablate.store import Database
from ablate.store.questions import QUESTIONS

STUDY = "DROP TABLE run; --\n<script>alert('é')</script>"
FACTOR = 'select "x" | <b>'
LEVELS = [text for text in dict.fromkeys(TEXTS) if text]
VALUES = [number for number in NUMBERS if isinstance(number, float)] + [
    2.2250738585072014e-308,
    0.1 + 0.2,
    -1e308,
]
METRICS = {
    f"{TEXTS[number % len(TEXTS)]}{number}": VALUES[number % len(VALUES)] for number in range(1000)
}
CURVE = dict(enumerate(VALUES, start=1))

Rows = list[dict[str, Any]]
Way = Callable[[Database, Path, str], Rows]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A study whose names are all hostile. Its first run has a thousand finals, and every curve
    every kind of number.
    """

    def outcome(levels: Levels, seed: int) -> Outcome:
        first = levels[FACTOR] == LEVELS[0] and seed == 0
        return Outcome(
            1.0 + seed,
            points=CURVE,
            finals=[(name, 0, value) for name, value in METRICS.items()] if first else (),
        )

    factors = {FACTOR: {level: {"lr": 1e-4 * (place + 1)} for place, level in enumerate(LEVELS)}}
    with study(
        tmp_path_factory.mktemp("hostile"),
        factors,
        outcome,
        seeds=2,
        name=STUDY,
        question=TEXTS[-1],
    ) as db:
        yield db


def invoke(db: Database, *arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--db", str(db.path)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


# -- the ways out ----------------------------------------------------------------------------------

SOURCE = {  # what is asked → columns, and the table or view; a NULL in `value` is NaN there
    "curves": (["study", "cell", "series", "seed", "step", "value"], "curves"),
    "finals": (["name", "value"], "final WHERE run_id = 1"),
}


def select(db: Database, columns: list[str], source: str, format: str) -> str:
    wanted = ", ".join(
        "coalesce(value, 'NaN') AS value" if column == "value" else column for column in columns
    )
    return invoke(db, "query", f"SELECT {wanted} FROM {source}", "--format", format)


def by_query(format: str, read: Callable[[str], list[list[Any]]]) -> Way:
    def fetch(db: Database, folder: Path, what: str) -> Rows:
        columns, source = SOURCE[what]
        return [
            dict(zip(columns, row, strict=True))
            for row in read(select(db, columns, source, format))
        ]

    return fetch


def by_table(db: Database, folder: Path, what: str) -> Rows:
    """A column at a time: what is shown has no blanks at its ends."""
    columns, source = SOURCE[what]
    read = [
        [
            from_shown(line.strip())
            for line in select(db, [column], source, "table").split("\n")[2:-1]
        ]
        for column in columns
    ]
    return [dict(zip(columns, row, strict=True)) for row in zip(*read, strict=True)]


def by_export(suffix: str, read: Callable[[Path], Rows]) -> Way:
    def fetch(db: Database, folder: Path, what: str) -> Rows:
        file = folder / f"{what}.{suffix}"
        invoke(db, "export", STUDY, str(file), "--what", what)
        return [row for row in read(file) if what == "curves" or row["run"] == 1]

    return fetch


def by_load(db: Database, folder: Path, what: str) -> Rows:
    frame = ablate.curves(STUDY, db=db) if what == "curves" else results.finals(STUDY, db=db)
    return [row for row in frame.to_dict("records") if what == "curves" or row["run"] == 1]


def csv_rows(text: str) -> list[list[Any]]:
    """A bare field that is empty is no value."""
    return [
        [field if quoted else from_shown(field) if field else None for field, quoted in line]
        for line in parse_csv(text)
    ]


def csv_file(file: Path) -> Rows:
    head, *lines = csv_rows(file.read_bytes().decode())
    return [dict(zip(head, line, strict=True)) for line in lines]


WAYS: dict[str, Way] = {
    "query table": by_table,
    "query csv": by_query("csv", lambda text: csv_rows(text)[1:]),
    "query json": by_query("json", lambda text: [list(row.values()) for row in json.loads(text)]),
    "query md": by_query(
        "md", lambda text: [[from_shown(cell) for cell in row] for row in markdown_cells(text)[1:]]
    ),
    "export csv": by_export("csv", csv_file),
    "export json": by_export("json", lambda file: json.loads(file.read_bytes())),
    "export parquet": by_export("parquet", lambda file: pd.read_parquet(file).to_dict("records")),  # type: ignore[arg-type]
    "load": by_load,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_thousand_metrics_come_back_as_they_went_in(
    db: Database, tmp_path: Path, way: str
) -> None:
    found = {row["name"]: float(row["value"]) for row in WAYS[way](db, tmp_path, "finals")}
    expected = METRICS | {"loss": 1.0, "train_seconds": 10.0}
    assert found.keys() == expected.keys()
    assert [name for name in expected if not same(found[name], expected[name])] == []


@pytest.mark.parametrize("way", WAYS)
def test_curves_come_back_as_they_went_in(db: Database, tmp_path: Path, way: str) -> None:
    rows = WAYS[way](db, tmp_path, "curves")
    assert {row["study"] for row in rows} == {STUDY} and {row["series"] for row in rows} == {"loss"}
    found = {(row["cell"], row["seed"], row["step"]): float(row["value"]) for row in rows}
    assert found.keys() == {
        (f"{FACTOR}={level}", seed, step) for level in LEVELS for seed in (0, 1) for step in CURVE
    }
    assert all(same(value, CURVE[step]) for (_, _, step), value in found.items())


@pytest.mark.parametrize("what", ["runs", "pairs", "effects"])
def test_every_export_is_the_frame(db: Database, tmp_path: Path, what: str) -> None:
    frame = {"runs": ablate.load, "pairs": results.pairs, "effects": ablate.effects}[what](
        STUDY, db=db
    )
    expected = [
        {column: None if value is pd.NA else value for column, value in row.items()}
        for row in frame.to_dict("records")
    ]
    for suffix, read in (("csv", csv_file), ("json", lambda file: json.loads(file.read_bytes()))):
        file = tmp_path / f"x.{suffix}"
        invoke(db, "export", STUDY, str(file), "--what", what)
        for found, row in zip(read(file), expected, strict=True):  # type: ignore[no-untyped-call]
            assert found.keys() == row.keys()
            for column, value in row.items():
                back = float(found[column]) if isinstance(value, float) else found[column]
                assert same(back, value) or str(back) == str(value) != "nan", (column, back, value)
    invoke(db, "export", STUDY, str(tmp_path / "x.parquet"), "--what", what)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "x.parquet"), frame, check_exact=True)


def test_compare_and_show_print_every_name_so_that_it_can_be_told(db: Database) -> None:
    for arguments in (("compare", "1", "2"), ("show", "1")):
        out = invoke(db, *arguments)
        assert all(line.isprintable() for line in out.split("\n"))
        starts = {line.strip() for line in out.split("\n")}
        for name, value in METRICS.items():
            shown = formats.shown(name)
            assert from_shown(shown) == name
            number = f"{value:.6g}" if math.isfinite(value) else formats.number(value)
            assert any(line.startswith(f"{shown} ") and f" {number}" in line for line in starts), (
                name
            )


def test_named_queries_and_values_take_hostile_words(db: Database) -> None:
    for question in QUESTIONS.values():
        invoke(
            db, "query", question.name, *([STUDY] if question.parameters else []), "--format", "md"
        )
    for text in (*TEXTS, "' OR 1=1 --"):
        if "\0" not in text:
            given = {"1": 1, "1e5": 100000.0, "1.0": 1.0}.get(
                text, text
            )  # what reads as a number is one
            assert (
                invoke(db, "query", "SELECT :x AS x", f"x={text}", "--format", "json")
                == json.dumps([{"x": given}], ensure_ascii=False) + "\n"
            )


def test_all_other_commands_take_the_names(db: Database, tmp_path: Path) -> None:
    for arguments in (("status", STUDY), ("analyse", STUDY)):
        out = invoke(db, *arguments)
        assert all(line.isprintable() for line in out.split("\n"))
        assert "alert" in out or "日本語" in out


@pytest.mark.usefixtures("svg_only")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of sums beyond the largest number
def test_every_kind_of_loss_through_the_report(tmp_path: Path) -> None:
    def outcome(levels: Levels, seed: int) -> Outcome:
        return Outcome(
            2.0, finals=[("loss", 0, VALUES[seed])] if levels["topology"] == "parallel" else ()
        )

    factors = {"topology": {level: {"topology": level} for level in ("serial", "parallel")}}
    with study(tmp_path, factors, outcome, seeds=len(VALUES)) as db:
        page = report.write(report.gather(db, "topology"), tmp_path / "out").read_text(
            encoding="utf-8"
        )
    exact = {
        row["seed"]: row["loss"]
        for row in csv_file(tmp_path / "out" / "tables" / "runs.csv")
        if row["topology"] == "parallel"
    }
    back = [
        math.nan if exact[seed] is None else float(exact[seed]) for seed in range(len(VALUES))
    ]  # as in the view `runs`
    assert all(map(same, back, VALUES)), exact
    cells = re.findall(r'<td[^>]* data-value="([^"]*)"', page)
    assert [value for value in VALUES if math.isfinite(value) and repr(value) not in cells] == []
    for file in ("report.md", "tables/runs.tex"):
        text = (tmp_path / "out" / file).read_text(encoding="utf-8")
        assert not re.search(r"\d{40}", text), "a number that nobody can read"
        assert "nan" not in text.lower().replace("\n", " ").split()
