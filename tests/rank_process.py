"""A rank for the tests of `ablate.train.ranks`: trains cases together with other processes.

    python rank_process.py RANK OF DEVICE STORE < CASES

Rank 0 prints the events of each case, as a JSON list.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from train_helpers import Events, after, config, run

from ablate.evaluation import Evaluation
from ablate.train import ranks

EVALUATION = Evaluation(points=3, tokens=256)


def case(
    fields: dict[str, Any],
    device: str = "cpu",
    checkpoint: str = "",
    resume: bool = False,
    stop: int = 1 << 30,
    **options: Any,
) -> Events:
    """Train a run.

    Args:
        fields: Of its configuration, beside those of `train_helpers.TINY`.
        device: Of this process.
        checkpoint: File; "" for none.
        resume: Continue from the file.
        stop: Which question whether to stop is answered with yes.
        **options: Further arguments of its job.
    """
    path = Path(checkpoint) if checkpoint else None
    of = {"evaluation": EVALUATION, "device": device, "checkpoint": path, "resume": resume}
    return run(config(**fields), **of, stop=after(stop), **options)[0]


def together(
    cases: Sequence[dict[str, Any]], folder: Path, devices: Sequence[str] = ("cpu", "cpu")
) -> list[Events]:
    """Train cases in processes, one for each device, and return their events."""
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(rank), str(len(devices)), device, folder / "store"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if rank == 0 else None,
            text=True,
        )
        for rank, device in enumerate(devices)
    ]
    for process in processes[1:]:
        assert process.stdin
        process.stdin.write(json.dumps(cases))
        process.stdin.close()
    try:
        printed, _ = processes[0].communicate(json.dumps(cases), timeout=300)
        assert [process.wait(30) for process in processes] == [0] * len(devices)
    finally:
        for process in processes:
            process.kill()
    found = []
    for events in json.loads(printed.splitlines()[-1]):
        found.append(Events())
        found[-1].events = events
    return found


def main() -> None:
    rank, of, device, store = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    torch.set_num_threads(1)
    ranks.join(device, rank, of, dist.FileStore(store, of))
    made = [case(**one, device=device).events for one in json.load(sys.stdin)]
    if rank == 0:
        print(json.dumps(made))
    sys.stdout.flush()
    # As the workers of `ablate.launch` leave. `dist.destroy_process_group` waits for ever for CUDA
    # graphs that have captured collectives of NCCL and are still alive.
    os._exit(0)


if __name__ == "__main__":
    main()
