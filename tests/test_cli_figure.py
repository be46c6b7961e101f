"""`ablate figure` draws one figure of a report for a paper."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from cli_helpers import Run
from matplotlib import pyplot as plt
from matplotlib.text import Text
from report_study import Outcome, study

from ablate import report
from ablate.figures import Look, looking

FACTORS = {
    "topology": {name: {"topology": name} for name in ("serial", "parallel")},
    "n_layer": {n: {"n_layer": int(n)} for n in "12"},
}


def outcome(levels: dict[str, str], seed: int) -> Outcome:
    return Outcome(2.0 + 0.01 * seed * int(levels["n_layer"]), points={10: 3.0, 20: 2.5, 30: 2.0})


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of two strata, which no test changes."""
    folder = tmp_path_factory.mktemp("stored")
    with study(folder, FACTORS, outcome, within=["n_layer"], seeds=3) as db:
        return db.path


@pytest.fixture
def stored(ablate: Run, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study is in the database of the environment."""
    monkeypatch.setenv("ABLATE_DB", str(database))


def points_of(size: str) -> float:
    """An SVG has 72 points an inch."""
    return float(size.removesuffix("pt")) / 72


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(("width", "inches"), [("84mm", 84 / 25.4), ("3.25in", 3.25), ("", 3.4)])
def test_a_figure_has_the_width_and_the_format_asked_for(
    ablate: Run, width: str, inches: float
) -> None:
    asked = ["--width", width] if width else []
    code, out, err = ablate("figure", "topology", "effects", *asked, "--format", "svg")
    assert (code, out, err) == (0, "topology-effects.svg\n", "")
    root = ET.parse("topology-effects.svg").getroot()
    assert points_of(root.attrib["width"]) == pytest.approx(inches, abs=0.01)


def test_letters_that_no_font_has_are_named(ablate: Run, tmp_path: Path) -> None:
    factors = {"topology": {name: {"topology": name} for name in ("serial", "parallel")}}
    factors["kind"] = {name: {"n_layer": n} for n, name in enumerate(("plain", "\U0001f9ff𖼀"), 1)}
    study(tmp_path, factors, lambda levels, seed: Outcome(2.0 + seed), seeds=2).close()
    drawn = "figure", "topology", "effects", "--db", "ablate.db"
    code, out, _ = ablate(*drawn, "--format", "png")
    assert code == 0 and "𖼀" in out and "boxes" in out
    assert ablate(*drawn, "--format", "svg")[1] == "topology-effects.svg\n"


@pytest.mark.usefixtures("stored")
def test_a_style_keeps_the_width_and_an_unknown_font_is_said_once(ablate: Run) -> None:
    Path("tight.mplstyle").write_text("savefig.bbox: tight\nfont.family: Times Nowhere\n")
    asked = ("figure", "topology", "effects", "--style", "tight.mplstyle", "--width", "3.25in")
    code, _, err = ablate(*asked, "--out", "a.svg")
    assert code == 0 and len(err.splitlines()) == 1 and "'Times Nowhere'" in err
    assert points_of(ET.parse("a.svg").getroot().attrib["width"]) == pytest.approx(3.25, abs=0.01)


@pytest.mark.usefixtures("stored")
def test_every_figure_that_is_listed_can_be_drawn(ablate: Run) -> None:
    code, listed, _ = ablate("figure", "topology")
    names = re.findall(r"^ ([a-z-]+) {2,}\S", listed, re.MULTILINE)[1:]
    assert code == 0 and "effects" in names and "curves-tokens" in names
    for name in names:
        assert ablate("figure", "topology", name, "--out", "one.pdf")[0] == 0
        assert Path("one.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.usefixtures("stored")
def test_fonts_keep_their_size_at_every_width() -> None:
    from ablate import store

    with store.open() as db:
        figure_set, _ = report.figures_of(report.gather(db, "topology"))
    sizes = []
    for width in (2.5, None, 7.0):
        with looking(Look(width)):
            figure = figure_set.axes("curves-tokens").figure.figure
        assert figure.get_figwidth() == (width or 6.8)
        sizes.append({text.get_fontsize() for text in figure.findobj(Text) if text.get_text()})
        plt.close(figure)
    assert sizes[0] == sizes[1] == sizes[2]


@pytest.mark.usefixtures("stored")
def test_a_style_file_reaches_the_figure_and_nothing_else(ablate: Run) -> None:
    Path("paper.mplstyle").write_text("font.family: monospace  # of the journal\n")
    asked = ("figure", "topology", "effects", "--format", "svg")
    plain = (ablate(*asked), Path("topology-effects.svg").read_text())[1]
    styled = (
        ablate(*asked, "--style", "paper.mplstyle"),
        Path("topology-effects.svg").read_text(),
    )[1]
    assert "monospace" in styled and "monospace" not in plain
    assert (ablate(*asked), Path("topology-effects.svg").read_text())[1] == plain


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("effect",), ("'effect'", "Choices: effects")),
        (("effects", "--width", "3 furlong"), ("'furlong'", "in, cm, mm, pt")),
        (("effects", "--width", "wide"), ("--width", "3.25in")),
        (("effects", "--width", "nanin"), ("--width = nanin", "3.25in")),
        (("effects", "--width", "3mm"), ("--width = 3mm", "2in to 20in")),
        (("effects", "--format", "jpg"), ("'jpg'", "pdf, svg, png")),
        (("effects", "--out", "a.png", "--format", "pdf"), ("a.png", "--format = pdf")),
        (("effects", "--out", "a.jpg"), ("a.jpg", ".pdf, .svg, .png")),
        (("effects", "--style", "none.mplstyle"), ("none.mplstyle", "No such file")),
        (("effects", "--style", "pipe.mplstyle"), ("pipe.mplstyle", "regular file")),
        (("effects", "--style", "bad.mplstyle"), ("bad.mplstyle", "'font.famly'")),
        (("effects", "--style", "huge.mplstyle"), ("huge.mplstyle", "'huge'")),
        (("effects", "--style", "tex.mplstyle"), ("tex.mplstyle", "latex")),
    ],
)
def test_a_mistake_is_one_line(
    ablate: Run, arguments: tuple[str, ...], said: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # no LaTeX
    os.mkfifo("pipe.mplstyle")  # nothing writes to it: it is not waited for
    Path("bad.mplstyle").write_text("font.famly: serif\n")
    Path("huge.mplstyle").write_text("font.size: huge\n")
    Path("tex.mplstyle").write_text("text.usetex: True\n")
    code, out, err = ablate("figure", "topology", *arguments)
    assert code == 2 and not out and len(err.splitlines()) == 1
    assert all(word in err for word in said), err
    assert not list(Path().glob("topology-*"))
