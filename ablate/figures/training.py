"""Figures of what happens in a run: learning curves, and the residual stream block by block."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ablate.figures import style

AXES = {  # column of the frame → label of the axis, how its ticks are written
    "tokens": ("training tokens", style.count),
    "flops": ("training FLOPs", style.power),
    "seconds": ("training time (s)", style.decimal),
    "step": ("optimiser step", style.count),
}
EARLY = 0.2  # the share of a run whose steep fall may leave the picture


def curves(frame: pd.DataFrame, *, x: str = "tokens", hue: str = "arm", label: str = "loss", ax: Axes | None = None) -> Axes:
    """Learning curves: for each arm the mean over seeds, in a band from the lowest to the highest seed.

    frame: columns `x` (tokens, flops, seconds or step), step, run, value, `hue`, and diverged_at where a run diverged:
    a cross marks its last finite value. The y axis fits the last four fifths of the runs.
    """
    with style.theme():
        whole = frame[np.isfinite(frame["value"].astype(float)) & np.isfinite(frame[x].astype(float))]
        ax, lines, names = _bands(whole, "step", hue, ax, x=x)
        for line, (name, _, part) in zip(lines, style.arms(whole, hue), strict=True):
            style.tip(line, f"{name}: {part.loc[part['step'] == part['step'].max(), 'value'].mean():.4g} at the end")
            _crosses(ax, part, x, name, line)
        text, write = AXES[x]
        style.labels(ax, text, label)
        style.ticks(ax, "x", write)
        late = whole.loc[whole[x] >= EARLY * whole[x].max(), "value"]
        _fit(ax, late)
        style.ticks(ax, "y")
        ax.grid(axis="y")
        style.legend_below(ax, lines, names)
        return ax


def gaps(frame: pd.DataFrame, *, x: str = "tokens", hue: str = "arm", label: str = "difference", ax: Axes | None = None) -> Axes:
    """How far each arm is from its baseline over training, by seed: the mean difference, in a band from lowest to highest.

    frame: columns `x`, step, run, value, `hue`, where value is the run's minus that of the baseline's run of the same seed.
    """
    with style.theme():
        whole = frame[np.isfinite(frame["value"].astype(float))]
        ax, lines, names = _bands(whole, "step", hue, ax, x=x)
        ax.axhline(0, color=style.INK, linewidth=0.7, zorder=1)
        for line, name in zip(lines, names, strict=True):
            style.tip(line, f"{name}: {line.get_ydata()[-1]:+.4g} at the end")  # type: ignore[index]
        text, write = AXES[x]
        style.labels(ax, text, label)
        style.ticks(ax, "x", write)
        late = whole.loc[whole[x] >= EARLY * whole[x].max(), "value"]
        _fit(ax, pd.concat([late, pd.Series([0.0])]))
        style.ticks(ax, "y", style.signed)
        ax.grid(axis="y")
        style.legend_below(ax, lines, names)
        return ax


def blocks(frame: pd.DataFrame, *, hue: str = "arm", label: str = "RMS of the residual stream", ax: Axes | None = None) -> Axes:
    """A final value per block over depth, the mean over seeds, in a band from the lowest to the highest seed.

    frame: columns block, value, run, `hue`: `stream_rms` (a log axis where it spans decades) or `token_similarity`.
    """
    with style.theme():
        whole = frame[np.isfinite(frame["value"].astype(float))]
        ax, lines, names = _bands(whole, "block", hue, ax)
        for line, name in zip(lines, names, strict=True):
            ys = line.get_ydata()
            style.tip(line, f"{name}: {ys[0]:.3g} at the first block, {ys[-1]:.3g} at the last")  # type: ignore[index]
        positive = whole["value"][whole["value"] > 0]
        decades = np.log10(positive.max() / positive.min()) if len(positive) == len(whole) > 0 else 0.0
        style.ticks(ax, "y", style.power if decades > 3 else style.decimal, log=decades > 1.3)
        style.ticks(ax, "x", lambda value: f"{value:.0f}" if value == round(value) else "")
        ax.grid(axis="y")
        style.labels(ax, "block", label)
        style.legend_below(ax, lines, names)
        return ax


def _bands(whole: pd.DataFrame, by: str, hue: str, ax: Axes | None, x: str | None = None) -> tuple[Axes, list[Line2D], list[str]]:
    """A line through the means over `by` and a band from lowest to highest, for each arm that has values."""
    shown = list(style.arms(whole, hue))
    names = [style.plain(name, 24) for name, *_ in shown]
    ax = style.canvas(ax, 2.2, names)
    lines = []
    for _, index, part in shown:
        points = part.groupby(by).agg(x=(x or by, "mean"), mean=("value", "mean"), low=("value", "min"), high=("value", "max"))
        ax.fill_between(points["x"], points["low"], points["high"], color=style.color(index), alpha=0.18, linewidth=0)
        line = ax.plot(points["x"], points["mean"], color=style.color(index), linestyle=style.dash(index), linewidth=1.3)[0]
        if len(points) <= 16:
            line.set(marker=style.marker(index), markersize=3.5)
        lines.append(line)
    return ax, lines, names


def _crosses(ax: Axes, part: pd.DataFrame, x: str, name: str, line: Line2D) -> None:
    if "diverged_at" not in part:
        return
    for run, points in part[part["diverged_at"].notna()].groupby("run"):
        last = points.sort_values("step").iloc[-1]
        cross = ax.plot([last[x]], [last["value"]], "x", color=line.get_color(), markersize=6, markeredgewidth=1.6, zorder=5)[0]
        style.tip(cross, f"{name}, run {run}: diverged at step {int(last['diverged_at'])}")


def _fit(ax: Axes, values: pd.Series) -> None:
    """Fit the y axis to `values`."""
    low, high = values.min(), values.max()
    if high > low:
        ax.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
