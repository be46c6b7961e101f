"""How the command line writes tables and files."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.formats import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPED_WIDTH = 160  # columns where the output is no terminal

Db = Annotated[
    str | None,
    typer.Option(
        "--db", help="Database file; by default $ABLATE_DB, else results/ablate.db.", show_default=False, metavar="FILE"
    ),
]


def console() -> Console:
    """Standard output: as wide as the terminal, or wide enough for tables in a pipe."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the file system says against writing `path`, or into it, into one line."""
    from ablate.errors import AblateError

    try:
        yield
    except OSError as error:
        raise AblateError(f"{path} cannot be written: {error.strerror or error}") from None


def table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[str] = (),
    widths: Sequence[int | None] | None = None,
) -> Table:
    """A plain table; columns named in `right` hold numbers. Text is never read as markup, and controls in it are escaped."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    numeric = set(right)
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, width in zip(headings, widths or [None] * len(headings), strict=True):
        made.add_column(Text(heading), justify="right" if heading in numeric else "left", overflow="fold", width=width)
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made
