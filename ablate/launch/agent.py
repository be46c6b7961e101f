"""Runs jobs of a spool on the machine that a cluster gave it, in local workers, while time lasts.

SIGUSR1, with which Slurm announces the end of a job's time, and SIGTERM, with which it preempts or
cancels a job, make the workers checkpoint; the agent gives their jobs back and ends.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from ablate.errors import AblateError
from ablate.launch import devices
from ablate.launch.devices import Device
from ablate.launch.executor import Ended
from ablate.launch.local import LocalExecutor
from ablate.launch.spool import Spool

WAIT = 0.2  # seconds between two looks at its workers
LOOK = 0.5  # seconds between two looks into the spool
IDLE = 60.0  # seconds without a job after which the agent ends
GRACE = 10.0  # seconds that its workers have for a checkpoint before it ends


class Agent:
    """Takes jobs of a spool.

    Args:
        spool: Where jobs wait.
        name: Name of the agent, unique among the agents of the spool.
        slots: A device, or a share of one, for each worker.
        idle: Seconds without a job after which the agent ends.
    """

    def __init__(self, spool: Spool, name: str, slots: list[Device], idle: float = IDLE):
        self._spool, self._name, self._idle = spool, name, idle
        self._workers = LocalExecutor(slots)
        self._jobs: dict[int, int] = {}  # handle of the local executor → of the spool
        self._asked: dict[int, str] = {}  # what was asked of a job, by the spool's handle
        self._signal = 0  # the signal that told it to end
        self._fatal = ""
        self._announced = False
        for number in (signal.SIGUSR1, signal.SIGTERM):
            signal.signal(number, self._told)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        spool.start(name, len(slots))

    def run(self) -> str:
        """Work until no job is left or a signal arrives; return why no job can run here, or ""."""
        busy, look = time.monotonic(), 0.0
        while not self._signal and not self._fatal:
            if time.monotonic() >= look:
                look = time.monotonic() + LOOK
                self._take()
                self._cancel()
            if self._poll():
                look = 0.0  # a slot is free
            if self._jobs:
                busy = time.monotonic()
            elif time.monotonic() - busy > self._idle:
                break
        self._give_back()
        return self._fatal

    def _told(self, number: int, _: object) -> None:
        self._signal = self._signal or number

    def _take(self) -> None:
        for slot in self._workers.capacity():
            if slot.free and (found := self._spool.take(self._name)):
                handle, job, journals = found
                self._jobs[self._workers.submit(slot.number, job, journals)] = handle

    def _cancel(self) -> None:
        for local, handle in self._jobs.items():
            asked = self._spool.asked(handle)
            if asked and asked != self._asked.get(handle):
                self._asked[handle] = asked
                self._workers.cancel(local, kill=asked == "kill")

    def _poll(self) -> bool:
        """Report the jobs that have ended; return whether there were any."""
        found = self._workers.poll(WAIT)
        for ended in found:
            self._fatal = self._fatal or ended.fatal
            if ended.how == "stopped" and self._signal:  # which Slurm may send to workers too
                ended = replace(ended, reason=self._why(), notice=self._notice(), evicted=True)
            self._spool.end(self._name, replace(ended, handle=self._jobs.pop(ended.handle)))
        return bool(found)

    def _why(self) -> str:
        said = signal.Signals(self._signal).name if self._signal else "a lost device"
        return f"its Slurm job {self._name} ended ({said})"

    def _notice(self) -> str:
        """Return what the user is told about the end of the agent, the first time."""
        told, self._announced = self._announced, True
        said = signal.Signals(self._signal).name
        return "" if told else f"Slurm job {self._name} ends ({said}); its runs are queued again"

    def _give_back(self) -> None:
        """Let the workers checkpoint, and end."""
        deadline = time.monotonic() + GRACE
        for local in self._jobs:
            self._workers.cancel(local)
        while self._jobs and time.monotonic() < deadline:
            self._poll()
        self._workers.close(0.0)  # before another agent may take their jobs
        for handle in self._jobs.values():
            why = f"{self._why()} before it could write a checkpoint"
            self._spool.end(self._name, Ended(handle, "stopped", why, evicted=True))


def slots_here(
    kind: str, workers: int, gpus: float | None, devices_per_run: int = 1
) -> list[Device]:
    """Return a device, its share of one, or several devices, for each worker of this machine.

    Args:
        kind: "cpu" or "cuda".
        workers: Workers of each device.
        gpus: GPUs of a script; None for runs that torch trains.
        devices_per_run: Devices of each run that torch trains.

    Raises:
        AblateError: There is no such device, or there are fewer than a run needs.
    """
    threads = int(os.environ.get("SLURM_CPUS_ON_NODE") or devices.cpu_threads())
    if kind == "cpu":
        found = [Device("cpu", devices.cpu_memory(), threads)]
    else:
        found = devices.find(kind, torch=gpus is None)
        found = [replace(one, threads=max(1, threads // len(found))) for one in found]
    if gpus:
        return devices.for_scripts(found, gpus, 1)
    if devices_per_run > 1:
        if kind != "cpu" and len(found) < devices_per_run:
            raise AblateError(f"a run takes {devices_per_run} GPUs, and here are {len(found)}")
        return devices.groups(found, devices_per_run)
    return [
        replace(one, memory=one.memory // workers, threads=max(1, one.threads // workers))
        for one in found
        for _ in range(workers)
    ]


def main() -> None:
    """Run the agent of this job of Slurm, with the arguments of this process."""
    parser = argparse.ArgumentParser(prog="python -m ablate.launch.agent")
    parser.add_argument("spool", type=Path)
    parser.add_argument("--device", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--gpus", type=float)
    parser.add_argument("--devices-per-run", type=int, default=1)
    parser.add_argument("--idle", type=float, default=IDLE)
    given = parser.parse_args()
    job = "{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}".format_map(os.environ)
    slots = slots_here(given.device, given.workers, given.gpus, given.devices_per_run)
    fatal = Agent(Spool(given.spool), job, slots, given.idle).run()
    raise SystemExit(fatal or 0)


if __name__ == "__main__":
    main()
