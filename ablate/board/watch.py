"""The database as pages ask for it: read when they ask, but not more often than it bears."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate import store
from ablate.board import page, reading
from ablate.errors import AblateError
from ablate.store import Database

EVERY = 1.0  # least seconds between two readings
PAUSE = 4  # times the processor time of a reading pass before the next
WAIT = 2.0  # seconds that a reading waits for another process's lock


@dataclass
class Kept:
    """An answer that is given until it is due again. One thread makes it, others wait for it."""

    due: float = 0.0
    answer: Any = None
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Live:
    """The parts of a page that change.

    Attributes:
        shown: title, question (of the study), parts (section → HTML), error (a line, or ""), ended
            (whether the `ablate run` that serves the board is over).
        body: The same as JSON.
        tag: Changes with it.
    """

    shown: dict[str, Any]
    body: bytes
    tag: str


class Watch:
    """What pages show of a database.

    Args:
        path: The database.
        studies: Names of the studies that are shown, which need not be in the database yet; all if
            empty.
    """

    def __init__(self, path: Path, studies: Sequence[str] = ()):
        self.path, self.studies = path, tuple(studies)
        self.asked = 0.0  # when a page last asked, by the monotonic clock
        self._ended = False
        self._lives: dict[str, Kept] = {}
        self._growths: dict[str, Kept] = {}
        self._lock = threading.Lock()

    def live(self, study: str) -> Live:
        """Return what changes on the page of a study.

        Args:
            study: Name of the study; "" for the list of studies.
        """
        self.asked = time.monotonic()
        kept = self._kept(self._lives, study)
        with kept.lock:
            if time.monotonic() >= kept.due or kept.answer is None:
                before = kept.answer or {"title": study or "ablate", "question": study, "parts": {}}
                kept.answer = self._timed(kept, lambda: self._read(study, before))
            shown = kept.answer | {"ended": self._ended}
        body = json.dumps(shown).encode()
        return Live(shown, body, hashlib.sha256(body).hexdigest()[:16])

    def growth(self, study: str, since: int) -> dict[str, Any] | None:
        """Return what changed of a study's runs and curves, see `Growth.since`.

        Raises:
            AblateError: The database cannot be read, or does not hold the study.
        """
        from ablate.board.growth import Growth  # seconds

        kept = self._kept(self._growths, study)
        with kept.lock:
            growth: Growth = kept.answer or Growth(study)
            if time.monotonic() >= kept.due:
                self._timed(kept, lambda: self._with_database(growth.refresh))
                kept.answer = growth
            return growth.since(since)

    def end(self) -> None:
        """Tell pages, with what is in the database then, that the run has ended."""
        for kept in (*self._lives.values(), *self._growths.values()):
            with kept.lock:
                kept.due = 0.0
        self._ended = True

    def names(self) -> list[str]:
        """Return the names of the studies in the database.

        Raises:
            AblateError: The database cannot be read.
        """
        from ablate.store.names import studies

        held = self._with_database(studies)
        return list(held)

    def _read(self, study: str, before: dict[str, Any]) -> dict[str, Any]:
        """Read a study; what cannot be read stays as it was, and the page says why."""
        try:
            return self._with_database(lambda db: self._shown(db, study)) | {"error": ""}
        except AblateError as error:
            return before | {"error": " ".join(str(error).split())}

    def _shown(self, db: Database, study: str) -> dict[str, Any]:
        courses = reading.courses(db, self.studies)
        chooser = {"studies": page.chooser(courses, study)}
        if not study:
            return {"title": "Studies · ablate", "question": "", "parts": chooser}
        course = next((one for one in courses if one.name == study), None)
        if course is None:
            raise AblateError(f"the database holds no study {study!r} now")
        parts = page.sections(reading.detail(db, course))
        named = {"title": page.title(course), "question": course.question}
        return named | {"parts": (chooser if len(courses) > 1 else {}) | parts}

    def _with_database(self, use: Callable[[Database], Any]) -> Any:
        """Open the database anew: it may have been replaced."""
        with store.open(str(self.path), wait=WAIT) as db:
            return use(db)

    def _kept(self, of: dict[str, Kept], study: str) -> Kept:
        with self._lock:
            return of.setdefault(study, Kept())

    def _timed(self, kept: Kept, make: Callable[[], Any]) -> Any:
        begun = time.thread_time()
        try:
            return make()
        finally:
            kept.due = time.monotonic() + max(EVERY, PAUSE * (time.thread_time() - begun))
