"""How fast a plan's models train on a device, by training each shape for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ablate.config import Evaluation, RunConfig
from ablate.kinds import Context
from ablate.kinds import Job as Work
from ablate.kinds.transformer import run_of
from ablate.launch import engine, packs
from ablate.launch.devices import Device
from ablate.model.attention import flexible
from ablate.plan import Plan
from ablate.train.compiled import FIRST, MODES, can_compile, possible, worthwhile
from ablate.train.engine import train

# seconds from the command to a GPU's first step, beside what is compiled: imports and CUDA (8 to 12
# on H200 hosts)
START = 10.0
SECONDS = 2.0  # of training a shape; set-up comes on top
STEPS = 200  # at most, so that every step is reported
# up to which a bias that learns costs FlexAttention little; at 64 nearly what it costs torch's
# kernel
SMALL_HEAD = 32
EVALUATION = Evaluation(points=1, tokens=1)


@dataclass(frozen=True)
class Job:
    """What the models of a shape are trained in, a pack of as many as the launcher would make it
    of.
    """

    speed: float  # tokens a second, all members together, without a compiler
    tokens: int  # of all members
    alike: tuple[Hashable, ...]  # the same for models that differ only in their parts
    recompute: bool = False
    twins: tuple[
        Hashable, ...
    ] = ()  # the same for models that differ in their position encoding alone
    # a position encoding that takes longer without a compiler, and not with one
    fused: bool = False

    def mode(self, *, shared: bool, first: bool) -> str:
        """What of it a worker would compile; `shared` and `first` as in `worthwhile`."""
        return possible(
            worthwhile(self.tokens / self.speed, "eager", shared=shared, first=first),
            self.recompute,
        )


@dataclass(frozen=True)
class Speeds:
    """What is known of a plan's training on a device."""

    tokens_per_second: dict[
        str, float
    ]  # by cell's label, of a pack as the launcher would make it, all members together
    # seconds from the command to the first step; what is made ready later is hidden by training
    start: float


def measure(plan: Plan, device: Device, done: Callable[[int], object]) -> Speeds:
    """Train every shape of a plan on the device for a moment.

    Cells of one shape are timed once, without a compiler; where their jobs would be long enough to
    be compiled, what that is known to gain is counted in. `done` is told how many cells are timed.
    Loads torch into this process, and sets its threads.
    """
    engine.setup(device.name, device.threads, device.memory)
    jobs: dict[str, Job] = {}
    for timed, cell in enumerate(plan.cells, 1):
        shape = packs.shape(cell.config)
        if shape not in jobs:
            jobs[shape] = _job(plan, cell.config, device)
        done(timed)
    gpu = device.name.startswith("cuda")
    chosen = modes(jobs) if gpu and can_compile() else dict.fromkeys(jobs, "eager")
    speeds = compiled(jobs, chosen)
    ready = min(MODES[mode].setup + FIRST * (mode != "eager") for mode in chosen.values())
    return Speeds(
        {cell.label: speeds[packs.shape(cell.config)] for cell in plan.cells},
        START + ready if gpu else 0.0,
    )


def modes(jobs: Mapping[str, Job]) -> dict[str, str]:
    """What of a plan's jobs, shape → job, workers would compile. The first to start the compiler
    has to be worth that.
    """
    shared = len(jobs) > 1
    first = all(job.mode(shared=shared, first=True) == "eager" for job in jobs.values())
    return {shape: job.mode(shared=shared, first=first) for shape, job in jobs.items()}


def compiled(jobs: Mapping[str, Job], modes: Mapping[str, str]) -> dict[str, float]:
    """Tokens a second of a plan's jobs, shape → job, from their speeds without a compiler and what
    of them is compiled.

    A compiler takes away the same time from models that differ only in their parts: a share of what
    the fastest of them needs, which they have in common. Where one needs longer than another, it
    gains nothing, for that is in attention and its matrix products; unless it is by a position
    encoding that becomes part of other kernels.
    """

    def least(group: tuple[Hashable, ...]) -> float:
        """Seconds a token, eagerly, of the fastest of a group."""
        return min(1 / job.speed for job in jobs.values() if group in (job.alike, job.twins))

    def speed(job: Job, mode: str) -> float:
        before = least(job.twins) if job.fused and mode != "eager" else 1 / job.speed
        return 1 / (before - (1 - MODES[mode].time) * least(job.alike))

    return {shape: speed(job, modes[shape]) for shape, job in jobs.items()}


def _job(plan: Plan, config: RunConfig, device: Device) -> Job:
    size = packs.size(config, device, squeezed=0)
    runs = min(len(plan.study.seeds), size.runs)
    speed = _speed(
        [config.model_copy(update={"seed": seed}) for seed in range(runs)],
        plan.sources,
        device,
        size,
    )
    alike = (config.n_layer, config.d_model, config.n_ctx, config.batch_tokens, runs)
    twins = (packs.shape(config.model_copy(update={"position": "none"})), runs)
    fused = config.position == "rotary" or (flexible(config) and config.d_head <= SMALL_HEAD)
    return Job(speed, runs * config.tokens, alike, size.recompute, twins, fused)


def _speed(
    configs: list[RunConfig], sources: dict[str, str], device: Device, size: packs.Size
) -> float:
    """Tokens a second of a pack without a compiler, all members together, by the last stretch that
    was timed.
    """
    shortened = [
        config.model_copy(update={"steps": min(STEPS, config.steps)}) for config in configs
    ]
    speeds = [0.0]

    def emit(event: str, **values: Any) -> None:
        speeds.extend(values.get("series", {}).get("tokens_per_second", ()))

    begun: list[float] = []

    def stop() -> bool:
        begun.append(time.monotonic())
        return len(begun) > 2 and begun[-1] - begun[1] > SECONDS  # the first step sets up

    job = Work(
        tuple(map(run_of, shortened)),
        EVALUATION,
        sources,
        micro_batch=size.micro_batch,
        recompute=size.recompute,
        compile="eager",
    )
    train(job, Context(device.name, [emit] * len(configs), stop))
    return speeds[-1] * len(configs)
