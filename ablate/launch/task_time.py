"""How long fine-tuned runs take, by the set-up, some steps and some evaluations of one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from ablate import text
from ablate.kinds import Context, Job
from ablate.launch import devices
from ablate.launch.devices import Device
from ablate.launch.packs import Size
from ablate.plan import Cell, Plan
from ablate.plan.forecast import TaskTime
from ablate.train.finetune import Finetuning, on_task, ready

SECONDS = 2.0  # of steps
TEXTS = 64  # held-out texts that are read, twice
# fields that change no step: runs that differ in these alone are timed once
FREE = (
    *("labels", "finetune_lr", "finetune_steps", "learner_c", "n_trees", "steps", "lr", "warmup"),
    *("weight_decay", "grad_clip", "batch_tokens", "seed"),
)


def same(cell: Cell) -> str:
    """Return a text that is equal for cells whose steps on a task take the same time."""
    kept = {name: one for name, one in cell.run.fields.items() if name not in FREE}
    return json.dumps(kept, sort_keys=True, default=str)


def measure(plan: Plan, cell: Cell, device: Device, size: Size) -> TaskTime:
    """Return the times of a fine-tuned run, which takes eager steps, alone.

    The model has random weights. Of the fit of a learner nothing is known.
    """
    own = devices.members(device.name)[0]
    context = Context(own, [lambda event, **values: None])
    job = Job(
        (cell.run,),
        plan.study.evaluation,
        sources=plan.sources,
        micro_batch=size.micro_batch,
        recompute=size.recompute,
    )
    tokens = text.load(cell.config, plan.sources)
    begun = time.perf_counter()
    parts = ready(job, context, tokens, load=False)
    made = on_task(cell.config)(parts, job, context, begun)
    setup = time.perf_counter() - begun
    pretraining = 0.0
    if made.evaluator:  # the set-up has evaluated once, too
        pretraining = _seconds(made.pretraining_loss)
        setup = max(0.0, setup - pretraining)
    held_out = made.held_out["task_loss"][:TEXTS]
    made.measure(held_out)
    each = _seconds(lambda: made.measure(held_out)) / len(held_out)
    step = _step(made) if isinstance(made, Finetuning) else 0.0
    return TaskTime(setup, step, each, pretraining)


def _step(made: Finetuning) -> float:
    """Return the seconds of a step, without the first one."""
    made.model.train()
    made.make_step(0)
    begun, n = time.perf_counter(), 0
    while not n or (time.perf_counter() - begun < SECONDS and n < made.steps):
        n += 1
        made.make_step(n)
    return (time.perf_counter() - begun) / n


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
