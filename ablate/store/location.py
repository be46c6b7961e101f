"""Locate the results database file. Importing this module does not load SQLAlchemy."""

from __future__ import annotations

import os
from pathlib import Path

from ablate.errors import AblateError
from ablate.paths import expanded

DEFAULT = Path("results/ablate.db")


def locate(url: str | None = None) -> Path:
    """Return the database file that `url` names; ~ is expanded as a shell does.

    Args:
        url: A path or an SQLAlchemy URL; None for $ABLATE_DB, else results/ablate.db.

    Raises:
        AblateError: The URL is malformed, is not of SQLite, or names no file.
    """
    url = url or os.environ.get("ABLATE_DB") or str(DEFAULT)
    if "://" not in url:
        return expanded(url)
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(url)
    except ArgumentError:
        raise AblateError(
            f"database {url!r} is neither a path nor an SQLAlchemy URL such as"
            " sqlite:///results/ablate.db"
        ) from None
    if parts.get_backend_name() != "sqlite":
        raise AblateError(
            f"database {url!r}: {parts.get_backend_name()} is not supported; give the path of a"
            " SQLite file"
        )
    if not parts.database or parts.database == ":memory:":
        raise AblateError(
            f"database {url!r} is not a file; other processes must be able to open it"
        )
    return expanded(parts.database)


def exists(path: Path) -> bool:
    """Return whether the file exists.

    Raises:
        AblateError: The user may not look into its folder, where `Path.exists` says False.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise closed(path, error) from None
    return True


def closed(path: Path, error: OSError) -> AblateError:
    """Return the one-line error for a database that this user may not open."""
    location = f"{error.filename}: " if error.filename and Path(error.filename) != path else ""
    return AblateError(f"database {path} cannot be opened: {location}{error.strerror}")
