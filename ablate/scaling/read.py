"""Any table of losses in a text file → `Losses`: columns by name, numbers as people write them, odd rows left out and named."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ablate.errors import AblateError, unknown
from ablate.scaling.losses import Losses

DELIMITERS = ",;\t|"
ABSENT = frozenset(("", "-", "na", "n/a", "nan", "none", "null", "inf", "-inf", "+inf", "infinity", "-infinity"))
UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([kmbgt]?)", re.IGNORECASE)
THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")
SHOWN = 6  # lines named in a note


@dataclass(frozen=True)
class Row:
    line: int
    cells: dict[str, str]
    decimal_comma: bool


def read(
    path: Path, *, loss: str, n: str = "", d: str = "", flops: str = "", group: Sequence[str] = (), where: Mapping[str, str] = {}
) -> Losses:
    """The losses in a file with a line of column names; columns by name, of n, d and flops one or more.

    group: columns whose values together name a run's curve. where: column → the value that rows are taken of. Separated by
    commas, semicolons, tabs, bars or blanks. Rows without a positive number in a column are left out, and whole rows that stand
    twice count once; both are said. Raises `AblateError` for unknown columns, for what is no number, and where no row remains.
    """
    resources = {key: name for key, name in (("n", n), ("d", d), ("c", flops)) if name}
    if not resources:
        raise AblateError("a table of losses needs one or more of --n, --d and --flops, each with the name of a column")
    rows = list(_rows(path))
    columns = list(rows[0].cells) if rows else []
    for option, name in {"--loss": loss, "--n": n, "--d": d, "--flops": flops}.items():
        if name and name not in columns:
            raise unknown(f"column in {option}", name, columns, str(path))
    for name in (*group, *where):
        if name not in columns:
            raise unknown("column", name, columns, str(path))
    wanted = {"loss": loss, **resources}
    if len(set(wanted.values())) < len(wanted):
        raise AblateError(f"{path}: one column cannot be two things; got {', '.join(wanted.values())}")
    chosen = [row for row in rows if all(row.cells[name] == value for name, value in where.items())]
    if not chosen:
        raise AblateError(f"{path}: no row has {_values_missing(rows, where)}")
    once, notes = _once(chosen, [*wanted.values(), *group])
    numbers = np.array([[_number(path, row, name, name != loss) for name in wanted.values()] for row in once])
    good = (np.isfinite(numbers) & (numbers > 0)).all(axis=1)
    notes += [_left_out(once, numbers[:, place], name) for place, name in enumerate(wanted.values())]
    if not good.any():
        raise AblateError(f"{path}: no row has a positive number in each of {', '.join(wanted.values())}")
    kept = [row for row, fine in zip(once, good, strict=True) if fine]
    table = dict(zip(wanted, numbers[good].T, strict=True))
    curves = tuple(", ".join(row.cells[name] or "(empty)" for name in group) for row in kept)
    first = curves[0]
    return Losses(
        loss=table.pop("loss"),
        columns=table,
        curves=curves,
        against={name: first for name in dict.fromkeys(curves) if name != first},
        means={},
        notes=tuple(note for note in (*notes, *map(_small, resources.values(), table.values())) if note),
    )


def _rows(path: Path) -> Iterator[Row]:
    """The rows under the line of names. Lines that begin with # are no part of the table."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise AblateError(f"{path}: a table is UTF-8 text, its columns separated by commas or tabs") from None
    except OSError as error:
        raise AblateError(f"{path}: cannot be read ({error.strerror})") from None
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    if len(lines) < 2:
        raise AblateError(f"{path}: a table has a line of column names and a line for each run")
    head = lines[0][1]
    delimiter = max(DELIMITERS, key=head.count)
    if not head.count(delimiter):  # columns apart by blanks
        lines = [(number, delimiter.join(line.split())) for number, line in lines]
    parsed = [[cell.strip() for cell in row] for row in csv.reader((line for _, line in lines), delimiter=delimiter)]
    if len(parsed) < len(lines):
        raise AblateError(f"{path}: a quoted value goes on in the next line; give each run one line")
    names = parsed[0]
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise AblateError(f"{path}: two columns are called {twice[0]!r}")
    for (number, _), cells in zip(lines[1:], parsed[1:], strict=True):
        if len(cells) != len(names):
            raise AblateError(f"{path}, line {number}: {len(cells)} values for {len(names)} columns")
        yield Row(number, dict(zip(names, cells, strict=True)), delimiter == ";")


def _number(path: Path, row: Row, name: str, resource: bool) -> float:
    """A cell as a number, "1.3M" and "1,300,000" too; NaN where it says that there is none."""
    text = row.cells[name]
    if text.lower() in ABSENT:
        return math.nan
    plain = text.replace(",", ".") if row.decimal_comma else text.replace(",", "") if THOUSANDS.fullmatch(text) else text
    match = NUMBER.fullmatch(plain.replace("_", ""))
    if not match or (match[2] and not resource):
        such = "1300000, 1.3e6 or 1.3M" if resource else "2.31"
        raise AblateError(f"{path}, line {row.line}: {name} = {text!r:.60}: a number is wanted, such as {such}")
    return float(match[1]) * UNITS[match[2].lower()]


def _once(rows: list[Row], used: list[str]) -> tuple[list[Row], list[str]]:
    """Rows that are alike in every column, once; and a note on rows that are alike only in the columns used."""
    whole = {tuple(row.cells.values()): row for row in reversed(rows)}
    once = list(reversed(whole.values()))
    alike = len(once) - len({tuple(row.cells[name] for name in used) for row in once})
    notes = []
    if len(once) < len(rows):
        notes.append(f"{_rows_of(len(rows) - len(once))} the same as others in every column, and count once.")
    if alike:
        others = [name for name in once[0].cells if name not in used and len({row.cells[name] for row in once}) > 1]
        notes.append(
            f"{_rows_of(alike)} the same as others in {', '.join(used)}, though not in {', '.join(others[:SHOWN])}. Where they "
            "are the same runs they count twice and intervals are too narrow: choose with --where COLUMN=VALUE."
        )
    return once, notes


def _rows_of(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"


def _left_out(rows: list[Row], values: np.ndarray, name: str) -> str:
    bad = [row.line for row, value in zip(rows, values, strict=True) if not (math.isfinite(value) and value > 0)]
    if not bad:
        return ""
    lines = ", ".join(map(str, bad[:SHOWN])) + (", …" if len(bad) > SHOWN else "")
    return f"{len(bad)} of {len(rows)} rows left out: no positive number in {name} (line{'s' if len(bad) > 1 else ''} {lines})."


def _small(name: str, values: np.ndarray) -> str:
    if values.max() >= 1e4:
        return ""
    return (
        f"{name} is at most {values.max():.4g}: if it counts in millions or billions, so do the constants here, and budgets "
        "taken as C = 6·N·D are in the product of those units. Exponents are the same in any unit."
    )


def _values_missing(rows: list[Row], where: Mapping[str, str]) -> str:
    for name, value in where.items():
        there = list(dict.fromkeys(row.cells[name] for row in rows))
        if value not in there:
            return f"{name} = {value!r}; its values are {', '.join(map(repr, there[:12]))}" + (", …" if len(there) > 12 else "")
    return " and ".join(f"{name} = {value!r}" for name, value in where.items()) + " together"
