"""Reads the journals of running attempts into the database, now and then."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ablate.errors import AblateError
from ablate.journal import Event
from ablate.store import Database
from ablate.store.ingest import IngestError, ingest_all

INGEST = 1.0  # seconds between two readings


class Ingestor:
    """Reads journals for one launcher."""

    def __init__(self, db: Database):
        self._db = db
        self._next = 0.0

    def due(self) -> bool:
        """Return whether the journals of all running attempts are to be read."""
        return time.monotonic() >= self._next

    def read_all(
        self, attempts: Sequence[int]
    ) -> tuple[dict[int, list[Event]], AblateError | None]:
        """Read the journals of all running attempts; the next reading is due some time later."""
        begun = time.monotonic()
        result = self.read(attempts)
        now = time.monotonic()
        self._next = now + max(INGEST, 4 * (now - begun))
        return result

    def read(self, attempts: Sequence[int]) -> tuple[dict[int, list[Event]], AblateError | None]:
        """Read the journals of some attempts.

        Returns:
            Attempt → events that are new in the database, and the error of a journal that could not
            be read; what the others held is in the database.
        """
        try:
            return ingest_all(self._db, attempts), None
        except IngestError as error:
            return error.ingested, error
