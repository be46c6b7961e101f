"""Packs: runs that train together, because they differ only in what leaves the step unchanged."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

from ablate import sizes
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.kinds import Run
from ablate.launch import devices
from ablate.launch.devices import MEMORY_SHARE, Device
from ablate.plan import Plan
from ablate.units import plural

LARGEST = 32  # most runs in a pack
# FLOPs per step beyond which a larger pack is not faster: 10.8M parameters peak at 4 runs, 0.85M
# near 32 (H200)
SATURATION = 4e12
# FLOPs of a run for which "auto" considers several devices: an hour of an H200, which reaches
# 4.4e14 FLOP/s with 124M parameters (`benchmarks/RESULTS.md`)
LONG_RUN = 1.6e18
# Share of its speed that a device is taken to keep among those of one run. Measured: 1.00 on two
# H200 with 0.5M tokens a step (`benchmarks/RESULTS.md`); fewer tokens keep less.
TOGETHER = 0.93
NUMBERS = (1, 2, 4, 8)  # of devices of a run that "auto" considers


class Size(NamedTuple):
    """The size of a pack, and how it fits into memory.

    Attributes:
        runs: Runs that train together.
        micro_batch: Sequences of each run in memory at once, 0 for its whole batch.
        recompute: Whether the backward pass computes blocks again.
    """

    runs: int
    micro_batch: int = 0
    recompute: bool = False


def capacity(config: RunConfig, device: Device) -> int:
    """Return how many runs of this shape train together on a device.

    Limited by its memory, and by the number beyond which throughput does not increase; 1 where
    either is unknown, a part of the model does not serve a pack, the run is fine-tuned, or for
    several devices.
    """
    alone = device.count > 1 or config.part("method").finetunes
    if not device.name.startswith("cuda") or alone:
        return 1
    flops, one = sizes.count(config).flops_per_token, sizes.memory_bytes(config)
    if flops is None or one is None or sizes.alone(config):
        return 1
    useful = min(LARGEST, max(1, round(SATURATION / (3 * flops * config.batch_tokens))))
    return max(1, min(useful, int(MEMORY_SHARE * device.memory / one)))


def size(run: Run, device: Device, oom_level: int, *, last: bool = False) -> Size:
    """Return the size of the next pack of this shape.

    Each level takes less memory: a whole pack, a quarter of it, one run with a quarter of its
    batch in memory at once, with a sixteenth, at last with blocks computed again. Level 0 is the
    first that the device is estimated to hold. Of several devices each has its rows of the batch.

    Args:
        run: A run of the shape. One without the configuration of a transformer trains alone.
        device: The device, or the share of it, that trains.
        oom_level: How often the shape ran out of memory.
        last: Whether it is the last attempt, which takes the least memory.
    """
    config = run.config
    if not isinstance(config, RunConfig):
        return Size(1)
    full = capacity(config, device)
    rows = -(-sizes.batch(config) // device.count)
    few, fewer = -(-rows // 4), -(-rows // 16)
    quarter = [Size(-(-full // 4))] if full > 1 else []
    whole = Size(full, rows if device.count > 1 else 0)
    ladder = [whole, *quarter, Size(1, few), Size(1, fewer), Size(1, fewer, True)]
    if last:
        return ladder[-1]
    room = MEMORY_SHARE * device.memory
    needed = [sizes.memory_bytes(config, *rung) for rung in ladder]  # unknown: as if it had room
    fits = (k for k, bytes_ in enumerate(needed) if bytes_ is None or bytes_ <= room)
    return ladder[min(next(fits, len(ladder) - 1) + oom_level, len(ladder) - 1)]


def find_devices(plan: Plan, kind: str, numbers: Sequence[int] = ()) -> list[Device]:
    """Return the devices of a kind that a plan's runs can use, see `devices.find`.

    Raises:
        AblateError: There is no such device, or the study needs GPUs that are not there.
    """
    command = plan.study.command
    if not command:
        return devices.find(kind, numbers)
    if command.gpus == 0:
        return devices.find("cpu")
    found = devices.find(kind, numbers, torch=False)
    if command.gpus and kind == "auto" and not found[0].name.startswith("cuda"):
        raise AblateError(
            f"[command] gpus = {command.gpus:g}: this host has no GPU; give gpus = 0, or --device"
            " cpu to run without"
        )
    return found


def devices_per_run(plan: Plan, found: Sequence[Device], most: int | None = None) -> int:
    """Return on how many devices each run of a plan trains.

    Args:
        plan: The plan.
        found: All devices.
        most: Of them, how many are on one host; all by default.

    Raises:
        AblateError: The runs, or the devices, do not serve the number that the study gives.
    """
    wanted = plan.study.devices_per_run
    if wanted == 1:
        return 1
    given = f"devices_per_run = {wanted}"
    if plan.study.kind != "transformer":
        other = ", see gpus in [command]" if plan.study.command else ""
        raise AblateError(f"{given}: only transformers train on several devices{other}")
    fewest = min(plan.cells, key=lambda cell: cell.config.batch_size)
    rows, most = fewest.config.batch_size, len(found) if most is None else most
    on_gpus = found[0].name.startswith("cuda")
    if wanted == "auto":
        return _ends_first(plan, len(found), min(most, rows)) if on_gpus else 1
    if rows < wanted:
        raise AblateError(
            f"{given}: a batch of {fewest.label!r} has {plural(rows, 'sequence')};"
            f" give at most {rows}, or more batch_tokens"
        )
    if found[0].name == "mps" or (on_gpus and most < wanted):
        raise AblateError(f"{given}: there {'is 1 GPU' if most == 1 else f'are {most} GPUs'} here")
    return wanted


def _ends_first(plan: Plan, n: int, most: int) -> int:
    """Return the number of devices of a run with which a plan ends first; 1 if no run is long.

    Args:
        plan: The plan.
        n: All devices.
        most: Most devices of a run.
    """
    planned = {each.run.key: each.run.cost.flops for each in (*plan.runs, *plan.later)}.values()
    costs = sorted((flops for flops in planned if flops), reverse=True)
    if len(costs) < len(planned) or max(costs, default=0.0) < LONG_RUN:
        return 1

    def until(each: int) -> float:
        """Time until the last run has ended: the longest first, on the group that is free first."""
        speed = each * (TOGETHER if each > 1 else 1.0)
        ends = [0.0] * (n // each)
        for flops in costs:
            heapq.heapreplace(ends, ends[0] + flops / speed)
        return max(ends)

    return min((each for each in NUMBERS if each <= most), key=until)


def worker_slots(plan: Plan, found: Sequence[Device]) -> list[Device]:
    """Return a device, a share of one, or several devices, for each worker of a plan.

    A share has room for what the whole device would have in memory of one run at once.

    Raises:
        AblateError: See `devices_per_run`.
    """
    if (n := devices_per_run(plan, found)) > 1:
        return devices.groups(found, n)
    if command := plan.study.command:
        return devices.for_scripts(found, command.gpus, command.cpus)
    runs = {planned.run.key: planned.run for planned in (*plan.runs, *plan.later)}.values()
    by_shape = {run.pack_key: run for run in runs}
    bytes_of = [needed(run, found[0]) for run in by_shape.values()]
    known = [each for each in bytes_of if each is not None]
    if len(known) < len(bytes_of):  # no second worker shares a device
        return list(found)
    return devices.shares(found, len(runs), len(by_shape), max(known, default=0))


def needed(run: Run, device: Device) -> int | None:
    """Return the bytes of a device that one run takes, in the micro-batches in which it trains.

    None if that is not known.
    """
    if not isinstance(run.config, RunConfig):
        return run.cost.bytes
    _, micro_batch, recompute = size(run, device, oom_level=0)
    return sizes.memory_bytes(run.config, 1, micro_batch, recompute)


def share(waiting: int, capacity: int, idle: int) -> int:
    """Return the size of the next pack of `waiting` runs of one shape.

    As many as fit, but the other idle devices get their share. Packs have one size where possible,
    because each size is compiled separately.

    Args:
        waiting: Runs of the shape without a result.
        capacity: Runs that fit in a pack.
        idle: Devices without a job.
    """
    fits = max(1, min(capacity, -(-waiting // idle)))
    return -(-waiting // -(-waiting // fits))
