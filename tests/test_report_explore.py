"""What a reader does with the section "Explore" of a page, in a real browser."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import re
import sqlite3
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from browser import Browser, Page
from report_study import NAN, Outcome, column, study, svg_only  # noqa: F401

from ablate import report, store, units
from ablate.report import appendix, bundle, explore, pictures, plots, tables
from ablate.report.document import Figure, shown
from ablate.report.figure_set import FigureSet

LEVELS = ("serial", "parallel", "concat", "no-skip")
FACTORS = {
    "topology": {name: {"topology": name} for name in LEVELS},
    "n_layer": {"4": {"n_layer": 4}, "12": {"n_layer": 12}},
}
SEEDS = 3
STEPS = (100, 200, 300, 400, 500)


def value(topology: str, layers: str, seed: int, step: int) -> float:
    """The held-out loss that the run of these levels has at a step."""
    far = 3.0 if topology == "no-skip" else 0.1 * LEVELS.index(topology)
    return 1.0 + far + 0.01 * seed + 0.5 * (layers == "4") + 2 * math.exp(-step / 100)


def outcome(levels: dict[str, str], seed: int) -> Outcome:
    points = {step: value(levels["topology"], levels["n_layer"], seed, step) for step in STEPS}
    if levels == {"topology": "concat", "n_layer": "4"} and seed == 2:
        error = 'Traceback\n  File "/home/someone/secret/train.py", line 3\nOSError: <b>no disk</b>'
        return Outcome(status="failed", error=error)
    if levels == {"topology": "concat", "n_layer": "12"} and seed == 1:
        early = {step: points[step] for step in STEPS[:3]}
        return Outcome(status="diverged", step=300, points=early | {300: NAN})
    if "lr" in levels:
        points = {step: 9.0 - step / 100 for step in STEPS}
    return Outcome(points[500] if "lr" not in levels else 4.0, points=points, seconds=20 + seed)


def draw_little(figure_set: FigureSet) -> None:
    """Save a small SVG for each figure: the figures themselves are looked at elsewhere."""
    figure_set.folder.mkdir(parents=True)
    for name in figure_set.drawings:
        mark = '<circle cx="9" cy="9" r="5" fill="#232629"/>'
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 20 20">{mark}</svg>'
        (figure_set.folder / f"{name}.svg").write_text(svg)


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """A study of four arms in two strata, with tuning runs, a failed and a diverged run."""
    folder = tmp_path_factory.mktemp("explore")
    options: dict[str, Any] = {"seeds": SEEDS, "within": ["n_layer"], "rates": [0.001, 0.004]}
    with study(folder, FACTORS, outcome, **options) as db:
        data = report.gather(db, "topology")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(FigureSet, "draw", draw_little)
            page = report.write(data, folder / "report")
        found = explore.exploration(data)
        numbers = {
            (run["topology"], str(run["n_layer"]), run["seed"]): run["run"]
            for run in data.compared.to_dict("records")
        }
        yield SimpleNamespace(page=page, data=data, found=found, numbers=numbers)


@pytest.fixture
def tab(chromium: Browser, studied: SimpleNamespace) -> Iterator[Page]:
    with chromium.page(studied.page) as page:
        ready(page)
        yield page
        assert page.problems() == []


def ready(page: Page) -> None:
    """Wait until the chart is drawn as chosen."""
    page.value(
        "(async () => { while (!ablateExplore.chart.view || ablateExplore.chart.busy)"
        " await new Promise((next) => setTimeout(next, 10));"
        " await ablateExplore.chart.view.runAsync(); })()"
    )


def drawn(page: Page) -> list[dict[str, Any]]:
    """The points that Vega draws: k line, a arm, s stratum, kind, x, y, low, high."""
    ready(page)
    points: list[dict[str, Any]] = page.value(
        "ablateExplore.chart.view.data('points').map(({k, a, s, kind, x, y, low, high}) =>"
        " ({k, a, s, kind, x, y, low, high}))"
    )
    return points


def signal(page: Page, name: str) -> Any:
    ready(page)
    return page.value(f"ablateExplore.chart.view.signal({json.dumps(name)})")


def listed(page: Page) -> list[int]:
    """Numbers of the runs in the table, from top to bottom."""
    return [
        int(text)
        for text in page.value(
            "[...document.querySelectorAll('#explore-runs tbody a')].map((one) => one.textContent)"
        )
    ]


def drawer(page: Page) -> str:
    """The text of the open drawer, "" where it is closed."""
    page.value("new Promise((next) => setTimeout(next, 30))")  # the address changed
    text: str = page.value(
        "(() => { const box = document.querySelector('#explore-drawer');"
        " return box.open ? box.innerText : ''; })()"
    )
    return text


# -- the data --------------------------------------------------------------------------------------


def test_an_exploration_has_every_run_with_its_curve(studied: SimpleNamespace) -> None:
    found = json.loads(json.dumps(studied.found, allow_nan=False))
    runs = found["runs"]
    numbers = column(runs["run"])
    assert len(numbers) == 4 * 2 * (SEEDS + 2)
    (loss,) = found["series"]
    curves = dict(
        zip(column(loss["run"]), zip(column(loss["at"]), loss["values"], strict=True), strict=True)
    )
    for (topology, layers, seed), run in studied.numbers.items():
        if topology == "concat" and seed > 0:
            continue
        steps, values = curves[run]
        assert loss["steps"][steps] == list(STEPS)
        expected = [value(topology, layers, seed, step) for step in STEPS]
        assert values == pytest.approx(expected, rel=5e-4)
    diverged = curves[studied.numbers["concat", "12", 1]]
    assert diverged[1][-1] is None  # NaN is no JSON
    at = numbers.index(studied.numbers["parallel", "4", 2])
    assert runs["metric"][at] == pytest.approx(value("parallel", "4", 2, 500), rel=5e-4)
    cells = found["cells"]
    assert cells["label"][runs["cell"][at]] == "topology=parallel, n_layer=4"
    assert column(cells["levels"]["n_layer"])[runs["cell"][at]] == "4"
    baseline = cells["baseline"][runs["cell"][at]]
    assert cells["label"][baseline] == "topology=serial, n_layer=4"
    configs = [found["configs"][place] for place in runs["config"]]
    assert configs[at]["topology"] == "parallel" and configs[at]["n_layer"] == 4
    assert not set(found["common"]) & set(found["varied"])


def test_curves_are_thinned_to_fit_and_the_page_says_so(
    studied: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore, "FEWEST", 3)
    monkeypatch.setattr(explore, "NUMBERS", 30)
    found = explore.exploration(studied.data)
    (loss,) = found["series"]
    assert 10 >= len(column(loss["run"])) >= 7
    kept = [loss["steps"][at] for at in column(loss["at"])]
    assert all(len(steps) <= 3 for steps in kept)
    assert [100, 300, 500] in kept
    assert len(found["thinned"]) == 3


def test_curves_of_few_runs_are_of_every_cell(
    studied: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore, "FEWEST", 3)
    monkeypatch.setattr(explore, "NUMBERS", 3 * 4 * 2)
    (loss,) = explore.exploration(studied.data)["series"]
    levels = {run: (topology, layers) for (topology, layers, _), run in studied.numbers.items()}
    seeds = {run: seed for (_, _, seed), run in studied.numbers.items()}
    kept = column(loss["run"])
    assert sorted(levels[run] for run in kept) == sorted(set(levels.values()))
    assert {seeds[run] for run in kept} == {0}, "with their pairs"


def test_the_metric_of_very_many_runs_has_fewer_digits_and_the_page_says_so(
    studied: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explore, "EXACT", 5)
    found = explore.exploration(studied.data)
    decimals = studied.data.places + 3
    exact = studied.found["runs"]["metric"]
    assert None in exact
    assert found["runs"]["metric"] == [one and round(one, decimals) for one in exact] != exact
    assert any(f"{decimals} decimals" in note for note in found["thinned"])
    assert not any("decimals" in note for note in studied.found["thinned"])


def test_curves_of_tuning_runs_are_those_that_compared_runs_have(tmp_path: Path) -> None:
    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        falling = {100: 3.0, 200: 2.0}
        return Outcome(2.0, points=falling, series="train_loss" if seed else "loss")

    factors = {"topology": FACTORS["topology"]}
    with study(tmp_path, factors, outcome, seeds=1, rates=[0.001]) as db:
        found = explore.exploration(report.gather(db, "topology"))
    assert [one["name"] for one in found["series"]] == ["loss"], "no line would be in the chart"
    assert found["thinned"] == []


def test_curves_read_in_batches_are_drawn_as_those_read_at_once(
    studied: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines() -> list[tuple[str, list[list[float]]]]:
        figure_set, figures = report.figures_of(studied.data)
        return [
            (figure.name, [line.get_xydata().tolist() for line in figure_set.axes(name).lines])
            for figure in figures
            if (name := figure.name).startswith(("curves", "gaps"))
        ]

    names = ["curves-tokens", "gaps", "curves-flops", "curves-seconds"]
    at_once = lines()
    assert [name for name, _ in at_once] == names
    assert all(len(found) >= len(LEVELS) - 1 for _, found in at_once)
    monkeypatch.setattr(plots, "BATCH", 1)
    assert lines() == at_once


def test_commands_of_a_page_name_another_database_than_the_default(
    studied: SimpleNamespace, tmp_path: Path
) -> None:
    assert studied.found["database"] == ""
    with contextlib.closing(sqlite3.connect(studied.data.db.path)) as given:
        given.execute("VACUUM INTO ?", (str(tmp_path / "my runs.db"),))
    with store.open(str(tmp_path / "my runs.db")) as db:
        found = explore.without_curves(report.gather(db, "topology"), {})
    assert found["database"] == "'my runs.db'"


def test_an_exploration_names_no_folder_of_a_user(studied: SimpleNamespace) -> None:
    text = json.dumps(studied.found)
    assert "no disk" in text
    assert "someone" not in text


def test_attempts_that_failed_have_the_end_of_what_their_script_printed(
    studied: SimpleNamespace,
) -> None:
    db, failed = studied.data.db, studied.numbers["concat", "4", 2]
    (journal,) = studied.data.attempts.query("run == @failed")["journal"]
    log = db.log(journal)
    log.write_text("".join(f"step {n} of /home/someone/run\n" for n in range(1000)))
    try:
        attempts = explore.exploration(studied.data)["attempts"]
        printed = dict(zip(column(attempts["run"]), column(attempts["log"]), strict=True))
        lines = printed.pop(failed).splitlines()
        assert lines == [f"step {n} of ~/run" for n in range(980, 1000)]
        assert set(printed.values()) == {None}
    finally:
        log.unlink()
    log.mkdir()  # a log that cannot be read costs its lines alone
    assert set(column(explore.exploration(studied.data)["attempts"]["log"])) == {None}
    log.rmdir()


def test_what_is_packed_is_what_the_page_unpacks(studied: SimpleNamespace) -> None:
    text = studied.page.read_text(encoding="utf-8")
    packed = dict(re.findall(r'id="packed-(\w+)">([^<]+)<', text))
    assert json.loads(gzip.decompress(b64decode(packed["exploration"]))) == studied.found
    assert gzip.decompress(b64decode(packed["vega"])).decode() == bundle.script()


def test_a_cache_that_cannot_be_written_costs_only_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(bundle, "_bundled", lambda: "made")
    assert bundle.script.__wrapped__() == "made"


def test_a_number_has_the_same_digits_wherever_it_stands(tmp_path: Path) -> None:
    """A deviation over seeds of 0.02 leaves three decimals: 2.100 of seed 0, never 2.1."""
    shift = {"serial": 0.0, "parallel": -0.3}

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        loss = 2.1 + shift[levels["topology"]] + 0.02 * (seed - 1) + 0.00004 * seed
        return Outcome(loss, points={1: 3.0, 2: 2.5, 3: loss + 0.1})

    factors = {"topology": {name: {"topology": name} for name in shift}}
    data = report.gather(study(tmp_path, factors, outcome, seeds=3), "topology")
    assert data.places == 3
    found = explore.exploration(data)
    assert found["metric"]["places"] == 3
    exact = sorted(
        2.1 + add + 0.02 * (seed - 1) + 0.00004 * seed
        for add in shift.values()
        for seed in range(3)
    )
    assert sorted(found["runs"]["metric"]) == pytest.approx(exact, abs=1e-12)
    cells, every = tables.cells(data), appendix.runs(data)
    mean = [shown(row[cells.columns.index("held-out loss")]) for row in cells.rows]
    assert mean == ["2.100", "1.800"]
    singles = [shown(row[5]) for row in every.rows]
    assert sorted(singles) == ["1.780", "1.800", "1.820", "2.080", "2.100", "2.120"]
    assert "parallel (1.800 nats per token)" in report.answer(data)
    page = report.write(data, tmp_path / "out").read_text(encoding="utf-8")
    labels = {text.split(". ")[0]: text for text in re.findall(r'aria-label="([^"]*)"', page)}
    seeds = labels["Held-out loss of every seed"]
    assert "serial: mean 2.100, 2.080 to 2.120 over 3 seeds" in seeds
    curves = labels["Held-out loss over training tokens"]
    assert "parallel: 3.000 first, 1.800 at the end" in curves, "as measured, not as drawn"


def test_figures_of_too_many_marks_become_images(tmp_path: Path) -> None:
    sizes = {"small": 10, "large": 3000, "middle": 100}
    for name, marks in sizes.items():
        circles = "".join(
            f'<circle cx="{at % 90}" cy="50" r="3" fill="#0173b2"/>' for at in range(marks)
        )
        (tmp_path / f"{name}.svg").write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" width="100" height="100">{circles}</svg>'
        )
    figures = [Figure(name, f"The {name} one", "", tmp_path / f"{name}.svg") for name in sizes]
    whole = pictures.embedded(figures, room=10**6)
    assert all("<svg" in one for one in whole.values())
    some = pictures.embedded(figures, room=12_000)
    assert [name for name, one in some.items() if one.startswith("<img")] == ["large"]
    assert 'alt="The large one"' in some["large"]
    assert sum(map(len, some.values())) <= 12_000


def test_a_figure_may_be_longer_than_an_image(tmp_path: Path) -> None:
    circles = '<circle cx="50" cy="50" r="3" fill="#0173b2"/>' * 3000
    (tmp_path / "long.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="10" height="12000">{circles}</svg>'
    )
    figure = Figure("long", "The long one", "", tmp_path / "long.svg")
    (drawn,) = pictures.embedded([figure], room=12_000).values()
    assert drawn.startswith("<img") and re.search('height="(12000|11999)"', drawn)


def test_tables_are_cut_where_the_page_would_be_too_large(
    studied: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(FigureSet, "draw", draw_little)
    monkeypatch.setattr(report, "SHORTER", 7)
    whole = studied.page.read_text(encoding="utf-8")
    monkeypatch.setattr(pictures, "PAGE", len(whole) - 1)
    page = report.write(studied.data, tmp_path / "report")
    text = page.read_text(encoding="utf-8")
    runs = 4 * 2 * (SEEDS + 2)
    rows = [
        one.split('id="table-runs"')[1].split("</table>")[0].count("<tr>") for one in (whole, text)
    ]
    assert rows == [1 + runs, 1 + 7]
    assert f"The first 7 of {runs} rows are here" in text and "rows are here" not in whole
    assert (page.parent / "tables" / "runs.csv").read_text(encoding="utf-8").count("\n") == 1 + runs


# -- the page --------------------------------------------------------------------------------------


def test_the_table_of_runs_has_the_digits_of_the_page(
    chromium: Browser, studied: SimpleNamespace
) -> None:
    runs, places = studied.found["runs"], studied.found["metric"]["places"]
    exact = dict(zip(column(runs["run"]), runs["metric"], strict=True))
    with chromium.page(studied.page) as page:
        ready(page)
        rows = page.value(
            "[...document.querySelectorAll('#explore-table tr')].map("
            "(row) => [...row.children].map((cell) => cell.textContent))"
        )
    at = next(at for at, name in enumerate(rows[0]) if name.startswith("held-out loss"))
    told = {int(row[0]): row[at] for row in rows[1:] if exact[int(row[0])] is not None}
    assert len(told) > 5
    assert told == {run: f"{exact[run]:.{places}f}" for run in told}


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1280, False)])
def test_the_page_opens_offline_without_a_fault(
    chromium: Browser, studied: SimpleNamespace, width: int, dark: bool
) -> None:
    assert studied.page.stat().st_size < 3e6
    run = studied.numbers["parallel", "4", 0]
    with chromium.page(studied.page, width=width, dark=dark, fragment=f"#run={run}") as page:
        ready(page)
        assert drawer(page)
        assert page.faults() == []
        page.click("#explore-drawer .close")
        assert page.faults() == []
        assert page.value("document.documentElement.scrollWidth - innerWidth") <= 0
        page.value(f"location.hash = 'run={run}'")
        assert page.value("document.querySelector('#explore-drawer').scrollWidth - innerWidth") <= 0
        assert page.value("document.documentElement.scrollWidth - innerWidth") <= 0
        assert page.problems() == []
        asked = [address for address in page.requests() if not address.startswith("data:")]
        assert [address.partition("#")[0] for address in asked] == [studied.page.as_uri()]


def test_without_javascript_the_page_is_as_before(
    chromium: Browser, studied: SimpleNamespace
) -> None:
    with chromium.page(studied.page, script=False) as page:
        seen = page.call("DOMSnapshot.captureSnapshot", computedStyles=["display"])
        strings = seen["strings"]
        document = seen["documents"][0]
        rendered = {
            strings[document["nodes"]["nodeName"][at]] for at in document["layout"]["nodeIndex"]
        }
        assert {"svg", "TABLE", "FIGCAPTION"} <= rendered
        assert not {"DIALOG", "SELECT", "INPUT"} & rendered  # nothing that needs a script


def test_nothing_to_explore_is_printed(tab: Page) -> None:
    tab.media("print")
    assert tab.value("document.querySelector('#explore').offsetHeight") == 0
    assert tab.value("document.querySelector('#effects').offsetHeight") > 0


CONTRAST = """
(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => {
    const linear = (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
    const [x, y, z] = [r, g, b].map((value) => linear(value / 255));
    return .2126 * x + .7152 * y + .0722 * z;
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(one).backgroundColor);
      if (a > 0.5) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !one.checkVisibility()) continue;
    if (one.closest("svg, script, option")) continue;
    const [a, b] = [light(parse(getComputedStyle(one).color)), light(behind(one))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) low.push([walker.currentNode.data, ratio]);
  }
  return low;
})()
"""


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_has_the_contrast_of_wcag_aa(
    chromium: Browser, studied: SimpleNamespace, dark: bool
) -> None:
    run = studied.numbers["concat", "4", 2]
    with chromium.page(studied.page, dark=dark, fragment=f"#run={run}") as page:
        ready(page)
        page.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert page.value(CONTRAST) == []


def test_every_control_has_a_name(tab: Page) -> None:
    unnamed = tab.value(
        "[...document.querySelectorAll('#explore :is(button, select, input), .filter input')]"
        ".filter((one) => !(one.labels?.length || one.textContent.trim() || one.ariaLabel))"
        ".map((one) => one.outerHTML)"
    )
    assert unnamed == []


# -- the chart -------------------------------------------------------------------------------------


def test_lines_are_of_runs_or_of_their_means_and_spread(tab: Page) -> None:
    points = drawn(tab)  # few runs: one line each
    compared = 4 * 2 * SEEDS - 1  # the failed one has no curve
    assert len({point["k"] for point in points}) == compared
    tab.choose("#explore-lines", "mean")
    points = drawn(tab)
    last = {
        (point["a"], point["s"]): point
        for point in points
        if point["kind"] == "mean" and point["x"] == max(one["x"] for one in points)
    }
    assert len(last) == 8
    mean = last["parallel", "n_layer=4"]
    values = [value("parallel", "4", seed, 500) for seed in range(SEEDS)]
    assert mean["y"] == pytest.approx(np.mean(values), rel=1e-3)
    assert (mean["low"], mean["high"]) == pytest.approx((min(values), max(values)), rel=1e-3)
    early = {point["k"] for point in points if point["kind"] == "early"}
    assert len(early) == 1  # the diverged run is no part of the mean
    assert [point["a"] for point in points if point["kind"] == "end"] == ["concat"]


def test_arms_and_seeds_are_hidden_and_isolated(tab: Page) -> None:
    arm = "#explore-arms input[data-value=parallel]"
    tab.click(arm)
    assert {point["a"] for point in drawn(tab)} == set(LEVELS) - {"parallel"}
    tab.click(arm)
    assert {point["a"] for point in drawn(tab)} == set(LEVELS)
    tab.click("#explore-arms li:nth-child(3) button")
    assert {point["a"] for point in drawn(tab)} == {"concat"}
    tab.click("#explore-arms li:nth-child(3) button")  # again: all
    assert {point["a"] for point in drawn(tab)} == set(LEVELS)
    tab.click("#explore-seeds li:nth-child(2) button")
    assert {point["k"].split()[-1] for point in drawn(tab)} == {
        str(run) for (_, _, seed), run in tab_numbers(tab).items() if seed == 1
    }
    tab.click("#explore-all-seeds")
    assert len({point["k"] for point in drawn(tab)}) == 4 * 2 * SEEDS - 1


def test_lines_are_grouped_by_a_factor(tab: Page) -> None:
    tab.click("#explore-arms input[data-value=parallel]")
    tab.choose("#explore-group", "n_layer")
    assert tab.value("[...document.querySelectorAll('#explore-arms input')]"
                     ".map((box) => box.dataset.value)") == ["4", "12"]  # fmt: skip
    tab.choose("#explore-lines", "mean")
    last = {point["a"]: point["y"] for point in drawn(tab) if point["kind"] == "mean"}
    whole = [value(name, "12", seed, 500) for name in LEVELS for seed in range(SEEDS)]
    whole.remove(value("concat", "12", 1, 500))  # which diverged
    assert last.keys() == {"4", "12"} and last["12"] == pytest.approx(np.mean(whole), rel=1e-3)
    tab.click("#explore-arms input[data-value='4']")
    assert {point["a"] for point in drawn(tab)} == {"12"}
    tab.choose("#explore-group", "topology")
    assert {point["a"] for point in drawn(tab)} == set(LEVELS), "nothing is hidden any more"


def tab_numbers(page: Page) -> dict[tuple[str, str, int], int]:
    """Numbers of the compared runs, by arm, stratum and seed, as the page has them."""
    return {
        (arm, stratum, seed): run
        for arm, stratum, seed, run in page.value(
            "ablateExplore.state.data.runs.filter((run) => run.role === 'compare')"
            ".map((run) => [run.cell.arm, run.cell.stratum, run.seed, run.run])"
        )
    }


def test_the_keyboard_hides_an_arm_and_keeps_its_place(tab: Page) -> None:
    tab.value("document.querySelector('#explore-arms input[data-value=parallel]').focus()")
    tab.press(" ")
    assert {point["a"] for point in drawn(tab)} == set(LEVELS) - {"parallel"}
    assert tab.value("document.activeElement.dataset.value") == "parallel"


def test_a_stratum_is_shown_alone(tab: Page) -> None:
    assert len({point["s"] for point in drawn(tab)}) == 2
    tab.choose("#explore-stratum", "=n_layer=12")
    assert {point["s"] for point in drawn(tab)} == {"n_layer=12"}


def test_curves_are_over_steps_tokens_flops_or_time(tab: Page, studied: SimpleNamespace) -> None:
    run = studied.numbers["parallel", "12", 1]
    row = studied.data.compared.set_index("run").loc[run]
    for axis, of in {"tokens": "tokens", "flops": "flops", "time": "seconds", "step": ""}.items():
        tab.choose("#explore-x", axis)
        total = row[of] / row["steps"] if of else 1
        xs = [point["x"] for point in drawn(tab) if point["k"].endswith(f" {run}")]
        assert xs == pytest.approx([step * total for step in STEPS], rel=1e-3), axis


def test_axes_are_logarithmic(tab: Page) -> None:
    for axis in ("x", "y"):
        scale = f"ablateExplore.chart.view.scale('panel0_{axis}').type"
        assert tab.value(scale) == "linear"
        tab.click(f"#explore-{axis}log")
        ready(tab)
        assert tab.value(scale) == "log"


def test_smoothing_is_an_average_weighted_by_spacing_with_a_corrected_start(
    tab: Page, studied: SimpleNamespace
) -> None:
    tab.choose("#explore-smooth", "0.95")
    run = studied.numbers["parallel", "12", 1]
    raw = [value("parallel", "12", 1, step) for step in STEPS]
    newer = json.loads(json.dumps(studied.found))
    (loss,) = newer["series"]
    for steps in (STEPS, (10, 20, 30, 40, 1000)):
        loss["steps"] = [list(steps[: len(of)]) for of in loss["steps"]]
        tab.value(f"ablateExplore.update({json.dumps(newer)})")
        ys = [point["y"] for point in drawn(tab) if point["k"].endswith(f" {run}")]
        at = np.array(steps) * 200 / steps[-1]  # in the parts of training that the weight is of
        own = 1 - 0.95 ** np.diff(at, prepend=2 * at[0] - at[1])  # the share of the points between
        expected = [
            np.average(raw[:count], weights=own[:count] * 0.95 ** (at[count - 1] - at[:count]))
            for count in range(1, 6)
        ]
        assert ys == pytest.approx(expected, rel=1e-3), steps


def test_smoothing_of_few_points_stays_near_them(tab: Page, studied: SimpleNamespace) -> None:
    tab.choose("#explore-smooth", "0.9")
    run = studied.numbers["parallel", "12", 1]
    ys = [point["y"] for point in drawn(tab) if point["k"].endswith(f" {run}")]
    raw = [value("parallel", "12", 1, step) for step in STEPS]
    assert ys == pytest.approx(raw, abs=0.02 * (raw[0] - raw[-1]))


def test_the_axis_fits_arms_near_each_other_until_all_are_asked_for(tab: Page) -> None:
    top = [signal(tab, name) for name in ("y0_low", "y0_high")][1]
    assert top < 4  # no-skip ends above 4
    assert "no-skip" in tab.value("document.querySelector('#explore-beyond').textContent")
    tab.click("#explore-whole")
    assert signal(tab, "y0_high") > 4
    assert tab.value("document.querySelector('#explore-beyond').textContent") == ""
    tab.click("#explore-reset")
    assert signal(tab, "y0_high") == top


def test_each_stratum_has_an_axis_that_fits_its_own_visible_lines(tab: Page) -> None:
    for arm in ("serial", "concat", "no-skip"):
        tab.click(f"#explore-arms input[data-value={arm}]")
    for panel, layers in enumerate(("4", "12")):
        low, high = (signal(tab, f"y{panel}_{end}") for end in ("low", "high"))
        ends = [value("parallel", layers, seed, 500) for seed in range(SEEDS)]
        first = max(value("parallel", layers, seed, STEPS[0]) for seed in range(SEEDS))
        assert low < min(ends) and max(ends) < first < high < first + 0.1 * (first - low)
    assert tab.value("document.querySelector('#explore-beyond').textContent") == ""


def test_the_start_of_long_curves_is_beyond_the_axis_until_all_is_asked_for(
    tab: Page, studied: SimpleNamespace
) -> None:
    newer = json.loads(json.dumps(studied.found))
    (loss,) = newer["series"]
    steps = range(5, 501, 5)
    whole = next(at for at, of in enumerate(loss["steps"]) if of == list(STEPS))
    loss["steps"][whole] = list(steps)
    for at, of in enumerate(column(loss["at"])):
        if of == whole:
            loss["values"][at] = [2 + 5 * math.exp(-step / 20) for step in steps]
    tab.value(f"ablateExplore.update({json.dumps(newer)})")
    assert signal(tab, "y0_high") < 3
    tab.click("#explore-whole")
    assert signal(tab, "y0_high") > 5


def test_the_best_line_is_on_the_axis_and_a_mean_is_over_all_seeds_at_each_step(
    tab: Page, studied: SimpleNamespace
) -> None:
    tab.choose("#explore-stratum", "=n_layer=12")
    newer = json.loads(json.dumps(studied.found))
    (loss,) = newer["series"]
    names = {number: of for of, number in studied.numbers.items()}
    for at, run in enumerate(column(loss["run"])):
        arm, layers, seed = names.get(run, ("", "", 0))  # "": a run made to tune
        if layers == "12":
            level = {"serial": 2.0, "parallel": 2.0002, "concat": 2.0004, "no-skip": 1.0}[arm]
            loss["values"][at] = [level] * len(loss["values"][at])
            if (arm, seed) == ("serial", 2):  # a seed with other points
                loss["steps"].append([150, 200, 500])
                loss["values"][at] = [2.3, 2.6, 2.0]
                places = column(loss["at"])
                places[at] = len(loss["steps"]) - 1
                loss["at"] = places
    tab.value(f"ablateExplore.update({json.dumps(newer)})")
    tab.choose("#explore-lines", "mean")
    tab.choose("#explore-x", "step")
    assert signal(tab, "y0_low") < 1
    mean = [
        (one["x"], one["y"]) for one in drawn(tab) if one["kind"] == "mean" and one["a"] == "serial"
    ]
    assert mean == [(150, pytest.approx(2.1)), (200, pytest.approx(2.2)), (500, pytest.approx(2.0))]


def test_a_line_that_the_axis_shows_is_not_named_as_beyond_it(
    tab: Page, studied: SimpleNamespace
) -> None:
    tab.choose("#explore-stratum", "=n_layer=12")
    newer = json.loads(json.dumps(studied.found))
    loss = newer["series"][0]
    far = {("no-skip", "12", 0): 1.3, ("parallel", "12", 0): 9.0}  # the first is within the axis
    for of, run in studied.numbers.items():
        if of[1] == "12":
            at = column(loss["run"]).index(run)
            curve = [2.0, 2.0, 1.5, 1.2, far.get(of, 1.0 + 0.01 * of[2])]
            loss["values"][at] = curve[: len(loss["values"][at])]
    tab.value(f"ablateExplore.update({json.dumps(newer)})")
    ready(tab)
    assert signal(tab, "y0_high") < 3
    said = tab.value("document.querySelector('#explore-beyond').textContent")
    assert "parallel, 1 of 3 lines" in said
    assert not [name for name in ("serial", "concat", "no-skip") if name in said]


def test_the_chart_is_zoomed_and_moved(tab: Page) -> None:
    tab.choose("#explore-stratum", "=n_layer=12")
    ready(tab)
    width = signal(tab, "x0_high") - signal(tab, "x0_low")
    tab.click("#explore-in")
    low, high = signal(tab, "grid0_x")
    assert high - low == pytest.approx(0.7 * width)
    x, y = tab.middle("#explore-chart canvas")
    for kind, at in (
        ("mouseMoved", 0),
        ("mousePressed", 0),
        ("mouseMoved", 30),
        ("mouseReleased", 30),
    ):
        tab.mouse(
            kind,
            x + at,
            y,
            buttons=0 if kind == "mouseReleased" else int(kind != "mouseMoved" or at > 0),
        )
    moved = signal(tab, "grid0_x")
    assert moved[0] < low and moved[1] - moved[0] == pytest.approx(high - low)
    assert drawer(tab) == ""  # a drag opens nothing
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=120)
    assert signal(tab, "grid0_x") == moved  # the page scrolls
    tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=120, modifiers=2)
    assert np.ptp(signal(tab, "grid0_x")) > np.ptp(moved)
    tab.click("#explore-reset")
    assert signal(tab, "grid0_x") is None


def test_a_finger_scrolls_the_page_until_the_chart_is_zoomed_then_moves_it(tab: Page) -> None:
    tab.call("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=1)
    tab.choose("#explore-stratum", "=n_layer=12")
    ready(tab)

    def swipe(across: int, down: int, end: str = "touchEnd") -> tuple[Any, Any]:
        """Drag a finger from the middle of the chart; return the domains of both axes."""
        x, y = tab.middle("#explore-chart canvas")
        for kind, at in (("touchStart", 0), *(("touchMove", part) for part in range(1, 6))):
            point = {"x": x + across * at / 5, "y": y + down * at / 5}
            tab.call("Input.dispatchTouchEvent", type=kind, touchPoints=[point])
        tab.call("Input.dispatchTouchEvent", type=end, touchPoints=[])
        return signal(tab, "grid0_x"), signal(tab, "grid0_y")

    def press(name: str) -> None:
        tab.click(f"#explore-{name}")
        ready(tab)

    assert swipe(50, 0) == (None, None)
    scroll = "document.querySelector('#explore-chart canvas').getBoundingClientRect().y"
    before = tab.value(scroll)
    assert swipe(0, -100) == (None, None)
    assert tab.value(scroll) < before
    press("in")
    across, along = signal(tab, "grid0_x"), signal(tab, "grid0_y")
    moved = swipe(50, 0)
    assert moved[0][0] < across[0] and np.ptp(moved[0]) == pytest.approx(np.ptp(across))
    moved = swipe(0, -50)
    assert moved[1] == pytest.approx(
        np.array(along) - 50 / signal(tab, "childHeight") * np.ptp(along)
    )
    moved = swipe(30, 0, "touchCancel")
    tab.mouse("mouseMoved", *tab.middle("#explore-chart canvas"))
    assert (signal(tab, "grid0_x"), signal(tab, "grid0_y")) == moved  # the drag has ended
    assert drawer(tab) == ""
    press("reset")
    assert swipe(50, 0) == (None, None)


def place(page: Page, run: int, step: int) -> tuple[float, float]:
    """Where in the window a point of a run's curve is drawn."""
    x, y = page.value(
        "(() => { const { chart } = ablateExplore, host = document.querySelector('#explore-chart');"
        " host.scrollIntoView({block: 'center', behavior: 'instant'});"
        f" const line = chart.lines.find((one) => one.runs[0].run === {run});"
        f" const at = line.steps.indexOf({step}), box = host.getBoundingClientRect();"
        " const panel = ablateExplore.panels()"
        ".find((one) => one.stratum === line.cell.stratum);"
        " return [box.x + panel.x + panel.scales.x(line.xs[at]),"
        " box.y + panel.y + panel.scales.y(line.ys[at])]; })()"
    )
    return x, y


def test_a_curve_tells_its_values_and_opens_its_run(tab: Page, studied: SimpleNamespace) -> None:
    tab.choose("#explore-stratum", "=n_layer=12")
    tab.click("#explore-seeds li:nth-child(1) button")
    ready(tab)
    run = studied.numbers["parallel", "12", 0]
    at = place(tab, run, 300)
    tab.mouse("mouseMoved", *at)
    tip = tab.value("document.querySelector('#explore-chart .tip').innerText")
    assert "parallel" in tip and f"run {run}" in tip
    assert f"{value('parallel', '12', 0, 300):.4g}" in tip
    tab.click_at(*at)
    assert drawer(tab).startswith(f"Run {run}")
    other = studied.numbers["serial", "12", 0]
    tab.click_at(*place(tab, other, 300), shift=True)
    assert tab.value("location.hash") == f"#run={run},{other}"
    tab.press("Escape")
    assert drawer(tab) == "" and tab.value("location.hash") == ""


def test_a_click_on_a_mean_lists_its_runs(tab: Page, studied: SimpleNamespace) -> None:
    tab.choose("#explore-lines", "mean")
    tab.choose("#explore-stratum", "=n_layer=12")
    ready(tab)
    run = studied.numbers["parallel", "12", 0]
    tab.click_at(*place(tab, run, 400))
    assert listed(tab) == sorted(studied.numbers["parallel", "12", seed] for seed in range(SEEDS))


# -- the table of runs and the drawer --------------------------------------------------------------


FILTERS: dict[str, Callable[[tuple[str, str, int]], bool]] = {
    "status=failed": lambda of: of == ("concat", "4", 2),
    "parallel n_layer=4": lambda of: of[:2] == ("parallel", "4"),
    "seed>=1 arm=serial": lambda of: of[0] == "serial" and of[2] >= 1,
    "metric>3 n_layer=12": lambda of: of[:2] == ("no-skip", "12"),
    "nothing-is-called-so": lambda of: False,
    "status!=complete": lambda of: of in [("concat", "4", 2), ("concat", "12", 1)],
    'loss<1.1 arm="serial"': lambda of: of[:2] == ("serial", "12"),
    '"held-out loss" > 4 n_layer != 4': lambda of: of[:2] == ("no-skip", "12"),
    '"training time"<0.34min arm=serial': lambda of: of[0] == "serial" and of[2] == 0,
    'time="21 s" arm=serial': lambda of: of[0] == "serial" and of[2] == 1,
    "seed<0.001k arm=serial": lambda of: of[0] == "serial" and of[2] == 0,
    "arm=serial seed=": lambda of: of[0] == "serial",
}


def test_runs_are_filtered(tab: Page, studied: SimpleNamespace) -> None:
    assert len(listed(tab)) == 4 * 2 * SEEDS
    for text, found in FILTERS.items():
        tab.type("#explore-filter", text)
        expected = sorted(run for of, run in studied.numbers.items() if found(of))
        assert listed(tab) == expected, text
        tab.choose("#explore-filter", "")
        assert len(listed(tab)) == 4 * 2 * SEEDS


def test_the_count_of_runs_tells_what_is_filtered_from_tuning_runs(tab: Page) -> None:
    said = "document.querySelector('#explore-count').textContent"
    compared, tuning = 4 * 2 * SEEDS, 4 * 2 * 2
    assert tab.value(said) == f"{compared} runs; {tuning} tuning runs are not listed"
    tab.type("#explore-filter", "arm=serial")
    assert tab.value(said).startswith(f"{2 * SEEDS} of {compared} runs; {tuning} tuning")
    tab.click("#explore-others")
    assert tab.value(said) == f"{2 * (SEEDS + 2)} of {compared + tuning} runs"


def test_a_condition_that_cannot_be_read_is_named_and_filters_nothing(
    tab: Page, studied: SimpleNamespace
) -> None:
    said = "document.querySelector('#explore-faults').textContent"
    serial = sorted(run for of, run in studied.numbers.items() if of[0] == "serial")
    for condition, named in (
        ("foo=3", "foo"),
        ('"no column"<1', "no column"),
        ("seed<x", "x"),
        ('"no', '"no'),
        ('stratum="n_layer', '="n_layer'),
    ):
        tab.type("#explore-filter", f"arm=serial {condition}")
        assert named in tab.value(said), condition
        assert listed(tab) == serial
        tab.choose("#explore-filter", "")
        assert tab.value(said) == ""


def test_numbers_are_read_as_the_table_prints_them(tab: Page) -> None:
    size = {"T": 1e12, "G": 1e9, "B": 1e9, "M": 1e6, "k": 1e3}
    powers = {"6.6×10¹³": 6.6e13, "10¹⁵": 1e15}
    newer = many(3)
    for count in ("76.7T", "1.25 G", "1.25B", "640k", "3.2M", "1,024", "−0.5", *powers):
        plain = count.rstrip("TGBMk").replace(",", "").replace("−", "-")
        number = powers.get(count) or float(plain)
        number *= size.get(count[-1], 1)
        newer["runs"]["flops"] = [0.99 * number, number, 1.01 * number]
        tab.value(f"ablateExplore.update({json.dumps(newer)})")
        tab.type("#explore-filter", f'flops="{count}"')
        assert listed(tab) == [2], count
        tab.type("#explore-filter", f'flops>"{count}"')
        assert listed(tab) == [3 if number > 0 else 1], count


def test_numbers_look_as_those_of_other_tables(tab: Page) -> None:
    """Ties such as 12,250 and 0.8125 too, which Python rounds to the even digit."""
    sizes = [0, 7, 950, 999.7, 12_250, 12_350, 1.125e6, 999_600, 1.25e9, 7.67e13, 2e15, 3.0449e21]
    metrics = [0.8125, 0.9375, -0.0625, 12.34567, 0.00049, 123456.0, 5e9, -1.5e12, 0.0, 1, 2, 3]
    newer = many(len(sizes))
    newer["metric"]["places"] = 3
    newer["runs"] |= {"params": sizes, "flops": sizes, "metric": metrics}
    tab.value(f"ablateExplore.update({json.dumps(newer)})")
    rows = tab.value(
        "[...document.querySelectorAll('#explore-runs tr')].map("
        "(row) => [...row.children].map((cell) => cell.textContent))"
    )
    shown_of = {name: [row[at] for row in rows[1:]] for at, name in enumerate(rows[0])}
    assert shown_of["parameters"] == [units.count(size) for size in sizes]
    assert shown_of["FLOPs"] == [units.power(size) for size in sizes]
    assert shown_of["loss"] == [units.number(value, 3) for value in metrics]


def test_runs_are_sorted_and_those_of_tuning_shown(tab: Page, studied: SimpleNamespace) -> None:
    runs = studied.data.compared.sort_values("metric", na_position="last")
    heading = "#explore-runs th:nth-child(6) button"
    tab.click(heading)
    complete = list(runs["run"][runs["metric"].notna()])
    assert listed(tab)[: len(complete)] == complete
    tab.click(heading)
    assert listed(tab)[: len(complete)] == complete[::-1]  # what is missing stays last
    tab.click("#explore-others")
    assert len(listed(tab)) == 4 * 2 * (SEEDS + 2)
    tab.click("#explore-charted")
    tab.click("#explore-arms li:nth-child(1) button")
    assert set(listed(tab)) == {run for of, run in studied.numbers.items() if of[0] == "serial"}


def test_a_drawer_tells_what_a_run_is(tab: Page, studied: SimpleNamespace) -> None:
    run = studied.numbers["concat", "4", 2]
    baseline = studied.numbers["serial", "4", 2]
    tab.click(f"#explore-runs a[href='#run={run}']")
    text = drawer(tab)
    assert f"ablate show {run}" in text
    assert f"baseline, run {baseline}" in text
    configuration = tab.value(
        "[...document.querySelectorAll('#explore-drawer .scroll')][1].innerText"
    )
    assert "topology\tconcat\tserial" in configuration and "n_layer" not in configuration
    assert "OSError: <b>no disk</b>" in text  # a text, not a tag
    assert "0123456789ab" in text  # the code's version
    # the focus goes into the drawer, and back
    assert tab.value("document.activeElement.closest('#explore-drawer') !== null")
    tab.press("Escape")
    assert drawer(tab) == ""
    assert tab.value("document.activeElement.textContent") == str(run)


def test_two_runs_are_side_by_side_and_have_an_address(
    chromium: Browser, studied: SimpleNamespace
) -> None:
    run, other = studied.numbers["parallel", "4", 0], studied.numbers["concat", "12", 0]
    with chromium.page(studied.page, fragment=f"#run={run}") as page:
        ready(page)
        page.type("#explore-beside", str(other))
        page.press("Enter")
        for_both = drawer(page)
        assert page.value("location.hash") == f"#run={run},{other}"
    with chromium.page(studied.page, fragment=f"#run={run},{other}") as page:
        ready(page)
        text = drawer(page)
        assert text == for_both
        assert f"ablate compare {run} {other}" in text
        assert "topology\tparallel\tconcat" in text and "n_layer\t4\t12" in text
        page.value("location.hash = '#effects'")
        assert drawer(page) == ""
        page.value("location.hash = '#run=999999'")
        assert drawer(page) == ""
        assert page.problems() == []


def test_the_command_is_copied(tab: Page, studied: SimpleNamespace) -> None:
    run = studied.numbers["parallel", "4", 0]
    tab.value(f"location.hash = 'run={run}'")
    tab.value("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    tab.click("#explore-drawer .command button")
    assert tab.value("window.copied") == f"ablate show {run}"


def test_newer_results_keep_what_the_reader_chose(tab: Page, studied: SimpleNamespace) -> None:
    run = studied.numbers["parallel", "4", 0]
    tab.choose("#explore-lines", "runs")
    tab.choose("#explore-x", "time")
    tab.click("#explore-arms input[data-value=concat]")
    tab.click("#explore-in")
    tab.type("#explore-filter", "seed=0")
    tab.value(f"location.hash = 'run={run}'")
    tab.type("#explore-beside", "12")
    zoom = signal(tab, "grid0_x")
    before = drawn(tab)
    newer = json.loads(json.dumps(studied.found))
    newer["series"][0]["values"] = [
        [one and one + 0.25 for one in values] for values in newer["series"][0]["values"]
    ]
    tab.value(f"ablateExplore.update({json.dumps(newer)})")
    after = drawn(tab)
    assert [point["y"] for point in after] == pytest.approx([point["y"] + 0.25 for point in before])
    assert signal(tab, "grid0_x") == zoom
    assert drawer(tab).startswith(f"Run {run}")
    assert tab.value("document.querySelector('#explore-beside').value") == "12"
    assert tab.value("document.activeElement.id") == "explore-beside"
    assert len(listed(tab)) == 8
    shown = tab.value(
        "['lines', 'x'].map((name) => document.querySelector(`#explore-${name}`).value)"
    )
    assert shown == ["runs", "time"]


def test_static_tables_are_filtered(tab: Page) -> None:
    tab.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    rows = "[...document.querySelector('#table-runs').tBodies[0].rows].filter((row) => !row.hidden)"
    assert tab.value(f"{rows}.length") == 4 * 2 * (SEEDS + 2)
    tab.type("#filter-runs", "concat tune")
    assert tab.value(f"{rows}.length") == 2 * 2
    said = "document.querySelector('#filter-runs').closest('p').querySelector('[role=status]')"
    for typed, left in (
        ('"concat" tune', 2 * 2),
        ('concat "tune 10', 2 * (SEEDS + 2)),
        ('"t c"', 0),
    ):
        tab.type("#filter-runs", typed)
        assert tab.value(f"{rows}.length") == left
        assert ('"tune 10' in tab.value(f"{said}.textContent")) == (typed.count('"') == 1)
    assert tab.value("document.querySelector('#filter-levels')") is None  # short: seen at once


# -- large and small studies -----------------------------------------------------------------------


def many(runs: int) -> dict[str, Any]:
    """An exploration of 40 arms with a curve of 24 points a run, as of a study of so many runs."""
    name = "loss"
    rng = np.random.default_rng(0)
    arms, steps = 40, list(range(10, 250, 10))
    base = 2 * np.exp(-np.arange(24) / 5) + 1
    numbers = list(range(1, runs + 1))
    same = {
        name: {"of": [of], "at": [0] * runs}
        for name, of in {
            "role": "compare",
            "status": "complete",
            "attempts": 1,
            "steps": 240,
            "tokens": 10**6,
            "flops": 10**12,
            "params": 10**5,
            "diverged_at": None,
        }.items()
    }
    empty = (
        "run",
        "n",
        "status",
        "started",
        "seconds",
        "device",
        "host",
        "commit",
        "versions",
        "note",
        "error",
        "log",
    )
    return {
        "study": "many",
        "metric": {"name": name, "series": name, "phrase": name, "label": name, "goal": "min"},
        "factors": ["arm"],
        "strata": [""],
        "arms": [{"name": f"arm-{at}", "color": "", "dash": []} for at in range(arms)],
        "cells": {
            "label": [f"arm-{at}" for at in range(arms)],
            "arm": list(range(arms)),
            "stratum": [0] * arms,
            "baseline": [0] * arms,
            "untrained": [False] * arms,
            "levels": {"arm": [str(at) for at in range(arms)]},
        },
        "runs": {
            "run": numbers,
            "cell": [at % arms for at in range(runs)],
            "seed": [at // arms for at in range(runs)],
            "metric": [1.0] * runs,
            "seconds": [1.0] * runs,
            "config": [0] * runs,
            **same,
        },
        "common": {"lr": 0.1},
        "varied": [],
        "configs": [{}],
        "attempts": {name: [] for name in empty},
        "series": [
            {
                "name": name,
                "label": name,
                "steps": [steps],
                "run": numbers,
                "at": [0] * runs,
                "values": [list((base + rng.normal(0, 0.01, 24)).round(4)) for _ in numbers],
            }
        ],
        "thinned": ["Some."],
    }


def test_five_thousand_runs_are_explored(chromium: Browser, studied: SimpleNamespace) -> None:
    with chromium.page(studied.page) as page:
        ready(page)
        page.choose("#explore-lines", "mean")
        page.value(f"ablateExplore.update({json.dumps(many(5000))})")
        assert len({point["k"] for point in drawn(page)}) == 40
        page.choose("#explore-lines", "runs")
        ready(page)
        assert page.value("ablateExplore.chart.view.data('points').length") == 5000 * 24
        assert len(listed(page)) == 50
        page.click("#explore-more")
        assert len(listed(page)) == 250
        page.type("#explore-filter", "run=4321")
        assert listed(page) == [4321]
        assert page.value("document.documentElement.scrollWidth - innerWidth") <= 0
        assert page.problems() == []


@pytest.mark.usefixtures("svg_only")
@pytest.mark.parametrize(
    ("metric", "series"), [("copy_loss", "copy_loss"), ("era_accuracy", "loss")]
)
def test_the_metric_has_its_curve_or_the_page_says_why_there_is_none(
    chromium: Browser, tmp_path: Path, metric: str, series: str
) -> None:
    def measured(levels: dict[str, str], seed: int) -> Outcome:
        points = {step: value(levels["topology"], "4", seed, step) for step in STEPS}
        return Outcome(0.5, points=points, series=series, finals=[(metric, 0, 0.25)])

    factors = {"topology": FACTORS["topology"]}
    with study(tmp_path, factors, measured, seeds=2, metric=metric) as db:
        page = report.write(report.gather(db, "topology"), tmp_path / "report")
    with chromium.page(page) as tab:
        ready(tab)
        assert tab.value("document.querySelector('#explore-series').value") == series
        ends = [point["y"] for point in drawn(tab) if point["k"] == "topology=serial 1"][-1:]
        assert ends == pytest.approx([value("serial", "4", 0, 500)], rel=1e-3)
        said = tab.value("document.querySelector('#explore-uncurved').innerText")
        assert ("era accuracy" in said) == (metric != series)
        assert tab.problems() == []


@pytest.mark.usefixtures("svg_only")
def test_a_study_without_results_says_so(chromium: Browser, tmp_path: Path) -> None:
    factors = {"topology": FACTORS["topology"]}
    with study(tmp_path, factors, lambda levels, seed: None, seeds=1) as db:
        page = report.write(report.gather(db, "topology"), tmp_path / "report")
    with chromium.page(page) as tab:
        tab.value(
            "(async () => { while (document.querySelector('#explore').hidden)"
            " await new Promise((next) => setTimeout(next, 10)); })()"
        )
        assert len(listed(tab)) == 4
        assert tab.value("document.querySelector('#explore-figure').hidden")
        tab.click("#explore-runs a")
        assert "Not trained yet." in drawer(tab)
        assert tab.problems() == []
