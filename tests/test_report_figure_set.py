"""Figures drawn by several processes are those of one; an error in one ends the command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

import pandas as pd
import pytest
from cli_helpers import Run
from launch_helpers import wait_for
from matplotlib.axes import Axes

from ablate import figures
from ablate.report.figure_set import FigureSet

FRAME = pd.DataFrame(
    {
        "topology": ["serial", "parallel"] * 2,
        "seconds": [1.0, 2.0, 1.5, 2.5],
        "metric": [3.0, 2.0, 3.1, 2.2],
    }
)
forks = pytest.mark.skipif(
    sys.platform != "linux", reason="figures are drawn by several processes on Linux alone"
)
pareto = partial(figures.pareto, hue="topology")


def draw(folder: Path, **hung: object) -> None:
    figure_set = FigureSet(folder, ["svg", "pdf", "png"])
    for name, figure in hung.items():
        figure_set.add(name, name, "", figure, FRAME)  # type: ignore[arg-type]
    figure_set.draw()


def who(folder: Path, frame: pd.DataFrame) -> Axes:
    """A figure that leaves the number of the process that drew it."""
    (folder / str(os.getpid())).touch()
    return pareto(frame)


def broken(frame: pd.DataFrame) -> Axes:
    raise ZeroDivisionError("a figure of nothing")


def killed_apart(parent: int, frame: pd.DataFrame) -> Axes:
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return pareto(frame)


@forks
def test_several_processes_write_the_bytes_that_one_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "drew").mkdir()
    for threads in ("1", "2"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        draw(
            tmp_path / threads,
            a=partial(who, tmp_path / "drew"),
            b=partial(who, tmp_path / "drew"),
            c=pareto,
        )
    names = sorted(path.name for path in (tmp_path / "1").iterdir())
    assert names == [f"{name}.{kind}" for name in "abc" for kind in ("pdf", "png", "svg")]
    for name in names:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes(), name
    drew = {path.name for path in (tmp_path / "drew").iterdir()}
    assert str(os.getpid()) in drew and len(drew) == 3  # this one alone, then two others


@pytest.mark.parametrize("threads", ["1", "2"])
def test_an_error_in_a_figure_is_raised_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], threads: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    with pytest.raises(ZeroDivisionError, match="a figure of nothing"):
        draw(tmp_path, a=pareto, b=broken, c=pareto)
    assert capfd.readouterr().err == ""


@forks
def test_the_figures_of_a_process_that_is_killed_are_drawn_by_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    draw(tmp_path, a=pareto, b=partial(killed_apart, os.getpid()), c=pareto)
    assert sorted(path.stem for path in tmp_path.glob("*.svg")) == ["a", "b", "c"]


def paint(folder: Path) -> None:
    """Draw four figures in two processes, which write their number and wait for "go"."""
    figure_set = FigureSet(folder)
    for name in "abcd":
        figure_set.add(name, name, "", partial(slow, folder, name), FRAME)
    figure_set.draw()


def slow(folder: Path, name: str, frame: pd.DataFrame) -> Axes:
    (folder / f"{name}.{os.getpid()}").touch()
    wait_for(lambda: (folder / "go").exists(), seconds=60)
    return pareto(frame)


@contextmanager
def painter(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that paints, and is at its first two figures."""
    heed = (  # ignored where tests run in the background
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    )
    code = (
        heed
        + "import sys, pathlib, test_report_figure_set as one; one.paint(pathlib.Path(sys.argv[1]))"
    )
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(figures.__file__).parents[2])])
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "2", "MPLBACKEND": "agg"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(lambda: len(begun(folder)) == 2)
        yield process
    finally:
        (folder / "go").touch()
        process.kill()
        process.communicate()


def begun(folder: Path) -> dict[str, int]:
    """Figure → the process that began it."""
    return {
        path.stem: int(path.suffix[1:]) for path in folder.iterdir() if path.suffix[1:].isdecimal()
    }


def alive(process: int) -> bool:
    """Whether it does anything still: one that has ended may wait for somebody to ask after it."""
    stat = Path(f"/proc/{process}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@forks
def test_those_that_draw_end_with_the_one_that_started_them(tmp_path: Path) -> None:
    with painter(tmp_path) as process:
        first = begun(tmp_path)
        process.kill()
        process.wait()
        (tmp_path / "go").touch()
        wait_for(lambda: not any(map(alive, first.values())))
    assert begun(tmp_path) == first


@forks
def test_ctrl_c_ends_those_that_draw_without_a_word_of_theirs(tmp_path: Path) -> None:
    with painter(tmp_path) as process:
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=30)[1]
        wait_for(lambda: not any(map(alive, begun(tmp_path).values())))
    assert said.count("Traceback") == 1 and "KeyboardInterrupt" in said


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_figure_that_cannot_be_saved_ends_the_command_in_one_line(
    ablate: Run, measured: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: str
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    (tmp_path / "pages" / "quickstart" / "figures" / "effects.svg").mkdir(parents=True)
    code, _, err = ablate("report", "quickstart", "--db", measured, "--out", "pages")
    assert (code, err) == (2, "ablate: pages cannot be written: Is a directory\n")
    assert not (tmp_path / "pages" / "quickstart" / "report.html").exists()
