"""One training step of a pack on static tensors: eager on a CPU, a CUDA graph on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ablate import sizes
from ablate.config import RunConfig
from ablate.data.batches import Batches
from ablate.data.objectives import Example, Objective
from ablate.errors import AblateError
from ablate.images import Images
from ablate.model.state import changed_state, state_of
from ablate.model.transformer import Pieces, Transformer, model_of
from ablate.text import Tokens
from ablate.train import ranks
from ablate.train.loss import token_losses
from ablate.train.meter import SERIES
from ablate.train.optimiser import AdamW
from ablate.train.schedule import Schedule

RING = 256  # most steps whose windows and metrics are on the device at once
RING_BYTES = 1 << 26  # for their windows
TEXT_BYTES = 1 << 32  # most of a text on the device; windows of a larger one are read on the host


def ruined(before: Tensor, after: Tensor, guess: float) -> Tensor:
    """Return whether an update has ruined a model, by the losses of one batch.

    The loss after the update must be finite, and not higher than before by more than `guess`, the
    loss of a model that knows nothing.
    """
    return ~(after - before <= guess)


class Functions(NamedTuple):
    """What a step calls, one after the other: methods of `Step`, or what was compiled of them."""

    example: Callable[[], Example]
    losses: Callable[[Example, Tensor], tuple[Tensor, Tensor]]
    finish: Callable[[Tensor, Tensor], None]


class Step:
    """A model, its optimiser and all that a step reads and writes, at fixed addresses.

    The fields of `ablate.config.LOADED_FIELDS` are tensors, or decide only the text, so that after
    `load` the same step, with its compiled code and captured graph, serves other runs.

    Where several ranks train together (`ablate.train.ranks`), each has such a step, which reads its
    rows of every batch. Masks and dropout are those of the whole batch.

    Attributes:
        functions: What a step calls; compiled functions may replace its own.
        replay: Makes one step: `step`, or a captured graph.
        ring: Steps whose windows and metrics are on the device at once.
        done: Steps made, as the host counts; `number` is the device's count.
    """

    def __init__(
        self,
        configs: Sequence[RunConfig],
        tokens: Tokens | Images,
        device: str,
        micro_batch: int = 0,
        recompute: bool = False,
    ):
        self.config = config = configs[0]
        self.device = torch.device(device)
        self.rows = ranks.rows(config.batch_size)
        assert self.rows, "the plan refuses a batch that has fewer rows than there are ranks"
        self.micro_batch = micro_batch or ranks.most_rows(config.batch_size)
        pack = len(configs)
        self.model: Transformer = model_of(config, pack).to(self.device)
        _check_params(self.model)
        self.model.recompute = recompute
        self.optimiser: AdamW = config.part("optimiser").make(self.model, config)
        self.functions = self.eager
        self.replay: Callable[[], None] = self.step  # a captured graph's, once there is one
        self.objective: Objective = config.part("objective").load()(configs, tokens, self.device)
        self.schedule: Schedule = config.part("schedule").make()

        def zeros(*shape: int, dtype: torch.dtype = self.optimiser.weights.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self.span: int = config.part("objective").span(config)
        window = pack * config.batch_size * self.span
        self.ring = max(1, min(RING, RING_BYTES // (4 * window)))
        self.windows = zeros(self.ring, pack, config.batch_size, self.span, dtype=torch.int32)
        self.metrics = zeros(self.ring, len(SERIES), pack)
        self.number = zeros(dtype=torch.int64)  # steps made
        self.alive = zeros(pack, dtype=torch.bool)
        self.diverged_at = zeros(
            pack, dtype=torch.int64
        )  # number of the step whose loss was not finite, or 0
        self.lr, self.weight_decay, self.clip = zeros(pack), zeros(pack), zeros(pack)
        self.steps, self.warmup = zeros(), zeros()
        self._made = self._state_of_parts()
        self.load(configs, tokens)

    def as_made(self) -> bool:
        """Whether no run has left anything in a part of the user's own but weights and buffers.

        Weights are other ones afterwards, until the next `load`.
        """
        return not changed_state(self._made, self._state_of_parts())

    @torch.no_grad()
    def _state_of_parts(self) -> dict[str, Any]:
        """Return the state of the user's own parts after calls that are always the same.

        A part may keep a table that its first call fills, and note a number in every call.
        """
        if not self.config.code:
            return {}
        for tensor in (self.number, *self.model.rng.buffers()):
            tensor.zero_()
        generator = torch.Generator(self.device).manual_seed(0)
        for parameter in self.model.parameters():
            if parameter.is_floating_point():  # others are not trained
                parameter.normal_(0, 0.02, generator=generator)
        rows = min(self.micro_batch, self.config.batch_size)
        windows = torch.zeros(rows, self.span, dtype=torch.int64, device=self.device)
        example = self.objective.test(windows)
        for training in (False, True):  # as it was made, in the end
            self.model.train(training)
            self.losses(example, example.weights.sum((1, 2)))
        return state_of(self.model)

    def load(self, configs: Sequence[RunConfig], tokens: Tokens | Images) -> None:
        """Prepare the first step of runs of this step's shape."""
        first = configs[0]
        data_seeds = [config.batches_seed for config in configs]
        where = self.device if tokens.train.nbytes <= TEXT_BYTES else torch.device("cpu")
        documents = tokens.train_bounds[:-1] if first.part("objective").by_document else None
        self.batches = Batches(
            tokens.train, data_seeds, self.span - 1, first.batch_size, first.steps, where, documents
        )
        self.objective.load(configs)
        self.model.initialise([config.weights_seed for config in configs], data_seeds)
        self.steps.fill_(first.steps)
        self.warmup.fill_(first.warmup * first.steps)
        self.lr.copy_(torch.tensor([config.lr for config in configs]))
        self.weight_decay.copy_(torch.tensor([config.weight_decay for config in configs]))
        self.clip.copy_(torch.tensor([config.grad_clip or torch.inf for config in configs]))
        self.rewind()

    def rewind(self) -> None:
        """Go back to the first step, with the weights as they are."""
        self.done = 0
        self.optimiser.reset()
        for tensor in (self.number, self.diverged_at):
            tensor.zero_()
        self.alive.fill_(True)

    def run(self, n: int, stop: Callable[[], bool]) -> int:
        """Make up to n steps.

        Args:
            n: At most `ring`.
            stop: Asked before each step; once true, no more are made. Where other ranks follow, it
                is asked before the first step alone.

        Returns:
            Steps made.
        """
        if ranks.count() == 1:
            return self._make(n, stop)
        return self._make(ranks.agree(0 if stop() else n))

    def follow(self, n: int) -> None:
        """Make the n steps that rank 0 makes in `run`."""
        self._make(n)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # an error of the device is raised here

    def _make(self, n: int, stop: Callable[[], bool] = lambda: False) -> int:
        slots = torch.arange(self.done, self.done + n, device=self.device) % self.ring
        windows = self.batches.several(self.done, n).to(self.windows.dtype)
        self.windows.index_copy_(0, slots, windows.to(self.device))
        for made in range(n):
            if stop():
                return made
            self.replay()
            self.done += 1
        return n

    def read(self, n: int) -> tuple[NDArray[np.float64], list[int]]:
        """Read the metrics of the last n steps; waits for the device.

        Returns:
            Metrics [n, len(SERIES), K], and the step at which each member diverged, 0 for none.
        """
        slots = torch.arange(self.done - n, self.done, device=self.device) % self.ring
        rows = self.metrics[slots].cpu().double().numpy()
        return rows, self.diverged_at.tolist()

    @torch.no_grad()
    def exploded(self) -> Tensor:
        """Return which members the last step's update has ruined, [K] bool.

        No later step sees what an update does to the loss. Here the batch of the last step is read
        again, and its loss is judged by `ruined`.
        """
        slot = (self.done - 1) % self.ring
        example = self.objective.train(self.windows[slot].long(), self.number - 1)
        scored = example.weights.sum((1, 2))
        model, loss = self.model.eval(), torch.zeros_like(scored)
        for row in range(0, self.config.batch_size, self.micro_batch):
            part = example.rows(row, self.micro_batch)
            loss = loss + self.losses(part, scored)[1]
        model.train()
        guess = self.config.part("objective").guess(self.config)
        return ruined(self.metrics[slot, SERIES.index("train_loss")], loss, guess)

    def state(self) -> dict[str, Any]:
        """Return what the following steps depend on, on the CPU."""
        tensors = self._state()
        own = {"done": self.done, "names": self.optimiser.names, **self.optimiser.state()}
        return own | {name: t.cpu().clone() for name, t in tensors.items()}

    def align(self) -> None:
        """Give the steps of all ranks the state of rank 0's."""
        if ranks.count() == 1:
            return
        self.done, own = ranks.agree((self.done, self.optimiser.state()))
        self.number.fill_(self.done)
        self.optimiser.load_state(own)
        ranks.share(self._state().values())

    def load_state(self, state: dict[str, Any], rows: Tensor) -> None:
        """Continue from `state`; `rows` [K] are the members in it that are those of this step."""
        assert state["names"] == self.optimiser.names
        self.done = state["done"]
        self.number.fill_(self.done)
        for name, tensor in self._state().items():
            tensor.copy_(state[name][rows])
        self.optimiser.load_state(state)

    def _state(self) -> dict[str, Tensor]:
        adamw = self.optimiser
        moments = {"weights": adamw.weights, "mean": adamw.mean, "square": adamw.square}
        return moments | {"alive": self.alive, "diverged_at": self.diverged_at}

    # -- the step ----------------------------------------------------------------------------------

    def step(self) -> None:
        """Make one step. Touches static tensors alone and never waits for the device."""
        calls = self.functions
        example = calls.example()
        scored = example.weights.sum((1, 2))
        loss: Tensor | float = 0.0
        gradients: list[Tensor] = []
        for row in self.rows[:: self.micro_batch]:
            self.model.rng.row.fill_(row)
            part = example.rows(row, min(self.micro_batch, self.rows.stop - row))
            objective, plain = calls.losses(part, scored)
            pieces = torch.autograd.grad(objective.sum(), self.optimiser.parameters)
            if gradients:
                torch._foreach_add_(gradients, pieces)
            else:
                gradients = list(pieces)
            loss = loss + plain.detach()
        assert isinstance(loss, Tensor)
        gradient = self.optimiser.flatten(gradients)
        ranks.add(gradient, loss)
        calls.finish(loss, gradient)

    def example(self) -> Example:
        """Return inputs, targets and weights of the whole batch, [K, B, T] each."""
        slot = (self.number % self.ring).reshape(1)
        windows = self.windows.index_select(0, slot).squeeze(0).long()
        self.model.rng.step.copy_(self.number)
        return self.objective.train(windows, self.number)

    def losses(self, part: Example, scored: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is minimised, and the loss without the z-loss; [K] each.

        Args:
            part: A micro-batch.
            scored: Tokens of the whole batch that are scored, by which sums are divided; [K].
        """
        return self.score(self.features(part), part, scored)

    def features(self, part: Example, pieces: Pieces | None = None) -> Tensor:
        """Return the model's features of a micro-batch, [K, B, T, C]; see `Transformer`."""
        with self.autocast():
            return self.model.features(*part.read, pieces=pieces)

    def score(self, features: Tensor, part: Example, scored: Tensor) -> tuple[Tensor, Tensor]:
        """Return the losses of `features`, as `losses` does."""
        with self.autocast():
            logits = self.model.head(features)
        loss, normaliser = token_losses(logits, part.targets)
        plain = (loss * part.weights).sum((1, 2)) / scored
        if not self.config.z_loss:
            return plain, plain
        penalty = (normaliser.square() * part.weights).sum((1, 2)) / scored
        return plain + self.config.z_loss * penalty, plain

    @torch.no_grad()
    def finish(self, loss: Tensor, gradient: Tensor) -> None:
        """Note divergence, clip, update the weights, record metrics, count the step.

        Args:
            loss: The loss, [K].
            gradient: Of all parameters, [K, N].
        """
        ends = self.alive & ~loss.isfinite()
        self.diverged_at.copy_(torch.where(ends, self.number + 1, self.diverged_at))
        self.alive.logical_and_(~ends)
        made = self.number.to(self.lr.dtype)
        lr = self.lr * self.schedule(made, self.steps, self.warmup)
        norm = self.optimiser.update(gradient, made, lr, self.weight_decay, self.clip, self.alive)
        slot = (self.number % self.ring).reshape(1)
        self.metrics.index_copy_(0, slot, torch.stack((loss, norm, lr))[None])
        self.number.add_(1)

    @property
    def eager(self) -> Functions:
        """The step's functions as they are."""
        return Functions(self.example, self.losses, self.finish)

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context in which matrix products have their precision."""
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.config.part("precision").casts
        )


def _check_params(model: Transformer) -> None:
    """Refuse a model that is not as large as was planned.

    Raises:
        AblateError: A component states wrong sizes.
    """
    planned, config = sizes.params(model.config), model.config
    if model.n_params != planned:
        default = RunConfig()
        changed = [
            f"{one.factor} = {one.name!r}"
            for one in config.parts
            if one.name != getattr(default, one.factor)
        ]
        raise AblateError(
            f"the model has {model.n_params:,} parameters, and {planned:,} were planned: the"
            f" `sizes` of a component is wrong; check {', '.join(changed) or 'the defaults'}"
        )
