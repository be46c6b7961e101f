"""Every table of a report has the same numbers in all its formats, column by column."""

from __future__ import annotations

import contextlib
import csv
import io
import math
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_helpers import ROOT
from hostile_values import markdown_cells
from report_study import Outcome, few_replicates, leave_blank, study  # noqa: F401

from ablate import report, store
from ablate.plan import Decision
from ablate.report.document import Estimate, Span, Table, Value, shown
from ablate.report.figure_set import FigureSet
from ablate.store import Database, decisions

# columns of a table → those of its CSV file, where that is a frame with more than is shown
EFFECT = {"p": ["p"], "Holm p": ["p_holm"], "95% interval": ["lo", "hi"]}
FRAMES: dict[str, dict[str, list[str]]] = {
    "effects": {
        **EFFECT,
        "stratum": ["stratum"],
        "factor": ["factor"],
        "level": ["level"],
        "baseline": ["baseline_level"],
        "pairs": ["n"],
        "effect": ["mean"],
        "family interval": ["family_lo", "family_hi"],
        "sign-flip p": ["p_sign_flip"],
        "r": ["correlation"],
        "detectable": ["detectable"],
    },
    "successive": {
        **EFFECT,
        "stratum": ["stratum"],
        "level": ["level"],
        "previous": ["baseline_level"],
        "pairs": ["n"],
        "difference": ["mean"],
        "detectable": ["detectable"],
    },
    "changes": {
        **EFFECT,
        "factor": ["factor"],
        "level": ["level"],
        "from": ["first"],
        "to": ["stratum"],
        "seeds": ["n"],
        "change": ["mean"],
        "detectable": ["detectable"],
    },
    "interactions": {
        **EFFECT,
        "stratum": ["stratum"],
        "factors": ["factor"],
        "levels": ["level"],
        "seeds": ["n"],
        "beyond the sum": ["mean"],
        "detectable": ["detectable"],
    },
    "runs": {
        "run": ["run"],
        "cell": ["cell"],
        "seed": ["seed"],
        "role": ["role"],
        "status": ["status"],
        "learning rate": ["lr"],
        "training time": ["seconds"],
        "attempts": ["attempts"],
    },
}


class Cells(HTMLParser):
    """Name of a table → rows of (text, data-value) of its cells, the heading included."""

    def __init__(self, page: str):
        super().__init__()
        self.tables: dict[str, list[list[tuple[str, str | None]]]] = {}
        self.rows: list[list[tuple[str, str | None]]] | None = None
        self.inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "table":
            self.rows = self.tables[str(given["id"]).removeprefix("table-")] = []
        elif self.rows is not None and tag == "tr":
            self.rows.append([])
        elif self.rows is not None and tag in ("td", "th"):
            self.rows[-1].append(("", given.get("data-value")))
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside &= tag not in ("td", "th")
        if tag == "table":
            self.rows = None

    def handle_data(self, data: str) -> None:
        if self.inside and self.rows:
            text, value = self.rows[-1][-1]
            self.rows[-1][-1] = text + data, value


@dataclass
class Written:
    """A report's tables, and its texts."""

    tables: list[Table]
    folder: Path

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


def written(db: Database, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    tables: list[Table] = []
    to_csv = report.to_csv

    def noted(table: Table) -> str:
        tables.append(table)
        return "".join(to_csv(table))

    monkeypatch.setattr(report, "to_csv", noted)
    monkeypatch.setattr(FigureSet, "draw", leave_blank)
    report.write(report.gather(db, name), folder)
    return Written(tables, folder)


def grid(folder: Path) -> Database:
    """Strata, a lost pair, an arm that diverges now and then, tuning, an unfinished run."""
    factors = {
        "topology": {name: {"topology": name} for name in ("serial", "parallel", "concat")},
        "norm": {name: {"norm": name} for name in ("pre", "post")},
        "n_layer": {"2": {"n_layer": 2}, "12": {"n_layer": 12}},
    }

    def outcome(levels: dict[str, str], seed: int) -> Outcome | None:
        if levels["topology"] == "concat" and seed == 1:
            return Outcome(status="diverged", step=40)
        if levels["topology"] == "parallel" and seed == 2 and levels["norm"] == "post":
            return Outcome(status="failed", error="a | b\n<last> $line$ & 50%")
        rng = np.random.default_rng([seed, *map(ord, "".join(levels.values()))])
        loss = 2 + 0.03 * (levels["norm"] == "post") + float(rng.normal(0, 0.01))
        if "lr" in levels:
            loss += 0.1 * math.log10(float(levels["lr"]) / 1e-3) ** 2
        return Outcome(loss, seconds=10.0 + seed)

    return study(
        folder,
        factors,
        outcome,
        seeds=5,
        within=["n_layer"],
        rates=(3e-4, 1e-3, 3e-3),
        toml='name = "topology"\n[report]\nsuccessive = ["topology"]\n',
    )


def small(folder: Path) -> Database:
    """A complete grid of two factors, with differences of 1e-7."""
    factors = {
        "topology": {name: {"topology": name} for name in ("serial", "parallel", "concat")},
        "norm": {name: {"norm": name} for name in ("pre", "post")},
    }

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        rng = np.random.default_rng([seed, *map(ord, "".join(levels.values()))])
        return Outcome(2 + 1e-7 * float(rng.normal(0, 1)))

    return study(folder, factors, outcome, seeds=4)


def masked(folder: Path) -> Database:
    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        finals = [("probe_loss", at, 2 + at + 0.01 * seed) for at in (0.15, 0.4)]
        return Outcome(1.0 + 0.1 * seed, finals=finals)

    ratios = {"mask_ratio": {"0.15": {"mask_ratio": 0.15}, "0.4": {"mask_ratio": 0.4}}}
    base = {"objective": "masked", "n_vocab": 257}
    return study(folder, ratios, outcome, seeds=3, metric="probe_loss@0.4", base=base)


def tuned(folder: Path) -> Database:
    """Two arms whose rates were chosen on three seeds of their own."""
    names = ("serial", "parallel")

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        rng = np.random.default_rng([seed, len(levels["topology"])])
        return Outcome(2.0 + float(rng.normal(0, 0.01)))

    db = study(folder, {"topology": {one: {"topology": one} for one in names}}, outcome)
    rates = [1e-4, 1e-3, 1e-2, 1e-1]
    values = np.random.default_rng(0).normal(2.0, 0.2, (3, 4)).tolist()
    for cell, found in (("topology=serial", values), ("topology=parallel", values[::-1])):
        evidence = {
            "group": cell,
            "cells": [cell],
            "metric": "loss",
            "goal": "min",
            "seeds": [7, 8, 9],
            "ladder": rates,
            "rates": rates,
            "values": found,
            "fitted": 2.0,
            "at_edge": False,
        }
        decisions.write(db, 1, [Decision(cell, "lr", 1e-2, evidence)])
    return db


def reference(folder: Path) -> Database:
    shutil.copy(ROOT / "results" / "reference.db", folder / "reference.db")
    return store.open(str(folder / "reference.db"))


def scaling(folder: Path) -> Database:
    """The reference study of scale, whose file asks for predictions as well."""
    db = reference(folder)
    with contextlib.closing(sqlite3.connect(db.path)) as connection, connection:
        changed = connection.execute(
            "UPDATE study SET toml = replace(toml, '[fit]', '[fit]' || char(10) || ?)"
            " WHERE name = 'scale'",
            ('predict = ["N=12M,D=5e8"]',),
        )
        assert changed.rowcount == 1
    return store.open(str(db.path))


REPORT = Path(report.__file__).parent
CASES: dict[str, tuple[Callable[[Path], Database], str]] = {
    "a grid with strata": (grid, "topology"),
    "small differences": (small, "topology"),
    "masked": (masked, "topology"),
    "tuned": (tuned, "topology"),
    "tuned (reference)": (reference, "heads"),
    "scaling (reference)": (scaling, "scale"),
}


@pytest.fixture(scope="module", params=CASES)
def reported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Written]:
    make, name = CASES[request.param]
    folder = tmp_path_factory.mktemp("tables")
    with pytest.MonkeyPatch.context() as monkeypatch:
        request.getfixturevalue("quick_fits")
        yield written(make(folder), name, folder / "out", monkeypatch)


@pytest.fixture(scope="module")
def quick_fits() -> Iterator[None]:
    """As `few_replicates`, for a module."""
    from functools import partialmethod

    from ablate.report import fitted
    from ablate.scaling import Losses, solve

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Losses, "fit", partialmethod(Losses.fit, bootstraps=60))
        monkeypatch.setattr(fitted, "FEWER", 60)
        monkeypatch.setattr(solve, "ITERATIONS", 50)
        yield


def words(text: str) -> str:
    return " ".join(text.split())


UNITS = {
    "k": 1e3,
    "M": 1e6,
    "B": 1e9,
    "T": 1e12,
    "%": 1e-2,
    " s": 1.0,
    " min": 60.0,
    " h": 3600.0,
    " days": 86400.0,
}
NUMBER = re.compile(
    r"([+-]?[\d,]+(?:\.\d+)?)(?:×10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+))?( ?(?:[kMBT%]|s|min|h|days)\b|%)?"
)
POWER = re.compile(r"([+-]?)10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
RAISED = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


def agrees(text: str, value: float | int | None) -> bool:
    """Whether the first number in `text` is `value`, rounded to the digits shown."""
    text = text.replace("−", "-")
    if value is None or value != value:
        return not re.match(r"[+-]?\d", text)
    if math.isinf(value):
        return "∞" in text or "inf" in text or "no " in text or "beyond" in text
    if text.startswith("< "):
        return float(value) < float(text[2:])
    if found := POWER.match(text):
        return float(value) == pytest.approx(10.0 ** int(found[2].translate(RAISED)), rel=1e-2)
    found = NUMBER.search(text)
    if not found:
        return text == "–" and value == 0  # none
    size = UNITS.get(found[3] or "", 1.0) * 10.0 ** int((found[2] or "⁰").translate(RAISED))
    places = len(found[1].partition(".")[2])
    unit = 10.0**-places
    if not places and found[3] in UNITS and found[3] not in ("%",):  # 20M, 150 min: three digits
        unit = max(1.0, 10.0 ** (len(found[1].strip("+-").rstrip("0")) - 3))
    if "," in found[1] and "from" not in text:  # 8,840: three digits, if zeros follow
        digits = found[1].replace(",", "").strip("+-")
        unit = 10.0 ** (len(digits) - 3) if not digits[3:].strip("0") else unit
    number = float(found[1].replace(",", ""))
    return abs(number * size - float(value)) <= 0.501 * unit * size + 1e-9 * abs(float(value))


def test_every_cell_is_the_same_in_html_markdown_and_latex(reported: Written) -> None:
    page = Cells(reported.text("report.html")).tables
    blocks = re.findall(
        r"(?:^\|.*\n\|[ :|-]+\|\n)\n?((?:^\|.*\n)*)", reported.text("report.md"), re.M
    )
    heads = re.findall(r"^\|.*\|\n(?=\|[ :|-]+\|\n)", reported.text("report.md"), re.M)
    if matrix := page.pop("matrix", None):  # of the first screen
        columns = heads.pop(0).count("|") - 1
        assert blocks.pop(0).count("\n") == len(matrix) - 1
        assert {len(row) for row in matrix} == {columns}
    assert reported.tables and len(page) == len(heads) == len(blocks) == len(reported.tables)
    for table, head, block in zip(reported.tables, heads, blocks, strict=True):
        expected = [[words(shown(cell)) for cell in row] for row in table.rows]
        name = table.name
        html_head, *html_rows = page[name]
        assert [text for text, _ in html_head] == list(table.columns), name
        assert [[words(text) for text, _ in row] for row in html_rows] == expected, name
        rule = "|" + " --- |" * len(table.columns) + "\n"
        md_head, *md_rows = markdown_cells(head + rule + block)
        assert md_head == list(table.columns), name
        assert [[words(text) for text in row] for row in md_rows] == expected, name
        body = reported.text(f"tables/{name}.tex").split(r"\midrule")[1].split(r"\bottomrule")[0]
        rows = [row for row in body.split("\\\\\n") if row.strip()]
        assert len(rows) == len(table.rows), name
        for row in rows:
            assert len(re.split(r"(?<!\\)&", row)) == len(table.columns), (name, row)


def test_every_column_of_a_csv_file_has_what_the_table_shows(reported: Written) -> None:
    for table in reported.tables:
        head, *rows = list(csv.reader(io.StringIO(reported.text(f"tables/{table.name}.csv"))))
        assert len(set(head)) == len(head) and all(len(row) == len(head) for row in rows)
        assert len(rows) >= len(table.rows)
        if table.data is not None:
            frame_has(table, head, rows)
            continue
        assert len(rows) == len(table.rows)
        at = 0
        for name, column in zip(table.columns, zip(*table.rows, strict=True), strict=True):
            kinds = {type(cell) for cell in column}
            ends = [f"{name}, low", f"{name}, high"]
            names = [name, *ends] if Estimate in kinds else ends if Span in kinds else [name]
            assert head[at : at + len(names)] == names, table.name
            for cell, row in zip(column, rows, strict=True):
                same(table.name, name, cell, row[at : at + len(names)])
            at += len(names)
        assert at == len(head)


NAMES = {
    "a grid with strata": "effects successive changes interactions cells levels setting troubles",
    "small differences": "effects interactions cells factors main-effects runs cost",
    "masked": "probe-grid",
    "tuned": "rates effects-by-rate",
    "tuned (reference)": "rates tuning-changed",
    "scaling (reference)": "fits curves-compared predictions isoflop counts",
}


AS_PROBE_GRID = {"corrupted-grid", "linear-probes"}  # by the same function


def test_each_kind_of_table_is_looked_at(reported: Written, request: pytest.FixtureRequest) -> None:
    case = request.node.callspec.params["reported"]
    assert {*NAMES[case].split()} <= {table.name for table in reported.tables}
    made = set(
        re.findall(
            r'(?:Table\(|_table\(\s*data,)\s*"([\w-]+)"',
            "".join(map(Path.read_text, REPORT.glob("*.py"))),
        )
    )
    assert made == {*" ".join(NAMES.values()).split()} | AS_PROBE_GRID


def same(table: str, column: str, cell: str | Value, fields: list[str]) -> None:
    """The fields of a CSV file are the values behind a cell, and its text is those, rounded."""
    where = table, column, cell, fields
    if not isinstance(cell, Value) or isinstance(cell.value, str):
        assert fields[0] == (cell.value if isinstance(cell, Value) else cell), where
        return
    values = [float(field) if field else math.nan for field in fields]
    assert agrees(cell.text, values[0]), where
    if not isinstance(cell, Span | Estimate):
        assert " to " not in cell.text, f"an interval as one number: {where}"
        return
    low, high = values[-2:]
    assert math.isnan(low) or low <= high, where
    if isinstance(cell, Estimate) and not re.search(r"crossing", cell.text):
        first, _, last = re.split(r"\(|expected |from ", cell.text, maxsplit=1)[1].partition(" to ")
        assert agrees(first, low) and agrees(last, high), where
    elif isinstance(cell, Span) and cell.text.strip("–"):
        first, _, last = cell.text.partition(" to ")
        assert agrees(first, low) and agrees(last, high), where


def frame_has(table: Table, head: list[str], rows: list[list[str]]) -> None:
    """Every column of the table is among those of the frame that its CSV file has."""
    known = FRAMES[table.name]
    columns = {name: [row[head.index(name)] for row in rows] for name in head}
    for place, name in enumerate(table.columns):
        if name == "effect / sd":
            expected = [
                [str(float(m) / float(s)) if float(s or 0) else ""]
                for m, s in zip(columns["mean"], columns["sd"], strict=True)
            ]
        elif name in known:
            expected = [
                list(part) for part in zip(*(columns[one] for one in known[name]), strict=True)
            ]
        else:  # the metric, by its name
            expected = [[one] for one in columns["metric"]]
        for row, fields in zip(table.rows, expected, strict=True):
            cell: Any = row[place]
            if isinstance(cell, Span):
                same(table.name, name, cell, fields)
            elif isinstance(cell, Value):
                assert agrees(cell.text, float(fields[0]) if fields[0] else math.nan), (
                    table.name,
                    name,
                    cell,
                    fields,
                )
            else:
                assert cell == fields[0], (table.name, name)
