"""The executor of this host: worker processes that stay between jobs and are fed through a pipe."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import ablate
from ablate.kinds import Job
from ablate.launch.devices import Device
from ablate.launch.executor import Ended, Slot
from ablate.launch.messages import encode
from ablate.launch.worker import ASKED, NO_ROOM
from ablate.units import plural

FAILED_STARTS = 3  # ends in a row before a worker is ready, after which its slot is no longer used
WORKER = "ablate.launch.worker"  # module; tests name another one in $ABLATE_WORKER
STDERR_TAIL = 4000  # bytes of a worker's stderr that explain its end


class WorkerProcess:
    """A worker. It ends by itself when its pipe closes, also if this process dies.

    Args:
        device: What it trains on.
        lock: File of the device lock, where several workers share the device.
    """

    def __init__(self, device: Device, lock: IO[bytes] | None = None):
        source = str(Path(ablate.__file__).parents[1])
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        lock_fds = [lock.fileno()] if lock else []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the process)
        module = os.environ.get("ABLATE_WORKER", WORKER)
        arguments = [
            f"--device={device.name}",
            f"--threads={device.threads}",
            f"--memory={device.memory}",
            *(f"--device-lock={fd}" for fd in lock_fds),
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            pass_fds=lock_fds,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={
                **os.environ,
                "PYTHONPATH": path,
                # for processes of the worker, which may have another Python
                "ABLATE_PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            },
            process_group=0,  # Ctrl-C at the terminal goes to the launcher alone
        )
        assert self._process.stdin and self._process.stdout
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._unread = b""
        self.ready = False  # it has set its device up

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is an answer, or the end."""
        return self._stdout.fileno()

    def send(self, message: bytes) -> None:
        """Give it a job. If it has died, `finished` reports that."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(message)
            self._stdin.flush()

    def finished(self) -> list[int] | None:
        """Return the jobs finished since the last call, or None if the process has ended.

        To be called when it is readable.
        """
        data = os.read(self.fileno(), 1 << 16)
        if not data:
            return None
        *lines, self._unread = (self._unread + data).split(b"\n")
        answers = [json.loads(line) for line in lines]
        self.ready = self.ready or any("ready" in answer for answer in answers)
        return [answer["done"] for answer in answers if "done" in answer]

    def close(self) -> None:
        """Ask it to checkpoint its job, and end."""
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    @property
    def exit_code(self) -> int | None:
        """None while it lives; −n if signal n ended it."""
        return self._process.poll()

    def exit_reason(self) -> str:
        """Return why it ended, with the end of its stderr. It has closed its side of the pipe."""
        code = self._wait(10.0)
        cause = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - STDERR_TAIL))
        stderr_tail = self._errors.read().decode(errors="replace").strip()
        return f"the worker died ({cause})" + (f"\n{stderr_tail}" if stderr_tail else "")

    def release(self, timeout: float) -> None:
        """Close it, kill it if it lives `timeout` seconds longer, and close its pipes."""
        self.close()
        self._wait(timeout)
        self._stdout.close()
        self._errors.close()

    def _wait(self, timeout: float) -> int:
        """Its exit code; kills it if it lives longer than `timeout` seconds."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait()


@dataclass
class WorkerSlot:
    """A device, or a share of one, with its worker and the job that this has."""

    number: int
    device: Device
    lock: IO[bytes] | None
    process: WorkerProcess | None = None
    job: int | None = None
    cancelled: bool = False
    failed_starts: int = 0


class LocalExecutor:
    """Runs jobs in workers on this host; see `ablate.launch.executor.Executor`.

    A worker starts with the first job of its slot. Workers of one GPU share a device lock.

    Attributes:
        started: Set once a worker was started.

    Args:
        devices: A device, or a share of one, for each worker.
    """

    def __init__(self, devices: Sequence[Device]):
        self.started = threading.Event()
        gpus = Counter(device.name for device in devices if device.name.startswith("cuda"))
        locks = {name: tempfile.TemporaryFile() for name, workers in gpus.items() if workers > 1}  # noqa: SIM115
        self._slots = {
            number: WorkerSlot(number, device, locks.get(device.name))
            for number, device in enumerate(devices)
        }
        self._handles = itertools.count(1)
        self._selector = selectors.DefaultSelector()

    def capacity(self) -> Sequence[Slot]:
        """See `Executor.capacity`."""
        return [Slot(each.number, each.device, each.job is None) for each in self._slots.values()]

    def submit(self, slot: int, job: Job, journals: Sequence[Path]) -> int:
        """See `Executor.submit`."""
        chosen = self._slots[slot]
        assert chosen.job is None
        if chosen.process is None:
            chosen.process = WorkerProcess(chosen.device, chosen.lock)
            chosen.cancelled = False
            self.started.set()
            self._selector.register(chosen.process, selectors.EVENT_READ, chosen)
        chosen.job = next(self._handles)
        chosen.process.send(encode(chosen.job, job, journals))
        return chosen.job

    def poll(self, timeout: float) -> list[Ended]:
        """See `Executor.poll`."""
        ended = []
        for key, _ in self._selector.select(timeout):
            slot: WorkerSlot = key.data
            assert slot.process
            finished = slot.process.finished()
            if finished is None:
                ended += self._worker_ended(slot)
            elif finished and not slot.cancelled:  # a cancelled job ends when its worker ends
                assert finished == [slot.job]
                ended.append(Ended(finished[0], "done"))
                slot.job = None
        return ended

    def cancel(self, handle: int, *, kill: bool = False) -> None:
        """See `Executor.cancel`. The worker of the job ends with it."""
        for slot in self._slots.values():
            if slot.job == handle and slot.process:
                slot.cancelled = True
                if kill:
                    slot.process.kill()
                else:
                    slot.process.close()

    def close(self, timeout: float) -> None:
        """See `Executor.close`."""
        deadline = time.monotonic() + timeout
        processes = [slot.process for slot in self._slots.values() if slot.process]
        for process in processes:
            process.close()
        for process in processes:
            process.release(max(0.0, deadline - time.monotonic()))
        self._selector.close()

    def _worker_ended(self, slot: WorkerSlot) -> list[Ended]:
        """Remove a worker that has ended, by itself or not; return the end of its job, if any."""
        process, handle = slot.process, slot.job
        assert process
        self._selector.unregister(process)
        reason = process.exit_reason()
        last_line = reason.splitlines()[-1]
        ready, full = process.ready, process.exit_code == NO_ROOM
        asked = slot.cancelled or process.exit_code == ASKED
        process.release(0.0)
        slot.process = slot.job = None
        slot.failed_starts = 0 if ready or asked else slot.failed_starts + 1
        notice = fatal = ""
        if full:
            fatal = f"a worker cannot write its journal, its checkpoint or the cache: {last_line}"
        elif slot.failed_starts == FAILED_STARTS:
            del self._slots[slot.number]
            left = sum(other.device.name == slot.device.name for other in self._slots.values())
            notice = (
                f"{slot.device.name} "
                + (
                    f"continues with {plural(left, 'worker')}, because another"
                    if left
                    else "is no longer used, because its worker"
                )
                + f" ended {FAILED_STARTS} times before it was ready: {last_line}"
            )
            if not self._slots:
                notice, fatal = "", f"no worker can start on {slot.device.name}: {last_line}"
        if handle is None:
            return []
        blame = ready and not full and not asked
        return [Ended(handle, "lost" if blame else "stopped", reason, notice, fatal)]
