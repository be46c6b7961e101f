"""The contract of an executor, kept by that of this host, those of a Slurm and a Ray cluster, and
one without processes.
"""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import stub_worker
from in_process import InProcessExecutor
from launch_helpers import content, small_plan, use_worker, wait_for
from rich.console import Console

from ablate import journal, store
from ablate.config import RunConfig
from ablate.evaluation import Evaluation
from ablate.kinds import Job, Run
from ablate.kinds.transformer import run_of
from ablate.launch import messages, pool
from ablate.launch.devices import Device
from ablate.launch.executor import Ended, Executor, Slot
from ablate.launch.local import LocalExecutor
from ablate.launch.slurm import Request, SlurmExecutor
from ablate.study_run import Outcome, run_study

CPU = Device("cpu", 8 << 30, 1)
Make = Callable[..., Executor]


@pytest.fixture(params=["local", "in process", "slurm", "ray"])
def make(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Make]:
    """Makes executors with so many slots; closes them at the end of a test."""
    use_worker(monkeypatch, "stub_worker")
    made: list[Executor] = []
    if request.param == "slurm":
        request.getfixturevalue("cluster")
    if request.param == "ray":
        import ray as library

        from ablate.launch import ray

        library.init(request.getfixturevalue("ray_nodes").address, log_to_driver=False)

    def start(slots: int = 1) -> Executor:
        if request.param == "local":
            made.append(LocalExecutor([CPU] * slots))
        elif request.param == "slurm":
            agent = "--device=cpu", f"--workers={slots}"
            wanted = Request("contract", "contract.toml", [CPU] * slots, 1, (), agent)
            made.append(SlurmExecutor(tmp_path / "contract.db", wanted))
        elif request.param == "ray":
            asked = ray.Request("cpu", 0.0, 1, 1, False, True, lambda found: [CPU] * slots)
            made.append(ray.RayExecutor(tmp_path / "contract.db", asked))
        else:
            made.append(InProcessExecutor([CPU] * slots, stub_worker.Stub))
        return made[-1]

    yield start
    for executor in made:
        executor.close(5.0)
    if request.param == "ray":
        library.shutdown()  # other tests fork this process


def job(folder: Path, name: str, *configs: RunConfig, resume: bool = False) -> tuple:
    """A job, and the journals of its runs."""
    runs = tuple(map(run_of, configs))
    checkpoint = folder / f"{configs[0].seed}.pt"
    journals = [folder / f"{name}-{config.seed}.jsonl" for config in configs]
    return Job(
        runs, Evaluation(), checkpoint=checkpoint, resume=checkpoint if resume else None
    ), journals


def ended(executor: Executor, number: int = 1, seconds: float = 30) -> dict[int, Ended]:
    """Handle → how it ended, of the next jobs that end."""
    found: list[Ended] = []
    until = time.monotonic() + seconds
    while len(found) < number:
        assert time.monotonic() < until, "timed out"
        found += executor.poll(0.1)
    assert len(found) == number == len({each.handle for each in found})
    return {each.handle: each for each in found}


def at_work(executor: Executor, folder: Path, steps: int) -> list[Path]:
    """Give every slot a run; return their journals, which all have points."""
    paths = []
    for slot in executor.capacity():
        work, journals = job(folder, "a", RunConfig(steps=steps, seed=slot.number))
        executor.submit(slot.number, work, journals)
        paths += journals
    wait_for(lambda: all(path.exists() and "metrics" in events(path) for path in paths))
    return paths


def events(path: Path) -> list[str]:
    return [each["event"] for each in journal.read(path)[0]]


def end(path: Path) -> dict:
    return journal.read(path)[0][-1]


def test_a_job_runs_to_its_end_in_the_journals_of_its_runs(make: Make, tmp_path: Path) -> None:
    executor = make()
    configs = [RunConfig(steps=5, seed=seed) for seed in (1, 2)]
    work, journals = job(tmp_path, "a", *configs)
    handle = executor.submit(0, work, journals)
    assert ended(executor) == {handle: Ended(handle, "done")}
    for config, path in zip(configs, journals, strict=True):
        metrics = [each for each in journal.read(path)[0] if each["event"] == "metrics"]
        curve = [x for each in metrics for x in each["series"]["train_loss"]]
        assert curve == [stub_worker.value(config, "train_loss", step) for step in range(1, 6)]
        assert events(path)[0] == "start" and end(path)["status"] == "complete"
        assert not journal.alive(path)
    assert executor.poll(0.05) == [], "an end is reported once"


def test_a_run_that_fails_is_recorded_and_its_job_is_done(make: Make, tmp_path: Path) -> None:
    executor = make()
    bad, good = RunConfig(steps=5, lr=stub_worker.RAISES, seed=1), RunConfig(steps=5, seed=2)
    for config, status in ((bad, "failed"), (good, "complete")):
        work, journals = job(tmp_path, "a", config)
        handle = executor.submit(0, work, journals)
        assert ended(executor)[handle].how == "done"
        assert end(journals[0])["status"] == status


def test_capacity_tells_which_slots_are_free(make: Make, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("STUB_DELAY", "0.01")
    executor = make(2)
    assert [slot.device for slot in executor.capacity()] == [CPU, CPU]
    free = [slot.number for slot in executor.capacity() if slot.free]
    assert len(free) == 2
    handle = executor.submit(free[1], *job(tmp_path, "a", RunConfig(steps=5)))
    assert [slot.number for slot in executor.capacity() if slot.free] == free[:1]
    assert ended(executor)[handle].how == "done"
    assert [slot.number for slot in executor.capacity() if slot.free] == free


def test_jobs_run_side_by_side(make: Make, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("STUB_DELAY", "0.02")
    executor = make(2)
    paths = at_work(executor, tmp_path, steps=100)
    assert all(events(path)[-1] != "end" for path in paths)
    assert {each.how for each in ended(executor, 2).values()} == {"done"}


def test_a_cancelled_job_checkpoints_and_another_goes_on_from_there(
    make: Make, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("STUB_DELAY", "0.01")
    executor = make()
    config = RunConfig(steps=400)
    work, (first,) = job(tmp_path, "a", config)
    handle = executor.submit(0, work, [first])
    wait_for(lambda: first.exists() and "metrics" in events(first))
    executor.cancel(handle)
    assert ended(executor)[handle].how == "stopped"
    assert end(first)["status"] == "stopped" and 0 < end(first)["step"] < 400
    assert work.checkpoint.exists() and executor.capacity()[0].free
    monkeypatch.setenv("STUB_DELAY", "0")
    work, (second,) = job(tmp_path, "b", config, resume=True)
    handle = executor.submit(0, work, [second])
    assert ended(executor)[handle].how == "done"
    start = next(each for each in journal.read(second)[0] if each["event"] == "start")
    assert start["step"] == end(first)["step"] and end(second)["status"] == "complete"


def test_a_job_that_is_killed_ends(make: Make, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("STUB_DELAY", "0.01")
    executor = make()
    work, (path,) = job(tmp_path, "a", RunConfig(steps=100_000))
    handle = executor.submit(0, work, [path])
    wait_for(lambda: path.exists() and "start" in events(path))
    executor.cancel(handle, kill=True)
    assert ended(executor)[handle].how == "stopped"
    assert not journal.alive(path) and executor.capacity()[0].free


def test_a_lost_worker_loses_only_its_job(make: Make, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("STUB_DELAY", "0.01")
    executor = make(2)
    bad = RunConfig(steps=5, lr=stub_worker.BREAKS_DEVICE, seed=1)
    good = RunConfig(steps=100, seed=2)
    lost = executor.submit(0, *job(tmp_path, "a", bad))
    kept = executor.submit(1, *job(tmp_path, "a", good))
    found = ended(executor, 2)
    assert (found[lost].how, found[kept].how) == ("lost", "done")
    assert "the stub's device is lost" in found[lost].reason
    assert "end" not in events(tmp_path / "a-1.jsonl")
    assert end(tmp_path / "a-2.jsonl")["status"] == "complete"
    assert all(slot.free for slot in executor.capacity())
    again = executor.submit(0, *job(tmp_path, "b", RunConfig(steps=5, seed=3)))
    assert ended(executor)[again].how == "done", "the slot has another worker"


def test_heartbeats_come_from_a_job_that_emits_nothing(
    make: Make, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("STUB_HEARTBEAT", "0.05")
    monkeypatch.setattr("ablate.launch.worker.HEARTBEAT", 0.05)
    monkeypatch.setenv("STUB_DELAY", "1")
    executor = make()
    work, (path,) = job(tmp_path, "a", RunConfig(steps=1000))
    handle = executor.submit(0, work, [path])
    wait_for(lambda: path.exists() and events(path).count("heartbeat") > 2)
    assert "metrics" not in events(path)
    executor.cancel(handle)
    ended(executor)


def test_close_ends_what_is_left(make: Make, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("STUB_DELAY", "0.01")
    executor = make(2)
    paths = at_work(executor, tmp_path, steps=100_000)
    executor.close(10.0)
    assert [end(path)["status"] for path in paths] == ["stopped", "stopped"]


def test_a_study_has_the_same_content_with_either_executor(
    make: Make, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(pool, "INGEST", 0.05)
    monkeypatch.setattr(pool, "POLL", 0.1)
    lrs = [1e-3, stub_worker.RAISES, stub_worker.DIVERGES, stub_worker.BREAKS_DEVICE]
    plan, path = small_plan(tmp_path, lrs, seeds=2), tmp_path / "a.db"
    with store.open(str(path), create=True) as db:
        outcome = run_study(plan, db, make(2), console=Console(file=io.StringIO()))
    assert outcome == Outcome({"complete": 2, "diverged": 2, "failed": 4}, 1)
    curves = {(key, step): value for key, name, step, value in content(path)["metric"]}
    for planned in plan.runs:
        if planned.config.lr in (1e-3, stub_worker.DIVERGES):
            for step in range(1, 7):
                value = stub_worker.value(planned.config, "train_loss", step)
                assert curves[planned.run.key, step] == value


def test_a_job_is_the_same_behind_the_pipe(tmp_path: Path) -> None:
    run = Run("transformer", run_of(RunConfig(steps=3, seed=7)).fields, 7, parent="ab" * 32)
    evaluation = Evaluation(tokens=512, lengths=(1, 2))
    for checkpoint in (None, tmp_path / "a.pt"):
        kept = checkpoint, checkpoint, 5
        files = {"weights": (None, tmp_path / "b"), "best": True}
        work = Job((run, run), evaluation, {"hash": "/text"}, *kept, 2, True, "whole", **files)
        journals = [tmp_path / "a", tmp_path / "b"]
        line = messages.encode(3, work, journals)
        assert line.count(b"\n") == 1 and line.endswith(b"\n")
        assert messages.decode(line) == (3, work, journals)


def test_a_worker_that_is_asked_to_end_gets_no_further_job(tmp_path: Path, monkeypatch) -> None:
    use_worker(monkeypatch, "stub_worker")
    monkeypatch.setenv("STUB_DELAY", "0.01")
    executor = LocalExecutor([CPU])
    try:
        work, (path,) = job(tmp_path, "a", RunConfig(steps=100_000))
        executor.submit(0, work, [path])
        wait_for(lambda: path.exists() and "start" in events(path))
        os.kill(executor._slots[0].process._process.pid, signal.SIGTERM)
        ended(executor)
        work, (path,) = job(tmp_path, "b", RunConfig(steps=3, seed=1))
        handle = executor.submit(0, work, [path])
        assert ended(executor)[handle].how == "done"
    finally:
        executor.close(5.0)


def test_the_first_interrupt_after_a_failure_kills_nothing(tmp_path: Path) -> None:
    """With `fail_fast`, jobs are already writing their checkpoints when it comes."""

    class Recorder:
        cancelled: ClassVar[list[bool]] = []

        def capacity(self) -> list[Slot]:
            return []

        def cancel(self, handle: int, *, kill: bool = False) -> None:
            self.cancelled.append(kill)

    with store.open(str(tmp_path / "a.db"), create=True) as db:
        running = pool.WorkerPool(Recorder(), db, "a", "loss", Console(file=io.StringIO()))
        running._jobs[1] = pool.Active(None)
        running._stop()  # what a failure does with `fail_fast`
        running._signals.received.append(signal.SIGINT)
        running._handle_signals()
        assert Recorder.cancelled == [False]
        running._first_signal -= 2 * pool.ECHO
        running._signals.received.append(signal.SIGINT)
        running._handle_signals()
        assert Recorder.cancelled == [False, True]


def test_a_job_that_waits_in_a_queue_does_not_hang(tmp_path: Path) -> None:
    class Queue:
        queue = "slurm/a"
        in_queue: ClassVar[set[int]] = {1}
        killed: ClassVar[list[int]] = []

        def capacity(self) -> list[Slot]:
            return []

        def submit(self, slot: int, job: Job, journals: list[Path]) -> int:
            raise AssertionError

        def poll(self, timeout: float) -> list[Ended]:
            return []

        def cancel(self, handle: int, *, kill: bool = False) -> None:
            self.killed.append(handle)

        def close(self, timeout: float) -> None: ...

        def waiting(self) -> set[int]:
            return self.in_queue

        def outstanding(self) -> dict[int, list[Path]]:
            return {}

        def leave(self) -> str:
            return ""

    with (
        store.open(str(tmp_path / "a.db"), create=True) as db,
        pool.WorkerPool(Queue(), db, "a", "loss", Console(file=io.StringIO())) as running,
    ):
        running._jobs = {1: pool.Active(None), 2: pool.Active(None)}
        running._kill_hung(pool.START + 1)
        assert Queue.killed == [2]
        Queue.in_queue.clear()  # from now on its worker's silence counts
        running._kill_hung(pool.START - 1)
        assert Queue.killed == [2]
        running._kill_hung(2)
        assert Queue.killed == [2, 1]
