"""Evaluations on held-out text: loss, bits per byte, accuracy, and what `[eval]` asks for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ablate.config import RunConfig
from ablate.data.batches import held_out_windows, length_windows
from ablate.data.objectives import Example, Masked
from ablate.data.passages import passages
from ablate.evaluation import Evaluation, n_scored
from ablate.text import Tokens
from ablate.train.loss import cross_entropy
from ablate.train.step import Step

Values = list[float]  # one a member
Final = tuple[str, float, Values]  # name; length factor, probe ratio or position, else 0; values


@dataclass(frozen=True)
class Score:
    """Sums over scored tokens, by position: [K, T] float64 on the CPU each."""

    nats: Tensor
    hits: Tensor
    tokens: Tensor
    bytes: Tensor

    @property
    def loss(self) -> Values:
        """Nats per token."""
        return (self.nats.sum(1) / self.tokens.sum(1)).tolist()

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


class Evaluator:
    """Measures the models of a step.

    Raises:
        AblateError: Something cannot be measured on this text; raised when it is made.
    """

    def __init__(
        self, step: Step, configs: Sequence[RunConfig], evaluation: Evaluation, tokens: Tokens
    ):
        self.step, self.evaluation = step, evaluation
        self.config = configs[0]
        self.pack = len(configs)
        lengths = tokens.byte_lengths
        mask = self.config.n_vocab - tokens.n_vocab  # [MASK] is never a target
        byte_lengths = (
            torch.full((tokens.n_vocab,), torch.nan)
            if lengths is None
            else torch.from_numpy(lengths)
        )
        self.byte_lengths = torch.cat([byte_lengths.float(), torch.zeros(mask)]).to(step.device)
        self.windows = held_out_windows(tokens.held_out, self.config.n_ctx, evaluation.tokens).to(
            step.device
        )
        self.example = step.objective.test(self.windows)
        self.lengths = self._length_examples(tokens)
        self.passages = {
            metric: passages(metric, self.config, tokens) for metric in evaluation.downstream
        }
        self.latest: Score | None = None

    def held_out(self) -> Score:
        """Return the score on held-out windows, which are the same at every point."""
        self.latest = self._score(self.example)
        return self.latest

    def finals(self) -> list[Final]:
        """Return all finals of the models."""
        score = self.latest or self.held_out()
        finals: list[Final] = [
            ("loss", 0, score.loss),
            ("bits_per_byte", 0, score.bits_per_byte),
            ("accuracy", 0, score.accuracy),
        ]
        finals += [("loss_at_position", first, loss) for first, loss in score.by_position()]
        finals += [
            ("loss_at_length", factor, self._score(example).loss)
            for factor, example in self.lengths.items()
        ]
        return finals + self._streams() + self._probes() + self._downstream()

    def _streams(self) -> list[Final]:
        """RMS and token similarity of the stream: at 0 before the first block, at k after k."""
        inputs = self.example.inputs[:, : self.config.batch_size]
        parts = inputs.split(self.step.micro_batch, 1)
        with self._quiet():
            measured = [self.step.model.stream(part) for part in parts]
        rms, similarity = (torch.stack(one) for one in zip(*measured, strict=True))
        share = torch.tensor([part.shape[1] / inputs.shape[1] for part in parts]).to(rms)[
            :, None, None
        ]
        rms, similarity = (share * rms.square()).sum(0).sqrt(), (share * similarity).sum(0)
        rows = zip(rms.T.tolist(), similarity.T.tolist(), strict=True)
        return [
            final
            for depth, (size, cosine) in enumerate(rows)
            for final in (("stream_rms", depth, size), ("token_similarity", depth, cosine))
        ]

    def _length_examples(self, tokens: Tokens) -> dict[float, Example]:
        """Contexts of the lengths that the position encoding allows; all score the same tokens."""
        n_ctx, contexts = self.config.n_ctx, self.evaluation.contexts(self.config)
        if not contexts:
            return {}
        windows = length_windows(
            tokens.held_out, n_ctx, self.evaluation.lengths, self.evaluation.tokens
        ).to(self.step.device)
        whole = self.step.objective.test(windows)
        return {factor: whole.last(length, n_scored(n_ctx)) for factor, length in contexts.items()}

    def _probes(self) -> list[Final]:
        """For masked models, loss and accuracy at every probe ratio, and pseudo-perplexity."""
        objective, probe = self.step.objective, self.evaluation.probe
        if not isinstance(objective, Masked):
            return []
        finals: list[Final] = []
        for ratio in probe.ratio:
            score = self._score(objective.probe(self.windows, ratio, probe))
            finals += [("probe_loss", ratio, score.loss), ("probe_accuracy", ratio, score.accuracy)]
        alone = self._score(objective.alone(self.windows, len(self.windows)))
        return [
            *finals,
            ("pseudo_perplexity", 0, [math.exp(min(loss, 700.0)) for loss in alone.loss]),
        ]

    def _downstream(self) -> list[Final]:
        """Accuracies of linear probes on features averaged over a passage's tokens."""
        finals: list[Final] = []
        for metric, asked in self.passages.items():
            features = []
            with self._quiet(), self.step.autocast():
                for inputs in asked.inputs.split(self.step.micro_batch):
                    everyone = inputs.to(self.step.device).expand(self.pack, *inputs.shape)
                    features.append(self.step.model.features(everyone).float().mean(2).cpu())
            finals.append(
                (metric, 0, [asked.accuracy(member) for member in torch.cat(features, 1)])
            )
        return finals

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Without gradients and dropout."""
        model = self.step.model.eval()
        with torch.no_grad():
            yield
        model.train()

    def _score(self, example: Example) -> Score:
        """Score every window of an example [K or 1, W, T], as many at once as in training."""
        length = example.inputs.shape[2]
        at_once = max(1, self.step.micro_batch * self.config.n_ctx // length)
        sums = torch.zeros(4, self.pack, length, dtype=torch.float64)
        with self._quiet():
            for first in range(0, example.inputs.shape[1], at_once):
                part = (
                    tensor[:, first : first + at_once].expand(self.pack, -1, -1)
                    for tensor in example
                )
                sums += self._sums(*part).cpu()
        return Score(*sums)

    def _sums(self, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Nats, hits, tokens and bytes, summed over windows: [4, K, T]."""
        with self.step.autocast():
            logits = self.step.model.head(self.step.model.features(inputs))
        loss, _ = cross_entropy(logits, targets)
        hits = (logits.argmax(-1) == targets).to(loss.dtype)
        per_token = torch.stack(
            (loss, hits, torch.ones_like(loss), self.byte_lengths[targets].to(loss.dtype))
        )
        return (per_token * weights).sum(2)
