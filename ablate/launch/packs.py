"""Which runs train together: those that differ only in what leaves the compiled step unchanged, as many as profit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from ablate import sizes
from ablate.config import RunConfig
from ablate.launch.devices import Device

MEMBER_FIELDS = ("seed", "lr", "weight_decay", "mask_ratio")  # in which the members of a pack may differ

LARGEST = 32
SATURATION = 4e12  # FLOPs a step at which a pack gains no more speed: 10.8M parameters peak at 4 runs, 0.85M near 32 (H200)
MEMORY_SHARE = 0.8  # of a device's memory that a pack may be estimated to take


def shape(config: RunConfig) -> str:
    """Equal for runs that can train in one pack."""
    fields = config.model_dump(mode="json", exclude_defaults=True, exclude=set(MEMBER_FIELDS))
    return json.dumps(fields, sort_keys=True)


def capacity(config: RunConfig, device: Device) -> int:
    """Runs of this shape that train together on the device: until its memory is full or its throughput grows no more."""
    if not device.name.startswith("cuda"):
        return 1
    wanted = min(LARGEST, max(1, round(SATURATION / (sizes.count(config).train_flops / config.steps))))
    fits = (k for k in range(wanted, 1, -1) if sizes.memory_bytes(config, k) <= MEMORY_SHARE * device.memory)
    return next(fits, 1)


def choose(waiting: Sequence[RunConfig], capacity: Callable[[RunConfig], int], n_devices: int) -> list[int]:
    """Indices of the runs of the next job: the first one waiting and, up to `capacity`, those of its shape.

    No more of a shape than its share among `n_devices`, so that none stands idle while another has a full pack.
    """
    if not waiting:
        return []
    first = shape(waiting[0])
    alike = [k for k, config in enumerate(waiting) if shape(config) == first]
    return alike[: max(1, min(capacity(waiting[0]), -(-len(alike) // n_devices)))]
