"""Columns and rows → a table, CSV, JSON or Markdown, from which every value can be told.

| value | table, md | csv | json |
| --- | --- | --- | --- |
| NULL | NULL | nothing at all | null |
| NaN, ±infinity | NaN, Infinity, -Infinity | the same | the same, as strings |
| number | the shortest digits that give it back | the same | the same |
| text | bare, or a JSON string | bare, or in quotes | a string |
| bytes | x'00ff' | the same | the same, as a string |

Text is not bare where it would read as one of the others, or holds what must not reach a terminal.
JSON has no NaN: the strings are Protocol Buffers' JSON mapping
(protobuf.dev/programming-guides/json), and `float()` and pandas make numbers of them. In a column
`value` NULL stands for NaN, see `ablate.store.schema.from_db`.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from ablate.errors import unknown

Rows = Sequence[Sequence[Any]]

_READS_AS_VALUE = re.compile(
    r"(?i)null|[-+]?(nan|inf|infinity)|[-+]?[\d_.]+(e[-+]?\d+)?|0x[\da-f]+|x'.*'|\".*|"
)


def render(columns: Sequence[str], rows: Rows, format: str = "table") -> str:
    """The rows in one of `FORMATS`; ends with a line feed."""
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    return FORMATS[format](columns, rows)


def number(value: float) -> str:
    """The shortest digits that give `value` back."""
    if isinstance(value, int) or math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def shown(value: Any) -> str:
    """One value as a line of printable text; no two values look alike."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if not isinstance(value, str):
        return number(value)
    if value.isprintable() and value == value.strip() and not _READS_AS_VALUE.fullmatch(value):
        return value
    return printable(json.dumps(value, ensure_ascii=False))


def printable(text: str) -> str:
    """`text` on one line, what must not reach a terminal escaped: controls, marks that turn the
    direction, lone surrogates.
    """
    return (
        text
        if text.isprintable()
        else "".join(char if char.isprintable() else _escaped(char) for char in text)
    )


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1] if char != "\x7f" else r"\u007f"


def _table(columns: Sequence[str], rows: Rows) -> str:
    cells = [[shown(value) for value in row] for row in rows]
    heads = [shown(column) for column in columns]
    widths = [max(map(_width, column)) for column in zip(heads, *cells, strict=True)]
    right = [
        all(value is None or isinstance(value, int | float) for value in column)
        for column in zip(*rows, strict=True)
    ]
    right = right or [False] * len(heads)

    def line(texts: Sequence[str]) -> str:
        padded = [
            " " * (width - _width(text)) + text if to_right else text + " " * (width - _width(text))
            for text, width, to_right in zip(texts, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip() + "\n"

    return line(heads) + line(["─" * width for width in widths]) + "".join(map(line, cells))


def _width(text: str) -> int:
    """Columns that `text` takes on a terminal: two for wide characters, none for combining ones."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def _csv(columns: Sequence[str], rows: Rows) -> str:
    return "".join(",".join(map(_csv_field, row)) + "\n" for row in (columns, *rows))


def _csv_field(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        return shown(value)
    if (
        value == value.strip()
        and not _READS_AS_VALUE.fullmatch(value)
        and not re.search(r'[",\r\n\0]', value)
    ):
        return value
    return '"' + value.replace('"', '""') + '"'


def _json(columns: Sequence[str], rows: Rows) -> str:
    names = _distinct(columns)
    lines = [
        json.dumps(
            dict(zip(names, map(_json_value, row), strict=True)),
            ensure_ascii=False,
            allow_nan=False,
        )
        for row in rows
    ]
    return "[" + ",\n ".join(lines) + "]\n"


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
        return shown(value)
    return value


def _distinct(columns: Sequence[str]) -> list[str]:
    """Column names without repetition: "loss", "loss:1"."""
    names: list[str] = []
    for column in columns:
        name, count = column, 0
        while name in names:
            count += 1
            name = f"{column}:{count}"
        names.append(name)
    return names


def _markdown(columns: Sequence[str], rows: Rows) -> str:
    def line(values: Sequence[Any]) -> str:
        return "| " + " | ".join(_escape_markdown(shown(value)) for value in values) + " |\n"

    return line(columns) + "|" + " --- |" * len(columns) + "\n" + "".join(map(line, rows))


def _escape_markdown(text: str) -> str:
    """`text` such that Markdown and HTML show it as it is."""
    return (
        re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )


FORMATS: dict[str, Callable[[Sequence[str], Rows], str]] = {
    "table": _table,
    "csv": _csv,
    "json": _json,
    "md": _markdown,
}
