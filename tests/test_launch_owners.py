"""Launchers of several hosts on one database: who is alive, and whose runs are taken over."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launch_helpers import Launcher, launch, rows, small_plan, use_worker, wait_for, workers

from ablate import store
from ablate.journal import read
from ablate.launch import pool
from ablate.store.owners import Owner, mark_dead

LEASE = 0.6


@pytest.fixture(autouse=True)
def leases(stub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Owner.here
    monkeypatch.setenv("STUB_DELAY", "0.02")
    monkeypatch.setenv("STUB_HEARTBEAT", "0.1")
    monkeypatch.setattr(pool, "CHECK", 0.1)
    monkeypatch.setattr(Owner, "here", lambda db, **more: here(db, lease=LEASE, **more))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Launcher]:
    """Starts a launcher that believes to be on another host, where nobody here can see whether it
    lives; it has a run at work.
    """

    def start(steps: int) -> Launcher:
        plan, path = small_plan(tmp_path, [1e-3], steps=steps), tmp_path / "a.db"
        with monkeypatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda: "elsewhere")
            far = Launcher(plan, path)
        wait_for(lambda: rows(path, "SELECT 1 FROM metric"))
        return far

    return start


def test_a_launcher_elsewhere_that_lives_keeps_its_runs(
    tmp_path: Path, elsewhere: Callable[[int], Launcher]
) -> None:
    far = elsewhere(100)  # which takes several leases
    assert launch(small_plan(tmp_path, [1e-3], steps=100), tmp_path / "a.db")[0].counts == {
        "complete": 1
    }
    assert far.wait() == 0
    assert rows(tmp_path / "a.db", "SELECT n, status, owner LIKE 'elsewhere:%' FROM attempt") == [
        (1, "complete", 1)
    ]
    assert rows(tmp_path / "a.db", "SELECT count(*) FROM metric") == [(2 * 100,)]


def test_a_launcher_elsewhere_that_hangs_loses_its_runs_after_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[[int], Launcher]
) -> None:
    far, path = elsewhere(1000), tmp_path / "a.db"
    (worker,) = workers(far.pid)
    far.kill(signal.SIGSTOP)  # its host hangs, and its worker
    os.kill(worker, signal.SIGSTOP)
    monkeypatch.setenv("STUB_DELAY", "0")
    near = Launcher(small_plan(tmp_path, [1e-3], steps=1000), path)
    begun = time.monotonic()
    wait_for(lambda: len(rows(path, "SELECT 1 FROM attempt")) == 2)
    assert time.monotonic() - begun > LEASE
    assert near.wait() == 0
    os.kill(worker, signal.SIGCONT)
    far.kill(signal.SIGCONT)  # and wakes up: the run is another's
    assert far.wait() == 0
    said = far.output.read_text()
    assert "another launcher took it over and finished it" in said and "dead" not in said, said
    assert not Path(f"/proc/{worker}").exists()
    tries = rows(path, "SELECT status, owner LIKE 'elsewhere:%', error FROM attempt ORDER BY n")
    assert tries == [
        ("dead", 1, f"its worker on elsewhere sent no heartbeat for {LEASE:g} s"),
        ("complete", 0, None),
    ]
    assert rows(path, "SELECT count(*) FROM metric") == [(2 * 1000,)]


def test_a_worker_elsewhere_that_lives_keeps_its_run_though_its_launcher_hangs(
    tmp_path: Path, elsewhere: Callable[[int], Launcher]
) -> None:
    """What it wrote to its end is read, and nothing is trained twice."""
    far, path = elsewhere(150), tmp_path / "a.db"
    far.kill(signal.SIGSTOP)
    assert launch(small_plan(tmp_path, [1e-3], steps=150), path)[0].counts == {"complete": 1}
    far.kill(signal.SIGCONT)
    assert far.wait() == 0
    assert rows(path, "SELECT n, status FROM attempt") == [(1, "complete")]
    assert rows(path, "SELECT count(*) FROM metric") == [(2 * 150,)]


def test_a_clock_that_runs_backwards_delays_no_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[[int], Launcher]
) -> None:
    far = elsewhere(1000)
    far.kill(signal.SIGKILL)
    far.wait()
    monkeypatch.setenv("STUB_DELAY", "0")
    hours = itertools.count(time.time(), -3600)
    monkeypatch.setattr(time, "time", lambda: next(hours))
    assert launch(small_plan(tmp_path, [1e-3], steps=1000), tmp_path / "a.db")[0].counts == {
        "complete": 1
    }
    monkeypatch.undo()
    assert rows(tmp_path / "a.db", "SELECT count(*) FROM metric") == [(2 * 1000,)]


def test_a_worker_whose_run_was_taken_over_is_stopped(
    tmp_path: Path, elsewhere: Callable[[int], Launcher]
) -> None:
    far, path = elsewhere(200), tmp_path / "a.db"
    (worker,) = workers(far.pid)
    with store.open(str(path), create=True) as db, db.begin() as connection:
        mark_dead(connection, 1, "taken over")
    assert far.wait() == 0, "the launcher itself goes on, and does again what is left"
    first, second = (
        [
            event
            for event in read(tmp_path / "a.journals" / name)[0]
            if event["event"] != "heartbeat"
        ]
        for (name,) in rows(path, "SELECT journal FROM attempt ORDER BY n")
    )
    assert first[0]["pid"] == worker != second[0]["pid"] and first[-1]["event"] != "end", (
        "it was killed amid its run"
    )
    assert rows(path, "SELECT status FROM attempt ORDER BY n") == [("dead",), ("complete",)]
    assert rows(path, "SELECT count(*) FROM metric") == [(2 * 200,)]


def test_a_worker_that_hangs_is_replaced(tmp_path: Path) -> None:
    plan, path = small_plan(tmp_path, [1e-3], steps=100), tmp_path / "a.db"
    launcher = Launcher(plan, path)
    wait_for(lambda: rows(path, "SELECT 1 FROM metric"))
    (worker,) = workers(launcher.pid)
    os.kill(worker, signal.SIGSTOP)
    assert launcher.wait() == 0
    assert not Path(f"/proc/{worker}").exists()
    assert rows(path, "SELECT status, error FROM attempt ORDER BY n") == [
        ("dead", f"its worker sent no heartbeat for {LEASE:g} s and was killed"),
        ("complete", None),
    ]
    assert rows(path, "SELECT count(*) FROM metric") == [(2 * 100,)]


HANGS_ONCE = """
def misbehave(self, configs, checkpoint, step):
    if step == 30 and not os.path.exists({once!r}):
        open({once!r}, "w").close()
        time.sleep(99)
"""


def test_a_worker_whose_main_thread_hangs_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heartbeats go on, without progress."""
    use_worker(monkeypatch, "hanging", tmp_path, HANGS_ONCE.format(once=str(tmp_path / "once")))
    monkeypatch.setattr(pool, "STALL", 1.0)
    plan, path = small_plan(tmp_path, [1e-3], steps=60), tmp_path / "a.db"
    assert launch(plan, path)[0].counts == {"complete": 1}
    dead, complete = rows(path, "SELECT status, error FROM attempt ORDER BY n")
    assert dead[0] == "dead" and "its worker made no progress for " in dead[1]
    assert complete == ("complete", None)
    assert rows(path, "SELECT count(*) FROM metric") == [(2 * 60,)]
    (first,) = rows(path, "SELECT journal FROM attempt WHERE n = 1")[0]
    beats = [event["done"] for event in read(tmp_path / "a.journals" / first)[0] if "done" in event]
    assert beats.count(beats[-1]) > 5, "the thread of heartbeats lived"


def test_a_worker_with_slow_steps_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too long follows from its own pace, and its first step and set-up may take long."""
    slow = "def setup(self, *of):\n    time.sleep(1)\n    return super().setup(*of)\n"
    use_worker(monkeypatch, "slow_worker", tmp_path, slow)
    monkeypatch.setenv("STUB_DELAY", "0.7")
    monkeypatch.setattr(pool, "STALL", 0.3)
    path = tmp_path / "a.db"
    assert launch(small_plan(tmp_path, [1e-3], steps=4), path)[0].counts == {"complete": 1}
    assert rows(path, "SELECT status FROM attempt") == [("complete",)]


def test_a_worker_that_never_writes_is_replaced_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = tmp_path / "hung"
    late = (
        f"if not os.path.exists({str(once)!r}):\n    open({str(once)!r}, 'w')\n    time.sleep(99)\n"
    )
    use_worker(monkeypatch, "late_worker", tmp_path, "pass\n", late)
    monkeypatch.setattr(pool, "START", 4.0)
    path = tmp_path / "a.db"
    assert launch(small_plan(tmp_path, [1e-3]), path)[0].counts == {"complete": 1}
    assert rows(path, "SELECT status FROM attempt ORDER BY n")[-1] == ("complete",)
    assert "no heartbeat for 4 s" in rows(path, "SELECT error FROM attempt ORDER BY n")[0][0]


def test_a_host_that_slept_kills_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "STEP", LEASE / 6)
    plan, path = small_plan(tmp_path, [1e-3], steps=100), tmp_path / "a.db"
    launcher = Launcher(plan, path)
    wait_for(lambda: rows(path, "SELECT 1 FROM metric"))
    both = [launcher.pid, *workers(launcher.pid)]
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in both:
            os.kill(pid, number)
        time.sleep(3 * LEASE)
    assert launcher.wait() == 0
    assert rows(path, "SELECT status FROM attempt") == [("complete",)]


def test_a_worker_that_is_told_to_stop_costs_its_run_no_try(tmp_path: Path) -> None:
    plan, path = small_plan(tmp_path, [1e-3], steps=200), tmp_path / "a.db"
    launcher = Launcher(plan, path)
    for n in range(1, 6):
        wait_for(lambda n=n: rows(path, "SELECT 1 FROM attempt WHERE n = ? AND device <> ''", n))
        (worker,) = workers(launcher.pid)
        os.kill(worker, signal.SIGTERM)
        wait_for(lambda worker=worker: worker not in workers(launcher.pid))
    assert launcher.wait() == 0, launcher.output.read_text()
    tries = [status for (status,) in rows(path, "SELECT status FROM attempt ORDER BY n")]
    assert tries == ["stopped"] * 5 + ["complete"]
    assert rows(path, "SELECT count(*) FROM metric") == [(2 * 200,)]
