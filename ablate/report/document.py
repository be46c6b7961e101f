"""The parts of a report, before it is HTML, Markdown, LaTeX or CSV: text, tables and plots."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from ablate import figures

PART = 10_000  # rows of a CSV file that are made at once
MOST_TOLD = 48  # numbers in the text that stands for a figure


@dataclass(frozen=True, slots=True)
class Value:
    """A cell shown as `text`, and sorted by and exported as `value`."""

    text: str
    value: float | int | str | None


@dataclass(frozen=True, slots=True)
class Span(Value):
    """An interval: `value` is its lower end. A CSV file has a column for either end."""

    value: float
    high: float


@dataclass(frozen=True, slots=True)
class Estimate(Value):
    """A number shown with its interval. A CSV file has a column for the number and either end."""

    low: float
    high: float


@dataclass(frozen=True)
class Table:
    """A table with what it says, and the SQL on the views that gives its numbers."""

    name: str  # file name of its exports
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | Value, ...], ...]
    sql: str = ""
    folded: bool = False  # long: shown on request
    data: pd.DataFrame | None = None  # what the CSV holds, where that is more than is shown

    @cached_property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold numbers and are aligned right."""
        return tuple(
            bool(column)
            and all(isinstance(cell, Value) and not isinstance(cell.value, str) for cell in column)
            for column in _columns(self)
        )


@dataclass(frozen=True)
class Figure:
    """A figure that is saved under `name`, in each kind of file."""

    name: str
    title: str
    caption: str
    file: Path  # of the svg
    folded: bool = False  # of many panels: shown on request
    kinds: tuple[str, ...] = ("svg",)
    wide: bool = False  # as wide as a page
    panels: tuple[str, ...] = ()  # names, where there are several

    @property
    def svg(self) -> str:
        """The figure's SVG for the page, once it is drawn."""
        return figures.inline(self._drawn, self.name, html.escape(self.alt))

    @cached_property
    def alt(self) -> str:
        """What stands for the figure where it is not seen, once it is drawn: title and numbers."""
        axes = figures.told(self._drawn)
        named = zip(self.panels, axes, strict=False) if self.panels else (("", one) for one in axes)
        said, room = [self.title], MOST_TOLD
        for name, texts in named:
            if shown := texts[: max(0, room)]:
                said.append(f"{name}{': ' if name else ''}{'; '.join(shown)}")
            room -= len(texts)
        if room < 0:
            said.append(f"{-room} more are in the tables")
        return f"{'. '.join(said)}." if said[1:] else self.title

    @cached_property
    def _drawn(self) -> str:
        return self.file.read_text(encoding="utf-8")


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, then plots, then tables."""

    id: str
    title: str
    paragraphs: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()


def shown(cell: str | Value) -> str:
    """Return the text of a cell."""
    return cell.text if isinstance(cell, Value) else cell


def exported(cell: str | Value) -> object:
    """Return the value of a cell."""
    return cell.value if isinstance(cell, Value) else cell


def missing(value: object) -> bool:
    """Return whether a value is None or NaN."""
    return value is None or value != value


def to_csv(table: Table) -> Iterator[str]:
    """Yield the values in parts of a text, not rounded; NaN and unknown are empty, ±∞ are "inf" and
    "-inf".
    """
    if table.data is not None:
        for first in range(0, max(1, len(table.data)), PART):
            part = table.data.iloc[first : first + PART]
            yield part.to_csv(index=False, header=not first, lineterminator="\n")
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    parts = [
        max((_parts(cell) for cell in column), key=len, default=("",)) for column in _columns(table)
    ]
    writer.writerow(
        f"{name}{part}"
        for name, of_column in zip(table.columns, parts, strict=True)
        for part in of_column
    )
    writer.writerows(
        [
            "" if missing(value) else value
            for cell, of_column in zip(row, parts, strict=True)
            for value in _values(cell, len(of_column))
        ]
        for row in table.rows
    )
    yield text.getvalue()


def _columns(table: Table) -> list[tuple[str | Value, ...]]:
    return list(zip(*table.rows, strict=True)) if table.rows else [()] * len(table.columns)


def _parts(cell: str | Value) -> tuple[str, ...]:
    """Return what the headings of the columns of a cell add to its name."""
    ends = ", low", ", high"
    return ("", *ends) if isinstance(cell, Estimate) else ends if isinstance(cell, Span) else ("",)


def _values(cell: str | Value, count: int) -> list[object]:
    """Return `count` values; a cell without an interval has no ends."""
    values = [exported(cell)]
    if isinstance(cell, Estimate):
        values += [cell.low, cell.high]
    elif isinstance(cell, Span):
        values += [cell.high]
    return values + [None] * (count - len(values))


_TEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
    "–": "--",
    "×": r"$\times$",
    "±": r"$\pm$",
    "∞": r"$\infty$",
    "“": "``",
    "”": "''",
    "<": "$<$",
    ">": "$>$",
    "\n": " ",
    "·": r"$\cdot$",
    "√": r"$\surd$",
    "Σ": r"$\Sigma$",
    "Φ": r"$\Phi$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "…": r"\dots{}",
    "ᵀ": r"$^\top$",
    "α": r"$\alpha$",
    "§": r"\S{}",
    "→": r"$\to$",
}
_TEX |= {
    digit: f"$^{{{plain}}}$" for digit, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True)
}

_TEX_OF = str.maketrans(_TEX)


def tex(text: str) -> str:
    """Return `text` escaped for LaTeX."""
    joined = text.translate(_TEX_OF)
    return joined.replace("}$$^{", "")  # neighbouring superscripts are one


def to_latex(table: Table) -> str:
    """Return a table for a paper, in the style of the package booktabs."""
    align = "".join("r" if numeric else "l" for numeric in table.numeric)
    lines = [" & ".join(tex(shown(cell)) for cell in row) + r" \\" for row in table.rows]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{tex(table.caption)}}}",
            rf"\label{{tab:{re.sub('[^a-z0-9-]', '-', table.name)}}}",
            rf"\begin{{tabular}}{{@{{}}{align}@{{}}}}",
            r"\toprule",
            " & ".join(map(tex, table.columns)) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def markdown(text: str) -> str:
    """Return `text` escaped for a Markdown table, on one line: no markup, no HTML, no cell end."""
    escaped = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", html.escape(text, quote=False))
    return " ".join(escaped.split())
