"""Upgrade a database to the newest schema, by Alembic and in one transaction."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

from ablate.errors import AblateError
from ablate.kinds import kind
from ablate.store import sqlite, views
from ablate.store.schema import HEAD, VERSION_TABLE

FIRST = "0001"
SCRIPTS = Path(__file__).parent / "migrations"


def version(path: Path, wait: float = sqlite.BUSY_SECONDS) -> str | None:
    """Return the schema's version; None for no tables, "" for tables of another program.

    Args:
        path: The database file.
        wait: Seconds to wait for another connection's lock.

    Raises:
        AblateError: The version is none that any ablate writes.
    """
    with (
        sqlite.consistent_read(path),
        contextlib.closing(sqlite.connect(path, "ro", wait)) as connection,
    ):
        tables = {
            name
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if VERSION_TABLE not in tables:
            return "" if tables else None
        connection.text_factory = bytes
        row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()
        found = row[0].decode(errors="replace") if row and isinstance(row[0], bytes) else None
        if found is None or not re.fullmatch(r"\d{4}", found) or found < FIRST:
            raise AblateError(
                f"database {path} holds {found!r:.40} as the version of its schema, which no ablate"
                " writes; restore a backup"
            )
        return found


def upgrade(path: Path) -> None:
    """Create a database, or upgrade it to `HEAD`, all or nothing.

    Foreign keys are off during this: otherwise rebuilding a table would delete the rows of its
    child tables.
    """
    from alembic import command
    from alembic.config import Config
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import StaticPool

    driver = sqlite.connect(path, "rwc")
    driver.execute("PRAGMA foreign_keys = OFF")  # has an effect only outside a transaction
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
            views.refresh(connection, kind("transformer").fields)
            views.drop(connection)
            views.create(connection)
    finally:
        driver.close()


def backup(path: Path, old: str) -> Path:
    """Copy the database of version `old` into its folder, and return the path of the copy.

    The copy gets its name when it is complete.
    """
    copy = path.with_name(f"{path.name}.before-{HEAD}-from-{old}")
    number = 1
    while copy.exists():
        number += 1
        copy = copy.with_name(f"{path.name}.before-{HEAD}-from-{old}.{number}")
    part = path.with_name(f"{path.name}.backup")
    part.unlink(missing_ok=True)
    try:
        part.touch()
        part.chmod(path.stat().st_mode & 0o777)
        with (
            contextlib.closing(sqlite.connect(path, "ro")) as source,
            contextlib.closing(sqlite3.connect(part)) as target,
        ):
            source.backup(target)
        part.rename(copy)
    finally:
        part.unlink(missing_ok=True)
    return copy
