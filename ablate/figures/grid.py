"""The lines along which L(N, D) is drawn over one resource: those of the runs' grid, or a few."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ablate import units
from ablate.scaling.fit import Fit
from ablate.scaling.forms import level_of, levels

POINTS = 100  # of a line
MOST_LINES = 12  # of a grid; runs that need more lines are on no grid
FEW = 6  # lines drawn without a grid

Line = dict[str, np.ndarray]  # n, d and c at the points of a line, or the form's one resource


def along(fitted: Fit, part: pd.DataFrame, x: str) -> Iterator[Line]:
    """Yield lines over x ("n", "d" or "c") through the runs of one curve, `POINTS` points each."""
    columns = {name: part[name].to_numpy(float) for name in ("n", "d", "c") if name in part}
    if len(fitted.form.columns) == 1:
        yield from _through(columns, np.zeros(len(part), int), x)
    elif gridless(part, x):
        yield from _among(fitted, columns, x)
    else:
        yield from _through(columns, level_of(_grouping(part, x)[1]), x)


def gridless(part: pd.DataFrame, x: str) -> bool:
    """Return whether every resource has too many values for a line at each."""
    return len(levels(_grouping(part, x)[1])) > MOST_LINES


def at_what(part: pd.DataFrame, x: str) -> str:
    """Return what the lines are at: "each budget", "each size", "some sizes"."""
    if gridless(part, x):
        return "some token counts" if x == "n" else "some sizes"
    return f"each {_grouping(part, x)[0]}"


def called(line: Line, part: pd.DataFrame, x: str) -> str:
    """Return the value that a line is at, as the figure shows it."""
    kind = "number of tokens" if x == "n" and gridless(part, x) else _grouping(part, x)[0]
    if kind == "budget":
        return units.power(float(f"{line['c'].mean():.2g}"))
    if kind in ("size", "number of tokens"):
        return units.count(float(f"{line['n' if kind == 'size' else 'd'][0]:.2g}"))
    return "{:g}".format(float(f"{(line['d'] / line['n']).mean():.2g}"))


def _grouping(part: pd.DataFrame, x: str) -> tuple[str, np.ndarray]:
    """Return what separates the lines over x, and its value for every run.

    Over N this is the property of the grid with the fewest values.
    """
    n, d, c = (part[name].to_numpy(float) for name in ("n", "d", "c"))
    if x != "n":
        return "size", n
    grids = {"budget": c, "ratio of tokens to parameters": d / n, "number of tokens": d}
    name = min(grids, key=lambda one: len(levels(grids[one])))
    return name, grids[name]


def _through(columns: Line, groups: np.ndarray, x: str) -> Iterator[Line]:
    """Yield a line through the runs of each group, interpolated in logarithms."""
    for group in range(groups.max() + 1):
        of_group = groups == group
        order = np.argsort(columns[x][of_group])
        known = np.log(columns[x][of_group][order])
        if known[-1] - known[0] < 0.05:
            continue
        at = np.linspace(known[0], known[-1], POINTS)
        yield {
            name: np.exp(np.interp(at, known, np.log(values[of_group][order])))
            for name, values in columns.items()
        }


def _among(fitted: Fit, columns: Line, x: str) -> Iterator[Line]:
    """Yield a line for each sixth of the runs, by size (over N by tokens), at the sixth's middle.

    A line reaches as far as the runs.
    """
    other, k, gamma = "d" if x == "n" else "n", fitted.cost.k, fitted.cost.gamma
    for of_group in np.array_split(np.argsort(columns[other]), FEW):
        at = np.geomspace(columns[x][of_group].min(), columns[x][of_group].max(), POINTS)
        line = {x: at, other: np.full(POINTS, np.median(columns[other][of_group]))}
        if x == "c":
            line["d"] = at / (k * line["n"] ** gamma)
        yield {"c": k * line["n"] ** gamma * line["d"]} | line
