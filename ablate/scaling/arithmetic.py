"""Arithmetic on the columns of a table: "step * batch" → a column; nothing else is evaluated."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from ablate.errors import AblateError, unknown

NUMBER = re.compile(r"[\d.]+(?:e[+-]?\d+)?", re.IGNORECASE)
ALLOWED = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.Name,
    ast.Constant,
    ast.Load,
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub),
)


@dataclass(frozen=True)
class Arithmetic:
    """A column, or sums, differences, products, quotients and powers of columns and numbers."""

    text: str  # as it was written
    code: str  # with a name of Python's for each column
    columns: Mapping[str, str]  # name in `code` → column

    @property
    def plain(self) -> bool:
        """Whether it is a column as it stands."""
        return self.text in self.columns.values()

    def of(self, values: Mapping[str, pd.Series]) -> pd.Series:
        """Return the result for the numbers of each column, by its name in the table."""
        if self.plain:
            return values[self.text]
        frame = pd.DataFrame({name: values[column] for name, column in self.columns.items()})
        try:
            return pd.Series(frame.eval(self.code, engine="python"), frame.index, dtype=float)
        except (ArithmeticError, TypeError, ValueError, RecursionError) as error:
            raise AblateError(f"{self.text!r} cannot be computed: {error}") from None


def arithmetic(text: str, table: Sequence[str], option: str, path: str) -> Arithmetic:
    """Read a column's name or arithmetic on columns.

    Names are found as they stand, longest first, also with blanks and signs in them; backticks
    around them may be left out.

    Args:
        text: such as "tokens", "step * batch" or "1 - acc/none".
        table: names of the columns.
        option: what it was given for, such as "--n".
        path: the table's file.

    Raises:
        AblateError: a name is no column, or there is something else than + - * / ** ( ).
    """
    columns: dict[str, str] = {}

    def place(name: str) -> str:
        columns[code := f"_column_{table.index(name)}"] = name
        return code

    if text in table:
        return Arithmetic(text, place(text), columns)
    ordered = sorted((name for name in table if not NUMBER.fullmatch(name)), key=len, reverse=True)
    names = "|".join(map(re.escape, ordered)) or "(?!)"
    found = re.compile(rf"`({names})`|(?<![\w.])({names})(?!\w)")
    code = found.sub(lambda match: place(match[1] or match[2]), text).replace("^", "**")
    try:
        tree = ast.parse(code.strip(), mode="eval")
        nodes = list(ast.walk(tree))
        valid = all(isinstance(one, ALLOWED) for one in nodes)
        others = [one.id for one in nodes if isinstance(one, ast.Name) and one.id not in columns]
        if valid and others:
            raise unknown(f"column in {option}", others[0] if columns else text, table, path)
        for one in nodes:
            if isinstance(one, ast.Constant):
                valid = valid and isinstance(one.value, int | float)
                # a power of whole numbers could grow without end
                one.value = float(one.value) if isinstance(one.value, int | float) else 0.0
        if valid and columns:
            return Arithmetic(text, ast.unparse(tree), columns)
    except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
        if not re.search(r"[-+*/^()]", text):
            raise unknown(f"column in {option}", text, table, path) from None
    raise AblateError(
        f"{option} {text!r:.100}: expected a column, or columns and numbers with + - * / ** ( )"
    )
