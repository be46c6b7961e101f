"""Figures, looked at through their Axes: where points, intervals and labels stand, not pixels."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import report_frames
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from scipy import stats

from ablate import analysis, figures, units
from ablate.figures import compare, fonts, style, training
from ablate.figures.cost import front
from ablate.figures.rates import far as far_at_rates


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def effects_of(pairs: pd.DataFrame) -> pd.DataFrame:
    rows = pd.DataFrame([asdict(row) for row in analysis.of_pairs(pairs)])
    order = report_frames.arms(["serial", *dict.fromkeys(pairs["level"])])
    return rows.assign(baseline_level="serial", arm=rows["level"].astype(order))


def line_at(ax: Axes, y: float, points: int) -> list[Line2D]:
    return [
        line
        for line in ax.lines
        if len(line.get_xdata()) == points and np.allclose(line.get_ydata(), y)
    ]  # type: ignore[arg-type]


def heights(ax: Axes) -> dict[str, float]:
    return {
        label.get_text(): y for y, label in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True)
    }


# -- effects ---------------------------------------------------------------------------------------


def test_effects_are_drawn_at_their_numbers() -> None:
    pairs = report_frames.pairs(strata=("",))
    ax = figures.effects(effects_of(pairs), pairs)
    for level, y in heights(ax).items():
        differences = pairs.loc[pairs["level"] == level, "difference"]
        interval = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
        [whisker] = line_at(ax, y, 2)
        assert tuple(whisker.get_xdata()) == pytest.approx(tuple(interval))  # type: ignore[arg-type]
        dots = [line.get_xdata()[0] for line in line_at(ax, y, 1)]  # type: ignore[index]
        assert sorted(dots) == pytest.approx(sorted([*differences, differences.mean()]))


def test_every_stratum_has_its_heading_and_its_levels() -> None:
    pairs = report_frames.pairs()
    ax = figures.effects(effects_of(pairs), pairs)
    assert len(ax.get_yticks()) == 8
    assert [text.get_text() for text in ax.texts] == [
        "n_layer=4: against serial",
        "n_layer=12: against serial",
    ]


def test_only_what_is_resolved_is_filled() -> None:
    pairs = report_frames.pairs(strata=("",))
    effects = effects_of(pairs)
    ax = figures.effects(effects, pairs)
    filled = {}
    for level, y in heights(ax).items():
        mark = next(line for line in line_at(ax, y, 1) if line.get_alpha() is None)
        filled[level] = mark.get_markerfacecolor() != style.PAPER
    assert filled == dict(zip(effects["level"], effects["resolved"], strict=True))
    assert set(filled.values()) == {True, False}


def test_a_level_far_out_does_not_flatten_the_others() -> None:
    pairs = report_frames.pairs({**report_frames.LEVELS, "no-skip": 1.5}, strata=("",))
    ax = figures.effects(effects_of(pairs), pairs)
    assert ax.get_xlim()[1] < 0.2
    assert any("+1.5" in text.get_text() and "▶" in text.get_text() for text in ax.texts)


def test_a_level_far_out_keeps_its_interval() -> None:
    """An interval of −1.8 to +2.9 around +0.5 is not decided, though its mean is off the axis."""
    pairs = report_frames.pairs({**report_frames.LEVELS, "post": 0.5}, strata=("",))
    wide = pairs["level"] == "post"
    noise = np.random.default_rng(0).normal(0, 2.0, wide.sum())
    value = pairs.loc[wide, "baseline_value"] + 0.5 + noise - noise.mean()
    pairs.loc[wide, "value"] = value
    pairs.loc[wide, "difference"] = pairs["value"] - pairs["baseline_value"]
    found = effects_of(pairs).set_index("level").loc["post"]
    ax = figures.effects(effects_of(pairs), pairs)
    low, high = ax.get_xlim()
    assert high < 0.2 and found["lo"] < low and high < found["hi"]
    whole = [line for line in ax.lines if tuple(line.get_xdata()) == (low, high)]  # type: ignore[arg-type]
    assert len(whole) == 1
    y = whole[0].get_ydata()[0]  # type: ignore[index]
    arrows = {line.get_marker(): line.get_xdata()[0] for line in line_at(ax, y, 1)}  # type: ignore[index]
    assert arrows["<"] == low and arrows[">"] == high
    (text,) = (text.get_text() for text in ax.texts if "▶" in text.get_text())
    numbers = [float(part.replace("−", "-")) for part in re.findall(r"[+−][\d.]+", text)]
    assert numbers == pytest.approx([found["mean"], found["lo"], found["hi"]], rel=5e-3)


def test_a_higher_accuracy_is_better() -> None:
    pairs = report_frames.pairs(strata=("",))
    assert (
        figures.effects(effects_of(pairs), pairs, goal="max").get_xlabel().endswith("better\xa0→")
    )
    assert figures.effects(effects_of(pairs), pairs, goal="min").get_xlabel().endswith("worse\xa0→")


def test_effects_without_a_single_pair() -> None:
    pairs = report_frames.pairs(strata=("",), seeds=2).assign(
        status="diverged", value=math.nan, difference=math.nan
    )
    ax = figures.effects(effects_of(pairs), pairs)
    assert sum("no pair" in text.get_text() for text in ax.texts) == 4


def test_effects_of_one_seed_have_no_interval() -> None:
    pairs = report_frames.pairs(strata=("",), seeds=1)
    ax = figures.effects(effects_of(pairs), pairs)
    for y in heights(ax).values():
        assert not line_at(ax, y, 2)
        assert line_at(ax, y, 1)


# -- over training ---------------------------------------------------------------------------------


def test_curves_are_means_in_a_band_from_lowest_to_highest() -> None:
    frame = report_frames.curves()
    ax = figures.curves(frame)
    for line, name in zip(ax.lines, report_frames.LEVELS, strict=True):
        table = frame[frame["arm"] == name].pivot(index="tokens", columns="seed", values="value")
        assert list(line.get_xdata()) == list(table.index)  # type: ignore[arg-type]
        assert list(line.get_ydata()) == pytest.approx(list(table.mean(axis=1)))  # type: ignore[arg-type]
    band = ax.collections[0].get_paths()[0].vertices
    table = frame[frame["arm"] == "serial"].pivot(index="tokens", columns="seed", values="value")
    assert band[:, 1].min() == pytest.approx(table.min(axis=1).min())
    assert band[:, 1].max() == pytest.approx(table.max(axis=1).max())


def test_arms_keep_their_colour_where_others_are_missing() -> None:
    frame = report_frames.curves()
    whole = figures.curves(frame)
    part = figures.curves(frame[frame["arm"] != "no-attention-skip"])
    assert part.lines[-1].get_color() == whole.lines[-1].get_color()


def test_a_diverged_run_is_a_line_of_its_own_with_a_cross() -> None:
    frame = report_frames.curves(("serial", "parallel"))
    lost = (frame["arm"] == "parallel") & (frame["seed"] == 1)
    frame = frame[~(lost & (frame["step"] > 1200))].assign(
        diverged_at=lambda f: f["run"].map({4: 1234})
    )
    ax = figures.curves(frame)
    mean = (
        frame[(frame["arm"] == "parallel") & (frame["seed"] != 1)].groupby("tokens")["value"].mean()
    )
    assert any(
        list(line.get_ydata()) == pytest.approx(list(mean))
        for line in ax.lines
        if len(line.get_xdata()) == len(mean)
    )  # type: ignore[arg-type]
    [cross] = [line for line in ax.lines if line.get_marker() == "x"]
    last = frame[(frame["arm"] == "parallel") & (frame["seed"] == 1)].iloc[-1]
    assert (cross.get_xdata()[0], cross.get_ydata()[0]) == (last["tokens"], last["value"])  # type: ignore[index]
    assert "diverged at step 1234" in cross.get_gid()  # type: ignore[operator]


def test_axes_are_named_with_their_units() -> None:
    ax = figures.curves(report_frames.curves(), x="seconds", label="held-out loss (nats per token)")
    assert ax.get_xlabel() == "training time (s)"
    assert ax.get_ylabel().replace("\n", " ") == "held-out loss (nats per token)"


def test_gaps_have_zero_in_the_picture() -> None:
    frame = report_frames.curves()
    ax = figures.gaps(frame.assign(value=frame["value"] - 1.0))
    low, high = ax.get_ylim()
    assert low <= 0 <= high


def test_nan_and_infinity_in_a_curve_are_left_out_without_an_error() -> None:
    frame = report_frames.curves(("serial",))
    frame.loc[frame["step"] > 2000, "value"] = [math.nan, math.inf] * (
        (frame["step"] > 2000).sum() // 2
    ) + [math.nan] * ((frame["step"] > 2000).sum() % 2)
    ax = figures.curves(frame)
    assert np.isfinite(ax.lines[0].get_ydata()).all()  # type: ignore[arg-type]


def test_blocks_take_a_log_axis_where_the_stream_explodes() -> None:
    rows = [
        {"arm": arm, "run": seed, "block": block, "value": growth**block}
        for arm, growth in (("a", 1.0), ("b", 2.5))
        for seed in range(2)
        for block in range(12)
    ]
    frame = pd.DataFrame(rows).astype({"arm": report_frames.arms(["a", "b"])})
    ax = figures.blocks(frame)
    assert ax.get_yscale() == "log"
    assert list(ax.lines[1].get_ydata()) == pytest.approx([2.5**block for block in range(12)])  # type: ignore[arg-type]
    assert figures.blocks(frame[frame["arm"] == "a"]).get_yscale() == "linear"


# -- over factors ----------------------------------------------------------------------------------


def test_ordered_marks_are_means_with_t_intervals() -> None:
    rng = np.random.default_rng(0)
    rows = [
        {"mask_ratio": ratio, "size": size, "metric": ratio + rng.normal()}
        for ratio in (0.4, 0.15, 0.8)
        for size in ("s", "l")
        for _ in range(5)
    ]
    frame = pd.DataFrame(rows)
    ax = figures.ordered(frame, x="mask_ratio", hue="size")
    lines = [
        line
        for line in ax.lines
        if line.get_linestyle() not in ("None", "") and len(line.get_xdata()) == 3
    ]  # type: ignore[arg-type]
    assert len(lines) == 2
    assert list(lines[0].get_xdata()) == [0.15, 0.4, 0.8]  # type: ignore[arg-type]
    chosen = frame[(frame["size"] == "s") & (frame["mask_ratio"] == 0.4)]["metric"]
    assert lines[0].get_ydata()[1] == pytest.approx(chosen.mean())  # type: ignore[index]
    interval = stats.t.interval(0.95, 4, chosen.mean(), stats.sem(chosen))
    whiskers = [
        tuple(line.get_ydata()) for line in ax.lines if list(line.get_xdata()) == [0.4, 0.4]
    ]  # type: ignore[arg-type]
    assert any(whisker == pytest.approx(interval) for whisker in whiskers)


def test_effects_over_a_number_are_those_of_the_table() -> None:
    strata = ("n_layer=12", "n_layer=2", "n_layer=4")
    pairs = report_frames.pairs({"serial": 0, "parallel": 0.004, "concat": 0.03}, strata)
    depth = pairs["stratum"].str.removeprefix("n_layer=").astype(int)
    table = effects_of(pairs)
    table["depth"] = table["stratum"].str.removeprefix("n_layer=").astype(int)
    # intervals that the pairs alone do not give, as those with the error of a chosen rate
    table = table.assign(
        lo=table["lo"] - 0.01, hi=table["hi"] + 0.01, significant=table["p_holm"] <= 0.05
    )
    frame = pairs.assign(depth=depth, arm=pairs["level"])
    ax = figures.ordered(frame, table, x="depth", y="difference", hue="arm", axis="layers")
    assert ax.get_xlabel() == "layers"
    drawn = [
        (line.get_xdata()[0], *line.get_ydata())
        for line in ax.lines
        if len(line.get_xdata()) == 2 and line.get_xdata()[0] == line.get_xdata()[1]
    ]
    of_table = table[["depth", "lo", "hi"]].to_numpy()
    np.testing.assert_allclose(sorted(drawn), sorted(of_table.tolist()))
    marks = {
        (line.get_xdata()[0], line.get_ydata()[0]): line.get_markerfacecolor() == line.get_color()
        for line in ax.lines
        if len(line.get_xdata()) == 1
    }
    assert marks == {(one.depth, one.mean): one.significant for one in table.itertuples()}
    assert set(marks.values()) == {True, False}
    above = frame[frame["arm"] == "concat"]
    assert above["difference"].min() > 0
    ax = figures.ordered(above, table, x="depth", y="difference", hue="arm")
    assert ax.get_ylim()[0] < 0


def test_a_named_value_of_an_ordered_factor_has_its_name_on_the_axis() -> None:
    frame = pd.DataFrame({"labels": [64, 256, 1024] * 2, "metric": range(6)})
    ax = figures.ordered(frame, x="labels", named={1024: "all"})
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["64", "256", "all"]
    assert list(ax.get_xticks()) == [64, 256, 1024]


def test_heat_shows_the_mean_of_each_cell_and_leaves_empty_ones_empty() -> None:
    frame = pd.DataFrame(
        {
            "topology": pd.Categorical(["a", "a", "b", "a"], categories=["a", "b"], ordered=True),
            "n_layer": pd.Categorical(["4", "4", "4", "12"], categories=["4", "12"], ordered=True),
            "metric": [1.0, 2.0, 1.8, 1.2],
        }
    )
    ax = figures.heat(frame, x="topology", y="n_layer")
    assert sorted(text.get_text() for text in ax.texts) == ["1.20", "1.50", "1.80"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["a", "b"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["4", "12"]


def test_pareto_joins_the_arms_that_none_beats() -> None:
    frame = pd.DataFrame(
        {"arm": list("abcd"), "seconds": [1.0, 2.0, 3.0, 4.0], "metric": [3.0, 2.0, 2.5, 1.0]}
    )
    ax = figures.pareto(frame.astype({"arm": report_frames.arms(list("abcd"))}))
    [joined] = [line for line in ax.lines if line.get_gid() == "front"]
    assert list(joined.get_xdata()) == [1.0, 2.0, 4.0]  # type: ignore[arg-type]
    ax = figures.pareto(frame.astype({"arm": report_frames.arms(list("abcd"))}), goal="max")
    [joined] = [line for line in ax.lines if line.get_gid() == "front"]
    assert list(joined.get_xdata()) == [1.0]  # type: ignore[arg-type]


def test_no_front_is_named_within_the_spread_of_times() -> None:
    rows = [
        (arm, seconds, metric)
        for arm, at, metric in (("a", 1.0, 3.0), ("b", 2.0, 2.0))
        for seconds in (at - 0.4, at + 0.4)
    ]
    apart = pd.DataFrame(rows, columns=["arm", "seconds", "metric"]).astype(
        {"arm": report_frames.arms(["a", "b"])}
    )
    assert front(apart) == ["a", "b"]
    ax = figures.pareto(apart)
    told = [line for line in ax.lines if (line.get_gid() or "").startswith("tip:")]
    ranges = [list(line.get_xdata()) for line in told if len(line.get_xdata()) == 2]
    assert ranges == [[0.6, 1.4], [1.6, 2.4]]
    wide = apart.assign(seconds=apart["seconds"] + [-0.2, 0.2, -0.2, 0.2])
    assert front(wide) == []
    assert [
        len(line.get_xdata()) for line in figures.pareto(wide).lines if line.get_gid() == "front"
    ] == [0]  # type: ignore[arg-type]


def test_two_runs_have_no_interval_in_the_picture() -> None:
    frame = pd.DataFrame({"x": [1.0, 1.0, 2.0, 2.0, 2.0], "metric": [1.0, 1.1, 1.0, 1.1, 1.2]})
    whiskers = [
        list(line.get_xdata())
        for line in figures.ordered(frame, x="x").lines
        if len(line.get_xdata()) == 2
    ]  # type: ignore[arg-type]
    assert whiskers.count([1.0, 1.0]) == 0
    assert whiskers.count([2.0, 2.0]) == 1


# -- style -----------------------------------------------------------------------------------------


def test_columns_are_a_papers_width_and_settings_come_back() -> None:
    before = dict(mpl.rcParams)
    ax = figures.curves(report_frames.curves())
    assert ax.figure.get_figwidth() == pytest.approx(3.4)  # type: ignore[union-attr]
    assert dict(mpl.rcParams) == before
    own = plt.subplots()[1]
    assert figures.curves(report_frames.curves(), ax=own) is own


def test_the_same_frame_gives_the_same_bytes(tmp_path: Path) -> None:
    pairs = report_frames.pairs()
    for name in ("a", "b"):
        figures.save(figures.effects(effects_of(pairs), pairs).figure, tmp_path / name)  # type: ignore[arg-type]
    for kind in ("svg", "pdf", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    assert "<dc:date>" not in (tmp_path / "a.svg").read_text(encoding="utf-8")


def test_a_users_settings_change_no_figure(tmp_path: Path) -> None:
    pairs = report_frames.pairs()
    own = {
        "text.usetex": True,
        "savefig.bbox": "tight",
        "axes.formatter.use_locale": True,
        "font.size": 20,
        "lines.marker": "x",
        "figure.autolayout": True,
        "savefig.facecolor": "black",
        "path.sketch": (1, 100, 2),
    }
    for name, settings in (("a", {}), ("b", own)):
        with mpl.rc_context(settings):
            figures.save(figures.effects(effects_of(pairs), pairs).figure, tmp_path / name)  # type: ignore[arg-type]
            assert {key: mpl.rcParams[key] for key in settings} == settings
    for kind in ("svg", "pdf", "png"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


HOSTILE = [
    "$x$",
    "_hidden",
    "<script>alert(1)</script>",
    "a\"b'c&d",
    "日本語 Ω",
    "line\nbreak\x07",
    "-- ]]> -->",
    "x" * 200,
    "$",
    "%s {}",
]


def test_hostile_names_are_drawn_as_they_are_and_the_svg_is_well_formed(tmp_path: Path) -> None:
    pairs = report_frames.pairs(
        {"serial": 0.0, **dict.fromkeys(HOSTILE, 0.01)}, strata=("",), seeds=3
    )
    effects = effects_of(pairs)
    svg, pdf, png = figures.save(figures.effects(effects, pairs).figure, tmp_path / "effects")  # type: ignore[arg-type]
    tree = ET.parse(svg)
    words = " ".join(
        "".join(element.itertext()) for element in tree.iter() if element.tag.endswith("text")
    )
    for name in ("$x$", "<script>alert(1)</script>", "a\"b'c&d", "日本語 Ω", "%s {}", "-- ]]> -->"):
        assert all(
            line.replace("\\$", "$") in words for line in style.short([name], 22)[0].split("\n")
        ), name
    assert pdf.stat().st_size > 1000 < png.stat().st_size
    frame = report_frames.curves(tuple(HOSTILE), seeds=1, points=5)
    ET.parse(figures.save(figures.curves(frame).figure, tmp_path / "curves")[0])  # type: ignore[arg-type]


def test_marks_carry_their_values_as_titles(tmp_path: Path) -> None:
    pairs = report_frames.pairs(strata=("",))
    svg = figures.save(figures.effects(effects_of(pairs), pairs).figure, tmp_path / "a")[
        0
    ].read_text(encoding="utf-8")  # type: ignore[arg-type]
    titles = re.findall(r"<title>([^<]*)</title>", svg)
    one = effects_of(pairs).set_index("level").loc["parallel"]
    places = units.decimals((one["hi"] - one["lo"]) / 2)
    text = f"{units.signed(one['mean'], places)} ({units.ends(one['lo'], one['hi'], places)})"
    said = [title for title in titles if title.startswith("parallel:")]
    assert said.count(f"parallel: {text}, 6 pairs") == 2  # the mark, and its interval
    assert 'id="tip' not in svg and 'id="run' not in svg
    levels = [said.split(":")[0] for said in figures.told(svg)[0]]
    assert levels == list(pairs["level"].unique())


def test_inlined_figures_share_no_id_and_follow_the_page(tmp_path: Path) -> None:
    frame = report_frames.curves()
    svg = figures.save(figures.curves(frame).figure, tmp_path / "a")[0].read_text(encoding="utf-8")  # type: ignore[arg-type]
    one, two = (figures.inline(svg, prefix, "label") for prefix in ("one", "two"))
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (one, two)]
    assert ids[0]
    assert not ids[0] & ids[1]
    for text, own in zip((one, two), ids, strict=True):
        used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
        assert {a or b for a, b in used} <= own
        assert "currentColor" in text
        assert style.INK not in text


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (units.count, 1_234_567, "1.23M"),
        (units.count, 999_999, "1M"),
        (units.power, 3e14, "3×10¹⁴"),
        (units.power, 2.5e-3, "2.5×10⁻³"),
        (units.three_digits, 0.3482, "0.348"),
        (units.three_digits, 2143, "2,140"),
        (units.three_digits, -98_760, "-98,800"),
        (units.three_digits, 3.042e14, "3.04×10¹⁴"),
        (units.three_digits, 2.5e-7, "2.5×10⁻⁷"),
        (units.duration, 89, "89 s"),
        (units.duration, 7200, "2 h"),
        (units.duration, 3e7, "347 days"),
        (units.count, 2e15, "2×10¹⁵"),
        (units.memory, 3 << 19, "1.5 MiB"),
        (style.signed, -0.5, "−0.5"),
        (style.signed, 0.0, "0"),
    ],
)
def test_numbers_read_well(write, value: float, text: str) -> None:  # type: ignore[no-untyped-def]
    assert write(value) == text


@pytest.mark.parametrize("levels", [(0.05, 0.15, 0.4, 0.8), (1.0, 2.0, 4.0)])
def test_arms_over_an_ordered_factor_are_shifted_and_at_their_levels(
    levels: tuple[float, ...],
) -> None:
    rng = np.random.default_rng(0)
    rows = [
        (x, arm, 2 + 0.1 * x + rng.normal(0, 0.01))
        for x in levels
        for arm in ("a", "b", "c")
        for _ in range(4)
    ]
    frame = pd.DataFrame(rows, columns=["x", "arm", "metric"])
    ax = figures.ordered(frame, x="x", hue="arm")
    figure = ax.figure
    figure.draw_without_rendering()  # type: ignore[union-attr]
    marks = [
        line
        for line in ax.lines
        if line.get_marker() not in ("", "None", "o") and len(line.get_xdata()) == 1
    ]
    assert marks
    for mark in marks:
        x, y = mark.get_transform().transform((mark.get_xdata()[0], mark.get_ydata()[0]))
        assert abs(x - ax.transData.transform((mark.get_xdata()[0], y))[0]) <= 4 * figure.dpi / 72  # type: ignore[union-attr]
        assert ax.get_window_extent().y0 < y < ax.get_window_extent().y1
    ticks = [label.get_text() for label in ax.get_xticklabels()]
    assert ticks == [style.decimal(level) for level in levels]


def test_an_arm_within_the_noise_of_seeds_stays_in_the_picture() -> None:
    arms = [0.0, 0.01, 0.01, 0.02, 0.13]
    assert near(arms) == [True] * 4 + [False]
    assert all(style.near([(arm - 0.02, arm + 0.02) for arm in arms]))
    # half of the arms are no outliers
    assert near([0.04, 0.05, 0.04, 0.2, 0.2, 0.2, 0.2, 0.03]) == [True] * 8


def near(values: list[float], best: int | None = None) -> list[bool]:
    return style.near([(value, value) for value in values], best)


def test_an_arm_is_left_out_only_where_that_lets_others_be_read() -> None:
    assert all(near([0.98, 0.99, 1.105])), "two arms a tenth of the axis apart can be read"
    assert near([0.98, 0.981, 1.105]) == [True, True, False]
    assert near([2.718, 2.737, 2.7371]) == [False, True, True]
    assert all(near([2.718, 2.737, 2.7371], best=0)), "the best arm is always shown"
    # the axis of curves that fall by 1 hardly becomes shorter
    assert all(style.near([(at, at) for at in (1, 1.001, 1.1)], extents=[(1, 2), (1, 2), (1.1, 2)]))


def test_ticks_of_an_axis_have_equally_many_decimals() -> None:
    even = style.Even(style.signed)
    assert even.format_ticks([-0.1, -0.0, 0.05, 0.1]) == ["−0.10", "0", "+0.05", "+0.10"]
    assert style.Even(style.decimal).format_ticks([7.5, 10.0, 12.5]) == ["7.5", "10.0", "12.5"]


@pytest.fixture
def font_with_ideographs(tmp_path: Path) -> Iterator[None]:
    """An installed font with 日 and 本 alone, as two squares."""
    pen = TTGlyphPen(None)
    for x, y in ((0, 0), (0, 700), (700, 700), (700, 0)):
        (pen.lineTo if x or y else pen.moveTo)((x, y))
    pen.closePath()
    builder = FontBuilder(1000)
    names = [".notdef", "sun", "origin"]
    builder.setupGlyphOrder(names)
    builder.setupCharacterMap({ord("日"): "sun", ord("本"): "origin"})
    builder.setupGlyf(dict.fromkeys(names, pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys(names, (800, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable(
        {"familyName": "Two Letters", "styleName": "Regular", "psName": "TwoLetters"}
    )
    builder.setupOS2()
    builder.setupPost()
    builder.save(tmp_path / "two.ttf")
    before = list(font_manager.fontManager.ttflist)
    font_manager.fontManager.addfont(tmp_path / "two.ttf")
    fonts._fonts.cache_clear()
    fonts._fallbacks.cache_clear()
    yield
    font_manager.fontManager.ttflist = before
    fonts._fonts.cache_clear()
    fonts._fallbacks.cache_clear()


def test_letters_without_a_font_are_named() -> None:
    assert figures.lacking("−3×10⁻⁷ Привет العربية Ω é\n") == ""
    assert figures.lacking("\U0010fffd\x1b") == ""  # not printable
    assert figures.lacking("本 𖼀 本") in ("𖼀", "本𖼀")


@pytest.mark.usefixtures("font_with_ideographs")
def test_an_installed_font_draws_what_the_figures_font_lacks(tmp_path: Path) -> None:
    pairs = report_frames.pairs({"serial": 0.0, "日本 pre": 0.01, "plain": 0.02}, strata=("",))
    assert figures.lacking("日本 pre") == ""
    figure = figures.effects(effects_of(pairs), pairs).figure
    svg, pdf, _ = figures.save(figure, tmp_path / "effects")  # type: ignore[arg-type]
    assert b"TwoLetters" in pdf.read_bytes()
    assert "Two Letters" in svg.read_text(encoding="utf-8")
    plain = report_frames.pairs({"serial": 0.0, "plain": 0.02}, strata=("",))
    figure = figures.effects(effects_of(plain), plain).figure
    assert b"TwoLetters" not in figures.save(figure, tmp_path / "b")[1].read_bytes()  # type: ignore[arg-type]


SHARED = "shared_prefix_of_the_recipe_{}_and_a_shared_suffix_of_the_recipe_here"
ALIKE = [
    [SHARED.format(one) for one in ("pre", "post", "peri")],
    [SHARED.format(f"{a}_{'x' * 60}_{b}") for a in "ab" for b in "cd"],
    ["a" * 90 + one + "b" * 90 for one in ("", "c", "cc")],
    ["short", "short, too", *(SHARED.format(one) for one in "ab")],
]


@pytest.mark.parametrize("lines", [1, 2])
@pytest.mark.parametrize("names", ALIKE, ids=["middle", "two places", "length", "some"])
def test_names_alike_at_both_ends_stay_different(names: list[str], lines: int) -> None:
    cut = style.short(names, 22, lines)
    assert len(set(cut)) == len(names)
    assert all(len(line) <= 23 for name in cut for line in name.split("\n"))
    assert all(name.count("\n") < lines for name in cut)
    for name, shown in zip(names, cut, strict=True):
        if len(name) <= 22:
            assert shown == name
    assert style.short(names + names, 22, lines) == cut + cut


def test_what_differs_is_what_is_kept() -> None:
    for name, shown in zip(("pre", "post", "peri"), style.short(ALIKE[0], 22), strict=True):
        assert name in shown


def test_a_level_zero_has_its_place_on_a_logarithmic_axis() -> None:
    decays = [0, 1e-4, 1e-3, 1e-2, 0.1, 1]
    frame = pd.DataFrame(
        [{"weight_decay": x, "metric": 2 + 0.01 * s + x} for x in decays for s in range(3)]
    )
    ax = figures.ordered(frame, x="weight_decay")
    assert [text.get_text() for text in ax.get_xticklabels()] == [
        *("0", "0.0001", "0.001", "0.01", "0.1", "1")
    ]
    places = ax.transData.transform([(x, 2.0) for x in decays])[:, 0]
    steps = np.diff(places)
    assert steps[1:] == pytest.approx(steps[1]) and 0.5 < steps[0] / steps[1] < 2
    few = figures.ordered(frame[frame["weight_decay"].isin([0, 0.1, 1])], x="weight_decay")
    assert few.get_xscale() == "linear"


def test_numbers_of_ticks_do_not_overlap() -> None:
    frame = pd.DataFrame([{"k": k, "metric": s} for k in (100, 101, 102, 400) for s in range(2)])
    ax = figures.ordered(frame, x="k")
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    boxes = [text.get_window_extent() for text in ax.get_xticklabels() if text.get_text()]
    assert len(ax.get_xticks()) == 4 and len(boxes) == 2 and not boxes[0].overlaps(boxes[1])


@pytest.mark.parametrize("scale", [1e-4, 1e-7, 1e-10])
def test_small_differences_have_ticks_with_a_common_power_of_ten(scale: float) -> None:
    pairs = report_frames.pairs(strata=("",))
    pairs["value"] = pairs["baseline_value"] + scale * pairs["difference"]
    pairs["difference"] *= scale
    ax = figures.effects(effects_of(pairs), pairs)
    ax.figure.draw_without_rendering()  # type: ignore[union-attr]
    power = ax.xaxis.get_offset_text().get_text()
    exponent = re.fullmatch(r"×10(⁻[⁰¹²³⁴⁵⁶⁷⁸⁹]+)", power)[1]  # type: ignore[index]
    unit = 10.0 ** int(exponent.translate(str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")))
    shown = [text.get_text() for text in ax.get_xticklabels()]
    assert len(set(shown)) == len(shown) >= 3
    numbers = [float(text.replace("−", "-")) * unit for text in shown]
    assert numbers == pytest.approx(list(ax.get_xticks()), abs=1e-6 * scale)


def test_long_names_stay_inside_the_figure(tmp_path: Path) -> None:
    pairs = report_frames.pairs(
        {"serial": 0.0, "a name of twenty-two.": 0.1, "b": 0.2}, strata=("n_layer=4", "n_layer=12")
    )
    ax = figures.effects(effects_of(pairs), pairs)
    figure = ax.figure
    figures.save(figure, tmp_path / "effects")  # type: ignore[arg-type]
    # as in the PNG; hinted letters would be wider here than where the layout was made
    figure.set_dpi(200)
    with style.theme():
        lefts = [label.get_window_extent().x0 for label in ax.get_yticklabels()]
    assert min(lefts) >= 0


# -- learning rates --------------------------------------------------------------------------------


def test_rates_are_lines_with_a_ring_and_crosses_where_runs_diverged() -> None:
    frame = pd.DataFrame(
        [
            {
                "arm": arm,
                "lr": lr,
                "status": "diverged" if lr > limit else "complete",
                "metric": math.nan if lr > limit else value,
            }
            for arm, limit in (("serial", 1.0), ("parallel", 2e-3))
            for lr, values in ((1e-4, (3.0, 3.2)), (1e-3, (2.0, 2.2)), (1e-2, (2.5, 2.7)))
            for value in values
        ]
    ).astype({"arm": report_frames.arms(["serial", "parallel"])})
    ax = figures.rates(frame, {"serial": 1e-3, "parallel": 1e-4}, label="held-out loss")
    serial, parallel = (line for line in ax.lines if len(line.get_xdata()) > 1)
    assert list(serial.get_ydata()) == pytest.approx([3.1, 2.1, 2.6])
    assert list(parallel.get_xdata()) == [1e-4, 1e-3]
    rings = [
        (line.get_xdata()[0], line.get_ydata()[0])
        for line in ax.lines
        if line.get_markerfacecolor() == "none"
    ]
    assert rings == [(1e-3, pytest.approx(2.1)), (1e-4, pytest.approx(3.1))]
    [cross] = [line for line in ax.lines if line.get_marker() == "x"]
    assert cross.get_xdata()[0] == 1e-2 and cross.get_ydata()[0] > 0.9, (
        "in the share of the axis, at the side of the worse"
    )
    assert ax.get_xscale() == "log"
    turned = figures.rates(frame, {}, label="accuracy", goal="max")
    assert next(line for line in turned.lines if line.get_marker() == "x").get_ydata()[0] < 0.1


def tuned_to(best: dict[str, float]) -> pd.DataFrame:
    """Runs at three rates, of which the middle one is the best."""
    rows = [
        {"arm": arm, "lr": 10.0**lr, "status": "complete", "metric": value + 0.2 * (lr + 2) ** 2}
        for arm, value in best.items()
        for lr in (-3, -2, -1)
    ]
    return pd.DataFrame(rows).astype({"arm": report_frames.arms([*best])})


def entries(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.figure.legends[0].get_texts()]


BESTS = {"serial": 1.0, "parallel": 1.02, "concat": 1.3, "no-skip": 3.0}


def test_rates_of_a_line_far_from_the_others_are_a_value_beside_its_name() -> None:
    frame = tuned_to(BESTS)
    ax = figures.rates(frame, {})
    assert entries(ax) == ["serial", "parallel", "concat", "no-skip (best 3)"]
    assert ax.get_ylim()[0] < 1 and 1.3 < ax.get_ylim()[1] < 2
    assert far_at_rates(frame) and not far_at_rates(frame[frame["arm"].isin(["serial", "concat"])])
    # a line that no rate trains is far, wherever it lies
    ax = figures.rates(frame.assign(untrained=frame["arm"].isin(["concat", "no-skip"])), {})
    assert entries(ax)[2:] == ["concat (best 1.3)", "no-skip (best 3)"]
    assert ax.get_ylim()[1] < 1.3


def test_rates_of_the_best_line_are_on_the_axis_however_far_from_the_others_it_is() -> None:
    for goal, best in (("min", 2.0), ("max", 3.5)):
        frame = tuned_to({"serial": 2.737, "parallel": 2.7371, "concat": best})
        if goal == "max":
            frame["metric"] = (
                2 * frame.groupby("arm", observed=True)["metric"].transform("min")
                - (frame["metric"])
            )
        ax = figures.rates(frame, {}, goal=goal)
        low, high = ax.get_ylim()
        assert low < best < high and entries(ax) == ["serial", "parallel", "concat"]
        assert not far_at_rates(frame, goal=goal)


def test_a_value_that_differs_between_panels_stands_in_their_titles() -> None:
    first, second = tuned_to(BESTS), tuned_to(BESTS | {"no-skip": 4.0})
    for frames, shared, titles in (
        ((first, first), "no-skip (best 3)", ["0", "1"]),
        ((first, second), "no-skip", ["0\nno-skip (best 3)", "1\nno-skip (best 4)"]),
        ((first, tuned_to(BESTS | {"no-skip": 1.1})), "no-skip", ["0\nno-skip (best 3)", "1"]),
    ):
        draws = [partial(figures.rates, frame, {}) for frame in frames]
        ax = figures.multiples(
            [(str(n), lambda ax, draw=draw: draw(ax=ax)) for n, draw in enumerate(draws)]
        )
        assert ax.figure.legends[0].get_texts()[3].get_text() == shared
        assert [one.get_title(loc="left") for one in ax.figure.axes] == titles


def test_rates_at_which_all_runs_diverged_are_crosses_alone() -> None:
    frame = pd.DataFrame(
        {"arm": "serial", "lr": [1e-3, 1e-2], "status": "diverged", "metric": math.nan}
    )
    ax = figures.rates(frame, {"serial": 1e-3})
    assert [line.get_marker() for line in ax.lines if len(line.get_xdata())] == ["x", "x"]


def test_the_axis_fits_the_arms_that_did_not_diverge() -> None:
    frame = report_frames.curves(("healthy", "high", "higher"))
    early = frame[(frame["arm"] == "healthy") | (frame["step"] <= 40)].assign(
        value=lambda f: f["value"].where(f["arm"] == "healthy", 6.5),
        diverged_at=lambda f: f["run"].map(lambda run: 50.0 if run > 2 else None),
    )
    ax = figures.curves(early)
    late = early[(early["arm"] == "healthy") & (early["step"] > 500)]["value"]
    low, high = ax.get_ylim()
    assert low < late.min() and late.max() < high < 4
    assert [text.get_text() for text in ax.figure.legends[0].get_texts()] == [
        "healthy",
        "high (diverged)",
        "higher (diverged)",
    ]


def test_every_seed_has_a_mark_and_groups_are_told_by_their_filling() -> None:
    rng = np.random.default_rng(0)
    rows = [(arm, seed, rng.normal()) for arm in ("serial", "parallel") for seed in range(5)]
    frame = pd.DataFrame(rows, columns=["arm", "seed", "metric"])
    ax = figures.seeds(frame, {"serial": [0, 3]})
    lines = {line.get_gid(): line for line in ax.get_lines() if line.get_gid()}
    marks = {tip: line for tip, line in lines.items() if tip.startswith("run:")}
    assert len(marks) == 10 and len(lines) == 12
    for (arm, seed, value), (tip, mark) in zip(rows, marks.items(), strict=True):
        assert tip == f"run:{arm}, seed {seed}: {style.rough(value)}"
        assert mark.get_ydata()[0] == value
        hollow = mark.get_markerfacecolor() == "none"
        assert hollow is (arm == "serial" and seed not in (0, 3))


def test_panels_have_axes_of_their_own_and_one_legend() -> None:
    """An entry that differs in a panel, as of an arm outside its axis, is in its title."""
    rows = [
        (arm, run, x, value)
        for run, (arm, value) in enumerate((("a", 1.0), ("b", 1.1), ("c", 1.2), ("d", 1.3)))
        for x in (1, 2, 3)
    ]
    near = pd.DataFrame(rows, columns=["arm", "run", "step", "value"])
    near["tokens"] = near["step"]
    far = near.assign(value=near["value"].where(near["arm"] != "c", 90.0))
    first = figures.multiples(
        [
            (f"n={n}", lambda ax, frame=frame: figures.curves(frame, ax=ax))
            for n, frame in enumerate((near, far, near))
        ]
    )
    panels = first.figure.axes
    assert [ax.get_title(loc="left").split("\n")[0] for ax in panels] == ["n=0", "n=1", "n=2"]
    assert [len(ax.lines) for ax in panels] == [4, 4, 4]
    assert panels[0].get_ylim() == panels[2].get_ylim() and panels[1].get_ylim()[1] < 80
    (legend,) = first.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c", "d"]
    assert re.search(r"c .*90", panels[1].get_title(loc="left"))
    assert "90" not in panels[0].get_title(loc="left")
    plt.close(first.figure)


def test_curves_of_many_arms_are_told_apart_in_the_legend_of_panels() -> None:
    """An arm that a panel lacks must not give its entry to another of the same look."""
    arms = [f"arm {k}" for k in range(28)]
    rows = [(arm, run, x, 1.0 + run / 100) for run, arm in enumerate(arms) for x in (1, 2, 3)]
    whole = pd.DataFrame(rows, columns=["arm", "run", "step", "value"])
    whole["tokens"] = whole["step"]
    whole["arm"] = pd.Categorical(whole["arm"], categories=arms, ordered=True)
    some = whole[whole["arm"] != "arm 2"]
    first = figures.multiples(
        [
            (name, lambda ax, frame=frame: figures.curves(frame, ax=ax))
            for name, frame in (("all", whole), ("some", some))
        ]
    )
    panels, (legend,) = first.figure.axes, first.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == arms
    assert [ax.get_title(loc="left") for ax in panels] == ["all", "some"]
    looks = {
        (line.get_color(), line.get_linestyle(), str(line._dash_pattern))
        for line in legend.legend_handles
    }
    assert len(looks) == len(arms)
    plt.close(first.figure)


def test_families_far_apart_have_an_axis_each() -> None:
    near, far = report_frames.pairs(strata=("a",)), report_frames.pairs(strata=("b",))
    far[["difference", "value"]] += 20 * far[["difference"]].to_numpy()
    pairs = pd.concat([near, far])
    top, below = figures.effects(effects_of(pairs), pairs).figure.axes
    assert below.get_xlim()[1] > 5 * top.get_xlim()[1]
    assert [len(ax.get_yticks()) for ax in (top, below)] == [4, 4]


def test_arms_beyond_a_gap_do_not_squeeze_the_others_however_many_they_are() -> None:
    assert near([0.01, 0.02, 0.04, 0.05, 0.5, 0.6, 0.7]) == [True] * 4 + [False] * 3
    assert near([0.01, 0.02, 0.04, 0.07, 0.12, 0.2, 0.35]) == [True] * 7, "no gap"
    assert near([0.01, 0.5, 0.6]) == [True] * 3, "most are there"
    assert near([0.0, 0.0, 0.0, 0.2]) == [True] * 4, "no distance to compare with"


def far_levels(count: int, far: int) -> pd.DataFrame:
    """The pairs of `count` levels, from worse to better, of which the first `far` are at +2."""
    shifts = {f"level {at}": 2.0 if at < far else 0.05 - 0.002 * at for at in range(count)}
    return report_frames.pairs({"base": 0.0, **shifts}, strata=("",))


def test_many_levels_are_dense_with_the_best_first_and_every_interval(tmp_path: Path) -> None:
    pairs = far_levels(39, far=12)
    effects = effects_of(pairs)
    ax = figures.effects(effects, pairs)
    names = [text.get_text() for text in ax.get_yticklabels()]
    means = effects.set_index("level")["mean"]
    assert names == list(means.sort_values().index)
    assert names[0] == figures.effects(effects, pairs, goal="max").get_yticklabels()[-1].get_text()
    assert ax.get_xlim()[1] < 0.2, "the levels at +2 do not squeeze the others"
    assert compare.leaving(effects, pairs) and not compare.leaving(
        *(frame[~frame["level"].isin(names[-12:])] for frame in (effects, pairs))
    )
    told = figures.told(figures.save(ax.figure, tmp_path / "a")[0].read_text("utf-8"))
    assert len(told[0]) == 39
    for level, said in zip(names, told[0], strict=True):
        row = effects.set_index("level").loc[level]
        name, numbers = said.removesuffix(", 6 pairs").split(": ")
        found = [float(text.replace("−", "-")) for text in re.findall(r"[−+][\d.]+", numbers)]
        assert name == level
        assert found == pytest.approx([row["mean"], row["lo"], row["hi"]], abs=6e-4)
    assert ax.figure.get_figheight() / ax.figure.get_figwidth() < 1.9
    few = far_levels(12, far=0)
    assert [
        text.get_text() for text in figures.effects(effects_of(few), few).get_yticklabels()
    ] == [f"level {at}" for at in range(12)], "few levels keep their order"


def test_a_curve_has_its_end_in_words_only_beyond_the_axis_and_as_it_was_measured() -> None:
    """The last point of a curve is of fewer tokens than what is measured at the end."""
    rows = [
        (arm, run, x, value + 1 / x, value + 0.0123)
        for run, (arm, value) in enumerate((("a", 1.0), ("b", 1.1), ("c", 1.15), ("d", 9.0)))
        for x in (1, 2, 4, 5)
    ]
    frame = pd.DataFrame(rows, columns=["arm", "run", "step", "value", "final"])
    frame["tokens"] = frame["step"]

    def names(of: pd.DataFrame, **options: int) -> list[str]:
        legend = figures.curves(of, **options).figure.legends[0]
        return sorted(text.get_text() for text in legend.get_texts())

    assert names(frame, places=4) == ["a", "b", "c", "d (ends at 9.0123)"]
    assert names(frame.drop(columns="final"), places=2)[-1] == "d (ends at 9.20)"
    # an arm that the axis does not fit, but that ends on it, needs no words
    closer = frame.assign(value=frame["value"].where(frame["arm"] != "d", 1.9))
    low, high = figures.curves(closer).get_ylim()
    assert (names(closer)[-1] == "d") is bool(low <= 1.9 <= high)
    gaps = figures.gaps(frame, places={"d": 1}).figure.legends[0].get_texts()
    assert "d (ends at +9.0)" in [text.get_text() for text in gaps]


def test_the_colours_of_a_heat_map_cover_all_cells_but_a_few_far_off() -> None:
    def scale(values: list[float]) -> tuple[float, float]:
        places = [(f"{at % 2}", f"{at // 2}") for at in range(len(values))]
        frame = pd.DataFrame(places, columns=["x", "y"]).assign(metric=values)
        ax = figures.heat(frame, x="x", y="y")
        assert compare.beyond(frame, x="x", y="y") is (
            max(values) > ax.collections[0].get_clim()[1]
        )
        return ax.collections[0].get_clim()

    noise = [2.7098, 2.71, 2.7101, 2.7102, 2.697, 2.761]
    assert scale(noise) == (2.697, 2.761)
    assert scale([1.1, 1.2, 1.3, 1.15, 1.25, 9.0]) == (1.1, 1.3)


def trained(steps: dict[int, tuple[int, ...]]) -> pd.DataFrame:
    """The curves of runs of one arm, each at steps of its own, that fall to their number."""
    rows = [("a", run, step, run + 10.0 - step / 10) for run, of in steps.items() for step in of]
    frame = pd.DataFrame(rows, columns=["arm", "run", "step", "value"])
    return frame.assign(tokens=frame["step"])


def test_a_mean_over_seeds_is_over_all_of_them_at_every_step() -> None:
    """Seeds that were added after `[eval] points` changed have other steps."""
    few, many = (20, 39), (7, 13, 20, 26, 33, 39)
    (arm,) = figures.summary(trained({0: few, 1: few, 6: many}))
    assert list(arm.points["x"]) == [20, 39]
    assert list(arm.points["mean"]) == pytest.approx([7 / 3 + 8, 7 / 3 + 6.1])
    assert list(arm.points["high"]) == pytest.approx([14, 12.1])
    # where no step is shared, curves are read between their points
    (arm,) = figures.summary(trained({0: (10, 20, 40), 2: (5, 15, 25, 40)}))
    assert list(arm.points["x"]) == [10, 20, 40]
    assert list(arm.points["mean"]) == pytest.approx([10, 9, 7])


def test_the_start_of_curves_with_few_points_is_on_the_axis() -> None:
    few, many = (trained({0: tuple(range(1, 101, step))}) for step in (25, 1))
    for frame, shown in ((few, True), (many, False)):
        assert bool(figures.curves(frame).get_ylim()[1] > frame["value"].max()) is shown
        assert training.cut(figures.summary(frame)) is not shown
