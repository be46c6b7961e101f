"""The figure of what a result costs: the metric over the seconds of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ablate.figures import style


def pareto(
    frame: pd.DataFrame,
    *,
    x: str = "seconds",
    y: str = "metric",
    hue: str = "arm",
    goal: str = "min",
    label: str = "metric",
    places: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw each arm's mean metric against its mean seconds a run; a line joins those of `front`.

    A thin line runs from an arm's fastest to its slowest run. The y axis fits the arms near each
    other; the legend gives the value of any other.

    Args:
        frame: One row a run, with columns x, y and `hue`.
        x: Column of the cost.
        y: Column of the metric.
        hue: Column of the arm.
        goal: "min" or "max": which direction of y is better.
        label: Name of the y axis.
        places: Decimals of values in names and under the pointer, None for four digits.
        ax: Axes to draw on, None for a new figure.
    """
    with style.theme():
        whole = frame[np.isfinite(frame[y].astype(float)) & np.isfinite(frame[x].astype(float))]
        arms = list(style.arms(whole, hue))
        means = whole.groupby(hue, observed=True)[[x, y]].mean()
        ends = whole.groupby(hue, observed=True)[y].agg(["min", "max"])
        near = style.near(ends.to_numpy(float), style.best_of(means[y], goal))
        names = [
            name + ("" if inside else f" (at {style.rough(mean, places)})")
            for name, mean, inside in zip(
                style.entries(name for name, *_ in arms), means[y], near, strict=True
            )
        ]
        ax = style.canvas(ax, 2.2, names)
        best = means[
            near & means.index.isin(front(whole, x=x, y=y, hue=hue, goal=goal))
        ].sort_values(x)
        step: dict[str, Any] = {"linewidth": 1.5, "drawstyle": "steps-post", "zorder": 1}
        ax.plot(best[x], best[y], color=style.RULE, gid="front", **step)
        handles = []
        for name, index, part in arms:
            mark = style.marker(index), style.color(index)
            style.faint(ax, part[x], part[y], *mark, of=len(whole))
            at = part[[x, y]].mean()
            low, high = part[x].min(), part[x].max()
            text = f"{name}: {style.rough(at[y], places)} in {at[x]:.3g} s"
            text += f" ({low:.3g} to {high:.3g})"
            line: dict[str, Any] = {"color": style.color(index), "linewidth": 0.8}
            style.tipped(ax, text, [low, high], [at[y]] * 2, **line)
            look = style.look(index, 5.5)
            handles.append(style.tipped(ax, text, [at[x]], [at[y]], zorder=3, linestyle="", **look))
        style.fit(ax, whole.loc[whole[hue].isin(means.index[near]), y].to_numpy(float))
        style.ticks(ax, "x")
        style.ticks(ax, "y")
        return style.finish(ax, "seconds of training a run", label, handles, names, "both")


def front(
    frame: pd.DataFrame,
    *,
    x: str = "seconds",
    y: str = "metric",
    hue: str = "arm",
    goal: str = "min",
) -> list[str]:
    """Return the arms that no other arm beats in both means.

    None if the runs of one of them overlap in x with those of another arm.
    """
    arms = frame.groupby(hue, observed=True)
    means, low, high = (
        arms[[x, y]].mean(),
        arms[x].min().to_numpy(float),
        arms[x].max().to_numpy(float),
    )
    best = undominated(means[x].to_numpy(float), means[y].to_numpy(float), goal)
    overlap = (low[:, None] <= high) & (low <= high[:, None]) & ~np.eye(len(means), dtype=bool)
    return [] if overlap[best].any() else [str(name) for name in means.index[best]]


def undominated(cost: np.ndarray, metric: np.ndarray, goal: str) -> np.ndarray:
    """Return which points [n] no other beats in one of cost and metric and equals in the other."""
    value = metric if goal == "min" else -metric
    # [i, j]: i is at least as good as j in both
    no_worse = (cost[:, None] <= cost) & (value[:, None] <= value)
    better = (cost[:, None] < cost) | (value[:, None] < value)
    beaten: np.ndarray = np.any(no_worse & better, axis=0)
    return ~beaten
