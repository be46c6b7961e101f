"""Tables in Markdown, printed row by row while a benchmark runs."""

from __future__ import annotations


def table(*columns: str) -> None:
    """Print the head of a table."""
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)


def row(*cells: object, decimals: int = 1) -> None:
    """Print a row; a float is a share, in per cent."""
    text = (f"{c:.{decimals}%}" if isinstance(c, float) else str(c) for c in cells)
    print(f"| {' | '.join(text)} |", flush=True)
