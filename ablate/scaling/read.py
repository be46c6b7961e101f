"""A table of losses in a text file → `Losses`, with notes on what was left out or looks odd."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ablate.errors import AblateError, unknown
from ablate.scaling.doubts import LOGARITHM, doubts
from ablate.scaling.losses import Losses
from ablate.scaling.sheet import numbers, sheet, unit_of

SHOWN = 6  # lines or columns named in a note
COUNTS_IN = 1e6  # a column with larger numbers is not in the unit that its name gives
WHERE = re.compile(r"(.+?)\s*(<=|>=|!=|=|<|>)\s*(.*)")
COMPARE = {"<": operator.lt, ">": operator.gt, "<=": operator.le, ">=": operator.ge}


def read(
    path: Path,
    *,
    loss: str,
    n: str = "",
    d: str = "",
    flops: str = "",
    group: Sequence[str] = (),
    where: Sequence[str] = (),
    lowest: bool = False,
) -> Losses:
    """Read the losses in a file with a line of column names.

    Rows without a positive number in a column are left out and whole rows that are repeated count
    once; notes say so.

    Args:
        path: the file; see `ablate.scaling.sheet.sheet`.
        loss: a column, or log(COLUMN) of a perplexity.
        n: the column of parameters.
        d: the column of training tokens.
        flops: the column of training FLOPs. One or more of n, d and flops are required.
        group: columns whose values together name the curve of a run.
        where: conditions on rows such as "corpus=c4" or "flops<1e21".
        lowest: keep only the lowest loss of each point, as of a sweep of learning rates.

    Raises:
        AblateError: an unknown column, a cell that is no number, or no row left.
    """
    table = sheet(path)
    names = [str(name) for name in table]
    logarithm = LOGARITHM.fullmatch(loss) if loss not in table else None
    options = {"loss": logarithm[1] if logarithm else loss, "n": n, "d": d, "c": flops}
    columns = {key: " ".join(name.split()) for key, name in options.items() if name}
    _check(path, names, columns, group)
    parsed = {name: _parsed(table, name, columns["loss"]) for name in names}
    chosen = _chosen(path, table, parsed, where)
    rows = chosen.drop_duplicates()
    notes = _repeated(len(chosen), rows, [*columns.values(), *group], lowest)
    values, left_out = _values(path, rows, parsed, columns)
    notes += left_out
    rows = rows.loc[values.index]
    if logarithm:
        values["loss"] = _logarithm(path, values["loss"], columns["loss"])
    curves = pd.Series(
        [", ".join(cell or "(empty)" for cell in cells) for cells in rows[list(group)].to_numpy()],
        index=rows.index,
    )
    if lowest:
        points = [curves, *(values[key] for key in columns if key != "loss")]
        best = sorted(values["loss"].groupby(points).idxmin())
        notes.append(
            f"The lowest loss of each of {len(best):,} points is used, of {len(rows):,} rows."
        )
        rows, values, curves = rows.loc[best], values.loc[best], curves[best]
    resources = {key: values[key].to_numpy(float) for key in columns if key != "loss"}
    reached, of = values["loss"].to_numpy(float), tuple(curves)
    notes += doubts(reached, resources, of, columns | {"loss": loss}, _swept(rows, columns, group))
    return Losses(
        loss=reached,
        columns=resources,
        curves=of,
        against={name: of[0] for name in dict.fromkeys(of) if name != of[0]},
        means={},
        notes=tuple(notes),
    )


def _check(path: Path, names: list[str], columns: Mapping[str, str], group: Sequence[str]) -> None:
    if len(columns) < 2:
        raise AblateError(
            "a table of losses needs one or more of --n, --d and --flops, each with the name of a"
            " column"
        )
    for key, name in columns.items():
        if name not in names:
            raise unknown(f"column in --{'flops' if key == 'c' else key}", name, names, str(path))
    for name in group:
        if name not in names:
            raise unknown("column", name, names, str(path))
    if len(set(columns.values())) < len(columns):
        raise AblateError(
            f"{path}: one column cannot be used twice; got {', '.join(columns.values())}"
        )


def _parsed(table: pd.DataFrame, name: str, loss: str) -> pd.Series:
    """Return the numbers of a column, None for text. In the loss a comma is rather decimal."""
    comma = table.attrs["decimal_comma"] or name == loss
    values = numbers(table[name].tolist(), decimal_comma=comma, units=name != loss)
    return pd.Series(values, index=table.index, dtype=object)


def _chosen(
    path: Path, table: pd.DataFrame, parsed: Mapping[str, pd.Series], where: Sequence[str]
) -> pd.DataFrame:
    """Return the rows that meet every condition: text or numbers equal, numbers smaller."""
    for condition in where:
        match = WHERE.fullmatch(condition)
        if not match:
            raise AblateError(
                f"--where {condition!r}: expected COLUMN=VALUE, or !=, <, >, <=, >= instead of ="
            )
        name, sign, value = match.groups()
        if name not in table:
            raise unknown("column", name, list(table), str(path))
        bound = None if "," in value else numbers([value], decimal_comma=False, units=True)[0]
        cells = parsed[name].loc[table.index].astype(float)
        if sign in COMPARE:
            if bound is None or bound != bound:
                raise AblateError(f"--where {condition!r}: {value!r} is not a number")
            met = COMPARE[sign](cells, bound)
        else:
            met = ((table[name] == value) | (cells == bound)) == (sign == "=")
        if not met.any():
            values = table[name].unique()
            shown = ", ".join(map(repr, values[:12])) + (", …" if len(values) > 12 else "")
            raise AblateError(f"{path}: no row has {name} {sign} {value!r}; its values are {shown}")
        table = table[met]
    return table


def _repeated(count: int, rows: pd.DataFrame, used: list[str], lowest: bool) -> list[str]:
    """Say how many of `count` rows were repeated, and how many differ only in unused columns."""
    notes = []
    if len(rows) < count:
        notes.append(f"{_rows_are(count - len(rows))} repeated in every column, and counted once.")
    alike = int(rows.duplicated(used).sum())
    if alike and not lowest:
        others = [str(name) for name in rows if name not in used and rows[name].nunique() > 1]
        notes.append(
            f"{_rows_are(alike)} the same as others in {', '.join(used)}, but not in"
            f" {', '.join(others[:SHOWN])}. If they are the same runs they count twice and"
            " intervals are too narrow: choose with --where COLUMN=VALUE."
        )
    return notes


def _rows_are(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"


def _values(
    path: Path, rows: pd.DataFrame, parsed: Mapping[str, pd.Series], columns: Mapping[str, str]
) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows with a positive number in each column, and notes on units and other rows."""
    values, notes, left_out = pd.DataFrame(index=rows.index), [], []
    for key, name in columns.items():
        cells = parsed[name].loc[rows.index]
        if texts := [at for at, value in zip(rows.index, cells, strict=True) if value is None]:
            such = "2.31" if key == "loss" else "1300000, 1.3e6 or 1.3M"
            raise AblateError(
                f"{path}, line {texts[0]}: {name} = {rows[name][texts[0]]!r:.60} is not a number"
                f" such as {such}"
            )
        values[key] = cells.astype(float)
        unit = 1.0 if key == "loss" else unit_of(name)
        reached = values[key][np.isfinite(values[key])].max()
        if reached < COUNTS_IN:
            values[key] *= unit
        if unit != 1:
            notes.append(
                f"{name} is taken in units of {unit:g}, as its name says."
                if reached < COUNTS_IN
                else f"{name} goes up to {reached:.4g}, so it is not taken to count in {unit:g}."
            )
        bad = rows.index[~(np.isfinite(values[key]) & (values[key] > 0))]
        if len(bad):
            lines = ", ".join(map(str, bad[:SHOWN])) + (", …" if len(bad) > SHOWN else "")
            left_out.append(
                f"{len(bad)} of {len(rows)} rows left out: no positive number in {name}"
                f" (line{'s' if len(bad) > 1 else ''} {lines})."
            )
    good = values[(values > 0) & (values < np.inf)].dropna()
    if good.empty:
        raise AblateError(
            f"{path}: no row has a positive number in each of {', '.join(columns.values())}"
        )
    return good, notes + left_out


def _logarithm(path: Path, values: pd.Series, name: str) -> pd.Series:
    if values.min() <= 1:
        raise AblateError(
            f"{path}: log({name}) must be a positive loss, but {name} goes down to"
            f" {values.min():.4g}"
        )
    return np.log(values)


def _swept(rows: pd.DataFrame, columns: Mapping[str, str], group: Sequence[str]) -> list[str]:
    """Return columns that may be a sweep: they differ at most points, and have few values."""
    keys = [name for key, name in columns.items() if key != "loss"] + list(group)
    points = rows.groupby(keys, sort=False)
    repeated = int((points.size() > 1).sum())

    def swept(name: str) -> bool:
        within = int((points[name].nunique() > 1).sum())
        return 1 < rows[name].nunique() <= len(rows) / 4 and 2 * within >= repeated

    used = {*columns.values(), *group}
    return [name for name in map(str, rows) if name not in used and swept(name)][:SHOWN]
