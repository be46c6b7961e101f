"""The figure of a search for learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ablate.figures import style

Group = tuple[str, int, pd.DataFrame]  # see `style.arms`


def rates(
    frame: pd.DataFrame,
    chosen: Mapping[str, float],
    *,
    y: str = "metric",
    hue: str = "arm",
    label: str = "metric",
    goal: str = "min",
    axis: str = "learning rate",
    own: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw a metric over the learning rates tried, a line for each value of `hue`.

    A ring marks the chosen rate. A mark is the mean over seeds; a cross at the edge of the axis is
    a rate at which a run diverged. The y axis fits the better half of the values and the best one
    of each line, but for lines far from the others; one that lies beyond the axis has its best
    value beside its name.

    Args:
        frame: One row a run that ended, with columns lr, status, y and `hue`, and perhaps
            `untrained`: whether no rate trains the line, which the axis then does not fit.
        chosen: Value of `hue` → chosen rate.
        y: Column of the metric.
        hue: Column whose values get a line each.
        label: Name of the y axis.
        goal: "min" or "max": which direction of y is better.
        axis: Name of the x axis.
        own: Whether y measures something else in each line, so that the y axis fits the better half
            of each.
        ax: Axes to draw on, None for a new figure.
    """
    with style.theme():
        groups, means, fitted, beyond = _lines(frame, y, hue, goal, own)
        names = [
            name + (f" (best {style.rough(_best(good, goal))})" if outside else "")
            for name, good, outside in zip(
                style.entries(name for name, *_ in groups), means, beyond, strict=True
            )
        ]
        ax = style.canvas(ax, 2.2, names)
        lines = []
        for (name, index, part), good in zip(groups, means, strict=True):
            lost = sorted(set(part.loc[part["status"] == "diverged", "lr"]))
            look = style.look(index, 3.5)
            (line,) = ax.plot(good.index, good, linestyle=style.dash(index), linewidth=1.2, **look)
            lines.append(line)
            for rate in lost:
                edge = 0.97 - 0.05 * (index % 3) if goal == "min" else 0.03 + 0.05 * (index % 3)
                text, cross = f"{name}: diverged at {rate:.3g}", look | {"marker": "x"}
                style.tipped(ax, text, [rate], [edge], transform=ax.get_xaxis_transform(), **cross)
            rate = chosen.get(name, math.nan)
            if len(good) and min(good.index) <= rate <= max(good.index):
                # on the line, where the rate lies between two that were tried
                height = float(np.interp(math.log(rate), np.log(good.index.to_numpy()), good))
                text = f"{name}: chosen {rate:.3g}"
                ring: dict[str, Any] = {"markersize": 9, "markerfacecolor": "none"}
                style.tipped(ax, text, [rate], [height], "o", color=look["color"], **ring)
        style.fit(ax, fitted)
        style.ticks(ax, "x", log=True)
        style.ticks(ax, "y")
        return style.finish(ax, axis, label, lines, names)


def far(frame: pd.DataFrame, y: str = "metric", hue: str = "arm", goal: str = "min") -> bool:
    """Return whether `rates` leaves a line beyond its axis, where all lines measure the same."""
    return any(_lines(frame, y, hue, goal, False)[3])


def _lines(
    frame: pd.DataFrame, y: str, hue: str, goal: str, own: bool
) -> tuple[list[Group], list[pd.Series], np.ndarray, list[bool]]:
    """Return the lines, their means at each rate, what the y axis fits, and which lie beyond it."""
    groups = list(style.arms(frame, hue))
    means = [_means(part, y) for *_, part in groups]
    near = _near(groups, means, goal, own)
    shown = [good for good, inside in zip(means, near, strict=True) if inside]
    if not shown:
        return groups, means, np.array([]), [False] * len(groups)
    together = shown if own else [pd.concat(shown)]
    better = [_better(values.to_numpy(), goal) for values in together]
    fitted = np.concatenate([*better, [_best(good, goal) for good in shown]])
    low, high = style.fitted(fitted) or (-math.inf, math.inf)
    beyond = [len(good) > 0 and not low <= _best(good, goal) <= high for good in means]
    return groups, means, fitted, beyond


def _means(part: pd.DataFrame, y: str) -> pd.Series:
    """Return the mean over seeds at each rate of a line at which no run diverged."""
    means = part.groupby("lr")[y].agg(lambda values: values.astype(float).mean(skipna=False))
    return means[~means.index.isin(part.loc[part["status"] == "diverged", "lr"]) & means.notna()]


def _best(values: pd.Series, goal: str) -> float:
    return float(values.min() if goal == "min" else values.max())


def _near(groups: Sequence[Group], means: Sequence[pd.Series], goal: str, own: bool) -> list[bool]:
    """Return which lines are near each other by their best values, of those that train if any do.

    All that have a value, if `own`.
    """
    bests = np.array([_best(good, goal) if len(good) else math.nan for good in means])
    bests[~np.isfinite(bests)] = math.nan
    trains = np.array(
        ["untrained" not in part or not part["untrained"].any() for *_, part in groups]
    )
    known = np.isfinite(bests)
    if own or not known.any():
        return known.tolist()
    bests = np.where(trains, bests, math.nan) if (trains & known).any() else bests
    whole = [_better(good.to_numpy(float), goal) if len(good) else [math.nan] for good in means]
    extents = [(float(np.min(values)), float(np.max(values))) for values in whole]
    return style.near(zip(bests, bests, strict=True), style.best_of(bests, goal), extents)


def _better(values: np.ndarray, goal: str) -> np.ndarray:
    """Return the values that are not much further from the best than half of all are."""
    apart = np.abs(values - (values.min() if goal == "min" else values.max()))
    return values[apart <= 1.5 * np.median(apart)]
