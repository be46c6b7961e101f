"""The downstream probe: a linear map from frozen features to the novel or era of a passage.

A passage is 128 tokens (n_ctx, where that is less) of one document. The probe is fitted on passages
of the training part and tested on passages of the held-out part, with equally many of each class,
so that chance is one in the number of classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ablate.config import RunConfig
from ablate.data.batches import gather
from ablate.errors import AblateError
from ablate.evaluation import PASSAGE
from ablate.text import Tokens, labels
from ablate.text.labels import Labels

_EACH = 200  # most passages of a class to fit on, and to test on


@dataclass(frozen=True)
class Passages:
    """Passages of a text with their classes.

    Attributes:
        inputs: [P, T] int64 on the CPU.
        classes: [P] int.
        fitted: Whether a probe is fitted on a passage, else tested; [P] bool.
    """

    inputs: Tensor
    classes: np.ndarray
    fitted: np.ndarray

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


def passages(metric: str, config: RunConfig, tokens: Tokens) -> Passages:
    """Return the passages of a downstream metric, the same for all runs on one text.

    Raises:
        AblateError: The metric is not for this corpus.
    """
    rule = labels.find(metric, config.corpus, config.corpus_hash)
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


def _choose(
    rule: Labels, bounds: np.ndarray, documents: np.ndarray, length: int, metric: str
) -> np.ndarray:
    """Return starts of passages, [classes, N], evenly spread over the class's text."""
    spans: list[list[np.ndarray]] = [[] for _ in rule.names]
    for start, end, label in zip(bounds[:-1], bounds[1:], rule.of(documents), strict=True):
        spans[label].append(np.arange(start, end - length, length))
    starts = [np.concatenate(some) if some else np.zeros(0, np.int64) for some in spans]
    n = min(_EACH, *(len(some) for some in starts))
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
    optimum = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    return Linear(mean, scale, optimum.x.reshape(shape))
