"""Any table of losses in a text file → `Losses`: columns by name, odd rows left out and named,
doubtful things said.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ablate.errors import AblateError, unknown
from ablate.scaling.cells import COUNTS_IN, Marks, number, unit_in
from ablate.scaling.doubts import LOGARITHM, doubts
from ablate.scaling.losses import Losses
from ablate.scaling.sheet import Row, Sheet, sheet

SHOWN = 6  # lines or columns named in a note
WHERE = re.compile(r"(.+?)\s*(<=|>=|!=|=|<|>)\s*(.*)")
NEITHER = Marks("", ".")
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
    """The losses in a file with a line of column names; columns by name, of n, d and flops one or
    more.

    loss: a column, or log(COLUMN) of a perplexity. group: columns whose values together name a
    run's curve. where: conditions on rows such as "corpus=c4" or "flops<1e21". lowest: of the runs
    of one point only the best, of a sweep of learning rates say. Rows without a positive number in
    a column are left out, and whole rows that stand twice count once; both are said. Raises
    `AblateError` for unknown columns, for what is no number, and where no row remains.
    """
    table = sheet(path)
    logarithm = LOGARITHM.fullmatch(loss) if loss not in table.names else None
    named = {"loss": logarithm[1] if logarithm else loss, "n": n, "d": d, "c": flops}
    wanted = {key: " ".join(name.split()) for key, name in named.items() if name}
    _check(path, table, wanted, group)
    rows, notes = _once(
        _chosen(path, table, where, wanted["loss"]), [*wanted.values(), *group], lowest
    )
    rows, numbers, left_out = _numbers(path, table, rows, wanted)
    reached, columns = _loss(path, numbers[0], wanted["loss"], bool(logarithm)), numbers[1:]
    notes += left_out
    curves = [", ".join(row.cells[name] or "(empty)" for name in group) for row in rows]
    if lowest:
        best = _lowest(reached, columns, curves)
        notes.append(
            f"Of {len(rows):,} rows the lowest loss of each of {len(best):,} points is taken."
        )
        rows, curves, reached, columns = (
            [rows[at] for at in best],
            [curves[at] for at in best],
            reached[best],
            columns[:, best],
        )
    resources = dict(zip((key for key in wanted if key != "loss"), columns, strict=True))
    notes += doubts(
        reached, resources, curves, wanted | {"loss": loss}, _swept(rows, wanted, group)
    )
    return Losses(
        loss=reached,
        columns=resources,
        curves=tuple(curves),
        against={name: curves[0] for name in dict.fromkeys(curves) if name != curves[0]},
        means={},
        notes=tuple(notes),
    )


def _check(path: Path, table: Sheet, wanted: Mapping[str, str], group: Sequence[str]) -> None:
    if len(wanted) < 2:
        raise AblateError(
            "a table of losses needs one or more of --n, --d and --flops, each with the name of a"
            " column"
        )
    for key, name in wanted.items():
        if name not in table.names:
            raise unknown(
                f"column in --{'flops' if key == 'c' else key}", name, table.names, str(path)
            )
    for name in group:
        if name not in table.names:
            raise unknown("column", name, table.names, str(path))
    if len(set(wanted.values())) < len(wanted):
        raise AblateError(
            f"{path}: one column cannot be two things; got {', '.join(wanted.values())}"
        )


def _marks(table: Sheet, name: str, loss: str) -> Marks:
    """What commas and points mean in a column, whatever reads it; in the loss a comma is rather
    decimal.
    """
    return Marks.of((row.cells[name] for row in table.rows), comma=table.comma, small=name == loss)


def _chosen(path: Path, table: Sheet, where: Sequence[str], loss: str) -> list[Row]:
    """The rows that meet every condition."""
    rows = table.rows
    for text in where:
        match = WHERE.fullmatch(text)
        if not match:
            raise AblateError(
                f"--where {text!r}: COLUMN=VALUE is wanted, or one of !=, <, >, <=, >= for ="
            )
        name, sign, value = match[1], match[2], match[3]
        if name not in table.names:
            raise unknown("column", name, table.names, str(path))
        marks = _marks(table, name, loss)
        bound = number(value, NEITHER, units=True)
        if sign in COMPARE and (bound is None or math.isnan(bound)):
            raise AblateError(f"--where {text!r}: {value!r} is no number")
        met = [
            row
            for row in rows
            if _meets(
                row.cells[name], number(row.cells[name], marks, units=True), sign, value, bound
            )
        ]
        if not met:
            there = list(dict.fromkeys(row.cells[name] for row in rows))
            shown = ", ".join(map(repr, there[:12])) + (", …" if len(there) > 12 else "")
            raise AblateError(f"{path}: no row has {name} {sign} {value!r}; its values are {shown}")
        rows = met
    return rows


def _meets(cell: str, at: float | None, sign: str, value: str, bound: float | None) -> bool:
    """Equal as text or as numbers; larger or smaller as numbers."""
    if sign in COMPARE:
        return at is not None and bound is not None and bool(COMPARE[sign](at, bound))
    return (cell == value or (at is not None and at == bound)) is (sign == "=")


def _numbers(
    path: Path, table: Sheet, rows: list[Row], wanted: Mapping[str, str]
) -> tuple[list[Row], np.ndarray, list[str]]:
    """The rows with a positive number in each column wanted, these numbers [column, row], and notes
    on the others.
    """
    numbers = np.array(
        [_column(path, table, rows, name, wanted["loss"]) for name in wanted.values()]
    )
    units = np.array([1.0 if key == "loss" else unit_in(name) for key, name in wanted.items()])
    reached = numbers.max(axis=1, where=np.isfinite(numbers), initial=0.0)
    numbers *= np.where(reached < COUNTS_IN, units, 1.0)[:, None]
    good = np.isfinite(numbers) & (numbers > 0)
    if not good.all(axis=0).any():
        raise AblateError(
            f"{path}: no row has a positive number in each of {', '.join(wanted.values())}"
        )
    notes = [_unit(*of) for of in zip(wanted.values(), units, reached, strict=True) if of[1] != 1]
    notes += [
        _left_out(rows, fine, name)
        for name, fine in zip(wanted.values(), good, strict=True)
        if not fine.all()
    ]
    whole = good.all(axis=0)
    return [row for row, fine in zip(rows, whole, strict=True) if fine], numbers[:, whole], notes


def _unit(name: str, unit: float, reached: float) -> str:
    if reached < COUNTS_IN:
        return f"{name} counts in {unit:g}, as its name says."
    return f"{name} reaches {reached:.4g}: that it counts in {unit:g} is not believed."


def _column(path: Path, table: Sheet, rows: Sequence[Row], name: str, loss: str) -> list[float]:
    """The cells of a column as numbers, NaN where they say that there is none."""
    marks, units, out = _marks(table, name, loss), name != loss, []
    for row in rows:
        value = number(row.cells[name], marks, units=units)
        if value is None:
            such = "1300000, 1.3e6 or 1.3M" if units else "2.31"
            raise AblateError(
                f"{path}, line {row.line}: {name} = {row.cells[name]!r:.60}: a number is wanted,"
                f" such as {such}"
            )
        out.append(value)
    return out


def _loss(path: Path, values: np.ndarray, name: str, logarithm: bool) -> np.ndarray:
    if not logarithm:
        return values
    if values.min() <= 1:
        raise AblateError(
            f"{path}: log({name}) would be a loss of zero or below; the column goes down to"
            f" {values.min():.4g}"
        )
    return np.log(values)


def _lowest(loss: np.ndarray, columns: np.ndarray, curves: Sequence[str]) -> list[int]:
    """Of the rows of each point of each curve the one with the lowest loss, in the order of the
    file.
    """
    best: dict[tuple[object, ...], int] = {}
    for at, point in enumerate(zip(curves, *columns, strict=True)):
        if point not in best or loss[at] < loss[best[point]]:
            best[point] = at
    return sorted(best.values())


def _swept(rows: Sequence[Row], wanted: Mapping[str, str], group: Sequence[str]) -> list[str]:
    """Columns of which the rows of one point may be a sweep: they differ there, and have few values
    in all.
    """
    place = [name for key, name in wanted.items() if key != "loss"] + list(group)
    points: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        points.setdefault(tuple(row.cells[name] for name in place), []).append(row)

    def swept(name: str) -> bool:
        values = {row.cells[name] for row in rows}
        within = sum(len({row.cells[name] for row in point}) > 1 for point in points.values())
        return 1 < len(values) <= len(rows) / 4 and 2 * within >= sum(
            len(point) > 1 for point in points.values()
        )

    return [name for name in rows[0].cells if name not in wanted.values() and swept(name)][:SHOWN]


def _once(rows: list[Row], used: list[str], lowest: bool) -> tuple[list[Row], list[str]]:
    """Rows that are alike in every column, once; and a note on rows that are alike only in the
    columns used.
    """
    whole = {tuple(row.cells.values()): row for row in reversed(rows)}
    once = list(reversed(whole.values()))
    alike = len(once) - len({tuple(row.cells[name] for name in used) for row in once})
    notes = []
    if len(once) < len(rows):
        notes.append(
            f"{_rows_of(len(rows) - len(once))} the same as others in every column, and count once."
        )
    if alike and not lowest:
        others = [
            name
            for name in once[0].cells
            if name not in used and len({row.cells[name] for row in once}) > 1
        ]
        notes.append(
            f"{_rows_of(alike)} the same as others in {', '.join(used)}, though not in"
            f" {', '.join(others[:SHOWN])}. Where they are the same runs they count twice and"
            " intervals are too narrow: choose with --where COLUMN=VALUE."
        )
    return once, notes


def _rows_of(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"


def _left_out(rows: Sequence[Row], fine: np.ndarray, name: str) -> str:
    bad = [row.line for row, good in zip(rows, fine, strict=True) if not good]
    lines = ", ".join(map(str, bad[:SHOWN])) + (", …" if len(bad) > SHOWN else "")
    return (
        f"{len(bad)} of {len(rows)} rows left out: no positive number in {name}"
        f" (line{'s' if len(bad) > 1 else ''} {lines})."
    )
