"""Attention within documents: each document is read as if it stood alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import train_helpers
from model_cases import build, small
from torch import Tensor
from train_helpers import EVALUATION, run

from ablate import sizes, text
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.data.objectives import Causal, Masked
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.kinds.transformer import run_of
from ablate.plan import plan
from ablate.study.parse import parse
from ablate.text import Tokens, corpora
from ablate.train import compiled
from ablate.train.evaluate import Evaluator
from ablate.train.step import Step

SEPARATOR = 7
DOCUMENTS = (5, 1, 3, 8, 2, 1)  # tokens of each, its separator included
LENGTH = sum(DOCUMENTS)
POSITIONS = CATALOGUE["position"].names


def windows(config: RunConfig, pack: int, seed: int = 0) -> Tensor:
    """Windows [K, B, LENGTH] of documents; those of sequence b begin b tokens later."""
    generator = torch.Generator().manual_seed(seed)
    shape = (pack, config.batch_size, 2 * LENGTH)
    # one less, so that no token is the separator by chance
    stream = torch.randint(SEPARATOR, shape, generator=generator)
    stream[..., (np.cumsum(DOCUMENTS * 2) - 1).tolist()] = SEPARATOR
    rows = [stream[:, row, row : row + LENGTH] for row in range(config.batch_size)]
    return torch.stack(rows, 1)


def spans(sequence: Sequence[int]) -> list[slice]:
    """The documents of one sequence, found by walking over it."""
    found, first = [], 0
    for index, token in enumerate(sequence):
        if token == SEPARATOR:
            found.append(slice(first, index + 1))
            first = index + 1
    return found + [slice(first, len(sequence))] * (first < len(sequence))


def of_documents(n_tokens: int = 4000, length: int = 11) -> Tokens:
    """A text of documents of random tokens below 7, of 2 to `length` tokens with separator 7."""
    random = np.random.default_rng(1)
    stream = random.integers(SEPARATOR, size=n_tokens).astype(np.uint8)
    stream[np.cumsum(random.integers(2, length + 1, size=n_tokens // length)) - 1] = SEPARATOR
    made = dataclasses.replace(
        train_helpers.text(), train=stream[: n_tokens // 2], held_out=stream[n_tokens // 2 :]
    )
    return dataclasses.replace(made, separator=(SEPARATOR,))


def masked(**fields: Any) -> RunConfig:
    """A small run whose attention stays within documents."""
    return small(document_mask="attention", n_ctx=LENGTH, **fields)


CASES: list[dict[str, Any]] = [
    *({"position": position} for position in POSITIONS),
    *({"position": position, "objective": "masked"} for position in POSITIONS),
    *(
        {"position": position, "score": "additive"}
        for position in POSITIONS
        if position != "rotary"
    ),
    {"score": "additive", "position": "t5", "objective": "masked"},
    {"n_kv_head": 2, "qk_norm": "rmsnorm", "head_combine": "sum", "qkv": "mlp"},
    {"attention_scale": "none", "position": "alibi", "n_kv_head": 1},
    {"topology": "parallel", "norm": "peri"},
    {"objective": "masked", "attention": "causal"},
]


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("pack", [1, 3])
@pytest.mark.parametrize("fields", CASES, ids=str)
def test_a_document_has_the_logits_and_gradients_that_it_has_alone(
    fields: dict[str, Any], pack: int, recompute: bool
) -> None:
    config = masked(**fields, precision="float64")
    model = build(config, *range(pack), sharpen=2)
    model.recompute = recompute
    texts = windows(config, pack)
    objective = Causal([config] * pack, of_documents(), "cpu")
    starts = objective.train(F.pad(texts, (0, 1)), 0).starts
    draw = torch.randn(*texts.shape, config.n_vocab, dtype=torch.float64)
    together = model(texts, starts)
    (together * draw).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    alone = torch.zeros_like(together)
    for row in range(config.batch_size):
        # the members' windows have documents at the same places
        for span in spans(texts[0, row].tolist()):
            logits = model(texts[:, row : row + 1, span])
            (logits * draw[:, row : row + 1, span]).sum().backward()
            alone[:, row, span] = logits[:, 0].detach()
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        if gradient is None:
            assert parameter.grad is None
        else:
            torch.testing.assert_close(gradient, parameter.grad, rtol=0, atol=1e-10)
    assert not torch.allclose(together, model(texts), atol=1e-3)
