"""The report agrees with scipy, names problems, escapes text, and needs no network."""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import matplotlib as mpl

mpl.use("agg")

import numpy as np
import pandas as pd
import pytest
from browser import Browser
from report_study import NAN, Outcome, few_replicates, study, svg_only, undrawn  # noqa: F401
from scipy import stats

from ablate import paths, report, store, units
from ablate.report import answers, document, fairness, labels, method, scaled
from ablate.report.figure_set import FigureSet
from ablate.scaling import Interval
from ablate.store import Database
from ablate.store import query as queries

LEVELS = ("serial", "parallel", "concat", "no-skip")
TOPOLOGY = {"topology": {name: {"topology": name} for name in LEVELS}}
DEPTHS = {**TOPOLOGY, "n_layer": {"4": {"n_layer": 4}, "12": {"n_layer": 12}}}
STEPS = (250, 500, 750, 1000)
SCRIPTS = 5  # of a page: for tables, two for exploring, and two with what is packed


def losses() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shared = rng.normal(1.5, 0.05, 8)
    shift = {"serial": 0.0, "parallel": 0.05, "concat": 0.001, "no-skip": 1.0}
    return {name: shared + shift[name] + rng.normal(0, 0.01, 8) for name in LEVELS}


class Page(HTMLParser):
    """Tags, attributes and visible text of a page; complains of tags that do not close."""

    VOID = frozenset(("meta", "link", "br", "hr", "img", "input"))

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1] == tag, (self.open[-3:], tag)
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Path]]:
    """A study of eight seeds in which no-skip diverges thrice and concat fails once."""
    folder = tmp_path_factory.mktemp("finished")
    values = losses()

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        name = levels["topology"]
        if name == "no-skip" and seed in (1, 4, 6):
            return Outcome(status="diverged", step=320 + seed, points={250: 9.0})
        if name == "concat" and seed == 7:
            return Outcome(status="failed", error="Traceback\nRuntimeError: out of <b>luck</b>")
        loss = float(values[name][seed])
        points = {step: loss + 3 * math.exp(-step / 200) * (step < 1000) for step in STEPS}
        return Outcome(
            points=points,
            seconds=10.0 + seed + 5 * (name == "concat"),
            finals=[("stream_rms", k, 1.0 + k) for k in range(4)],
        )

    db = study(folder, TOPOLOGY, outcome, seeds=8, base={"lr": 0.002})
    yield db, report.write(report.gather(db, "topology"), folder / "out", ["svg", "pdf", "png"])


# -- numbers ---------------------------------------------------------------------------------------


def test_the_answer_has_scipys_numbers(finished: tuple[Database, Path]) -> None:
    values = losses()
    test = stats.ttest_rel(values["parallel"], values["serial"])
    low, high = test.confidence_interval(0.95)
    text = page(finished[1]).text
    mean = float(np.mean(values["parallel"] - values["serial"]))
    assert (
        f"parallel is worse than serial: it raises held-out loss by {mean:.3f} nats per token "
        f"(95% interval {low:.3f} to {high:.3f}; 8 pairs; Holm p < 0.001 over 3 levels)." in text
    )


def test_a_contrast_with_a_lost_pair_has_no_verdict_on_all_seeds(
    finished: tuple[Database, Path],
) -> None:
    text = page(finished[1]).text
    assert re.search(
        r"concat does not differ significantly from serial on the 7 of 8 seeds .*?: held-out loss"
        r" differs by [+−]0\.0\d+ nats per token "
        r"\(95% interval −0\.0\d+ to \+0\.0\d+; 7 pairs; Holm p = 0\.\d+ over 3 levels\)\. "
        r".*?1 of 8 pairs is lost: concat failed with seed 7\..*?"
        r"It has \d+% more parameters \(without embeddings and head\)",
        text,
    ), text


def test_a_diverged_run_is_named_with_its_step_and_counted(finished: tuple[Database, Path]) -> None:
    text = page(finished[1]).text
    assert "28 of 32 runs are complete, 3 diverged and 1 failed." in text
    assert "3 of 8 pairs are lost: no-skip diverged with seeds 1, 4 and 6." in text
    assert (
        "no-skip failed in 3 of 8 pairs (38%, 95% Wilson interval 14% to 69%), serial in 0" in text
    )
    rows = list(
        csv.DictReader(
            io.StringIO(
                (finished[1].parent / "tables" / "troubles.csv").read_text(encoding="utf-8")
            )
        )
    )
    assert {(row["seed"], row["status"], row["diverged at step"]) for row in rows} == {
        ("1", "diverged", "321"),
        ("4", "diverged", "324"),
        ("6", "diverged", "326"),
        ("7", "failed", ""),
    }
    assert "RuntimeError: out of <b>luck</b>" in {row["error"] for row in rows}
    assert "RuntimeError: out of <b>luck</b>" in text  # shown, not obeyed


def test_tables_have_the_databases_numbers(finished: tuple[Database, Path]) -> None:
    folder = finished[1].parent / "tables"
    values = losses()
    rows = {
        row["level"]: row
        for row in csv.DictReader(io.StringIO((folder / "effects.csv").read_text(encoding="utf-8")))
    }
    difference = values["parallel"] - values["serial"]
    assert float(rows["parallel"]["mean"]) == pytest.approx(difference.mean(), abs=1e-12)
    assert float(rows["parallel"]["p"]) == pytest.approx(stats.ttest_1samp(difference, 0).pvalue)
    assert (rows["no-skip"]["n"], rows["no-skip"]["lost"]) == ("5", "3")
    cells = {
        row["arm"]: row
        for row in csv.DictReader(io.StringIO((folder / "cells.csv").read_text(encoding="utf-8")))
    }
    interval = stats.ttest_1samp(difference, 0).confidence_interval(0.95)
    for end, value in zip(("low", "high"), interval, strict=True):
        assert float(cells["parallel"][f"95% interval, {end}"]) == pytest.approx(value)
    assert float(cells["serial"]["held-out loss"]) == pytest.approx(values["serial"].mean())
    assert float(cells["serial"]["sd"]) == pytest.approx(values["serial"].std(ddof=1))
    assert float(cells["concat"]["seconds"]) == pytest.approx(
        np.mean([15.0 + seed for seed in range(7)])
    )


def test_the_sql_under_each_table_gives_its_numbers(finished: tuple[Database, Path]) -> None:
    db, _ = finished
    gathered = report.gather(db, "topology")
    from ablate.report import appendix, tables

    data = gathered
    sections = report._sections(gathered, FigureSet(finished[1].parent / "again"))
    for table in [
        table
        for section in sections
        for table in section.tables
        if table.name not in ("levels", "fits")
    ]:
        assert table.sql, table.name
        for statement in table.sql.split(";"):
            if statement.strip():
                assert queries.run(db, statement)[1] or "effects" in statement, table.name
    columns, rows = queries.run(db, tables.effects(data).sql.split(";")[0])
    found = {row[columns.index("level")]: row for row in rows}
    for effect in data.effects.itertuples():
        assert found[effect.level][columns.index("pairs")] == effect.n
        assert found[effect.level][columns.index("effect")] == pytest.approx(effect.mean)
    columns, rows = queries.run(db, tables.cells(data).sql)
    means = {row[columns.index("cell")]: row[columns.index("metric")] for row in rows}
    assert means["topology=serial"] == pytest.approx(losses()["serial"].mean())
    assert len(queries.run(db, appendix.troubles(data).sql)[1]) == 4
    assert len(queries.run(db, appendix.runs(data).sql)[1]) == 32


def test_the_page_gives_the_meaning_of_levels_and_what_was_trained(
    finished: tuple[Database, Path],
) -> None:
    text = page(finished[1]).text
    assert "y = P2(x + A(x) + M(x)), no P1" in text
    assert "(n_layer 4, d_model 128, n_head 4 and d_mlp 512)" in text
    assert "weight decay 0.1, grad clip 1, warmup 0.05 and dropout 0" in text


def test_a_higher_accuracy_is_better(tmp_path: Path) -> None:
    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        accuracy = (
            0.5 + 0.01 * seed + (0.1 + 0.001 * seed if levels["topology"] == "parallel" else 0)
        )
        return Outcome(1.0, finals=[("accuracy", 0, accuracy)])

    factors = {"topology": {name: {"topology": name} for name in ("serial", "parallel")}}
    db = study(tmp_path, factors, outcome, metric="accuracy", goal="max")
    text = report.answer(report.gather(db, "topology"))
    assert re.search(
        r"parallel is better than serial: it raises held-out accuracy by 0\.102\d* \(95% interval",
        text,
    ), text
    assert "Holm" not in text  # one level: nothing to correct


# -- the terminal, Markdown, LaTeX -----------------------------------------------------------------


def test_the_terminal_has_the_same_answer(finished: tuple[Database, Path]) -> None:
    text = report.answer(report.gather(finished[0], "topology"))
    assert text.startswith(
        "Which wiring learns fastest?\n28 of 32 runs are complete, 3 diverged and 1 failed.\nThe"
        " best arm by held-out loss is serial"
    )
    shown = page(finished[1]).text
    lines = [line.strip() for line in text.splitlines() if line.startswith("  ")]
    assert len(lines) == 3
    for line in lines:
        assert line in shown
    assert "Not tuned: every run has learning rate 0.002" in text


def test_markdown_has_the_same_answer_and_the_figures(finished: tuple[Database, Path]) -> None:
    folder = finished[1].parent
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "- **parallel** is worse than serial: it raises held-out loss by" in text
    for name in re.findall(r"\]\(([^)]+)\)", text):
        assert (folder / name).is_file(), name
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 20
    assert "out of &lt;b&gt;luck&lt;/b&gt;" in text


def test_latex_has_balanced_rows(finished: tuple[Database, Path]) -> None:
    for path in (finished[1].parent / "tables").glob("*.tex"):
        text = path.read_text(encoding="utf-8")
        assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1
        rows = [line for line in text.splitlines() if line.endswith(r" \\")]
        columns = {len(re.findall(r"(?<!\\)&", row)) for row in rows}
        assert len(columns) == 1, (path, columns)
        assert text.isascii() or re.sub(r"[ä]", "", text).isascii(), set(
            re.findall(r"[^\x00-\x7f]", text)
        )


def test_figures_come_in_three_kinds(finished: tuple[Database, Path]) -> None:
    folder = finished[1].parent / "figures"
    names = {path.stem for path in folder.iterdir()}
    assert {
        "effects",
        "curves-tokens",
        "curves-seconds",
        "curves-flops",
        "gaps",
        "pareto",
        "stream-rms",
    } <= names
    for name in names:
        assert all((folder / f"{name}.{kind}").stat().st_size for kind in ("svg", "pdf", "png"))


# -- the page --------------------------------------------------------------------------------------


def test_the_page_is_whole_and_loads_nothing(finished: tuple[Database, Path]) -> None:
    found = page(finished[1])
    assert len(found.ids) == len(set(found.ids))
    for tag, name, value in found.attributes:
        if name in ("src", "srcset", "data", "action", "poster"):
            raise AssertionError(f"<{tag} {name}={value}>")
        if name in ("href", "xlink:href"):
            outside = re.match(r"[a-z]+:|//", value)
            assert not outside or value == "data:,", (tag, value)
            if value.startswith("#"):
                assert value[1:] in found.ids, value
            elif tag == "a":
                assert (finished[1].parent / value).is_file(), value
    style = finished[1].read_text(encoding="utf-8")
    assert "@import" not in style
    assert "http" not in re.sub(r'(xmlns(:xlink)?=|NS\()"http://www\.w3\.org/[^"]+"', "", style)


def test_the_page_reads_without_scripts(finished: tuple[Database, Path]) -> None:
    found = page(finished[1])
    for needed in (
        "Method",
        "How it was run",
        "torch 2.13.0",
        "0123456789ab",
        "What the study cost",
        "Not tuned",
        "Paired",
    ):
        assert needed in found.text, needed


HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "a'b\"c; DROP TABLE run;--",
    "{{ 7*7 }}",
    "日本語 | Ω",
    "$x$ \\alpha & 50%_",
    "</script><b>",
]


@pytest.mark.usefixtures("few_replicates", "svg_only")
@pytest.mark.filterwarnings("ignore:Glyph")
def test_hostile_names_come_back_as_they_went_in(tmp_path: Path) -> None:
    depth = 'depth "><b onclick=alert(3)>'
    factors = {
        "topology <i>": {name: {"d_model": 64 + 64 * place} for place, name in enumerate(HOSTILE)},
        depth: {"<u>": {"n_layer": 1}, "&amp;": {"n_layer": 2}},
    }
    name, question = "o'brien </title><script>alert(2)</script>", 'Is 1 < 2 & "so" on? {{ 7*7 }}'

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        return Outcome(points=dict.fromkeys(STEPS, 1.0 + 0.1 * seed))

    db = study(tmp_path, factors, outcome, seeds=2, within=[depth], name=name, question=question)
    data = report.gather(db, name)
    path = report.write(data, tmp_path / "out")
    found = page(path)
    for hostile in (*HOSTILE[1:], question):
        assert " ".join(hostile.split()) in found.text, hostile
    tags = {tag for tag, _, _ in found.attributes}
    assert not tags & {"img", "b onclick", "u", "i"}
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert path.read_text(encoding="utf-8").count("<script") == SCRIPTS
    rows = list(
        csv.DictReader(
            io.StringIO((tmp_path / "out" / "tables" / "effects.csv").read_text(encoding="utf-8"))
        )
    )
    assert [row["level"] for row in rows] == HOSTILE[1:] * 2
    from ablate.report import appendix, tables

    for statement in (tables.cells(data).sql, appendix.runs(data).sql):
        assert queries.run(db, statement.rstrip(";"))[1]
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    # the rest is code, shown as it is
    prose = "\n".join(line for line in markdown.splitlines() if not line.startswith("    "))
    assert "<script" not in prose
    assert "<img" not in prose


# -- in a browser ----------------------------------------------------------------------------------

PROBE = """
(() => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
  const box = (e) => e.getBoundingClientRect(), seen = {};
  const table = document.querySelector("#table-cells");
  const heads = [...table.tHead.rows[0].cells];
  const column = heads.findIndex((head) => head.textContent === "held-out loss");
  const values = () => [...table.tBodies[0].rows].map((row) => row.cells[column].dataset.value);
  const click = () => { heads[column].querySelector("button").click(); return values(); };
  seen.up = click(); seen.down = click();
  const shape = (e) => [Math.round(box(e).width), Math.round(box(e).height), e.checkVisibility()];
  seen.figures = [...document.querySelectorAll("figure svg")].map(shape);
  seen.tables = [...document.querySelectorAll("table.sortable")].map(shape);
  seen.names = [...document.querySelectorAll("table.sortable")].map((one) => one.id.slice(6));
  seen.sorted = [...document.querySelectorAll("table.sortable")].map((one) => {
    const rows = () => [...one.tBodies[0].rows].map((row) => row.textContent).sort().join();
    const before = rows();
    for (const button of one.querySelectorAll("th button")) { button.click(); button.click(); }
    return rows() === before && one.querySelectorAll("th[aria-sort=descending]").length === 1;
  });
  seen.cut = [...document.querySelectorAll("figure svg text")].filter((text) => {
    const [mine, whole] = [box(text), box(text.closest("svg"))];
    return mine.left < whole.left - 8 || mine.right > whole.right + 8
      || mine.bottom > whole.bottom + 8;
  }).map((text) => text.textContent);
  seen.overflow = document.documentElement.scrollWidth - innerWidth;
  const mark = document.querySelector("#figure-effects .tip"), at = box(mark);
  const where = { bubbles: true, clientX: at.x, clientY: at.y };
  mark.dispatchEvent(new PointerEvent("pointermove", where));
  const tip = document.querySelector("#tip");
  seen.tip = tip.hidden ? "" : tip.textContent;
  seen.dark = getComputedStyle(document.body).backgroundColor;
  return seen;
})()
"""


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_the_page_in_chromium(
    finished: tuple[Database, Path], chromium: Browser, width: int, dark: bool
) -> None:
    with chromium.page(finished[1], width=width, dark=dark) as tab:
        seen = tab.value(PROBE)
        assert tab.problems() == []
    assert seen["overflow"] <= 0
    assert len(seen["figures"]) >= 6
    assert all(wide > 250 and high > 100 and visible for wide, high, visible in seen["figures"]), (
        seen["figures"]
    )
    assert seen["cut"] == []
    expected = ("effects", "levels", "cells", "cost", "setting", "troubles", "runs")
    assert seen["names"] == list(expected)
    assert all(wide > 250 and high > 50 and visible for wide, high, visible in seen["tables"]), (
        seen["tables"]
    )
    assert all(seen["sorted"])
    assert list(map(float, seen["up"])) == sorted(map(float, seen["up"]))
    assert seen["down"] == seen["up"][::-1]
    assert re.match(r"parallel, seed \d: [+-]0\.\d+", seen["tip"])
    assert (seen["dark"] == "rgb(255, 255, 255)") is not dark


# -- studies that are not as they should be --------------------------------------------------------


def write(tmp_path: Path, outcome, factors=TOPOLOGY, **options) -> str:  # type: ignore[no-untyped-def]
    db = study(tmp_path, factors, outcome, **options)
    data = report.gather(db, "topology")
    text = page(report.write(data, tmp_path / "out")).text
    assert report.answer(data).splitlines()[1] in text
    return text


@pytest.mark.usefixtures("svg_only")
def test_an_empty_study_says_that_nothing_has_run(tmp_path: Path) -> None:
    text = write(tmp_path, lambda levels, seed: None, seeds=2)
    assert "0 of 8 runs are complete and 8 are still to run." in text
    assert "parallel cannot be compared with serial: its runs are not finished." in text


@pytest.mark.usefixtures("svg_only")
def test_an_unfinished_study_reports_what_is_there(tmp_path: Path) -> None:
    text = write(
        tmp_path,
        lambda levels, seed: (
            Outcome(1.0 + 0.1 * seed + 0.01 * len(levels["topology"]) * seed) if seed < 3 else None
        ),
    )
    assert "12 of 20 runs are complete and 8 are still to run." in text
    assert re.search(r"2 pairs (are|have) ", text), text


@pytest.mark.usefixtures("svg_only")
def test_one_seed(tmp_path: Path) -> None:
    text = write(tmp_path, lambda levels, seed: Outcome(1.0), seeds=1)
    assert (
        "parallel has one pair with serial: held-out loss differs by 0.0000 nats per token" in text
    )


@pytest.mark.usefixtures("svg_only")
def test_one_cell(tmp_path: Path) -> None:
    text = write(
        tmp_path, lambda levels, seed: Outcome(1.0 + seed), {"topology": {"serial": {}}}, seeds=2
    )
    assert "The study has no contrast: nothing is compared." in text
    assert "2 of 2 runs are complete." in text


@pytest.mark.usefixtures("svg_only")
def test_all_diverged(tmp_path: Path) -> None:
    text = write(
        tmp_path,
        lambda levels, seed: Outcome(status="diverged", step=9, points={8: math.inf, 9: NAN}),
        seeds=2,
    )
    assert "0 of 8 runs are complete and 8 diverged." in text
    assert (
        "parallel cannot be compared with serial: both pairs are lost: parallel diverged with seeds"
        " 0 and 1; serial diverged with seeds 0 and 1." in text
    )
    assert "failed in 2 of 2 pairs (100%, 95% Wilson interval 34% to 100%)" in text


@pytest.mark.usefixtures("undrawn")
def test_an_arm_that_lost_seeds_is_not_ranked(tmp_path: Path) -> None:
    def outcome(levels: dict[str, str], seed: int) -> Outcome | None:
        name = levels["topology"]
        if name == "no-skip" and seed > 2:
            return Outcome(status="diverged", step=3)
        if name == "concat" and seed == 0:
            return Outcome(status="failed", error="killed")
        if name == "parallel" and seed == 4:
            return None  # still to run: not lost
        return Outcome(
            {"serial": 2.0, "parallel": 2.5, "concat": 3.0, "no-skip": 1.5}[name] + 0.1 * seed
        )

    text = write(tmp_path, outcome)
    assert "Not ranked, because runs failed: concat and no-skip." in text
    assert "Failed and diverged runs are not drawn." in text


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("tail", "warns"), [(1.0, True), (0.0, False)])
def test_arms_that_spread_unequally_come_with_a_warning(
    tmp_path: Path, tail: float, warns: bool
) -> None:
    rng = np.random.default_rng(1)
    factors = {"topology": {"serial": {}, "parallel": {"topology": "parallel"}}}

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        bad = tail * (seed == 3) * (levels["topology"] == "parallel")
        return Outcome(2.0 + bad + float(rng.normal(0, 0.01)))

    text = write(tmp_path, outcome, factors, seeds=8)
    found = re.search(
        r"parallel varies (\d+\.\d) times as much over seeds as serial \(p < 0.001", text
    )
    assert bool(found) is warns
    assert not found or float(found[1]) > 10


@pytest.mark.usefixtures("svg_only")
def test_levels_that_are_bare_values_stand_with_their_factor(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        head, layer = levels["n_head"], levels["n_layer"]
        if (head, layer, seed) == ("2", "1", 0):
            return Outcome(status="diverged", step=3)
        spread = 1.0 if (head, layer) == ("4", "1") else 0.01
        loss = 3.0 if (head, layer) == ("4", "2") else 2.0 + spread * float(rng.normal())
        return Outcome(loss, finals=[("unigram_loss", 0, 3.0)])

    factors = {
        "n_head": {name: {"n_head": int(name)} for name in ("1", "2", "4")},
        "n_layer": {name: {"n_layer": int(name)} for name in ("1", "2")},
    }
    text = write(tmp_path, outcome, factors, seeds=8, within=["n_layer"])
    for said in (
        "1 of 8 pairs is lost: n_head=2 diverged with seed 0.",
        "n_head=2 failed in 1 of 8 pairs (12%, 95% Wilson interval 2.2% to 47%), n_head=1 in 0 (",
        "With failed runs ranked worst n_head=2 is",
        " times as much over seeds as n_head=1 (p < 0.001, Pitman",
        "n_head=4 at n_layer=2 did not learn more than",
    ):
        assert said in text, (said, text)


@pytest.mark.usefixtures("svg_only")
def test_a_baseline_that_diverged_is_blamed(tmp_path: Path) -> None:
    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        if levels["topology"] == "serial" and seed == 0:
            return Outcome(status="diverged", step=3)
        return Outcome(1.0 + 0.1 * seed + 0.01 * seed * len(levels["topology"]))

    text = write(tmp_path, outcome)
    assert "1 of 5 pairs is lost: serial diverged with seed 0." in text


@pytest.mark.usefixtures("svg_only")
def test_the_same_level_twice_shows_no_effect(tmp_path: Path) -> None:
    text = write(
        tmp_path,
        lambda levels, seed: Outcome(1.0 + 0.1 * seed),
        {"topology": {"serial": {}, "again": {"lr": 0.002}}},
    )
    assert "again equals serial exactly in all 5 pairs: held-out loss does not differ." in text


@pytest.mark.usefixtures("undrawn")
def test_strata_have_families_of_their_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = write(
        tmp_path,
        lambda levels, seed: Outcome(float(rng.normal(1, 0.1))),
        DEPTHS,
        within=["n_layer"],
        seeds=3,
    )
    assert "topology at n_layer=4, against serial" in text
    assert "topology at n_layer=12, against serial" in text
    assert "Held-out loss over topology and n_layer." in text  # the heat map
    assert "topology: does its effect change from n_layer=4 to n_layer=12?" in text
    assert "The effect of parallel, concat or no-skip does not change significantly; " in text


@pytest.mark.usefixtures("undrawn")
def test_two_factors_that_change_together_are_not_called_each_by_itself(tmp_path: Path) -> None:
    factors = {
        "activation": {"swiglu": {"activation": "swiglu"}, "gelu": {"activation": "gelu"}},
        "bias": {"none": {"bias": "none"}, "all": {"bias": "all"}},
    }
    rng = np.random.default_rng(4)
    text = write(tmp_path, lambda levels, seed: Outcome(float(rng.normal(2, 0.1))), factors)
    assert "activation=gelu, bias=all" in text and "activation=gelu, bias=none" in text
    assert "each arm against the baseline" in text and "each factor by itself" not in text


@pytest.mark.usefixtures("undrawn")
def test_parts_taken_away_one_at_a_time_are_corrected_together(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    factors = {
        "activation": {"swiglu": {"activation": "swiglu"}, "gelu": {"activation": "gelu"}},
        "bias": {"none": {"bias": "none"}, "all": {"bias": "all"}},
        "norm": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
    }
    noise = {name: rng.normal(0, 0.01, 5) for name in ("swiglu", "gelu", "all", "post")}

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        part = next(
            (level for level in levels.values() if level in ("gelu", "all", "post")), "swiglu"
        )
        return Outcome(2.0 + 0.5 * (part == "gelu") + float(noise[part][seed]))

    text = write(tmp_path, outcome, factors, design="leave-one-out")
    p = [
        stats.ttest_1samp(noise[part] - noise["swiglu"] + 0.5 * (part == "gelu"), 0).pvalue
        for part in ("gelu", "all", "post")
    ]
    assert "each part left out, against the baseline (" in text
    assert "baseline (activation=swiglu, bias=none, norm=pre)" in text
    assert re.search(
        r"activation=gelu is worse than swiglu: .*?; 5 pairs; Holm p < 0.001 over 3 parts", text
    ), text
    holm = min(1.0, max(3 * min(p), 2 * sorted(p)[1]))
    least = ("bias=all", "norm=post")[int(np.argmin(p[1:]))]
    assert re.search(
        rf"{least} does not differ .{{,150}}; 5 pairs; Holm {labels.p_value(holm)} over 3 parts",
        text,
    ), (holm, text)


@pytest.mark.usefixtures("few_replicates", "undrawn")
def test_many_contrasts_are_summarised_with_each_further_below(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    depths = {**TOPOLOGY, "n_layer": {str(n): {"n_layer": n} for n in (1, 2, 3, 4)}}
    shift = {"serial": 0.0, "parallel": -0.5, "concat": 0.0, "no-skip": 1.0}

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        return Outcome(2.0 + shift[levels["topology"]] + float(rng.normal(0, 0.02)))

    db = study(tmp_path, depths, outcome, within=["n_layer"])
    data = report.gather(db, "topology")
    path = report.write(data, tmp_path / "out")
    first, below = page(path).text.split("All runs", 1)
    answer = report.answer(data)
    for text in (answer, first):
        assert re.search(
            r"best arm by held-out loss is parallel in 4 of 4 strata \(n_layer=1; n_layer=2;"
            r" n_layer=3; 1 more\)",
            text,
        ), text
        assert "it lowers" not in text
    assert "In brackets: the difference in held-out loss (nats per token)" in answer
    assert re.search(
        r"parallel \(−0\.\d+, −0\.\d+ to −0\.\d+\) is better than serial; no-skip \(\+\d.*?\)"
        r" is worse than serial; "
        r"concat is not significantly different from serial: only effects of 0\.\d+ nats per"
        r" token or more",
        answer,
    ), answer
    assert below.count("parallel is better than serial: it lowers held-out loss by") == 4
    markdown = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert markdown.count("**parallel** is better than serial: it lowers held-out loss by") == 4


@pytest.mark.usefixtures("few_replicates", "svg_only")
def test_an_ordered_factor_and_sizes_have_their_figures(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    factors = {
        "topology": {"serial": {}, "parallel": {"topology": "parallel"}},
        "n_layer": {str(n): {"n_layer": n} for n in (2, 4, 8, 16)},
    }
    text = write(
        tmp_path,
        lambda levels, seed: Outcome(
            float(3 * int(levels["n_layer"]) ** -0.1 + rng.normal(0, 0.001))
        ),
        factors,
        within=["n_layer"],
        seeds=3,
    )
    assert "Held-out loss over n_layer." in text
    assert "Held-out loss over size." in text and "L(N) = " in text
    assert "Effects of parallel on held-out loss over n_layer." in text


@pytest.mark.parametrize("unlimited", ["0", "none"])
@pytest.mark.usefixtures("svg_only")
def test_a_level_without_limit_stands_right_of_all_numbers(tmp_path: Path, unlimited: str) -> None:
    clips = {unlimited: 0.0, "0.5": 0.5, "2": 2.0}
    write(
        tmp_path,
        lambda levels, seed: Outcome(float(clips[levels["grad_clip"]] + seed)),
        {"grad_clip": {level: {"grad_clip": value} for level, value in clips.items()}},
        seeds=2,
    )
    figure = (tmp_path / "out" / "figures" / "over-grad_clip.svg").read_text(encoding="utf-8")
    told = re.findall(r"grad_clip (\S+): \S+ over 2 runs", figure)
    assert told == ["0.5", "2", "none"]


@pytest.mark.usefixtures("svg_only")
def test_tuning_has_its_curve_and_its_cost_and_is_not_compared(tmp_path: Path) -> None:
    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        if levels.get("lr") == "0.01":
            return Outcome(status="diverged", step=5, seconds=1.0)
        loss = 5.0 + 1e4 * abs(float(levels["lr"]) - 1e-3) if "lr" in levels else 1.0 + 0.1 * seed
        return Outcome(points=dict.fromkeys(STEPS, loss), seconds=3.0)

    text = write(
        tmp_path,
        outcome,
        seeds=2,
        rates=(3e-4, 1e-3, 3e-3, 1e-2),
        toml='[tune]\nlr = [3e-4, 1e-2]\nper = "topology"\n',
    )
    assert "8 of 8 runs are complete." in text
    assert "Tuned: the learning rate for each topology, on separate seeds (chosen: 0.001)." in text
    assert "Held-out loss over the learning rate." in text
    data = report.gather(store.open(str(tmp_path / "ablate.db")), "topology")
    axes = report.figures_of(data)[0].axes("curves-tokens")
    assert 1 < axes.dataLim.ymax < 2  # what was tried is in no learning curve
    rows = list(
        csv.DictReader(
            io.StringIO((tmp_path / "out" / "tables" / "cost.csv").read_text(encoding="utf-8"))
        )
    )
    found = {
        (row["role"], row["outcome"]): (row["attempts"], float(row["device time"])) for row in rows
    }
    assert found == {
        ("tune", "complete"): ("12", 36.0),
        ("tune", "diverged"): ("4", 4.0),
        ("compare", "complete"): ("8", 24.0),
    }


@pytest.mark.usefixtures("svg_only")
def test_a_grid_reports_the_variance_each_factor_explains(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    depth = {"4": 0.0, "12": 1.0}

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        return Outcome(2 - depth[levels["n_layer"]] + float(rng.normal(0, 0.01)))

    write(tmp_path, outcome, DEPTHS, within=["n_layer"])
    rows = list(
        csv.DictReader(
            io.StringIO((tmp_path / "out" / "tables" / "factors.csv").read_text(encoding="utf-8"))
        )
    )
    share = {row["term"]: float(row["variance explained"]) for row in rows}
    assert list(share) == ["seed", "topology", "n_layer", "topology × n_layer", "residual"]
    assert share["n_layer"] > 0.99
    assert sum(share.values()) == pytest.approx(1)


@pytest.mark.usefixtures("svg_only")
def test_losses_that_do_not_compare_share_no_scale(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    factors = {
        "norm": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
        "objective": {
            "causal": {"objective": "causal"},
            "masked": {"objective": "masked", "mask_ratio": 0.4},
        },
    }
    text = write(
        tmp_path,
        lambda levels, seed: Outcome(float(rng.normal(2, 0.1))),
        factors,
        within=["objective"],
        seeds=3,
    )
    assert "held-out loss is not comparable across objective" in text
    assert "Held-out loss over norm and objective." not in text
    assert not (tmp_path / "out" / "figures" / "heat.svg").exists()
    assert not (tmp_path / "out" / "tables" / "factors.csv").exists()


@pytest.mark.usefixtures("undrawn")
def test_an_index_over_studies_links_to_each(tmp_path: Path) -> None:
    db = study(tmp_path, TOPOLOGY, lambda levels, seed: Outcome(1.0 + seed), seeds=2)
    db = study(
        tmp_path,
        TOPOLOGY,
        lambda levels, seed: None,
        seeds=3,
        name="other & more",
        question="Why <not>?",
    )
    path = report.index(db, ["topology", "other & more"], tmp_path / "reports")
    found = page(path)
    links = [value for tag, name, value in found.attributes if (tag, name) == ("a", "href")]
    assert len(links) == 2
    assert all((tmp_path / "reports" / link).is_file() for link in links)
    assert "Why <not>?" in found.text
    assert "No arm is distinguishable as the best by held-out loss: serial (1.5" in found.text
    assert "No arm differs significantly from serial" in found.text


NAMES = (
    *("v1.0", "v1-0", "v1 0", "v1_0", "Quickstart", "quickstart", "QUICKSTART", "a" * 60 + "b"),
    *(
        "a" * 60 + "c",
        "深い",
        "浅い",
        "café",
        "cafe\u0301",
        "straße",
        "strasse",
        "..",
        "-",
        "",
        "🙂",
    ),
    *("ПОРЯДОК", "порядок", "x", "index.html", "../x", "/x", "a\x00", "a\x1b[31m", "q\udc80"),
)


def test_each_study_has_a_folder_of_its_own_on_every_file_system() -> None:
    folders = [paths.file_name(name) for name in (*NAMES, paths.file_name("Quickstart"))]
    # what APFS and NTFS make equal: case, and accents written in one or two characters
    folded = {unicodedata.normalize("NFD", folder.casefold()) for folder in folders}
    assert len(folded) == len(NAMES) + 1
    for folder in folders:
        assert re.fullmatch(r"[\w-]+", folder) and len(folder.encode()) < 250, folder
    kept = ("topology", "quickstart-tiny", "n_layer", "深い", "порядок")
    assert tuple(map(paths.file_name, kept)) == kept
    assert paths.file_name("v1.0").startswith("v1-0-")


@pytest.mark.usefixtures("undrawn")
def test_an_index_links_studies_of_like_names_to_their_own_pages(tmp_path: Path) -> None:
    names = ("v1.0", "v1-0", "V1.0", "深い", "Straße")
    for name in names:
        question = f"Is this {name}?"
        db = study(
            *(tmp_path, TOPOLOGY, lambda levels, seed: Outcome(1.0 + seed)),
            seeds=2,
            name=name,
            question=question,
        )
    found = page(report.index(db, names, tmp_path / "reports"))
    links = [value for tag, name, value in found.attributes if (tag, name) == ("a", "href")]
    assert all(link.isascii() for link in links)
    pages = [(tmp_path / "reports" / unquote(link)).read_text("utf-8") for link in links]
    for name, text in zip(names, pages, strict=True):
        assert f"Is this {name}?" in text


@pytest.mark.usefixtures("few_replicates", "undrawn")
def test_what_nothing_tells_apart_is_not_ranked_and_has_no_brackets(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    depths = {**TOPOLOGY, "n_layer": {str(n): {"n_layer": n} for n in (1, 2, 3, 4)}}
    share = {"metric": "accuracy", "goal": "max"}
    db = study(
        tmp_path,
        depths,
        lambda levels, seed: Outcome(2.0, finals=[("accuracy", 0, float(rng.uniform()))]),
        within=["n_layer"],
        seeds=3,
        **share,
    )
    text = report.answer(report.gather(db, "topology"))
    assert "In brackets" not in text
    assert "No arm is distinguishable as the best by held-out accuracy in 4 of 4 strata" in text
    assert re.search(
        r"None of 3 \(parallel, concat and no-skip\) differs significantly from serial: no possible"
        r" effect .* it would have to be \d\.\d+ to \d\.\d+, and shares differ by at most 1\.",
        text,
    ), text
    index = page(report.index(db, ["topology"], tmp_path / "reports")).text
    assert "No arm differs significantly from serial: no possible effect" in index, index


# -- words -----------------------------------------------------------------------------------------


def test_what_is_detectable_of_several_contrasts_has_the_least_and_the_most() -> None:
    """The smallest effect of the noisiest contrast is not that of the others."""
    loss, share = labels.metric_labels("loss", "min"), labels.metric_labels("accuracy", "max")
    assert "0.17 to 0.46 nats per token" in labels.detectable(loss, [0.46, NAN, 0.17])
    assert " to " not in labels.detectable(loss, [0.17, 0.17])
    assert labels.detectable(loss, [NAN]) == ""
    some = labels.detectable(share, [1.25, 0.5])
    assert some.startswith("only effects of 0.50 or more") and "have to be 1.2" in some
    assert labels.detectable(share, [2.5, 1.5]).startswith("no possible effect")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (units.plural(1, "pair"), "1 pair"),
        (units.listed(["a (1, 2)", "b (3, 4)"]), "a (1, 2) and b (3, 4)"),
        (units.listed(["a=1, b=2", "a=2, b=2"], "or"), "a=1, b=2; or a=2, b=2"),
        (
            labels.metric_labels("corrupted_loss@0.3", "min").phrase,
            "loss with 30% of the text hidden",
        ),
        (method._values([4, 12, 4]), "4 or 12"),
        (method._values([448, 170, 256, 172, 300]), "170 to 448"),
        (units.plural(2000, "pair"), "2,000 pairs"),
        (units.listed(["a"]), "a"),
        (units.listed("abc"), "a, b and c"),
        (units.listed([]), ""),
        (units.listed(range(12)), "0, 1, 2, 3, 4, 5, 6 and 5 more"),
        (units.signed(0.00001, 3), "0.000"),
        (units.signed(-0.02, 3), "−0.020"),
        (units.number(math.inf), "∞"),
        (units.number(NAN), "–"),
        (units.ends(-0.111, -0.0002, 3), "−0.111 to −0.0002"),
        (units.ends(0.00004, 0.2, 2), "+0.00004 to +0.20"),
        (units.ends(-0.1, 0.0, 2), "−0.10 to 0.00"),
        (units.ends(0.0004, 0.2, 3, units.number), "0.0004 to 0.200"),
        (scaled.gap(Interval(0.0004, 0.00002, 0.01)), "+0.04% (+0.002% to +1.00%)"),
        (scaled.change(Interval(0.1, -math.inf, 0.0001)), "+0.100 (−∞ to +0.0001)"),
        (labels.p_value(0.0004), "p < 0.001"),
        (labels.p_value(0.0497), "p = 0.0497"),
        (labels.p_value(0.0502), "p = 0.050"),
        (labels.p_value(0.5), "p = 0.50"),
        (document.tex("50%_x & 3×10¹⁴"), r"50\%\_x \& 3$\times$10$^{14}$"),
        (document.markdown("a|b\n*c* <d>"), r"a\|b \*c\* &lt;d&gt;"),
    ],
)
def test_words(given: str, said: str) -> None:
    assert given == said


def test_a_table_of_positions_is_a_mismatch_of_all_parameters(tmp_path: Path) -> None:
    positions = {"position": {name: {"position": name} for name in ("rotary", "learned")}}
    db = study(
        tmp_path,
        positions,
        lambda levels, seed: Outcome(1.0 + seed),
        seeds=2,
        base={"n_layer": 1, "d_model": 32},
    )
    learned, rotary = (
        size
        for (size,) in queries.run(db, "SELECT DISTINCT n_params FROM runs ORDER BY position")[1]
    )
    said = (
        f"the largest difference from a baseline is {labels.percent(learned / rotary - 1)} of all"
        " parameters."
    )
    assert said in report.answer(report.gather(db, "topology"))


def test_the_mismatch_is_of_what_was_matched(tmp_path: Path) -> None:
    widths = {"width": {"64": {"d_mlp": 64}, "80": {"d_mlp": 80}}}
    for quantity in ("body", "total"):
        folder = tmp_path / quantity
        folder.mkdir()
        text = f'name = "topology"\n[match]\nparams = "{quantity}"\n'
        db = study(
            folder,
            widths,
            lambda levels, seed: Outcome(1.0 + seed),
            seeds=2,
            base={"n_layer": 1, "d_model": 32},
            toml=text,
        )
        sizes = queries.run(db, "SELECT n_params, n_params_body FROM runs ORDER BY cell, run")[1]
        wide, narrow = sizes[-1], sizes[0]
        off = (wide[0] / narrow[0] if quantity == "total" else wide[1] / narrow[1]) - 1
        said = (
            "all parameters"
            if quantity == "total"
            else "the parameters without embeddings and head"
        )
        assert (
            f"the largest difference from a baseline is {labels.percent(off)} of {said}"
            in report.answer(report.gather(db, "topology"))
        )


@pytest.mark.usefixtures("svg_only")
def test_no_file_of_a_report_names_a_host_or_a_folder_of_a_user(tmp_path: Path) -> None:
    def outcome(levels: Mapping[str, str], seed: int) -> Outcome:
        failed = levels["topology"] == "concat" and seed == 1
        error = 'File "/scratch/alice/x.py"\nOSError: /home/alice/texts/t.txt is not there'
        return Outcome(status="failed", error=error) if failed else Outcome(1.0 + seed)

    base = {"corpus": "/home/alice/texts/t.txt", "corpus_hash": "ab" * 32}
    db = study(tmp_path, TOPOLOGY, outcome, seeds=3, base=base)
    with db.begin() as connection:
        connection.exec_driver_sql("UPDATE attempt SET host = 'laptop-of-alice'")
    report.write(report.gather(db, "topology"), tmp_path / "out")
    texts = [
        path.read_text("utf-8")
        for path in (tmp_path / "out").rglob("*")
        if path.suffix in (".html", ".md", ".csv", ".tex", ".svg")
    ]
    assert len(texts) > 10 and any("t.txt is not there" in text for text in texts)
    for text in texts:
        assert "alice" not in text and str(tmp_path) not in text


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "transformer": {"architecture": "transformer"},
    "encoder-decoder": {"architecture": "encoder-decoder"},
    # without attention a run has no heads: n_head has its default
    "rnn-seq2seq": {"architecture": "rnn-seq2seq", "mixer": "rnn", "n_head": 4},
}


@pytest.mark.usefixtures("svg_only")
@pytest.mark.parametrize(
    ("arms", "apart"),
    [(["transformer", "encoder-decoder"], True), (["encoder-decoder", "rnn-seq2seq"], False)],
)
def test_the_page_of_a_study_of_pairs(tmp_path: Path, arms: list[str], apart: bool) -> None:
    """A position of a model with one stack counts the source, one of a decoder does not."""

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        worse = levels["architecture"] == arms[1]
        loss = 2.0 + 0.5 * worse + 0.01 * seed ** (2 if worse else 1)
        return Outcome(loss, finals=[("loss_at_position", at, loss) for at in (0.0, 1.0, 2.0)])

    base = {"objective": "pairs", "n_head": 2, "n_layer": 1, "d_model": 16, "n_layer_encoder": 1}
    factors = {"architecture": {name: {**base, **ARCHITECTURES[name]} for name in arms}}
    data = report.gather(study(tmp_path, factors, outcome, base=base), "topology")
    text = page(report.write(data, tmp_path / "out")).text
    assert ("over the position" not in text) is apart
    assert "the objective pairs" in text and f"architecture {' or '.join(sorted(arms))}" in text
    assert "n_head 2 and" in text and "2 or 4" not in text
    assert "targets of up to 256 held-out pairs are decoded, by beams of width 1 and 4" in text
    # of two arms, the other one is named
    assert re.search(
        rf"best arm by held-out loss is {arms[0]} \(.*?\): {arms[1]} is significantly worse\.", text
    )


def test_sizes_that_are_known_are_stated_beside_those_that_are_not() -> None:
    def matched(*found: tuple[float, float, float]) -> str:
        sizes = [
            SimpleNamespace(params_body=body, params=every, flops=flops)
            for body, every, flops in found
        ]
        data: Any = SimpleNamespace(
            study=SimpleNamespace(own=False),
            settings={},
            compared=pd.DataFrame(),
            findings=SimpleNamespace(of=lambda kind: sizes),
        )
        return fairness._matched(data)

    nan = math.nan
    assert "sizes are not known" in matched((nan, nan, nan))
    assert "parameters and the training FLOPs" in matched((0.0, 0.0, 0.0))
    one = matched((nan, 0.2, -0.3), (0.1, 0.1, nan))
    assert "10% of the parameters without" in one and "20% of all" in one and "30% of the tr" in one
    assert "without embeddings and head and the training FLOPs are not known of every arm" in one
    assert "has all parameters of its baseline" in matched((nan, 0.0, nan))
    begun = matched((0.0, 0.0, math.inf))  # relative to no training
    assert "inf" not in begun and "FLOPs" not in begun and "their baselines do not" in begun


def test_the_range_of_many_effects_is_not_said_as_an_interval(tmp_path: Path) -> None:
    arms = {f"v{at}": {"weight_decay": 0.01 * at} for at in range(12)}

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        at = int(levels["variant"][1:])
        noise = float(np.random.default_rng([seed, at]).normal(0, 0.01))
        return Outcome(4.0 + (1.0 + at if at else 0.0) + noise)

    text = report.answer(report.gather(study(tmp_path, {"variant": arms}, outcome), "topology"))
    assert re.search(r"All 11 are worse than v0, with differences from \+[12]\.\d+ to \+12\.", text)
    assert "In brackets" not in text


def test_an_interval_for_new_text_is_said_where_it_is_another(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    names = ("serial", "parallel", "concat")
    three = {"topology": {name: TOPOLOGY["topology"][name] for name in names}}
    losses = {name: 2.0 + rng.normal(0, 0.02, 5) for name in names}
    db = study(tmp_path, three, lambda levels, seed: Outcome(losses[levels["topology"]][seed]))
    text = {name: np.zeros(40) for name in losses} | {"concat": rng.normal(0, 0.2, 40)}
    windows = {
        f"topology={name}": pd.DataFrame(of[:, None] + text[name] - text[name].mean())
        for name, of in losses.items()
    }
    data = report.gather(db, "topology")
    vars(data)["windows"] = windows
    said = {one.level: one.text for family in answers.families(data) for one in family.answers}
    assert "For new text" not in said["parallel"] and "For new text" in said["concat"]
    assert "In 1 of 2 effects the interval for new text" in report.answer(data)
