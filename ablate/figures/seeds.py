"""The figure of single seeds: every run's metric, arm by arm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ablate.figures import style


def seeds(
    frame: pd.DataFrame,
    groups: Mapping[str, Iterable[int]] = {},
    *,
    y: str = "metric",
    hue: str = "arm",
    label: str = "metric",
    goal: str = "min",
    places: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the metric of every seed, with a column for each arm and a line at its mean.

    The same seed has the same place in every column. The y axis fits the arms near each other; an
    arm beyond it has its mean in its name.

    Args:
        frame: One row a run, with columns seed, y and `hue`, and perhaps `untrained`: whether the
            arm did not learn, which the axis then does not fit.
        groups: Arm → seeds of its lower group, which are drawn filled; all others are hollow. An
            arm without groups is filled.
        y: Column of the metric.
        hue: Column of the arm.
        label: Name of the y axis.
        goal: "min" or "max": which direction of y is better.
        places: Decimals of values in names and under the pointer, None for four digits.
        ax: Axes to draw on, None for a new figure.
    """
    with style.theme():
        whole = frame[np.isfinite(frame[y].astype(float))]
        arms = list(style.arms(whole, hue))
        values = whole.groupby(hue, observed=True)[y]
        means, near = values.mean(), _near(whole, y, hue, goal)
        names = [
            name + ("" if inside else f" ({style.rough(mean, places)})")
            for name, mean, inside in zip(
                style.entries((name for name, *_ in arms), lines=1), means, near, strict=True
            )
        ]
        ax = style.canvas(ax, 2.4)
        order = sorted(set(whole["seed"]))
        across = np.linspace(-0.3, 0.3, len(order)) if len(order) > 1 else [0.0]
        place = dict(zip(order, across, strict=True))
        for column, ((name, index, part), inside) in enumerate(zip(arms, near, strict=True)):
            if not inside:
                continue
            lower = {*groups.get(name, part["seed"])}
            line = [column - 0.35, column + 0.35], [part[y].mean()] * 2
            style.tipped(
                ax, _told(name, part[y], places), *line, color=style.color(index), linewidth=0.8
            )
            filled = part["seed"].isin(lower)
            tipped = len(whole) <= style.SHAPES
            by = part.index if tipped else filled
            for _, runs in part.groupby(by, sort=False):
                shade = style.color(index) if filled[runs.index[0]] else "none"
                marks = ax.plot(
                    column + runs["seed"].map(place),
                    runs[y],
                    style.marker(index),
                    color=style.color(index),
                    markerfacecolor=shade,
                    markersize=4,
                    rasterized=not tipped,
                )
                if tipped:
                    value = style.rough(runs[y].iloc[0], places)
                    seed = f"{name}, seed {runs['seed'].iloc[0]}: {value}"
                    style.tip(marks[0], seed, single=True)
        style.fit(ax, whole.loc[whole[hue].isin(means.index[near]), y].to_numpy(float))
        ax.set_xticks(range(len(arms)), names)
        for tick, (name, _, part), inside in zip(ax.get_xticklabels(), arms, near, strict=True):
            if not inside:
                style.tip(tick, _told(name, part[y], places))
        if len(arms) > 3:
            ax.tick_params(axis="x", rotation=30)
            for text in ax.get_xticklabels():
                text.set_horizontalalignment("right")
        ax.set_xlim(-0.6, len(arms) - 0.4)
        style.ticks(ax, "y")
        ax.grid(axis="y")
        style.labels(ax, "", label)
        return ax


def _told(name: str, values: pd.Series, places: int | None) -> str:
    """Return the mean of an arm and the range of its seeds."""
    mean, low, high = (
        style.rough(float(value), places) for value in (values.mean(), values.min(), values.max())
    )
    return f"{name}: mean {mean}, {low} to {high} over {len(values)} seeds"


def far(frame: pd.DataFrame, goal: str = "min") -> bool:
    """Return whether `seeds` leaves an arm of this frame beyond its axis."""
    whole = frame[np.isfinite(frame["metric"].astype(float))]
    return not all(_near(whole, "metric", "arm", goal))


def _near(whole: pd.DataFrame, y: str, hue: str, goal: str) -> list[bool]:
    """Return which arms are near each other, of those that learnt if any did."""
    values = whole.groupby(hue, observed=True)
    ends = values[y].agg(["min", "max", "mean"]).astype(float)
    if "untrained" in whole and not whole["untrained"].all():
        ends[values["untrained"].any()] = np.nan
    return style.near(ends[["min", "max"]].to_numpy(), style.best_of(ends["mean"], goal))
