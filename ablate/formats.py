"""Columns and rows → a table, CSV, TSV, JSON, JSON lines or Markdown.

| value | table, md | csv, tsv | json, jsonl |
| --- | --- | --- | --- |
| NULL | NULL | an empty field | null |
| NaN, ±infinity | NaN, Infinity, -Infinity | the same | the same, as strings |
| number | the shortest digits that give it back | the same | the same |
| text | controls escaped | as it is, quoted as RFC 4180 says; "" if empty | a string |
| bytes | x'00ff' | the same | the same, as a string |

JSON has no NaN: the strings are Protocol Buffers' JSON mapping
(protobuf.dev/programming-guides/json), and `float()` and pandas make numbers of them. In a column
`value` NULL means NaN, see `ablate.store.schema.from_db`.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate.errors import unknown

Rows = Sequence[Sequence[Any]]
LARGEST = (1 << 63) - 1  # of the whole numbers that a column of the database holds
DELIMITERS = ",;\t|"


def delimiter_of(lines: Sequence[str]) -> str:
    """Return what splits every line into as many cells, and most of them; "" for blanks."""

    def fitness(delimiter: str) -> tuple[bool, int]:
        widths = [len(row) for row in csv.reader(lines, delimiter=delimiter)]
        return min(widths, default=0) > 1 and len(set(widths)) == 1, max(widths, default=0)

    best = max(DELIMITERS, key=fitness)
    return best if any(best in line for line in lines) else ""


def render(columns: Sequence[str], rows: Rows, format: str = "table") -> str:
    """Return the rows in one of `FORMATS`, ending with a line feed.

    Raises:
        AblateError: the format is unknown.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    return FORMATS[format](columns, rows)


def number(value: float) -> str:
    """Return the shortest digits that give `value` back."""
    if isinstance(value, int) or math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def json_values(value: Any) -> Any:
    """Return a nested value in JSON's types; None for numbers that JSON lacks.

    The strings of `render` would be text where SQL and JSON readers expect numbers.
    """
    if isinstance(value, Mapping):
        return {str(key): json_values(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [json_values(one) for one in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def shown(value: Any) -> str:
    """Return a value as one line of printable text."""
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    return printable(value) if isinstance(value, str) else number(value)


def printable(text: str) -> str:
    """Return `text` on one line, with JSON's escapes for what must not reach a terminal.

    Escaped are control characters, marks that change the direction of text and lone surrogates.
    """
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


# controls but tab and line feed, marks that change the direction of text, lone surrogates
_ACTING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def harmless(text: str) -> str:
    """Return `text` with JSON's escapes for what acts on a terminal; its lines stay."""
    return _ACTING.sub(lambda match: _escaped(match[0]), text)


TAKEN_OUT = "…/"  # in place of folders
_HOME = re.compile(r"(?:/home|/Users)/[^/\s\"'\\]+|/root(?![\w.-])")
_FOLDERS = r"/(?!/)(?:[^\s/\"':,()\\]+/+)+"
# not within relative paths, of options such as -I/usr/include, and of URLs those of files
_STARTS = r"(?:(?<![\w./~…])|(?<=[\s\"'=]-\w)|(?<=^-\w)|(?<=file://)|(?<=sqlite:///))"
_ABSOLUTE = re.compile(_STARTS + _FOLDERS)
_FROM_HOME = re.compile(rf"(?<![\w./])~{_FOLDERS}")
# a text that is a path and no command of several words, which may start with one; a quoted path
_WHOLE = re.compile(r"~?/(?:(?! [-/~])[^{}\n])*")
_QUOTED = re.compile(r"(?<=([\"']))~?/[^\"'\n{}\\]*(?=\1)")
_HOME_OF_WHOLE = re.compile(r"^(?:(?:/home|/Users)/[^/]+|/root)(?=/|$)")


def without_home(text: str) -> str:
    """Return `text` with ~ in place of the home folders of users, here or elsewhere."""
    return _HOME.sub("~", text.replace(f"{Path.home()}/", "~/"))


def without_absolute(text: str) -> str:
    """Return `text` with … in place of the folders of absolute paths, and ~ for homes of users.

    Paths from ~ keep their meaning. Words of a path may have blanks where the path is the whole
    text, or quoted.
    """
    if _WHOLE.fullmatch(text):
        return _without_folders(text)
    quoted = _QUOTED.sub(lambda match: _without_folders(match[0]), text)
    return _ABSOLUTE.sub(TAKEN_OUT, without_home(quoted))


def _without_folders(path: str) -> str:
    path = _HOME_OF_WHOLE.sub("~", path.replace(f"{Path.home()}/", "~/"))
    return path if path.startswith("~") else _last(path)


def _last(path: str) -> str:
    folder, _, name = path.rpartition("/")
    return TAKEN_OUT + name if folder.strip("~") else path


def without_folders(text: str) -> str:
    """Return `text` with … in place of the folders of absolute paths, also of those from ~."""
    text = without_absolute(text)
    return _last(text) if _WHOLE.fullmatch(text) else _FROM_HOME.sub(TAKEN_OUT, text)


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value of JSON or TOML with `change` made in every text, also in texts of JSON."""
    if isinstance(value, dict):
        return {key: each_text(one, change) for key, one in value.items()}
    if isinstance(value, list):
        return [each_text(one, change) for one in value]
    if not isinstance(value, str):
        return value
    try:
        inner = json.loads(value) if value.startswith(("{", "[")) else None
    except ValueError:
        inner = None
    if inner is None:
        return change(value)
    changed = each_text(inner, change)
    return value if changed == inner else json.dumps(changed, ensure_ascii=False)


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1] if char != "\x7f" else r"\u007f"


def _table(columns: Sequence[str], rows: Rows) -> str:
    from rich.cells import cell_len  # takes 2 ms, which `ablate --help` has no use for

    cells = [[shown(value) for value in row] for row in (columns, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    right = [
        bool(rows) and all(row[at] is None or isinstance(row[at], int | float) for row in rows)
        for at in range(len(columns))
    ]

    def line(texts: Sequence[str]) -> str:
        blanks = [" " * (width - cell_len(text)) for text, width in zip(texts, widths, strict=True)]
        padded = [
            blank + text if to_right else text + blank
            for text, blank, to_right in zip(texts, blanks, right, strict=True)
        ]
        return "  ".join(padded).rstrip() + "\n"

    return "".join(map(line, (cells[0], ["─" * width for width in widths], *cells[1:])))


def _csv(columns: Sequence[str], rows: Rows, between: str = ",") -> str:
    return "".join(between.join(map(_csv_field, row)) + "\n" for row in (columns, *rows))


def _tsv(columns: Sequence[str], rows: Rows) -> str:
    return _csv(columns, rows, "\t")


def _csv_field(value: Any) -> str:
    """Return a field of RFC 4180. Unlike `csv.writer`, it tells an empty text from NULL."""
    if not isinstance(value, str):
        return "" if value is None else shown(value)
    if value == value.strip() != "" and not re.search(r'[",\t\r\n\0]', value):
        return value
    return '"' + value.replace('"', '""') + '"'


def _json(columns: Sequence[str], rows: Rows) -> str:
    return "[" + ",\n ".join(_objects(columns, rows)) + "]\n"


def _jsonl(columns: Sequence[str], rows: Rows) -> str:
    return "".join(f"{line}\n" for line in _objects(columns, rows))


def _objects(columns: Sequence[str], rows: Rows) -> list[str]:
    names = _distinct(columns)
    return [
        json.dumps(
            dict(zip(names, map(_json_value, row), strict=True)),
            ensure_ascii=False,
            allow_nan=False,
        )
        for row in rows
    ]


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes) or (isinstance(value, float) and not math.isfinite(value)):
        return shown(value)
    return value


def _distinct(columns: Sequence[str]) -> list[str]:
    """Return the names with repeated ones numbered: "loss", "loss:1"."""
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
    """Return `text` escaped so that Markdown and HTML show it as it is."""
    return (
        re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)
        .replace("&", "&amp;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
    )


FORMATS: dict[str, Callable[[Sequence[str], Rows], str]] = {
    "table": _table,
    "csv": _csv,
    "tsv": _tsv,
    "json": _json,
    "jsonl": _jsonl,
    "md": _markdown,
}
