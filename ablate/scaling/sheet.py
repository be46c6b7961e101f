"""A table in a text file → its rows, however its columns are kept apart."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ablate.errors import AblateError

DELIMITERS = ",;\t|"
LOOKED_AT = 50  # lines that tell what keeps columns apart
RULE = re.compile(r"[|:+\s-]*-[|:+\s-]*")  # under the names of a Markdown table
POINT = re.compile(
    r"[+-]?\d*\.(\d{1,2}|\d{4,})"
)  # a number with a decimal point, which groups of three digits leave open


@dataclass(frozen=True)
class Row:
    line: int
    cells: dict[str, str]


@dataclass(frozen=True)
class Sheet:
    names: list[str]
    rows: list[Row]
    # whether a comma is the decimal mark: columns are apart by semicolons, and no number has a
    # decimal point
    comma: bool


def sheet(path: Path) -> Sheet:
    """The rows under the line of names; columns apart by commas, semicolons, tabs, bars or blanks.

    Lines that begin with # are no part of the table, except for names above a table of bare
    numbers. Raises `AblateError` where a row has more or fewer values than there are names, or two
    columns one name.
    """
    numbered = list(enumerate(_text(path).splitlines(), 1))
    told = re.fullmatch(r"sep=(.)", numbered[0][1].strip()) if numbered else None  # Excel's
    lines = [
        (number, line)
        for number, line in numbered[bool(told) :]
        if line.strip() and not RULE.fullmatch(line)
    ]
    lines = _without_comments(lines)
    if len(lines) < 2:
        raise AblateError(f"{path}: a table has a line of column names and a line for each run")
    if all(line.strip().startswith("|") for _, line in lines):
        lines = [
            (number, line.strip().removeprefix("|").removesuffix("|")) for number, line in lines
        ]
    delimiter = told[1] if told else _delimiter([line for _, line in lines[:LOOKED_AT]])
    if not delimiter:
        lines, delimiter = [(number, "\t".join(line.split())) for number, line in lines], "\t"
    (_, names), *rest = _parsed(lines, delimiter)
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise AblateError(f"{path}: two columns are called {twice[0]!r}")
    if _numbered([cells for _, cells in rest], len(names)):
        names = ["", *names]
    rows = []
    for number, cells in rest:
        if len(cells) < len(names) or any(cells[len(names) :]):
            raise AblateError(
                f"{path}, line {number}: {len(cells)} values for {len(names)} columns"
            )
        rows.append(Row(number, dict(zip(names, cells, strict=False))))
    pointed = any(POINT.fullmatch(cell) for row in rows for cell in row.cells.values())
    return Sheet(names, rows, delimiter == ";" and not pointed)


def _numbered(rows: Sequence[Sequence[str]], names: int) -> bool:
    """Whether rows begin with their number, a column without a name."""
    first = [cells[0] for cells in rows if len(cells) == names + 1]
    return 1 < len(first) == len(rows) and first in (
        [str(at + start) for at in range(len(rows))] for start in (0, 1)
    )


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AblateError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return data.decode(
            "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
        )
    except UnicodeDecodeError:
        raise AblateError(
            f"{path}: a table is UTF-8 text, its columns separated by commas or tabs"
        ) from None


def _without_comments(lines: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Without lines that begin with #; but the last of them stays as names where only numbers
    follow, as of `numpy.savetxt`.
    """
    first = next((place for place, (_, line) in enumerate(lines) if not line.startswith("#")), 0)
    table = [(number, line) for number, line in lines if not line.startswith("#")]
    if first and not re.search(r"[a-df-z]", lines[first][1].lower()):
        number, names = lines[first - 1]
        return [(number, names.lstrip("# ")), *table]
    return table


def _delimiter(lines: Sequence[str]) -> str:
    """What gives every line as many cells, and the most of them; else what the names have most of;
    "" for blanks.
    """

    def fitness(delimiter: str) -> tuple[bool, int]:
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
        return widths[0] > 1 and len(set(widths)) == 1, widths[0]

    best = max(DELIMITERS, key=fitness)
    return best if best in lines[0] else ""


def _parsed(lines: Sequence[tuple[int, str]], delimiter: str) -> list[tuple[int, list[str]]]:
    """The cells of each row with the number of the line that it begins in; a quoted cell may go on
    in the next.
    """
    reader = csv.reader((line + "\n" for _, line in lines), delimiter=delimiter)
    out, at = [], 0
    for row in reader:
        out.append((lines[at][0], [" ".join(cell.split()) for cell in row]))
        at = reader.line_num
    return out
