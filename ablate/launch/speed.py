"""How fast a plan's models train on a device, by training each shape for a moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from ablate import text
from ablate.config import Evaluation, RunConfig
from ablate.launch import engine, packs
from ablate.launch.devices import Device
from ablate.plan import Plan
from ablate.train import warm
from ablate.train.engine import train

SECONDS = 2.0  # of training a shape; set-up comes on top
STEPS = 200  # at most, so that every step is reported
EVALUATION = Evaluation(points=1, tokens=1)


def measure(plan: Plan, device: Device) -> Iterator[tuple[str, float]]:
    """(cell's label, tokens a second on the device) of every cell, in packs as the launcher would make them.

    Cells of one shape are timed once, without a compiler; where their jobs would be long enough to be compiled, what that is
    known to gain is counted in. Loads torch into this process, and sets its threads.
    """
    engine.setup(device.name, device.threads, device.memory)
    compiles = device.name.startswith("cuda") and warm.can_compile()
    shared = len({packs.shape(cell.config) for cell in plan.cells}) > 1
    known: dict[str, float] = {}
    fastest: dict[tuple[int, ...], float] = {}  # of what is alike but for its parts: seconds a token, eagerly
    for cell in plan.cells:
        config, shape = cell.config, packs.shape(cell.config)
        if shape not in known:
            size = packs.size(config, device, squeezed=0)
            seeds = range(min(len(plan.study.seeds), size.runs))
            speed = _speed([config.model_copy(update={"seed": seed}) for seed in seeds], plan.sources, device, size)
            alike = (config.n_layer, config.d_model, config.n_ctx, config.batch_tokens, len(seeds))
            fastest[alike] = min(fastest.get(alike, 1 / speed), 1 / speed)
            known[shape] = compiled(speed, fastest[alike], len(seeds) * config.tokens, shared=shared) if compiles else speed
        yield cell.label, known[shape]


def compiled(speed: float, least: float, tokens: int, *, shared: bool) -> float:
    """Tokens a second of a job of `tokens`, as it would be compiled, from its speed without.

    A compiler takes away the same time from models of one size, the fastest of which takes `least` seconds a token: what they
    have in common. It gains nothing where one needs longer than another, which is in attention.
    """
    mode = warm.worthwhile(tokens / speed, "eager", shared=shared)
    return 1 / (1 / speed - (1 - warm.TIME[mode]) * least)


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
