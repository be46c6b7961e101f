"""An engine without torch for the tests of `ablate.launch`: its curves are a pure function of run
and step.

What else it does is said by a run's learning rate (see the constants) and by the environment:
STUB_DELAY, seconds a step; STUB_LOG, see below.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import time
from pathlib import Path

RAISES, RUNS_OUT_OF_MEMORY, DIES, DIES_ONCE, BREAKS_DEVICE, DIVERGES, PACK_TOO_LARGE = (
    0.5 + k / 100 for k in range(7)
)

_broken = False


class OutOfMemory(Exception):
    pass


def setup(device: str, threads: int, memory: int) -> dict:
    return {"device_name": "stub", "threads": threads, "versions": {"torch": "0", "cuda": None}}


def status(error: Exception) -> str:
    return "oom" if isinstance(error, OutOfMemory) else "failed"


def usable(device: str) -> bool:
    return not _broken


def peak_bytes(device: str) -> int:
    return 1 << 20


def value(config, series: str, step: int) -> float:
    """A number of a run's curve; any double, from the run's key."""
    digest = hashlib.sha256(f"{config.key}{series}{step}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def train(
    configs,
    evaluation,
    sources,
    *,
    device,
    emit,
    checkpoint,
    stop,
    resume,
    micro_batch,
    recompute,
    turn,
):
    with turn or contextlib.nullcontext(), log_of_work(device):
        work(configs, emit=emit, checkpoint=checkpoint, stop=stop, resume=resume)


@contextlib.contextmanager
def log_of_work(device):
    """Who trained on which device from when to when, a line a job, in the file STUB_LOG."""
    begun = time.monotonic()
    yield
    if log := os.environ.get("STUB_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{device} {os.getpid()} {begun} {time.monotonic()}\n")


def work(configs, *, emit, checkpoint, stop, resume):
    at = json.loads(checkpoint.read_text()) if resume and checkpoint.exists() else 0
    for to in emit:
        to("start", step=at, compile_mode="none")
    steps, series, last = [], {"train_loss": [], "lr": []}, configs[0].steps
    for step in range(at + 1, last + 1):
        time.sleep(float(os.environ.get("STUB_DELAY", "0")))
        misbehave(configs, checkpoint, step, emit)
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
                to("end", status="stopped", step=step, error=None, device_seconds=0.0, peak_bytes=0)
            return
    for config, to in zip(configs, emit, strict=True):
        diverged = config.lr == DIVERGES
        loss = float("nan") if diverged else value(config, "loss", last)
        to("final", values=[["loss", 0, loss], ["bits_per_byte", 0, loss], ["accuracy", 0, 0.5]])
        to(
            "end",
            status="diverged" if diverged else "complete",
            step=last,
            error=None,
            device_seconds=0.1,
            peak_bytes=1 << 20,
        )


def misbehave(configs, checkpoint: Path, step: int, emit) -> None:
    global _broken
    for config in configs:
        if step != 3:
            continue
        if config.lr == RAISES:
            raise ValueError("the stub was told to fail")
        if config.lr == BREAKS_DEVICE:
            _broken = True
            raise RuntimeError("the stub's device is lost")
        if config.lr == RUNS_OUT_OF_MEMORY or (config.lr == PACK_TOO_LARGE and len(configs) > 1):
            raise OutOfMemory("the stub has no memory left")
        once = checkpoint.with_name(f"{config.key}.died")
        if config.lr == DIES or (config.lr == DIES_ONCE and not once.exists()):
            once.parent.mkdir(parents=True, exist_ok=True)
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
