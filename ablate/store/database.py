"""Opening a results database: the one place that does, and the two ways to use it, `begin` to write
and `read`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import Connection

from ablate.errors import AblateError
from ablate.store import migrate, sqlite
from ablate.store.location import DEFAULT, closed, exists, locate


class Database:
    """A results database of the newest schema. `notes` are lines for the user about how it was
    opened.
    """

    def __init__(self, path: Path, *, owned: bool, notes: tuple[str, ...] = ()):
        self.path = path
        self.notes = notes
        self.journals = folder(path, "journals")
        self.checkpoints = folder(path, "checkpoints")
        self.series_ids: dict[str, int] = {}  # name → id of the series known to be there
        self._owned = owned  # opened by a writer, that puts it to rest again
        self._writer = sqlite.writer(path)
        self._reader = sqlite.reader(path, keep=owned)

    @contextlib.contextmanager
    def begin(self) -> Iterator[Connection]:
        """A connection inside BEGIN IMMEDIATE: commits at the end, rolls back on an exception."""
        with sqlite.translate_errors(self.path), self._writer.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection that cannot write and sees one state of the database throughout."""
        with (
            sqlite.consistent_read(self.path),
            sqlite.translate_errors(self.path),
            self._reader.begin() as connection,
        ):
            yield connection

    def vacuum(self) -> None:
        """Write the file anew without the space of what was deleted; it is smaller once it is at
        rest.
        """
        with (
            sqlite.translate_errors(self.path),
            contextlib.closing(sqlite.connect(self.path, "rw")) as connection,
        ):
            connection.execute("VACUUM")

    def close(self) -> None:
        """Let go of the file. The last writer leaves it in DELETE mode, one file without side
        files.
        """
        self._reader.dispose()
        self._writer.dispose()
        if self._owned:
            self._owned = False
            with sqlite.translate_errors(self.path):
                sqlite.set_journal_mode(self.path, "DELETE")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def folder(path: Path, kind: str) -> Path:
    """The folder beside a database for its "journals" or "checkpoints"."""
    return path.with_name(f"{path.name.removesuffix('.db')}.{kind}")


def open(url: str | None = None, *, create: bool = False) -> Database:
    """The database at `url` (see `locate`).

    With `create` it is opened to be worked on: made where it is missing, upgraded (after a backup)
    where it is older, both under a file lock. Without, it must be there and of this version:
    readers change nothing. `AblateError`, and nothing touched, for a newer one, for a file that is
    something else, and for a folder that is absent or unwritable.
    """
    path = locate(url)
    try:
        with sqlite.translate_errors(path):
            notes = _prepare(path, create)
    except OSError as error:
        raise closed(path, error) from error
    return Database(path, owned=create, notes=notes)


def _prepare(path: Path, create: bool) -> tuple[str, ...]:
    """Have the file be as `open` promises; the notes about it."""
    notes = []
    if create and path == DEFAULT:
        path.parent.mkdir(exist_ok=True)
    _check_place(path, create)
    if create:
        if _version(path) != migrate.HEAD:
            with sqlite.locked(path):
                notes += _create_or_upgrade(path)
        if kind := sqlite.network_filesystem(path):
            notes.append(
                f"database {path} is on a network file system ({kind}), whose locks may fail; a"
                " local disk is safer"
            )
        sqlite.set_journal_mode(path, "DELETE" if kind else "WAL")
    elif (found := _version(path)) is None:
        raise AblateError(f"database {path} is empty: no study has been run in it")
    elif found != migrate.HEAD:
        raise AblateError(
            f"database {path} is of an older ablate (schema {found}, now {migrate.HEAD}); `ablate"
            " db upgrade` upgrades it"
        )
    return tuple(notes)


def _check_place(path: Path, create: bool) -> None:
    if not exists(path):
        if not create:
            raise AblateError(
                f"database {path} does not exist; `ablate run` makes it, --db or ABLATE_DB names"
                " another"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AblateError(
                f"database {path} cannot be made: folder {path.parent}: {error.strerror}"
            ) from None
    elif path.is_dir():
        raise AblateError(
            f"database {path} is a folder; name a file in it, such as {path / 'ablate.db'}"
        )
    elif not os.access(path, os.R_OK | (os.W_OK if create else 0)):
        why = "its file system is read-only" if create and _read_only(path) else "no permission"
        raise AblateError(f"database {path} cannot be {'written' if create else 'read'}: {why}")
    if create and not os.access(path.parent, os.W_OK):
        why = "on a read-only file system" if _read_only(path.parent) else "not writable"
        raise AblateError(f"database {path} cannot be written: folder {path.parent} is {why}")


def _read_only(path: Path) -> bool:
    """Whether the file system of `path` takes no writes, whoever asks."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _version(path: Path) -> str | None:
    """The schema's version, None where there is none yet; refuses what is newer, or not ours."""
    if not path.exists() or not path.stat().st_size:
        return None
    found = migrate.version(path)
    if found == "":
        raise AblateError(f"database {path} holds tables of something else; name another file")
    if found is not None and found > migrate.HEAD:
        raise AblateError(
            f"database {path} is of a newer ablate (schema {found}, this one knows {migrate.HEAD});"
            " upgrade ablate"
        )
    return found


def _create_or_upgrade(path: Path) -> list[str]:
    found = _version(path)
    if found == migrate.HEAD:  # another process was quicker
        return []
    notes = []
    if found is not None:
        copy = migrate.backup(path, found)
        notes.append(
            f"database {path} upgraded from schema {found} to {migrate.HEAD}; the old one is kept"
            f" as {copy}"
        )
    migrate.upgrade(path)
    return notes
