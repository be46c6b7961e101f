"""Train a pack of runs: the loop around the step, events, evaluations, checkpoints, ends."""

from __future__ import annotations

import base64
import math
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from ablate.config import RunConfig
from ablate.images import Images
from ablate.kinds import Context, Job, kind
from ablate.text import Tokens
from ablate.train import checkpoint as checkpoints
from ablate.train import ranks, start
from ablate.train.compiled import CompiledStep, cached_step
from ablate.train.evaluate import Evaluator
from ablate.train.meter import SERIES, Meter, Point
from ablate.train.scoring import Scorer
from ablate.train.step import Step
from ablate.train.weights import Keeper
from ablate.windows import WindowLosses

BLOCK_SECONDS = 1.0  # of training between two readings of the device's metrics
CHECKPOINT_SECONDS = 60.0


def train(
    job: Job,
    context: Context,
    tokens: Tokens | Images,
    evaluates: Callable[..., Scorer] = Evaluator,
) -> None:
    """Train K ≥ 1 runs of one shape together and emit their events.

    A member has diverged at the step whose loss is not finite, or at the last step, where its
    update has made the loss of its own batch rise by more than that of a uniform guess, or the
    held-out loss is not finite. Runs of no steps, which start from given weights, are evaluated.

    Runs differ in seed, lr, weight_decay and mask_ratio at most. Every member gets `start` and
    `end` (complete, diverged, stopped); where an exception leaves this function, the caller ends
    those that have not ended. A checkpoint is written every minute and when `context.stop()`,
    asked between steps, says so. tokens_per_second is a member's own; train_seconds, of steps
    alone, and device_seconds, of steps and evaluation, are shared out among the members.
    `context.device_lock` is entered once all is ready, for as long as the device is at work.
    Where several ranks train together, rank 0 does all this, and the others make its steps.

    Args:
        job: Runs of kind "transformer" or "image", and how to train them.
        context: Device, events, and when to stop.
        tokens: The text of the runs, or their images.
        evaluates: Makes what measures the models, of the arguments that `Evaluator` has.

    Raises:
        AblateError: The text does not serve, or `job.compile` names no mode.
    """
    assert len(job.runs) == len(context.emit)
    configs = [run.config for run in job.runs]
    cuda = context.device.startswith("cuda")
    with torch.cuda.device(context.device) if cuda else nullcontext():
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        compiled = cached_step(configs, tokens, context.device, job.micro_batch, job.recompute)
        if configs[0].steps:
            compiled.prepare(configs[0].steps, job.compile, shared=context.shared)
        if configs[0].part("start").given:
            start.give(compiled.step.model, configs, job.sources)
        advance = context.progress.advance
        evaluator = evaluates(compiled.step, configs, job.evaluation, tokens, job.sources, advance)
        if ranks.number():
            follow(compiled.step, evaluator)
            return
        with context.device_lock:
            Training(compiled, configs, evaluator, job, context).run()


def follow(step: Step, evaluator: Scorer) -> None:
    """Do in another rank what rank 0 does in `Training.run`, until that has ended."""
    step.align()
    while (order := ranks.agree(None)) is not None:
        match order:
            case int(n):
                step.follow(n)
            case "held out":
                evaluator.held_out(), evaluator.copies()
            case "finals":
                evaluator.finals()


class Training:
    """The training of one job. Its members end one by one."""

    def __init__(
        self,
        compiled: CompiledStep,
        configs: Sequence[RunConfig],
        evaluator: Scorer,
        job: Job,
        context: Context,
    ):
        self.compiled, self.step = compiled, compiled.step
        self.configs, self.evaluator, self.emit = configs, evaluator, context.emit
        self.keys = [run.key for run in job.runs]
        of = job.runs[0]
        self.final_names = kind(of.kind).finals(of.fields, evaluator.evaluation)
        self.path, self.resume, self.stop = job.checkpoint, job.resume, context.stop
        self.progress = context.progress
        self.begun = time.perf_counter()
        self.steps = configs[0].steps
        self.covered = self.steps if job.covered is None else job.covered
        points = evaluator.evaluation.points
        self.evaluate_at = {math.ceil(self.steps * k / points) for k in range(1, points + 1)}
        self.meter = Meter(self.steps, len(configs))
        self.keeper = Keeper(job, self.step.model)
        self.living = list(range(len(configs)))
        self.seconds = 0.0  # spent in steps, by all attempts

    def run(self) -> None:
        """Train to the end, until the last member diverges, or until `stop()`."""
        step = self.step
        if self.resume:
            self._resume(self.resume)
        step.align()
        for emit in self.emit:
            emit(
                "start",
                step=step.done,
                threads=torch.get_num_threads(),
                compile_mode=self.compiled.mode,
                note=self.compiled.note or None,
            )
        saved = time.monotonic()
        stopped = False
        self._end_diverged(step.diverged_at.tolist())
        if not self.steps:
            self._evaluate()
        while step.done < self.steps and self.living and not stopped:
            stopped = self._block()
            if step.done == self.steps:
                self._end_exploded(step.exploded().tolist())
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
        ranks.agree(None)
        if not stopped:
            for path in filter(None, (self.path, self.resume)):
                checkpoints.remove(path)

    def _block(self) -> bool:
        """Make steps for about `BLOCK_SECONDS`, to the next evaluation at most; emit metrics.

        Returns:
            Whether to stop.
        """
        step, first, begun = self.step, self.step.done, time.perf_counter()
        until = min(point for point in self.evaluate_at if point > first)
        n = min(
            until - first,
            step.ring,
            max(1, int(BLOCK_SECONDS / (self.compiled.pace or BLOCK_SECONDS))),
        )
        made = step.run(n, self.stop)
        if made:
            rows, diverged_at = step.read(made)
            elapsed = time.perf_counter() - begun
            self.seconds += elapsed
            self.progress.advance(made)
            self.progress.long = False
            self.compiled.pace = elapsed / made
            points = self.meter.add(first, rows)
            for k in self.living:
                last = diverged_at[k]
                own = [point for point in points if not last or point.step < last]
                if last:
                    own.append(Point(last, dict(zip(SERIES, rows[last - first - 1], strict=True))))
                self._emit_points(k, own)
            self._end_diverged(diverged_at)
        return made < n

    def _emit_points(self, k: int, points: list[Point]) -> None:
        if points:
            series = {name: [float(point.values[name][k]) for point in points] for name in SERIES}
            series["tokens_per_second"] = [self.configs[k].batch_tokens / self.compiled.pace] * len(
                points
            )
            self.emit[k]("metrics", steps=[point.step for point in points], series=series)

    def _end_diverged(self, diverged_at: Sequence[int]) -> None:
        """End the living members that have diverged."""
        for k in [k for k in self.living if diverged_at[k]]:
            self.emit[k]("final", values=[[name, at, math.nan] for name, at in self.final_names])
            self._end(k, "diverged", diverged_at[k])

    def _end_exploded(self, exploded: Sequence[bool]) -> None:
        """End the remaining members as diverged whose last update made the loss explode."""
        self._end_diverged([self.steps if bad else 0 for bad in exploded])

    def _evaluate(self) -> None:
        ranks.agree("held out")
        score, copies = self.compiled.with_room(
            lambda: (self.evaluator.held_out(), self.evaluator.copies())
        )
        measured = {"loss": score.loss, **copies, **score.own}
        for k in self.living:
            series = {name: [of[k]] for name, of in measured.items()}
            self.emit[k]("metrics", steps=[self.step.done], series=series)
        self.keeper.evaluated(self.step.done, score.loss, self.living)

    def _finish(self) -> None:
        """End the living members: complete with their finals, or stopped."""
        complete = self.step.done == self.steps
        if complete:
            epochs, seconds = self.step.batches.epochs(self.steps), self.seconds / len(self.configs)
            ranks.agree("finals")
            finals = self.compiled.with_room(self.evaluator.finals)
            self._end_exploded([not math.isfinite(loss) for loss in finals[0][2]])
            for k in self.living:
                self._keep(k)
                for of_final in self.evaluator.by_window:
                    self._emit_windows(k, of_final[k])
                values = [[name, at, member[k]] for name, at, member in finals]
                self.emit[k](
                    "final", values=[*values, ["train_seconds", 0, seconds], ["epochs", 0, epochs]]
                )
        for k in list(self.living):
            self._end(k, "complete" if complete else "stopped", self.step.done)

    def _keep(self, k: int) -> None:
        """Write the weights of a member, if they are kept, before its results are reported."""
        with self.progress.during(long=True):
            if kept := self.keeper.write(k):
                self.emit[k]("weights", keep=kept.keep, step=kept.step, path=kept.path.name)

    def _emit_windows(self, k: int, windows: WindowLosses) -> None:
        layout, losses = (base64.b64encode(part).decode() for part in windows.packed())
        self.emit[k](
            "windows",
            name=windows.name,
            at=windows.at,
            tokens=windows.tokens,
            layout=layout,
            losses=losses,
        )

    def _end(self, k: int, status: str, step: int) -> None:
        self.living.remove(k)
        seconds = ranks.count() * (time.perf_counter() - self.begun) / len(self.configs)
        peak = max(peak_bytes(self.step.device), self.compiled.peak_bytes)
        self.emit[k]("end", status=status, step=step, device_seconds=seconds, peak_bytes=peak)

    def _save(self, path: Path) -> None:
        state = {
            "keys": self.keys,
            "seconds": self.seconds,
            "sums": torch.from_numpy(self.meter.sums),
            "count": self.meter.count,
            "step": self.step.state(),
            **self.keeper.state(),
        }
        with self.progress.during(long=True):
            checkpoints.save(path, state)
        for k in self.living:
            self.emit[k]("checkpoint", step=self.step.done, path=str(path))
        if self.resume and self.resume != path:
            checkpoints.remove(self.resume)

    def _resume(self, path: Path) -> None:
        """Continue from a checkpoint if it has all that this job needs and is covered, else begin
        at step 0.
        """

        def fits(state: checkpoints.State) -> bool:
            every = set(self.keys) <= set(state["keys"]) and self.keeper.fits(state)
            return every and state["step"]["done"] <= self.covered

        if (state := checkpoints.load(path, fits)) is None:
            return
        rows = torch.tensor([state["keys"].index(key) for key in self.keys])
        self.step.load_state(state["step"], rows)
        self.meter.sums[:] = state["sums"][:, rows].numpy()
        self.meter.count = state["count"]
        self.seconds = state["seconds"]
        self.keeper.load_state(state, rows.tolist())


def peak_bytes(device: torch.device) -> int:
    """Return the most memory held.

    On a CUDA device that is what was allocated since the job began, elsewhere what was resident
    since the process began.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )
