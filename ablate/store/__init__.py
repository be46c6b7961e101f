"""The results database: schema, opening, registering and claiming runs, ingest of journals, questions."""

from ablate.store.database import Database, exists, locate, open

__all__ = ["Database", "exists", "locate", "open"]
