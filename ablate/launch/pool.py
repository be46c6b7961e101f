"""Trains the stages of a study: the loop around scheduler, executor, journals and progress."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console

from ablate import metrics
from ablate.errors import AblateError
from ablate.journal import Event
from ablate.kinds import CHECKPOINTS, Job
from ablate.launch.executor import Ended, Executor, QueueExecutor
from ablate.launch.packs import Size
from ablate.launch.progress import Display, Running, Tally
from ablate.launch.scheduler import STOPS, Pack, Scheduler
from ablate.launch.signals import Signals
from ablate.plan import Plan
from ablate.plan.tuning import deciding
from ablate.store import Database, status
from ablate.store.ingest import IngestError, ingest_all
from ablate.store.owners import Owner, owned
from ablate.store.records import ACCEPTED, FAILED, Candidate, Claim
from ablate.store.runs import (
    adopt,
    candidates,
    claim,
    covered_by_checkpoint,
    explain,
    finish,
    keeps,
    status_of,
)

GRACE = 10.0  # seconds in which jobs must checkpoint once they are to stop
# Seconds in which a second signal counts as an echo of the first: `timeout` signals its child and
# then the child's process group.
ECHO = 1.0
INGEST = 1.0  # seconds between two readings of the journals
WAIT = 0.2  # seconds between two looks at signals and the display
POLL = 1.0  # seconds between two looks for runs while others train the remaining ones
CHECK = 5.0  # seconds between two looks whether attempts were taken over
# Seconds in which a job must write its first heartbeat; after that it has the owner's lease. A
# worker that starts from a cold network disk takes long.
START = 300.0
# Seconds without progress after which a job that trains or evaluates hangs, or the time of so many
# of its own steps, if that is longer.
STALL, STALL_STEPS = 300.0, 20
# the same while it is set up or compiled, makes its first step or writes a checkpoint
STALL_LONG = 1800.0
PART = 1 << 16  # bytes of each part of a script's checkpoint by which a new one is known
# Most seconds of silence that one reading of the journals counts: while this process was stopped,
# or its host asleep, workers may have been so too.
STEP = 5.0


@dataclass(frozen=True)
class Outcome:
    """The state in which a study was left.

    Attributes:
        counts: Runs by status.
        exit_code: 0: every run has its result (a diverged run has one). 1: runs failed. 130:
            Ctrl-C. 143: SIGTERM.
    """

    counts: dict[str, int]
    exit_code: int


@dataclass
class Active:
    """A job that the executor runs.

    Attributes:
        pack: What it trains.
        attempts: Those that have not ended.
        all: All its attempts.
        shown: Whether its runs are shown as running.
        heard: Whether it has written an event.
        silent: Seconds since its last event, or since it was submitted.
        begun: Whether it has reached its first step.
        done: `ablate.kinds.Progress.done`, as its worker last told it.
        long: `ablate.kinds.Progress.long`, likewise.
        still: Seconds since it last moved: since an event, or since `done` or `long` changed.
        longest: Most seconds that it stood still between two moves, from its first step on.
        hung: Why it was killed, if it was silent or stood still for too long.
    """

    pack: Pack
    attempts: dict[int, tuple[Claim, Candidate]] = field(default_factory=dict)
    all: tuple[int, ...] = field(init=False)
    shown: bool = False
    heard: bool = False
    silent: float = 0.0
    begun: bool = False
    done: int = 0
    long: bool = True
    still: float = 0.0
    longest: float = 0.0
    hung: str = ""

    def __post_init__(self) -> None:
        self.all = tuple(self.attempts)

    def told(self, event: Event) -> None:
        """Note what an event says about its progress."""
        self.heard, self.silent = True, 0.0
        done, long = event.get("done", self.done), event.get("long", self.long)
        if event["event"] != "heartbeat" or (done, long) != (self.done, self.long):
            # while it is long only the first step counts
            if self.begun and (not self.long or not self.longest):
                self.longest = max(self.longest, self.still)
            self.done, self.long, self.still = done, long, 0.0
        self.begun |= event["event"] == "start"

    def hangs(self, lease: float) -> str:
        """Return why it is to be killed; "" if it is not.

        Args:
            lease: Seconds in which a worker that has been heard sends a heartbeat.
        """
        limit = lease if self.heard else START
        if self.silent > limit:
            return f"its worker sent no heartbeat for {limit:g} s and was killed"
        limit = STALL_LONG if self.long else max(STALL, STALL_STEPS * self.longest)
        if self.still > limit:
            return f"its worker made no progress for {limit:.0f} s and was killed"
        return ""


class WorkerPool:
    """Trains one study with an executor. A context manager: at its end all jobs have ended.

    One thread, which alone talks to the executor and writes the database. Several pools may train
    the same study at once, each in its own process.

    Args:
        executor: Runs the jobs.
        db: The database.
        study: Name of the study.
        metric: The study's metric, shown when a run is complete.
        console: Where progress is shown.
        fail_fast: Stop at the first run that fails.
    """

    def __init__(
        self,
        executor: Executor,
        db: Database,
        study: str,
        metric: str,
        console: Console,
        *,
        fail_fast: bool = False,
    ):
        self._executor, self._db, self._study, self._metric = executor, db, study, metric
        self._queue = executor if isinstance(executor, QueueExecutor) else None
        several = len({slot.device.name for slot in executor.capacity()}) > 1
        self._scheduler = Scheduler(longest_first=several, fail_fast=fail_fast)
        self._tally, self._signals = Tally(), Signals()
        self._display = Display(console, study, self._tally)
        self._stack = ExitStack()
        self._jobs: dict[int, Active] = {}  # by the executor's handle
        self._of: dict[int, Active] = {}  # attempt that has not ended → its job
        self._waiting = self._scheduler.queue([], {})
        self._warned = False  # of a run that was stopped without progress
        self._deadline: float | None = None  # of all jobs, once they are to stop
        self._signals_seen = 0
        self._first_signal = 0.0
        self._ingested = time.monotonic()  # when journals were last read
        self._next: dict[str, float] = {}  # what is done every few seconds → when it is due

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            queue = self._queue.queue if self._queue else ""
            self._owner = stack.enter_context(Owner.here(self._db, on=queue))
            stack.enter_context(self._signals)
            stack.enter_context(self._display)
            stack.push(self._record)
            stack.callback(self._executor.close, GRACE)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error and self._queue:
            self._leave(self._queue)  # the next launcher goes on with its jobs
        self._stack.__exit__(kind, error, trace)

    def _record(self, _: object, error: BaseException | None, __: object) -> None:
        """Leave why this launcher ended for the attempts that have not: it may be a full disk."""
        if error and self._of:
            self._owner.leave(f"its launcher ended: {error}")

    def run(self, plan: Plan, study_id: int) -> bool:
        """Train the unfinished runs of a plan; return whether the study may continue.

        Args:
            plan: The plan, which is registered in the database.
            study_id: Its study.

        Raises:
            AblateError: No worker starts, a disk is full, or a journal cannot be read.
        """
        self._plan, self._study_id = plan, study_id
        self._next.clear()
        if self._queue:
            self._adopt(self._queue)
        while self._tick():
            pass
        for file in status.unneeded_checkpoints(self._db):
            file.unlink(missing_ok=True)
        return self._deadline is None

    def outcome(self) -> Outcome:
        """Return, and show, how the study was left; to be called when the pool is closed."""
        after = status.survey(self._db, self._study_id).counts
        totals = ", ".join(f"{number} {status}" for status, number in sorted(after.items()))
        self.say(f"{self._study}: {totals}")
        if self._signals.received:
            return Outcome(after, 128 + self._signals.received[0])
        return Outcome(after, int(bool(after.keys() & {*FAILED})))

    def say(self, text: str) -> None:
        """Print a line that stays above the bars."""
        self._display.say(text)

    def _tick(self) -> bool:
        """Do one round of all tasks; return whether there is more to do or to wait for."""
        self._handle_signals()
        more = False
        if self._deadline is None:
            more = self._submit_jobs()
        elif time.monotonic() > self._deadline:
            self._cancel(kill=True)
        if not more and not self._jobs:
            return False
        if ended := self._executor.poll(WAIT):
            self._ingest([attempt for one in ended for attempt in self._jobs[one.handle].attempts])
            for one in ended:
                self._job_ended(one)
        if self._due("ingest", INGEST):
            begun = time.monotonic()
            self._ingest([attempt for job in self._jobs.values() for attempt in job.attempts])
            self._show_begun()
            self._kill_hung(min(STEP, begun - self._ingested))
            self._ingested, took = begun, time.monotonic() - begun
            self._next["ingest"] = time.monotonic() + max(INGEST, 4 * took)
        if self._due("check", CHECK):
            self._kill_taken_over()
        self._display.refresh()
        return True

    def _due(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + every
        return True

    def _adopt(self, queue: QueueExecutor) -> None:
        """Go on with the jobs that an earlier launcher left in the queue."""
        if self._jobs:
            return
        left = queue.outstanding()
        handles = {path.name: handle for handle, paths in left.items() for path in paths}
        runs: dict[int, list[tuple[Claim, Candidate]]] = {handle: [] for handle in left}
        for claimed, run in adopt(self._db, self._study, self._owner, handles):
            runs[handles[claimed.journal.name]].append((claimed, run))
        slot = self._executor.capacity()[0]
        for handle, those in runs.items():
            pack = Pack(slot, tuple(run for _, run in those), Size(len(those)), 0, None)
            attempts = {claimed.attempt_id: (claimed, run) for claimed, run in those}
            # how long its steps take was told to the earlier launcher
            self._add(handle, Active(pack, attempts, longest=STALL_LONG / STALL_STEPS))
            if not those:  # which another launcher has closed
                queue.cancel(handle, kill=True)
        if number := sum(map(len, runs.values())):
            self.say(f"{self._study}: continues {number} runs that are already queued")

    # -- submitting --------------------------------------------------------------------------------

    def _submit_jobs(self) -> bool:
        """Give every free slot a job; return whether more may come, here or elsewhere."""
        slots = self._executor.capacity()
        if not any(slot.free for slot in slots) or not self._due("submit", POLL):
            return True
        listed = not self._jobs or self._due("list", 0.0)
        begun = time.monotonic()
        more = self._list_runs() if listed else True
        took = time.monotonic() - begun
        while pack := self._waiting.next(self._executor.capacity()):
            self._submit(pack)
        self._show_begun()
        if listed:
            self._tally.update(status.survey(self._db, self._study_id))
            # lists take a tenth of the time, however many runs there are
            self._next["list"] = time.monotonic() + 9 * took
        return more

    def _list_runs(self) -> bool:
        """Read from the database what can be trained; return whether more may come."""
        # Counted before candidates are listed: a run whose owner ends in between is one of them.
        claimed = status.survey(self._db, self._study_id).claimed
        waiting = candidates(self._db, self._study_id, self._owner, self._plan.study.keep)
        if orphans := self._scheduler.orphans(waiting):
            self._fail(orphans)
            waiting = candidates(self._db, self._study_id, self._owner, self._plan.study.keep)
        some = any(run.checkpoint for run in waiting)
        checkpoints = status.checkpoints(self._db, self._study_id) if some else {}
        self._waiting = self._scheduler.queue(waiting, checkpoints)
        return not self._scheduler.done(waiting, claimed)

    def _submit(self, pack: Pack) -> None:
        by_id = {run.run_id: run for run in pack.runs}
        keep = self._plan.study.keep
        claims = claim(self._db, self._study_id, self._owner, list(by_id), keep)
        if not claims:
            return  # another launcher was quicker
        first = claims[0]
        pack = replace(pack, runs=tuple(by_id[each.run_id] for each in claims))
        covered = None
        if pack.checkpoint:
            covered = min(covered_by_checkpoint(self._db, each.run_id) for each in claims)
        job = Job(
            runs=tuple(each.run for each in claims),
            evaluation=first.evaluation,
            use=self._plan.study.use,
            sources=self._plan.sources,
            checkpoint=self._db.checkpoints / f"{first.run.key[:12]}-{first.n}.pt",
            resume=Path(pack.checkpoint) if pack.checkpoint else None,
            covered=covered,
            micro_batch=pack.size.micro_batch,
            recompute=pack.size.recompute,
            settings=self._plan.settings,
            weights=self._weights(pack),
            best=self._plan.study.keep == "best",
            parents=self._parents(claims),
            folder=self._db.outputs / first.run.key[:12],
            log=first.journal.with_suffix(".log"),
        )
        handle = self._executor.submit(pack.slot.number, job, [each.journal for each in claims])
        attempts = {
            each.attempt_id: (each, run) for each, run in zip(claims, pack.runs, strict=True)
        }
        self._add(handle, Active(pack, attempts))

    def _add(self, handle: int, job: Active) -> None:
        self._jobs[handle] = job
        self._of |= dict.fromkeys(job.attempts, job)

    def _fail(self, runs: Sequence[tuple[Candidate, str]]) -> None:
        """Record that runs failed, each for its reason, without training them."""
        of = {run.run_id: (run, why) for run, why in runs}
        for each in claim(self._db, self._study_id, self._owner, list(of)):
            run, why = of[each.run_id]
            finish(self._db, each.attempt_id, "failed", why)
            self.say(f"{self._study}: {run.cell}, seed {run.run.seed} failed: {why}")

    def _weights(self, pack: Pack) -> tuple[Path | None, ...]:
        """Return the files for weights of its runs; tuning runs keep none."""
        if (keep := self._plan.study.keep) == "none":
            return ()
        return tuple(
            self._db.weights_of(one.run.key, keep) if keeps(one.run, one.role) else None
            for one in pack.runs
        )

    def _show_begun(self) -> None:
        """Show the jobs that a worker has taken since the last call."""
        waiting = self._queue.waiting() if self._queue else ()
        for handle, job in self._jobs.items():
            if handle not in waiting:
                self._show_job(job)

    def _show_job(self, job: Active) -> None:
        if not job.shown:
            job.shown = True
            for each, run in job.attempts.values():
                self._show_begin(each, run, job.pack)

    def _parents(self, claims: Sequence[Claim]) -> tuple[Path | None, ...]:
        """Return the files with the weights that runs start from; () where none does."""
        files = [
            self._db.weights_of(one.run.parent, "final") if one.run.parent else None
            for one in claims
        ]
        return tuple(files) if any(files) else ()

    def _show_begin(self, each: Claim, run: Candidate, pack: Pack) -> None:
        tune = self._plan.study.tune
        rate = (
            f", {tune.field} {run.run.fields[tune.field]:g}" if tune and run.role == "tune" else ""
        )
        first = "pre-training for " if run.role == "pretrain" else ""
        label = f"{first}{run.cell}, seed {run.run.seed}{rate}"
        cost = run.run.cost
        step_tokens = (cost.tokens or 0) // (cost.steps or 1)
        study = self._plan.study
        own = (metrics.final(study.reported)[0], study.metric) if study.command else ()
        metric = deciding(study, run.run) if run.role == "tune" else self._metric
        running = Running(label, cost.steps, step_tokens, run.flops, metric, *own)
        self._tally.begin(run.run.key, running)
        if pack.oom_level and each.n > 1:
            self.say(f"{self._study}: {label} is retried with {pack.in_memory}")

    # -- ends of jobs ------------------------------------------------------------------------------

    def _job_ended(self, ended: Ended) -> None:
        """Close the attempts of a job whose journals, read completely, have no `end` event."""
        job = self._jobs[ended.handle]
        self._show_job(job)
        how, reason = "dead", ended.reason or "its worker ended the job but not its journal"
        if ended.how == "stopped":
            how = "stopped"
        if job.hung:
            how, reason = "dead", job.hung
        if ended.how != "done" and self._deadline is not None:
            how, reason = "stopped", "it was stopped before it could write a checkpoint"
            if not job.begun:
                reason = "it was stopped during its set-up, before it had trained a step"
        for attempt, (claimed, _) in list(job.attempts.items()):
            if finish(self._db, attempt, how, reason):
                # a worker that does not start on this host is no matter of the run
                counts = job.begun or ended.evicted
                self._attempt_ended(job, attempt, how, reason, counts=counts)
            else:
                self._attempt_ended(job, attempt, *_elsewhere(status_of(self._db, claimed.run_id)))
        if self._queue and ended.how == "stopped" and ended.reason:
            explain(self._db, job.all, ended.reason)
        del self._jobs[ended.handle]
        self._next.pop("submit", None)
        if ended.fatal:
            raise AblateError(ended.fatal)
        if ended.notice:
            self.say(ended.notice)

    def _ingest(self, attempts: Sequence[int]) -> None:
        """Read journals into the database, and show what is new."""
        try:
            self._show(ingest_all(self._db, attempts))
        except IngestError as error:
            self._show(error.ingested)
            raise

    def _show(self, new: dict[int, list[Event]]) -> None:
        for attempt, events in new.items():
            job = self._of[attempt]
            if events:
                self._show_job(job)
            key = job.attempts[attempt][0].run.key
            for event in events:
                job.told(event)
                self._tally.observe(key, event)
                if event["event"] == "end":
                    why = event.get("error") or ""
                    self._attempt_ended(job, attempt, event["status"], why, counts=True)

    def _attempt_ended(
        self, job: Active, attempt: int, how: str, error: str, *, counts: bool = False
    ) -> None:
        """Note the end of an attempt.

        Args:
            job: Its job.
            attempt: The attempt.
            how: Its status.
            error: Why it ended so.
            counts: Whether it counts against the run that it was stopped.
        """
        claimed, run = job.attempts.pop(attempt)
        del self._of[attempt]
        if how == "oom":
            self._next.pop("list", None)  # the shape's other runs get smaller packs
        last = self._scheduler.ended(job.pack, run, how)
        if how == "dead" and not last:
            error = f"{error}; it is tried again"
        ended = self._tally.end(claimed.run.key, done=last)
        self._display.ended(ended, how, error)
        if how == "stopped" and counts and self._deadline is None:
            self._stopped(run, ended)
        if self._scheduler.stopped and self._deadline is None:
            self._stop()

    def _stopped(self, run: Candidate, ended: Running) -> None:
        """Give a run up that was stopped again and again without progress; warn before that."""
        folder = self._db.outputs / run.run.key[:12] / CHECKPOINTS
        saved = {ended.saved} if ended.saved else _contents(folder)
        known = self._scheduler.stop(run, ended.step, frozenset(saved))
        if not known.times:
            return
        longer = (
            "give its Slurm jobs a longer `time`, as with --slurm time=8:00:00"
            if self._queue
            else "train it where it is not stopped so soon"
        )
        if self._plan.study.command:
            longer += ", or let the script save to $ABLATE_CHECKPOINTS and continue from there"
        if known.times >= STOPS:
            why = (
                f"{STOPS} attempts in a row were stopped without a new checkpoint or a step beyond"
                f" {known.step}: {longer}"
            )
            self._fail([(run, why)])
        elif not self._warned:
            self._warned = True
            self.say(
                f"{self._study}: {ended.label} was stopped without a new checkpoint. After {STOPS}"
                f" such attempts in a row it fails; to avoid this, {longer}"
            )

    def _kill_hung(self, seconds: float) -> None:
        """Kill jobs whose worker has sent no heartbeat, or made no progress, for too long.

        Args:
            seconds: What the silence of a job without a new event has grown by.
        """
        waiting = self._queue.waiting() if self._queue else ()
        for handle, job in self._jobs.items():
            if handle in waiting:
                continue
            job.silent += seconds
            job.still += seconds
            if not job.hung and (why := job.hangs(self._owner.lease)):
                job.hung = why
                self._executor.cancel(handle, kill=True)

    def _kill_taken_over(self) -> None:
        """Kill jobs with an attempt that another launcher has taken over."""
        ours = owned(self._db, self._owner) if self._jobs else set()
        for handle, job in self._jobs.items():
            if not ours.issuperset(job.attempts):
                self._executor.cancel(handle, kill=True)

    # -- stopping ----------------------------------------------------------------------------------

    def _handle_signals(self) -> None:
        before, self._signals_seen = self._signals_seen, len(self._signals.received)
        if self._signals_seen == before:
            return
        if before == 0:
            self._first_signal = time.monotonic()
            if self._queue and self._deadline is None:
                self._deadline = time.monotonic()
                self._jobs.clear()
                self._of.clear()
                self._leave(self._queue)
                return
            self.say("stopping: running jobs write a checkpoint; press Ctrl-C again to kill them")
            if self._deadline is None:
                self._stop()
        elif time.monotonic() - self._first_signal > ECHO:
            self._cancel(kill=True)

    def _leave(self, queue: QueueExecutor) -> None:
        if line := queue.leave():
            self.say(f"{self._study}: {line}")

    def _stop(self) -> None:
        self._deadline = time.monotonic() + GRACE
        self._cancel()

    def _cancel(self, *, kill: bool = False) -> None:
        for handle in self._jobs:
            self._executor.cancel(handle, kill=kill)


def _contents(folder: Path) -> Iterator[tuple[Path, int, bytes]]:
    """Yield the files of a folder, each with its size and a digest of three parts of its content.

    When they were written tells nothing: a script may write its configuration at each start. Three
    parts, because checkpoints may have gigabytes, and training changes all of a checkpoint.
    """
    for path in folder.rglob("*"):
        # a script may be removing it
        with contextlib.suppress(OSError):
            if path.is_file():
                size, digest = path.stat().st_size, hashlib.sha256()
                with path.open("rb") as file:
                    for at in (0, size // 2, max(0, size - PART)):
                        file.seek(at)
                        digest.update(file.read(PART))
                yield path, size, digest.digest()


def _elsewhere(status: str) -> tuple[str, str]:
    """Return how an attempt ended, and why, that another launcher took over.

    Args:
        status: The status of its run now.
    """
    if status in ACCEPTED:
        return status, "another launcher took it over and finished it"
    doing = "trains it" if status == "running" else "left it"
    return "stopped", f"another launcher took it over and {doing}"
