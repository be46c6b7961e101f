"""Values on held-out text, worked by hand for a model of two tokens."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import train_helpers
from torch import Tensor

from ablate.config import RunConfig
from ablate.evaluation import Evaluation
from ablate.train.evaluate import Evaluator
from ablate.train.step import Step


def _finals(
    config: RunConfig,
    held_out: np.ndarray,
    share: Callable[[Tensor], Tensor],
    evaluation: Evaluation,
) -> dict[tuple[str, float], float]:
    """Return the finals of a model with p(token 0) = `share(inputs)`, p(token 1) the rest."""
    tokens = dataclasses.replace(train_helpers.text(), held_out=held_out.astype(np.uint8))
    step = Step([config], tokens, "cpu")

    def head(inputs: Tensor) -> Tensor:
        logits = torch.full((*inputs.shape, config.n_vocab), -1e9)
        logits[..., 0], logits[..., 1] = share(inputs).log(), (1 - share(inputs)).log()
        return logits

    step.model.features, step.model.head = (lambda inputs: inputs), head  # type: ignore[assignment, method-assign]
    found = Evaluator(step, [config], evaluation, tokens).finals()
    return {(name, at): value for name, at, (value,) in found}


def test_masked_numbers_by_hand() -> None:
    """Half of the windows are token 0, half token 1; p(0) is 3/4 at [MASK], else 1/2."""
    half = 8 * 16
    held_out = np.repeat([0, 1], [half, half + 1])
    finals = _finals(
        train_helpers.config(objective="masked", mask_ratio=0.5, mask_mix=(1, 0, 0)),
        held_out,
        lambda inputs: torch.where(inputs == 32, 0.75, 0.5),
        Evaluation(tokens=2 * half, probe={"ratio": (0.15, 0.5)}),  # type: ignore[arg-type]
    )
    mean = (math.log(4 / 3) + math.log(4)) / 2
    assert finals["pseudo_perplexity", 0] == pytest.approx((4 / 3 * 4) ** 0.5, rel=1e-6)
    for name in (("loss", 0), ("probe_loss", 0.15), ("probe_loss", 0.5)):
        assert finals[name] == pytest.approx(mean, rel=1e-6)
    for name in (("accuracy", 0), ("probe_accuracy", 0.15), ("probe_accuracy", 0.5)):
        assert finals[name] == 0.5  # it always says 0
    # every token spells two bytes
    assert finals["bits_per_byte", 0] == pytest.approx(mean / math.log(2) / 2, rel=1e-6)


def test_loss_by_position_by_hand() -> None:
    """Token 0 alone, to which position t gives the probability 1/(t + 2)."""
    shares = 1 / (torch.arange(16.0) + 2)
    finals = _finals(
        train_helpers.config(),
        np.zeros(65),
        lambda inputs: shares.expand(inputs.shape),
        Evaluation(tokens=64),
    )
    nats = [math.log(t + 2) for t in range(16)]
    for first, last in ((0, 1), (1, 2), (2, 4), (4, 8), (8, 16)):
        assert finals["loss_at_position", first] == pytest.approx(
            sum(nats[first:last]) / (last - first), rel=1e-6
        )
    assert finals["loss", 0] == pytest.approx(sum(nats) / 16, rel=1e-6)
    # position 0 alone gives it half, and the first of equals counts
    assert finals["accuracy", 0] == 1 / 16
