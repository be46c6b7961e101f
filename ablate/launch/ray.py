"""The executor of a Ray cluster: actors, each of which runs jobs in local workers on its node.

An actor is a `LocalExecutor` on another machine. Journals, checkpoints and weights are files on
storage that all nodes share. Actors end with this process.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import ablate
from ablate.errors import AblateError, missing
from ablate.kinds import Job
from ablate.launch import devices, packs
from ablate.launch.devices import Device
from ablate.launch.executor import Ended, Slot
from ablate.launch.local import LocalExecutor
from ablate.plan import Plan
from ablate.study import Ray
from ablate.units import plural

try:
    import ray
    from ray.exceptions import RayActorError, RayError, RayTaskError
except ImportError:
    raise missing("Ray", "ray") from None

CONNECT = 20.0  # seconds in which a cluster must answer
FIRST = 30.0  # seconds that the first actors have to start before jobs are given to those there are
QUIET = 10.0  # the same, since the last one has started
POLL = 1.0  # seconds after which an actor answers although no job has ended
TICK = 0.05  # seconds between two looks of an actor at its workers
REFRESH = 10.0  # seconds between two looks at the nodes
NODE_ENDS = 3.0  # seconds after the end of an actor in which the end of its node becomes known
FAILED_STARTS = 3  # actors in a row that end before they begin to work, after which none helps
CLOSE = 5.0  # seconds that an actor has to answer, beyond those of its workers
# Variables of the launcher that do not hold on another node.
OF_NODE = re.compile(r"RAY_|CUDA_VISIBLE_DEVICES$|HOSTNAME$|SLURM_")

_CONNECT = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)"


@dataclass(frozen=True)
class Request:
    """What is asked of Ray for a study.

    Attributes:
        kind: "cpu" or "cuda".
        num_gpus: GPUs of an actor, or its share of one.
        num_cpus: CPUs of an actor.
        most: Most actors; None for as many as are of use.
        growing: Whether to ask for `most` actors although the cluster has no room for them.
        torch: Whether the torch of the nodes' environment uses the GPUs.
        slots: The devices of an actor → a device, or a share of one, for each of its workers.
    """

    kind: Literal["cpu", "cuda"]
    num_gpus: float
    num_cpus: int
    most: int | None
    growing: bool
    torch: bool
    slots: Callable[[Sequence[Device]], Sequence[Device]]

    def room(self, nodes: Sequence[Mapping[str, Any]]) -> int:
        """Return how many actors nodes have room for, whoever uses them now."""
        return sum(
            min(
                math.floor(_has(node, what) / each + 1e-9)
                for what, each in (("CPU", self.num_cpus), ("GPU", self.num_gpus))
                if each
            )
            for node in nodes
        )

    @property
    def each(self) -> str:
        """What an actor needs, in words."""
        gpus = f"{self.num_gpus:g} GPU{'' if self.num_gpus == 1 else 's'} and "
        return (gpus if self.num_gpus else "") + plural(self.num_cpus, "CPU")


def request(plan: Plan, settings: Ray, kind: str, nodes: Sequence[Mapping[str, Any]]) -> Request:
    """Return what is asked of Ray for a plan.

    Args:
        plan: The plan.
        settings: [ray].
        kind: "auto", "cpu" or "cuda"; "auto" for GPUs if a node has any, or an option asks for any.
        nodes: The nodes of the cluster, see `nodes`.

    Raises:
        AblateError: The kind of device or the options do not fit the study or the cluster.
    """
    if kind not in ("auto", "cpu", "cuda"):
        raise AblateError(f"device = {kind!r}: actors of Ray train on cuda or cpu")
    command = plan.study.command
    for key in ("num_gpus", "num_cpus"):
        if command and getattr(settings, key) is not None:
            raise AblateError(f"ray.{key}: a script asks with {key[4:]} in [command]; remove it")
    wanted = command.gpus if command else settings.num_gpus
    asks = wanted or (wanted is None and any(_has(node, "GPU") for node in nodes))
    on_gpus = kind == "cuda" or (kind == "auto" and asks)
    chosen: Literal["cpu", "cuda"] = "cuda" if on_gpus and wanted != 0 else "cpu"
    found = [Device("cpu", 0, 1)]
    if chosen == "cuda":
        most = max(int(_has(node, "GPU")) for node in nodes) if nodes else 0
        number = sum(int(_has(node, "GPU")) for node in nodes)
        if settings.max_workers and isinstance(plan.study.devices_per_run, int):
            most = max(most, plan.study.devices_per_run)  # nodes that have them may come
        found = [Device(f"cuda:{k}", 0, 1) for k in range(max(1, number))]
        together = packs.devices_per_run(plan, found, most=most)
    else:
        together = packs.devices_per_run(plan, found)
    gpus = 0.0
    if chosen == "cuda":
        gpus = float(wanted or together)
        if 1 < together > gpus:
            raise AblateError(
                f"ray.num_gpus = {gpus:g}: a run takes {together} GPUs; give as many, or remove it"
            )
    cpus = command.cpus if command and not gpus else settings.num_cpus
    if cpus is None:
        cpus = _cpus(gpus, nodes) if gpus and not command else together
    fixed = replace(plan, study=replace(plan.study, devices_per_run=together))

    def slots(found: Sequence[Device]) -> Sequence[Device]:
        share = [replace(one, memory=int(one.memory * min(1.0, gpus or 1.0))) for one in found]
        if not command:
            return packs.worker_slots(fixed, share)
        return devices.groups(share, len(share)) if len(share) > 1 else share

    growing, most_actors = settings.max_workers is not None, settings.max_workers
    # later stages of a study that tunes or chooses its seeds may have more runs
    if not plan.study.tune and not plan.study.two_stage:
        runs = len({each.run.key for each in (*plan.runs, *plan.later)})
        most_actors = max(1, min(runs, most_actors or runs))
    made = Request(chosen, gpus, cpus, most_actors, growing, command is None, slots)
    if not growing and not made.room(nodes):
        raise AblateError(
            f"no node of the Ray cluster has {made.each}; if it adds such nodes on demand, give"
            " max_workers in [ray]"
        )
    return made


def connect(address: str) -> None:
    """Become a driver of a Ray cluster.

    Args:
        address: "auto" for the cluster of this host or of $RAY_ADDRESS, or "HOST:PORT".

    Raises:
        AblateError: No cluster answers there.
    """
    if ray.is_initialized():
        return
    if address != "auto" and not re.fullmatch(r"[^/\s]+:\d+", address):
        raise AblateError(f'ray.address = {address!r:.80}: "auto" or HOST:PORT is wanted')
    # Ray itself tries for minutes, and then ends its process.
    words = [sys.executable, "-P", "-c", _CONNECT, address]
    try:
        ended = subprocess.run(words, capture_output=True, text=True, timeout=CONNECT)
    except subprocess.TimeoutExpired:
        raise AblateError(
            f"no Ray cluster answers at {address} within {CONNECT:g} s; `ray status` says whether"
            " one runs here"
        ) from None
    if ended.returncode:
        said = [line for line in ended.stderr.splitlines() if line.strip()] or ["no reason given"]
        raise AblateError(f"Ray cannot connect to {address}: {said[-1].strip():.400}")
    ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)


def nodes() -> list[Mapping[str, Any]]:
    """Return the nodes that are alive, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


class Host:
    """The actor: a `LocalExecutor` on a node. `poll` runs in one thread, all else in another.

    Ray repeats a call whose answer was lost, so each may come twice.

    Args:
        folder: The working directory of the launcher.
        variables: The environment of the launcher.
        shared: A file that the launcher holds beside its database.
    """

    def __init__(self, folder: str, variables: Mapping[str, str], shared: str):
        self._folder, self._variables, self._shared = folder, variables, shared
        self._lock = threading.Lock()
        self._executor: LocalExecutor | None = None
        self._handles: dict[int, int] = {}  # of the local executor → of the launcher
        self._ended: list[Ended] = []
        self._closed = False

    def find(self, kind: str, torch: bool) -> tuple[str, str, list[Device]]:
        """Take over the launcher's surroundings.

        Args:
            kind: See `devices.find`.
            torch: See `devices.find`.

        Returns:
            The id of the node, the name of the host, and the devices that Ray gives this actor.

        Raises:
            AblateError: There are no such devices, or storage is not shared.
        """
        node, host = ray.get_runtime_context().get_node_id(), os.uname().nodename
        if not Path(self._shared).exists():
            raise AblateError(
                f"node {host} of the Ray cluster does not see {Path(self._shared).parent}: the"
                " database must be in a folder that all nodes share"
            )
        own = {name: value for name, value in os.environ.items() if OF_NODE.match(name)}
        if "OMP_NUM_THREADS" in os.environ:  # which Ray sets to the CPUs of the actor
            own = {"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"], **own}
        theirs = {k: v for k, v in self._variables.items() if not OF_NODE.match(k)}
        os.environ.clear()
        os.environ.update({**own, **theirs})
        try:
            os.chdir(self._folder)
        except OSError as error:
            raise AblateError(
                f"node {host} of the Ray cluster: folder {self._folder}: {error.strerror}"
            ) from None
        return node, host, devices.find(kind, torch=torch)

    def begin(self, slots: Sequence[Device]) -> None:
        """Make room for jobs: a device, or a share of one, for each worker."""
        self._executor = self._executor or LocalExecutor(slots)

    def submit(self, handle: int, slot: int, job: Job, journals: Sequence[Path]) -> None:
        """Run a job, see `Executor.submit`, under a handle of the launcher."""
        with self._lock:
            known = {*self._handles.values(), *(ended.handle for ended in self._ended)}
            if self._executor and handle not in known:
                self._handles[self._executor.submit(slot, job, journals)] = handle

    def cancel(self, handle: int, kill: bool) -> None:
        """See `Executor.cancel`."""
        with self._lock:
            for local, ours in self._handles.items():
                if ours == handle and self._executor:
                    self._executor.cancel(local, kill=kill)

    def poll(self, seen: int) -> tuple[list[Ended], list[int]]:
        """Wait for the end of a job.

        Args:
            seen: How many ends the launcher has received.

        Returns:
            All later ends, and the slots in service.
        """
        until = time.monotonic() + POLL
        while True:
            with self._lock:
                slots = []
                if self._executor:
                    for ended in self._executor.poll(0.0):
                        handle = self._handles.pop(ended.handle)
                        self._ended.append(replace(ended, handle=handle))
                    slots = [slot.number for slot in self._executor.capacity()]
                if len(self._ended) > seen or time.monotonic() > until or self._closed:
                    return self._ended[seen:], slots
            time.sleep(TICK)

    def close(self, timeout: float) -> None:
        """See `Executor.close`."""
        with self._lock:
            executor, self._executor, self._closed = self._executor, None, True
            if executor:
                executor.close(timeout)


@dataclass
class _Actor:
    """An actor, as the launcher knows it.

    Attributes:
        remote: Its handle.
        awaited: What it was asked last: its devices, then for ends of jobs.
        node: Id of its node; "" until it has found its devices.
        host: Name of its node.
        slots: Number among the slots of the executor → number among its own.
        seen: How many ends of jobs it has told.
    """

    remote: Any
    awaited: Any
    node: str = ""
    host: str = ""
    slots: dict[int, int] = field(default_factory=dict)
    seen: int = 0


class RayExecutor:
    """Runs jobs in actors of Ray; see `ablate.launch.executor.Executor`.

    Args:
        db: File of the database, in a folder that all nodes share.
        request: What is asked of Ray.

    Raises:
        AblateError: Actors cannot begin to work, or the folder cannot be written.
    """

    def __init__(self, db: Path, request: Request):
        self._request = request
        try:
            db.absolute().parent.mkdir(parents=True, exist_ok=True)
            self._shared = tempfile.NamedTemporaryFile(dir=db.absolute().parent, prefix=".ray-")  # noqa: SIM115
        except OSError as error:
            raise AblateError(f"folder {db.parent} cannot be written: {error.strerror}") from None
        source = str(Path(ablate.__file__).parents[1])
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        options: dict[str, Any] = {
            "num_cpus": request.num_cpus,
            "num_gpus": request.num_gpus,
            "max_restarts": 0,  # `_supply` starts another one
            "max_task_retries": -1,
            "concurrency_groups": {"poll": 1},
            "runtime_env": {"env_vars": {"PYTHONPATH": path}},
        }
        self._host = ray.remote(**options)(Host)
        self._actors: list[_Actor] = []
        self._devices: dict[int, Device] = {}  # slot → its device, of a number of its own
        self._jobs: dict[int, tuple[_Actor, int]] = {}  # handle → its actor and slot
        self._slots, self._handles = itertools.count(), itertools.count(1)
        self._cards = 0  # devices that actors have found
        self._ended: list[Ended] = []
        self._failed_starts = self._given_up = 0
        self._due = 0.0
        try:
            self._start()
        except BaseException:
            self.close(0.0)
            raise

    def capacity(self) -> Sequence[Slot]:
        """See `Executor.capacity`."""
        busy = {slot for _, slot in self._jobs.values()}
        return [Slot(k, device, k not in busy) for k, device in self._devices.items()]

    def submit(self, slot: int, job: Job, journals: Sequence[Path]) -> int:
        """See `Executor.submit`."""
        handle = next(self._handles)
        (actor,) = (one for one in self._actors if slot in one.slots)
        # if the actor dies, the end of `poll` tells it
        actor.remote.submit.remote(handle, actor.slots[slot], job, list(journals))
        self._jobs[handle] = actor, slot
        return handle

    def poll(self, timeout: float) -> list[Ended]:
        """See `Executor.poll`.

        Raises:
            AblateError: Actors end before they begin to work, or no node has room for one.
        """
        until = time.monotonic() + timeout
        while True:
            self._turn(0.0 if self._ended else max(0.0, until - time.monotonic()))
            if self._ended or time.monotonic() >= until:
                break
        found, self._ended = self._ended, []
        return found

    def cancel(self, handle: int, *, kill: bool = False) -> None:
        """See `Executor.cancel`."""
        if handle in self._jobs:
            self._jobs[handle][0].remote.cancel.remote(handle, kill)

    def close(self, timeout: float) -> None:
        """See `Executor.close`. Ends all actors."""
        begun = [actor for actor in self._actors if actor.node]
        asked = [actor.remote.close.remote(timeout) for actor in begun]
        asked += [actor.awaited for actor in begun]  # else Ray reports that they failed
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=timeout + CLOSE)
        for actor in self._actors:
            ray.kill(actor.remote)
        self._actors.clear()
        self._shared.close()

    # -- actors ------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start the first actors, and wait for those that begin soon: packs depend on them."""
        until = time.monotonic() + FIRST
        while time.monotonic() < until:
            before = len(self._devices)
            self._turn(0.2)
            if self._devices and all(actor.node for actor in self._actors):
                break
            if len(self._devices) > before:
                until = min(until, time.monotonic() + QUIET)

    def _turn(self, timeout: float) -> None:
        """Start actors where they are missing, and read what actors tell."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + REFRESH
            self._supply()
        self._wait(timeout)

    def _supply(self) -> None:
        """Start actors that there is room for, and end those that wait for room that is gone."""
        request = self._request
        room = request.room(nodes())
        if not request.growing and not room and not self._actors:
            raise AblateError(f"no node of the Ray cluster has {request.each} any more")
        wanted = request.most if request.growing and request.most else room
        wanted = min(wanted, request.most or wanted) - self._given_up
        pending = [one for one in self._actors if not one.node]
        for actor in pending[: max(0, len(self._actors) - wanted)]:
            ray.kill(actor.remote)
            self._actors.remove(actor)
        if wanted <= len(self._actors):
            return
        # one object, however many actors
        arguments = (str(Path.cwd()), dict(os.environ), self._shared.name)
        for _ in range(wanted - len(self._actors)):
            remote: Any = self._host.remote(*arguments)
            self._actors.append(_Actor(remote, remote.find.remote(request.kind, request.torch)))

    def _wait(self, timeout: float) -> None:
        """Read the answers of actors; wait for one."""
        awaited = {actor.awaited: actor for actor in self._actors}
        if not awaited:
            time.sleep(timeout)
            return
        ready, _ = ray.wait(list(awaited), num_returns=1, timeout=timeout)
        more, _ = ray.wait(list(awaited), num_returns=len(awaited), timeout=0)
        for answer in {*ready, *more}:
            actor = awaited[answer]
            try:
                told = ray.get(answer)
            except RayTaskError as error:
                cause = error.cause
                if not isinstance(cause, AblateError):
                    raise
                self._end_actor(actor)
                self._count_failed_start(str(cause))
            except RayError as error:
                self._gone(actor, error)
            else:
                if actor.node:
                    self._read(actor, *told)
                else:
                    self._begin(actor, *told)

    def _begin(self, actor: _Actor, node: str, host: str, found: Sequence[Device]) -> None:
        """Let an actor begin to work with its devices."""
        self._failed_starts = 0
        actor.node, actor.host = node, host
        if found[0].name == "cpu":  # Ray limits neither memory nor threads
            cpus = self._request.num_cpus
            total = next((_has(one, "CPU") for one in nodes() if one["NodeID"] == node), cpus)
            memory = int(found[0].memory * min(1.0, cpus / max(1, total)))
            found = [Device("cpu", memory, cpus)]
        else:
            each = max(1, self._request.num_cpus // len(found))
            found = [replace(one, threads=each) for one in found]
        slots = self._request.slots(found)
        for k, device in enumerate(slots):
            number = next(self._slots)
            actor.slots[number] = k
            self._devices[number] = replace(device, name=_shifted(device.name, self._cards))
        self._cards += len(found)
        actor.remote.begin.remote(list(slots))
        self._ask(actor)

    def _ask(self, actor: _Actor) -> None:
        actor.awaited = actor.remote.poll.options(concurrency_group="poll").remote(actor.seen)

    def _read(self, actor: _Actor, ends: Sequence[Ended], in_service: Sequence[int]) -> None:
        """Read which jobs have ended, and ask again."""
        actor.seen += len(ends)
        for number, own in list(actor.slots.items()):
            if own not in in_service:
                del actor.slots[number], self._devices[number]
        for ended in ends:
            if ended.fatal and not in_service:  # of this actor alone
                others = any(one.slots for one in self._actors if one is not actor)
                said = f"{actor.host}: {ended.fatal}"
                fatal, notice = ("", f"{said}; other workers go on") if others else (said, "")
                ended = replace(ended, fatal=fatal, notice=notice)
            elif ended.notice:
                ended = replace(ended, notice=f"{actor.host}: {ended.notice}")
            if self._jobs.pop(ended.handle, None):
                self._ended.append(ended)
        if in_service:
            self._ask(actor)
        else:
            self._given_up += 1  # Ray would give another one the same device
            self._end_actor(actor)

    def _gone(self, actor: _Actor, error: RayError) -> None:
        """End the jobs of an actor that has ended by itself."""
        if not actor.node:
            self._end_actor(actor)
            self._count_failed_start(_last_line(error))
            return
        how: Literal["lost", "stopped"] = "lost"
        why = f"its actor of Ray on {actor.host} died: {_last_line(error):.400}"
        notice = f"An actor of Ray on {actor.host} died; another one continues"
        if _node_lost(actor.node, error):
            how, why = "stopped", f"its node {actor.host} of the Ray cluster was lost"
            notice = (
                f"Node {actor.host} of the Ray cluster was lost; its runs are trained elsewhere"
            )
        self._end_actor(actor)
        for handle, (one, _) in list(self._jobs.items()):
            if one is actor:
                del self._jobs[handle]
                self._ended.append(Ended(handle, how, why, notice, evicted=how == "stopped"))
                notice = ""
        self._due = 0.0  # another one starts

    def _end_actor(self, actor: _Actor) -> None:
        """Forget an actor, and end it if it lives."""
        for number in actor.slots:
            del self._devices[number]
        self._actors.remove(actor)
        with contextlib.suppress(RayError):
            ray.kill(actor.remote)

    def _count_failed_start(self, why: str) -> None:
        self._failed_starts += 1
        self._due = 0.0
        if self._failed_starts >= FAILED_STARTS:
            raise AblateError(f"{FAILED_STARTS} actors of Ray in a row did not begin: {why:.400}")


def _has(node: Mapping[str, Any], what: str) -> float:
    """Return how many "CPU" or "GPU" a node has."""
    return float(node["Resources"].get(what, 0.0))


def _cpus(gpus: float, nodes: Sequence[Mapping[str, Any]]) -> int:
    """Return the CPUs of an actor with GPUs: the node's share, up to what its workers need."""
    shares = [
        gpus * _has(node, "CPU") / _has(node, "GPU") for node in nodes if _has(node, "GPU") >= gpus
    ]
    return max(1, int(min([*shares, math.ceil(gpus) * (devices.COMPILING + 1)])))


def _node_lost(node: str, error: RayError) -> bool:
    """Return whether an actor has ended because its node has."""
    until = time.monotonic() + NODE_ENDS
    while all(one["NodeID"] != node or one["Alive"] for one in ray.nodes()):
        if time.monotonic() > until:
            return isinstance(error, RayActorError) and error.preempted
        time.sleep(0.1)
    return True


def _last_line(error: RayError) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _shifted(name: str, by: int) -> str:
    """Return the name of a GPU with a higher number: no two actors have the same GPU."""
    kind, _, numbers = name.partition(":")
    if kind != "cuda":
        return name
    return f"cuda:{','.join(str(int(number) + by) for number in numbers.split(','))}"
