"""Connections to SQLite: pragmas, journal modes, locks, and what error codes mean.

A database is in WAL mode while a writer has it open, so that readers and writers never wait for
each other, and in DELETE mode otherwise, so that it is one file that can be committed, copied and
read on read-only media. On a network file system, where WAL does not work, it stays in DELETE mode.
The contract of `ablate.store` holds in either mode.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool, QueuePool

from ablate.errors import AblateError

BUSY_SECONDS = 60.0  # how long a connection waits for another's lock

MOUNTS = Path("/proc/self/mounts")

# Prefixes of Linux's names of file systems that are shared over a network, by several machines, or
# by a virtual machine and its host.
_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "glusterfs",
    "afs",
    "9p",
    "orangefs",
    "pvfs",
    "panfs",
    "wekafs",
    "gfs2",
    "ocfs2",
    "coda",
    "ncp",
    "davfs",
    "virtiofs",
    "vboxsf",
    "prl_fs",
    "vmhgfs",
    "drvfs",
    "fakeowner",
    "dvs",
    "cvfs",
)
_LOCAL_FUSE = (
    "mergerfs",
    "bindfs",
    "fuse-overlayfs",
    "gocryptfs",
    "encfs",
    "cryfs",
    "ntfs",
    "exfat",
    "zfs",
    "squashfuse",
    "lxcfs",
)


def connect(path: Path, mode: str, timeout: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Return a driver connection that begins no transaction by itself.

    Args:
        path: The database file.
        mode: "ro" reads, "rw" also writes, "rwc" also creates.
        timeout: Seconds to wait for another connection's lock.
    """
    options = f"mode={mode}"
    if mode == "ro" and _side_files_would_harm(path):
        options += "&immutable=1"
    uri = f"file:{quote(str(path.absolute()))}?{options}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        # A view in another user's file cannot call functions with side effects.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cache_size = -32768")  # KiB
        if mode != "ro" and connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            # a commit that is lost with the power is ingested again from its journal
            connection.execute("PRAGMA synchronous = NORMAL")
    except sqlite3.Error as error:
        connection.close()
        if (
            mode != "ro"
            or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY
            or not os.access(path, os.W_OK)
        ):
            raise
        # a writer was killed during a commit: only a connection that may write can roll it back
        connect(path, "rw", timeout).close()
        return connect(path, mode, timeout)
    return connection


def _side_files_would_harm(path: Path) -> bool:
    """Whether reading would create side files of a WAL database that no process has open.

    In a folder that is not writable they cannot be created; in one that is, the database's owner
    could not write to side files of another user.
    """
    return not (
        (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
        or path.with_name(path.name + "-wal").exists()
        or at_rest(path)
    )


@contextlib.contextmanager
def consistent_read(path: Path) -> Iterator[None]:
    """Raise if the file changes during an unlocked read.

    Wraps reading with `connect`, which opens some files as immutable and then reads without a lock:
    one half might be from before a commit and one from after it.

    Raises:
        AblateError: The file was written while it was read.
    """
    if not _side_files_would_harm(path):
        yield
        return
    before = path.stat().st_mtime_ns
    try:
        yield
    finally:
        if identity(path) is None or path.stat().st_mtime_ns != before:
            raise AblateError(f"database {path} was written while it was read; try again")


def writer(path: Path) -> Engine:
    """Return an engine whose every transaction begins with BEGIN IMMEDIATE.

    A deferred transaction that reads first fails when another connection writes in between.
    """
    engine = create_engine(
        "sqlite://",
        creator=lambda: connect(path, "rw"),
        poolclass=QueuePool,
        pool_size=1,
        max_overflow=8,
    )
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def reader(path: Path, keep: bool, wait: float = BUSY_SECONDS) -> Engine:
    """Return an engine that cannot write; a transaction sees one state of the database.

    Args:
        path: The database file.
        keep: Hold the connection between uses. A process that only reads must not: a WAL database
            that anyone has open cannot go back to DELETE mode.
        wait: Seconds to wait for another connection's lock.
    """
    pool = (
        {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 8}
        if keep
        else {"poolclass": NullPool}
    )
    engine = create_engine("sqlite://", creator=lambda: connect(path, "ro", wait), **pool)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


def set_journal_mode(path: Path, mode: str) -> None:
    """Change between WAL and DELETE mode, unless another process has the database open."""
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(connect(path, "rw", timeout=1.0)) as connection,
    ):
        connection.execute(f"PRAGMA journal_mode = {mode}")


def identity(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a file from another of its name; None if there is none."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def at_rest(path: Path) -> bool:
    """Return whether the database is not in WAL mode: one file, without side files.

    Source: bytes 18 and 19 of the header (sqlite.org/fileformat.html).
    """
    with path.open("rb") as file:
        return file.read(20)[18:] != b"\x02\x02"


def network_filesystem(path: Path) -> str | None:
    """Return the type of the network file system that `path` is on.

    A file system in user space (fuse) counts as one unless it is known to be local: whether its
    locks work depends on its program.

    Returns:
        None on a local file system, or if the system does not say.
    """
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    best, kind = Path("/"), ""
    resolved = path.resolve()
    for line in mounts:
        _, mounted, type_, *_ = line.split(" ")
        mount = Path(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mounted))
        if resolved.is_relative_to(mount) and len(mount.parts) >= len(
            best.parts
        ):  # a later mount covers an earlier one
            best, kind = mount, type_
    user_space, _, program = kind.partition(".")
    foreign = user_space == "fuse" and not program.startswith(_LOCAL_FUSE)
    return kind if foreign or kind.startswith(_NETWORK) else None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file next to the database, and remove it afterwards."""
    name = path.with_name(path.name + ".lock")
    while True:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if (
                    os.fstat(fd).st_ino == name.stat().st_ino
                ):  # else the holder before removed the file that we waited for
                    try:
                        yield
                    finally:
                        name.unlink()
                    return
        finally:
            os.close(fd)


class Damaged(AblateError):
    """Pages of the file are missing or inconsistent: nothing that is read can be trusted."""

    def __init__(self, path: Path, how: str):
        super().__init__(f"database {path} is damaged; `ablate db check` says what to do ({how})")
        self.how = how


_MEANING = {
    sqlite3.SQLITE_READONLY_ROLLBACK: (
        "was left in mid-commit by a killed process; a user with write access must open it once"
    ),
    sqlite3.SQLITE_BUSY: "is locked: another process has held it for {waited:g} s",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_READONLY: "cannot be written: it, or its folder, is read-only",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: check the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "cannot be opened: no permission",
    sqlite3.SQLITE_IOERR: "could not be read or written: the disk reports an error",
    sqlite3.SQLITE_NOTADB: "is not a SQLite database",
}


@contextlib.contextmanager
def translate_errors(path: Path, waited: float = BUSY_SECONDS) -> Iterator[None]:
    """Turn errors of the database into `AblateError`, as `explain` does."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        clear = explain(error, path, waited)
        if clear is None:
            raise
        raise clear from error


def explain(error: BaseException, path: Path, waited: float = BUSY_SECONDS) -> AblateError | None:
    """Return a one-line error for what the user can correct.

    Args:
        error: What the driver or SQLAlchemy raised.
        path: The database file.
        waited: Timeout of the connection, in seconds.

    Returns:
        None for an error of this program.
    """
    driver = getattr(error, "orig", error)
    code = getattr(driver, "sqlite_errorcode", 0)
    if code & 0xFF == sqlite3.SQLITE_CORRUPT:
        return Damaged(path, str(driver))
    meaning = _MEANING.get(code) or _MEANING.get(code & 0xFF)
    return (
        AblateError(f"database {path} {meaning.format(waited=waited)} ({driver})")
        if meaning
        else None
    )
