"""Train a pack of runs: the loop around the step, with its events, held-out evaluations, checkpoints and ends."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ablate.config import Evaluation, RunConfig
from ablate.text import Tokens
from ablate.train import checkpoint as checkpoints
from ablate.train.evaluate import Evaluator, names_of_finals
from ablate.train.meter import SERIES, Meter, Point
from ablate.train.step import RING, Step, warm_step

Emit = Callable[..., None]  # emit("metrics", steps=[…], series={…}): an event of `ablate.journal` for one member

BLOCK_SECONDS = 1.0  # how long the device works between two readings of its metrics
CHECKPOINT_SECONDS = 60.0


def train(
    configs: Sequence[RunConfig],
    evaluation: Evaluation,
    tokens: Tokens,
    *,
    device: str,
    emit: Sequence[Emit],
    checkpoint: Path | None = None,
    stop: Callable[[], bool] = lambda: False,
    resume: bool = False,
    micro_batch: int = 0,
    compile: str = "auto",
) -> None:
    """Train K ≥ 1 runs of one shape together and emit their events.

    `configs` differ in seed, lr, weight_decay and mask_ratio at most. Every member gets `start` and `end` (complete,
    diverged, stopped; where an exception leaves this function, the caller ends those that have not ended). A checkpoint is
    written to `checkpoint` every minute and when `stop()`, asked between steps, says so; `resume` goes on from it.
    micro_batch: sequences of a member that are in memory at once, 0 for all. compile: "auto", "eager", "block" or "whole";
    on a CPU always eager.
    """
    assert len(configs) == len(emit)
    begun = time.perf_counter()
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
    step = warm_step(configs, tokens, device, micro_batch=micro_batch, compile=compile)
    Training(step, configs, Evaluator(step, configs, evaluation, tokens), emit, checkpoint, stop, begun).run(resume)


class Training:
    """One job at work. `done` counts the steps made; members end one by one."""

    def __init__(
        self,
        step: Step,
        configs: Sequence[RunConfig],
        evaluator: Evaluator,
        emit: Sequence[Emit],
        checkpoint: Path | None,
        stop: Callable[[], bool],
        begun: float,
    ):
        self.step, self.configs, self.evaluator, self.emit = step, configs, evaluator, emit
        self.path, self.stop, self.begun = checkpoint, stop, begun
        self.steps = configs[0].steps
        self.evaluate_at = {math.ceil(self.steps * k / evaluator.points) for k in range(1, evaluator.points + 1)}
        self.meter = Meter(self.steps, len(configs))
        self.living = list(range(len(configs)))
        self.done = 0
        self.seconds = 0.0  # spent in steps, over all attempts
        self.held_out: dict[str, np.ndarray] = {}

    def run(self, resume: bool) -> None:
        if resume:
            self._resume()
        for k in self.living:
            self.emit[k]("start", step=self.done, threads=torch.get_num_threads(), compile_mode=self.step.mode)
        saved = time.monotonic()
        stopped = False
        while self.done < self.steps and self.living and not stopped:
            stopped = self._block()
            if self.done in self.evaluate_at:
                self._evaluate()
            if self.path and (stopped or time.monotonic() - saved > CHECKPOINT_SECONDS) and self.done < self.steps:
                self._save(self.path)
                saved = time.monotonic()
        if self.done == self.steps:
            self._complete()
        for k in list(self.living):
            self._end(k, "stopped", self.done)
        if self.path and not stopped:
            checkpoints.remove(self.path)

    def _block(self) -> bool:
        """Steps for about `BLOCK_SECONDS`, up to the next evaluation at most; then their metrics. Whether to stop."""
        first, begun = self.done, time.perf_counter()
        until = min(self.evaluate_at - set(range(first + 1)))
        pace = (self.step.pace and int(BLOCK_SECONDS / self.step.pace)) or 1
        stopped = False
        for _ in range(min(until - first, RING, pace)):
            if stopped := self.stop():
                break
            self.step.run()
            self.done += 1
        if self.done == first:
            return stopped
        rows, diverged_at = self.step.read(self.done - first)
        elapsed = time.perf_counter() - begun
        self.seconds += elapsed
        self.step.pace = elapsed / (self.done - first)
        speed = self.configs[0].batch_tokens / self.step.pace
        points = self.meter.add(first, rows)
        for k in list(self.living):
            ends = diverged_at[k]
            mine = [point for point in points if not ends or point.step < ends]
            if ends:
                row = rows[ends - first - 1]
                mine.append(Point(ends, dict(zip(SERIES, row, strict=True))))
            self._emit_points(k, mine, speed)
            if ends:
                self._diverged(k, ends)
        return stopped

    def _emit_points(self, k: int, points: list[Point], speed: float) -> None:
        if points:
            series = {name: [float(point.values[name][k]) for point in points] for name in SERIES}
            series["tokens_per_second"] = [speed] * len(points)
            self.emit[k]("metrics", steps=[point.step for point in points], series=series)

    def _evaluate(self) -> None:
        if not self.living:
            return
        self.held_out = self.evaluator.held_out()
        for k in self.living:
            self.emit[k]("metrics", steps=[self.done], series={"loss": [float(self.held_out["loss"][k])]})

    def _complete(self) -> None:
        if not self.living:
            return
        finals = [(name, 0.0, values) for name, values in self.held_out.items()] + self.evaluator.finals()
        epochs = self.done * self.configs[0].batch_tokens / self.evaluator.n_train
        for k in list(self.living):
            values = [[name, at, float(value[k])] for name, at, value in finals]
            values += [["train_seconds", 0.0, self.seconds], ["epochs", 0.0, epochs]]
            self.emit[k]("final", values=values)
            self._end(k, "complete", self.done)

    def _diverged(self, k: int, step: int) -> None:
        names = names_of_finals(self.configs[k], self.evaluator.evaluation)
        self.emit[k]("final", values=[[name, at, math.nan] for name, at in names])
        self._end(k, "diverged", step)

    def _end(self, k: int, status: str, step: int) -> None:
        self.living.remove(k)
        device_seconds = (time.perf_counter() - self.begun) / len(self.configs)
        self.emit[k]("end", status=status, step=step, device_seconds=device_seconds, peak_bytes=peak_bytes(self.step.device))

    def _save(self, path: Path) -> None:
        state = {
            "keys": [config.key for config in self.configs],
            "done": self.done,
            "seconds": self.seconds,
            "sums": torch.from_numpy(self.meter.sums.copy()),
            "count": self.meter.count,
            "step": self.step.state(),
        }
        checkpoints.save(path, state)
        for k in self.living:
            self.emit[k]("checkpoint", step=self.done, path=str(path))

    def _resume(self) -> None:
        """Take up the checkpoint, if there is one that holds every member of this job; begin at step 0 otherwise."""
        state: dict[str, Any] | None = checkpoints.load(self.path) if self.path else None
        keys = [config.key for config in self.configs]
        if state is None or not set(keys) <= set(state["keys"]):
            return
        rows = torch.tensor([state["keys"].index(key) for key in keys])
        self.step.load_state(state["step"], rows)
        self.meter.sums[:] = state["sums"][:, rows].numpy()
        self.meter.count = state["count"]
        self.done, self.seconds = state["done"], state["seconds"]


def peak_bytes(device: torch.device) -> int:
    """The most memory held: allocated on a CUDA device since the job began, else resident since the process began."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource
    import sys

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
