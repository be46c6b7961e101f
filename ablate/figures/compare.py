"""Figures that compare levels: effects, the metric or effects over a number, a heat map of two."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation, Transform

from ablate import stats
from ablate.figures import style
from ablate.units import decimals, plural, signed
from ablate.units import ends as interval

FEWEST = 3  # fewest runs with an interval: that of two runs reaches 13 standard errors to each side
APART = 2.4  # points by which neighbouring lines of `ordered` are shifted
MANY = 20  # rows of a group from which on they are close together, and the best first
UNLIKE = 3.0  # families whose ranges differ by more than this factor have an axis each
MOST_APART = 40.0  # points from the first line to the last


def effects(
    effects: pd.DataFrame,
    pairs: pd.DataFrame,
    *,
    label: str = "difference",
    goal: str = "min",
    ax: Axes | None = None,
) -> Axes:
    """Draw the effect of every level against its baseline, one row each, by family.

    A thick line is the 95% t-interval, a faint point a pair. A filled mark is significant after
    Holm's correction, a hollow one is not. Where an interval leaves the axis, it ends in an arrow,
    and its numbers are given. In a new figure, families of unlike ranges have an axis each. Of 20
    levels or more the best are first.

    Args:
        effects: `ablate.effects(study)`.
        pairs: `ablate.results.pairs(study)`: family, cell, seed, difference.
        label: Name of the x axis.
        goal: "min" or "max": which direction is better.
        ax: Axes to draw on, None for a new figure.
    """
    with style.theme():
        groups, windows = _windows(effects, pairs, goal, apart=ax is None)
        words = style.plain(label).replace(" (", "\n(", 1)
        words += (
            "\n←\u00a0better\u2003\u2003worse\u00a0→"
            if goal == "min"
            else "\n←\u00a0worse\u2003\u2003better\u00a0→"
        )
        if len(windows) > 1:
            heights = [group.inches + 0.2 for group in groups]
            panels = plt.subplots(
                len(groups),
                1,
                figsize=(style.width(), 0.55 + sum(heights)),
                height_ratios=heights,
                layout="constrained",
            )[1]
            for panel, group, window in zip(panels, groups, windows, strict=True):
                _panel(style.canvas(panel, 0), [group], pairs, window)
            panels[-1].set_xlabel(words)
            return panels[0]
        ax = style.canvas(ax, 0.75 + sum(group.inches for group in groups))
        _panel(ax, groups, pairs, windows[0])
        ax.set_xlabel(words)
        return ax


def leaving(effects: pd.DataFrame, pairs: pd.DataFrame, *, goal: str = "min") -> bool:
    """Return whether `effects`, in a new figure, draws an arrow for what lies beyond an axis.

    Args:
        effects: As for `effects`.
        pairs: As for `effects`.
        goal: As for `effects`.
    """
    groups, windows = _windows(effects, pairs, goal, apart=True)
    parts = [groups] if len(windows) == 1 else [[group] for group in groups]
    return any(
        not window[0] <= value <= window[1]
        for part, window in zip(parts, windows, strict=True)
        for group in part
        for _, row in group.rows
        for value in row[["lo", "hi", "mean"]]
        if math.isfinite(value) and math.isfinite(row["mean"])
    )


def _windows(
    effects: pd.DataFrame, pairs: pd.DataFrame, goal: str, *, apart: bool
) -> tuple[list[_Group], list[tuple[float, float]]]:
    """Return the groups of rows, and the range of the one axis, or of one for each group."""
    level = effects["level"]
    if effects["factor"].nunique() > 1:
        level = effects["factor"] + "=" + level
    told = level + np.where(effects["stratum"] == "", "", ", " + effects["stratum"])
    groups = _groups(effects.assign(place=effects["arm"].cat.codes, name_told=told), goal)
    windows = [_window(effects.loc[group.rows_of], pairs, goal) for group in groups]
    widths = [high - low for low, high in windows] or [1.0]
    if apart and max(widths) > UNLIKE * min(widths):
        return groups, windows
    return groups, [_window(effects, pairs, goal)]


def _panel(
    ax: Axes, groups: Sequence[_Group], pairs: pd.DataFrame, window: tuple[float, float]
) -> None:
    """Draw groups below each other on one axis."""
    low, high = window
    top, heights, names = 0.5, [], []
    for group in groups:
        _heading(ax, top - _height(group.heading) / 2, group.heading)
        y = top - _height(group.heading)
        for name, row in group.rows:
            heights.append(y - _height(name) / 2)
            names.append(name)
            own = pairs[(pairs["family"] == row["family"]) & (pairs["cell"] == row["cell"])]
            _row(ax, heights[-1], row, own, low, high, of=len(pairs))
            y -= _height(name)
        ax.vlines(0, y, top - _height(group.heading), color=style.INK, linewidth=0.7, zorder=1)
        top -= group.height
    ax.set_yticks(heights, names)
    ax.tick_params(axis="y", length=0, pad=4)
    ax.set_xlim(low, high)
    ax.set_ylim(top + 0.15, 0.7)
    style.ticks(ax, "x", style.signed)
    if any(group.many for group in groups):  # a screen shows the start of the plot alone
        ax.tick_params(axis="x", top=True, labeltop=True)
        ax.tick_params(axis="y", labelsize=7)
    ax.grid(axis="x")
    ax.spines["left"].set_visible(False)


@dataclass(frozen=True)
class _Group:
    """Rows of the effect plot under one heading."""

    heading: str
    rows: list[tuple[str, pd.Series]]  # label, effect

    @property
    def height(self) -> float:
        """The height in rows, with the space below."""
        return sum(map(_height, (self.heading, *(name for name, _ in self.rows)))) + 0.35

    @property
    def many(self) -> bool:
        """Whether it has so many rows that they are close together."""
        return len(self.rows) >= MANY

    @property
    def inches(self) -> float:
        """The height in inches."""
        return (0.135 if self.many else 0.19) * self.height

    @property
    def rows_of(self) -> list[Any]:
        """The rows' index in the frame of effects."""
        return [row.name for _, row in self.rows]


def _height(text: str) -> float:
    """Return the height of a heading or label, in rows of one line."""
    return 1 + 0.65 * text.count("\n")


def _group(heading: str, rows: Iterable[tuple[str, pd.Series]]) -> _Group:
    """Wrap heading and names to lines that fit the figure."""
    rows = list(rows)
    names = style.short([name for name, _ in rows], 22)
    whole = [(name, row) for name, (_, row) in zip(names, rows, strict=True)]
    return _Group(style.short([heading], 54)[0], whole)


def _groups(effects: pd.DataFrame, goal: str) -> list[_Group]:
    """Return a group for each family, of many levels the best first; one group if every family has
    one level.
    """
    families = [part for _, part in effects.groupby("family", sort=False)]
    strata, factors = effects["stratum"].nunique(), effects["factor"].nunique()
    if len(families) > 1 and all(len(part) == 1 for part in families):
        return _together(effects, strata, factors)
    groups = []
    for part in families:
        first = part.iloc[0]
        bases = part["baseline_level"].nunique()
        if len(part) >= MANY and bases == 1:
            part = part.sort_values("mean", ascending=goal == "min", kind="stable")
        if part["factor"].nunique() > 1:
            heading = ", ".join(["each part", *([first["stratum"]] if first["stratum"] else [])])
            named = [(f"{row['factor']}={row['level']}", row) for _, row in part.iterrows()]
            groups.append(_group(f"{heading}: against the baseline", named))
            continue
        where = [first["factor"]] * (factors > 1 or not first["stratum"]) + [
            first["stratum"]
        ] * bool(first["stratum"])
        against = first["baseline_level"] if bases == 1 else "the previous level"
        heading = f"{', '.join(where)}: against {against}"
        groups.append(_group(heading, [(row["level"], row) for _, row in part.iterrows()]))
    return groups


def _together(effects: pd.DataFrame, strata: int, factors: int) -> list[_Group]:
    def label(row: pd.Series) -> str:
        level = f"{row['factor']}={row['level']}" if factors > 1 else row["level"]
        return ", ".join(
            [level] * (factors > 1 or not row["stratum"]) + [row["stratum"]] * (strata > 1)
        )

    same = factors == 1 and effects["level"].nunique() == effects["baseline_level"].nunique() == 1
    first = effects.iloc[0]
    heading = (
        f"{first['level']} against {first['baseline_level']}" if same else "against the baseline"
    )
    return [_group(heading, [(label(row), row) for _, row in effects.iterrows()])]


def _heading(ax: Axes, y: float, text: str) -> None:
    heading = ax.annotate(
        text,
        (0, y),
        xycoords=("figure fraction", "data"),
        xytext=(2, 0),
        textcoords="offset points",
        va="center",
        ha="left",
        fontweight="bold",
        fontsize=7.5,
        annotation_clip=False,
    )
    heading.set_in_layout(False)  # drawn in the margin of the names below it


def near_baseline(lines: pd.DataFrame, goal: str) -> list[bool]:
    """Return which effects an axis with the baseline, 0, should fit; see `style.near`.

    Args:
        lines: One row an effect, with the columns mean, and lo and hi, its ends on the axis.
        goal: "min" or "max": which direction is better.
    """
    columns = lines[["lo", "hi", "mean"]].astype(float)
    columns.loc[columns["mean"].isna()] = np.nan
    low, high = columns.min(axis=1).clip(upper=0), columns.max(axis=1).clip(lower=0)
    best = style.best_of([0.0, *columns["mean"]], goal)
    return style.near([(0.0, 0.0), *zip(low, high, strict=True)], best)[1:]


def _window(effects: pd.DataFrame, pairs: pd.DataFrame, goal: str) -> tuple[float, float]:
    """Return the range of the x axis, without levels so far out that they would hide the others."""
    keep = effects[near_baseline(effects, goal)]
    if keep.empty:
        return -1.0, 1.0
    spots = pairs.merge(keep[["family", "cell"]], on=["family", "cell"])["difference"]
    spots = spots[np.isfinite(spots)]
    values = pd.concat([keep[["lo", "hi", "mean"]].stack(), spots])
    low, high = min(values.min(), 0.0), max(values.max(), 0.0)
    room = 0.08 * (high - low or 1.0)
    return low - room, high + room


def _row(
    ax: Axes, y: float, row: pd.Series, pairs: pd.DataFrame, low: float, high: float, *, of: int
) -> None:
    """Draw pairs, interval and mean of one level, as far as they are on the axis.

    Args:
        ax: The axes.
        y: The height of the row.
        row: The effect.
        pairs: Its pairs.
        low: The lower end of the axis.
        high: Its upper end.
        of: How many pairs the figure has.
    """
    shade, mean = style.color(row["place"]), row["mean"]
    name = row["name_told"]
    ends = [end for end in (row["lo"], row["hi"]) if math.isfinite(end)]
    places = decimals((row["hi"] - row["lo"]) / 2)
    text = signed(mean, places)
    if len(ends) == 2:
        text += f" ({interval(row['lo'], row['hi'], places)})"
    told = f"{name}: {text}, {plural(row['n'], 'pair')}"
    behind = {"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.5}  # covers the line of 0
    text_style: dict[str, Any] = {"va": "center", "fontsize": 7, "color": style.INK, "bbox": behind}
    if row["n"] == 0:
        _note(ax, y, name, "no pair to compare", low, high, **text_style)
        return
    if not math.isfinite(mean):
        _note(ax, y, name, "no effect: an arm did not learn", low, high, **text_style)
        return
    if not all(low <= value <= high for value in (*ends, mean)):
        right = mean > high or (mean >= low and mean < (low + high) / 2)
        text = f"{'' if mean >= low else '◀ '}{text}{'' if mean <= high else ' ▶'}"
        side: dict[str, Any] = {"ha": "right" if right else "left"}
        # numbers above the line, where there is one
        apart = 0.24 if ends and ends[0] <= high and ends[1] >= low else 0.0
        outside = ax.annotate(text, (high if right else low, y + apart), **side, **text_style)
        style.tip(outside, told)
        y -= apart
    inside = pairs[pairs["difference"].between(low, high)]
    if of > style.SHAPES:
        style.faint(ax, inside["difference"], [y] * len(inside), "o", shade, of=of)
    else:
        for seed, difference in zip(inside["seed"], inside["difference"], strict=True):
            dot = style.faint(ax, difference, y, "o", shade)
            style.tip(dot, f"{name}, seed {seed}: {signed(difference, places)}", single=True)
    if ends and ends[0] <= high and ends[1] >= low:
        thick: dict[str, Any] = {"linewidth": 1.8, "solid_capstyle": "butt", "zorder": 3}
        shown = [max(ends[0], low), min(ends[1], high)]
        style.tipped(ax, told, shown, [y, y], color=shade, **thick)
        for end, at, mark in ((ends[0], low, "<"), (ends[1], high, ">")):
            if not low <= end <= high:
                ax.plot(at, y, mark, color=shade, markersize=4.5, clip_on=False, zorder=3)
    if low <= mean <= high:
        # rows of the table `effect` have the former name
        significant = row.get("significant", row.get("resolved"))
        face = shade if significant else style.PAPER
        look = style.look(row["place"], 4.5)
        style.tipped(ax, told, mean, y, markerfacecolor=face, zorder=4, **look)


def _note(ax: Axes, y: float, name: str, text: str, low: float, high: float, **look: Any) -> None:
    """Write a text beside the line of 0, or at the end of an axis with too little room for it."""
    if -low < 0.35 * (high - low):
        note = ax.annotate(text, (0, y), xytext=(4, 0), textcoords="offset points", **look)
    else:
        note = ax.annotate(text, (high, y), ha="right", **look)
    style.tip(note, f"{name}: {text}")


def ordered(
    frame: pd.DataFrame,
    effects: pd.DataFrame | None = None,
    *,
    x: str,
    y: str = "metric",
    hue: str | None = None,
    label: str = "metric",
    axis: str = "",
    places: int | None = None,
    named: Mapping[float, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw a metric over a number (mask ratio, size), one line for each value of `hue`.

    A mark is the mean over seeds, with its 95% t-interval from three seeds on; a faint point is a
    run. With `effects`, a mark is an effect with its interval, filled where it is significant, and
    a faint point is a pair. Lines are shifted a little, so that intervals at one x do not hide each
    other. The y axis fits points and intervals; the interval of three runs, the widest, is less
    than three times as wide as their range.

    Args:
        frame: One row a run or pair, with numeric columns x and y.
        effects: Where `frame` is `ablate.pairs(study)`: `ablate.effects(study)`, to both of which
            you add the columns x and `hue`. None: the means of the runs are drawn.
        x: Column of the number.
        y: Column of the metric, or of the difference.
        hue: Column whose values get a line each, None for one line.
        label: Name of the y axis.
        axis: Name of the x axis; by default x.
        places: Decimals of values in names and under the pointer, None for four digits.
        named: Value of x → what is said instead of the number.
        ax: Axes to draw on, None for a new figure.
    """
    axis = axis or x
    with style.theme():
        whole = frame[np.isfinite(frame[x].astype(float)) & np.isfinite(frame[y].astype(float))]
        groups = [("", 0, whole)] if hue is None else list(style.arms(whole, hue))
        names = style.entries(name for name, *_ in groups) if hue is not None else []
        ax = style.canvas(ax, 2.2, names)
        lines, heights = [], [whole[y].to_numpy(float)]
        if effects is not None:
            effects = effects[effects[x].astype(float).isin(whole[x].astype(float))]
            ax.axhline(0, color=style.INK, linewidth=0.7, zorder=1)
            heights.append(np.zeros(1))
        texts = {
            value: (named or {}).get(value) or style.decimal(value)
            for value in sorted(whole[x].astype(float).unique())
        }
        scale = _scale(whole[x].astype(float))
        apart = min(APART, MOST_APART / len(groups))
        _widen(ax, whole[x].to_numpy(float), scale, room=0.08 + 0.003 * apart * len(groups))
        for number, (name, index, part) in enumerate(groups):
            aside = ScaledTranslation(
                (number - (len(groups) - 1) / 2) * apart / 72, 0, ax.figure.dpi_scale_trans
            )
            if effects is None:
                marks = _marks_of_means(part, x, y)
            else:
                own = effects if hue is None else effects[effects[hue].astype(str) == name]
                marks = _marks_of_effects(own, x)
            ends = np.array([[mark.lo, mark.hi] for mark in marks.values()])
            heights.append(ends[np.isfinite(ends)])
            lines.append(
                _ordered_line(
                    ax,
                    part,
                    marks,
                    x,
                    y,
                    f"{name}, {axis}" if name else axis,
                    index,
                    ax.transData + aside,
                    places,
                    texts,
                    len(whole),
                )
            )
        style.fit(ax, np.concatenate(heights))
        if "linthresh" not in scale:
            style.ticks(ax, "x", log=scale["value"] == "log")
        if len(texts) <= 8:
            style.tick_at(ax, texts)
        style.ticks(ax, "y")
        apart_from = " (logarithmic, with 0)" if "linthresh" in scale else ""
        return style.finish(ax, axis + apart_from, label, lines, names)


def _widen(ax: Axes, x: np.ndarray, scale: dict[str, Any], room: float) -> None:
    """Fit the x axis to `x`, with `room` as a share of its range at both ends.

    This comes before drawing: matplotlib does not allow for shifted lines when it scales an axis.
    """
    ax.set_xscale(**scale)
    if len(x) and np.ptp(x) > 0:
        to_axis = ax.xaxis.get_transform()
        low, high = to_axis.transform(np.array([x.min(), x.max()]))
        ends = np.array([low, high]) + room * (high - low) * np.array([-1, 1])
        ax.set_xlim(*to_axis.inverted().transform(ends))


class _Mark(NamedTuple):
    """A mark of a line over a number, and its interval; NaN where none is known."""

    n: int
    mean: float
    lo: float
    hi: float
    filled: bool = True
    what: str = "runs"  # that it is a mean over


def _marks_of_means(part: pd.DataFrame, x: str, y: str) -> dict[float, _Mark]:
    """x → the mean of the runs there and its t-interval: `paired` of the values themselves."""
    marks = {}
    for value, runs in part.groupby(x):
        one = stats.paired(runs[y].to_numpy(float), crossed=_crossed(runs))
        ends = (one.lo, one.hi) if one.n >= FEWEST else (math.nan, math.nan)
        marks[float(value)] = _Mark(one.n, one.mean, *ends)  # type: ignore[arg-type]
    return marks


def _marks_of_effects(effects: pd.DataFrame, x: str) -> dict[float, _Mark]:
    """x → the effect there."""
    known = effects[np.isfinite(effects["mean"])].sort_values(x)
    assert known[x].is_unique, "two effects of a line at one place"
    return {
        at: _Mark(one.n, one.mean, one.lo, one.hi, one.significant, "pairs")
        for at, one in zip(known[x].astype(float), known.itertuples(), strict=True)
    }


def _crossed(runs: pd.DataFrame) -> np.ndarray | None:
    """Seeds of initialisation and of data order [n, 2]; None where no run has two seeds."""
    names = ["init_seed", "data_seed"]
    if not {*names, "seed"} <= set(runs) or runs[names].isna().all(axis=None):
        return None
    seeds = runs[names].apply(lambda column: column.fillna(runs["seed"]))
    return seeds.to_numpy(int)


def _ordered_line(
    ax: Axes,
    part: pd.DataFrame,
    marks: dict[float, _Mark],
    x: str,
    y: str,
    name: str,
    index: int,
    transform: Transform,
    places: int | None,
    texts: Mapping[float, str],
    of: int,
) -> Line2D:
    look: dict[str, Any] = {**style.look(index, 4.0), "transform": transform}
    runs = part[x].astype(float), part[y].astype(float)
    style.faint(ax, *runs, "o", look["color"], of=of, transform=transform)
    for value, mark in marks.items():
        if math.isfinite(mark.lo) and math.isfinite(mark.hi):
            interval = {**look, "marker": "", "linewidth": 1.2, "solid_capstyle": "butt"}
            ax.plot([value, value], [mark.lo, mark.hi], **interval)
        text = f"{name} {texts[value]}: {style.rough(mark.mean, places)} over {mark.n} {mark.what}"
        fill = look["color"] if mark.filled else style.PAPER
        style.tipped(ax, text, [value], [mark.mean], **look, markerfacecolor=fill)
    means = [mark.mean for mark in marks.values()]
    return ax.plot(
        list(marks), means, linestyle=style.dash(index), linewidth=1.2, zorder=1, **look
    )[0]


def _scale(values: pd.Series) -> dict[str, Any]:
    """Return the scale for levels: logarithmic over decades, with a place for 0 a decade before."""
    above = values[values > 0]
    decades = above.max() / above.min() if len(above) else 1.0
    if decades >= 8 and values.min() > 0:
        return {"value": "log"}
    if decades >= 25 and values.min() == 0:
        return {"value": "symlog", "linthresh": above.min()}
    return {"value": "linear"}


def heat(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str,
    value: str = "metric",
    label: str = "metric",
    places: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the mean of `value` for every combination of two factors; empty if no run counts.

    The colours cover the cells near each other; a cell `beyond` them has the colour of the end, and
    its number.

    Args:
        frame: One row a run.
        x: Column of the factor across.
        y: Column of the factor down.
        value: Column to average.
        label: Name of the colour bar.
        places: Decimals of values in names and under the pointer, None for four digits.
        ax: Axes to draw on, None for a new figure.
    """
    with style.theme():
        table = frame.pivot_table(
            index=y, columns=x, values=value, aggfunc="mean", observed=False, dropna=False
        )
        ax = style.canvas(ax, 1.55 + 0.26 * len(table))
        numbers = table.to_numpy(float)
        written = table.map(
            lambda number: (
                style.rough(number, _digits(numbers) if places is None else places)
                if math.isfinite(number)
                else ""
            )
        )
        low, high = _middle(numbers)
        sns.heatmap(
            table,
            ax=ax,
            cmap="cividis",
            vmin=low,
            vmax=high,
            annot=written,
            fmt="",
            xticklabels=True,  # a tick each: by itself it leaves some out where they are many
            yticklabels=True,
            annot_kws={"size": 6.5},
            linewidths=0.6,
            linecolor=style.PAPER,
            cbar_kws={
                "label": style.plain(label),
                "location": "bottom",
                "aspect": 40,
                "format": style.Even(style.decimal),
            },
        )
        named = (
            f"{x}={across}, {y}={down}: {text}"
            for down, row in written.iterrows()
            for across, text in row.items()
            if text
        )
        for cell, text in zip(ax.texts, named, strict=True):
            style.tip(cell, text)
        bar = ax.collections[0].colorbar.ax  # type: ignore[union-attr]
        bar.tick_params(width=0.7)
        bar.xaxis.label.set_wrap(True)
        for spine in ax.spines.values():
            spine.set_visible(False)
        ax.set_xticklabels(
            style.short(table.columns, 18, lines=1), rotation=30, ha="left", rotation_mode="anchor"
        )
        ax.set_yticklabels(style.short(table.index, 20, lines=1), rotation=0)
        ax.tick_params(length=0, labeltop=True, labelbottom=False)
        ax.set_xlabel("")
        ax.set_ylabel(style.plain(y))
        return ax


def beyond(frame: pd.DataFrame, *, x: str, y: str, value: str = "metric") -> bool:
    """Return whether `heat` has a cell beyond its colours."""
    means = frame.groupby([x, y], observed=True)[value].mean().to_numpy(float)
    low, high = _middle(means)
    return bool(np.any((means < low) | (means > high)))


def _middle(values: np.ndarray) -> tuple[float, float]:
    """Return the range of the cells near their median."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    # colours are harder to tell apart than places
    kept = finite[style.near(zip(finite, finite, strict=True), few=1 / 3, more=1 / 5)]
    return float(kept.min()), float(kept.max())


def _digits(values: np.ndarray) -> int:
    """Return decimals for the cells near each other: two digits of their range."""
    low, high = _middle(values)
    return min(12, max(0, 1 - math.floor(math.log10(high - low)))) if high > low else 3
