"""All that is SQLite's own: connections, pragmas, locks, what its error codes mean. Another
database is another such module.

A database is in WAL mode while a writer has it open, so that no reader ever waits for a writer nor
a writer for a reader, and in DELETE mode at rest, so that it is one file that can be committed,
copied and read on read-only media. On a network file system, where WAL does not work, it stays in
DELETE mode. No promise rests on the mode.
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

# Types as Linux names them, by how they begin: over a network, shared by machines, or shared by a
# machine and its host.
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
    """A driver connection that begins no transaction by itself. `mode`: "ro" reads, "rw" writes,
    "rwc" also creates.
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
        connection.execute("PRAGMA cache_size = -32768")
        if mode != "ro" and connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal":
            connection.execute(
                "PRAGMA synchronous = NORMAL"
            )  # a commit lost with the power is ingested again from its journal
    except sqlite3.Error as error:
        connection.close()
        if (
            mode != "ro"
            or error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_READONLY
            or not os.access(path, os.W_OK)
        ):
            raise
        connect(
            path, "rw", timeout
        ).close()  # a writer was killed amid a commit: only one that may write can roll it back
        return connect(path, mode, timeout)
    return connection


def _side_files_would_harm(path: Path) -> bool:
    """Whether reading would make a WAL database's side files, which nobody has open, where they
    cannot be made, or in the way of the database's owner: he could not write into those of somebody
    else.
    """
    return not (
        (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))
        or path.with_name(path.name + "-wal").exists()
        or at_rest(path)
    )


@contextlib.contextmanager
def consistent_read(path: Path) -> Iterator[None]:
    """Around reading with `connect`. What it opens as immutable it reads without a lock, and so
    maybe one half from before and one from after a commit: `AblateError` where the file changed
    meanwhile. A log beside it changes nothing that is read.
    """
    if not _side_files_would_harm(path):
        yield
        return
    before = path.stat().st_mtime_ns
    try:
        yield
    finally:
        if path.stat().st_mtime_ns != before:
            raise AblateError(f"database {path} was written while it was read; do this again")


def writer(path: Path) -> Engine:
    """An engine whose every transaction begins with BEGIN IMMEDIATE: one that reads first would
    fail under others' writes.
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


def reader(path: Path, keep: bool) -> Engine:
    """An engine that cannot write; a transaction sees one state of the database throughout.

    With `keep` it holds its connection between uses. A process that only looks must not: a WAL
    database that anyone has open cannot be put to rest.
    """
    pool = (
        {"poolclass": QueuePool, "pool_size": 1, "max_overflow": 8}
        if keep
        else {"poolclass": NullPool}
    )
    engine = create_engine("sqlite://", creator=lambda: connect(path, "ro"), **pool)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


def set_journal_mode(path: Path, mode: str) -> None:
    """Change between WAL and DELETE where nobody else has the database open; leave it as it is
    otherwise.
    """
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(connect(path, "rw", timeout=1.0)) as connection,
    ):
        connection.execute(f"PRAGMA journal_mode = {mode}")


def at_rest(path: Path) -> bool:
    """Whether the database is one file, without side files; as its header tells
    (sqlite.org/fileformat.html, offset 18).
    """
    with path.open("rb") as file:
        return file.read(20)[18:] != b"\x02\x02"


def network_filesystem(path: Path) -> str | None:
    """The type of the network file system that `path` is on; None on a local one, or where the
    system does not tell.

    One in user space (fuse) counts as such unless it is known to be local: its locks are what its
    program makes of them.
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
        ):  # the last one lies on top
            best, kind = mount, type_
    user_space, _, program = kind.partition(".")
    foreign = user_space == "fuse" and not program.startswith(_LOCAL_FUSE)
    return kind if foreign or kind.startswith(_NETWORK) else None


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file beside the database; it is gone afterwards."""
    name = path.with_name(path.name + ".lock")
    while True:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
    """Pages of the database's file are missing or contradict each other: nothing that is read from
    it can be trusted.
    """

    def __init__(self, path: Path, how: str):
        super().__init__(f"database {path} is damaged; `ablate db check` says what to do ({how})")
        self.how = how


_MEANING = {
    sqlite3.SQLITE_READONLY_ROLLBACK: (
        "was left amid a commit by a killed process; who may write it has to open it once"
    ),
    sqlite3.SQLITE_BUSY: "is locked: another process has held it for {waited:g} s",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full",
    sqlite3.SQLITE_READONLY: "cannot be written: it, or its folder, is read-only",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: look at the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "cannot be opened: no permission",
    sqlite3.SQLITE_IOERR: "could not be read or written: the disk reports an error",
    sqlite3.SQLITE_NOTADB: "is not a SQLite database",
}


@contextlib.contextmanager
def translate_errors(path: Path, waited: float = BUSY_SECONDS) -> Iterator[None]:
    """Turn the database's errors into `AblateError`, as `explain` does."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as error:
        clear = explain(error, path, waited)
        if clear is None:
            raise
        raise clear from error


def explain(error: BaseException, path: Path, waited: float = BUSY_SECONDS) -> AblateError | None:
    """One line for what the user can put right; None for what is a mistake of ours. `waited`: the
    connection's timeout.
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
