"""The results database: schema, opening, registering and claiming runs, ingest of journals,
questions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ablate.store.location import exists, locate

if TYPE_CHECKING:
    from ablate.store.database import Database, open

__all__ = ["Database", "exists", "locate", "open"]


def __getattr__(name: str) -> Any:
    """Import `Database` and `open` at first use: locating a file needs no SQLAlchemy."""
    if name in __all__:
        from ablate.store import database

        return getattr(database, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
