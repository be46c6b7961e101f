"""A worker without torch for the tests of `ablate.launch`: curves are a function of run and step.

What else it does is set by a run's learning rate (see the constants) and by the environment:
STUB_DELAY, seconds a step; STUB_HEARTBEAT, seconds between heartbeats; STUB_LOG, see below.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import time
from pathlib import Path

from ablate.kinds.transformer import run_of
from ablate.launch import worker

RAISES, RUNS_OUT_OF_MEMORY, DIES, DIES_ONCE, BREAKS_DEVICE, DIVERGES, PACK_TOO_LARGE = (
    0.5 + k / 100 for k in range(7)
)


class OutOfMemory(Exception):
    pass


def value(config, series: str, step: int) -> float:
    """A number of a run's curve; any double, from the run's key."""
    digest = hashlib.sha256(f"{run_of(config).key}{series}{step}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


class Stub:
    """A trainer; see `ablate.launch.worker.Trainer`."""

    broken = False

    def setup(self, device: str, threads: int, memory: int) -> dict:
        return {"device_name": "stub", "threads": threads, "versions": {"torch": "0", "cuda": None}}

    def status(self, error: Exception) -> str:
        return "oom" if isinstance(error, OutOfMemory) else "failed"

    def usable(self, device: str) -> bool:
        return not self.broken

    def peak_bytes(self, device: str) -> int:
        return 1 << 20

    def train(self, job, context):
        with context.device_lock, log_of_training(context.device):
            self.steps(job, context)

    def steps(self, job, context):
        configs, emit, stop = [run.config for run in job.runs], context.emit, context.stop
        checkpoint = job.checkpoint
        there = job.resume and job.resume.exists()
        at = json.loads(job.resume.read_text()) if there else 0
        if job.covered is not None and at > job.covered:
            at = 0
        for to in emit:
            to("start", step=at, compile_mode="none")
        steps, series, last = [], {"train_loss": [], "lr": []}, configs[0].steps
        for step in range(at + 1, last + 1):
            time.sleep(float(os.environ.get("STUB_DELAY", "0")))
            self.misbehave(configs, checkpoint, step)
            context.progress.advance()
            context.progress.long = False
            steps.append(step)
            if step % 2 == 0 or step == last or stop():
                for config, to in zip(configs, emit, strict=True):
                    for name in series:
                        series[name] = [value(config, name, s) for s in steps]
                    to("metrics", steps=steps, series=series)
                steps = []
            if stop() and step < last:
                temporary = checkpoint.with_suffix(".new")
                temporary.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_text(json.dumps(step))
                temporary.replace(checkpoint)
                for to in emit:
                    to("checkpoint", step=step, path=str(checkpoint))
                    to("end", status="stopped", step=step, error=None, **COST)
                return
        for config, to in zip(configs, emit, strict=True):
            diverged = config.lr == DIVERGES
            loss = float("nan") if diverged else value(config, "loss", last)
            finals = [["loss", 0, loss], ["bits_per_byte", 0, loss], ["accuracy", 0, 0.5]]
            to("final", values=finals)
            to("end", status="diverged" if diverged else "complete", step=last, error=None, **COST)

    def misbehave(self, configs, checkpoint: Path, step: int) -> None:
        for config in configs:
            if step != 3:
                continue
            if config.lr == RAISES:
                raise ValueError("the stub fails as requested")
            if config.lr == BREAKS_DEVICE:
                self.broken = True
                raise RuntimeError("the stub's device is lost")
            if config.lr == RUNS_OUT_OF_MEMORY or (
                config.lr == PACK_TOO_LARGE and len(configs) > 1
            ):
                raise OutOfMemory("the stub has no memory left")
            once = checkpoint.with_name(f"{run_of(config).key}.died")
            if config.lr == DIES or (config.lr == DIES_ONCE and not once.exists()):
                once.parent.mkdir(parents=True, exist_ok=True)
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)


COST = {"device_seconds": 0.1, "peak_bytes": 1 << 20}


@contextlib.contextmanager
def log_of_training(device):
    """Who trained on which device from when to when, a line a job, in the file STUB_LOG."""
    begun = time.monotonic()
    yield
    if log := os.environ.get("STUB_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{device} {os.getpid()} {begun} {time.monotonic()}\n")


def main(trainer=Stub) -> None:
    worker.HEARTBEAT = float(os.environ.get("STUB_HEARTBEAT", worker.HEARTBEAT))
    worker.main(trainer)


if __name__ == "__main__":
    main()
