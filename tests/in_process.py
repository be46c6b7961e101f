"""An executor without processes: each job runs in a thread of this process."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

from ablate.kinds import Job, Progress
from ablate.launch import devices
from ablate.launch.devices import Device
from ablate.launch.executor import Ended, Slot
from ablate.launch.plain import PlainTrainer
from ablate.launch.worker import Trainer, opened, provenance, train_job


class InProcessExecutor:
    """See `ablate.launch.executor.Executor`."""

    def __init__(self, devices: Sequence[Device], trainer: Callable[[], Trainer]):
        self._devices, self._trainer = devices, trainer
        self._trainers: dict[int, Trainer] = {}  # by slot
        self._jobs: dict[int, tuple[int, threading.Event]] = {}  # handle → slot, stop
        self._handles = itertools.count(1)
        self._ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()

    def capacity(self) -> Sequence[Slot]:
        busy = {slot for slot, _ in self._jobs.values()}
        return [Slot(k, device, k not in busy) for k, device in enumerate(self._devices)]

    def submit(self, slot: int, job: Job, journals: Sequence[Path]) -> int:
        handle, stop = next(self._handles), threading.Event()
        self._jobs[handle] = slot, stop
        device = self._devices[slot]
        trainer = self._trainers.setdefault(slot, self._trainer())

        def work() -> None:
            how, reason = "done", ""
            try:
                facts = trainer.setup(device.name, device.threads, device.memory)
                progress = Progress()
                with opened(journals, progress) as attempts:
                    for attempt in attempts:
                        attempt.provenance = provenance(device.name, facts, {})
                    lock = nullcontext()
                    train_job(trainer, device.name, job, attempts, stop.is_set, lock, progress)
                how = "stopped" if stop.is_set() else "done"
            except BaseException as error:
                how, reason = "lost", repr(error)
                del self._trainers[slot]
            self._ended.put(Ended(handle, how, reason))

        threading.Thread(target=work, daemon=True).start()
        return handle

    def poll(self, timeout: float) -> list[Ended]:
        found: list[Ended] = []
        try:
            while True:
                found.append(self._ended.get(timeout=0 if found else timeout))
                del self._jobs[found[-1].handle]
        except queue.Empty:
            return found

    def cancel(self, handle: int, *, kill: bool = False) -> None:
        if handle in self._jobs:
            self._jobs[handle][1].set()

    def close(self, timeout: float) -> None:
        for handle in self._jobs:
            self.cancel(handle)
        while self._jobs and self.poll(timeout):
            pass


def local(*_: object) -> InProcessExecutor:
    """Stand for the executor of this host in `ablate run`."""
    from ablate.launch.trainer import TorchTrainer

    return InProcessExecutor(devices.find("cpu"), TorchTrainer)


def scripts() -> InProcessExecutor:
    """An executor of scripts: the process of a script needs no worker's process around it."""
    return InProcessExecutor([Device("cpu", 1 << 30, 1)] * 2, PlainTrainer)
