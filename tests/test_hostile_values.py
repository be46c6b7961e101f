"""Names and numbers meant to break things leave the database unchanged in every format."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hostile_values import NUMBERS, TEXTS, VALUES, csv_rows, markdown_cells, same
from report_study import Levels, Outcome, study, svg_only  # noqa: F401
from typer.testing import CliRunner

import ablate
from ablate import formats, report, results
from ablate.cli import app
from ablate.store import Database
from ablate.store.questions import QUESTIONS
from ablate.store.rows import field_names

STUDY = "DROP TABLE run; --\n<script>alert('é')</script>"
FACTOR = 'select "x" | <b>'
LEVELS = [text for text in dict.fromkeys(TEXTS) if text]
LOSSES = [number for number in NUMBERS if isinstance(number, float)] + [
    2.2250738585072014e-308,
    0.1 + 0.2,
    -1e308,
]
METRICS = {
    f"{TEXTS[number % len(TEXTS)]}{number}": LOSSES[number % len(LOSSES)] for number in range(1000)
}
CURVE = dict(enumerate(LOSSES, start=1))

Rows = list[dict[str, Any]]
Way = Callable[[Database, Path, str], Rows]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """A study with hostile names only; a run has 1,000 finals, curves have all kinds of numbers."""

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


# -- formats ---------------------------------------------------------------------------------------


def rendered(value: Any, format: str) -> str:
    return formats.render(["x", "y"], [(value, "end")], format)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_every_value_in_every_format(value: Any) -> None:
    special = isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value))
    shown = formats.shown(value)
    for line in rendered(value, "table").splitlines():
        assert line.isprintable()
    assert rendered(value, "md").count("\n") == 3
    assert markdown_cells(rendered(value, "md")) == [["x", "y"], [shown.strip(), "end"]]
    ((field, end),) = csv_rows(rendered(value, "csv"))[1:]
    assert (field, end) == ("" if value is None else shown if special else str(value), "end")
    (row,) = json.loads(rendered(value, "json"), parse_constant=pytest.fail)
    assert same(row["x"], shown if special else value)
    if isinstance(value, float):
        assert same(float(field), value) and same(float(row["x"]), value)


def test_csv_tells_an_empty_text_from_null() -> None:
    assert formats.render(["a", "b"], [("", None), (None, "")], "csv") == 'a,b\n"",\n,""\n'


def test_a_table_is_aligned() -> None:
    text = formats.render(["cell", "loss"], [("日本", 1.5), ("e\u0301", None), ("abc", 22.25)])
    assert text == "cell   loss\n────  ─────\n日本    1.5\ne\u0301      NULL\nabc   22.25\n"
    assert formats.render(["a", "b"], []) == "a  b\n─  ─\n"


def test_hostile_column_names_and_repeated_ones() -> None:
    columns = ["a", "a", "<b>", "x|y", "", 'q"', "NULL"]
    row = tuple(range(7))
    assert list(json.loads(formats.render(columns, [row], "json"))[0].values()) == list(row)
    assert csv_rows(formats.render(columns, [row], "csv"))[0] == columns
    assert markdown_cells(formats.render(columns, [row], "md"))[0] == columns


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


def by_export(suffix: str, read: Callable[[Path], Rows]) -> Way:
    def fetch(db: Database, folder: Path, what: str) -> Rows:
        file = folder / f"{what}.{suffix}"
        invoke(db, "export", STUDY, str(file), "--what", what)
        return [row for row in read(file) if what == "curves" or int(row["run"]) == 1]

    return fetch


def by_load(db: Database, folder: Path, what: str) -> Rows:
    frame = ablate.curves(STUDY, db=db) if what == "curves" else results.finals(STUDY, db=db)
    return [row for row in frame.to_dict("records") if what == "curves" or int(row["run"]) == 1]


def csv_file(file: Path) -> Rows:
    head, *lines = csv_rows(file.read_bytes().decode())
    return [dict(zip(head, line, strict=True)) for line in lines]


def tsv_file(text: str, between: str = "\t") -> Rows:
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter=between))


def json_lines(content: bytes) -> Rows:
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


WAYS: dict[str, Way] = {
    "query csv": by_query("csv", lambda text: csv_rows(text)[1:]),
    "query tsv": by_query(
        "tsv", lambda text: list(csv.reader(io.StringIO(text, newline=""), delimiter="\t"))[1:]
    ),
    "query json": by_query("json", lambda text: [list(row.values()) for row in json.loads(text)]),
    "export csv": by_export("csv", csv_file),
    "export tsv": by_export("tsv", lambda file: tsv_file(file.read_bytes().decode())),
    "export csv.gz": by_export(
        "csv.gz", lambda file: tsv_file(gzip.decompress(file.read_bytes()).decode(), ",")
    ),
    "export jsonl": by_export("jsonl", lambda file: json_lines(file.read_bytes())),
    "export to standard output": lambda db, folder, what: [
        row
        for row in tsv_file(invoke(db, "export", STUDY, "-", "--what", what), ",")
        if what == "curves" or int(row["run"]) == 1
    ],
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
    found = {(row["cell"], int(row["seed"]), int(row["step"])): float(row["value"]) for row in rows}
    assert found.keys() == {
        (f"{FACTOR}={level}", seed, step) for level in LEVELS for seed in (0, 1) for step in CURVE
    }
    assert all(same(value, CURVE[step]) for (_, _, step), value in found.items())


@pytest.mark.parametrize("what", ["runs", "curves", "finals", "pairs", "effects"])
def test_every_export_is_the_frame(db: Database, tmp_path: Path, what: str) -> None:
    ways = {"runs": ablate.load, "effects": ablate.effects}
    frame = (ways.get(what) or getattr(results, what))(STUDY, db=db)
    if what == "runs":  # without the fields of other studies
        own = set().union(*results.fields(STUDY, db=db).values())
        frame = frame.drop(columns=[*(field_names(db) - own) & {*frame}])
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
                back = found[column]
                if isinstance(value, float):
                    assert same(float(back), value), column
                elif value is None:
                    assert back in (None, ""), column
                else:
                    assert str(back) == str(value), column
    invoke(db, "export", STUDY, str(tmp_path / "x.parquet"), "--what", what)
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "x.parquet"), frame, check_exact=True)


def test_compare_and_show_print_every_name_distinctly(db: Database) -> None:
    for arguments in (("compare", "1", "2"), ("show", "1")):
        out = invoke(db, *arguments)
        assert all(line.isprintable() for line in out.split("\n"))
        starts = {line.strip() for line in out.split("\n")}
        for name, value in METRICS.items():
            shown = formats.shown(name).strip()
            assert shown.isprintable()
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
            # what reads as a number is one
            given = {"1": 1, "1e5": 100000.0, "1.0": 1.0}.get(text, text)
            assert (
                invoke(db, "query", "SELECT :x AS x", f"x={text}", "--format", "json")
                == json.dumps([{"x": given}], ensure_ascii=False) + "\n"
            )


@pytest.mark.usefixtures("svg_only")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of sums beyond the largest number
def test_every_kind_of_loss_through_the_report(tmp_path: Path) -> None:
    def outcome(levels: Levels, seed: int) -> Outcome:
        return Outcome(
            2.0, finals=[("loss", 0, LOSSES[seed])] if levels["topology"] == "parallel" else ()
        )

    factors = {"topology": {level: {"topology": level} for level in ("serial", "parallel")}}
    with study(tmp_path, factors, outcome, seeds=len(LOSSES)) as db:
        page = report.write(report.gather(db, "topology"), tmp_path / "out").read_text(
            encoding="utf-8"
        )
    exact = {
        row["seed"]: row["loss"]
        for row in csv_file(tmp_path / "out" / "tables" / "runs.csv")
        if row["topology"] == "parallel"
    }
    back = [float(exact[str(seed)] or "nan") for seed in range(len(LOSSES))]  # NULL in the view
    assert all(map(same, back, LOSSES)), exact
    cells = re.findall(r'<td[^>]* data-value="([^"]*)"', page)
    assert [value for value in LOSSES if math.isfinite(value) and repr(value) not in cells] == []
    for file in ("report.md", "tables/runs.tex"):
        text = (tmp_path / "out" / file).read_text(encoding="utf-8")
        assert not re.search(r"\d{40}", text), "a number that nobody can read"
        assert "nan" not in text.lower().replace("\n", " ").split()
