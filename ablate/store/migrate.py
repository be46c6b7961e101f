"""Bring a database to the newest schema: the migrations in `migrations/versions`, run by Alembic in
one transaction.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from ablate.store import sqlite, views
from ablate.store.schema import HEAD, VERSION_TABLE

SCRIPTS = Path(__file__).parent / "migrations"


def version(path: Path) -> str | None:
    """The schema's version; None for a file without tables; "" for one whose tables are not
    ablate's.
    """
    with sqlite.consistent_read(path), contextlib.closing(sqlite.connect(path, "ro")) as connection:
        tables = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if VERSION_TABLE not in tables:
            return "" if tables else None
        row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
        return row[0] if row else None


def upgrade(path: Path) -> None:
    """Create, or upgrade to `HEAD`, all or nothing.

    Foreign keys are off meanwhile: with them on, a table that Alembic makes anew would delete its
    children's rows.
    """
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import StaticPool

    driver = sqlite.connect(path, "rwc")
    driver.execute("PRAGMA foreign_keys = OFF")  # heeded only outside a transaction
    engine = create_engine("sqlite://", creator=lambda: driver, poolclass=StaticPool)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    try:
        with engine.begin() as connection:
            views.drop(connection)
            config = Config()
            config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
            config.attributes["connection"] = connection
            command.upgrade(config, HEAD)
            broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()
            assert not broken, (
                f"migration to {HEAD} leaves rows that refer to nothing: {broken[:5]}"
            )
            views.refresh(connection)
            views.drop(connection)
            views.create(connection)
    finally:
        driver.close()


def backup(path: Path, old: str) -> Path:
    """A copy of the database beside it, as it was at version `old`. It has its name when it is
    whole.
    """
    copy = path.with_name(f"{path.name}.before-{HEAD}-from-{old}")
    number = 1
    while copy.exists():
        number += 1
        copy = copy.with_name(f"{path.name}.before-{HEAD}-from-{old}.{number}")
    part = path.with_name(f"{path.name}.backup")
    part.unlink(missing_ok=True)
    try:
        with (
            contextlib.closing(sqlite.connect(path, "ro")) as source,
            contextlib.closing(sqlite3.connect(part)) as target,
        ):
            source.backup(target)
        part.rename(copy)
    finally:
        part.unlink(missing_ok=True)
    return copy
