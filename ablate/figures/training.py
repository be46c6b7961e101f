"""Figures of what happens in a run: learning curves, and the residual stream block by block."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from ablate import units
from ablate.figures import style
from ablate.figures.style import rough

AXES = {  # column of the frame → label of the axis, format of its ticks
    "tokens": ("training tokens", units.count),
    "flops": ("training FLOPs", units.power),
    "seconds": ("training time (s)", style.decimal),
    "step": ("optimiser step", units.count),
}
EARLY = 0.2  # share of a run, with its steep fall, that the y axis does not fit
FEW = 8  # points of curves that the y axis fits whole


def curves(
    frame: pd.DataFrame | list[Arm],
    *,
    x: str = "tokens",
    hue: str = "arm",
    label: str = "loss",
    goal: str = "min",
    places: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw learning curves: for each arm the mean over seeds, in a band from lowest to highest.

    Mean and band are of the runs that went furthest, at the steps that all of them have. A run that
    ended earlier is a thin line, with a cross where it diverged. The y axis fits the last four
    fifths of the arms near each other, the whole of those with few points; an arm whose furthest
    runs all diverged is left out if another has complete runs. The legend marks such arms, and
    gives the value at the end of an arm that ends outside the axis.

    Args:
        frame: Columns `x`, step, run, value, `hue`, and diverged_at if runs diverged. A column
            untrained says which arms did not learn: the y axis does not fit them. A column final
            has what was measured of each run at its end, perhaps on more data than the last
            point of its curve. Or what `summary` makes of it.
        x: tokens, flops, seconds or step.
        hue: Column of the arm.
        label: Name of the y axis.
        goal: "min" or "max": which direction is better.
        places: Decimals of values in names and under the pointer, None for four digits.
        ax: Axes to draw on, None for a new figure.
    """
    with style.theme():
        arms = summary(frame, x=x, hue=hue) if isinstance(frame, pd.DataFrame) else frame
        return _over_training(arms, x, label, goal, lambda _, value: rough(value, places), ax)


def gaps(
    frame: pd.DataFrame | list[Arm],
    *,
    x: str = "tokens",
    hue: str = "arm",
    label: str = "difference",
    goal: str = "min",
    places: Mapping[str, int] = {},
    ax: Axes | None = None,
) -> Axes:
    """Draw each arm's mean paired difference from its baseline over training, in a band.

    The band reaches from the lowest to the highest seed.

    Args:
        frame: As for `curves`; value and final are the run's minus those of the baseline's run of
            its seed.
        x: tokens, flops, seconds or step.
        hue: Column of the arm.
        label: Name of the y axis.
        goal: "min" or "max": which direction is better.
        places: Arm → decimals of its values in names and under the pointer; others have four
            digits.
        ax: Axes to draw on, None for a new figure.
    """

    def write(arm: str, value: float) -> str:
        if arm in places:
            return units.signed(value, places[arm])
        text = rough(value)
        return f"+{text}" if value > 0 else text

    with style.theme():
        arms = summary(frame, x=x, hue=hue) if isinstance(frame, pd.DataFrame) else frame
        return _over_training(arms, x, label, goal, write, ax, differences=True)


def _over_training(
    arms: list[Arm],
    x: str,
    label: str,
    goal: str,
    write: Callable[[str, float], str],
    ax: Axes | None,
    *,
    differences: bool = False,
) -> Axes:
    """Draw all arms over `x`; differences get a line at 0."""
    late = _fitted(arms, goal, differences)
    names = _names(arms, style.fitted(late), write)
    ax = style.canvas(ax, 2.2, names)
    lines = [_draw(ax, arm, x, write) for arm in arms]
    if differences:
        ax.axhline(0, color=style.INK, linewidth=0.7, zorder=1)
    text, of_x = AXES[x]
    style.fit(ax, late)
    style.ticks(ax, "x", of_x)
    style.ticks(ax, "y", style.signed if differences else style.decimal)
    return style.finish(ax, text, label, lines, names)


def blocks(
    frame: pd.DataFrame,
    *,
    hue: str = "arm",
    label: str = "RMS of the residual stream",
    share: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw a final value along the residual stream, the mean over seeds, in a band.

    The band reaches from the lowest to the highest seed. The y axis is logarithmic if values span
    decades, as `stream_rms` may.

    Args:
        frame: Columns block (0: the embeddings, k: after the k-th block), value, run, `hue`.
        hue: Column of the arm.
        label: Name of the y axis.
        share: Whether the value is a share, with a linear axis.
        ax: Axes to draw on, None for a new figure.
    """
    with style.theme():
        ax = _profile(frame, "block", hue, ax)
        values = frame["value"][np.isfinite(frame["value"].astype(float))]
        decades = (
            np.log10(values.max() / values.min())
            if not share and len(values) and values.min() > 0
            else 0.0
        )
        style.ticks(ax, "y", units.power if decades > 3 else style.decimal, log=decades > 1.3)
        style.ticks(ax, "x", whole=True)
        style.labels(ax, "after block (0: the embeddings)", label)
        return ax


def positions(
    frame: pd.DataFrame, *, hue: str = "arm", label: str = "loss", ax: Axes | None = None
) -> Axes:
    """Draw the loss over the position of the predicted token in its context, as `blocks` does.

    Args:
        frame: Columns position, value, run, `hue`; a value is the mean from its position up to the
            next.
        hue: Column of the arm.
        label: Name of the y axis.
        ax: Axes to draw on, None for a new figure.
    """
    with style.theme():
        ax = _profile(frame, "position", hue, ax)
        ax.set_xscale("symlog", base=2, linthresh=1)  # positions double; the first is 0
        ax.set_xticks(sorted(frame["position"].unique()), minor=False)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: units.count(value)))
        style.ticks(ax, "y")
        style.labels(ax, "position in the context", label)
        return ax


def _profile(frame: pd.DataFrame, x: str, hue: str, ax: Axes | None) -> Axes:
    arms = summary(frame.assign(step=frame[x]), x=x, hue=hue)
    names = style.entries(arm.name for arm in arms)
    ax = style.canvas(ax, 2.2, names)
    lines = [_draw(ax, arm, x) for arm in arms]
    ax.grid(axis="y")
    style.legend_below(ax, lines, names)
    return ax


@dataclass(frozen=True, eq=False)
class Arm:
    """What a figure shows of the curves of an arm."""

    name: str
    index: int
    points: pd.DataFrame  # per step: x, mean, low, high of the runs that went furthest
    short: tuple[pd.DataFrame, ...]  # runs that ended earlier
    diverged: bool  # whether all runs that went furthest diverged
    untrained: bool
    final: float  # the mean of what was measured at their end; of the last points, if unknown

    @property
    def end(self) -> float:
        return float(self.points["mean"].iloc[-1])


def summary(frame: pd.DataFrame, *, x: str = "tokens", hue: str = "arm") -> list[Arm]:
    """Return what `curves` and `gaps` draw of each arm: as much of many runs as of a few.

    Args:
        frame: As for `curves`.
        x: tokens, flops, seconds or step.
        hue: Column of the arm.
    """
    used = dict.fromkeys((hue, "run", "step", x, "value", "diverged_at", "untrained", "final"))
    known = [name for name in used if name in frame]  # each selection below copies them all
    arms = []
    for name, index, part in style.arms(frame, hue):
        part = style.drawable(part[known])
        part = part[np.isfinite(part["value"].astype(float)) & np.isfinite(part[x].astype(float))]
        if part.empty:
            continue
        part = part.sort_values("step", kind="stable")
        last = part.groupby("run")["step"].transform("max")
        furthest = part[last == last.max()]
        by_step = _at_common_steps(furthest, x).groupby("step")
        values = by_step["value"]
        points = pd.DataFrame(
            {
                "x": by_step[x].mean(),
                "mean": values.mean(),
                "low": values.min(),
                "high": values.max(),
            }
        )
        short = tuple(run for _, run in part[last < last.max()].groupby("run"))
        diverged = "diverged_at" in furthest and bool(furthest["diverged_at"].notna().all())
        finals = furthest.drop_duplicates("run").get("final", pd.Series([np.nan])).astype(float)
        final = float(finals.mean() if finals.notna().all() else points["mean"].iloc[-1])
        untrained = "untrained" in part and bool(part["untrained"].any())
        arms.append(Arm(name, index, points, short, diverged, untrained, final))
    return arms


def _at_common_steps(curves: pd.DataFrame, x: str) -> pd.DataFrame:
    """Return curves of several runs at the same steps, those of the run with the fewest points.

    Other runs, such as seeds that were added when a study had more `[eval] points`, may have to be
    interpolated there; then every mean is over all of them.

    Args:
        curves: Columns run, step, value and x, ordered by step; all runs end at the same step.
        x: The column that the curves are drawn over.
    """
    sizes = curves.groupby("run")["step"].agg(["size", "min"])
    if (curves.groupby("step").size() == len(sizes)).all():
        return curves
    steps = curves.loc[curves["run"] == sizes["size"].idxmin(), "step"].to_numpy(float)
    steps = steps[steps >= sizes["min"].max()]
    columns = dict.fromkeys((x, "value"))
    return pd.concat(
        [
            pd.DataFrame(
                {name: np.interp(steps, run["step"], run[name].astype(float)) for name in columns}
            ).assign(step=steps)
            for _, run in curves.groupby("run")
        ]
    )


def cut(arms: list[Arm], goal: str = "min", *, differences: bool = False) -> bool:
    """Return whether the y axis of `curves`, or of `gaps`, cuts off the start of an arm.

    Args:
        arms: What `summary` returns.
        goal: "min" or "max": which direction is better.
        differences: Whether `gaps` draws them.
    """
    low, high = style.fitted(_fitted(arms, goal, differences)) or (-np.inf, np.inf)
    return any(
        low <= arm.end <= high and not arm.points["mean"].between(low, high).all() for arm in arms
    )


def _fitted(arms: list[Arm], goal: str, differences: bool) -> np.ndarray:
    """Return what the y axis fits: arms near each other that learnt and did not diverge."""
    healthy = _healthy(arms)
    late = [_late(arm) for arm in healthy]
    means = [arm.end for arm in healthy]
    ends = [(arm.points["low"].iloc[-1], arm.points["high"].iloc[-1]) for arm in healthy]
    extents = [(min(values), max(values)) for values in late]
    if differences:  # the baseline is an arm too, and is always on the axis
        late, means = [[0.0], *late], [0.0, *means]
        ends, extents = (
            [(0.0, 0.0), *((min(low, 0.0), max(high, 0.0)) for low, high in of)]
            for of in (ends, extents)
        )
    near = style.near(ends, style.best_of(means, goal), extents)
    inside = [values for values, kept in zip(late, near, strict=True) if kept]
    return np.array([value for values in inside for value in values])


def _healthy(arms: list[Arm]) -> list[Arm]:
    """Return the arms that did not diverge, and of these those that learnt, if there are any."""
    whole = [arm for arm in arms if not arm.diverged] or arms
    return [arm for arm in whole if not arm.untrained] or whole


def _names(
    arms: list[Arm], span: tuple[float, float] | None, write: Callable[[str, float], str]
) -> list[str]:
    """Return entries of the legend, with the value of an arm that ends outside the axis."""
    low, high = span or (-np.inf, np.inf)
    ends = [
        " (diverged)"
        if arm.diverged
        else ""
        if low <= arm.end <= high
        else f" (ends at {write(arm.name, arm.final)})"
        for arm in arms
    ]
    return [
        name + end for name, end in zip(style.entries(arm.name for arm in arms), ends, strict=True)
    ]


def _draw(
    ax: Axes, arm: Arm, x: str, write: Callable[[str, float], str] = lambda _, value: rough(value)
) -> Line2D:
    shade, points = style.color(arm.index), arm.points
    ax.fill_between(
        points["x"], points["low"], points["high"], color=shade, alpha=0.15, linewidth=0
    )
    first, end = (write(arm.name, value) for value in (points["mean"].iloc[0], arm.final))
    text = f"{arm.name}: {first} first, {end} at the end"
    look = style.look(arm.index, 3.5) if len(points) <= 16 else {"color": shade}
    look |= {"linestyle": style.dash(arm.index), "linewidth": 1.3}
    line = style.tipped(ax, text, points["x"], points["mean"], **look)
    for run in arm.short:
        ax.plot(run[x], run["value"], color=shade, linewidth=0.7, alpha=0.8)
        last = run.iloc[-1]
        if pd.notna(last.get("diverged_at")):
            text = f"{arm.name}, run {last['run']}: diverged at step {int(last['diverged_at'])}"
            cross: dict[str, Any] = {"markersize": 5, "markeredgewidth": 1.4, "zorder": 5}
            style.tipped(ax, text, [last[x]], [last["value"]], "x", color=shade, **cross)
    return line


def _late(arm: Arm) -> list[float]:
    """Return the values of an arm after its first fifth; all, if they are few."""
    x = arm.points["x"]
    late = arm.points[x >= EARLY * x.max()] if len(x) > FEW else arm.points
    return [*late["low"], *late["high"]]
