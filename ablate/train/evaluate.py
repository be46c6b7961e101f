"""Evaluations on held-out text: loss, bits per byte, accuracy, and what `[eval]` asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ablate.config import RunConfig
from ablate.data.batches import gather, held_out_starts, length_windows
from ablate.data.corrupt import Corrupted
from ablate.data.frequencies import repeated
from ablate.data.objectives import Example, Masked
from ablate.data.passages import Passages, labelled, passages
from ablate.evaluation import CHANCE, COPY_SHARE, LABELLED, Evaluation, copied, n_scored
from ablate.text import Tokens, pairs
from ablate.text.frequencies import counts, nats
from ablate.train import decode
from ablate.train.loss import cross_entropy
from ablate.train.own import OwnScore, own_metrics
from ablate.train.scoring import Final, Score, Scorer, Values
from ablate.train.step import Step


class Evaluator(Scorer):
    """Measures the models of a step.

    Args:
        step: The step, with the models.
        configs: The runs, members of its pack.
        evaluation: What is measured.
        tokens: The text.
        sources: Content hash of a file → its location.
        advance: Called after each part of an evaluation.

    Raises:
        AblateError: Something cannot be measured on this text; raised when it is made.
    """

    def __init__(
        self,
        step: Step,
        configs: Sequence[RunConfig],
        evaluation: Evaluation,
        tokens: Tokens,
        sources: Mapping[str, str] | None = None,
        advance: Callable[[], object] = lambda: None,
    ):
        super().__init__(step, configs, evaluation, advance)
        lengths = tokens.byte_lengths
        mask = self.config.n_vocab - tokens.n_vocab  # [MASK] is never a target
        byte_lengths = (
            torch.full((tokens.n_vocab,), torch.nan)
            if lengths is None
            else torch.from_numpy(lengths)
        )
        self.byte_lengths = torch.cat([byte_lengths.float(), torch.zeros(mask)]).to(step.device)
        self.pairs = tokens if self.config.part("objective").pairs else None
        found = pairs.target_counts(tokens) if self.pairs else counts(tokens.train, tokens.n_vocab)
        unigram = torch.from_numpy(nats(found)).float()
        self.unigram = torch.cat([unigram, torch.zeros(mask)]).to(step.device)
        self.held_out_text = tokens.held_out
        self.lost = tokens.lost
        n_ctx, n_tokens = self.config.n_ctx, len(tokens.held_out)
        documents = tokens.held_out_bounds[:-1] if self.pairs else None
        self.starts, self.final_starts = (
            held_out_starts(n_tokens, n_ctx, n, documents)
            for n in (evaluation.tokens, evaluation.n_final)
        )
        self.windows = gather(tokens.held_out, self.starts, n_ctx + 1).to(step.device)
        self.example = step.objective.test(self.windows)
        self.own = own_metrics(evaluation.own_names, self.config, tokens.spelling, self.step.device)
        self.copy = self._copy_example(tokens)
        self.lengths = self._length_examples(tokens)
        self.passages = {
            metric: self._passages(metric, tokens, sources or {})
            for metric in evaluation.downstream
        }
        self.latest_copy: dict[str, Values] = {}

    def held_out(self) -> Score:
        """Return the score on held-out windows, which are the same at every point."""
        self.latest = self._score(self._parts(self.example), OwnScore(self.own, self.pack))
        return self.latest

    def copies(self) -> dict[str, Values]:
        """Return the losses of the copy probe: empty where a run has none.

        `copy_loss` is of the second half of a sequence, `copy_loss_first` of the first.
        """
        if self.copy is not None:
            half = self.copy.inputs.shape[-1] // 2
            score = self._score(self._parts(self.copy))
            self.latest_copy = {
                name: (score.nats[:, part].sum(1) / score.tokens[:, part].sum(1)).tolist()
                for name, part in (
                    ("copy_loss", slice(half, None)),
                    ("copy_loss_first", slice(half)),
                )
            }
        return self.latest_copy

    def finals(self) -> list[Final]:
        """Return all finals of the models; sets `by_window`.

        Those at the last point, where `held_out` and `copies` were asked, are not measured again.
        """
        objective, latest = self.step.objective, self.latest
        if latest is None or len(self.final_starts) != len(self.starts):
            parts = map(objective.test, *self._final_windows())
            latest = self._score(parts, OwnScore(self.own, self.pack))
        finals: list[Final] = [
            ("loss", 0, latest.loss),
            ("bits_per_byte", 0, latest.bits_per_byte),
            ("accuracy", 0, latest.accuracy),
            ("unigram_loss", 0, latest.unigram_loss),
            *((name, 0, values) for name, values in latest.own.items()),
            *((name, 0, [share] * self.pack) for name, share in self.lost.items()),
        ]
        self.by_window = [self._by_block("loss", 0, latest)]
        finals += [(name, 0, loss) for name, loss in (self.latest_copy or self.copies()).items()]
        finals += [("loss_at_position", first, loss) for first, loss in latest.by_position()]
        finals += [
            ("loss_at_length", factor, self._score(self._parts(example)).loss)
            for factor, example in self.lengths.items()
        ]
        return (
            finals
            + self._streams(self.example)
            + self._probes()
            + self._decoded()
            + self._downstream()
        )

    def _final_windows(self) -> tuple[Iterator[Tensor], Iterator[int]]:
        """Return the windows of the final evaluation, some at a time, and the first one's number.

        They are read from the text as they are needed: there may be millions of tokens.
        """
        rows = range(0, len(self.final_starts), self._at_once(self.config.n_ctx, self.final_starts))
        parts = (self.final_starts[row : row + rows.step] for row in rows)
        windows = (
            gather(self.held_out_text, part, self.config.n_ctx + 1).to(self.step.device)
            for part in parts
        )
        return windows, iter(rows)

    def _copy_example(self, tokens: Tokens) -> Example | None:
        """Sequences of two equal halves of random tokens, for runs that can copy."""
        if not (half := copied(self.config)):
            return None
        count = max(1, round(COPY_SHARE * self.evaluation.tokens / (2 * half)))
        return repeated(tokens, half, count, self.step.device)

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
        if isinstance(objective, Corrupted):
            return self._corrupted(objective)
        if not isinstance(objective, Masked):
            return []
        finals: list[Final] = []
        for ratio in probe.ratio:
            windows, rows = self._final_windows()
            score = self._score(
                objective.probe(part, ratio, probe, row)
                for part, row in zip(windows, rows, strict=True)
            )
            finals += [("probe_loss", ratio, score.loss), ("probe_accuracy", ratio, score.accuracy)]
            self.by_window.append(self._by_block("probe_loss", ratio, score))
        alone = self._score(self._parts(objective.alone(self.windows, len(self.windows))))
        return [
            *finals,
            ("pseudo_perplexity", 0, [math.exp(min(loss, 700.0)) for loss in alone.loss]),
        ]

    def _corrupted(self, objective: Corrupted) -> list[Final]:
        """For runs on corrupted text, loss and accuracy under the noise of the probe."""
        finals: list[Final] = []
        for ratio in self.evaluation.probe.ratio:
            score = self._score(
                objective.probe(part, ratio, row)
                for part, row in zip(*self._final_windows(), strict=True)
            )
            finals += [
                ("corrupted_loss", ratio, score.loss),
                ("corrupted_accuracy", ratio, score.accuracy),
            ]
            self.by_window.append(self._by_block("corrupted_loss", ratio, score))
        return finals

    def _decoded(self) -> list[Final]:
        """For pairs, exact match and error rate of decoded targets, at every width of the beam; at
        the first one, the error rate by the length of the source, too.
        """
        if self.pairs is None:
            return []
        documents = self.pairs.held_out_bounds[:-1]
        chosen = np.linspace(
            0, len(documents) - 1, min(self.evaluation.decoded, len(documents))
        ).astype(np.int64)
        windows = gather(self.held_out_text, documents[chosen], self.config.n_ctx + 1)
        mark, end = pairs.marks(self.pairs)
        lengths = (windows == mark).int().argmax(-1).numpy()
        finals: list[Final] = []
        for beam in self.evaluation.beams:
            at_once = max(1, self._at_once(self.config.n_ctx, windows) // beam)
            written: list[list[decode.Match]] = [[] for _ in range(self.pack)]
            for row in range(0, len(windows), at_once):
                part = windows[row : row + at_once].to(self.step.device)
                example = self.step.objective.test(part)
                with self._quiet(), self.step.autocast():
                    texts = decode.targets(self.step.model, example, beam, end)
                for member, found in zip(written, texts, strict=True):
                    member += decode.matches(found, part, self.pairs)
                self.advance()
            finals += [
                ("exact_match", beam, [decode.exact(member) for member in written]),
                ("error_rate", beam, [decode.error_rate(member) for member in written]),
            ]
            if beam == self.evaluation.beams[0]:
                by_member = [decode.by_length(member, lengths) for member in written]
                finals += [
                    ("error_at_length", bins[0][0], [rate for _, rate in bins])
                    for bins in zip(*by_member, strict=True)
                ]
        return finals

    def _downstream(self) -> list[Final]:
        """Accuracies of linear probes on features averaged over a passage's tokens."""
        finals: list[Final] = []
        for metric, asked in self.passages.items():
            finals.append((metric, 0, self._probed(asked, self._average)))
            if metric == LABELLED:
                finals.append((CHANCE, 0, [asked.chance] * self.pack))
        return finals

    def _average(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Return features [K, n, C] averaged over the first `lengths` [n] tokens of each input."""
        inputs, lengths = (
            part.to(self.step.device).expand(self.pack, *part.shape) for part in (inputs, lengths)
        )
        index = torch.arange(inputs.shape[-1], device=inputs.device)
        inside = index < lengths[..., None]
        if inside.all():
            return self.step.model.hidden(inputs).float().mean(2)
        # what fills a row up is a document of its own, which the text does not attend to
        features = self.step.model.hidden(inputs, torch.where(inside, 0, lengths[..., None]))
        return (features.float() * inside[..., None]).sum(2) / lengths[..., None]

    def _passages(self, metric: str, tokens: Tokens, sources: Mapping[str, str]) -> Passages:
        if metric == LABELLED:
            return labelled(self.evaluation, self.config, sources)
        return passages(metric, self.config, tokens, sources)

    def _sums(self, part: Example, own: OwnScore | None) -> tuple[Tensor, Tensor]:
        """Nats, hits, tokens, bytes and unigram nats, summed over windows: [5, K, T]; and nats and
        tokens, summed over positions: [2, K, W].
        """
        targets = part.targets
        with self.step.autocast():
            logits = self.step.model.head(self.step.model.features(*part.read))
        loss, _ = cross_entropy(logits, targets)
        if own:
            given = {"logits": logits, "targets": targets, "losses": loss, "inputs": part.inputs}
            own.add(given, part.weights > 0)
        hits = (logits.argmax(-1) == targets).to(loss.dtype)
        of_target = (self.byte_lengths[targets], self.unigram[targets])
        per_token = torch.stack(
            (loss, hits, torch.ones_like(loss), *(one.to(loss.dtype) for one in of_target))
        )
        per_token = per_token * part.weights
        return per_token.sum(2), per_token[[0, 2]].sum(3)
