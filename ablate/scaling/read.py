"""A table of losses in a file → `Losses`, with notes on what was left out or looks odd."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from ablate.errors import AblateError, unknown
from ablate.scaling.arithmetic import Arithmetic, arithmetic
from ablate.scaling.doubts import LOGARITHM, doubts
from ablate.scaling.losses import Losses
from ablate.sheet import WHERE, Parse, numbers, select, sheet, unit_of

SHOWN = 6  # lines or columns named in a note
COUNTS_IN = 1e6  # a column with larger numbers is not in the unit that its name gives
POINTS = 4  # fewest on a run, on average, that look like points along training
FALLS = -0.8  # rank correlation of loss and steps along training
RUN = re.compile(r"run(?:[\s_.-]?(?:id|name))?", re.IGNORECASE)  # name of a run
PROGRESS = re.compile(r"step|epoch|iter|token|seen|checkpoint|ckpt", re.IGNORECASE)

EMPTY = "(empty)"  # group of rows without one


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
    baseline: str = "",
) -> Losses:
    """Read the losses in a file with a line of column names.

    Rows without a positive number in a column are left out and whole rows that are repeated count
    once; notes say so.

    Args:
        path: the file; see `ablate.sheet.sheet`.
        loss: a column, arithmetic on columns such as "1 - acc" (see `ablate.scaling.arithmetic`),
            or log(COLUMN) of a perplexity.
        n: parameters, a column or arithmetic on columns.
        d: training tokens, likewise.
        flops: training FLOPs, likewise. One or more of n, d and flops are required.
        group: columns whose values together name the curve of a run.
        where: conditions on rows such as "corpus=c4" or "flops<1e21".
        lowest: keep only the lowest loss of each point, as of a sweep of learning rates.
        baseline: the curve that the others are compared with; by default that of the first row.

    Raises:
        AblateError: an unknown column, a cell that is no number, or no row left.
    """

    def columns_of(names: Sequence[str]) -> dict[str, Arithmetic]:
        found = LOGARITHM.fullmatch(loss) if loss not in names else None
        options = {"loss": found[1] if found else loss, "n": n, "d": d, "flops": flops}
        texts = {key: " ".join(text.split()) for key, text in options.items() if text}
        return {
            {"flops": "c"}.get(key, key): arithmetic(text, names, f"--{key}", str(path))
            for key, text in texts.items()
        }

    def wanted(names: Sequence[str]) -> bool:
        conditions = [match for one in where if (match := WHERE.fullmatch(one))]
        try:
            columns_of(names)
        except AblateError:
            return False
        return all(name in names for name in (*group, *(one[1] for one in conditions)))

    if not (n or d or flops):
        raise AblateError(
            "a table of losses needs one or more of --n, --d and --flops, each with the name of a"
            " column"
        )
    if baseline and not group:
        raise AblateError(f"--baseline {baseline!r} needs --group COLUMN, whose levels it names")
    table = sheet(path, wanted)
    names = [str(name) for name in table]
    columns = columns_of(names)
    for name in group:
        if name not in names:
            raise unknown("column", name, names, str(path))
    texts = [column.text for column in columns.values()]
    if len(set(texts)) < len(texts):
        raise AblateError(f"{path}: one column cannot be used twice; got {', '.join(texts)}")
    logarithm = LOGARITHM.fullmatch(loss) if loss not in names else None
    used = list(dict.fromkeys(name for one in columns.values() for name in one.columns.values()))
    # in a loss, a comma is more often a decimal mark than one of thousands
    of_loss = columns["loss"].columns.values()
    parse = functools.cache(lambda name: _parsed(table, name, columns["loss"].plain, of_loss))
    chosen = select(str(path), table, parse, where)
    values, notes = _values(path, chosen, parse, columns)
    notes[:0] = [table.attrs["sheet"]] if table.attrs["sheet"] else []
    kept = chosen.loc[values.index]
    rows = kept.drop_duplicates()
    notes += _repeated(len(kept), rows, [*used, *group], lowest)
    values = values.loc[rows.index]
    if logarithm:
        values["loss"] = _logarithm(path, values["loss"], columns["loss"].text)
    if values["loss"].nunique() == 1 < len(values):
        raise AblateError(
            f"{path}: {loss} is {values['loss'].iloc[0]:.4g} in each of {len(values):,} rows; a"
            " curve needs losses that differ"
        )
    curves = pd.Series(
        [", ".join(cell or EMPTY for cell in cells) for cells in rows[list(group)].to_numpy()],
        index=rows.index,
    )
    if baseline and baseline not in curves.unique():
        raise unknown("--baseline", baseline, curves.unique(), str(path))
    if lowest:
        points = [curves, *(values[key] for key in columns if key != "loss")]
        best = sorted(values["loss"].groupby(points).idxmin())
        notes.append(
            f"The lowest loss of each of {len(best):,} points is used, of {len(rows):,} rows."
        )
        rows, values, curves = rows.loc[best], values.loc[best], curves[best]
    notes += _grouped(rows[list(group)], curves)
    resources = {key: values[key].to_numpy(float) for key in columns if key != "loss"}
    reached, of = values["loss"].to_numpy(float), tuple(curves)
    written = {key: column.text for key, column in columns.items()} | {"loss": loss}
    points = [*(values[key] for key in resources), curves]
    swept = _differing(rows.drop(columns=used), points)
    progress = [
        name
        for name in swept
        if PROGRESS.search(name) and _falls_along(parse(name), values["loss"], points)
    ]
    if any("batch" in name.lower() for name in swept):
        progress = []  # at given tokens a smaller batch makes more steps, often with a lower loss
    along = [name for name in map(str, rows) if RUN.fullmatch(name) and _logs(rows[name], values)]
    few = [name for name in swept if rows[name].nunique() <= len(rows) / 4]
    notes += doubts(reached, resources, of, written, few[:SHOWN], progress[:SHOWN], along)
    return Losses(
        loss=reached,
        columns=resources,
        curves=of,
        against={name: baseline or of[0] for name in of if name != (baseline or of[0])},
        means={},
        notes=tuple(notes),
    )


def _parsed(table: pd.DataFrame, name: str, loss: bool, of_loss: Collection[str]) -> pd.Series:
    """Return the numbers of a column, None for text; `loss` is whether it is one as it stands."""
    comma = table.attrs["decimal_comma"] or name in of_loss
    values = numbers(
        table[name].tolist(), decimal_comma=comma, units=not (loss and name in of_loss)
    )
    return pd.Series(values, index=table.index, dtype=object)


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


def _grouped(cells: pd.DataFrame, curves: pd.Series) -> list[str]:
    """Say which rows have no group, and if there is one curve only."""
    notes, groups = [], ", ".join(map(str, cells))
    empty = int((cells == "").any(axis=1).sum())
    if 0 < empty < len(cells):
        notes.append(
            f"{empty:,} of {len(cells):,} rows have no value in {groups}: their curve's name has"
            f" {EMPTY} in its place."
        )
    if groups and curves.nunique() == 1:
        notes.append(
            f"{groups} is {curves.iloc[0]!r} in each of {len(cells):,} rows: there is one curve,"
            " and none to compare it with."
        )
    return notes


def _rows_are(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"


def _values(
    path: Path, rows: pd.DataFrame, parse: Parse, columns: Mapping[str, Arithmetic]
) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows with a positive number for each option, and notes on units and others."""
    values, notes, left_out = pd.DataFrame(index=rows.index), [], []
    for key, column in columns.items():
        loss, option = key == "loss" and column.plain, {"c": "flops"}.get(key, key)
        parts = {}
        for name in column.columns.values():
            parts[name] = _numeric(path, rows[name], parse(name).loc[rows.index], loss)
            # a loss in percent is the only one with a unit
            unit = unit_of(name) if not loss or unit_of(name) < 1 else 1.0
            reached = parts[name][np.isfinite(parts[name])].max()
            if unit != 1 and not column.plain:  # a factor of the arithmetic may be the unit
                notes.append(
                    f"{name} is taken as it stands in --{option}, not in units of {unit:g}: the"
                    " unit in a name counts only where the column is used without arithmetic."
                )
            elif unit != 1:
                exact = "flop" in name.lower()  # in GFLOPs large numbers are usual
                taken = (reached < COUNTS_IN or exact) and not rows[name].str.contains("%").any()
                parts[name] = parts[name] * (unit if taken else 1.0)
                notes.append(
                    f"{name} is taken in units of {unit:g}, as its name says."
                    if taken
                    else f"{name} goes up to {reached:.4g}, so it is not taken to count in"
                    f" {unit:g}."
                )
        values[key] = column.of(parts)
        bad = rows.index[~(np.isfinite(values[key]) & (values[key] > 0))]
        if len(bad):
            lines = ", ".join(map(str, bad[:SHOWN])) + (", …" if len(bad) > SHOWN else "")
            left_out.append(
                f"{len(bad)} of {len(rows)} rows left out: no positive number in {column.text}"
                f" ({rows.index.name}{'s' if len(bad) > 1 else ''} {lines})."
            )
    good = values[(values > 0) & (values < np.inf)].dropna()
    if good.empty:
        texts = {key: column.text for key, column in columns.items()}
        none = [texts[key] for key in texts if not (values[key] > 0).any()]
        raise AblateError(
            f"{path}: no row has a positive number in each of {', '.join(texts.values())}"
            + (f"; there is none at all in {', '.join(none)}" if none else "")
        )
    return good, list(dict.fromkeys(notes)) + left_out


def _numeric(path: Path, cells: pd.Series, values: pd.Series, loss: bool) -> pd.Series:
    """Return the numbers of a column without text; else raise with the first such cell."""
    texts = values.index[[value is None for value in values]]
    if len(texts):
        such = "2.31" if loss else "1300000, 1.3e6 or 1.3M"
        raise AblateError(
            f"{path}, {cells.index.name} {texts[0]}: {cells.name} = {cells[texts[0]]!r:.60} is not"
            f" a number such as {such}"
        )
    return values.astype(float)


def _logarithm(path: Path, values: pd.Series, name: str) -> pd.Series:
    if values.min() <= 1:
        raise AblateError(
            f"{path}: log({name}) must be a positive loss, but {name} goes down to"
            f" {values.min():.4g}"
        )
    return np.log(values)


def _differing(others: pd.DataFrame, points: list[pd.Series]) -> list[str]:
    """Return which other columns differ at most points of several rows."""
    alike = others.groupby(points, sort=False)
    several = int((alike.size() > 1).sum())
    return [
        name
        for name in map(str, others)
        if others[name].nunique() > 1 and 0 < several <= 2 * int((alike[name].nunique() > 1).sum())
    ]


def _falls_along(values: pd.Series, loss: pd.Series, points: list[pd.Series]) -> bool:
    """Return whether the loss falls along a column at most points, of several rows each."""
    both = pd.DataFrame({"at": values.loc[loss.index].astype(float), "loss": loss})
    by_point = both.groupby(points)
    if by_point["at"].nunique().mean() < POINTS:
        return False
    ranks = by_point.rank(pct=True)
    return bool(ranks["at"].corr(ranks["loss"]) < FALLS)


def _logs(run: pd.Series, values: pd.DataFrame) -> bool:
    """Return whether each run has one size and several token counts, along which the loss falls."""
    tokens = next((values[key] for key in "dc" if key in values), None)
    if tokens is None or "n" not in values or (values["n"].groupby(run).nunique() > 1).any():
        return False
    return _falls_along(tokens, values["loss"], [run])
