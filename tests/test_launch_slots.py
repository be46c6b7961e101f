"""Several devices, and several workers of one: the device lock, slots on which none starts."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import signal
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import pytest
import stub_worker
from launch_helpers import launch, rows, small_plan, use_worker, wait_for

from ablate.launch import devices
from ablate.launch.device_lock import device_lock
from ablate.plan import Plan
from ablate.plan import plan as make
from ablate.study import load
from ablate.study_run import Outcome

pytestmark = pytest.mark.usefixtures("stub")


SETUP = """
from pathlib import Path
place = Path(os.environ["PLACE"])
def refuse(why):
    (place / ("refused%d" % os.getpid())).touch()
    raise AssertionError(why)
"""
REFUSING = """
def setup(self, device, threads, memory):
{lines}    return super().setup(device, threads, memory)
def train(self, job, context):
    # the study outlasts the tries of a worker that does not start
    while len(list(place.glob("refused*"))) < 3:
        time.sleep(0.01)
    super().train(job, context)
"""


@pytest.fixture
def refusing(tmp_path, monkeypatch):
    """Makes a worker that does not start where the lines of its `setup` say so."""

    def make(lines: str) -> None:
        monkeypatch.setenv("PLACE", str(tmp_path))
        use_worker(monkeypatch, "refusing", tmp_path, REFUSING.format(lines=lines), SETUP)

    return make


def test_a_lost_device_is_given_up_and_the_others_go_on(tmp_path, monkeypatch, refusing):
    refusing("    if device == 'cuda:1': refuse('fell off the bus')\n")
    monkeypatch.setattr("ablate.launch.packs.capacity", lambda config, device: 1)
    plan, path = small_plan(tmp_path, [1e-3, 2e-3, 3e-3, 4e-3], seeds=2), tmp_path / "a.db"
    outcome, output = launch(plan, path, found=gpus(2))
    assert outcome == Outcome({"complete": 8}, 0)
    assert (
        "cuda:1 is no longer used, because its worker ended 3 times before it was ready:"
        " AssertionError: fell off the bus" in output
    )


def test_a_worker_that_does_not_start_leaves_its_device_to_the_others(tmp_path, refusing):
    refusing(
        "    for room in ('first', 'second'):\n"
        "        try: os.close(os.open(place / room, os.O_CREAT | os.O_EXCL))\n"
        "        except FileExistsError: continue\n"
        "        break\n"
        "    else: refuse('no room for a third')\n"
    )
    outcome, output = launch(several_shapes(tmp_path), tmp_path / "a.db", found=gpus(1))
    assert outcome == Outcome({"complete": 12}, 0)
    assert "no longer used" not in output
    message = "cuda:0 continues with 2 workers, because another ended 3 times before it was ready"
    assert f"{message}: AssertionError: no room for a third" in output


def test_one_worker_that_is_left_is_no_plural(tmp_path, refusing):
    """Killed while they start, which is what a lack of memory does to them."""
    refusing(
        "    try: os.close(os.open(place / 'first', os.O_CREAT | os.O_EXCL))\n"
        "    except FileExistsError:\n"
        "        (place / f'refused{os.getpid()}').touch()\n"
        "        os.kill(os.getpid(), 9)\n"
    )
    outcome, output = launch(
        several_shapes(tmp_path), tmp_path / "a.db", found=[devices.Device("cpu", 8 << 30, 1)] * 2
    )
    assert outcome == Outcome({"complete": 12}, 0)
    message = "cpu continues with 1 worker, because another ended 3 times before it was ready"
    assert f"{message}: the worker died (killed by SIGKILL)" in output


def gpus(n: int) -> list[devices.Device]:
    return [devices.Device(f"cuda:{k}", 8 << 30, 4) for k in range(n)]


SHAPES = """
[factors]
lr = [0.001, 0.002]
n_layer = [1, 2, 3]
"""


def several_shapes(tmp_path: Path, seeds: int = 2) -> Plan:
    small_plan(tmp_path, [1e-3, 2e-3], seeds=seeds)
    text = (
        (tmp_path / "stub.toml").read_text().partition("[factors]")[0].replace("n_layer = 1\n", "")
    )
    (tmp_path / "stub.toml").write_text(text + SHAPES)
    return make(load(str(tmp_path / "stub.toml")))


def worked(log: Path) -> dict[str, list[tuple[float, float, int]]]:
    """Device → (begun, ended, worker) of its jobs, in order."""
    jobs: dict[str, list[tuple[float, float, int]]] = {}
    for line in log.read_text().splitlines():
        device, pid, begun, ended = line.split()
        jobs.setdefault(device, []).append((float(begun), float(ended), int(pid)))
    return {device: sorted(each) for device, each in jobs.items()}


def test_workers_of_a_gpu_train_one_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setenv("STUB_DELAY", "0.03")
    monkeypatch.setenv("STUB_LOG", str(tmp_path / "log"))
    assert launch(several_shapes(tmp_path), tmp_path / "a.db", found=gpus(2))[0] == Outcome(
        {"complete": 12}, 0
    )
    for jobs in worked(tmp_path / "log").values():
        assert all(ended <= begun for (_, ended, _), (begun, _, _) in pairwise(jobs)), (
            "one trains at a time"
        )
        assert len({pid for _, _, pid in jobs}) > 1, "several make ready"


def test_a_device_lock_ends_with_its_worker(tmp_path, monkeypatch):
    monkeypatch.setenv("STUB_DELAY", "0.03")
    plan = several_shapes(tmp_path)
    dying = tuple(
        (
            dataclasses.replace(planned, run=planned.run.with_(lr=stub_worker.DIES_ONCE))
            if planned.config.lr == 1e-3
            else planned
        )
        for planned in plan.runs
    )
    outcome, _ = launch(dataclasses.replace(plan, runs=dying), tmp_path / "a.db", found=gpus(1))
    assert outcome == Outcome({"complete": 12}, 0)


def test_a_worker_that_waits_for_the_device_lock_can_be_stopped():
    holder = tempfile.TemporaryFile()  # noqa: SIM115
    waiter = os.open(f"/proc/self/fd/{holder.fileno()}", os.O_RDWR)
    pid = os.fork()
    if pid == 0:  # locks belong to a process: another one holds it
        fcntl.lockf(holder, fcntl.LOCK_EX)
        time.sleep(30)
        os._exit(0)
    try:
        wait_for(lambda: _locked(waiter))
        asked = iter([False, False, True])
        with device_lock(waiter, lambda: next(asked)):
            assert _locked(waiter), "it goes on without the lock, to record that it was stopped"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with device_lock(waiter, lambda: False):  # the lock of a process ends with it
        pass
    os.close(waiter)


def _locked(file: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.lockf(file, fcntl.LOCK_UN)
    return False


def test_the_longest_jobs_come_first_where_there_are_several_devices(tmp_path, monkeypatch):
    monkeypatch.setattr("ablate.launch.packs.capacity", lambda config, device: 1)
    plan, path = several_shapes(tmp_path, seeds=1), tmp_path / "a.db"
    order = (
        "SELECT fields ->> 'n_layer' FROM run JOIN attempt ON run_id = run.id ORDER BY attempt.id"
    )
    launch(plan, path, found=gpus(1))
    assert rows(path, order) == [(1,), (2,), (3,)] * 2
    launch(plan, other := tmp_path / "b.db", found=gpus(2))
    assert rows(other, order) == [(3,), (3,), (2,), (2,), (1,), (1,)]
