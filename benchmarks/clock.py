"""What the benchmarks of training share: a device's speed and memory. Imports torch alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def speed(step: Callable[[], object], device: str, seconds: float) -> float:
    """Calls a second, over about `seconds`."""
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
    """Most memory allocated on a CUDA device; 0 elsewhere."""
    return torch.cuda.max_memory_allocated(device) if device.startswith("cuda") else 0
