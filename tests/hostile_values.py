"""Names and values that break careless writers, and independent readers of every text format."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from markdown_it import MarkdownIt

NUMBERS = [0, -1, 2**62, 0.5, -0.1, 5e-324, 1e308, 2.0, math.nan, math.inf, -math.inf]
TEXTS = [
    "",
    " ",
    "plain",
    "NULL",
    "null",
    "NaN",
    "nan",
    "Infinity",
    "-inf",
    "1",
    "1e5",
    "1.0",
    "0x1f",
    "x'00'",
    "select",
    "a|b",
    "a\\|b",
    "a,b",
    'say "so"',
    '"quoted"',
    "'single'",
    "two\nlines",
    "\r",
    "tab\there",
    " lead",
    "trail ",
    "<script>alert(1)</script>",
    "&lt;",
    "**bold** _it_ `code` [a](http://b) ~~s~~",
    "$x$",
    "=1+1",
    "日本語",
    "é",
    "e\u0301",
    "👩‍👩‍👧",
    "\x1b[31mred",
    "\u202egnp.exe",
    "\u2028",
    "\x7f\x9b",
    "\x00",
]
VALUES: list[Any] = [None, *NUMBERS, *TEXTS, b"", b"\x00\xff"]


def same(a: Any, b: Any) -> bool:
    return (a == b and type(a) is type(b)) or (
        isinstance(a, float) and isinstance(b, float) and a != a and b != b
    )


def csv_rows(text: str) -> list[list[str]]:
    """The fields of a CSV file, its heading included, by Python's own reader."""
    return list(csv.reader(io.StringIO(text, newline="")))


def markdown_cells(text: str) -> list[list[str]]:
    """The cells' text, as markdown-it renders it; every cell must be text alone."""
    cells: list[list[str]] = []
    tokens = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    assert tokens[0].type == "table_open" and tokens[-1].type == "table_close"
    for token in tokens:
        if token.type == "tr_open":
            cells.append([])
        if token.type == "inline":
            assert all(child.type in ("text", "text_special") for child in token.children or []), (
                token.children
            )
            cells[-1].append("".join(child.content for child in token.children or []))
    return cells
