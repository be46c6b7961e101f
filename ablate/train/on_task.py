"""A run on a task of labelled texts: what of them is trained on, and what is measured."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ablate.data.passages import Passages
from ablate.data.tasks import chosen
from ablate.evaluation import VALIDATION
from ablate.kinds import Context, Job, kind
from ablate.metrics import TEXTS_CUT
from ablate.model.finetuned import Classifier
from ablate.train.engine import peak_bytes
from ablate.train.evaluate import Evaluator
from ablate.train.step import Step


class Parts(NamedTuple):
    """What a run on a task begins with.

    Attributes:
        step: The model, without the weights of a step that are not needed.
        passages: The texts of the task.
        evaluator: Of the pre-training's loss; None from random weights.
    """

    step: Step
    passages: Passages
    evaluator: Evaluator | None


class OnTask:
    """What all methods have in common; `model` is the model with its classifier.

    Args:
        parts: Its model, texts and evaluator.
        job: The run.
        context: Device, events, and when to stop.
        begun: When the run began, by `time.perf_counter`.

    Attributes:
        rows: Numbers of the texts to train on.
        held_out: Metric of the loss → numbers of the texts that it is measured on.
        before: The pre-trained model's loss on its own held-out text; None from random weights.
    """

    def __init__(self, parts: Parts, job: Job, context: Context, begun: float):
        self.of, self.evaluation = job.runs[0], job.evaluation
        config = self.of.config
        self.begun = begun
        self.step, self.passages, self.evaluator = parts
        step, passages = parts.step, parts.passages
        self.config, self.context, (self.emit,) = config, context, context.emit
        validation = np.zeros_like(passages.fitted)
        if passages.validation is not None:
            validation = passages.validation
        # texts that are measured, by the metric of their loss
        self.held_out = {"task_loss": np.flatnonzero(~passages.fitted & ~validation)}
        if validation.any():
            self.held_out[VALIDATION["task_loss"]] = np.flatnonzero(validation)
        self.rows = chosen(passages, config.labels, config.batches_seed)
        self.before = self.pretraining_loss()
        self.model = Classifier(step.model, config)
        del step.optimiser  # the moments of all weights take twice their memory

    def started(self) -> None:
        """Emit that the run has begun."""
        self.emit("start", step=0, threads=torch.get_num_threads(), compile_mode="eager", note=None)
        self.context.progress.long = False

    def ended(self, status: str, done: int) -> None:
        """Emit how the run has ended, and the finals of one that has diverged."""
        if status == "diverged":
            finals = kind(self.of.kind).finals(self.of.fields, self.evaluation)
            self.emit("final", values=[[name, at, float("nan")] for name, at in finals])
        seconds = time.perf_counter() - self.begun
        peak = peak_bytes(self.step.device)
        self.emit("end", status=status, step=done, device_seconds=seconds, peak_bytes=peak)

    def read(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return inputs and lengths of n texts on the device, as `Passages.padded` does."""
        inputs, lengths = self.passages.padded(rows)
        return inputs.to(self.step.device), lengths.to(self.step.device)

    def labelled(self, rows: np.ndarray, of_texts: Tensor) -> Tensor:
        """Return what has a label: rows of texts [n, …], or of their tokens that carry one.

        Args:
            rows: Numbers of the texts.
            of_texts: [n, …], or [n, T, …] for a task of words.
        """
        if (tags := self.passages.tags) is None:
            return of_texts
        carries = torch.from_numpy(tags[rows, : of_texts.shape[1]] >= 0)
        return of_texts[carries.to(of_texts.device)]

    def of_texts(self) -> dict[str, float]:
        """Return finals of the texts, whatever the model.

        They are the share of held-out texts of the class that is commonest in training, and that of
        texts of which a model reads only the first tokens, if there are any.
        """
        commonest = np.bincount(self.passages.labels(self.rows)).argmax()
        chance = (self.passages.labels(self.held_out["task_loss"]) == commonest).mean()
        cut = {TEXTS_CUT: self.passages.cut} if self.passages.cut else {}
        return {"task_chance": float(chance), **cut}

    def pretraining_loss(self) -> float | None:
        """Return the held-out loss of the pre-training; None for a run from random weights."""
        return self.evaluator.held_out().loss[0] if self.evaluator else None
