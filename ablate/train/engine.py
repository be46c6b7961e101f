"""Train a pack of runs: the loop around the step, with its events, held-out evaluations,
checkpoints and ends.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from ablate.config import Evaluation, RunConfig
from ablate.text import Tokens
from ablate.train import checkpoint as checkpoints
from ablate.train.evaluate import Evaluator
from ablate.train.meter import SERIES, Meter, Point
from ablate.train.warm import Warm, warm_step

Emit = Callable[
    ..., None
]  # emit("metrics", steps=[…], series={…}): an event of `ablate.journal` for one member

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
    recompute: bool = False,
    compile: str = "auto",
    turn: AbstractContextManager[None] | None = None,
) -> None:
    """Train K ≥ 1 runs of one shape together and emit their events.

    `configs` differ in seed, lr, weight_decay and mask_ratio at most. Every member gets `start` and
    `end` (complete, diverged, stopped); where an exception leaves this function, the caller ends
    those that have not ended. A checkpoint is written to `checkpoint` every minute and when
    `stop()`, asked between steps, says so; `resume` goes on from it. tokens_per_second is a
    member's own; train_seconds, of steps alone, and device_seconds, of steps and evaluation, are
    shared out among the members. micro_batch: sequences of a member that are in memory at once, 0
    for all. recompute: whether blocks are computed again in the backward pass, to save memory.
    compile: "eager", "block" or "whole", or "auto" for what is done first (`ablate.train.warm`); a
    CPU always works eagerly. turn: entered once all is ready, for as long as the device is at work.
    """
    assert len(configs) == len(emit)
    cuda = device.startswith("cuda")
    with torch.cuda.device(device) if cuda else nullcontext():
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        warm = warm_step(configs, tokens, device, micro_batch, recompute)
        warm.prepare(configs[0].steps, compile, shared=turn is not None)
        evaluator = Evaluator(warm.step, configs, evaluation, tokens)
        with turn or nullcontext():
            Training(warm, configs, evaluator, emit, checkpoint, stop).run(resume)


class Training:
    """One job at work. Its members end one by one."""

    def __init__(
        self,
        warm: Warm,
        configs: Sequence[RunConfig],
        evaluator: Evaluator,
        emit: Sequence[Emit],
        checkpoint: Path | None,
        stop: Callable[[], bool],
    ):
        self.warm, self.step = warm, warm.step
        self.configs, self.evaluator, self.emit = configs, evaluator, emit
        self.path, self.stop, self.begun = checkpoint, stop, time.perf_counter()
        self.steps = configs[0].steps
        points = evaluator.evaluation.points
        self.evaluate_at = {math.ceil(self.steps * k / points) for k in range(1, points + 1)}
        self.meter = Meter(self.steps, len(configs))
        self.living = list(range(len(configs)))
        self.seconds = 0.0  # spent in steps, by all attempts

    def run(self, resume: bool) -> None:
        """Train to the end, to the last member's divergence, or until `stop()`."""
        step = self.step
        if resume:
            self._resume()
        for emit in self.emit:
            emit(
                "start",
                step=step.done,
                threads=torch.get_num_threads(),
                compile_mode=self.warm.mode,
            )
        saved = time.monotonic()
        stopped = False
        self._bury(step.diverged_at.tolist())
        while step.done < self.steps and self.living and not stopped:
            stopped = self._block()
            if step.done in self.evaluate_at and self.living:
                self._evaluate()
            if (
                self.path
                and (stopped or time.monotonic() - saved > CHECKPOINT_SECONDS)
                and step.done < self.steps
            ):
                self._save(self.path)
                saved = time.monotonic()
        if self.living:
            self._finish()
        if self.path and not stopped:
            checkpoints.remove(self.path)

    def _block(self) -> bool:
        """Steps for about `BLOCK_SECONDS`, to the next evaluation at most; then their metrics.
        Whether to stop.
        """
        step, first, begun = self.step, self.step.done, time.perf_counter()
        until = min(point for point in self.evaluate_at if point > first)
        n = min(
            until - first, step.ring, max(1, int(BLOCK_SECONDS / (self.warm.pace or BLOCK_SECONDS)))
        )
        made = step.run(n, self.stop)
        if made:
            rows, diverged_at = step.read(made)
            elapsed = time.perf_counter() - begun
            self.seconds += elapsed
            self.warm.pace = elapsed / made
            points = self.meter.add(first, rows)
            for k in self.living:
                last = diverged_at[k]
                mine = [point for point in points if not last or point.step < last]
                if last:
                    mine.append(Point(last, dict(zip(SERIES, rows[last - first - 1], strict=True))))
                self._emit_points(k, mine)
            self._bury(diverged_at)
        return made < n

    def _emit_points(self, k: int, points: list[Point]) -> None:
        if points:
            series = {name: [float(point.values[name][k]) for point in points] for name in SERIES}
            series["tokens_per_second"] = [self.configs[k].batch_tokens / self.warm.pace] * len(
                points
            )
            self.emit[k]("metrics", steps=[point.step for point in points], series=series)

    def _bury(self, diverged_at: Sequence[int]) -> None:
        """End the living members that have diverged."""
        for k in [k for k in self.living if diverged_at[k]]:
            names = self.evaluator.evaluation.finals(self.configs[k])
            self.emit[k]("final", values=[[name, at, math.nan] for name, at in names])
            self._end(k, "diverged", diverged_at[k])

    def _evaluate(self) -> None:
        loss = self.evaluator.held_out().loss
        for k in self.living:
            self.emit[k]("metrics", steps=[self.step.done], series={"loss": [loss[k]]})

    def _finish(self) -> None:
        """End the living members: complete with their finals, or stopped."""
        complete = self.step.done == self.steps
        if complete:
            epochs, seconds = self.step.batches.epochs(self.steps), self.seconds / len(self.configs)
            finals = self.evaluator.finals()
            for k in self.living:
                values = [[name, at, member[k]] for name, at, member in finals]
                self.emit[k](
                    "final", values=[*values, ["train_seconds", 0, seconds], ["epochs", 0, epochs]]
                )
        for k in list(self.living):
            self._end(k, "complete" if complete else "stopped", self.step.done)

    def _end(self, k: int, status: str, step: int) -> None:
        self.living.remove(k)
        seconds = (time.perf_counter() - self.begun) / len(self.configs)
        peak = max(peak_bytes(self.step.device), self.warm.peak_bytes)
        self.emit[k]("end", status=status, step=step, device_seconds=seconds, peak_bytes=peak)

    def _save(self, path: Path) -> None:
        state = {
            "keys": [config.key for config in self.configs],
            "seconds": self.seconds,
            "sums": torch.from_numpy(self.meter.sums),
            "count": self.meter.count,
            "step": self.step.state(),
        }
        checkpoints.save(path, state)
        for k in self.living:
            self.emit[k]("checkpoint", step=self.step.done, path=str(path))

    def _resume(self) -> None:
        """Take the checkpoint up, where there is one with every member of this job; else begin at
        step 0.
        """
        state = checkpoints.load(self.path) if self.path else None
        keys = [config.key for config in self.configs]
        if state is None or not set(keys) <= set(state["keys"]):
            return
        rows = torch.tensor([state["keys"].index(key) for key in keys])
        self.step.load_state(state["step"], rows)
        self.meter.sums[:] = state["sums"][:, rows].numpy()
        self.meter.count = state["count"]
        self.seconds = state["seconds"]


def peak_bytes(device: torch.device) -> int:
    """The most memory held: allocated on a CUDA device since the job began, else resident since the
    process began.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
