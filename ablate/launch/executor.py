"""The protocol of an executor, which runs jobs, in local workers or on a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from ablate.kinds import Job
from ablate.launch.devices import Device


@dataclass(frozen=True)
class Slot:
    """Room for one job at a time.

    Attributes:
        number: Unique among the slots of an executor.
        device: What the job trains on.
        free: Whether a job can be submitted to it.
    """

    number: int
    device: Device
    free: bool


@dataclass(frozen=True)
class Ended:
    """A job that an executor no longer runs. Its journals say how its runs ended.

    Attributes:
        handle: What `submit` returned.
        how: "done": the job ran to its end. "lost": its worker died, perhaps because of the job.
            "stopped": it was cancelled, or its worker died for another reason.
        reason: Why its worker died.
        notice: A sentence for the user on a slot that the executor gave up.
        fatal: Why no job can run any more; "" if others can.
        evicted: Whether the cluster took its machine away, as at a time limit.
    """

    handle: int
    how: Literal["done", "lost", "stopped"]
    reason: str = ""
    notice: str = ""
    fatal: str = ""
    evicted: bool = False


class Executor(Protocol):
    """Runs jobs; the journals of a job's runs record how they end. It does not use the database.

    `tests/test_executors.py` tests what every executor must do.
    """

    def capacity(self) -> Sequence[Slot]:
        """Return the slots in service."""
        ...

    def submit(self, slot: int, job: Job, journals: Sequence[Path]) -> int:
        """Run a job in a free slot, and return a handle.

        Args:
            slot: Number of the slot.
            job: What to train.
            journals: One file for each of its runs, which its worker writes.
        """
        ...

    def poll(self, timeout: float) -> list[Ended]:
        """Return the jobs that ended since the last call, each once.

        Args:
            timeout: Seconds to wait if none has ended.
        """
        ...

    def cancel(self, handle: int, *, kill: bool = False) -> None:
        """Ask a job to checkpoint and end; with `kill` end it at once. `poll` reports its end."""
        ...

    def close(self, timeout: float) -> None:
        """End all jobs as `cancel` does, and kill those that have not ended after `timeout` s."""
        ...


@runtime_checkable
class QueueExecutor(Executor, Protocol):
    """An executor whose jobs wait in a queue, and go on when the launcher has ended.

    Attributes:
        queue: The queue, such as "slurm/STUDY", of which one launcher at a time takes care.
    """

    queue: str

    def waiting(self) -> AbstractSet[int]:
        """Return the jobs that no worker has taken yet."""
        ...

    def outstanding(self) -> Mapping[int, Sequence[Path]]:
        """Return, once, handle → journals of the jobs that an earlier launcher left.

        `poll` reports their ends too.
        """
        ...

    def leave(self) -> str:
        """Let all jobs go on without this process; return a line on how to return to them,
        "" if there are none.

        Afterwards `close` does nothing.
        """
        ...
