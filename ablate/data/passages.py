"""Passages with classes, which tasks train on, and the downstream probe: a linear map from frozen
features to the class of a passage.

On a shipped corpus, which need not be that of the run, a passage is 128 tokens (n_ctx, where that
is less) of one document, and its class the novel or era. The probe is fitted on passages of the
training part and tested on passages of the held-out part, with equally many of each class, so that
chance is one in the number of classes. On a study's own texts a passage is the first n_ctx tokens
of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.functional import cross_entropy

from ablate import text
from ablate.config import RunConfig
from ablate.data.batches import gather
from ablate.errors import AblateError
from ablate.evaluation import PASSAGE, Evaluation
from ablate.text import Tokens, labels
from ablate.text.labels import Labels


@dataclass(frozen=True)
class Passages:
    """Passages of a text with their classes.

    Attributes:
        inputs: Integers [R · P, T] on the CPU; shorter passages are filled up. A model reads R rows
            of each example: k · P + p is row k of example p, such as its second order, or its
            choice k.
        classes: [P] int.
        fitted: Whether a probe is fitted on a passage, else tested; [P] bool.
        lengths: Tokens of each row, [R · P] int; None where all have T.
        chance: Accuracy of always choosing the class that most fitted passages have; NaN: unknown.
        validation: Whether a passage that is not fitted is for decisions, and not tested; [P] bool,
            None for none.
        tags: The class of the word that each token carries, [P, T] int64, -1 for none; None for a
            task of texts, whose classes are `classes`.
        cut: Share of the examples of which a model reads only the first tokens.
    """

    inputs: Tensor
    classes: np.ndarray
    fitted: np.ndarray
    lengths: np.ndarray | None = None
    chance: float = math.nan
    validation: np.ndarray | None = None
    tags: np.ndarray | None = None
    cut: float = 0.0

    def rows(self, n: int, among: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yield the numbers of passages, up to `n` of similar length at a time.

        Args:
            n: How many at most.
            among: Their numbers, [N]; None for all.
        """
        order = np.arange(len(self.classes)) if among is None else among
        if self.lengths is not None:
            longest = self.lengths.reshape(-1, len(self.classes)).max(0)
            order = order[np.argsort(longest[order], kind="stable")]
        for first in range(0, len(order), n):
            yield order[first : first + n]

    def padded(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Return what a model reads of n examples, as long as the longest row; and lengths.

        Returns:
            [R · n, T] int64, the rows of all examples with one number behind each other; [R · n].
        """
        n = len(self.classes)
        every = np.concatenate([rows + first for first in range(0, len(self.inputs), n)])
        lengths = np.full(len(every), self.inputs.shape[1])
        if self.lengths is not None:
            lengths = self.lengths[every]
        return self.inputs[every, : lengths.max()].long(), torch.from_numpy(lengths)

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Return the classes of some passages, [n], or of their words, in their order."""
        if self.tags is None:
            return self.classes[rows]
        tags: np.ndarray = self.tags[rows]
        return tags[tags >= 0]

    def accuracy(self, features: Tensor) -> float:
        """Return the share of test passages that the probe classifies correctly.

        Args:
            features: Averages over a passage's tokens, [P, C].

        Returns:
            A share, NaN where a feature is not finite.
        """
        values = features.detach().double().cpu().numpy()
        if not np.isfinite(values).all():
            return float("nan")
        probe = fit(values[self.fitted], self.classes[self.fitted])
        return float((probe.predict(values[~self.fitted]) == self.classes[~self.fitted]).mean())


def passages(
    metric: str, config: RunConfig, tokens: Tokens, sources: Mapping[str, str]
) -> Passages:
    """Return the passages of a downstream metric, the same for all runs with one tokenizer.

    Args:
        metric: Its name.
        config: The run.
        tokens: The text of its corpus.
        sources: Content hash of corpus and tokenizer → location.

    Raises:
        AblateError: There is no such metric, or a class has no passage of this length.
    """
    rule = labels.find(metric)
    tokens = text.shipped(rule.corpus, config, tokens, sources)
    length = min(PASSAGE, config.n_ctx)
    fit_on = _choose(rule, tokens.train_bounds, tokens.train_documents, length, metric)
    test_on = _choose(rule, tokens.held_out_bounds, tokens.held_out_documents, length, metric)
    inputs = [
        gather(tokens.train, fit_on.ravel(), length),
        gather(tokens.held_out, test_on.ravel(), length),
    ]
    classes = [
        np.repeat(np.arange(len(rule.names)), chosen.shape[1]) for chosen in (fit_on, test_on)
    ]
    return Passages(
        torch.cat(inputs),
        np.concatenate(classes),
        np.arange(fit_on.size + test_on.size) < fit_on.size,
    )


def labelled(evaluation: Evaluation, config: RunConfig, sources: Mapping[str, str]) -> Passages:
    """Return the texts of `[eval] probe_csv`, the first n_ctx tokens of each.

    Args:
        evaluation: What the run measures.
        config: The run.
        sources: Content hash of corpus, tokenizer and file of labels → location.

    Raises:
        AblateError: The file has changed since the plan, or a text has no tokens.
    """
    named = f"probe_csv = {evaluation.probe_csv!r}"
    return of_texts(labels.read, evaluation.probe_csv_hash or "", named, config, sources)


def of_texts(
    read: Callable[[Path], labels.LabelledTexts],
    hash: str,
    named: str,
    config: RunConfig,
    sources: Mapping[str, str],
) -> Passages:
    """Return the texts of a file, as the run's `text_format` writes them.

    Args:
        read: What reads the file.
        hash: SHA-256 of the file.
        named: What calls it by its key, for errors.
        config: The run.
        sources: Content hash of corpus, tokenizer and file of labels → location.

    Raises:
        AblateError: The file has changed since the plan, or a text has no tokens.
    """
    # another launcher may have planned the study anew, with another file
    path = Path(sources.get(hash, ""))
    if path == Path() or (found := read(path)).hash != hash:
        raise AblateError(f"{named} has changed since the study was planned: run the study again")
    encoder = text.encoder(config, sources)
    others = zip(*found.choices, strict=True) if found.choices else [found.seconds]
    columns = [found.texts, *filter(None, others)]
    encoded = [encoder.encode([one.encode() for one in column]) for column in columns]
    for column, tokens in zip(columns, encoded, strict=True):
        for one, its in zip(column, tokens, strict=True):
            if not len(its):
                what = f"tokenizer {config.tokenizer!r} has no tokens for {one!r:.60}"
                raise AblateError(f"{path}: {what}")
    inputs, lengths = written(config, *encoded)
    cut = config.part("text_format").share_cut(config, [[*map(len, column)] for column in encoded])
    return Passages(
        inputs, found.classes, found.fitted, lengths, found.chance, found.validation, cut=cut
    )


def written(
    config: RunConfig, firsts: Sequence[Sequence[int]], *others: Sequence[Sequence[int]]
) -> tuple[Tensor, np.ndarray]:
    """Return texts as the run's `text_format` writes them.

    Args:
        config: The run.
        firsts: Tokens of the first text of each example, P.
        *others: Tokens of the second texts; of each choice, where there are several.

    Returns:
        Inputs [R · P, T] and lengths [R · P], as `Passages` has them: R is the number of choices,
        and 2 where a model reads both orders of a pair.
    """
    form = config.part("text_format")
    orders = (False, True) if form.both_orders else (False,)
    columns: Sequence[Sequence[Sequence[int] | None]] = others or ([None] * len(firsts),)
    rows = [
        form.write(a, b, config, swapped=swapped)
        for seconds in columns
        for swapped in orders
        for a, b in zip(firsts, seconds, strict=True)
    ]
    return filled_up(rows), np.array([len(row) for row in rows])


def filled_up(rows: Sequence[Sequence[int]], fill: int = 0) -> Tensor:
    """Return rows of whole numbers as a table [P, T], int32, with `fill` behind shorter ones."""
    inputs = torch.full((len(rows), max(map(len, rows))), fill, dtype=torch.int32)
    for row, tokens in zip(inputs, rows, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    return inputs


def _choose(
    rule: Labels, bounds: np.ndarray, documents: np.ndarray, length: int, metric: str
) -> np.ndarray:
    """Return starts of passages, [classes, N], evenly spread over the class's text."""
    spans: list[list[np.ndarray]] = [[] for _ in rule.names]
    for start, end, label in zip(bounds[:-1], bounds[1:], rule.of(documents), strict=True):
        spans[label].append(np.arange(start, end - length, length))
    starts = [np.concatenate(some) if some else np.zeros(0, np.int64) for some in spans]
    n = min(labels.EACH, *(len(some) for some in starts))
    if not n:
        raise AblateError(f"{metric}: a class has no passage of {length} tokens; lower n_ctx")
    return np.stack([some[np.linspace(0, len(some) - 1, n).astype(np.int64)] for some in starts])


@dataclass(frozen=True)
class Linear:
    """A linear classifier on standardised features: `weights` [C + 1, classes], the bias last."""

    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray

    def predict(self, features: np.ndarray) -> np.ndarray:
        """Return the likeliest class of each row of features [P, C], [P]."""
        logits: np.ndarray = ((features - self.mean) / self.scale) @ self.weights[
            :-1
        ] + self.weights[-1]
        return logits.argmax(1)


def fit(features: np.ndarray, classes: np.ndarray) -> Linear:
    """Fit a multinomial logistic regression by L-BFGS.

    It minimises Σ cross-entropy + ½ ‖weights without bias‖² of standardised features; features that
    never vary stay at 0.

    Args:
        features: [P, C].
        classes: [P] int.
    """
    mean, scale = features.mean(0), features.std(0)
    scale = np.where(scale > 1e-12 * (1 + np.abs(mean)), scale, np.inf)
    known = torch.tensor(np.hstack([(features - mean) / scale, np.ones((len(features), 1))]))
    truth = torch.tensor(classes)
    shape = known.shape[1], int(classes.max()) + 1

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = torch.tensor(flat.reshape(shape), requires_grad=True)
        total = cross_entropy(known @ weights, truth, reduction="sum")
        total = total + weights[:-1].square().sum() / 2
        total.backward()
        assert weights.grad is not None
        return total.item(), weights.grad.numpy().ravel()

    # imported here: it takes a sixth of the time of torch, and most studies have no probe
    from scipy.optimize import minimize

    start, options = np.zeros(shape).ravel(), {"maxiter": 500}
    # The pools of torch and SciPy wait for each other: with two cores 5 to 17 times as long.
    with threadpool_limits(1):
        optimum = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    return Linear(mean, scale, optimum.x.reshape(shape))
