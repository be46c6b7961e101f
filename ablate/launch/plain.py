"""What a worker asks of a device for kinds that train without torch in the worker's process."""

from __future__ import annotations

import os
import platform
from typing import Any

from ablate.kinds import Context, Job, kind


class PlainTrainer:
    """Trains jobs of kinds without torch; see `ablate.launch.worker.Trainer`."""

    def setup(self, device: str, threads: int, memory: int) -> dict[str, Any]:
        """See `Trainer.setup`. The limit of memory is that of the machine."""
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # of the processes that it starts
        name = platform.processor() or platform.machine()
        return {
            "device_name": name if device == "cpu" else device,
            "threads": threads,
            "versions": {},
        }

    def train(self, job: Job, context: Context) -> None:
        """See `Trainer.train`."""
        kind(job.runs[0].kind).train(job, context)

    def status(self, error: Exception) -> str:
        """See `Trainer.status`."""
        return "oom" if isinstance(error, MemoryError) else "failed"

    def usable(self, device: str) -> bool:
        """See `Trainer.usable`. Nothing of this process is on the device."""
        return True

    def peak_bytes(self, device: str) -> int | None:
        """See `Trainer.peak_bytes`; None for unknown."""
        return None
