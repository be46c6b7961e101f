"""Fine-tune one model on a task of labelled texts, and measure what it forgets."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ablate import draws, sizes
from ablate.components.finetuning import choices
from ablate.config import RunConfig
from ablate.data.tasks import scores, task
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.kinds import Context, Job
from ablate.text import Tokens
from ablate.train import weights
from ablate.train.evaluate import Evaluator
from ablate.train.learning import Learning
from ablate.train.on_task import OnTask, Parts
from ablate.train.step import Step, ruined

POINTS = 200  # most points of the loss over training


def train(job: Job, context: Context, tokens: Tokens) -> None:
    """Train one run of kind "finetune" and emit its events.

    It has diverged by the rule of `ablate.train.engine.train`: at the step whose loss is not
    finite, or at the last step, if its update has ruined the loss of its own texts, or a loss on
    held-out texts is not finite. A job that is to stop begins anew later: fine-tuning is short.

    Args:
        job: The run, and the file of its parent's weights.
        context: Device, events, and when to stop.
        tokens: The text of the pre-training.

    Raises:
        AblateError: The weights or the task cannot be read, or do not serve.
    """
    cuda = context.device.startswith("cuda")
    with torch.cuda.device(context.device) if cuda else nullcontext():
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        parts = ready(job, context, tokens)
        seconds = time.perf_counter() - begun
        with context.device_lock:  # the time until it is free is not the run's
            begun = time.perf_counter() - seconds
            on_task(job.runs[0].config)(parts, job, context, begun).run()


def on_task(config: RunConfig) -> type[Finetuning | Learning]:
    """Return what trains a run on its task."""
    return Finetuning if config.part("method").by_steps else Learning


def ready(job: Job, context: Context, tokens: Tokens, *, load: bool = True) -> Parts:
    """Return the model of a run, the texts of its task, and what measures the pre-training's loss.

    Args:
        job: The run, and the file of its parent's weights.
        context: The device.
        tokens: The text of the pre-training.
        load: Whether it gets the weights of its parent; else random ones, to be timed.

    Raises:
        AblateError: The weights or the task cannot be read, or do not serve.
    """
    (run,) = job.runs
    config = run.config
    # of windows, in which the loss of the pre-training is measured
    at_once = min(job.micro_batch or sizes.batch(config), config.batch_size)
    step = Step([config], tokens, context.device, at_once, job.recompute)
    if run.parent and load:
        path = job.parents[0] if job.parents else None
        _load(step.model, path, run.parent)
    evaluator = None
    if run.parent:
        evaluator = Evaluator(step, [config], _alone(job.evaluation), tokens, job.sources)
    return Parts(step, task(config, tokens, job.sources), evaluator)


def _alone(evaluation: Evaluation) -> Evaluation:
    """Return an evaluation of the held-out loss, without linear probes and metrics of a user's."""
    return evaluation.model_copy(update={"downstream": (), "own": None})


def _load(model: nn.Module, path: Path | None, key: str) -> None:
    """Give a model the weights of its parent.

    Raises:
        AblateError: There is no file, or it holds other weights.
    """
    if path is None or not path.is_file():
        raise AblateError(
            f"the weights of its parent run {key[:12]} are no longer there; `ablate run` trains the"
            " parent again"
        )
    kept, about = weights.read(path)
    if about.key != key:
        raise AblateError(f"{path} holds the weights of run {about.key[:12]}, not of {key[:12]}")
    try:
        model.load_state_dict({name: one[None] for name, one in kept.items()})
    except RuntimeError as error:
        words = " ".join(str(error).split())
        raise AblateError(f"the weights of the parent run {key[:12]} do not fit: {words}") from None


class Finetuning(OnTask):
    """The training of one run on its task."""

    def __init__(self, parts: Parts, job: Job, context: Context, begun: float):
        super().__init__(parts, job, context, begun)
        config = self.config
        self.model.train()
        self.steps: int = config.finetune_steps
        # examples in memory
        self.at_once = config.finetune_batch
        if job.micro_batch:
            self.at_once = max(1, job.micro_batch // choices(config))
        self.optimiser = config.part("optimiser").make(self.model, config)
        self.schedule = config.part("schedule").make()
        points = min(job.evaluation.points, self.steps)
        self.evaluate_at = {math.ceil(self.steps * k / points) for k in range(1, points + 1)}
        self.shown_at = range(1, self.steps + 1, -(-self.steps // POINTS))
        self.latest: dict[str, float] = {}  # losses and accuracies on held-out texts
        self.seconds = 0.0  # of steps

    def run(self) -> None:
        """Train to the end, until the model has diverged, or until `stop()`."""
        self.started()
        status, done = "complete", 0
        while status == "complete" and done < self.steps:
            if self.context.stop():
                status = "stopped"
            else:
                done += 1
                status = self._made(done)
        if status == "complete":
            status = self._finish()
        self.ended(status, done)

    def _made(self, number: int) -> str:
        """Make a step, the first one being 1, and emit metrics; return "diverged" or "complete"."""
        begun = time.perf_counter()
        loss, norm, lr = self.make_step(number - 1)
        self.seconds += time.perf_counter() - begun
        self.context.progress.advance()
        diverged = not math.isfinite(loss)
        if number in self.shown_at or diverged:
            series = {"train_loss": [loss], "grad_norm": [norm], "lr": [lr]}
            self.emit("metrics", steps=[number], series=series)
        if number == self.steps and not diverged:
            diverged = self._exploded(loss)
        if number in self.evaluate_at and not diverged:
            self.latest = {}
            for name, rows in self.held_out.items():
                for what, value in self.measure(rows).items():
                    self.latest[name.replace("loss", what)] = value
            series = {name: [value] for name, value in self.latest.items()}
            self.emit("metrics", steps=[number], series=series)
        return "diverged" if diverged else "complete"

    @torch.no_grad()
    def _exploded(self, before: float) -> bool:
        """Return whether the last update has ruined the loss of its texts, `before` without it."""
        rows, n_class = self._batch(self.steps - 1), self.config.n_class
        self.model.eval()
        n = len(self.passages.labels(rows))
        parts = [self._losses(part).sum() / n for part in self._parts(rows)]
        self.model.train()
        after = torch.stack(parts).sum()
        return bool(ruined(torch.full_like(after, before), after, math.log(n_class)))

    def _finish(self) -> str:
        """Measure and emit the finals; return "diverged" or "complete"."""
        if not all(map(math.isfinite, self.latest.values())):
            return "diverged"
        finals = {
            **self.latest,
            **self.of_texts(),
            "train_seconds": self.seconds,
            "epochs": self.steps * self.config.finetune_batch / len(self.rows),
        }
        if self.before is not None and (after := self.pretraining_loss()) is not None:
            if not math.isfinite(after):
                return "diverged"
            finals |= {"pretraining_loss": after, "forgetting": after - self.before}
        self.emit("final", values=[[name, 0, value] for name, value in finals.items()])
        return "complete"

    def make_step(self, done: int) -> tuple[float, float, float]:
        """Make a step; return loss, norm of the gradient and learning rate."""
        config, device = self.config, self.step.device
        rows = self._batch(done)
        rng = self.step.model.rng
        rng.step.fill_(done)
        gradients: list[Tensor] = []
        total, n = 0.0, len(self.passages.labels(rows))
        parameters = self.optimiser.parameters
        for number, part in enumerate(self._parts(rows)):
            rng.row.fill_(number * self.at_once)
            loss = self._losses(part).sum() / n
            pieces = torch.autograd.grad(loss, parameters, materialize_grads=True)
            if gradients:
                torch._foreach_add_(gradients, pieces)
            else:
                gradients = list(pieces)
            total += loss.item()

        def scalar(value: float) -> Tensor:
            return torch.tensor([value], dtype=self.optimiser.weights.dtype, device=device)

        made, steps = scalar(done), scalar(self.steps)
        lr = config.finetune_lr * self.schedule(made, steps, config.warmup * steps)
        norm = self.optimiser.update(
            self.optimiser.flatten(gradients),
            made[0],
            lr,
            scalar(config.weight_decay),
            scalar(config.grad_clip or math.inf),
            scalar(total).isfinite(),
        )
        return total, norm.item(), lr.item()

    def _batch(self, done: int) -> np.ndarray:
        """Return the numbers of a step's texts, [finetune_batch] int.

        Each epoch reads all of them once, in an order that is drawn.
        """
        size, n = self.config.finetune_batch, len(self.rows)
        places = np.arange(done * size, (done + 1) * size)
        seed, stream = self.config.batches_seed, draws.stream("finetune.order")
        orders = {
            epoch: np.random.default_rng((seed, stream, epoch)).permutation(self.rows)
            for epoch in range(int(places[0]) // n, int(places[-1]) // n + 1)
        }
        return np.array([orders[place // n][place % n] for place in places.tolist()])

    def _parts(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the texts of a step, [finetune_batch], as micro-batches of up to `at_once`."""
        return [rows[row : row + self.at_once] for row in range(0, len(rows), self.at_once)]

    def _losses(self, rows: np.ndarray) -> Tensor:
        """Return the cross-entropy of some texts, [n], or of their words."""
        logits, classes = self._logits(rows)
        return cross_entropy(logits, classes, reduction="none")

    def _logits(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return logits [n, n_class] and classes [n] int64 of some texts, or of their words."""
        inputs, lengths = self.read(rows)
        classes = torch.from_numpy(self.passages.labels(rows)).long().to(self.step.device)
        with self.step.autocast():
            logits = self.labelled(rows, self.model(inputs, lengths))
        return logits.float() if logits.dtype == torch.bfloat16 else logits, classes

    def measure(self, held_out: np.ndarray) -> dict[str, float]:
        """Return loss, accuracy and macro F1 on some texts, by their numbers [N]."""
        self.model.eval()
        nats, found, known = 0.0, list[np.ndarray](), list[np.ndarray]()
        with torch.no_grad():
            for rows in self.passages.rows(self.at_once, held_out):
                logits, classes = self._logits(rows)
                nats += cross_entropy(logits, classes, reduction="sum").item()
                found.append(logits.argmax(-1).cpu().numpy())
                known.append(classes.cpu().numpy())
                self.context.progress.advance()
        self.model.train()
        truth = np.concatenate(known)
        return {"loss": nats / len(truth), **scores(truth, np.concatenate(found))}
