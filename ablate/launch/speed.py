"""How fast a plan's models train on a device, by training each shape for a moment."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ablate import text
from ablate.config import Evaluation, RunConfig
from ablate.launch import engine, packs
from ablate.launch.devices import Device
from ablate.model.attention import flexible
from ablate.plan import Plan
from ablate.train import warm
from ablate.train.engine import train

SECONDS = 2.0  # of training a shape; set-up comes on top
STEPS = 200  # at most, so that every step is reported
EVALUATION = Evaluation(points=1, tokens=1)


@dataclass(frozen=True)
class Job:
    """What the models of a shape are trained in, a pack of as many as the launcher would make it of."""

    speed: float  # tokens a second, all members together, without a compiler
    tokens: int  # of all members
    alike: tuple[int, ...]  # the same for models that differ only in their parts
    recompute: bool = False
    flexible: bool = False  # its attention, where it is compiled, is as fast as another's

    def mode(self, *, shared: bool, first: bool) -> str:
        """What of it a worker would compile; `shared` and `first` as in `warm.worthwhile`."""
        return warm.possible(warm.worthwhile(self.tokens / self.speed, "eager", shared=shared, first=first), self.recompute)


def measure(plan: Plan, device: Device, done: Callable[[int], object]) -> dict[str, float]:
    """Cell's label → tokens a second on the device, in packs as the launcher would make them.

    Cells of one shape are timed once, without a compiler; where their jobs would be long enough to be compiled, what that is
    known to gain is counted in. `done` is told how many cells are timed. Loads torch into this process, and sets its threads.
    """
    engine.setup(device.name, device.threads, device.memory)
    jobs: dict[str, Job] = {}
    for timed, cell in enumerate(plan.cells, 1):
        shape = packs.shape(cell.config)
        if shape not in jobs:
            jobs[shape] = _job(plan, cell.config, device)
        done(timed)
    compiles = device.name.startswith("cuda") and warm.can_compile()
    speeds = compiled(jobs) if compiles else {shape: job.speed for shape, job in jobs.items()}
    return {cell.label: speeds[packs.shape(cell.config)] for cell in plan.cells}


def compiled(jobs: Mapping[str, Job]) -> dict[str, float]:
    """Tokens a second of a plan's jobs, shape → job, as they would be compiled, from their speeds without.

    A compiler takes away the same time from models that differ only in their parts: a share of what the fastest of them needs,
    which they have in common. It gains nothing where one needs longer than another, which is in attention, unless FlexAttention
    serves. Starting it is paid for once: it has to be worth that to one of the jobs.
    """
    shared = len(jobs) > 1
    first = all(job.mode(shared=shared, first=True) == "eager" for job in jobs.values())
    least: dict[tuple[int, ...], float] = {}  # seconds a token, eagerly
    for job in jobs.values():
        least[job.alike] = min(least.get(job.alike, math.inf), 1 / job.speed)

    def speed(job: Job) -> float:
        mode = job.mode(shared=shared, first=first)
        before = least[job.alike] if job.flexible and mode != "eager" else 1 / job.speed
        return 1 / (before - (1 - warm.TIME[mode]) * least[job.alike])

    return {shape: speed(job) for shape, job in jobs.items()}


def _job(plan: Plan, config: RunConfig, device: Device) -> Job:
    size = packs.size(config, device, squeezed=0)
    runs = min(len(plan.study.seeds), size.runs)
    speed = _speed([config.model_copy(update={"seed": seed}) for seed in range(runs)], plan.sources, device, size)
    alike = (config.n_layer, config.d_model, config.n_ctx, config.batch_tokens, runs)
    return Job(speed, runs * config.tokens, alike, size.recompute, flexible(config))


def _speed(configs: list[RunConfig], sources: dict[str, str], device: Device, size: packs.Size) -> float:
    """Tokens a second of a pack without a compiler, all members together, by the last stretch that was timed."""
    shortened = [config.model_copy(update={"steps": min(STEPS, config.steps)}) for config in configs]
    speeds = [0.0]

    def emit(event: str, **values: Any) -> None:
        speeds.extend(values.get("series", {}).get("tokens_per_second", ()))

    tokens = text.load(shortened[0], sources)
    begun: list[float] = []

    def stop() -> bool:
        begun.append(time.monotonic())
        return len(begun) > 2 and begun[-1] - begun[1] > SECONDS  # the first step sets up

    train(
        shortened,
        EVALUATION,
        tokens,
        device=device.name,
        emit=[emit] * len(configs),
        stop=stop,
        compile="eager",
        micro_batch=size.micro_batch,
        recompute=size.recompute,
    )
    return speeds[-1] * len(configs)
