"""The executor of a Slurm cluster: agents in Slurm jobs, which take the jobs of a spool.

All jobs that can be trained wait in the spool, so that agents work on when the launcher has ended.
Slurm says how its jobs ended. Nothing trains on the host of the launcher.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ablate.errors import AblateError
from ablate.journal import Journal, alive
from ablate.kinds import Job
from ablate.launch import devices, packs
from ablate.launch.devices import Device
from ablate.launch.executor import Ended, Slot
from ablate.launch.spool import Spool
from ablate.plan import Plan
from ablate.store import Database
from ablate.store.database import folder
from ablate.store.owners import QUEUE, Owner
from ablate.store.runs import adopt
from ablate.study import Slurm

LOOK = 1.0  # seconds between two looks into the spool
REFRESH = 10.0  # seconds between two questions to Slurm
FAILURES = 30  # of those in a row, after which Slurm is given up
KILL = 30.0  # seconds after which the Slurm job of a job that does not end is ended
ENDING = 60.0  # seconds in which cancelled Slurm jobs must end
QUEUED = 1000  # most jobs that wait in the spool
FAILED_STARTS = 3  # Slurm jobs in a row that end before their agent begins, after which none helps
SIGNAL = "B:USR1@60"  # before the end of its time an agent is told to end
# States of a Slurm job that goes on.
LIVE = (
    *("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING"),
    *("REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING", "RESV_DEL_HOLD", "STAGE_OUT"),
)
WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED")  # it is not on a node
# State → what it means, if no run caused it.
BLAMELESS = {
    "NODE_FAIL": "its node failed",
    "BOOT_FAIL": "its node did not boot",
    "PREEMPTED": "it was preempted",
    "CANCELLED": "it was cancelled",
    "REVOKED": "it was revoked",
}
# the same, if one of its runs may have caused it
PERHAPS = {
    "TIMEOUT": "it reached its time limit",
    "DEADLINE": "it reached its deadline",
    "OUT_OF_MEMORY": "it ran out of memory",
    "FAILED": "it failed",
    "COMPLETED": "its agent ended without a message",
}
GPU_OPTIONS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")  # that ask for GPUs


@dataclass(frozen=True)
class Request:
    """What is asked of Slurm for a study.

    Attributes:
        study: Name of the study.
        argument: The study as the command line named it.
        slots: A device, or a share of one, for each worker of all Slurm jobs.
        max_jobs: Most Slurm jobs at a time.
        options: Of sbatch.
        agent: Arguments of an agent.
    """

    study: str
    argument: str
    slots: Sequence[Device]
    max_jobs: int
    options: Sequence[str]
    agent: Sequence[str]


def request(plan: Plan, settings: Slurm, kind: str, argument: str) -> Request:
    """Return what is asked of Slurm for a plan.

    Args:
        plan: The plan.
        settings: [slurm].
        kind: "auto", "cpu" or "cuda"; "auto" for GPUs if the options ask for any.
        argument: The study as the command line named it.

    Raises:
        AblateError: The kind of device does not fit.
    """
    if kind not in ("auto", "cpu", "cuda"):
        raise AblateError(f"device = {kind!r}: Slurm jobs train on cuda or cpu")
    options, command = dict(settings.options), plan.study.command
    asks = any(name in options for name in GPU_OPTIONS)
    gpus = command.gpus if command else None
    together = plan.study.devices_per_run
    if isinstance(together, int) and together > 1 and kind != "cpu" and not asks:
        options["gres"], asks = f"gpu:{together}", True
    if gpus and not asks:
        options["gres"], asks = f"gpu:{max(1, int(gpus))}", True
    on_gpu = gpus != 0 and (asks if kind == "auto" else kind == "cuda")
    if command and not on_gpu:
        options.setdefault("cpus-per-task", command.cpus)
    options.setdefault("signal", SIGNAL)
    cpus = _number(options.get("cpus-per-task"))
    agent = [f"--device={'cuda' if on_gpu else 'cpu'}"]
    if command and on_gpu:
        wanted = 1.0 if gpus is None else gpus
        per_job = int(1 / wanted + 1e-9) if wanted < 1 else 1
        agent += ["--workers=1", f"--gpus={wanted:g}"]
        slots = [Device("cuda:0", settings.memory // per_job, 1)] * per_job * settings.max_jobs
    elif command:
        per_job = max(1, cpus // command.cpus)
        agent.append(f"--workers={per_job}")
        slots = [Device("cpu", settings.memory // per_job, command.cpus)]
        slots *= per_job * settings.max_jobs
    elif on_gpu:
        each = _gpus(options)
        cards = [
            Device(f"cuda:{k}", settings.memory, cpus) for k in range(settings.max_jobs * each)
        ]
        if (n := packs.devices_per_run(plan, cards, most=each)) > 1:
            of_jobs = (cards[k : k + each] for k in range(0, len(cards), each))
            slots = [group for of_job in of_jobs for group in devices.groups(of_job, n)]
            agent += ["--workers=1", f"--devices-per-run={n}"]
        else:
            slots = packs.worker_slots(plan, cards)
            agent.append(f"--workers={len(slots) // len(cards)}")
    else:
        cpu = Device("cpu", settings.memory, cpus)
        n = packs.devices_per_run(plan, [cpu])
        slots = packs.worker_slots(plan, [cpu])
        agent += [f"--workers={len(slots)}", *([f"--devices-per-run={n}"] if n > 1 else [])]
        slots = slots * settings.max_jobs
    words = [
        f"--{name}" if value is True else f"--{name}={value}" for name, value in options.items()
    ]
    return Request(plan.study.name, argument, slots, settings.max_jobs, words, agent)


def spool_of(db: Path, study: str) -> Spool:
    """Return the spool of a study, beside its database."""
    return Spool(folder(db, "slurm").absolute() / study)


class SlurmExecutor:
    """Runs jobs in Slurm jobs; see `ablate.launch.executor.QueueExecutor`.

    Attributes:
        queue: See `QueueExecutor.queue`.

    Args:
        db: File of the database, beside which the spool is.
        request: What is asked of Slurm.

    Raises:
        AblateError: There is no Slurm here, it refuses the request, or another launcher uses the
            spool.
    """

    def __init__(self, db: Path, request: Request):
        self._request = request
        self.queue = queue_of(request.study)
        self._spool = spool_of(db, request.study)
        _submit_batch(self._spool, request, 1, test=True)
        self._spool.make()
        for name in ("agents", "logs"):
            (self._spool.folder / name).mkdir(exist_ok=True)
        try:
            self._lock: Journal | None = Journal(_lock(self._spool))
        except BlockingIOError:
            raise AblateError(
                f"another `ablate run` trains study {request.study} on Slurm; `ablate status` shows"
                f" it, `ablate cancel {request.argument}` ends it"
            ) from None
        _cancelled(self._spool).unlink(missing_ok=True)
        left = self._spool.journals()
        self._outstanding: Mapping[int, Sequence[Path]] = left
        # handle → its slot; the jobs that an earlier launcher left have the first one
        self._jobs = dict.fromkeys(left, 0)
        self._next = max(left, default=0) + 1
        self._waiting: set[int] = set(left)
        self._kill: dict[int, float] = {}  # jobs to be killed → when their Slurm job is ended
        self._ended: list[Ended] = []
        self._agents = _agents(self._spool)  # ids of Slurm jobs that may still run
        self._pending: set[str] = set()  # those that are not on a node
        self._due = {"look": 0.0, "ask": 0.0, "submit": 0.0}
        self._failures = self._refused = self._failed_starts = 0

    def capacity(self) -> Sequence[Slot]:
        """See `Executor.capacity`. Jobs are spread over the slots, any number in each."""
        number = Counter(self._jobs.values())
        least = min(number[k] for k in range(len(self._request.slots)))
        room = len(self._jobs) < max(QUEUED, len(self._request.slots))
        return [
            Slot(k, device, room and number[k] == least)
            for k, device in enumerate(self._request.slots)
        ]

    def submit(self, slot: int, job: Job, journals: Sequence[Path]) -> int:
        """See `Executor.submit`."""
        handle, self._next = self._next, self._next + 1
        self._spool.add(handle, job, journals)
        self._jobs[handle] = slot
        self._waiting.add(handle)
        self._supply()
        return handle

    def outstanding(self) -> Mapping[int, Sequence[Path]]:
        """See `QueueExecutor.outstanding`."""
        left, self._outstanding = self._outstanding, {}
        return left

    def waiting(self) -> set[int]:
        """See `QueueExecutor.waiting`."""
        return self._waiting

    def poll(self, timeout: float) -> list[Ended]:
        """See `Executor.poll`.

        Raises:
            AblateError: Slurm refuses jobs or does not answer, its jobs end before they begin to
                work, or `ablate cancel` has ended the study.
        """
        until = time.monotonic() + timeout
        while True:
            if self._is_due("look", LOOK):
                self._look()
            if self._is_due("ask", REFRESH):
                self._ask()
            self._supply()
            if self._ended or time.monotonic() >= until:
                break
            time.sleep(min(LOOK, 0.2, max(0.0, until - time.monotonic())))
        found, self._ended = self._ended, []
        return found

    def cancel(self, handle: int, *, kill: bool = False) -> None:
        """See `Executor.cancel`."""
        if handle not in self._jobs:
            return
        if self._spool.withdraw(handle):
            self._end(Ended(handle, "stopped", "it was cancelled before it began"))
            return
        self._spool.cancel(handle, kill=kill)
        if kill:
            self._kill.setdefault(handle, time.monotonic() + KILL)

    def close(self, timeout: float) -> None:
        """See `Executor.close`. Ends all Slurm jobs of the study."""
        if self._lock is None:
            return
        deadline = time.monotonic() + timeout
        for handle in list(self._jobs):
            self.cancel(handle)
        while self._jobs and time.monotonic() < deadline:
            self._look()
            time.sleep(min(LOOK, 0.2))
        _end_agents(self._agents)
        for agent in self._agents:
            _record(self._spool, agent).unlink(missing_ok=True)
        self._release()

    def leave(self) -> str:
        """See `QueueExecutor.leave`."""
        self._release()
        if _cancelled(self._spool).exists() or not self._jobs:
            return ""
        command, waiting = shlex.quote(self._request.argument), len(self._waiting)
        return (
            f"Slurm keeps {len(self._jobs) - waiting} jobs in training and {waiting} in its queue:"
            f" `ablate run {command} --on slurm` reads the results, `ablate cancel {command}` ends"
            " the Slurm jobs"
        )

    def _release(self) -> None:
        if self._lock:
            self._lock.close()
            self._lock = None

    def _is_due(self, what: str, every: float) -> bool:
        now = time.monotonic()
        if now < self._due[what]:
            return False
        self._due[what] = now + every
        return True

    # -- jobs --------------------------------------------------------------------------------------

    def _end(self, ended: Ended) -> None:
        if self._jobs.pop(ended.handle, None) is not None:
            self._ended.append(ended)
        self._waiting.discard(ended.handle)
        self._kill.pop(ended.handle, None)

    def _look(self) -> None:
        """See what has become of the jobs."""
        if _cancelled(self._spool).exists():
            raise AblateError(f"study {self._request.study} was ended by `ablate cancel`")
        for ended in self._spool.ended():
            self._end(ended)
        self._waiting &= self._spool.waiting()
        taken = self._spool.taken() if self._kill else {}
        for handle, due in list(self._kill.items()):
            if time.monotonic() > due and (agent := taken.get(handle)):
                _end_agents([agent], kill=True)
                self._spool.forget(handle)
                self._end(Ended(handle, "stopped", f"Slurm job {agent} did not end it in time"))

    def _ask(self) -> None:
        """Ask Slurm for the states of its jobs, and end the jobs of those that are gone."""
        before = self._spool.taken()
        self._agents |= set(before.values())
        states = self._states()
        if states is None:
            return
        self._pending = {agent for agent in self._agents if states.get(agent) in WAITING}
        gone = {agent for agent in self._agents if states.get(agent) not in LIVE}
        for agent in gone:
            state = states.get(agent) or _accounted(agent)
            if state in LIVE:
                continue
            self._agents.discard(agent)
            _record(self._spool, agent).unlink(missing_ok=True)
            self._look()  # what it has ended
            self._count_start(agent, state)
            self._give_up(agent, self._spool.taken(), *outcome(state))
        for agent in self._pending:  # again, if it had taken jobs before Slurm said so
            self._give_up(agent, before, "stopped", "it is started again")

    def _give_up(
        self, agent: str, taken: Mapping[int, str], how: Literal["lost", "stopped"], why: str
    ) -> None:
        """End the jobs that an agent had taken, and tell the user why."""
        why = notice = f"Slurm job {agent}: {why}"
        for handle, by in taken.items():
            if by == agent and handle in self._jobs:
                self._spool.forget(handle)
                self._end(Ended(handle, how, why, notice, evicted=how == "stopped"))
                notice = ""

    def _states(self) -> dict[str, str] | None:
        """Return the state of each of the user's Slurm jobs; None if Slurm does not answer."""
        if not self._agents and not self._jobs:
            return {}
        try:
            found = states(self._request.study)
        except AblateError:
            self._failures += 1  # a controller may restart
            if self._failures >= FAILURES:
                raise
            return None
        self._failures = 0
        return found

    def _count_start(self, agent: str, state: str) -> None:
        """Raise an error if Slurm jobs end before they begin to work."""
        if self._spool.started(agent) or state in BLAMELESS:
            self._failed_starts = 0
            return
        self._failed_starts += 1
        if self._failed_starts >= FAILED_STARTS:
            log = self._spool.folder / "logs" / f"{agent}.out"
            lines = log.read_text(errors="replace").split("\n") if log.exists() else []
            last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
            why = (
                f"{FAILED_STARTS} Slurm jobs ended before they began to work ({state}): {last:.300}"
                f" ({log})"
            )
            self._withdraw(why)

    def _withdraw(self, why: str) -> None:
        """End the jobs that no Slurm job has taken, the last of them with the reason.

        Raises:
            AblateError: There is none, with the reason.
        """
        withdrawn = [handle for handle in self._spool.waiting() if self._spool.withdraw(handle)]
        for handle in withdrawn:
            self._end(Ended(handle, "stopped", "no Slurm job began to work on it"))
        if not self._ended:
            raise AblateError(why)
        self._ended[-1] = replace(self._ended[-1], fatal=why)

    def _supply(self) -> None:
        """Submit Slurm jobs for the jobs that wait."""
        per_agent = max(1, len(self._request.slots) // self._request.max_jobs)
        wanted = min(self._request.max_jobs, -(-len(self._jobs) // per_agent))
        missing = wanted - len(self._agents)
        unserved = len(self._waiting) - len(self._pending) * per_agent
        if missing <= 0 or unserved <= 0 or not self._is_due("submit", LOOK):
            return
        try:
            new = _submit_batch(self._spool, self._request, missing)
        except AblateError:
            self._due["submit"] = time.monotonic() + REFRESH
            self._refused += 1
            if self._refused >= FAILURES and not self._agents:  # else it is a limit of jobs
                raise
            return
        self._refused = 0
        for agent in new:
            _record(self._spool, agent).touch()
        self._agents |= new
        self._pending |= new


# -- Slurm's commands ------------------------------------------------------------------------------


def _slurm(*words: str, text: str = "") -> str:
    """Return the output of a command of Slurm.

    Raises:
        AblateError: It is not installed, or fails.
    """
    if not shutil.which(words[0]):
        raise AblateError(
            f"slurm: there is no `{words[0]}` on this host; a login node of the cluster has it"
        )
    ended = subprocess.run(words, input=text, capture_output=True, text=True)
    if ended.returncode:
        said = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
        why = (
            "; ".join(line.removeprefix(f"{words[0]}: ") for line in said[:3]) or "no reason given"
        )
        raise AblateError(f"{words[0]} refuses: {why:.400}")
    return ended.stdout


def _submit_batch(spool: Spool, request: Request, number: int, *, test: bool = False) -> set[str]:
    """Submit an array of Slurm jobs, each with an agent; return their ids.

    Args:
        spool: Where the agents find jobs.
        request: What is asked.
        number: Length of the array.
        test: Only ask whether Slurm would accept it.
    """
    agent = [sys.executable, "-P", "-m", "ablate.launch.agent", str(spool.folder), *request.agent]
    out = _slurm(
        "sbatch",
        "--parsable",
        *request.options,
        f"--job-name={_name(request.study)}",
        f"--chdir={Path.cwd()}",
        "--nodes=1",
        "--ntasks=1",
        f"--array=0-{number - 1}",
        "--open-mode=append",
        f"--output={spool.folder.as_posix().replace('%', '%%')}/logs/%A_%a.out",
        *(["--test-only"] if test else []),
        # The shell becomes the agent, which gets the signals of Slurm.
        text=f"#!/bin/sh\nexec {shlex.join(agent)}\n",
    )
    if test:
        return set()
    job = out.strip().split(";")[0]
    return {f"{job}_{k}" for k in range(number)}


def states(study: str) -> dict[str, str]:
    """Return id → state of the Slurm jobs of a study that Slurm still knows.

    Raises:
        AblateError: Slurm does not answer.
    """
    out = _slurm(
        "squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%T",
        f"--name={_name(study)}",
    )  # fmt: skip
    lines = (line.strip().split("|") for line in out.splitlines() if line.strip())
    return {job: state.split()[0] for job, state in lines}


def _accounted(agent: str) -> str:
    """Return the state of a Slurm job that Slurm's controller has forgotten; "" for unknown."""
    try:
        out = _slurm("sacct", "--noheader", "--parsable2", "-X", "--jobs", agent, "-o", "State")
    except AblateError:  # a cluster without accounting
        return ""
    return next((line.split()[0] for line in out.splitlines() if line.strip()), "")


def outcome(state: str) -> tuple[Literal["lost", "stopped"], str]:
    """Return what the state in which a Slurm job ended means for its runs, and in words.

    Args:
        state: Slurm's word, such as "TIMEOUT"; "" for unknown.
    """
    if state in BLAMELESS:
        return "stopped", f"{BLAMELESS[state]} ({state})"
    return "lost", f"{PERHAPS.get(state, 'it ended')} ({state or 'of unknown state'})"


def _end_agents(agents: Collection[str], *, kill: bool = False) -> None:
    """End Slurm jobs, at once with `kill`; those that have ended are fine."""
    if agents:
        with contextlib.suppress(AblateError):
            _slurm("scancel", "--quiet", *(["--signal=KILL", "--full"] if kill else []), *agents)


# -- a study's Slurm jobs, from other commands -----------------------------------------------------


def queue_of(study: str) -> str:
    """Return what the owners of attempts of a study on Slurm begin with."""
    return f"{QUEUE}/{study}"


def _name(study: str) -> str:
    """Return the name of a study's Slurm jobs."""
    return f"ablate:{study}"


def _lock(spool: Spool) -> Path:
    return spool.folder / "lock"


def _cancelled(spool: Spool) -> Path:
    return spool.folder / "cancelled"


def _record(spool: Spool, agent: str) -> Path:
    """The file that says that a Slurm job was submitted."""
    return spool.folder / "agents" / agent


def _agents(spool: Spool) -> set[str]:
    return {path.name for path in (spool.folder / "agents").glob("*")}


def left(db: Database, study: str) -> str:
    """Return what the spool of a study holds, in words; "" if it is empty or there is none."""
    spool = spool_of(db.path, study)
    waiting, taken, ended = len(spool.waiting()), len(spool.taken()), spool.unread()
    if not waiting + taken + ended:
        return ""
    return (
        f"jobs queued for Slurm: {taken} in training, {waiting} wait, {ended} ended,"
        " not yet read; `ablate run` with --on slurm continues with them, `ablate cancel` ends them"
    )


def cancel(db: Database, study: str) -> None:
    """End all Slurm jobs of a study; its runs checkpoint, and wait for the next launcher.

    Raises:
        AblateError: It has none, or there is no Slurm here.
    """
    spool = spool_of(db.path, study)
    if not spool.folder.exists():
        raise AblateError(f"study {study} has no jobs in Slurm")
    known = states(study)  # fails if there is no Slurm
    agents = _agents(spool) | set(spool.taken().values())
    agents |= {agent for agent, state in known.items() if state in LIVE}
    if not agents and not spool.waiting() and not alive(_lock(spool)):
        raise AblateError(f"study {study} has no jobs in Slurm")
    _cancelled(spool).touch()
    for handle in spool.waiting():
        spool.withdraw(handle)
    _end_agents(agents)
    until = time.monotonic() + ENDING
    while time.monotonic() < until and (
        alive(_lock(spool)) or any(states(study).get(agent) in LIVE for agent in agents)
    ):
        time.sleep(min(LOOK, 0.5))
    with Owner.here(db, on=queue_of(study)) as owner:
        adopt(db, study, owner, ())
    for handle in spool.journals():
        spool.forget(handle)
    for agent in agents:
        _record(spool, agent).unlink(missing_ok=True)


def _number(value: object) -> int:
    return int(str(value)) if str(value).isdecimal() else 1


def _gpus(options: Mapping[str, str | int]) -> int:
    """Return the GPUs of a Slurm job: 2 for gres = "gpu:a100:2"."""
    for name in GPU_OPTIONS:
        if name in options:
            return _number(str(options[name]).rpartition(":")[2])
    return 1
