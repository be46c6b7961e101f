"""Runs a study: claims its runs, feeds them to warm workers, reads what they write into the
database.
"""

from __future__ import annotations

import selectors
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import IO

from rich.console import Console

from ablate import sizes
from ablate.errors import AblateError
from ablate.journal import Event
from ablate.launch import packs
from ablate.launch.devices import Device
from ablate.launch.jobs import Job, Jobs
from ablate.launch.process import WorkerProcess
from ablate.launch.progress import Display, Running, Tally
from ablate.launch.signals import Signals
from ablate.launch.worker import NO_ROOM
from ablate.plan import Plan
from ablate.store import Database, status
from ablate.store.ingest import IngestError, ingest_all
from ablate.store.runs import RETRIES, Claim, Owner, counts, finish, heartbeat, register
from ablate.store.schema import ACCEPTED

GRACE = 10.0  # seconds that running jobs have to checkpoint when the launcher stops
# seconds in which a second signal is the first one's echo: `timeout` sends to its child and to the
# group
ECHO = 1.0
LISTEN = 0.2  # seconds between two looks at signals and the display
INGEST = 1.0  # seconds between two readings of the journals
BEAT = 5.0  # seconds between two heartbeats
POLL = 1.0  # seconds between two claims while others hold the remaining runs
FAILED_STARTS = 3  # workers in a row that do not get their device to work, before it is given up


@dataclass(frozen=True)
class Outcome:
    """How a study was left: its runs by status, and the exit code of the command.

    0: every run has its result (a diverged run is one); 1: runs failed; 130: Ctrl-C; 143: SIGTERM.
    """

    counts: dict[str, int]
    exit_code: int


@dataclass
class Seat:
    """A device, its worker, the job that this has, and those of its runs that have not ended."""

    device: Device
    turns: IO[bytes] | None = None  # the file by which the workers of its device take turns
    process: WorkerProcess | None = None
    job: Job | None = None
    claims: list[Claim] = field(default_factory=list)
    failed_starts: int = 0


def run(
    plan: Plan,
    db: Database,
    *,
    places: Sequence[Device],
    fail_fast: bool = False,
    console: Console | None = None,
    then: Callable[[], Plan] | None = None,
    meanwhile: Callable[[], None] | None = None,
) -> Outcome:
    """Do what is missing of a plan on some devices, and show progress. Several processes may run
    the same study at once.

    then: asked, when nothing is left to do, for the plan to go on with; one with the same runs ends
    it. meanwhile: done beside it, once workers have been started; an error in it is not raised, and
    has to show where its work is missed. With `fail_fast` the first run that fails ends it.
    `AblateError` where no worker starts.
    """
    seats = packs.seats(plan, places)
    study_id = register(db, plan)
    beside = ThreadPoolExecutor(
        1
    )  # its thread is waited for by Python's end alone, so that a Ctrl-C need not wait for it
    besides = partial(beside.submit, meanwhile) if meanwhile else None
    with Owner.here(db) as owner, Signals() as signals:
        return Launcher(
            plan,
            db,
            study_id,
            owner,
            seats,
            fail_fast,
            console or Console(),
            signals,
            then,
            besides,
        ).run()


class Launcher:
    """One thread: it alone talks to the workers, and writes the database."""

    def __init__(
        self,
        plan: Plan,
        db: Database,
        study_id: int,
        owner: Owner,
        places: list[Device],
        fail_fast: bool,
        console: Console,
        signals: Signals,
        then: Callable[[], Plan] | None = None,
        meanwhile: Callable[[], object] | None = None,
    ):
        self._plan, self._then, self._meanwhile = plan, then, meanwhile
        self._db, self._study_id, self._owner = db, study_id, owner
        several = (
            len({device.name for device in places}) > 1
        )  # then none is left at work long after the others
        self._jobs = Jobs(plan, db, study_id, owner, longest_first=several)
        gpus = Counter(device.name for device in places if device.name.startswith("cuda"))
        turns = {name: tempfile.TemporaryFile() for name, workers in gpus.items() if workers > 1}  # noqa: SIM115 (kept open)
        self._seats = [Seat(device, turns.get(device.name)) for device in places]
        self._fail_fast, self._signals = fail_fast, signals
        self._tally = Tally()
        self._name = plan.study.name
        self._display = Display(console, self._name, self._tally)
        self._selector = selectors.DefaultSelector()
        self._selector.register(signals, selectors.EVENT_READ)
        self._in_vain: dict[
            int, int
        ] = {}  # run → attempts whose worker died or had too little memory
        # by which everything must have ended, once it is to stop
        self._deadline: float | None = None
        self._heeded = 0  # signals
        self._first_signal = 0.0
        self._next: dict[str, float] = {}  # what is done every few seconds → when again

    def run(self) -> Outcome:
        with self._display:
            try:
                while self._turn() or self._go_on():
                    pass
            finally:
                deadline = time.monotonic() + GRACE
                for seat in self._seats:
                    if seat.process:
                        seat.process.close()
                for seat in self._seats:
                    if seat.process:
                        seat.process.release(max(0.0, deadline - time.monotonic()))
                self._selector.close()
        after = counts(self._db, self._study_id)
        self._display.say(
            f"{self._name}:"
            f" {', '.join(f'{number} {status}' for status, number in sorted(after.items()))}"
        )
        if self._signals.received:
            return Outcome(after, 128 + self._signals.received[0])
        return Outcome(after, int(bool(after.keys() & {"failed", "oom"})))

    def _turn(self) -> bool:
        """Look after everything once. False when there is nothing left to do or to wait for."""
        self._heed_signals()
        more = False
        if self._deadline is None:
            more = self._feed()
            self._use_the_wait()
        elif time.monotonic() > self._deadline:
            self._kill()
        if not more and not any(seat.job for seat in self._seats):
            return False
        self._listen()
        if self._due("ingest", INGEST):
            self._ingest_all()
        if self._due("beat", BEAT):
            self._beat()
        self._display.refresh()
        return True

    def _use_the_wait(self) -> None:
        if self._meanwhile and any(seat.process for seat in self._seats):
            self._meanwhile()
            self._meanwhile = None

    def _go_on(self) -> bool:
        """Take up the plan that follows from what was done, where there is one."""
        if (
            self._then is None
            or self._deadline is not None
            or (plan := self._then()).runs == self._plan.runs
        ):
            return False
        self._plan = plan
        register(self._db, plan)
        self._next["feed"] = 0.0
        return True

    def _due(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + every
        return True

    # -- giving work -------------------------------------------------------------------------------

    def _feed(self) -> bool:
        """Give every idle worker a job. Whether, apart from the jobs at work, more may come."""
        idle = [seat for seat in self._seats if not seat.job]
        if not idle or not self._due("feed", POLL):
            return True
        for seat in idle:
            job = self._jobs.next(seat.device, self._idle_devices())
            study = status.survey(
                self._db, self._study_id
            )  # after the claim: a run that is tried again is not done
            self._tally.update(study)
            if not job:
                return study.running > 0
            self._assign(seat, job)
        return True

    def _idle_devices(self) -> int:
        """How many devices have nothing to do at all, or 1 where only some worker has not."""
        return max(
            1,
            len(
                {seat.device.name for seat in self._seats}
                - {seat.device.name for seat in self._seats if seat.job}
            ),
        )

    def _assign(self, seat: Seat, job: Job) -> None:
        if seat.process is None:
            seat.process = WorkerProcess(seat.device, seat.turns)
            self._selector.register(seat.process, selectors.EVENT_READ, seat)
        seat.process.send(job.message)
        seat.job, seat.claims = job, list(job.claims)
        for claim in job.claims:
            config = claim.config
            label = f"{claim.cell}, seed {config.seed}" + (
                f", lr {config.lr:g}" if claim.role == "tune" else ""
            )
            flops, metric = sizes.train_flops(config), self._plan.study.metric
            self._tally.begin(
                config.key, Running(label, config.steps, config.batch_tokens, flops, metric)
            )
            if job.squeezed and claim.n > 1:
                self._display.say(f"{self._name}: {label} is tried again with {job.within}")

    # -- listening ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Wait a moment for workers and signals, and take in what the workers say."""
        for key, _ in self._selector.select(LISTEN):
            seat = key.data
            if seat is None:
                self._signals.drain()
            elif (finished := seat.process.finished()) is None:
                self._bury(seat)
            elif (
                finished
            ):  # not before it says so is it free, though its runs have ended in their journals
                assert seat.job and finished == [seat.job.message["job"]]
                self._settle(
                    seat, "dead", "the worker said that it was done, and its journal does not"
                )

    def _settle(self, seat: Seat, otherwise: str, why: str) -> None:
        """The seat's job is over: read its journals to their end; runs that have not ended there
        end as `otherwise`.
        """
        self._ingest([seat])
        for claim in list(seat.claims):
            finish(self._db, claim.attempt_id, otherwise, why)
            self._ended(seat, claim, otherwise, why)
        seat.job = None
        self._next["feed"] = 0.0

    def _bury(self, seat: Seat) -> None:
        """A worker has ended, by itself or not."""
        assert seat.process
        self._selector.unregister(seat.process)
        why = seat.process.obituary()
        ready, full = seat.process.ready, seat.process.exit_code == NO_ROOM
        seat.process.release(0.0)
        seat.process = None
        if self._deadline is not None:
            self._settle(seat, "stopped", "it was stopped before it could write a checkpoint")
        elif ready and not full:
            self._settle(seat, "dead", why)
        else:  # not the run's fault
            self._settle(seat, "stopped", why)
        if full:
            raise AblateError(
                "a worker cannot write its journal, its checkpoint or the cache:"
                f" {why.splitlines()[-1]}"
            )
        seat.failed_starts = 0 if ready else seat.failed_starts + 1
        if seat.failed_starts == FAILED_STARTS:
            self._seats.remove(seat)
            last = why.splitlines()[-1]
            if not self._seats:
                raise AblateError(f"no worker gets ready on {seat.device.name}: {last}")
            left = sum(other.device.name == seat.device.name for other in self._seats)
            told = (
                f"goes on with {left} worker{'' if left == 1 else 's'}, as another"
                if left
                else "is given up, as its worker"
            )
            self._display.say(
                f"{seat.device.name} {told} ended {FAILED_STARTS} times before it was ready: {last}"
            )

    def _ingest_all(self) -> None:
        begun = time.monotonic()
        self._ingest(self._seats)
        self._next["ingest"] = time.monotonic() + max(INGEST, 4 * (time.monotonic() - begun))

    def _ingest(self, seats: Sequence[Seat]) -> None:
        at_work = {claim.attempt_id: (seat, claim) for seat in seats for claim in seat.claims}
        try:
            self._take_in(at_work, ingest_all(self._db, list(at_work)))
        except IngestError as error:
            self._take_in(at_work, error.ingested)
            raise

    def _take_in(self, at_work: dict[int, tuple[Seat, Claim]], new: dict[int, list[Event]]) -> None:
        for attempt_id, events in new.items():
            seat, claim = at_work[attempt_id]
            for event in events:
                self._tally.see(claim.config.key, event)
                if event["event"] == "end":
                    self._ended(seat, claim, event["status"], event.get("error") or "")

    def _ended(self, seat: Seat, claim: Claim, how: str, error: str) -> None:
        seat.claims.remove(claim)
        if how in ("dead", "oom"):
            self._in_vain[claim.run_id] = self._in_vain.get(claim.run_id, 0) + 1
        lost = how == "failed" or self._in_vain.get(claim.run_id) == RETRIES
        run = self._tally.end(claim.config.key, done=lost or how in ACCEPTED)
        self._display.ended(run, how, error)
        if how == "oom":
            assert seat.job
            self._jobs.too_large(seat.job)
        if lost and self._fail_fast and self._deadline is None:
            self._stop()

    def _beat(self) -> None:
        """Show that this launcher lives. A worker whose run somebody else took over is of no more
        use.
        """
        ours = heartbeat(self._db, self._owner)
        for seat in self._seats:
            if seat.process and any(claim.attempt_id not in ours for claim in seat.claims):
                seat.process.kill()

    # -- stopping ----------------------------------------------------------------------------------

    def _heed_signals(self) -> None:
        new = len(self._signals.received) - self._heeded
        self._heeded += new
        if new and self._deadline is None:
            self._first_signal = time.monotonic()
            self._display.say("stopping: jobs at work write a checkpoint; once more to kill them")
            self._stop()
        elif new and time.monotonic() - self._first_signal > ECHO:
            self._kill()

    def _stop(self) -> None:
        self._deadline = time.monotonic() + GRACE
        for seat in self._seats:
            if seat.process:
                seat.process.close()

    def _kill(self) -> None:
        for seat in self._seats:
            if seat.process:
                seat.process.kill()
