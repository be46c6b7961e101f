"""`ablate db`: locate, upgrade, check, merge, thin and forget."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli.flags import Command, Group
from ablate.cli.output import echo
from ablate.cli.render import Db, Stored
from ablate.errors import AblateError
from ablate.store.location import exists, locate
from ablate.units import listed, memory

if TYPE_CHECKING:
    from ablate.plan import Plan
    from ablate.store import Database
    from ablate.store.noise import Noise

app = typer.Typer(
    cls=Group,
    help="The results database: where it is, upgrade, check, merge, thin, forget.",
    no_args_is_help=True,
)


def existing(db: str | None) -> Database | None:
    """Return the database, opened for reading; None if there is no file yet."""
    if not exists(locate(db)):
        return None
    from ablate import store

    return store.open(db)


def existing_noise(plan: Plan, db: str | None) -> Noise | None:
    """Return the noise of runs like a plan's; None if there is no database or no such noise."""
    if (database := existing(db)) is None:
        return None
    from ablate.store.noise import noise_for

    with database:
        return noise_for(plan, database)


@contextlib.contextmanager
def to_write(db: str | None, *, create: bool = False) -> Iterator[Database]:
    """Open a database to be written, and print whether it was upgraded."""
    from ablate import store

    if not create:
        require(db)
    with store.open(db, create=True) as database:
        for note in database.notes:
            echo(note)
        yield database


@app.command(cls=Command)
def path(db: Db = None) -> None:
    """Print the path of the database, whether it exists or not."""
    from ablate import store

    echo(str(store.locate(db)))


@app.command(cls=Command)
def upgrade(db: Db = None) -> None:
    """Upgrade an older database to this version; a backup is kept next to it."""
    from ablate import store
    from ablate.store import migrate

    with contextlib.suppress(AblateError), store.open(db) as database:
        if migrate.version(database.path) == migrate.HEAD:  # which may be read-only
            echo(f"{database.path} is up to date")
            return
    with to_write(db) as database:
        echo(f"{database.path} is up to date")


@app.command(cls=Command)
def check(
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Repair what can be repaired; no measured number is deleted."
        ),
    ] = False,
    db: Db = None,
) -> None:
    """Look for damage, contradictions and stray journals. Exit code 1 if problems remain."""
    from ablate import store
    from ablate.store.check import check as find
    from ablate.store.check import cure
    from ablate.store.sqlite import Damaged

    path = store.locate(db)
    try:
        with to_write(db) if repair else store.open(db) as database:
            findings = find(database, repair=repair)
    except Damaged as damage:
        echo(f"database {path} is damaged: {damage.how}", cure(path))
        raise typer.Exit(1) from None
    for finding in findings:
        echo(f"{finding.text}: {finding.repair}" if finding.repair else finding.text)
    if not findings:
        echo(f"{path}: no problems found")
    elif not repair:
        echo("`ablate db check --repair` repairs what can be repaired")
    raise typer.Exit(int(not all(finding.repair for finding in findings)))


@app.command(cls=Command)
def merge(
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The database whose results are added.")
    ],
    rename: Annotated[
        list[str] | None,
        typer.Option(
            "--rename", metavar="OLD=NEW", help="Give a study of OTHER another name in this one."
        ),
    ] = None,
    db: Db = None,
) -> None:
    """Merge another database into this one; duplicates are kept once, effects recomputed."""
    from ablate import store
    from ablate.analysis import analyse
    from ablate.store.merge import merge as join
    from ablate.store.names import studies

    names = {}
    for text in rename or ():
        old, equals, new = text.partition("=")
        if not equals:
            raise AblateError(f"--rename {text}: give OLD=NEW, two names of a study")
        names[old] = new
    with store.open(other) as theirs, to_write(db, create=True) as ours:
        brought = join(ours, theirs, names)
        for study in studies(ours):
            analyse(ours, study)
        echo(
            f"{ours.path}: new or changed studies: {brought.studies}; new runs: {brought.runs};"
            f" updated runs: {brought.renewed}"
            + (f"; copied files of weights: {brought.weights}" if brought.weights else "")
        )
        for sentence in brought.edited:
            echo(f"{sentence}.")


@app.command(cls=Command)
def thin(
    keep: Annotated[
        int,
        typer.Option(
            "--keep",
            metavar="N",
            min=2,
            max=10**9,  # times the points of a run it is a whole number of SQLite
            help="Points to keep of each training series of a run.",
        ),
    ] = 50,
    db: Db = None,
) -> None:
    """Make the file fit to publish: fewer points of training curves, no losses of windows of tuning
    runs, no names of hosts, no folders of absolute paths but in the text of your code.

    Merge first: a merge with a database that was not thinned brings names back.
    """
    from ablate import store
    from ablate.store import sqlite
    from ablate.store.thin import thin as reduce

    file = store.locate(db)
    with to_write(db) as database:
        parts = file, file.with_name(f"{file.name}-wal")
        before = sum(part.stat().st_size for part in parts if part.exists())
        done = reduce(database, keep)
    echo(
        f"{file}: {done.deleted:,} training points of {done.runs:,} runs deleted, {done.kept:,}"
        f" kept; losses of windows of {done.tuned:,} tuning runs deleted; names of hosts and"
        f" folders taken out of {done.private:,} texts"
    )
    if done.named:
        echo(
            f"folders stay in names of levels or in study files, such as {done.named[0]!r}: give"
            " the levels names, as in `[factors.text] a = { corpus = … }`, run the study again,"
            " which trains nothing again, and thin again"
        )
    if sqlite.at_rest(file):
        echo(f"{memory(before)} before, {memory(file.stat().st_size)} now, in one file")
    else:
        echo(
            "another process has the database open; run this again when it has ended, to get one"
            " file that can be committed"
        )
    if done.waiting:
        echo(f"runs without a result, not changed: {done.waiting:,}")


@app.command(cls=Command)
def forget(
    study: Stored,
    yes: Annotated[
        bool, typer.Option("--yes", help="Delete; without it, only list what would be deleted.")
    ] = False,
    db: Db = None,
) -> None:
    """Delete a study: its results, and the runs that no other study uses, with their files."""
    from ablate import store
    from ablate.store import forget as forgetting

    with to_write(db) if yes else store.open(db) as database:
        gone = forgetting.forget(database, study) if yes else forgetting.part(database, study)
    what = listed(
        [f"{number:,} {kind}" for kind, number in gone.rows.items() if number]
        + [f"{len(gone.files):,} files"]
    )
    stay = f"; {gone.shared:,} runs shared with other studies are kept" if gone.shared else ""
    echo(f"study {study}: {what} {'deleted' if yes else 'would be deleted'}{stay}")
    if not yes:
        for file in gone.files:
            echo(f"  {file}")
        echo("nothing was deleted; --yes deletes it, which cannot be undone")
        raise typer.Exit(1)


def require(db: str | None) -> None:
    """Raise `AblateError` if the database does not exist."""
    if not exists(locate(db)):
        raise AblateError(
            f"database {locate(db)} does not exist; `ablate run` creates it, --db or ABLATE_DB"
            " selects another"
        )
