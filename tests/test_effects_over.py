"""The figures of effects over what the strata of a study vary: which there are, what they show."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from matplotlib.axes import Axes
from report_study import Levels, Outcome, study

from ablate import report, results

TOPOLOGY = {"serial": {}, "parallel": {"topology": "parallel"}}
SIZES = {"m": {"d_model": 32}, "s": {"d_model": 16}, "l": {"d_model": 64}}
OF_SIZE = {"s": 0.3, "m": 0.2, "l": 0.1}


def drawn(
    folder: Path,
    factors: dict[str, Any],
    effect: dict[str, dict[str, float]],
    within: Sequence[str],
    without: Callable[[Levels], Sequence[str]] = lambda levels: (),
    **options: Any,
) -> dict[str, list[Axes]]:
    """Name → panels of the figures of effects over a factor, of a study in which `effect` gives
    what each level adds to the loss of another topology than serial.

    without: The factors that have no meaning in a cell.
    """

    def outcome(levels: Levels, seed: int) -> Outcome:
        added = sum(of.get(levels.get(factor, ""), 0.0) for factor, of in effect.items())
        return Outcome(2 + 0.001 * seed + added * (levels["topology"] != "serial"))

    db = study(folder, {"topology": TOPOLOGY} | factors, outcome, within=within, seeds=3, **options)
    data = report.gather(db, "topology")
    for levels in data.levels.values():
        for factor in without(levels):
            del levels[factor]
    assert report.overview.matrix(data), "the table of all strata"
    figure_set, found = report.figures_of(data)
    return {
        one.name.removeprefix("effects-over-"): figure_set.axes(one.name).figure.axes  # type: ignore[union-attr]
        for one in found
        if one.name.startswith("effects-over-")
    }


def lines(ax: Axes) -> dict[str, list[float]]:
    """Name in the legend → effects in the order of x."""
    legend = ax.get_legend() or ax.figure.legends[0]
    named = {
        text.get_text(): handle.get_color()
        for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)
    }
    joined = {
        line.get_color(): [float(y) for y in line.get_ydata()]
        for line in ax.lines
        if line.get_linestyle() not in ("None", "") and len(set(line.get_xdata())) > 2
    }
    return {name: joined[color] for name, color in named.items() if color in joined}


def places(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.get_xticklabels()]


@pytest.fixture(autouse=True)
def closed() -> Any:
    yield
    plt.close("all")


def test_sizes_of_named_levels_and_a_line_for_each_other_stratum(tmp_path: Path) -> None:
    contexts = {"128": {"n_ctx": 128}, "64": {"n_ctx": 64}}
    figures = drawn(
        tmp_path,
        {"mean": SIZES, "n_ctx": contexts},  # mean: a column of the effects too
        {"mean": OF_SIZE, "n_ctx": {"64": 0.05}},
        ["mean", "n_ctx"],
    )
    [ax] = figures.pop("mean")
    assert not figures, "two contexts have no order worth a figure"
    assert ax.get_xlabel() == "body parameters"
    found = lines(ax)
    assert list(found) == ["n_ctx=64", "n_ctx=128"], "numbers by size"
    assert found["n_ctx=128"] == pytest.approx([0.3, 0.2, 0.1])
    assert found["n_ctx=64"] == pytest.approx([0.35, 0.25, 0.15])


def test_arms_are_lines_and_other_strata_are_panels(tmp_path: Path) -> None:
    figures = drawn(
        tmp_path,
        {
            "topology": TOPOLOGY | {"concat": {"topology": "concat"}},
            "n_layer": {str(n): {"n_layer": n} for n in (4, 2, 16)},
            "norm": {"pre": {"norm": "pre"}, "post": {"norm": "post"}},
        },
        {"n_layer": {"2": 0.3, "4": 0.2, "16": 0.1}, "norm": {"post": 0.5}},
        ["n_layer", "norm"],
    )
    [(name, panels)] = figures.items()
    assert name == "n_layer"
    assert [ax.get_title(loc="left") for ax in panels] == ["norm=pre", "norm=post"]
    for ax, added in zip(panels, (0.0, 0.5), strict=True):
        for line in lines(ax).values():
            assert line == pytest.approx([0.3 + added, 0.2 + added, 0.1 + added])
        assert places(ax) == ["2", "4", "16"]


def test_factors_whose_names_end_each_other_are_kept_apart(tmp_path: Path) -> None:
    batches = {"few": {"batch_tokens": 1024}, "many": {"batch_tokens": 2048}}
    norms = {name: {"norm": name} for name in ("pre", "post")}
    factors = {"topology": TOPOLOGY, "batch_size": batches, "norm": norms, "size": SIZES}
    effect = {"size": OF_SIZE, "batch_size": {"many": 0.5}}
    figures = drawn(tmp_path, factors, effect, ["batch_size", "norm", "size"])
    assert list(results.orders("topology", str(tmp_path / "ablate.db"))) == list(factors)
    found = lines(figures["size"][0])
    assert found["batch_size=few, norm=pre"] == pytest.approx([0.3, 0.2, 0.1])
    assert found["batch_size=many, norm=post"] == pytest.approx([0.8, 0.7, 0.6])


@pytest.mark.parametrize("first", ["rotary", "learned"])
@pytest.mark.parametrize("deep", [(2, 4, 8), ()])
def test_a_field_without_meaning_in_some_strata(
    tmp_path: Path, first: str, deep: Sequence[int]
) -> None:
    positions = sorted(("rotary", "learned"), key=lambda name: name != first)
    thetas = {"1000.0": 0.3, "10000.0": 0.2, "100000.0": 0.1}
    depths = {"n_layer": {str(n): {"n_layer": n} for n in deep}} if deep else {}
    others = [
        {"topology": topology, "position": "learned", "rope_theta": theta}
        | ({"n_layer": str(depth)} if deep else {})
        for topology, theta, depth in itertools.product(TOPOLOGY, list(thetas)[1:], deep or (0,))
    ]
    figures = drawn(
        tmp_path,
        {
            "position": {name: {"position": name} for name in positions},
            "rope_theta": {name: {"rope_theta": float(name)} for name in thetas},
            **depths,
        },
        {"rope_theta": thetas},
        ["position", "rope_theta", *depths],
        left_out=others,
        without=lambda levels: ["rope_theta"] if levels["position"] == "learned" else [],
    )
    found = lines(figures["rope_theta"][0])
    name = "position=rotary, n_layer=8" if deep else "position=rotary"
    assert found[name] == pytest.approx([0.3, 0.2, 0.1])
    if deep:
        assert lines(figures["n_layer"][0])["position=learned"] == pytest.approx([0.3] * 3)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_level_without_limit_is_the_last(tmp_path: Path, number: int) -> None:
    clips = dict(list({"none": 0.1, "0.5": 0.3, "1": 0.2, "2": 0.15}.items())[: number + 1])
    figures = drawn(
        tmp_path,
        {
            "grad_clip": {
                name: {"grad_clip": 0.0 if name == "none" else float(name)} for name in clips
            }
        },
        {"grad_clip": clips},
        ["grad_clip"],
    )
    assert bool(figures) == (number > 1), "three levels or more"
    if figures:
        [ax] = figures["grad_clip"]
        assert places(ax)[-1] == "none"
        assert lines(ax)["parallel"][-1] == pytest.approx(0.1)


def test_levels_of_nearly_one_size_have_no_figure(tmp_path: Path) -> None:
    same = {name: {"d_mlp": width} for name, width in (("a", 256), ("b", 257), ("c", 258))}
    assert not drawn(tmp_path, {"kind": same}, {"kind": {"a": 0.1}}, ["kind"])
