"""A warm worker: trains the jobs that come in on stdin, one JSON line each, and journals every
attempt.

    python -m ablate.launch.worker --device cuda:0 --threads 2 --memory 85899345920 --turns 3

A job is `{"job": id, "runs": [{"config", "journal"}], "evaluation", "sources", "checkpoint",
"resume", "micro_batch", "recompute"}`. On stdout `{"ready": device}` says that the device is set
up, `{"done": id}` that the worker is free for the next job. A run that fails is recorded and the
worker goes on; after running out of memory, or when the device no longer answers, it ends, and the
launcher starts another. When stdin closes, because the launcher wants it to or because it died, the
worker checkpoints what it trains and ends.
"""

from __future__ import annotations

import argparse
import errno
import faulthandler
import importlib
import json
import os
import platform
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import ablate
from ablate.config import RunConfig
from ablate.evaluation import Evaluation
from ablate.journal import Journal
from ablate.launch.turns import turn

# seconds in which a job must checkpoint once it is told to stop; the launcher kills after 10
GRACE = 8.0
# exit code: a full disk or quota, or a read-only one. That is not the run's fault, and other runs
# would fare no better
NO_ROOM = 74
ENGINE = os.environ.get(
    "ABLATE_ENGINE", "ablate.launch.engine"
)  # another module with the same functions, for tests

Job = dict[str, Any]


class Inbox:
    """The jobs of stdin, read by a thread, so that a closing pipe is seen in the midst of training
    too.
    """

    def __init__(self, file: BinaryIO):
        self._jobs: queue.SimpleQueue[Job | None] = (
            queue.SimpleQueue()
        )  # its put may be called by a signal handler
        self._stop = threading.Event()
        self.ready = False  # the worker is set up, and may be at work
        threading.Thread(target=self._read, args=(file,), daemon=True).start()

    def _read(self, file: BinaryIO) -> None:
        for line in file:
            self._jobs.put(json.loads(line))
        self.close()
        time.sleep(GRACE)
        os._exit(1)

    def close(self) -> None:
        """No more jobs, and the one at work is to stop. While the worker is still being set up,
        that ends it at once.
        """
        if not self.ready:
            os._exit(0)
        self._stop.set()
        self._jobs.put(None)

    def closed(self) -> bool:
        return self._stop.is_set()

    def next(self) -> Job | None:
        """The next job; waits for it. None when there will be none."""
        job = self._jobs.get()
        return None if self.closed() else job


class Attempt:
    """One run of a job: takes the engine's events into its journal, with what the worker knows of
    itself.
    """

    def __init__(self, journal: Journal, provenance: dict[str, Any]):
        self._journal = journal
        self._provenance = provenance
        self._step = 0
        self.ended = False

    def emit(self, event: str, **values: Any) -> None:
        if event == "start":
            values = {**self._provenance, **values, "time": time.time()}
        elif event == "metrics":
            self._step = values["steps"][-1]
        elif event == "end":
            values = {"step": self._step, **values, "time": time.time()}
        self._journal.append(event, **values)
        self.ended = event == "end"


class Worker:
    """One device and the engine that trains on it."""

    def __init__(self, device: str, threads: int, memory: int, turns: int | None):
        self._device, self._turns = device, turns
        with ThreadPoolExecutor(1) as beside:
            source = beside.submit(checkout)  # waits for processes, while torch is imported
            self._engine = importlib.import_module(ENGINE)
            device_facts = self._engine.setup(device, threads, memory)
        versions = {
            "ablate": ablate.__version__,
            "python": platform.python_version(),
            **device_facts.pop("versions"),
        }
        self._facts = {
            "host": platform.node(),
            "pid": os.getpid(),
            "device": device,
            **device_facts,
            "versions": versions,
            **source.result(),
        }

    def work(self, job: Job, inbox: Inbox) -> bool:
        """Train a job. Whether this process is fit for another one after it."""
        with ExitStack() as stack:
            facts = {**self._facts, "pack_size": len(job["runs"])}
            journals = [stack.enter_context(Journal(Path(run["journal"]))) for run in job["runs"]]
            attempts = [Attempt(journal, facts) for journal in journals]
            try:
                self._engine.train(
                    [RunConfig(**run["config"]) for run in job["runs"]],
                    Evaluation(**job["evaluation"]),
                    job["sources"],
                    device=self._device,
                    emit=[attempt.emit for attempt in attempts],
                    checkpoint=Path(job["checkpoint"]),
                    stop=inbox.closed,
                    resume=job["resume"],
                    micro_batch=job["micro_batch"],
                    recompute=job["recompute"],
                    turn=None if self._turns is None else turn(self._turns, inbox.closed),
                )
                assert all(attempt.ended for attempt in attempts), (
                    "the engine returned before every run had ended"
                )
            except Exception as error:
                if no_room(error):
                    raise
                status, peak = self._engine.status(error), self._engine.peak_bytes(self._device)
                if status != "oom" and not self._engine.usable(self._device):
                    raise  # the run may be sound: it is tried again by another process
                for attempt in attempts:
                    if not attempt.ended:
                        attempt.emit(
                            "end", status=status, error=traceback.format_exc(), peak_bytes=peak
                        )
                return status != "oom"
        return True


def no_room(error: BaseException | None) -> str:
    """What the system says of a disk that takes no more, where that is behind an error; "" where it
    is not.
    """
    codes = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
    return next(
        (
            os.strerror(one.errno)
            for one in _causes(error)
            if isinstance(one, OSError) and one.errno in codes
        ),
        "",
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what was being handled when it came."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def checkout() -> dict[str, Any]:
    """Git commit of the package's source, and whether the source was changed since; empty outside a
    checkout.
    """
    package = Path(ablate.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
        ).stdout.strip()

    try:
        git(
            "ls-files", "--error-unmatch", "__init__.py"
        )  # a package installed below some other repository is not of it
        return {
            "commit": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--", ".")),
        }
    except (OSError, subprocess.CalledProcessError):
        return {}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ablate.launch.worker")
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--memory", type=int, required=True)
    parser.add_argument("--turns", type=int)
    arguments = parser.parse_args()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    jobs, answers = (
        os.fdopen(os.dup(0), "rb"),
        os.fdopen(os.dup(1), "w"),
    )  # out of reach of libraries and children:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what they print goes to stderr
    inbox = Inbox(jobs)
    signal.signal(signal.SIGTERM, lambda *_: inbox.close())

    def answer(**values: object) -> None:
        print(json.dumps(values), file=answers, flush=True)

    worker = Worker(arguments.device, arguments.threads, arguments.memory, arguments.turns)
    inbox.ready = True
    answer(ready=arguments.device)
    try:
        while (job := inbox.next()) and worker.work(job, inbox):
            answer(done=job["job"])
    except Exception as error:
        if not (why := no_room(error)):
            raise
        traceback.print_exc()
        print(why, file=sys.stderr, flush=True)
        os._exit(NO_ROOM)
    sys.stdout.flush()
    # journals and checkpoints are closed; Python would take a second to take CUDA's graphs down one
    # by one
    os._exit(0)


if __name__ == "__main__":
    main()
