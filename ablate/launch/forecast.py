"""How fast a plan's cells train on a device, by training each shape for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ablate.config import RunConfig
from ablate.evaluation import Evaluation
from ablate.kinds import Context, Job, kind
from ablate.kinds.transformer import run_of
from ablate.launch import packs
from ablate.launch.devices import Device
from ablate.launch.trainer import TorchTrainer
from ablate.plan import Plan
from ablate.plan.forecast import Forecast

# Seconds from the command to a GPU's first step: imports, CUDA and one capture (9 to 13 on H200
# hosts).
START = 11.0
SECONDS = 2.0  # of training a shape, without set-up
STEPS = 200  # at most, so that every step is reported
EVALUATION = Evaluation(points=1, tokens=1)


def measure(plan: Plan, slots: Sequence[Device], done: Callable[[int], object]) -> Forecast:
    """Train every shape of a plan for a moment, and return the speeds.

    Nothing is compiled. On a GPU, where workers compile jobs that are long enough, the forecast is
    an upper bound: a compiler was seen to shorten a step to 0.39 to 0.65 of its time (H200).
    Imports torch into this process, and sets its threads.

    Args:
        plan: The plan.
        slots: What its workers would have; see `ablate.launch.packs.worker_slots`.
        done: Called with the number of cells that are timed.
    """
    device = slots[0]
    gpu = device.name.startswith("cuda")
    TorchTrainer().setup(device.name, device.threads, device.memory)
    speeds: dict[str, float] = {}  # by shape
    for timed, cell in enumerate(plan.cells, 1):
        shape = cell.run.pack_key
        if shape not in speeds:
            size = packs.size(cell.run, device, oom_level=0)
            n_runs = min(len(plan.study.seeds), size.runs)
            pack = [cell.config.model_copy(update={"seed": seed}) for seed in range(n_runs)]
            speeds[shape] = _speed(pack, plan.sources, device, size)
        done(timed)
    by_cell = {cell.label: speeds[cell.run.pack_key] for cell in plan.cells}
    # Workers that share a GPU train one at a time.
    side_by_side = len({slot.name for slot in slots}) if gpu else len(slots)
    start = START if gpu else 0.0
    return Forecast(by_cell, side_by_side, start, device.name, upper_bound=gpu)


def _speed(
    configs: Sequence[RunConfig], sources: Mapping[str, str], device: Device, size: packs.Size
) -> float:
    """Tokens a second of a pack, all members together, in the last stretch that was timed."""
    runs = tuple(
        run_of(config.model_copy(update={"steps": min(STEPS, config.steps)})) for config in configs
    )
    speeds = [0.0]

    def emit(event: str, **values: Any) -> None:
        speeds.extend(values.get("series", {}).get("tokens_per_second", ()))

    asked: list[float] = []

    def stop() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 2 and asked[-1] - asked[1] > SECONDS  # the first step sets up

    job = Job(
        runs,
        EVALUATION,
        sources,
        micro_batch=size.micro_batch,
        recompute=size.recompute,
        compile="eager",
    )
    kind(runs[0].kind).train(job, Context(device.name, [emit] * len(runs), stop))
    return speeds[-1] * len(runs)
