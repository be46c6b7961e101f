"""Figures of what a result costs: the metric over model size with its power law, and over the seconds of a run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from ablate import units
from ablate.figures import style
from ablate.scaling.fit import Fit

SIZES = {  # column of the frame → label of the axis, how its ticks are written
    "n_params_body": ("parameters without embeddings and head", units.count),
    "n_params": ("parameters", units.count),
    "flops": ("training FLOPs", units.power),
    "tokens": ("training tokens", units.count),
}


def scaling(
    frame: pd.DataFrame, *, x: str = "n_params_body", y: str = "metric", hue: str = "arm", label: str = "metric",
    fits: Mapping[str, Fit] | None = None, ax: Axes | None = None,
) -> Axes:  # fmt: skip
    """A metric over size on two log axes, with the power law of each arm where `fits` has one.

    frame: one row a run, columns x, y, `hue`. fits: arm → its curve of one resource, drawn with its interval.
    """
    with style.theme():
        whole = frame[np.isfinite(frame[y].astype(float)) & (frame[y].astype(float) > 0)]
        shown = list(style.arms(whole, hue))
        names = [style.plain(name, 24) for name, *_ in shown]
        ax = style.canvas(ax, 2.4, names)
        handles = []
        for name, index, part in shown:
            ax.plot(part[x], part[y], style.marker(index), color=style.color(index), alpha=0.3, markersize=3, markeredgewidth=0)
            means = part.groupby(x, observed=True)[y].agg(["mean", "size"])
            mark = ax.plot(means.index, means["mean"], style.marker(index), color=style.color(index), markersize=4.5)[0]
            each = [f"{units.count(float(size))}: {mean:.4g}" for size, mean in means["mean"].items()]  # type: ignore[arg-type]
            style.tip(mark, f"{name}: {'; '.join(each)}")
            if fits and name in fits:
                grid = np.geomspace(means.index.min(), means.index.max(), 100)
                curve = fits[name].predict(**{fits[name].form.columns[0]: grid})
                ax.fill_between(grid, curve.lo, curve.hi, color=style.color(index), alpha=0.18, linewidth=0)
                ax.plot(grid, curve.value, color=style.color(index), linestyle=style.dash(index), linewidth=1.2)
            handles.append(mark)
        text, write = SIZES.get(x, (x.replace("_", " "), style.decimal))
        style.ticks(ax, "x", write, log=True)
        style.ticks(ax, "y", log=True)
        ax.grid(axis="y")
        style.labels(ax, text, label)
        style.legend_below(ax, handles, names)
        return ax


def pareto(
    frame: pd.DataFrame, *, x: str = "seconds", y: str = "metric", hue: str = "arm", goal: str = "min", label: str = "metric",
    ax: Axes | None = None,
) -> Axes:  # fmt: skip
    """Each arm's mean metric against its mean seconds a run; the line joins the arms that no other beats in both.

    frame: one row a run, columns x, y, `hue`. The y axis fits the arms near each other; the legend gives the value of another.
    """
    with style.theme():
        whole = frame[np.isfinite(frame[y].astype(float)) & np.isfinite(frame[x].astype(float))]
        found = list(style.arms(whole, hue))
        means = whole.groupby(hue, observed=True)[[x, y]].mean()
        runs = whole.groupby(hue, observed=True)[y]
        near = style.near(list((means[y] - means[y].median()).abs()), (runs.max() - runs.min()).median())
        names = [
            style.plain(name, 24) + ("" if inside else f" (at {style.decimal(round(mean, 3))})")
            for (name, *_), mean, inside in zip(found, means[y], near, strict=True)
        ]
        ax = style.canvas(ax, 2.2, names)
        front = undominated(means[x].to_numpy(float), means[y].to_numpy(float), goal)
        best = means[front & near].sort_values(x)
        ax.plot(best[x], best[y], color=style.RULE, linewidth=1.5, drawstyle="steps-post", zorder=1, gid="front")
        handles = []
        for name, index, part in found:
            ax.plot(
                part[x], part[y], style.marker(index), color=style.color(index), alpha=0.25, markersize=2.6, markeredgewidth=0
            )
            at = part[[x, y]].mean()
            mark = ax.plot([at[x]], [at[y]], style.marker(index), color=style.color(index), markersize=5.5, zorder=3)[0]
            style.tip(mark, f"{name}: {at[y]:.4g} in {at[x]:.3g} s")
            handles.append(mark)
        style.fit(ax, whole.loc[whole[hue].isin(means.index[near]), y].to_numpy(float))
        style.ticks(ax, "x")
        style.ticks(ax, "y")
        ax.grid(axis="both")
        style.labels(ax, "seconds of training a run", label)
        style.legend_below(ax, handles, names)
        return ax


def undominated(cost: np.ndarray, metric: np.ndarray, goal: str) -> np.ndarray:
    """Which points [n] no other beats in one of cost and metric while being as good in the other."""
    value = metric if goal == "min" else -metric
    no_worse = (cost[:, None] <= cost) & (value[:, None] <= value)  # [i, j]: i is at least as good as j in both
    better = (cost[:, None] < cost) | (value[:, None] < value)
    beaten: np.ndarray = np.any(no_worse & better, axis=0)
    return ~beaten
