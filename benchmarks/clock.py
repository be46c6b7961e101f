"""The speed and memory of a device, for the benchmarks of training. Imports torch alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def synchronise(device: str) -> None:
    """Wait until the device has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def speed(step: Callable[[], object], device: str, seconds: float) -> float:
    """Return calls of `step` a second, over about `seconds`."""
    n, elapsed = 1, 0.0
    while elapsed < seconds:
        n = max(n + 1, int(n * min(10.0, 1.1 * seconds / elapsed))) if elapsed else n
        synchronise(device)
        begun = time.perf_counter()
        for _ in range(n):
            step()
        synchronise(device)
        elapsed = time.perf_counter() - begun
    return n / elapsed


def peak_bytes(device: str) -> int:
    """Return the most memory allocated on a CUDA device; 0 elsewhere."""
    return torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else 0
