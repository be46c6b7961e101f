"""What a report consists of, before it becomes HTML, Markdown, LaTeX or CSV: sections of text, tables and pictures."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

Cell = str | int | float | None  # shown as it is written; a number carries the value that a table is sorted by


@dataclass(frozen=True)
class Value:
    """A cell whose text is not its value: shown as `text`, sorted by and exported as `value`."""

    text: str
    value: float | int | str | None


@dataclass(frozen=True)
class Table:
    """A table with what it says, and the SQL on the views that gives its numbers."""

    name: str  # file name of its exports
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | Value, ...], ...]
    sql: str = ""
    folded: bool = False  # long: shown on request

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold numbers, and stand to the right."""
        return tuple(
            bool(self.rows) and all(isinstance(row[index], Value) and not isinstance(row[index].value, str) for row in self.rows)  # type: ignore[union-attr]
            for index in range(len(self.columns))
        )


@dataclass(frozen=True)
class Picture:
    """A figure that was saved as svg, pdf and png under `name`."""

    name: str
    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Section:
    """A heading with paragraphs, then pictures, then tables."""

    id: str
    title: str
    paragraphs: Sequence[str] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    points: Sequence[str] = field(default=())


def shown(cell: str | Value) -> str:
    return cell.text if isinstance(cell, Value) else cell


def exported(cell: str | Value) -> object:
    return cell.value if isinstance(cell, Value) else cell


def to_csv(table: Table) -> str:
    """The table's values, not rounded; NaN as "nan", what is not known empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([["" if exported(cell) is None else exported(cell) for cell in row] for row in table.rows])
    return text.getvalue()


_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "–": "--", "×": r"$\times$", "±": r"$\pm$", "∞": r"$\infty$",
    "<": "$<$", ">": "$>$", "\n": " ",
}  # fmt: skip
_TEX |= {digit: f"$^{{{plain}}}$" for digit, plain in zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", ("0123456789-"), strict=True)}


def tex(text: str) -> str:
    """`text` as LaTeX prints it."""
    joined = "".join(_TEX.get(character, character) for character in text)
    return joined.replace("}$$^{", "")  # neighbouring superscripts are one


def to_latex(table: Table) -> str:
    """A table for a paper, in the style of the package booktabs."""
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
    """`text` as Markdown prints it, on one line: no markup, no HTML, no end of a table's cell."""
    escaped = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", html.escape(text, quote=False))
    return " ".join(escaped.split())
