"""The worker alone, over its pipe: what it journals, what it survives, and when it ends."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import stub_worker
from launch_helpers import use_worker, wait_for

from ablate import journal
from ablate.config import RunConfig
from ablate.evaluation import Evaluation
from ablate.kinds import Job
from ablate.kinds.transformer import run_of
from ablate.launch.messages import encode
from ablate.launch.worker import ASKED, NO_ROOM

ARGUMENTS = ["--device=cpu", "--threads=1", "--memory=1"]


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Starts stub workers; any that still lives at the end of a test is killed."""
    started = []

    def start(
        lines: str = "", setup: str = "", lock: int | None = None, **environment: str
    ) -> subprocess.Popen:
        use_worker(monkeypatch, "own_worker" if lines else "stub_worker", tmp_path, lines, setup)
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", os.environ["ABLATE_WORKER"], *ARGUMENTS),
                *([] if lock is None else [f"--device-lock={lock}"]),
            ],
            pass_fds=[] if lock is None else [lock],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(tmp_path / "stderr").open("ab"),
            env={**os.environ, **environment},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def send(
    process: subprocess.Popen, number: int, folder: Path, *configs: RunConfig, resume: bool = False
) -> list[Path]:
    journals = [folder / f"{number}-{k}.jsonl" for k in range(len(configs))]
    runs = tuple(map(run_of, configs))
    path = folder / "checkpoint"
    job = Job(runs, Evaluation(), checkpoint=path, resume=path if resume else None)
    process.stdin.write(encode(number, job, journals))
    process.stdin.flush()
    return journals


def done(process: subprocess.Popen) -> int | None:
    """The number of the next job that the worker finishes; None when it ends instead."""
    for line in process.stdout:
        answer = json.loads(line)
        if "done" in answer:
            return answer["done"]
    return None


def test_a_worker_that_waits_for_its_device_gets_on(worker, tmp_path):
    """Another worker may train for hours; the launcher kills one that stands still."""
    with (tmp_path / "lock").open("w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        process = worker(lock=lock.fileno(), STUB_HEARTBEAT="0.05")
        (path,) = send(process, 1, tmp_path, RunConfig(steps=6))
        wait_for(lambda: len({each["done"] for each in events(path, "heartbeat")}) > 5)
        assert all(each["long"] for each in events(path, "heartbeat"))
        assert not events(path, "start")
        fcntl.lockf(lock, fcntl.LOCK_UN)
        assert done(process) == 1
        assert events(path, "end")[0]["status"] == "complete"


def events(path: Path, kind: str) -> list[dict]:
    return [event for event in journal.read(path)[0] if event["event"] == kind]


def test_a_job_of_two_runs_is_journaled_with_its_provenance(worker, tmp_path):
    process = worker()
    journals = send(process, 7, tmp_path, RunConfig(steps=5, seed=1), RunConfig(steps=5, seed=2))
    assert done(process) == 7
    for seed, path in zip((1, 2), journals, strict=True):
        (start,), (end,) = events(path, "start"), events(path, "end")
        assert (
            start["pid"] == process.pid
            and start["host"] == platform.node()
            and start["pack_size"] == 2
        )
        assert start["device"] == "cpu" and start["device_name"] == "stub" and start["threads"] == 1
        assert (
            set(start["versions"]) == {"ablate", "python", "torch", "cuda"}
            and abs(start["time"] - time.time()) < 60
        )
        assert "commit" not in start or (
            len(start["commit"]) == 40 and isinstance(start["dirty"], bool)
        )
        assert end["status"] == "complete"
        losses = [x for event in events(path, "metrics") for x in event["series"]["train_loss"]]
        assert losses == [
            stub_worker.value(RunConfig(steps=5, seed=seed), "train_loss", step)
            for step in range(1, 6)
        ]


def test_a_checkpoint_without_room_fails_no_run(worker, tmp_path):
    """The journal has room; torch says of the disk what it likes."""
    process = worker(
        "def train(self, job, context):\n"
        "    context.emit[0]('start', step=0)\n"
        "    try: open('/dev/full', 'wb', buffering=0).write(b'x')\n"
        "    except OSError: raise RuntimeError('unexpected pos')\n"
    )
    (path,) = send(process, 1, tmp_path, RunConfig(steps=5))
    assert done(process) is None and process.wait(10) == NO_ROOM
    assert events(path, "start") and not events(path, "end")
    assert (tmp_path / "stderr").read_text().endswith("No space left on device\n")


def test_a_worker_that_breaks_ends_without_waiting_for_what_it_holds(worker, tmp_path):
    """Such as a group of processes, which waits for CUDA graphs that nobody frees."""
    process = worker(
        "def train(self, job, context):\n"
        "    import atexit\n"
        "    atexit.register(time.sleep, 600)\n"
        "    self.broken = True\n"
        "    raise RuntimeError('the device is lost')\n"
    )
    (path,) = send(process, 1, tmp_path, RunConfig(steps=5))
    assert done(process) is None and process.wait(10) == 1
    assert not events(path, "end")
    assert (tmp_path / "stderr").read_text().endswith("RuntimeError: the device is lost\n")


def test_a_trainer_that_forgets_to_end_a_run_is_a_failure(worker, tmp_path):
    process = worker("def train(self, job, context): context.emit[0]('start', step=0)\n")
    (path,) = send(process, 1, tmp_path, RunConfig(steps=5))
    assert done(process) == 1
    assert "before every run had ended" in events(path, "end")[0]["error"]


def test_idle_it_ends_when_the_pipe_closes(worker):
    process = worker()
    process.stdin.close()
    assert process.wait(10) == ASKED


@pytest.mark.parametrize("how", ["pipe closes", "SIGTERM", "SIGUSR1"])
def test_training_it_checkpoints_and_ends(worker, tmp_path, how):
    process = worker(STUB_DELAY="0.02")
    config = RunConfig(steps=10_000)
    (path,) = send(process, 1, tmp_path, config)
    wait_for(lambda: len(events(path, "metrics")) > 2)
    assert journal.alive(path)
    if how == "pipe closes":
        process.stdin.close()
    else:
        process.send_signal(signal.Signals[how])
    assert process.wait(10) == ASKED
    assert not journal.alive(path)
    (end,) = events(path, "end")
    assert end["status"] == "stopped" and end["step"] == json.loads(
        (tmp_path / "checkpoint").read_text()
    )


def test_a_trainer_that_does_not_stop_is_ended_with_the_pipe(worker, tmp_path):
    deaf = (
        "def train(self, job, context):\n    context.emit[0]('start', step=0)\n    time.sleep(99)\n"
    )
    process = worker(deaf, "worker.GRACE = 0.2\n")
    (path,) = send(process, 1, tmp_path, RunConfig(steps=5))
    wait_for(lambda: events(path, "start"))
    process.stdin.close()
    assert process.wait(5) == 1


def test_it_ignores_an_interrupt(worker, tmp_path):
    process = worker(STUB_DELAY="0.02")
    (path,) = send(process, 1, tmp_path, RunConfig(steps=20))
    wait_for(lambda: events(path, "start"))
    process.send_signal(signal.SIGINT)
    assert done(process) == 1
    assert events(path, "end")[0]["status"] == "complete"


def test_a_full_disk_leaves_no_half_line(tmp_path, monkeypatch):
    """What a failing write left is taken back, so that the next line does not run into it."""
    real = os.write
    with journal.Journal(tmp_path / "j") as writing:
        writing.append("metrics", steps=[1])

        def short(fd: int, data: bytes) -> int:
            if len(data) < 10:
                raise OSError(28, "No space left on device")
            return real(fd, data[:-5])

        monkeypatch.setattr(os, "write", short)
        with pytest.raises(OSError, match="No space"):
            writing.append("metrics", steps=[2])
        monkeypatch.undo()
        writing.append("end", status="failed")
    assert [event["event"] for event in journal.read(tmp_path / "j")[0]] == ["metrics", "end"]


def test_a_worker_that_is_not_wanted_any_more_does_not_finish_its_imports(worker, tmp_path):
    begun = tmp_path / "begun"
    process = worker(f"def __init__(self):\n    open({str(begun)!r}, 'w')\n    time.sleep(600)\n")
    send(process, 1, tmp_path, RunConfig())
    wait_for(begun.exists)
    process.stdin.close()
    assert process.wait(60) == ASKED


def test_heartbeats_come_while_a_run_trains_and_end_with_it(worker, tmp_path):
    """Before `start` too, as while a run is compiled; each line is whole."""
    late = "def train(self, job, context):\n    time.sleep(0.5)\n    super().train(job, context)\n"
    process = worker(late, STUB_HEARTBEAT="0.01", STUB_DELAY="0.005")
    journals = send(process, 1, tmp_path, RunConfig(steps=60, seed=1), RunConfig(steps=60, seed=2))
    assert done(process) == 1
    time.sleep(0.1)
    for path in journals:
        names = [event["event"] for event in journal.read(path)[0]]
        beats = [event["n"] for event in events(path, "heartbeat")]
        assert beats == list(range(1, len(beats) + 1))
        begun = names.index("start")
        assert begun > 10 and names.count("heartbeat") > begun + 5 and names[-1] == "end"
