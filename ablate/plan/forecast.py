"""How long a plan takes, from the speed at which its cells train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ablate import sizes
from ablate.errors import AblateError
from ablate.evaluation import FORWARD, Evaluation
from ablate.plan.model import Cell, Plan, before

SLOW = 0.75  # share of the baseline's speed, below which a cell is listed


@dataclass(frozen=True)
class TaskTime:
    """The seconds of a run on a task, which trains alone.

    Attributes:
        setup: Until the first step: model, texts, weights.
        step: Of an optimiser step.
        text: Of a held-out text that is evaluated.
        pretraining: Of an evaluation of the loss of the pre-training.
    """

    setup: float
    step: float
    text: float
    pretraining: float

    def seconds(self, config: Any, evaluation: Evaluation) -> float:
        """Return the seconds of a run, without those of the fit of a learner."""
        method = config.part("method")
        if method.by_steps:
            steps = config.finetune_steps
            texts = min(evaluation.points, steps) * config.n_tested
        else:
            steps, texts = 0, config.n_tested + (config.labels or config.n_fitted)
        evaluations = (1 + method.by_steps) * method.starts
        on_task = steps * self.step + texts * self.text
        return self.setup + on_task + evaluations * self.pretraining


@dataclass(frozen=True)
class Forecast:
    """The speed of a plan's cells.

    Attributes:
        tokens_per_second: Label of a cell → tokens a second of its training, all members of a pack
            together; of a fine-tuned cell those of its pre-training.
        on_task: Label of a fine-tuned cell → the times of its runs on the task.
        ended: Label of a fine-tuned cell → mean seconds of its runs that have ended.
        side_by_side: Runs or packs that train at the same time.
        start: Seconds from the command to the first step.
        device: Where the speed was measured; "" for one that was given.
        estimated: Whether some speeds are estimated: those of compiled steps from eager ones, those
            of several devices from one.
    """

    tokens_per_second: Mapping[str, float]
    on_task: Mapping[str, TaskTime] = field(default_factory=dict, kw_only=True)
    ended: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    side_by_side: int = 1
    start: float = 0.0
    device: str = ""
    estimated: bool = False

    def seconds(self, cell: Cell, evaluation: Evaluation) -> float:
        """Return the seconds of one run of a cell, evaluations included."""
        if cell.run.kind == "finetune":
            timed = self.on_task[cell.label].seconds(cell.config, evaluation)
            return self.ended.get(cell.label, timed)
        evaluated = evaluation.read(cell.config, cell.held_out)
        tokens = cell.cost.tokens or cell.config.tokens
        return (tokens + FORWARD * evaluated) / self.tokens_per_second[cell.label]

    def speed(self, cell: Cell) -> float:
        """Return the tokens a second that a cell trains on, of a learner those that it reads."""
        if cell.run.kind != "finetune":
            return self.tokens_per_second[cell.label]
        config, times = cell.config, self.on_task[cell.label]
        seconds = times.step / config.finetune_batch if times.step else times.text
        return float(config.n_ctx / seconds)

    def total(self, plan: Plan) -> float:
        """Return the seconds of all distinct runs of a plan."""
        planned = (*plan.runs, *plan.later)
        distinct = {one.run.key: (one.cell, one.role == "pretrain") for one in planned}.values()
        each = {
            (cell.label, of is not cell): self.seconds(of, plan.study.evaluation)
            for cell in plan.cells
            for of in (cell, before(cell))
            if of
        }
        return sum(each[one] for one in distinct) / self.side_by_side

    def slow(self, plan: Plan) -> list[tuple[str, str, float]]:
        """Return (cell, baseline, share of its speed) of cells much slower than their baseline."""
        speed = {cell.label: self.speed(cell) for cell in plan.cells}
        shares = {
            contrast.cell: (contrast.baseline, speed[contrast.cell] / speed[contrast.baseline])
            for contrast in plan.contrasts
        }
        return [(cell, *pair) for cell, pair in shares.items() if pair[1] < SLOW]


def at_speed(plan: Plan, flops: float) -> Forecast:
    """Return the forecast for a device of a given speed.

    Args:
        plan: The plan.
        flops: Floating-point operations a second.

    Raises:
        AblateError: The FLOPs of a cell are unknown.
    """
    speeds, on_task = {}, {}
    for of in plan.cells:
        cell = before(of) or of
        if cell.cost.flops is None:
            raise AblateError(
                f"--flops: the FLOPs of {cell.label!r} are unknown; --device times the models"
            )
        if of.run.kind == "finetune":
            on_task[of.label] = _task_time(of, plan.study.evaluation, flops)
        if cell.cost.tokens and cell.cost.flops:
            speeds[cell.label] = flops * cell.cost.tokens / cell.cost.flops
        else:  # it is evaluated without training, at a third of the price of a training token
            speeds[cell.label] = flops / (3 * (sizes.count(cell.config).flops_per_token or 1))
    return Forecast(speeds, on_task=on_task)


def _task_time(cell: Cell, evaluation: Evaluation, flops: float) -> TaskTime:
    """Return the times of the matrix products of a run on a task."""
    config: Any = cell.config
    token = (sizes.count(config).flops_per_token or 0) / flops
    text = config.n_ctx * token
    step = 3 * config.finetune_batch * text if config.part("method").by_steps else 0.0
    return TaskTime(0.0, step, text, min(evaluation.tokens, cell.held_out) * token)
