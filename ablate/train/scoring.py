"""What evaluations have in common: held-out examples are scored, some at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ablate.config import RunConfig
from ablate.data.batches import block_tokens
from ablate.data.objectives import Example
from ablate.data.passages import Passages
from ablate.evaluation import Evaluation
from ablate.train import ranks
from ablate.train.own import OwnMetric, OwnScore
from ablate.train.step import Step
from ablate.windows import WindowLosses

Values = list[float]  # one a member
Final = tuple[str, float, Values]  # name; length factor, probe ratio or position, else 0; values


@dataclass(frozen=True)
class Score:
    """Sums over scored tokens, float64 on the CPU: by position [K, T], and by window [K, W].

    `unigram` is nats too, of a model that knows the frequencies of tokens alone. `own` has the
    metrics of the user's own.
    """

    nats: Tensor
    hits: Tensor
    tokens: Tensor
    bytes: Tensor
    unigram: Tensor
    window_nats: Tensor
    window_tokens: Tensor
    own: Mapping[str, Values] = field(default_factory=dict)

    @property
    def loss(self) -> Values:
        """Nats per token."""
        return (self.nats.sum(1) / self.tokens.sum(1)).tolist()

    @property
    def unigram_loss(self) -> Values:
        """Nats per token of a model that knows the frequencies of tokens alone."""
        return (self.unigram.sum(1) / self.tokens.sum(1)).tolist()

    @property
    def accuracy(self) -> Values:
        """Share of scored tokens that the model ranks first."""
        return (self.hits.sum(1) / self.tokens.sum(1)).tolist()

    @property
    def bits_per_byte(self) -> Values:
        """Bits per byte of the scored tokens' text; NaN where its length is not known."""
        return (self.nats.sum(1) / (math.log(2) * self.bytes.sum(1))).tolist()

    def by_position(self) -> list[tuple[int, Values]]:
        """Return (first position, loss) of positions 0, 1, 2–3, 4–7, …, where any was scored."""
        edges = [0, *(1 << k for k in range(self.nats.shape[1].bit_length())), self.nats.shape[1]]
        spans = [slice(start, end) for start, end in pairwise(edges) if start < end]
        return [
            (span.start, (self.nats[:, span].sum(1) / self.tokens[:, span].sum(1)).tolist())
            for span in spans
            if (self.tokens[:, span].sum(1) > 0).all()
        ]

    def by_block(self, name: str, at: float, starts: np.ndarray, n_ctx: int) -> list[WindowLosses]:
        """Return each member's losses by blocks of windows.

        Args:
            name: Name of the final that they are of.
            at: Its `at`.
            starts: Where the windows start, [W].
            n_ctx: Tokens of a window.
        """
        tokens = block_tokens(n_ctx)
        blocks, first = np.unique(starts // tokens, return_index=True)
        nats, scored = (
            np.add.reduceat(sums.numpy(), first, axis=1)
            for sums in (self.window_nats, self.window_tokens)
        )
        with np.errstate(invalid="ignore"):  # a block without a scored token has no loss
            losses = (nats / scored).astype(np.float32)
        return [
            WindowLosses(name, at, tokens, blocks * tokens, count.astype(np.int64), loss)
            for count, loss in zip(scored, losses, strict=True)
        ]


class Scorer:
    """Base of what measures the models of a step.

    Args:
        step: The step, with the models.
        configs: The runs, members of its pack.
        evaluation: What is measured.
        advance: Called after each part of an evaluation.

    Attributes:
        by_window: Losses of the windows that the finals were measured on, one a final and member.
        final_starts: Where these windows start in the held-out part, [W], in tokens.
        own: Metrics of the user's own.
    """

    final_starts: np.ndarray
    own: Sequence[OwnMetric] = ()

    def __init__(
        self,
        step: Step,
        configs: Sequence[RunConfig],
        evaluation: Evaluation,
        advance: Callable[[], object],
    ):
        self.step, self.evaluation, self.advance = step, evaluation, advance
        self.config = configs[0]
        self.pack = len(configs)
        self.latest: Score | None = None
        self.by_window: list[list[WindowLosses]] = []

    def held_out(self) -> Score:
        """Return the score on what is held out, the same at every point."""
        raise NotImplementedError

    def copies(self) -> dict[str, Values]:
        """Return the losses of the copy probe: empty where a run has none."""
        return {}

    def finals(self) -> list[Final]:
        """Return all finals of the models, the loss first; sets `by_window`."""
        raise NotImplementedError

    def _by_block(self, name: str, at: float, score: Score) -> list[WindowLosses]:
        return score.by_block(name, at, self.final_starts, self.config.n_ctx)

    def _streams(self, example: Example) -> list[Final]:
        """RMS and token similarity of the stream: at 0 before the first block, at k after k."""
        if not self.config.part("architecture").of_blocks:
            return []
        read = example.rows(0, self.config.batch_size)
        n, at_once = read.inputs.shape[1], self.step.micro_batch
        parts = [read.rows(row, at_once) for row in range(0, n, at_once)]
        with self._quiet():
            measured = [self.step.model.stream(*part.read) for part in parts]
        rms, similarity = (torch.stack(one) for one in zip(*measured, strict=True))
        share = torch.tensor([part.inputs.shape[1] / n for part in parts]).to(rms)[:, None, None]
        rms, similarity = (share * rms.square()).sum(0).sqrt(), (share * similarity).sum(0)
        rows = zip(rms.T.tolist(), similarity.T.tolist(), strict=True)
        return [
            final
            for depth, (size, cosine) in enumerate(rows)
            for final in (("stream_rms", depth, size), ("token_similarity", depth, cosine))
        ]

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Without gradients and dropout."""
        model = self.step.model.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            model.train()

    def _at_once(self, length: int, windows: Sized) -> int:
        """Return how many of these windows of `length` tokens are scored together.

        As many as in training; on a GPU more of a small model, whose kernels are else too short:
        as many as 1/32 of the memory holds, without what a backward pass keeps.
        """
        tokens = self.step.micro_batch * self.config.n_ctx
        if self.step.device.type == "cuda":
            config, memory = self.config, torch.cuda.get_device_properties(self.step.device)
            floats = 3 * config.n_vocab + 16 * config.d_model + config.n_head * length
            tokens = max(tokens, memory.total_memory // 32 // (4 * floats * self.pack))
        return max(1, min(tokens // length, ranks.most_rows(len(windows))))

    def _parts(self, example: Example) -> Iterator[Example]:
        """Split an example [K or 1, W, T] into parts that are scored together."""
        at_once = self._at_once(example.inputs.shape[2], example.inputs[0])
        for first in range(0, example.inputs.shape[1], at_once):
            yield example.rows(first, at_once)

    def _score(self, parts: Iterable[Example], own: OwnScore | None = None) -> Score:
        """Score every window of the parts of an example [K or 1, W, T], by `own` metrics too.

        Ranks score parts in turn, unless there are `own` metrics, which need not be sums.
        """
        # sums stay on the device, so that the host does not wait for every part
        wide = torch.float32 if self.step.device.type == "mps" else torch.float64
        by_position: Tensor | float = 0.0
        windows: list[Tensor] = []
        in_turn = ranks.count() > 1 and not (own and self.own)
        with self._quiet():
            for number, part in enumerate(parts):
                whole = part.each(lambda tensor: tensor.expand(self.pack, *tensor.shape[1:]))
                if in_turn and number % ranks.count() != ranks.number():
                    sums = _nothing(whole)
                else:
                    sums = self._sums(whole, own)
                by_position = by_position + sums[0].to(wide)
                windows.append(sums[1].to(wide))
                self.advance()
        assert isinstance(by_position, Tensor)
        by_window = torch.cat(windows, 2)
        if in_turn:
            ranks.add(by_position, by_window)
        score = Score(*by_position.cpu().double(), *by_window.cpu().double())
        return replace(score, own=own.values(score.loss)) if own else score

    def _probed(self, asked: Passages, features_of: Callable[..., Tensor]) -> Values:
        """Return the accuracy of a linear probe on frozen features of each member.

        Args:
            asked: What the probe is fitted and tested on.
            features_of: Takes what `Passages.padded` returns, and returns features [K, n, C].
        """
        features: Tensor | None = None
        with self._quiet(), self.step.autocast():
            for rows in asked.rows(self.step.micro_batch):
                found = features_of(*asked.padded(rows)).cpu()
                if features is None:
                    features = found.new_empty(len(found), len(asked.classes), found.shape[2])
                features[:, rows] = found
                self.advance()
        assert features is not None
        return [asked.accuracy(member) for member in features]

    def _sums(self, part: Example, own: OwnScore | None) -> tuple[Tensor, Tensor]:
        """Nats, hits, tokens, bytes and unigram nats, summed over windows: [5, K, T]; and nats and
        tokens, summed over positions: [2, K, W]. Of numbers that are predicted, nats are squared
        errors.
        """
        raise NotImplementedError


def _nothing(part: Example) -> tuple[Tensor, Tensor]:
    """Return the sums of `Scorer._sums` where another rank scores a part [K, W, T]."""
    zeros = torch.zeros_like(part.weights)
    return zeros[None, :, 0].repeat(5, 1, 1), zeros[None, ..., 0].repeat(2, 1, 1)
