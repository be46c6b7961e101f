"""Open a results database, and use it in one of two ways: `begin` to write, `read` to read."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import safetensors
from sqlalchemy import Connection

from ablate.errors import AblateError
from ablate.store import migrate, sound, sqlite
from ablate.store.location import DEFAULT, closed, exists, locate
from ablate.store.records import WEIGHTS
from ablate.store.schema import OLDEST

# The names of these files; the first group of both is the start of the run's key.
KEY = re.compile(r"[0-9a-f]{64}")  # of a run
JOURNAL = re.compile(r"([0-9a-f]{12})-\d+-[0-9a-f]+\.jsonl")
CHECKPOINT = re.compile(r"([0-9a-f]{12})-\d+\.pt")


class Database:
    """A results database of the newest schema.

    Attributes:
        path: The file.
        notes: Lines for the user about how it was opened.
        journals: Folder of the journals.
        checkpoints: Folder of the checkpoints.
        weights: Folder of the weights that runs keep.
        outputs: Folder of what scripts of the user's own write, a folder for each run.
        series_ids: Name → id of the series known to exist.
    """

    def __init__(
        self,
        path: Path,
        *,
        owned: bool,
        notes: tuple[str, ...] = (),
        wait: float = sqlite.BUSY_SECONDS,
    ):
        self.path = path
        self.notes = notes
        self._wait = wait  # of readers, in seconds
        self.journals = folder(path, "journals")
        self.checkpoints = folder(path, "checkpoints")
        self.weights = folder(path, "weights")
        self.outputs = folder(path, "outputs")
        self.series_ids: dict[str, int] = {}
        self._owned = owned  # opened by a writer, which sets DELETE mode when it closes
        self._identity = sqlite.identity(path)
        self._writer = sqlite.writer(path)
        self._reader = sqlite.reader(path, keep=owned, wait=wait)

    def journal(self, name: str) -> Path | None:
        """Return the file of an attempt's journal.

        A database may come from a stranger, who can write any name into it.

        Returns:
            The file; None for a name that `ablate run` does not give to a journal.
        """
        return self.journals / name if JOURNAL.fullmatch(name) else None

    def log(self, journal: str) -> Path | None:
        """Return the file of what a script printed in an attempt, by the name of its journal.

        Returns:
            The file, which may not exist; None for a name that is no journal's.
        """
        path = self.journal(journal)
        return path and path.with_suffix(".log")

    def printed(self, journal: str, size: int) -> str:
        """Return the last `size` bytes of what a script printed; "" if they cannot be read."""
        path = self.log(journal)
        if path is None:
            return ""
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - size))
                return file.read().decode(errors="replace")
        except OSError:  # most attempts have no log
            return ""

    def checkpoint(self, path: str) -> tuple[Path, list[Path]]:
        """Return where a checkpoint is, wherever the database was when it was written.

        Returns:
            Its file, and what exists of it: the newest, the one before it, or both; none for a name
            that `ablate run` does not give to a checkpoint.
        """
        file = self.checkpoints / Path(path).name
        known = CHECKPOINT.fullmatch(file.name)
        return file, sorted(self.checkpoints.glob(f"{file.name}*")) if known else []

    def weights_of(self, key: str, keep: str) -> Path:
        """Return the file for a run's weights, by its key; `keep` is "final" or "best"."""
        return self.weights / f"{key[:12]}-{keep}.safetensors"

    def kept(self, key: str, kind: str, path: str) -> Path | None:
        """Return the file of weights that an artifact names, wherever the database was then.

        Args:
            key: The run's key.
            kind: The artifact's kind.
            path: The artifact's path.

        Returns:
            The file, which may not exist; None for a name that `ablate run` does not give to
            weights of this run and kind.
        """
        for keep, its in WEIGHTS.items():
            file = self.weights_of(key, keep)
            if its == kind and KEY.fullmatch(key) and Path(path).name == file.name:
                return file
        return None

    @contextlib.contextmanager
    def begin(self) -> Iterator[Connection]:
        """Give a connection inside BEGIN IMMEDIATE; commit at the end, roll back on an error."""
        self._require_file()
        with sqlite.translate_errors(self.path), self._writer.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """Give a connection that cannot write and sees one state of the database."""
        self._require_file()
        with (
            sqlite.consistent_read(self.path),
            sqlite.translate_errors(self.path, self._wait),
            self._reader.begin() as connection,
        ):
            yield connection

    def _require_file(self) -> None:
        """Raise `AblateError` if the file is gone: a writer would go on in one without a name."""
        now = sqlite.identity(self.path)
        if now is None or (self._owned and now != self._identity):
            what = "deleted or moved" if now is None else "replaced by another"
            raise AblateError(
                f"database {self.path} was {what} while it was in use; results that are in"
                f" {self.journals} alone can be read in again: `ablate run`, then `ablate db check"
                " --repair`"
            )

    def vacuum(self) -> None:
        """Rewrite the file without the space of deleted rows."""
        with (
            sqlite.translate_errors(self.path),
            contextlib.closing(sqlite.connect(self.path, "rw")) as connection,
        ):
            connection.execute("VACUUM")

    def close(self) -> None:
        """Close the file. The last writer leaves it in DELETE mode, without side files."""
        self._reader.dispose()
        self._writer.dispose()
        if self._owned:
            self._owned = False
            with sqlite.translate_errors(self.path):
                sqlite.set_journal_mode(self.path, "DELETE")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()
        if error is not None and (clear := sound.explain(self.path, error)):
            raise clear from error


def whole(file: Path | None) -> bool:
    """Return whether a file that `Database.kept` returns is there and not cut short."""
    if file is None:
        return False
    try:
        with safetensors.safe_open(file, "np"):  # it compares the size with the header
            return True
    except (FileNotFoundError, safetensors.SafetensorError):
        return False
    except OSError:  # such as no permission, from which nothing follows
        return True


def folder(path: Path, kind: str) -> Path:
    """Return the folder next to a database for one kind of its files, such as "journals"."""
    return path.with_name(f"{path.name.removesuffix('.db')}.{kind}")


def open(
    url: str | None = None, *, create: bool = False, wait: float = sqlite.BUSY_SECONDS
) -> Database:
    """Open a database.

    Args:
        url: See `locate`.
        create: Open it to write: create it if it is missing, upgrade it (after a backup) if it is
            older, both under a file lock. Otherwise it must exist and have the tables of this
            version, and nothing is changed.
        wait: Seconds that a read waits for another connection's lock.

    Raises:
        AblateError: It is of a newer version, holds other tables, or cannot be opened. Nothing was
            changed.
    """
    path = locate(url)
    try:
        with sqlite.translate_errors(path, wait):
            notes = _prepare(path, create, wait)
    except OSError as error:
        raise closed(path, error) from error
    return Database(path, owned=create, notes=notes, wait=wait)


def _prepare(path: Path, create: bool, wait: float) -> tuple[str, ...]:
    """Check, create or upgrade the file; return the notes about it."""
    notes = []
    if create and path == DEFAULT:
        path.parent.mkdir(exist_ok=True)
    _check_access(path, create)
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
    elif (version := _version(path, wait)) is None:
        raise AblateError(f"database {path} is empty: no study has been run in it")
    elif version < OLDEST:
        raise AblateError(
            f"database {path} was written by an older ablate (schema {version}, now"
            f" {migrate.HEAD}); `ablate db upgrade` upgrades it"
        )
    return tuple(notes)


def _check_access(path: Path, create: bool) -> None:
    if not exists(path):
        if not create:
            raise AblateError(
                f"database {path} does not exist; `ablate run` creates it, --db or ABLATE_DB"
                " selects another"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AblateError(
                f"database {path} cannot be created: folder {path.parent}: {error.strerror}"
            ) from None
    elif path.is_dir():
        raise AblateError(
            f"database {path} is a folder; name a file in it, such as {path / 'ablate.db'}"
        )
    elif not path.is_file():
        raise AblateError(f"database {path} is a device or a pipe; name a file")
    elif not os.access(path, os.R_OK | (os.W_OK if create else 0)):
        why = "its file system is read-only" if create and _read_only(path) else "no permission"
        raise AblateError(f"database {path} cannot be {'written' if create else 'read'}: {why}")
    if create and not os.access(path.parent, os.W_OK):
        why = "on a read-only file system" if _read_only(path.parent) else "not writable"
        raise AblateError(f"database {path} cannot be written: folder {path.parent} is {why}")


def _read_only(path: Path) -> bool:
    """Whether the file system of `path` is mounted read-only."""
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _version(path: Path, wait: float = sqlite.BUSY_SECONDS) -> str | None:
    """The schema's version, None if there is none yet; refuse a newer one, and other tables."""
    if not path.exists() or not path.stat().st_size:
        return None
    found = migrate.version(path, wait)
    if found == "":
        raise AblateError(f"database {path} holds tables of another program; give another file")
    if found is not None and found > migrate.HEAD:
        raise AblateError(
            f"database {path} was written by a newer ablate (schema {found}, this version reads"
            f" {migrate.HEAD}); upgrade ablate"
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
    # By itself SQLite lets nobody but the owner write it; its side files follow it.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
    migrate.upgrade(path)
    return notes
