"""Train runs on images, and measure them on held-out ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from ablate.config import RunConfig
from ablate.data.batches import held_out_starts
from ablate.data.images import MaskedAutoencoding
from ablate.data.objectives import Example
from ablate.data.passages import Passages
from ablate.evaluation import CHANCE, LABELLED, Evaluation
from ablate.images import Images
from ablate.kinds import Context, Job
from ablate.text.labels import EACH
from ablate.train import engine
from ablate.train.loss import token_losses
from ablate.train.own import OwnScore
from ablate.train.scoring import Final, Score, Scorer
from ablate.train.step import Step

AT_ONCE = 256  # images at a time where the mean of training targets is taken


def train(job: Job, context: Context, images: Images) -> None:
    """Train runs of one shape on images and emit their events; see `ablate.train.engine.train`."""
    engine.train(job, context, images, ImageEvaluator)


class ImageEvaluator(Scorer):
    """Measures the models of a step on held-out images.

    Args:
        step: The step, with the models.
        configs: The runs, members of its pack.
        evaluation: What is measured.
        images: The images.
        sources: As for `Evaluator`; not read.
        advance: Called after each part of an evaluation.
    """

    def __init__(
        self,
        step: Step,
        configs: Sequence[RunConfig],
        evaluation: Evaluation,
        images: Images,
        sources: Mapping[str, str] | None = None,
        advance: Callable[[], object] = lambda: None,
    ):
        super().__init__(step, configs, evaluation, advance)
        self.train, self.rows = (
            part.reshape(-1, step.span) for part in (images.train, images.held_out)
        )
        numbers, self.final_numbers = (
            held_out_starts(0, self.config.n_ctx, n, np.arange(len(self.rows)))
            for n in (evaluation.tokens, evaluation.n_final)
        )
        self.same = len(numbers) == len(self.final_numbers)
        self.final_starts = self.final_numbers * self.config.n_ctx
        self.example = step.objective.test(self._bytes(self.rows[numbers]))
        self.known = self._known(images.classes(images.train))
        self.probe = self._probe(images) if LABELLED in evaluation.downstream else None

    def held_out(self) -> Score:
        """See `Scorer.held_out`."""
        self.latest = self._score(self._parts(self.example))
        return self.latest

    def finals(self) -> list[Final]:
        """See `Scorer.finals`."""
        objective, latest = self.step.objective, self.latest
        if latest is None or not self.same:
            latest = self._score(self._final_parts(objective.test))
        self.by_window = [self._by_block("loss", 0, latest)]
        finals: list[Final] = [("loss", 0, latest.loss), ("unigram_loss", 0, latest.unigram_loss)]
        if isinstance(objective, MaskedAutoencoding):
            finals += self._reconstructions(objective)
        else:
            finals.append(("accuracy", 0, latest.accuracy))
        if self.probe is not None:
            finals.append((LABELLED, 0, self._probed(self.probe, self._features)))
            finals.append((CHANCE, 0, [self.probe.chance] * self.pack))
        # of whole images, whatever share of them a run hides
        return finals + self._streams(self.example._replace(source=None))

    def _reconstructions(self, objective: MaskedAutoencoding) -> list[Final]:
        """Errors on patches that are hidden by the probe, the same ones for all arms."""
        finals: list[Final] = []
        for ratio in self.evaluation.probe.ratio:
            parts = self._final_parts(
                lambda part, row, ratio=ratio: objective.probe(part, ratio, row)
            )
            score = self._score(parts)
            finals.append(("reconstruction_loss", ratio, score.loss))
            self.by_window.append(self._by_block("reconstruction_loss", ratio, score))
        return finals

    def _final_parts(self, made: Callable[..., Example]) -> Iterable[Example]:
        """Yield the examples that `made` makes of images, and of the first one's number."""
        at_once = self._at_once(self.config.n_ctx, self.final_numbers)
        for row in range(0, len(self.final_numbers), at_once):
            part = self.rows[self.final_numbers[row : row + at_once]]
            yield made(self._bytes(part), row)

    def _bytes(self, rows: np.ndarray) -> Tensor:
        """Return rows of bytes on the device, [N, span] int64."""
        return torch.from_numpy(rows).to(self.step.device).long()

    def _known(self, classes: np.ndarray) -> Tensor:
        """Return what a model predicts that knows the training images' means alone.

        Of classes these are the nats of each class by its frequency, [V]; of patches the mean
        targets at each place, [T, P].
        """
        if not self.config.part("objective").regresses:
            shares = np.bincount(classes, minlength=self.config.n_vocab) / len(classes)
            with np.errstate(divide="ignore"):
                return torch.from_numpy(-np.log(shares)).float().to(self.step.device)
        total: Tensor | float = 0.0
        for row in range(0, len(self.train), AT_ONCE):
            part = self.step.objective.test(self._bytes(self.train[row : row + AT_ONCE]))
            total = total + part.targets[0].sum(0)
        assert isinstance(total, Tensor)
        return total / len(self.train)

    def _probe(self, images: Images) -> Passages:
        """Return the images that the linear probe is fitted and tested on.

        Up to `EACH` of each class on either side, evenly spread.
        """
        rows, classes = [], []
        for part in (images.train, images.held_out):
            of = images.classes(part)
            chosen = np.concatenate(
                [
                    found[np.linspace(0, len(found) - 1, min(EACH, len(found))).astype(np.int64)]
                    for found in (np.flatnonzero(of == number) for number in range(images.n_class))
                ]
            )
            rows.append(part.reshape(-1, self.step.span)[chosen])
            classes.append(of[chosen])
        fitted, tested = classes
        commonest = np.bincount(fitted).argmax()
        return Passages(
            torch.from_numpy(np.concatenate(rows)),
            np.concatenate(classes),
            np.arange(len(fitted) + len(tested)) < len(fitted),
            chance=float((tested == commonest).mean()),
        )

    def _features(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """Return the encoder's features of whole images, [K, n, C]."""
        read = self.step.objective.test(rows.to(self.step.device)).inputs
        read = read.expand(self.pack, *read.shape[1:])
        return self.step.model.hidden(read).float().squeeze(2)

    def _sums(self, part: Example, own: OwnScore | None) -> tuple[Tensor, Tensor]:
        """See `Scorer._sums`; images have no bytes of text."""
        targets = part.targets
        with self.step.autocast():
            outputs = self.step.model.head(self.step.model.features(*part.read))
        loss, _ = token_losses(outputs, targets)
        if self.config.part("objective").regresses:
            hits, unigram = torch.zeros_like(loss), (targets - self.known).square().mean(-1)
        else:
            hits = (outputs.argmax(-1) == targets).to(loss.dtype)
            unigram = self.known[targets]
        numbers = (loss, hits, torch.ones_like(loss), torch.zeros_like(loss), unigram)
        per_token = torch.stack([one.to(loss.dtype) for one in numbers]) * part.weights
        return per_token.sum(2), per_token[[0, 2]].sum(3)
