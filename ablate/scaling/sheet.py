"""A text file with a table → its cells as text, and cells → numbers as people write them."""

from __future__ import annotations

import codecs
import csv
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ablate.errors import AblateError

DELIMITERS = ",;\t|"
MARKDOWN_RULE = re.compile(r"[|:+\s-]*-[|:+\s-]*")

ABSENT = re.compile(
    r"|[-–—.?]|n\.?/?a\.?|nan|none|null|missing|tbd|oom|failed|crashed|diverged"
    r"|#[a-z/]+[0!?]*"  # a failed formula of a spreadsheet: #DIV/0!, #N/A, #REF!
)
UNITS = {
    **dict.fromkeys(("k", "thousand"), 1e3),
    **dict.fromkeys(("m", "mn", "mio", "million", "millions"), 1e6),
    **dict.fromkeys(("b", "bn", "g", "billion", "billions"), 1e9),
    **dict.fromkeys(("t", "tn", "trillion", "trillions"), 1e12),
    "p": 1e15,
    "e": 1e18,
    "z": 1e21,
    **dict.fromkeys(("pf-day", "pf-days", "pfs-day", "pfs-days"), 8.64e19),
}
UNIT = f"({'|'.join(sorted(UNITS, key=len, reverse=True))})"
COUNTED = r"(?:\s*(?:flops?|tokens?|toks?|params?|parameters?))?"
NUMBER = re.compile(
    r"[~≈]?\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"
    rf"(?:\s*[x×*·]\s*10\s*(?:\^|\*\*)\s*([+-]?\d+))?\s*{UNIT}?{COUNTED}"
)
POWER = re.compile(r"(2|10)\s*(?:\^|\*\*)\s*(\d+)")
UNIT_OF_COLUMN = re.compile(rf"[(\[]\s*(?:in\s+)?(?:{UNIT}{COUNTED}|1e(\d+)|10\^(\d+))\s*[)\]]$")
SPREAD = re.compile(r"\s*(?:±|\+/-|\+-).*|\(\d+\)$")  # 2.31 ± 0.02, 2.31(2)
SPACES = re.compile(r"(?<=\d)[\s'’_](?=\d{3}(?!\d))")


def sheet(path: Path) -> pd.DataFrame:
    """Read the cells of a table in a text file.

    Columns are separated by commas, semicolons, tabs, bars or blanks. Lines that begin with # are
    comments, except for the names that `numpy.savetxt` writes above its numbers.

    Args:
        path: a file in UTF-8, or in UTF-16 as Excel saves text, with a line of column names.

    Returns:
        Text; the index is the line of the file. `attrs["decimal_comma"]` is true where columns are
        separated by semicolons and no number has a decimal point.

    Raises:
        AblateError: the file cannot be read, a row has more or fewer cells than there are names, or
            two columns have one name.
    """
    numbered = list(enumerate(_text(path).splitlines(), 1))
    excel = re.fullmatch(r"sep=(.)", numbered[0][1].strip()) if numbered else None
    lines = [
        (number, line)
        for number, line in numbered[bool(excel) :]
        if line.strip() and not MARKDOWN_RULE.fullmatch(line)
    ]
    if all(line.strip().startswith("|") for _, line in lines):
        lines = [(at, line.strip().removeprefix("|").removesuffix("|")) for at, line in lines]
    lines = _without_comments(lines)
    if len(lines) < 2:
        raise AblateError(f"{path}: a table needs a line of column names and a line for each run")
    delimiter = excel[1] if excel else _delimiter([line for _, line in lines[:50]])
    if not delimiter:
        lines, delimiter = [(number, "\t".join(line.split())) for number, line in lines], "\t"
    (_, names), *rows = _parsed(lines, delimiter)
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise AblateError(f"{path}: two columns are called {twice[0]!r}")
    first = [cells[0] for _, cells in rows if len(cells) == len(names) + 1]
    if len(rows) > 1 and first in ([str(at + k) for at in range(len(rows))] for k in (0, 1)):
        names = ["", *names]  # rows begin with their number, as pandas prints them
    for number, cells in rows:
        if len(cells) < len(names) or any(cells[len(names) :]):
            raise AblateError(
                f"{path}, line {number}: {len(cells)} values for {len(names)} columns"
            )
    table = pd.DataFrame(
        [cells[: len(names)] for _, cells in rows],
        columns=[name or f"column {at}" for at, name in enumerate(names, 1)],
        index=[number for number, _ in rows],
        dtype=object,
    )
    # Groups of three digits may be thousands; any other length follows a decimal point.
    pointed = any(re.fullmatch(r"[+-]?\d*\.(\d{1,2}|\d{4,})", c) for _, row in rows for c in row)
    table.attrs["decimal_comma"] = delimiter == ";" and not pointed
    return table


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AblateError(f"{path}: cannot be read ({error.strerror})") from None
    utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if utf_16 else "utf-8-sig")
    except UnicodeDecodeError:
        raise AblateError(
            f"{path}: a table must be UTF-8 text with columns separated by commas or tabs"
        ) from None


def _without_comments(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Drop comments; but keep the last one as names above a table of bare numbers."""
    first = next((at for at, (_, line) in enumerate(lines) if not line.startswith("#")), 0)
    table = [(number, line) for number, line in lines if not line.startswith("#")]
    if first and not re.search(r"[a-df-z]", lines[first][1].lower()):
        number, names = lines[first - 1]
        return [(number, names.lstrip("# ")), *table]
    return table


def _delimiter(lines: Sequence[str]) -> str:
    """Return what splits every line into as many cells, and most of them; "" for blanks."""

    def fitness(delimiter: str) -> tuple[bool, int]:
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
        return widths[0] > 1 and len(set(widths)) == 1, widths[0]

    best = max(DELIMITERS, key=fitness)
    return best if best in lines[0] else ""


def _parsed(lines: Sequence[tuple[int, str]], delimiter: str) -> list[tuple[int, list[str]]]:
    """Return the cells of each row with the line that it begins in; a quoted cell may have more."""
    reader = csv.reader((line + "\n" for _, line in lines), delimiter=delimiter)
    out, at = [], 0
    for row in reader:
        out.append((lines[at][0], [" ".join(cell.split()) for cell in row]))
        at = reader.line_num
    return out


def unit_of(name: str) -> float:
    """Return the unit at the end of a column's name, as of "Params (M)" or "FLOPs [1e18]"; or 1."""
    match = UNIT_OF_COLUMN.search(name.lower())
    if not match:
        return 1.0
    return UNITS[match[1]] if match[1] else 10.0 ** int(match[2] or match[3])


def numbers(cells: Sequence[str], *, decimal_comma: bool, units: bool) -> list[float | None]:
    """Return the numbers in the cells of a column.

    Args:
        cells: texts such as 1300000, 1.3e6, 1.3 × 10^6, 1,300,000, 1.3M or 2.31 ± 0.02.
        decimal_comma: whether a comma is the decimal mark where the cells leave that open.
        units: whether a suffix multiplies, as in 1.3M.

    Returns:
        A number for each cell: NaN where the cell says that there is none, None where it is text.
    """
    shown = [number for cell in cells for number in re.findall(r"\d[\d.,]*", cell)]

    def any_is(pattern: str) -> bool:
        return any(re.fullmatch(pattern, number) for number in shown)

    if any_is(r"\d{1,3}(\.\d{3})+,\d+|\d{1,3}(\.\d{3}){2,}"):
        thousands, decimal = ".", ","
    elif any_is(r"\d{1,3}(,\d{3})+\.\d+|\d{1,3}(,\d{3}){2,}"):
        thousands, decimal = ",", "."
    elif decimal_comma or any_is(r"\d*,(\d{1,2}|\d{4,})|0,\d+"):
        thousands, decimal = "_", ","
    else:
        thousands, decimal = ",", "."
    return [_number(cell.lower(), thousands, decimal, units) for cell in cells]


def _number(cell: str, thousands: str, decimal: str, units: bool) -> float | None:
    if ABSENT.fullmatch(cell):
        return math.nan
    if cell.lstrip("+-") in ("inf", "infinity", "∞"):
        return math.inf
    cell = SPREAD.sub("", SPACES.sub("", cell.replace("−", "-"))).strip()
    if power := POWER.fullmatch(cell):
        return float(power[1]) ** int(power[2])
    plain = cell.replace(thousands, "").replace(decimal, ".").replace("_", "")
    match = NUMBER.fullmatch(plain)
    if not match or (match[3] and not units):
        return None
    return float(match[1]) * 10.0 ** int(match[2] or 0) * UNITS.get(match[3], 1.0)
