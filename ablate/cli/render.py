"""How the command line writes tables and files."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import IO, TYPE_CHECKING, Annotated, Literal

import typer

from ablate.cli import complete
from ablate.cli.flags import option
from ablate.formats import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

PIPED_WIDTH = 160  # columns where the output is no terminal

Db = Annotated[
    str | None,
    option("Database file; by default $ABLATE_DB, else results/ablate.db.", "--db", metavar="FILE"),
]
Stored = Annotated[
    str,
    typer.Argument(
        metavar="STUDY", help="A study in the database.", autocompletion=complete.stored
    ),
]
RunName = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's number, or the start of its key.")
]
ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help=(
            "A run's number, or the start of its key; or a folder of transformers, with config.json"
            " and model.safetensors."
        ),
    ),
]


def console(file: IO[str] | None = None) -> Console:
    """Return standard output or `file`, as wide as the terminal; in a pipe, as tables need."""
    from ablate.cli.consoles import Console

    return Console(file=file, highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)


def next_command(context: typer.Context, command: str, study: str) -> str:
    """Return a command on a study with the options of this one that it has too.

    Args:
        context: Of the command that is running.
        command: Name of the next one.
        study: Its argument.
    """
    assert context.parent is not None
    target = context.parent.command.commands[command]  # type: ignore[attr-defined]  # of a group
    known = {param.opts[0] for param in target.params if param.param_type_name == "option"}
    words = ["ablate", command, quote(study)]
    for param in context.command.params:
        value, option = context.params.get(param.name or ""), param.opts[0]
        if (
            param.param_type_name == "option"
            and option in known
            and value not in (param.default, [], ())
        ):
            for each in value if isinstance(value, list | tuple) else [value]:
                words += [option] if each is True else [option, quote(str(each))]
    return " ".join(words)


def show_all(parts: Iterable[RenderableType]) -> None:
    """Print texts, in which nothing is markup, and tables."""
    out = console()
    for part in parts:
        out.print(part, markup=False, soft_wrap=isinstance(part, str))


@contextlib.contextmanager
def working(text: str) -> Iterator[Callable[[str], None]]:
    """Show on standard error, if it is a terminal, what a long command is doing.

    Args:
        text: What it does first.

    Yields:
        A function that is called with what it does next.
    """
    from rich.markup import escape

    from ablate.cli.consoles import Console

    if not sys.stderr.isatty():
        yield lambda text: None
        return
    with Console(stderr=True, highlight=False).status(escape(text)) as status:
        yield lambda text: status.update(escape(text))


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a file-system error while writing `path`, or into it, into one line."""
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
    spare: Sequence[str] = (),
) -> Table:
    """Return a plain table.

    Text is never read as markup, and control characters in it are escaped.

    Args:
        headings: Names of the columns.
        rows: Cells of each row.
        right: Columns of numbers, which are not broken.
        widths: Width of each column in characters, None for as wide as needed.
        spare: Columns to leave out, in this order, if the terminal is too narrow.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    numeric = set(right)
    cells = [[printable(cell) for cell in row] for row in rows]
    needed = _needed(headings, cells, numeric)
    room = console().width
    for heading in (one for one in spare if one in needed):
        if _total(needed) > room:
            del needed[heading]
    whole = _total(needed) <= room  # else a column that must not be broken would be cut
    rich_table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, width in zip(headings, widths or [None] * len(headings), strict=True):
        if heading in needed:
            justify: Literal["right", "left"] = "right" if heading in numeric else "left"
            rich_table.add_column(
                Text(heading),
                justify=justify,
                overflow="fold",
                width=width,
                no_wrap=whole and heading in numeric,
            )
    for row in cells:
        rich_table.add_row(
            *(Text(cell) for heading, cell in zip(headings, row, strict=True) if heading in needed)
        )
    return rich_table


def _needed(headings: Sequence[str], rows: list[list[str]], numeric: set[str]) -> dict[str, int]:
    """The characters that each column needs, so that no word and no number is broken."""
    from rich.cells import cell_len

    columns = zip(headings, zip(headings, *rows, strict=True), strict=True)
    parts = {
        heading: cells if heading in numeric else " ".join(cells).split()
        for heading, cells in columns
    }
    return {heading: max(map(cell_len, words), default=0) for heading, words in parts.items()}


def _total(needed: dict[str, int]) -> int:
    """The width of a table with such columns: three characters between two, one at either end."""
    return sum(needed.values()) + 3 * (len(needed) - 1) + 2
