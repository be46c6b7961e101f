"""Where the results database is, and whether it is there: known before SQLAlchemy is loaded to open
it.
"""

from __future__ import annotations

import os
from pathlib import Path

from ablate.errors import AblateError

DEFAULT = Path("results/ablate.db")


def locate(url: str | None = None) -> Path:
    """The file that `url` names: a path or an SQLAlchemy URL; without one $ABLATE_DB, else
    results/ablate.db.
    """
    url = url or os.environ.get("ABLATE_DB") or str(DEFAULT)
    if "://" not in url:
        return Path(url)
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parts = make_url(url)
    except ArgumentError:
        raise AblateError(
            f"database {url!r} is no path and no SQLAlchemy URL, such as"
            " sqlite:///results/ablate.db"
        ) from None
    if parts.get_backend_name() != "sqlite":
        raise AblateError(
            f"database {url!r}: {parts.get_backend_name()} is not supported; give the path of a"
            " SQLite file"
        )
    if not parts.database or parts.database == ":memory:":
        raise AblateError(
            f"database {url!r} names no file; other processes must be able to open it"
        )
    return Path(parts.database)


def exists(path: Path) -> bool:
    """Whether there is a file; `AblateError` where it may not be looked for, of which `Path.exists`
    says nothing.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise closed(path, error) from None
    return True


def closed(path: Path, error: OSError) -> AblateError:
    """One line for a database that the system does not let this user open."""
    where = f"{error.filename}: " if error.filename and Path(error.filename) != path else ""
    return AblateError(f"database {path} cannot be opened: {where}{error.strerror}")
