"""Choose the next job, and decide what the end of an attempt means, without process or database."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ablate import sizes
from ablate.kinds import Run
from ablate.launch import packs
from ablate.launch.executor import Slot
from ablate.launch.packs import Size
from ablate.store.records import ACCEPTED, Candidate

# Most attempts of a run that loses its worker or runs out of memory. A run that fails by itself
# gets one attempt: it would fail again.
RETRIES = 3
# Most attempts of a run in a row that were stopped without progress, after which it fails: one that
# is longer than the time limit of its cluster, and saves nothing, would begin again for ever.
STOPS = 3

_ENDED = {  # status of a parent → what has happened, if it has not failed
    "diverged": "diverged",
    "oom": "ran out of memory",
    "timeout": "took too long",
}


@dataclass(frozen=True)
class Pack:
    """Runs to train together as one job.

    Attributes:
        slot: Where.
        runs: Its runs, of one shape.
        size: How many were to train together, and how they keep within memory.
        oom_level: How often their shape had run out of memory.
        checkpoint: File that its runs wrote together and resume from; None to begin at step 0.
    """

    slot: Slot
    runs: tuple[Candidate, ...]
    size: Size
    oom_level: int
    checkpoint: str | None

    @property
    def in_memory(self) -> str:
        """How much of it is in memory at once, in words."""
        if not self.size.micro_batch:
            return f"{len(self.runs)} run{'s' if len(self.runs) > 1 else ''} at a time"
        again = ", and blocks recomputed in the backward pass" if self.size.recompute else ""
        batch, n = sizes.batch(self.runs[0].run.config), self.slot.device.count
        each = f" on each of {n} devices" if n > 1 else ""
        return f"{self.size.micro_batch} of {batch} sequences in memory at once{each}{again}"


@dataclass(frozen=True)
class Stopped:
    """What is known of a run that was stopped.

    Attributes:
        times: Attempts in a row that have made no progress.
        step: The furthest that any attempt has reached.
        saved: What the newest checkpoint is known by; empty before the first.
    """

    times: int = 0
    step: int = 0
    saved: frozenset[Hashable] = frozenset()


class Scheduler:
    """Chooses jobs for one launcher. Jobs become smaller where memory runs out.

    Args:
        longest_first: Take the longest runs first, so that no device is left training long after
            the others have ended; else runs come in the order of the plan.
        fail_fast: Stop at the first run that fails.
    """

    def __init__(self, *, longest_first: bool = False, fail_fast: bool = False):
        self._longest_first, self._fail_fast = longest_first, fail_fast
        self._oom_levels: dict[str, int] = {}  # shape → how often it ran out of memory
        self._stops: dict[str, Stopped] = {}  # by the key of a run
        self.stopped = False  # by a failure, with `fail_fast`

    def queue(self, candidates: Sequence[Candidate], checkpoints: Mapping[str, str]) -> Queue:
        """Return the runs that can be trained now, as a queue from which jobs are taken.

        Args:
            candidates: Runs that can be claimed, in the order of the plan.
            checkpoints: Key of a run → its newest checkpoint.
        """
        return Queue(self._ready(candidates), checkpoints, self._oom_levels)

    def done(self, candidates: Sequence[Candidate], running: int) -> bool:
        """Return whether nothing is left to train.

        Args:
            candidates: Runs that can be claimed.
            running: Runs that this or another launcher trains; their end may make other runs ready
                to train.
        """
        return not running and not self._ready(candidates)

    def orphans(self, candidates: Sequence[Candidate]) -> list[tuple[Candidate, str]]:
        """Return the runs whose parent has no result that they could start from, and why.

        Args:
            candidates: Runs that can be claimed.
        """
        given_up = {run.run.key for run in candidates if not may_retry(run)}
        found = []
        for run in candidates:
            # one that has a result without weights keeps its status where it fails again
            lost = run.parent == "diverged" or (not run.can_start and run.run.parent in given_up)
            if lost and may_retry(run):
                how = _ENDED.get(run.parent, "failed")
                found.append((run, f"its parent run {run.run.parent[:12]} {how}"))
        return found

    def ended(self, pack: Pack, run: Candidate, status: str) -> bool:
        """Record how an attempt of a run ended; return whether that was the run's last attempt.

        Args:
            pack: The job that it was trained in.
            run: The run, as it was before the attempt.
            status: How the attempt ended: "complete", "diverged", "failed", "timeout", "oom",
                "dead" or "stopped".
        """
        if status == "oom":
            level = self._oom_levels.get(run.run.pack_key, 0)  # of a pack that ended meanwhile
            self._oom_levels[run.run.pack_key] = max(level, pack.oom_level + 1)
        exhausted = status in ("dead", "oom") and run.losses + 1 >= RETRIES
        failed = status in ("failed", "timeout") or exhausted
        self.stopped |= failed and self._fail_fast
        return failed or status in ACCEPTED

    def stop(self, run: Candidate, step: int, saved: frozenset[Hashable]) -> Stopped:
        """Record that an attempt of a run was stopped; return what is known of its stops.

        An attempt has made progress if it left a new checkpoint, or reached a further step than
        those before it, as a script does that saves elsewhere.

        Args:
            run: The run.
            step: The last step that it reached.
            saved: What its newest checkpoint is known by; empty if it left none.
        """
        before = self._stops.get(run.run.key)
        known = before or Stopped()
        saved = saved or known.saved
        further = saved != known.saved or (before is not None and step > known.step)
        now = Stopped(0 if further else known.times + 1, max(step, known.step), saved)
        self._stops[run.run.key] = now
        if now.times >= STOPS:
            self.stopped |= self._fail_fast
        return now

    def _ready(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the runs that can be trained now, the next one first: parents before children."""
        ready = [run for run in candidates if run.can_start and may_retry(run)]

        def order(run: Candidate) -> tuple[bool, float]:
            tried = run.losses > 0
            return tried, -(run.flops or 0.0) if self._longest_first else 0.0

        return sorted(ready, key=order)


class Queue:
    """Runs that can be trained now. Taking all of its jobs costs O(n log n) for n runs.

    Args:
        ready: The runs, the next one first.
        checkpoints: Key of a run → its newest checkpoint.
        oom_levels: Shape → how often it ran out of memory; checkpoints of these are not used.
    """

    def __init__(
        self,
        ready: Sequence[Candidate],
        checkpoints: Mapping[str, str],
        oom_levels: Mapping[str, int],
    ):
        self._oom_levels = oom_levels
        self._alike: dict[tuple[str, str | None], deque[tuple[int, Candidate]]] = {}
        self._examples: dict[str, Run] = {}  # shape → a run of it: all have one size
        for place, run in enumerate(ready):
            shape = run.run.pack_key
            self._examples.setdefault(shape, run.run)
            file = None if shape in oom_levels else checkpoints.get(run.run.key)
            self._alike.setdefault((shape, file), deque()).append((place, run))
        self._first = [(runs[0][0], key) for key, runs in self._alike.items()]  # a heap

    def __bool__(self) -> bool:
        return bool(self._first)

    def next(self, slots: Sequence[Slot]) -> Pack | None:
        """Take out the next job for a free slot; None if there is no slot or no run.

        Its runs are of one shape. Those that wrote a checkpoint together resume together.

        Args:
            slots: All slots, those that are busy included.
        """
        slot = next((slot for slot in slots if slot.free), None)
        if slot is None or not self._first:
            return None
        shape, file = key = self._first[0][1]
        runs = self._alike[key]
        level = self._oom_levels.get(shape, 0)
        size = packs.size(self._examples[shape], slot.device, level, last=level >= RETRIES - 1)
        n = len(runs) if file else packs.share(len(runs), size.runs, _idle_devices(slots))
        taken = tuple(runs.popleft()[1] for _ in range(min(n, len(runs))))
        if runs:
            heapq.heapreplace(self._first, (runs[0][0], key))
        else:
            heapq.heappop(self._first)
        return Pack(slot, taken, size, level, file)


def may_retry(run: Candidate) -> bool:
    """Return whether this launcher may try a run again, after the attempts that it made of it."""
    return not run.failures and run.losses < RETRIES


def _idle_devices(slots: Sequence[Slot]) -> int:
    """Devices without any job, or 1 if only some worker of a busy device has none."""
    busy = {slot.device.name for slot in slots if not slot.free}
    return max(1, len({slot.device.name for slot in slots} - busy))
