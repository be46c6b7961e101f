"""Permissions: a readable database is read, and what is forbidden is one line.

Root may do everything, so as root the commands are those of real other users; as anyone else of
whoever runs the tests, and what takes a second user is left out.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import QUICKSTART, measured_quickstart
from other_user import OWNER, STRANGER, Answer, as_user, give, need_other_users, open_folder
from store_plans import claim_next, execute, killed_writer, names, plan_of, rows, train

from ablate import store
from ablate.store import migrate, owners, register

COUNT = "query 'SELECT count(*) AS runs, sum(loss) AS loss FROM runs' --format csv"
COUNTED = "runs,loss\n25,100.0\n"
READS = ("status", "show 1", COUNT, "db check", "db upgrade", "export quickstart out/x.csv")
WRITES = (
    f"run {QUICKSTART} --device cpu",
    "analyse quickstart",
    "db thin",
    "db forget quickstart --yes",
    "db check --repair",
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the quickstart's results."""
    folder = tmp_path_factory.mktemp("measured")
    measured_quickstart(folder / "ablate.db", lambda cell, seed: 2.0 + seed)
    (folder / "ablate.journals").mkdir()
    return folder


@pytest.fixture
def place() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture
def owner() -> int | None:
    """Somebody who is not root."""
    if os.geteuid() != 0:
        return None
    need_other_users()
    return OWNER


@pytest.fixture
def other_user(owner: int | None) -> int:
    if owner is None:
        pytest.skip("only root can become two other users")
    return STRANGER


def _copy(measured: Path, folder: Path, owner: int | None) -> Path:
    """The database in `folder`, which everybody may look into; all of it is `owner`'s."""
    shutil.copytree(measured, folder)
    folder.chmod(0o755)
    give(folder, owner)
    return folder / "ablate.db"


def _state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return name → owner and content of files, without the log's index, which readers write."""
    return {
        path.name: (path.stat().st_uid, path.read_bytes())
        for path in folder.iterdir()
        if path.is_file() and not path.name.endswith("-shm")
    }


def _expect_reads(answers: list[Answer]) -> None:
    assert [(code, err) for code, _, err in answers] == [(0, "")] * len(READS)
    assert answers[READS.index(COUNT)][1] == COUNTED
    assert "25 rows" in answers[-1][1]


def _expect_one_line(answers: list[Answer], *words: str) -> None:
    for code, _, err in answers:
        assert code == 2 and err.startswith("ablate: ") and err.count("\n") == 1, err
        assert any(word in err for word in words), err


# -- somebody else's database ----------------------------------------------------------------------


def test_a_stranger_reads_a_database_in_whatever_state_it_is(
    measured: Path, place: Path, owner: int | None, other_user: int
) -> None:
    """In a folder where he may write nothing, and once in one where he may, and must not."""
    files = {
        name: _copy(measured, place / name, owner)
        for name in ("rest", "wal", "shared", "killed", "open")
    }
    for name in ("wal", "shared"):
        rows(files[name], "PRAGMA journal_mode = WAL")
    files["shared"].parent.chmod(0o777)
    log = "UPDATE study SET question = 'in the log'"  # a commit that is only in the log
    killed_writer(files["killed"], "PRAGMA journal_mode = WAL", log)
    assert "ablate.db-wal" in names(files["killed"].parent)
    for path in files.values():
        give(path.parent, owner)
    with store.open(str(files["open"]), create=True) as db:
        with db.begin() as connection:
            connection.exec_driver_sql("UPDATE study SET question = 'in the log'")
        before = {name: _state(path.parent) for name, path in files.items()}
        reads = [f"{line} --db {name}/ablate.db" for name in files for line in READS]
        answers = as_user(other_user, place, *reads)
        report = as_user(other_user, place, "report quickstart --out out/r --db open/ablate.db")
        assert {name: _state(path.parent) for name, path in files.items()} == before
    for number in range(len(files)):
        _expect_reads(answers[number * len(READS) : (number + 1) * len(READS)])
    assert [(code, text.startswith("in the log\n"), err) for code, text, err in report] == [
        (0, True, "")
    ]
    answers = as_user(
        owner, place, *(f"analyse quickstart --db {name}/ablate.db" for name in files)
    )
    assert [(code, err) for code, _, err in answers] == [(0, "")] * len(files), (
        "nothing of a other_user's is in the owner's way"
    )
    assert all(names(path.parent) == ["ablate.db", "ablate.journals"] for path in files.values())


def test_a_stranger_writes_nothing_and_may_take_a_copy(
    measured: Path, place: Path, owner: int | None, other_user: int
) -> None:
    path = _copy(measured, place / "a", owner)
    before = _state(path.parent)
    *refused, merged, counted, back = as_user(
        other_user,
        place,
        *(f"{line} --db a/ablate.db" for line in WRITES),
        "db merge a/ablate.db --db out/own.db",
        f"{COUNT} --db out/own.db",
        "db merge out/own.db --db a/ablate.db",
    )
    _expect_one_line([*refused, back], "a/ablate.db cannot be written: no permission")
    assert _state(path.parent) == before
    assert merged[0] == counted[0] == 0 and counted[1] == COUNTED


def test_another_user_learns_of_a_commit_that_only_the_owner_can_roll_back(
    measured: Path, place: Path, owner: int | None, other_user: int
) -> None:
    path = _copy(measured, place / "a", owner)
    half, fields = "UPDATE run SET fields = fields || fields", "SELECT fields FROM run ORDER BY id"
    before = rows(path, fields)
    killed_writer(path, "PRAGMA cache_size = 1", "BEGIN IMMEDIATE", half)
    assert path.with_name("ablate.db-journal").stat().st_size > 0
    give(path.parent, owner)
    _expect_one_line(
        as_user(other_user, place, "status --db a/ablate.db", f"{COUNT} --db a/ablate.db"),
        "mid-commit",
    )
    assert as_user(owner, place, "db check --db a/ablate.db")[0][0] == 0
    assert as_user(other_user, place, f"{COUNT} --db a/ablate.db") == [(0, COUNTED, "")]
    assert rows(path, fields) == before, "the commit is rolled back"


# -- one's own -------------------------------------------------------------------------------------


def test_what_is_closed_is_one_line_and_works_when_it_is_open_again(
    measured: Path, place: Path, owner: int | None
) -> None:
    path = _copy(measured, place / "a", owner)
    before = _state(path.parent)
    reads = [
        f"{line} --db a/ablate.db"
        for line in (*READS, "report quickstart --out out/r", f"plan {QUICKSTART}")
    ]
    writes = [f"{line} --db a/ablate.db" for line in WRITES]
    for closed, mode, refused, words in (
        (path, 0o000, reads + writes, ("no permission",)),
        (path.parent, 0o000, reads + writes, ("a/ablate.db cannot be opened: Permission denied",)),
        (path, 0o444, writes, ("cannot be written: no permission",)),
        (path.parent, 0o555, writes, ("folder a is not writable",)),
    ):
        usual = closed.stat().st_mode
        closed.chmod(mode)
        answers = as_user(owner, place, *refused)
        closed.chmod(usual)
        _expect_one_line(answers, *words)
        assert _state(path.parent) == before
    _expect_reads(as_user(owner, place, *reads[: len(READS)]))


def _die_running(path: Path) -> Path:
    """Run 1 as a launcher leaves it that dies with its worker; its journal."""
    owner = f"{socket.gethostname()}:1:x"
    execute(
        path,
        "UPDATE attempt SET status = 'running', owner = ?, journal = '0123456789ab-1-1.jsonl'"
        " WHERE run_id = 1",
        owner,
    )
    execute(path, "UPDATE run SET status = 'running' WHERE id = 1")
    journal = path.parent / "ablate.journals" / "0123456789ab-1-1.jsonl"
    journal.write_text(
        '{"event":"start","step":0}\n{"event":"metrics","steps":[1],"series":{"loss":[2.5]}}\n'
    )
    return journal


def test_a_closed_journal_is_not_taken_for_a_dead_run(
    measured: Path, place: Path, owner: int | None
) -> None:
    path = _copy(measured, place / "a", owner)
    journal = _die_running(path)
    give(path.parent, owner)
    status, repair = "status quickstart --db a/ablate.db", "db check --repair --db a/ablate.db"
    for closed in (journal, journal.parent):
        usual = closed.stat().st_mode
        closed.chmod(0o000)
        (code, out, _), *refused = as_user(
            owner, place, status, f"run {QUICKSTART} --device cpu --db a/ablate.db", repair
        )
        closed.chmod(usual)
        assert code == 0 and "worker no longer run" not in out
        _expect_one_line(refused, "Permission denied")
        assert rows(path, "SELECT status, journal_offset FROM attempt WHERE run_id = 1") == [
            ("running", 0)
        ]
    (code, out, _), (repaired, _, _) = as_user(owner, place, status, repair)
    assert code == repaired == 0 and "worker no longer run" in out
    assert rows(path, "SELECT status FROM attempt WHERE run_id = 1") == [("dead",)]
    assert rows(path, "SELECT step, value FROM metric") == [(1, 2.5)]


def test_what_the_check_could_not_look_at_is_no_good_news(
    measured: Path, place: Path, owner: int | None
) -> None:
    path = _copy(measured, place / "a", owner)
    journals = path.parent / "ablate.journals"
    journals.chmod(0o000)
    ((code, out, _),) = as_user(owner, place, "db check --db a/ablate.db")
    journals.chmod(0o755)
    assert code == 1 and "no permission to read folder" in out


def test_a_lock_of_somebody_else_in_a_shared_folder_stays(
    measured: Path, place: Path, owner: int | None, other_user: int
) -> None:
    """Where each may delete his own files alone, as in /tmp."""
    path = _copy(measured, place / "a", owner)
    journals = path.parent / "ablate.journals"
    lock = journals / f"{socket.gethostname()}-1-x.owner"
    lock.touch()
    give(journals, other_user)
    journals.chmod(0o1777)
    ((code, out, err),) = as_user(owner, place, "db check --repair --db a/ablate.db")
    assert (code, err) == (1, "") and lock.name in out and "deleted" not in out
    assert lock.exists()
    ((code, out, _),) = as_user(other_user, place, "db check --db a/ablate.db")
    assert code == 1 and lock.name in out


@pytest.mark.parametrize(("mask", "mode"), [(0o002, 0o664), (0o022, 0o644), (0o077, 0o600)])
def test_files_follow_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        path = tmp_path / "new" / "ablate.db"
        with store.open(str(path), create=True) as db, owners.Owner.here(db) as owner:
            (claim, *_) = claim_next(db, register.register(db, plan_of()), owner, 1)
            train(claim)
            found = {
                str(file): file.stat().st_mode & 0o777
                for file in (tmp_path / "new").rglob("*")
                if file.is_file()
            }
            assert len(found) >= 3 and set(found.values()) == {mode}, found
        assert path.stat().st_mode & 0o777 == mode
        assert migrate.backup(path, "0003").stat().st_mode & 0o777 == mode
    finally:
        os.umask(before)
