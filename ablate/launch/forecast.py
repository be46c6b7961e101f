"""How fast a plan's cells train on a device, by training each shape for a moment."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from ablate import sizes
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.kinds import Context, Job, kind
from ablate.kinds.transformer import run_of
from ablate.launch import devices, packs, task_time
from ablate.launch.devices import Device
from ablate.launch.trainer import TorchTrainer
from ablate.plan import Cell, Plan
from ablate.plan.forecast import Forecast, TaskTime
from ablate.plan.model import before
from ablate.train.compiled import FIRST, MODES, compiles, n_blocks, possible, step_cache, worthwhile

T = TypeVar("T")

# Seconds from the command to a GPU's first step, beside the set-up of its mode: imports and CUDA (8
# to 12 on H200 hosts).
START = 10.0
SECONDS = 2.0  # of training a shape, without set-up
STEPS = 200  # at most, so that every step is reported
PRODUCT_SECONDS = 0.1  # of products of matrices
EVALUATION = Evaluation(points=1, tokens=1)


def measure(plan: Plan, slots: Sequence[Device], done: Callable[[int], object]) -> Forecast:
    """Train every shape of a plan for a moment, and return the speeds.

    Nothing is compiled, which takes up to a minute a shape. Where workers on a GPU would compile a
    shape, its speed is estimated by `ablate.train.compiled.Mode.seconds` from the time of an eager
    step and that of its matrix products. Of several devices that train a run one is timed. Imports
    torch into this process, and sets its threads.

    Args:
        plan: The plan.
        slots: What its workers would have; see `ablate.launch.packs.worker_slots`.
        done: Called with the number of cells that are timed.
    """
    slot = slots[0]
    device = replace(slot, name=devices.members(slot.name)[0])
    gpu = device.name.startswith("cuda")
    several = slot.count * packs.TOGETHER if gpu and slot.count > 1 else 1.0
    TorchTrainer().setup(device.name, device.threads, device.memory)
    tokens: Counter[str] = Counter()  # by shape
    for run in {planned.run.key: planned.run for planned in (*plan.runs, *plan.later)}.values():
        tokens[run.pack_key] += run.cost.tokens or 0
    names = {slot.name for slot in slots}
    shared = gpu and len(slots) > len(names)
    speeds: dict[str, float] = {}  # by shape
    modes: dict[str, str] = {}
    blocks: Counter[str] = Counter()
    by_cell: dict[str, float] = {}
    times: dict[str, TaskTime] = {}  # of runs on a task that take the same time
    on_task: dict[str, TaskTime] = {}
    for timed, of in enumerate(plan.cells, 1):
        if of.run.kind == "finetune":
            alike = task_time.same(of)
            if alike not in times:
                times[alike], _ = _that_fits(of, slot, partial(task_time.measure, plan, of, slot))
            on_task[of.label] = times[alike]
        cell = before(of) or of
        if cell.run.kind == "finetune":
            done(timed)
            continue
        shape = cell.run.pack_key
        if shape not in speeds:
            speed, size = _speed_that_fits(plan, cell, slot)
            modes[shape], speeds[shape] = "eager", speed
            if gpu and compiles(cell.config):
                eager = tokens[shape] / speed
                products = tokens[shape] * _seconds_of_products(cell.config, device.name)
                blocks[shape] = n_blocks(cell.config)
                mode = worthwhile(eager, blocks[shape], products, shared=shared, first=True)
                modes[shape] = possible(mode, size.recompute)
                if mode != "eager" and cell.config.dropout:
                    # compiled steps make dropout's numbers within other kernels; what that costs
                    # is left out
                    without = replace(cell, run=cell.run.with_(dropout=0.0))
                    eager = tokens[shape] / _speed_that_fits(plan, without, slot)[0]
                speeds[shape] = tokens[shape] / MODES[modes[shape]].seconds(eager, products)
            speeds[shape] *= several
        by_cell[of.label] = speeds[shape]
        done(timed)
    start, side_by_side = 0.0, len(slots)
    if gpu:  # workers that share a GPU train one at a time
        side_by_side = len(names)
        setups = [
            MODES[mode].setup(blocks[shape]) + FIRST * (mode != "eager")
            for shape, mode in modes.items()
        ]
        start = START + min(setups, default=0.0)
    estimated = several > 1 or any(mode != "eager" for mode in modes.values())
    return Forecast(by_cell, side_by_side, start, slot.name, estimated=estimated, on_task=on_task)


def _seconds_of_products(config: RunConfig, device: str) -> float:
    """Seconds that the matrix products of training take alone, a token; 0 if unknown."""
    precision = config.part("precision")
    dtype = torch.bfloat16 if precision.casts else getattr(torch, precision.dtype)
    return (sizes.train_flops(config) or 0) / config.tokens / product_speed(device, dtype)


@functools.cache
def product_speed(device: str, dtype: torch.dtype, n: int = 8192) -> float:
    """Return the FLOP/s of a product of two n × n matrices, as it is just now.

    Args:
        device: Torch's name of the device.
        dtype: Of the numbers.
        n: Rows; at 8192 a GPU reaches its highest speed (`benchmarks/RESULTS.md`).
    """
    a = torch.ones(n, n, device=device, dtype=dtype)
    out = torch.empty_like(a)

    def seconds(times: int) -> float:
        begun = time.perf_counter()
        for _ in range(times):
            torch.mm(a, a, out=out)
        float(out[0, 0])  # waits for the device
        return time.perf_counter() - begun

    seconds(1)  # chooses a kernel
    times = 1
    while (took := seconds(times)) < PRODUCT_SECONDS:
        times *= 2
    return 2 * n**3 * times / took


def _speed_that_fits(plan: Plan, cell: Cell, device: Device) -> tuple[float, packs.Size]:
    """Tokens a second of the largest pack of a cell that the device holds, and its size."""

    def speed(size: packs.Size) -> float:
        n_runs = min(len(plan.study.seeds), size.runs)
        pack = [cell.config.model_copy(update={"seed": seed}) for seed in range(n_runs)]
        return _speed(pack, plan.sources, device, size)

    return _that_fits(cell, device, speed)


def _that_fits(
    cell: Cell, device: Device, measured: Callable[[packs.Size], T]
) -> tuple[T, packs.Size]:
    """Return what is measured with the largest size of a cell that the device holds, and that."""
    level = 0
    while True:
        size = packs.size(cell.run, device, level)
        try:
            return measured(size), size
        except torch.OutOfMemoryError:
            step_cache.clear()
            level += 1
            if packs.size(cell.run, device, level) == size:
                raise AblateError(
                    f"{cell.label}: a single run, in its smallest micro-batches, does not fit into"
                    f" the {device.memory / 2**30:.3g} GiB that a worker has on {device.name}"
                ) from None


def _speed(
    configs: Sequence[RunConfig], sources: Mapping[str, str], device: Device, size: packs.Size
) -> float:
    """Tokens a second of a pack, all members together, in the last stretch that was timed."""
    runs = tuple(
        run_of(config.model_copy(update={"steps": min(STEPS, config.steps or STEPS)}))
        for config in configs
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
    own = devices.members(device.name)[0]
    kind(runs[0].kind).train(job, Context(own, [emit] * len(runs), stop))
    return speeds[-1] * len(runs)
