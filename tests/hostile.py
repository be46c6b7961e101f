"""Names and values that break what is written carelessly, and readers of every text format, written
apart from its writers.
"""

from __future__ import annotations

import json
import math
import re
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


def from_shown(text: str) -> Any:
    """The value that a cell of a table shows: by the module's own rules, written down a second
    time.
    """
    special = {"NULL": None, "NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    if text in special:
        return special[text]
    if found := re.fullmatch(r"x'([0-9a-f]*)'", text):
        return bytes.fromhex(found[1])
    if text.startswith('"'):
        return json.loads(text)
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def parse_csv(text: str) -> list[list[tuple[str, bool]]]:
    """A CSV reader by RFC 4180 that also tells whether a field was in quotes, which Python's does
    not.
    """
    lines: list[list[tuple[str, bool]]] = [[]]
    position = 0
    while position < len(text):
        quoted = text[position] == '"'
        field = ""
        if quoted:
            position += 1
            while text[position : position + 1] != '"' or text[position : position + 2] == '""':
                field += text[position]
                position += 2 if text[position] == '"' else 1
            position += 1
        else:
            while text[position] not in ",\n":
                field += text[position]
                position += 1
        lines[-1].append((field, quoted))
        if text[position] == "\n":
            lines.append([])
        position += 1
    return lines[:-1]


def markdown_cells(text: str) -> list[list[str]]:
    """The cells' text, as a Markdown reader of another house renders it; every cell must be text
    alone.
    """
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
