"""A rank of the runs of a worker that has several devices; see `ablate.launch.peers`.

    python -m ablate.launch.rank --device=cuda:1 --threads=2 --memory=85899345920 --rank=1 --of=2
        --port=29500

It trains the jobs that arrive on stdin together with the worker, which alone writes. On stdout it
says which signal has asked it to end, and the error that ends it.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import json
import os
import queue
import signal
import sys
import threading
import traceback
from typing import Any, BinaryIO

import torch.distributed as dist

from ablate.kinds import Context, kind
from ablate.launch.messages import decode
from ablate.launch.peers import HOST
from ablate.launch.trainer import TorchTrainer
from ablate.launch.worker import NO_ROOM, no_room
from ablate.train import ranks

PR_SET_PDEATHSIG = 1  # of prctl, on Linux


def main() -> None:
    """Run a rank with the arguments of this process."""
    parser = argparse.ArgumentParser(prog="python -m ablate.launch.rank")
    parser.add_argument("--device", required=True)
    for name in ("threads", "memory", "rank", "of", "port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    given = parser.parse_args()

    _die_with_parent()
    faulthandler.enable()
    gc.set_threshold(50_000)  # see `ablate.cli.main`
    # Libraries and child processes cannot write to it: their output goes to stderr.
    jobs, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def say(**values: object) -> None:
        os.write(answers, json.dumps(values).encode() + b"\n")

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: say(signal=number))
    lines = _lines(jobs)
    trainer = TorchTrainer()
    try:
        trainer.setup(given.device, given.threads, given.memory)
        store = dist.TCPStore(HOST, given.port, given.of, is_master=False)
        ranks.join(given.device, given.rank, given.of, store)
        while True:
            _, job, _ = decode(lines.get())
            context = Context(given.device, [_quiet] * len(job.runs))
            kind(job.runs[0].kind).train(job, context)
    except Exception as error:
        trace, status = traceback.format_exc(), trainer.status(error)
        if why := no_room(error):
            say(status="", error=f"{trace}{why}")
            os._exit(NO_ROOM)
        usable = status == "oom" or trainer.usable(given.device)
        say(status=status if usable else "", error=trace)
        os._exit(1)


def _quiet(event: str, **values: Any) -> None:
    """Emit nothing: rank 0 does."""


def _lines(file: BinaryIO) -> queue.SimpleQueue[bytes]:
    """Return the lines of a pipe, read by a thread that ends this process when the pipe closes."""
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in file:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    return lines


def _die_with_parent() -> None:
    """Let the system kill this process when the worker ends, even while it is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
