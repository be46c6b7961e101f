"""A full or read-only disk: one clear line, no corruption, and the study resumes later."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_helpers import Run
from launch_helpers import Launcher, content, launch, rows, small_plan, use_stub

from ablate import store
from ablate.errors import AblateError
from ablate.plan import Plan
from ablate.store import status
from ablate.study_run import Outcome

DONE = Outcome({"complete": 4}, 0)
STEPS = 300


pytestmark = pytest.mark.usefixtures("stub")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return small_plan(tmp_path, [1e-3, 2e-3], 2, STEPS)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple]]:
    with pytest.MonkeyPatch.context() as patch:
        use_stub(patch)
        folder = tmp_path_factory.mktemp("undisturbed")
        assert Launcher(small_plan(folder, [1e-3, 2e-3], 2, STEPS), folder / "a.db").wait() == 0
    return content(folder / "a.db")


class Disk:
    """A small file system of its own in memory."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir()

    def mount(self, kilobytes: int) -> None:
        if self._mount(f"size={kilobytes}k", "tmpfs"):
            pytest.skip("mounting a small file system takes a privilege that this process has not")

    def grow(self) -> None:
        assert not self._mount("remount,size=64m")

    def protect(self, options: str) -> None:
        assert not self._mount(f"remount,{options}")

    def remove(self) -> None:
        subprocess.run(["umount", str(self.folder)], capture_output=True, check=False)

    def _mount(self, options: str, kind: str = "") -> int:
        command = ["mount", *(["-t", kind, kind] if kind else []), "-o", options, str(self.folder)]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode
        except FileNotFoundError:
            return 1


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path / "disk")
    yield made
    made.remove()


# full in creation, in registering, in the first run, in a later one
@pytest.mark.parametrize("kilobytes", [64, 200, 300, 340])
def test_a_full_disk_is_one_line_and_the_study_goes_on_when_there_is_room(
    plan: Plan, disk: Disk, undisturbed, kilobytes
) -> None:
    path = disk.folder / "a.db"
    disk.mount(kilobytes)
    with pytest.raises(AblateError, match=r"a\.db cannot grow: the disk is full"):
        launch(plan, path)
    disk.grow()
    assert launch(plan, path)[0] == DONE
    assert content(path) == undisturbed
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    lost = rows(path, "SELECT error FROM attempt WHERE status = 'dead'")
    assert all("the disk is full" in error for (error,) in lost), lost


def test_a_worker_without_room_fails_no_run(
    plan: Plan, disk: Disk, undisturbed, tmp_path: Path
) -> None:
    """Its journal lies on a disk of its own, which is full while the database's is not."""
    path = tmp_path / "a.db"
    disk.mount(20)
    (tmp_path / "a.journals").symlink_to(disk.folder)
    with pytest.raises(AblateError, match=r"journal, .*: No space left on device"):
        launch(plan, path)
    assert rows(path, "SELECT DISTINCT status FROM attempt") == [("stopped",)]
    disk.grow()
    assert launch(plan, path)[0] == DONE
    assert content(path) == undisturbed


def test_what_is_read_only_is_read_and_not_run(plan: Plan, disk: Disk) -> None:
    path = disk.folder / "a.db"
    disk.mount(8192)
    launch(plan, path)
    disk.protect("ro")
    with store.open(str(path)) as db:
        assert status.studies(db)[0].survey.counts == {"complete": 4}
    with pytest.raises(AblateError, match=r"a\.db cannot be written: its file system is read-only"):
        launch(plan, path)
    disk.protect("rw")
    assert launch(plan, path)[0] == DONE


def test_a_folder_of_journals_that_cannot_be_written_is_one_line(
    plan: Plan, tmp_path: Path
) -> None:
    (tmp_path / "a.journals").symlink_to("/proc")
    with pytest.raises(AblateError, match=r"folder .*a\.journals cannot be written"):
        launch(plan, tmp_path / "a.db")
    (tmp_path / "a.journals").unlink()
    assert launch(plan, tmp_path / "a.db")[0] == DONE


def test_a_clock_that_was_set_back_changes_nothing(
    plan: Plan, tmp_path: Path, undisturbed, monkeypatch
) -> None:
    path = tmp_path / "a.db"
    monkeypatch.setenv("STUB_DELAY", "0.01")
    first = Launcher(plan, path)
    while not rows(path, "SELECT 1 FROM metric LIMIT 1"):
        time.sleep(0.01)
    first.kill(9)
    first.wait()
    monkeypatch.setenv("STUB_DELAY", "0")
    yesterday = time.time() - 86_400
    monkeypatch.setattr(time, "time", lambda: yesterday)
    assert launch(plan, path)[0] == DONE
    assert content(path) == undisturbed
    assert rows(
        path, "SELECT count(*), count(DISTINCT run_id) FROM attempt WHERE status = 'complete'"
    ) == [(4, 4)]


def test_an_export_to_wandb_without_room_is_one_line(
    plan: Plan, disk: Disk, tmp_path: Path, ablate: Run
) -> None:
    pytest.importorskip("wandb")
    launch(plan, tmp_path / "a.db")
    disk.mount(60)
    place, db = str(disk.folder), str(tmp_path / "a.db")
    code, _, said = ablate("export", plan.study.name, "--to", "wandb-offline", place, "--db", db)
    assert code == 2 and said.count("\n") == 1 and "No space left" in said
