"""Opening a results database: where it may be, what is refused, in what state it is left."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from pathlib import Path

import pytest
from store_plans import execute, killed_writer, names, rows

from ablate import store
from ablate.cli.database import existing
from ablate.errors import AblateError
from ablate.store import migrate, sqlite


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ablate.db"


def _state(path: Path) -> tuple[bytes, list[str]]:
    return path.read_bytes(), names(path.parent)


def test_default_path_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ABLATE_DB", raising=False)
    store.open(create=True).close()
    assert (tmp_path / "results" / "ablate.db").exists()
    monkeypatch.setenv("ABLATE_DB", "other.db")
    assert store.locate() == Path("other.db")
    assert store.locate("sqlite:///a/b.db") == Path("a/b.db")
    assert store.locate("sqlite:////a/b.db") == Path("/a/b.db")


@pytest.mark.parametrize(
    "url", ["postgresql://host/db", "sqlite://", "sqlite:///:memory:", "://", "what://x"]
)
def test_url_that_names_no_file_is_refused(url: str) -> None:
    with pytest.raises(AblateError):
        store.open(url, create=True)


def test_file_at_rest_is_one_file_in_delete_mode(path: Path) -> None:
    with store.open(str(path), create=True) as db, db.begin() as connection:
        connection.exec_driver_sql("INSERT INTO series (name, unit, goal) VALUES ('a', '', '')")
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    assert names(path.parent) == ["ablate.db"]
    assert rows(path, "PRAGMA journal_mode") == [("delete",)]
    assert rows(path, "SELECT name FROM series") == [("a",)]


def test_write_transaction_locks_at_once_and_rolls_back(path: Path) -> None:
    with store.open(str(path), create=True) as db:
        with db.begin(), pytest.raises(sqlite3.OperationalError):
            # the lock is held from the start
            sqlite3.connect(path, timeout=0).execute("BEGIN IMMEDIATE")
        with pytest.raises(ZeroDivisionError), db.begin() as connection:
            connection.exec_driver_sql("INSERT INTO series (name, unit, goal) VALUES ('a', '', '')")
            raise ZeroDivisionError
    assert rows(path, "SELECT count(*) FROM series") == [(0,)]


def test_reading_sees_one_state_and_cannot_write(path: Path) -> None:
    with store.open(str(path), create=True) as db, db.read() as reader:
        assert reader.exec_driver_sql("SELECT count(*) FROM series").scalar() == 0
        with db.begin() as writer:
            writer.exec_driver_sql("INSERT INTO series (name, unit, goal) VALUES ('a', '', '')")
        assert reader.exec_driver_sql("SELECT count(*) FROM series").scalar() == 0
        with pytest.raises(Exception, match="readonly"):
            reader.exec_driver_sql("DELETE FROM series")


def test_opening_to_read_changes_nothing(path: Path) -> None:
    store.open(str(path), create=True).close()
    before = _state(path)
    with store.open(str(path)) as db, db.read() as connection:
        connection.exec_driver_sql("SELECT * FROM runs").all()
    assert _state(path) == before


@pytest.mark.parametrize("create", [False, True])
def test_one_clear_line_for_what_is_no_database_of_ours(path: Path, create: bool) -> None:
    path.write_text("not a database, but long enough to be looked at as one" * 20)
    before = _state(path)
    with pytest.raises(AblateError, match="not a SQLite database"):
        store.open(str(path), create=create)
    assert _state(path) == before

    path.unlink()
    execute(path, "CREATE TABLE photos (id)")
    before = _state(path)
    with pytest.raises(AblateError, match="another program"):
        store.open(str(path), create=create)
    assert _state(path) == before

    with pytest.raises(AblateError, match="is a folder"):
        store.open(str(path.parent), create=create)


@pytest.mark.parametrize("create", [False, True])
def test_newer_database_is_refused_untouched(path: Path, create: bool) -> None:
    store.open(str(path), create=True).close()
    execute(path, "UPDATE ablate_version SET version_num = '9999'")
    before = _state(path)
    with pytest.raises(AblateError, match=r"newer ablate \(schema 9999") as error:
        store.open(str(path), create=create)
    assert "\n" not in str(error.value)
    assert _state(path) == before


def test_absent_file_or_folder(path: Path) -> None:
    with pytest.raises(AblateError, match="does not exist"):
        store.open(str(path))
    store.open(str(path.parent / "absent" / "deep" / "x.db"), create=True).close()
    (path.parent / "file").touch()
    with pytest.raises(AblateError, match=r"cannot be created: folder .*file"):
        store.open(str(path.parent / "file" / "x.db"), create=True)
    path.touch()
    with pytest.raises(AblateError, match="empty"):
        store.open(str(path))
    with store.open(str(path), create=True) as db, db.read() as connection:
        assert connection.exec_driver_sql("SELECT * FROM runs").all() == []


def test_wal_database_on_read_only_media_can_be_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.open(str(path), create=True).close()
    rows(path, "PRAGMA journal_mode = WAL")
    monkeypatch.setattr(os, "access", lambda name, mode: mode == os.R_OK)
    with store.open(str(path)) as db, db.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM run").scalar() == 0
    assert names(path.parent) == ["ablate.db"]


def test_full_disk_and_lock_are_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.0)
    connect = sqlite.connect
    monkeypatch.setattr(
        sqlite, "connect", lambda path, mode, timeout=0.0: connect(path, mode, timeout)
    )
    with store.open(str(path), create=True) as db:
        with (
            db.begin() as connection,
            pytest.raises(AblateError, match="disk is full"),
            sqlite.translate_errors(path),
        ):
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
            connection.exec_driver_sql("CREATE TABLE big AS SELECT randomblob(1000000)")
        with db.begin(), pytest.raises(AblateError, match="is locked"), db.begin():
            pass
        with db.begin() as connection:  # and it goes on
            connection.exec_driver_sql("INSERT INTO series (name, unit, goal) VALUES ('a', '', '')")


def test_a_folder_that_is_closed_is_not_taken_for_one_without_a_database(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Python 3.14 `Path.exists` is False there."""

    def stat(self: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    with (
        monkeypatch.context() as patch,
        pytest.raises(AblateError, match=r"ablate\.db cannot be opened: Permission denied"),
    ):
        patch.setattr(Path, "exists", lambda self: False)
        patch.setattr(Path, "stat", stat)
        existing(str(path))
    assert existing(str(path)) is None


NETWORK = ["nfs4", "cifs", "lustre", "9p", "beegfs_nodev", "fuse.sshfs", "fuse.vmhgfs-fuse"]
LOCAL = ["ext4", "tmpfs", "overlay", "fuseblk", "autofs", "fuse.mergerfs"]


@pytest.mark.parametrize("kind", NETWORK + LOCAL)
def test_network_file_system_is_recognised_and_named(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = path.parent / "mounts"
    mounts.write_text(
        f"/dev/vda / ext4 rw 0 0\nserver:/home {path.parent} {kind} rw 0 0\nproc /proc proc rw"
        " 0 0\n"
    )
    monkeypatch.setattr(sqlite, "MOUNTS", mounts)
    assert sqlite.network_filesystem(path) == (kind if kind in NETWORK else None)
    assert sqlite.network_filesystem(Path("/elsewhere/x.db")) is None


def test_the_mount_that_counts_is_the_one_on_top(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, mounts = path.parent / "ho me", path.parent / "mounts"
    spaced = str(home).replace(" ", "\\040")
    mounts.write_text(
        f"server:/ / nfs4 rw 0 0\nauto {spaced} autofs rw 0 0\nserver:/a {spaced} lustre rw 0"
        f" 0\n/dev/b {spaced}/local xfs rw 0 0\n/dev/c {spaced}work xfs rw 0 0\nserver:/d"
        f" {home.parent}/back\\134slash cifs rw 0 0\n"
    )
    monkeypatch.setattr(sqlite, "MOUNTS", mounts)
    found = {
        name: sqlite.network_filesystem(home.parent / name)
        for name in (
            "x.db",
            "ho me/x.db",
            "ho me/local/x.db",
            "ho me/locally/x.db",
            "ho mework/x.db",
            "back\\slash/x.db",
        )
    }
    assert list(found.values()) == ["nfs4", "lustre", None, "lustre", None, "cifs"]
    (home / "local").mkdir(parents=True)
    (home.parent / "link").symlink_to(home / "local")
    assert sqlite.network_filesystem(home.parent / "link" / "x.db") is None, (
        "where the link leads is local"
    )
    monkeypatch.setattr(sqlite, "MOUNTS", mounts / "absent")
    assert sqlite.network_filesystem(path) is None


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_on_a_network_file_system_there_is_no_log(
    path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the database comes from a local disk, on which its writer was killed."""
    store.open(str(path), create=True).close()
    rows(path, f"PRAGMA journal_mode = {mode}")
    mounts = path.parent / "mounts"
    mounts.write_text(f"server:/home {path.parent} nfs4 rw 0 0\n")
    monkeypatch.setattr(sqlite, "MOUNTS", mounts)
    with store.open(str(path), create=True) as db, db.begin() as connection:
        (note,) = db.notes
        assert "network file system (nfs4)" in note and "\n" not in note
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "delete"


def test_lock_file_is_waited_for_and_gone(path: Path) -> None:
    order = []
    with sqlite.locked(path):

        def wait() -> None:
            store.open(str(path), create=True).close()
            order.append("opened")

        waiter = threading.Thread(target=wait)
        waiter.start()
        waiter.join(0.3)
        order.append("released")
    waiter.join()
    assert order == ["released", "opened"]
    assert names(path.parent) == ["ablate.db"]


def test_versions_are_those_of_the_scripts() -> None:
    scripts = sorted(script.name[:4] for script in (migrate.SCRIPTS / "versions").glob("[0-9]*.py"))
    assert scripts[-1] == migrate.HEAD


def test_a_reader_finds_what_was_there_before_a_commit_that_was_killed(path: Path) -> None:
    """The writer died in its commit; a read-only connection may not roll it back."""
    store.open(str(path), create=True).close()
    many = (
        "WITH RECURSIVE n(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM n LIMIT 2000) INSERT INTO"
        " series (name, unit, goal) SELECT printf('%0500d', k), '', 'min' FROM n"
    )
    pragmas = "PRAGMA journal_mode = DELETE", "PRAGMA cache_size = 1"
    killed_writer(path, *pragmas, "BEGIN IMMEDIATE", many)
    assert path.with_name(path.name + "-journal").stat().st_size > 0
    with store.open(str(path)) as db, db.read() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM series").scalar_one() == 0


@pytest.mark.parametrize("how", ["deleted or moved", "replaced"])
def test_a_file_that_goes_away_while_it_is_in_use_is_one_line(path: Path, how: str) -> None:
    with store.open(str(path), create=True) as db:
        with db.read() as connection:
            connection.exec_driver_sql("SELECT 1 FROM run")
        for file in path.parent.glob("ablate.db*"):
            file.rename(path.parent / f"old-{file.name}")
        if how == "replaced":
            path.write_bytes((path.parent / "old-ablate.db").read_bytes())
        for use in (db.begin, db.read):
            with pytest.raises(AblateError, match=how), use():
                pass
    assert path.exists() == (how == "replaced")


def test_a_reader_meets_a_file_that_was_replaced(path: Path) -> None:
    store.open(str(path), create=True).close()
    with store.open(str(path)) as db:
        copy = path.with_name("copy")
        copy.write_bytes(path.read_bytes())
        copy.rename(path)
        with db.read() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM run").scalar() == 0
