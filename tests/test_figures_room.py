"""What stands in a figure has room there: words inside the image and apart, names that tell arms
apart, intervals in the axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import report_frames
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ablate import figures, scaling
from ablate.figures import style


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


LONG = "difference in novel accuracy of a linear probe at 4× the context (nats per token)"
RUNS = pd.DataFrame(
    {
        "x": ["1", "2"] * 2,
        "y": ["a", "a", "b", "b"],
        "metric": [1.0, 1.1, 1.2, 1.3],
        "arm": ["p", "q"] * 2,
    }
)


def blocks(label: str) -> Axes:
    return figures.blocks(
        pd.DataFrame({"arm": "a", "run": 0, "block": [0, 1, 2], "value": [0.1, 0.5, 1.0]}),
        label=label,
    )


def gaps(label: str) -> Axes:
    return figures.gaps(report_frames.curves(("a",), seeds=1, points=5), label=label)


def heat(label: str) -> Axes:
    return figures.heat(RUNS, x="x", y="y", label=label)


def pareto(label: str) -> Axes:
    return figures.pareto(RUNS.assign(seconds=[1.0, 2.0, 3.0, 4.0]), label=label)


def effects(label: str) -> Axes:
    rows = {
        "mean": [0.1, 0.2],
        "lo": [0.0, 0.1],
        "hi": [0.2, 0.3],
        "n": 3,
        "significant": True,
        "stratum": "",
        "factor": "f",
    }
    names = pd.Categorical(["a level with a long name", "another, as long a name"])
    frame = pd.DataFrame(
        rows
        | {"level": names.astype(str), "cell": ["a", "b"], "family": "f", "baseline_level": "base"}
    )
    none = pd.DataFrame(columns=["family", "cell", "seed", "difference"]).astype(
        {"difference": float}
    )
    return figures.effects(frame.assign(arm=names), none, label=label)


@pytest.mark.parametrize("draw", [blocks, gaps, heat, pareto, effects])
@pytest.mark.parametrize("label", ["mean cosine similarity of tokens", LONG])
def test_the_names_of_axes_are_inside_the_image(draw: Callable[[str], Axes], label: str) -> None:
    figure = draw(label).figure
    with style.theme():
        figure.draw_without_rendering()  # type: ignore[union-attr]
        for axis in [
            axis for ax in figure.axes for axis in (ax.xaxis, ax.yaxis) if axis.label.get_text()
        ]:
            box = axis.label.get_window_extent()
            assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, axis.label.get_text()
            assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1, axis.label.get_text()


# -- legends ---------------------------------------------------------------------------------------


def test_arms_of_several_factors_have_distinct_names() -> None:
    kinds, ratios = ("span", "whole-word"), ("0.3", "0.5")
    grid = [
        f"mask_ratio × mask_kind × position={ratio} × {kind} × alibi"
        for ratio in ratios
        for kind in kinds
    ]
    levels = [
        "0.3 × span × alibi",
        "0.3 × whole-word × alibi",
        "0.5 × span × alibi",
        "0.5 × whole-word × alibi",
    ]
    assert style.entries(["baseline", "position=alibi", *grid]) == [
        "baseline",
        "position=alibi",
        *levels,
    ]
    assert style.entries(["mask_kind=token, position=learned", "a"]) == ["token, learned", "a"]


def test_names_with_equal_levels_keep_their_factors_on_two_lines() -> None:
    names = ["n_head × attention_scale=on × off", "n_head × outer_activation=on × off"]
    found = style.entries(names)
    assert [name.replace("\n", " ") for name in found] == names
    assert all(len(line) <= 30 for name in found for line in name.split("\n")) and "\n" in found[0]
    cut = style.entries(["a" * 50 + "$" + "b" * 50])[0]
    assert cut.count("\n") == 1 and "…" in cut and len(cut) < 65


def test_a_legend_of_two_lines_each_covers_nothing() -> None:
    names = tuple(
        f"no factor, but many words about the arm of number {number}" for number in range(6)
    )
    ax = figures.curves(report_frames.curves(names, seeds=1, points=5))
    with style.theme():
        ax.figure.draw_without_rendering()  # type: ignore[union-attr]
        legend = ax.figure.legends[0].get_window_extent()  # type: ignore[union-attr]
        assert legend.y0 >= 0 and legend.y1 <= ax.xaxis.label.get_window_extent().y0
        assert ax.get_window_extent().height > 1.2 * ax.figure.dpi


# -- axes ------------------------------------------------------------------------------------------


def test_intervals_end_inside_the_axes() -> None:
    rng = np.random.default_rng(1)
    rows = [
        (x, f"{arm:02}", rng.normal())
        for x in (0.15, 0.4, 0.6)
        for arm in range(12)
        for _ in range(3)
    ]
    ax = figures.ordered(pd.DataFrame(rows, columns=["x", "arm", "metric"]), x="x", hue="arm")
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    whiskers = [line for line in ax.lines if len(line.get_xdata()) == 2]  # type: ignore[arg-type]
    assert len(whiskers) == 36
    box = ax.get_window_extent()
    for line in whiskers:
        for x, y in line.get_transform().transform(np.array(line.get_xydata())):
            assert box.x0 < x < box.x1 and box.y0 < y < box.y1


@pytest.mark.parametrize(
    ("low", "high"), [(3.2, 11), (1.2, 2.4), (0.9, 2.2), (2.4, 6.5), (1, 900), (1e-3, 1e9)]
)
def test_a_short_log_axis_has_ticks_enough_to_be_read_as_one(low: float, high: float) -> None:
    ax = plt.subplots()[1]
    ax.set_yscale("log")
    ax.set_ylim(low, high)
    style.ticks(ax, "y", log=True)
    words = [
        label.get_text()
        for at, label in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)
        if low <= at <= high
    ]
    assert 4 <= len(words) <= 14 and all(words)


def test_what_is_written_at_lines_does_not_overlap() -> None:
    grid = pd.DataFrame(
        [(n, n * ratio) for n in (1e7, 1e8, 4e8) for ratio in (5, 10, 20, 40, 80, 160, 320, 640)],
        columns=["n", "d"],
    )
    frame = grid.assign(c=6 * grid["n"] * grid["d"], curve="all", held_out=False)
    frame = frame.assign(loss=1.8 + 400 * frame["n"] ** -0.34 + 400 * frame["d"] ** -0.28)
    columns = {name: frame[name].to_numpy() for name in ("n", "d", "c")}
    fits = {
        "all": scaling.fit(
            frame["loss"].to_numpy(), "nd", rng=np.random.default_rng(0), bootstraps=30, **columns
        )
    }
    ax = figures.scaling(frame, x="n", fits=fits)
    with style.theme():
        ax.figure.draw_without_rendering()  # type: ignore[union-attr]
        boxes = [text.get_window_extent() for text in ax.texts]
    assert len(boxes) >= 5
    assert not any(
        one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place]
    )


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_a_file_that_has_the_name_of_a_figure_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def interrupted(self: Figure, file: Any, **options: Any) -> None:
        if not hasattr(file, "write"):
            Path(file).touch()
        raise KeyboardInterrupt

    figure = plt.figure()
    figures.save(figure, tmp_path / "whole", [kind])
    monkeypatch.setattr(Figure, "savefig", interrupted)
    with pytest.raises(KeyboardInterrupt):
        figures.save(figure, tmp_path / "part", [kind])
    assert [file.name for file in tmp_path.glob(f"*.{kind}")] == [f"whole.{kind}"]
