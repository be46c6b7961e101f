"""The results database: schema, opening, registering and claiming runs, ingest of journals,
questions.
"""

from ablate.place import exists, locate
from ablate.store.database import Database, open

__all__ = ["Database", "exists", "locate", "open"]
