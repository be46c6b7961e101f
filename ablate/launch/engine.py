"""What a worker needs of torch: set a device up, train a job on it, and tell what kind of failure
came back.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from ablate.config import Evaluation, RunConfig
from ablate.kinds import Context, Job
from ablate.kinds.transformer import run_of
from ablate.train import engine

# What torch, CUDA, cuBLAS, cuDNN and Triton say, beside raising OutOfMemoryError, where memory has
# run out.
NO_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


def setup(device: str, threads: int, memory: int) -> dict[str, Any]:
    """Set the thread count and take hold of the device, a GPU's by `memory` bytes at most. What an
    attempt records of both.
    """
    torch.set_num_threads(threads)
    if device.startswith("cuda"):
        torch.cuda.set_per_process_memory_fraction(
            min(1.0, memory / torch.cuda.mem_get_info(device)[1]), device
        )
    torch.zeros(1, device=device)
    return {
        "device_name": _name(device),
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
    }


def train(
    configs: Sequence[RunConfig],
    evaluation: Evaluation,
    sources: dict[str, str],
    *,
    device: str,
    emit: Sequence[Callable[..., None]],
    checkpoint: Path,
    stop: Callable[[], bool],
    resume: bool,
    micro_batch: int,
    recompute: bool,
    turn: AbstractContextManager[None] | None,
) -> None:
    """Train a pack. `emit[k]` takes the journal events of member k; see
    `ablate.train.engine.train`.
    """
    runs = tuple(map(run_of, configs))
    job = Job(runs, evaluation, sources, checkpoint, resume, micro_batch, recompute)
    engine.train(job, Context(device, emit, stop, turn or nullcontext()))


def status(error: Exception) -> str:
    """How an attempt that `error` ended is recorded: `oom` or `failed`."""
    said = isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    return "oom" if said or isinstance(error, torch.OutOfMemoryError | MemoryError) else "failed"


def usable(device: str) -> bool:
    """Whether the device still computes. After a device error no call of the same process
    succeeds.
    """
    try:
        return torch.ones(1, device=device).add_(1).item() == 2
    except RuntimeError:
        return False


def peak_bytes(device: str) -> int:
    """The most memory held so far: allocated on a CUDA device, resident otherwise."""
    return engine.peak_bytes(torch.device(device))


def _name(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()
