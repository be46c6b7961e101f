"""Figures of scaling curves: loss over size, tokens, FLOPs; isoFLOP minima; splits; residuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation

from ablate import units
from ablate.figures import style
from ablate.figures.grid import POINTS, along, called
from ablate.scaling.beyond import Prediction
from ablate.scaling.fit import Fit
from ablate.scaling.forms import level_of
from ablate.scaling.isoflop import IsoFlop

AXES = {  # resource → label of the axis, format of its ticks
    "n": ("parameters N", units.count),
    "d": ("training tokens D", units.count),
    "c": ("training FLOPs C", units.power),
}
CROWD = 80  # from this many points on, marks are smaller
# marks of held-out runs
OPEN: dict[str, Any] = {"markerfacecolor": style.PAPER, "markeredgewidth": 0.9}


def scaling(
    frame: pd.DataFrame,
    *,
    x: str = "n",
    label: str = "loss",
    fits: Mapping[str, Fit] | None = None,
    predictions: Mapping[str, Sequence[Prediction]] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the loss over one resource on two log axes, with the fitted curves.

    L(N, D) is drawn along the lines of the grid: over N at each budget, ratio or token count,
    whichever has the fewest values; over D and over C at each size. Without a grid there are lines
    at a few token counts or sizes. Over C a thick line is the lowest loss of a budget. Dotted
    curves are fitted without the held-out runs, which are hollow.

    Args:
        frame: One row a run: n, d, c, loss, curve, held_out.
        x: "n", "d" or "c".
        label: Name of the y axis.
        fits: Curve → its fit.
        predictions: Curve → what it predicts, drawn with the interval of a run's loss.
        ax: Axes to draw on, None for a new figure.
    """
    fits, predictions = fits or {}, predictions or {}
    with style.theme():
        shown = list(style.arms(frame, "curve"))
        names = style.entries(name for name, *_ in shown) if len(shown) > 1 else []
        ax = style.canvas(ax, 2.4, names)
        handles, labels = [], []
        for name, index, part in shown:
            handles.append(_points(ax, name, index, part, x))
            if name in fits:
                labels += _curve(ax, fits[name], index, part, x)
            _predictions(ax, name, index, predictions.get(name, ()), x)
        text, write = AXES[x]
        style.ticks(ax, "x", write, log=True)
        style.ticks(ax, "y", log=True)
        style.finish(ax, text, label, handles, names)
        style.apart(ax, labels)
        return ax


def isoflop(
    found: IsoFlop, frame: pd.DataFrame, *, label: str = "loss", ax: Axes | None = None
) -> Axes:
    """Draw the loss over size in each budget, its interpolation, and its minimum with interval.

    Args:
        found: The minima of one curve.
        frame: The runs of that curve: n, c, loss.
        label: Name of the y axis.
        ax: Axes to draw on, None for a new figure.
    """
    with style.theme():
        names = [f"{units.power(float(f'{minimum.c:.2g}'))} FLOPs" for minimum in found.minima]
        ax = style.canvas(ax, 2.4, names)
        shades = sns.color_palette("crest", len(found.minima)).as_hex()
        budget = level_of(frame["c"].to_numpy(float))
        handles = []
        for number, (minimum, shade) in enumerate(zip(found.minima, shades, strict=True)):
            runs = frame[budget == number]
            style.faint(ax, runs["n"], runs["loss"], "o", shade)
            points = minimum.sizes, minimum.losses
            if len(minimum.sizes) > 1:  # of three there is no Akima interpolation
                line = minimum.curve() if len(minimum.sizes) > 3 else points
                ax.plot(*line, color=shade, linewidth=1.1)
            handles += ax.plot(*points, style.marker(number), color=shade, markersize=4)
            if not minimum.reason:
                at, loss, ends = minimum.n.value, minimum.loss, [minimum.n.lo, minimum.n.hi]
                if np.isfinite(ends).all():
                    ax.plot(ends, [loss, loss], color=style.INK, linewidth=0.9, zorder=4)
                text = (
                    f"{units.power(minimum.c)} FLOPs: lowest loss {loss:.4g} at {units.count(at)}"
                )
                star: dict[str, Any] = {"markersize": 7, "zorder": 5, "markeredgewidth": 0}
                style.tipped(ax, text, [at], [loss], "*", color=style.INK, **star)
        style.ticks(ax, "x", AXES["n"][1], log=True)
        style.ticks(ax, "y", log=True)
        return style.finish(ax, AXES["n"][0], label, handles, names)


def frontier(
    isoflops: Mapping[str, IsoFlop],
    fits: Mapping[str, Fit],
    order: list[str],
    ranges: Mapping[str, tuple[float, float]],
    *,
    which: str = "n",
    ax: Axes | None = None,
) -> Axes:
    """Draw the compute-optimal size or number of tokens over the budget.

    Marks and solid line: isoFLOP minima and their power law. Dashed line and band: the best split
    of L(N, D).

    Args:
        isoflops: Curve → its minima.
        fits: Curve → its fit.
        order: All curves, which sets their colours.
        ranges: Curve → lowest and highest budget measured.
        which: "n" for size, "d" for tokens.
        ax: Axes to draw on, None for a new figure.
    """
    with style.theme():
        shown = [name for name in order if name in isoflops or name in fits]
        names = style.entries(shown) if len(shown) > 1 else []
        ax = style.canvas(ax, 2.2, names)
        handles = []
        for name in shown:
            index = order.index(name)
            shade = style.color(index)
            c = np.geomspace(*ranges[name], POINTS)
            handles.append(style.handle(index, linewidth=1.2))
            if name in fits and fits[name].form.columns == ("n", "d"):
                band = fits[name].best_split(c)[0 if which == "n" else 1]
                ax.fill_between(c, band.lo, band.hi, color=shade, alpha=0.15, linewidth=0)
                ax.plot(c, band.value, color=shade, linestyle=(0, (5, 1.5)), linewidth=1)
            if name in isoflops:
                _minima(ax, isoflops[name], which, index, c)
        style.ticks(ax, "x", AXES["c"][1], log=True)
        style.ticks(ax, "y", AXES[which][1], log=True)
        what = {"n": "best size N", "d": "best tokens D"}[which]
        return style.finish(ax, AXES["c"][0], what, handles, names)


def residuals(frame: pd.DataFrame, *, x: str = "n", ax: Axes | None = None) -> Axes:
    """Draw how far every run is from its curve, in per cent of the loss.

    Args:
        frame: As for `scaling`, with a column residual.
        x: "n", "d" or "c".
        ax: Axes to draw on, None for a new figure.
    """
    with style.theme():
        shown = list(style.arms(frame, "curve"))
        names = style.entries(name for name, *_ in shown) if len(shown) > 1 else []
        ax = style.canvas(ax, 1.9, names)
        ax.axhline(0, color=style.INK, linewidth=0.7, zorder=1)
        handles = []
        for number, (_, index, part) in enumerate(shown):
            # curves with the same sizes are drawn next to each other
            aside = 1.03 ** (number - (len(shown) - 1) / 2)
            for held_out, runs in part.groupby("held_out"):
                look = style.look(index, 3.2) | (OPEN if held_out else {"markeredgewidth": 0})
                percent = 100 * runs["residual"]
                ax.plot(runs[x] * aside, percent, linestyle="", alpha=0.75, **look)
            handles.append(style.handle(index, linestyle=""))
        text, write = AXES[x]
        style.ticks(ax, "x", write, log=True)
        style.ticks(ax, "y", style.signed)
        return style.finish(ax, text, "loss against its curve (%)", handles, names)


# -- parts -----------------------------------------------------------------------------------------


def _points(ax: Axes, name: str, index: int, part: pd.DataFrame, x: str) -> Line2D:
    """Draw single runs, faint, and their means; held-out ones are hollow."""
    style.faint(ax, part[x], part["loss"], style.marker(index), style.color(index))
    levels = [
        level_of(part[column].to_numpy(float)) for column in ("n", "d", "c") if column in part
    ]
    means = part.groupby([*levels])[[x, "loss", "held_out"]].mean()
    size = 4.0 if len(means) < CROWD else 2.6
    for held_out, group in means.groupby(means["held_out"] > 0.5):
        points, write = group[[x, "loss"]].to_numpy(), AXES[x][1]
        text = f"{name}: " + "; ".join(f"{write(at)}: {loss:.4g}" for at, loss in points)
        look = style.look(index, size) | {"linestyle": "", "zorder": 3} | (OPEN if held_out else {})
        style.tipped(ax, text, group[x], group["loss"], **look)
    return style.handle(index, linewidth=1.2)


def _curve(ax: Axes, fitted: Fit, index: int, part: pd.DataFrame, x: str) -> list[Annotation]:
    """Draw the curve along its lines and return their labels."""
    shade, labels = style.color(index), []
    if fitted.form.columns == ("n", "d") and x == "c":
        c = np.geomspace(part["c"].min(), part["c"].max(), POINTS)
        band = fitted.best_split(c)[2]
        ax.fill_between(c, band.lo, band.hi, color=shade, alpha=0.18, linewidth=0)
        ax.plot(c, band.value, color=shade, linewidth=1.6)
    lines = list(along(fitted, part, x))
    for number, line in enumerate(lines):
        band = fitted.predict(**{name: line[name] for name in fitted.form.columns})
        thin = x == "c" and len(fitted.form.columns) == 2
        if not thin:
            ax.fill_between(line[x], band.lo, band.hi, color=shade, alpha=0.15, linewidth=0)
        ax.plot(
            line[x],
            band.value,
            color=shade,
            linewidth=0.5 if thin else 1.1,
            alpha=0.5 if thin else 1,
        )
        if index == 0 and len(lines) > 1 and (x != "c" or number in (0, len(lines) - 1)):
            labels.append(_label(ax, line, band.value, part, x))
        if fitted.held_out is not None:
            beyond = line[fitted.held_out.column] > 1.01 * _last_fitted(fitted)
            without = fitted.form.loss(
                fitted.held_out.values, {name: line[name] for name in fitted.form.columns}
            )
            ax.plot(
                line[x][beyond], without[beyond], color=shade, linewidth=1.1, linestyle=(0, (1, 1))
            )
    return labels


def _predictions(ax: Axes, name: str, index: int, predicted: Sequence[Prediction], x: str) -> None:
    """Draw predicted losses as diamonds with intervals."""
    for one in predicted:
        if x in one.at:
            at, loss, write = one.at[x], one.loss, AXES[x][1]
            ax.plot([at, at], [loss.lo, loss.hi], color=style.color(index), linewidth=1)
            text = f"{name}, predicted at {write(at)}: {loss}"
            look = {"color": style.color(index), "markersize": 4.5, "zorder": 4}
            style.tipped(ax, text, [at], [loss.value], "D", **(look | OPEN))


def _last_fitted(fitted: Fit) -> float:
    """Return the largest value of the held-out resource that was fitted."""
    assert fitted.held_out is not None
    column = fitted.columns[fitted.held_out.column]
    return float(column[column < fitted.held_out.from_].max())


def _label(
    ax: Axes, line: dict[str, np.ndarray], loss: np.ndarray, part: pd.DataFrame, x: str
) -> Annotation:
    """Write the value that a line is at, if there is room: over D at the line's start."""
    at, offset = (0, (4, 4)) if x == "d" else (-1, (4, -1))
    point, halo = (line[x][at], loss[at]), [withStroke(linewidth=1.5, foreground=style.PAPER)]
    return ax.annotate(
        called(line, part, x),
        point,
        offset,
        textcoords="offset points",
        fontsize=6,
        va="center",
        path_effects=halo,
        zorder=5,
    )


def _minima(ax: Axes, iso: IsoFlop, which: str, index: int, c: np.ndarray) -> None:
    shade = style.color(index)
    ax.plot(c, iso.best_split(c)[0 if which == "n" else 1], color=shade, linewidth=1.4)
    for minimum in iso.minima:
        if minimum.reason:
            continue
        if which == "n":
            ax.plot([minimum.c] * 2, [minimum.n.lo, minimum.n.hi], color=shade, linewidth=1)
        best = minimum.n.value if which == "n" else minimum.d
        split = f"{units.count(minimum.n.value)} parameters, {units.count(minimum.d)} tokens"
        text = f"{units.power(minimum.c)} FLOPs: {split}"
        style.tipped(ax, text, [minimum.c], [best], zorder=4, **style.look(index, 4.5))
