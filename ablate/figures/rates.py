"""The figure of a search for learning rates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ablate.figures import style


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
    a rate at which a run diverged. The y axis fits the better half of the values.

    Args:
        frame: One row a run that ended, with columns lr, status, y and `hue`.
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
        groups = list(style.arms(frame, hue))
        names = style.entries(name for name, *_ in groups)
        ax = style.canvas(ax, 2.2, names)
        lines, shown = [], []
        for name, index, part in groups:
            means = part.groupby("lr")[y].agg(
                lambda values: values.astype(float).mean(skipna=False)
            )
            lost = sorted(set(part.loc[part["status"] == "diverged", "lr"]))
            good = means[~means.index.isin(lost) & means.notna()]
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
            shown.append(np.array(good))
        shown = shown if own else [np.concatenate(shown)] if shown else []
        if any(map(len, shown)):
            style.fit(ax, np.concatenate([_better(values, goal) for values in shown]))
        style.ticks(ax, "x", log=True)
        style.ticks(ax, "y")
        return style.finish(ax, axis, label, lines, names)


def _better(values: np.ndarray, goal: str) -> np.ndarray:
    """Return the values that are not much further from the best than half of all are."""
    if not len(values):
        return values
    far = np.abs(values - (values.min() if goal == "min" else values.max()))
    return values[far <= 1.5 * np.median(far)]
