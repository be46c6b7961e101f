"""A worker with two devices: what becomes of its run and its processes when one is disturbed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from launch_helpers import processes, small_plan, wait_for

from ablate import journal
from ablate.code import of_text
from ablate.kinds import Job
from ablate.launch import devices
from ablate.launch.devices import Device
from ablate.launch.executor import Ended
from ablate.launch.local import LocalExecutor
from ablate.train import checkpoint

LONG = 20_000  # steps that no test waits for
# A user's part that makes rank 1 fail, or hang, after some steps.
FAILS = """
import torch
from ablate import metric
from ablate.train import engine, ranks

@metric("mine", goal="lower", meaning="the loss")
def mine(losses):
    return losses

def follow(step, evaluator):
    step.align()
    for _ in range(2):
        step.follow(ranks.agree(None))
    {fails}

if ranks.number() == 1:
    engine.follow = follow
"""


class Worker:
    """A worker with two processes on the CPU, and the job that it has."""

    def __init__(self, folder: Path):
        self.folder, self.plan = folder, small_plan(folder, [1e-2], steps=LONG)
        (self.device,) = devices.groups([Device("cpu", 8 << 30, 2)], 2)
        self.executor = LocalExecutor([self.device])
        self.handle = 0

    def begin(self, name: str, fails: str = "") -> None:
        self.path = self.folder / f"{name}.jsonl"
        job = Job(
            (self.plan.runs[0].run,),
            self.plan.study.evaluation,
            sources=self.plan.sources,
            checkpoint=self.folder / f"{name}.pt",
        )
        if fails:
            job = replace(job, use=(of_text("mine.py", FAILS.format(fails=fails)),))
        self.handle = self.executor.submit(0, job, [self.path])

    def at_work(self) -> tuple[int, int]:
        """Wait until it trains; its `pids`."""
        wait_for(lambda: self.path.exists() and "metrics" in str(self.events), 120)
        return self.pids()

    def pids(self) -> tuple[int, int]:
        """The processes of rank 0 and rank 1."""
        found = {pid: parent for pid, parent, command in processes() if "launch.rank" in command}
        mine = [
            (parent, pid)
            for pid, parent in found.items()
            if parent in {pid for pid, above, _ in processes() if above == os.getpid()}
        ]
        assert len(mine) == 1
        return mine[0]

    @property
    def events(self) -> list[dict]:
        return journal.read(self.path)[0]

    def ended(self) -> Ended:
        found: list[Ended] = []
        wait_for(lambda: found.extend(self.executor.poll(0.1)) or found, 60)
        return found[0]


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = Worker(tmp_path)
    yield made
    made.executor.close(0.0)


def gone(*pids: int) -> bool:
    """Whether processes have ended; one that nobody has waited for counts."""
    left = {pid for pid, _, _ in processes()}
    return not left & set(pids)


def test_a_killed_rank_loses_the_job_and_the_next_one_gives_its_run_back(worker: Worker) -> None:
    worker.begin("killed")
    pids = worker.at_work()
    os.kill(pids[1], signal.SIGKILL)
    ended = worker.ended()
    assert ended.how == "lost"
    assert ended.reason.endswith("rank 1 of 2 on cpu died (killed by SIGKILL)")
    assert "end" not in [event["event"] for event in worker.events]
    wait_for(lambda: gone(*pids))

    worker.begin("asked")  # in a new worker; a cluster may signal every process
    pids = worker.at_work()
    for pid in reversed(pids):
        os.kill(pid, signal.SIGTERM)
    assert worker.ended().how == "stopped"
    assert worker.events[-1]["status"] == "stopped"
    state = checkpoint.load(worker.folder / "asked.pt")
    assert state and state["step"]["done"] == worker.events[-1]["step"] > 0
    wait_for(lambda: gone(*pids))


def test_a_rank_that_hangs_ends_with_its_worker(worker: Worker) -> None:
    """No thread of Python runs in it, so that it does not see that its pipe closes."""
    there = worker.folder / "there"
    hangs = f"open({str(there)!r}, 'w'); import ctypes; ctypes.PyDLL(None).sleep(1000)"
    worker.begin("hangs", hangs)
    wait_for(there.exists, 120)
    pids = worker.pids()
    worker.executor.cancel(worker.handle, kill=True)  # as the launcher does when nothing gets on
    assert worker.ended().how == "stopped"
    wait_for(lambda: gone(*pids))


@pytest.mark.parametrize(
    ("fails", "status", "last"),
    [
        ("torch.empty(1 << 60)", "oom", "can't allocate memory"),
        ("raise ValueError('as requested')", "failed", "as requested"),
    ],
)
def test_an_error_of_a_rank_is_that_of_the_run(
    worker: Worker, fails: str, status: str, last: str
) -> None:
    worker.begin("fails", fails)
    worker.ended()
    end = worker.events[-1]
    assert (end["event"], end["status"]) == ("end", status)
    assert end["error"].startswith("rank 1 of 2 on cpu failed") and last in end["error"]
    assert "in follow" in end["error"]
