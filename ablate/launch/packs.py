"""Which runs train together: those that differ only in what leaves the compiled step unchanged, as
many as profit.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import NamedTuple

from ablate import sizes
from ablate.config import RunConfig
from ablate.launch import devices
from ablate.launch.devices import MEMORY_SHARE, Device
from ablate.plan import Plan
from ablate.store.runs import RETRIES

MEMBER_FIELDS = (
    "seed",
    "lr",
    "weight_decay",
    "mask_ratio",
)  # in which the members of a pack may differ

LARGEST = 32
# FLOPs a step at which a pack gains no more speed: 10.8M parameters peak at 4 runs, 0.85M near 32
# (H200)
SATURATION = 4e12


class Size(NamedTuple):
    """How many runs train together, and how they keep within memory."""

    runs: int
    micro_batch: int = 0  # sequences of each run in memory at once; 0: its whole batch
    recompute: bool = False  # blocks, in the backward pass


@functools.lru_cache(maxsize=1 << 14)
def shape(config: RunConfig) -> str:
    """Equal for runs that can train in one pack."""
    fields = config.model_dump(mode="json", exclude_defaults=True, exclude=set(MEMBER_FIELDS))
    return json.dumps(fields, sort_keys=True)


def capacity(config: RunConfig, device: Device) -> int:
    """Runs of this shape that train together on the device: until its memory is full or its
    throughput grows no more.
    """
    if not device.name.startswith("cuda"):
        return 1
    wanted = min(LARGEST, max(1, round(SATURATION * config.steps / sizes.train_flops(config))))
    fits = (
        k
        for k in range(wanted, 1, -1)
        if sizes.memory_bytes(config, k) <= MEMORY_SHARE * device.memory
    )
    return next(fits, 1)


def size(config: RunConfig, device: Device, squeezed: int) -> Size:
    """How large the next job of this shape is, after running out of memory `squeezed` times.

    First the pack shrinks to a quarter, then each run is alone and accumulates the gradient of its
    batch, at last with its blocks computed again in the backward pass. It begins with what the
    device is estimated to hold, and the last try takes the least.
    """
    full = capacity(config, device)
    few, fewer = -(-config.batch_size // 4), -(-config.batch_size // 16)
    smaller = [Size(-(-full // 4))] if full > 1 else []
    ladder = [Size(full), *smaller, Size(1, few), Size(1, fewer), Size(1, fewer, True)]
    room = MEMORY_SHARE * device.memory
    first = next(
        (k for k, rung in enumerate(ladder) if sizes.memory_bytes(config, *rung) <= room),
        len(ladder) - 1,
    )
    return ladder[-1] if squeezed >= RETRIES - 1 else ladder[min(first + squeezed, len(ladder) - 1)]


def seats(plan: Plan, places: Sequence[Device]) -> list[Device]:
    """A device, or its share of one, for each worker of a plan."""
    configs = {planned.config.key: planned.config for planned in (*plan.runs, *plan.later)}.values()
    largest = max((sizes.memory_bytes(config, 1) for config in configs), default=0)
    return devices.seats(
        list(places), len(configs), len({shape(config) for config in configs}), largest
    )


def share(waiting: int, capacity: int, idle: int) -> int:
    """Runs of the next pack, of those `waiting` that are alike: what fits, but the other idle
    devices get their part.

    Packs are of one size as far as they can be, for each size is compiled anew.
    """
    fits = max(1, min(capacity, -(-waiting // idle)))
    return -(-waiting // -(-waiting // fits))
