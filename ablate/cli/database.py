"""`ablate db`: where the database is, and how it is kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli.render import Db

if TYPE_CHECKING:
    from ablate.store import Database

app = typer.Typer(help="The results database: where it is, upgrade, check, merge.", no_args_is_help=True)


def existing(db: str | None) -> Database | None:
    """The database, opened for reading, or None where there is no file yet."""
    name = db or os.environ.get("ABLATE_DB") or "results/ablate.db"
    if "://" not in name and not Path(name).exists():
        return None
    from ablate import store

    return store.open(db)


@app.command()
def path(db: Db = None) -> None:
    """Print the database's path, whether it is there yet or not."""
    from ablate import store

    print(store.locate(db))


@app.command()
def upgrade(db: Db = None) -> None:
    """Bring an older database to this version; a copy of the old one is kept beside it."""
    from ablate import store

    with store.open(db, create=True) as database:
        for note in database.notes:
            print(note)
        print(f"{database.path} is up to date")


@app.command()
def check(db: Db = None) -> None:
    """Check the database: its pages, foreign keys and version."""


@app.command()
def merge(
    other: Annotated[str, typer.Argument(metavar="OTHER.db", help="The database whose results are taken over.")], db: Db = None
) -> None:
    """Take over another database's results; what both hold is kept once."""
