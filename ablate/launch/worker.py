"""A worker: trains the jobs that arrive on stdin, one JSON line each, and writes their journals.

    python -m ablate.launch.worker --device=cuda:0 --threads=2 --memory=85899345920 --device-lock=3

`ablate.launch.messages` has the format of a job. With the first job the worker
sets its device up, and imports torch if the job's kind trains with it. On stdout `{"ready":
device}` says that it has, `{"done": handle}` that it is free for the next job. A run that fails is
recorded and the worker goes on; after it ran out of memory, or when the device no longer answers,
it ends, and the launcher starts another. When stdin closes, because the launcher closes it or died,
the worker checkpoints what it trains and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import faulthandler
import gc
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import ablate
from ablate.journal import Journal
from ablate.kinds import Context, Job, Progress, kind
from ablate.launch import devices
from ablate.launch.device_lock import device_lock
from ablate.launch.messages import decode

HEARTBEAT = 5.0  # seconds between two heartbeats
# Seconds in which a job must checkpoint once it is to stop; the launcher kills after 10.
GRACE = 8.0
# Exit code: the disk is full, over its quota or read-only. The run did not cause this, and other
# runs would fail too.
NO_ROOM = 74
# Exit code: a signal asked the worker to end, which no run caused.
ASKED = 75


class Trainer(Protocol):
    """What a worker trains with: one of `trainer_of`, or another one in tests."""

    def setup(self, device: str, threads: int, memory: int) -> dict[str, Any]:
        """Set a device up; return what an attempt records of it.

        Args:
            device: Torch's name of it.
            threads: CPU threads to use.
            memory: Bytes that this process may take of it.
        """
        ...

    def train(self, job: Job, context: Context) -> None:
        """Train a job; see `ablate.kinds.Kind.train`."""
        ...

    def status(self, error: Exception) -> str:
        """Return the status of an attempt that this error ended: "oom" or "failed"."""
        ...

    def usable(self, device: str) -> bool:
        """Return whether the device still computes."""
        ...

    def peak_bytes(self, device: str) -> int | None:
        """Return the most memory held so far: allocated on a GPU, resident otherwise."""
        ...


class Inbox:
    """The jobs of stdin, read by a thread: a pipe that closes is seen during training too."""

    def __init__(self, file: BinaryIO):
        # A SimpleQueue, because a signal handler may call its `put`.
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self.ready = False  # the worker is set up, and may train
        threading.Thread(target=self._read, args=(file,), daemon=True).start()

    def _read(self, file: BinaryIO) -> None:
        for line in file:
            self._lines.put(line)
        self.close()
        time.sleep(GRACE)
        os._exit(1)

    def close(self) -> None:
        """Take no more jobs and stop the present one. Ends a process that is not set up yet."""
        if not self.ready:
            os._exit(ASKED)
        self._stop.set()
        self._lines.put(None)

    def closed(self) -> bool:
        """Return whether the present job is to stop."""
        return self._stop.is_set()

    def next(self) -> bytes | None:
        """Wait for the next job and return its line; None if there will be none."""
        line = self._lines.get()
        return None if self.closed() else line


class Attempt:
    """One run of a job: writes its events and heartbeats into its journal.

    Attributes:
        provenance: What the worker adds to the event `start`.
        ended: Whether its journal has its end.

    Args:
        journal: The journal, open for writing.
        progress: How far its job is.
    """

    def __init__(self, journal: Journal, progress: Progress):
        self._journal, self._progress = journal, progress
        self.provenance: dict[str, Any] = {}
        self._step = self._beats = 0
        self._lock = threading.Lock()  # heartbeats come from another thread
        self.ended = False

    def emit(self, event: str, **values: Any) -> None:
        """Write an event; see `ablate.journal`."""
        if event == "start":
            values = {**self.provenance, **values, "time": time.time()}
        elif event == "metrics":
            self._step = values["steps"][-1]
        elif event == "end":
            values = {"step": self._step, **values, "time": time.time()}
        with self._lock:
            self._journal.append(event, **values)
            self.ended = event == "end"

    def fail(self, **values: Any) -> None:
        """Write the event `end`, unless it is there."""
        with self._lock:
            if not self.ended:
                values = {"step": self._step, **values, "time": time.time()}
                self._journal.append("end", **values)
                self.ended = True

    def beat(self) -> None:
        """Write a heartbeat, unless the run has ended."""
        with self._lock:
            if not self.ended:
                self._beats += 1
                far = {"done": self._progress.done, "long": self._progress.long}
                self._journal.append("heartbeat", n=self._beats, **far)


@contextlib.contextmanager
def opened(journals: Sequence[Path], progress: Progress) -> Iterator[list[Attempt]]:
    """Open the journals of a job, and write heartbeats into them.

    A thread writes these, so that they come while the worker imports, compiles or evaluates too.

    Args:
        journals: One for each run of the job.
        progress: How far the job is.
    """
    done = threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT):
            for attempt in attempts:
                # On a full disk the next event fails too, and that failure is recorded.
                with contextlib.suppress(OSError):
                    attempt.beat()

    with ExitStack() as stack:
        attempts = [Attempt(stack.enter_context(Journal(path)), progress) for path in journals]
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield attempts
        finally:
            done.set()
            thread.join()


def train_job(
    trainer: Trainer,
    device: str,
    job: Job,
    attempts: Sequence[Attempt],
    stop: Callable[[], bool],
    lock: AbstractContextManager[None],
    progress: Progress,
) -> bool:
    """Train a job to the end of its journals; return whether the process can train another.

    Args:
        trainer: What trains.
        device: Torch's name of the device.
        job: What to train.
        attempts: One for each of its runs, see `opened`.
        stop: Asked between steps; once true, the job checkpoints and ends.
        lock: The device lock.
        progress: How far the job is.

    Raises:
        Exception: The disk is full, or the device no longer computes. Runs that have not ended are
            not to blame; their journals do not end.
    """

    def fail(status: str, error: str) -> None:
        for attempt in attempts:
            attempt.fail(status=status, error=error, peak_bytes=None)
        os._exit(0)

    try:
        emit = [attempt.emit for attempt in attempts]
        trainer.train(job, Context(device, emit, stop, lock, progress, fail))
        assert all(attempt.ended for attempt in attempts), (
            "the trainer returned before every run had ended"
        )
    except Exception as error:
        if no_room(error):
            raise
        status, peak = trainer.status(error), trainer.peak_bytes(device)
        if status != "oom" and not trainer.usable(device):
            raise  # the run may be fine: another process retries it
        for attempt in attempts:
            attempt.fail(status=status, error=traceback.format_exc(), peak_bytes=peak)
        # other processes of the job are still in the midst of it
        return status != "oom" and len(devices.members(device)) == 1
    return True


def provenance(device: str, facts: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    """Return what an attempt records of its worker.

    Args:
        device: Torch's name of the device.
        facts: What `Trainer.setup` returned.
        source: What `checkout` returned.
    """
    own = {"ablate": ablate.__version__, "python": platform.python_version()}
    return {
        "host": platform.node(),
        "pid": os.getpid(),
        "device": device,
        **facts,
        "versions": {**own, **facts["versions"]},
        **source,
    }


def no_room(error: BaseException | None) -> str:
    """Return the system's message if a full or read-only disk caused an error, else ""."""
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
    """An error and its causes."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def checkout() -> dict[str, Any]:
    """Return the git commit of the package's source, and whether it was changed since.

    Empty outside a checkout.
    """
    package = Path(ablate.__file__).parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
        ).stdout.strip()

    try:
        # A package that is installed below some other repository does not belong to it.
        git("ls-files", "--error-unmatch", "__init__.py")
        return {
            "commit": git("rev-parse", "HEAD"),
            "dirty": bool(git("status", "--porcelain", "--", ".")),
        }
    except (OSError, subprocess.CalledProcessError):
        return {}


def trainer_of(job: Job) -> Trainer:
    """Return the trainer of real workers; imports torch if the job's kind trains with it."""
    if kind(job.runs[0].kind).uses_torch:
        from ablate.launch.trainer import TorchTrainer

        return TorchTrainer()
    from ablate.launch.plain import PlainTrainer

    return PlainTrainer()


def main(stub: Callable[[], Trainer] | None = None) -> None:
    """Run a worker with the arguments of this process.

    Args:
        stub: Makes what it trains with, in tests; by default `trainer_of`, at the first job.
    """
    parser = argparse.ArgumentParser(prog="python -m ablate.launch.worker")
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--memory", type=int, required=True)
    parser.add_argument("--device-lock", type=int, metavar="FD")
    arguments = parser.parse_args()

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    gc.set_threshold(50_000)  # see `ablate.cli.main`: a tenth of the time to import torch
    # Libraries and child processes cannot write to it: their output goes to stderr.
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    inbox = Inbox(jobs)
    for number in (signal.SIGTERM, signal.SIGUSR1):  # with which clusters announce an end
        signal.signal(number, lambda *_: inbox.close())

    def answer(**values: object) -> None:
        print(json.dumps(values), file=answers, flush=True)

    def waiting(progress: Progress) -> Callable[[], bool]:
        def stop() -> bool:
            progress.advance()  # the job waits for the device for as long as another one trains
            return inbox.closed()

        return stop

    def set_up(job: Job) -> tuple[Trainer, dict[str, Any]]:
        with ThreadPoolExecutor(1) as pool:
            source = pool.submit(checkout)  # waits for processes, while torch is imported
            trainer = stub() if stub else trainer_of(job)
            facts = trainer.setup(device, arguments.threads, arguments.memory)
        gc.freeze()  # a collection for each shape then does not pass over what was imported
        inbox.ready = True
        answer(ready=device)
        return trainer, provenance(device, facts, source.result())

    device, fd = arguments.device, arguments.device_lock
    trainer: Trainer | None = None
    origin: dict[str, Any] = {}
    try:
        while line := inbox.next():
            handle, job, journals = decode(line)
            progress = Progress()
            with opened(journals, progress) as attempts:
                if trainer is None:  # not before its first job, whose heartbeats have begun
                    trainer, origin = set_up(job)
                for attempt in attempts:
                    attempt.provenance = {**origin, "pack_size": len(attempts)}
                lock = nullcontext() if fd is None else device_lock(fd, waiting(progress))
                fit = train_job(trainer, device, job, attempts, inbox.closed, lock, progress)
            if not fit or inbox.closed():  # it ends, and must not get another job
                break
            answer(done=handle)
        code = ASKED if inbox.closed() else 0
    except Exception as error:
        traceback.print_exc()
        code = 1
        if why := no_room(error):
            print(why, file=sys.stderr)
            code = NO_ROOM
    sys.stdout.flush()
    sys.stderr.flush()
    # Journals and checkpoints are closed. Python would take a second to free CUDA's graphs one by
    # one, and a group of processes that is destroyed before such graphs, which have captured its
    # collectives, waits for them for ever.
    os._exit(code)


if __name__ == "__main__":
    main()
