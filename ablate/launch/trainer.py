"""What a worker asks of torch: set a device up, train a job, and classify a failure."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import Any

import torch

from ablate.kinds import Context, Job, kind
from ablate.launch import devices
from ablate.launch.peers import Peers
from ablate.train import engine

# What torch, CUDA, cuBLAS, cuDNN and Triton say, apart from OutOfMemoryError, if memory has run
# out.
NO_MEMORY = (
    "can't allocate memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class TorchTrainer:
    """Trains jobs of every kind on a device of torch; see `ablate.launch.worker.Trainer`.

    Of several devices it has the first, and starts a process for each other one.
    """

    _peers: Peers | None = None

    def setup(self, device: str, threads: int, memory: int) -> dict[str, Any]:
        """See `Trainer.setup`. On a GPU this process then takes at most `memory` bytes."""
        own, *others = devices.members(device)
        threads = max(1, threads // (1 + len(others)))
        torch.set_num_threads(threads)
        if own.startswith("cuda"):
            total = torch.cuda.mem_get_info(own)[1]
            torch.cuda.set_per_process_memory_fraction(min(1.0, memory / total), own)
        torch.zeros(1, device=own)
        if others:
            self._peers = Peers(own, others, threads, memory)
        return {
            "device_name": device_name(own),
            "threads": torch.get_num_threads(),
            "versions": {"torch": torch.__version__, "cuda": torch.version.cuda},
        }

    def train(self, job: Job, context: Context) -> None:
        """See `Trainer.train`."""
        of = kind(job.runs[0].kind)
        if not self._peers:
            of.train(job, context)
            return
        self._peers.begin(job, context.fail)
        try:
            of.train(job, replace(context, device=devices.members(context.device)[0]))
        except Exception:
            self._peers.settle()
            raise

    def status(self, error: Exception) -> str:
        """See `Trainer.status`."""
        no_memory = isinstance(error, RuntimeError) and any(
            words in str(error) for words in NO_MEMORY
        )
        oom = no_memory or isinstance(error, torch.OutOfMemoryError | MemoryError)
        return "oom" if oom else "failed"

    def usable(self, device: str) -> bool:
        """See `Trainer.usable`. After a device error no call of the same process succeeds."""
        try:
            return torch.ones(1, device=devices.members(device)[0]).add_(1).item() == 2
        except RuntimeError:
            return False

    def peak_bytes(self, device: str) -> int:
        """See `Trainer.peak_bytes`."""
        return engine.peak_bytes(torch.device(devices.members(device)[0]))


def device_name(device: str) -> str:
    """Return the maker's name of a device, as attempts record it.

    Args:
        device: Torch's name of it, such as "cuda:0".
    """
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()
