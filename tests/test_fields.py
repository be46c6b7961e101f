"""Every field of a configuration is used, and every level of every factor trains."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
import train_helpers
from model_cases import IMAGE_FIELDS, IMAGE_LEVELS

from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.evaluation import Evaluation
from ablate.kinds.transformer import run_of

# decide what is read, not what is done with it
TEXT = ("corpus", "corpus_hash", "split", "tokenizer", "tokenizer_hash", "code")
# of studies with a table of their own: tests/test_finetune.py, tests/test_start.py
TASK = {name for name, row in CATALOGUE.items() if row.group in ("fine-tuning", "start")}
MASKED = {"objective": "masked"}
BESIDE: dict[str, dict[str, Any]] = {  # what a field needs to have a meaning
    "mlm_head_transform": MASKED,
    "attention": MASKED,
    "mask_ratio": MASKED,
    "mask_mix": MASKED,
    "mask_kind": MASKED,
    "score": {"position": "none"},
    "encoder_attention": {"architecture": "encoder-decoder"},
    "n_layer_encoder": {"architecture": "encoder-decoder"},
    "rnn_cell": {"mixer": "rnn"},
    "mean_span": {"objective": "span", "architecture": "encoder-decoder", "mask_ratio": 0.5},
    "corruption": {"objective": "denoise", "architecture": "encoder-decoder"},
}
NUMBERS: dict[str, Any] = {  # a value other than the one it has in `train_helpers.config`
    "n_layer": 3,
    "n_layer_encoder": 3,
    "d_model": 24,
    "d_mlp": 20,
    "dropout": 0.25,
    "n_head": 4,
    "n_kv_head": 1,
    "d_head": 6,
    "n_ctx": 8,
    "n_vocab": 40,
    "norm_epsilon": 0.01,
    "rope_theta": 100.0,
    "rope_share": 0.5,
    "mask_ratio": 0.5,
    "mask_mix": (1, 0, 0),
    "mean_span": 2.0,
    "z_loss": 0.1,
    "steps": 7,
    "batch_tokens": 32,
    "lr": 1e-3,
    "weight_decay": 0.5,
    "grad_clip": 0.01,
    "warmup": 0.5,
    "seed": 1,
    "init_seed": 1,
    "data_seed": 1,
}


def _changes() -> Iterator[tuple[str, Any]]:
    """(field, value) for every level, and a value of every number."""
    for name, row in CATALOGUE.items():
        if name not in TEXT and name not in TASK and name not in IMAGE_FIELDS:
            for value in row.names or [NUMBERS[name]]:
                if value not in IMAGE_LEVELS:
                    yield name, value


@cache
def _measured(config: RunConfig) -> str:
    """The curve and the finals of a short run, to the last bit, and the status it ends with."""
    torch.set_num_threads(1)
    (events,) = train_helpers.run(config, evaluation=Evaluation(points=1, tokens=64))
    assert events.end["status"] == "complete"
    return repr((events.curve(), events.measured()))


def test_every_field_has_a_row() -> None:
    rows = {name for name, _ in _changes()} | set(TEXT) | TASK | IMAGE_FIELDS
    assert rows - TASK - IMAGE_FIELDS <= set(RunConfig.model_fields) <= rows


@pytest.mark.parametrize(
    ("field", "value"), list(_changes()), ids=lambda part: str(part).replace(" ", "")
)
def test_every_level_trains_and_every_field_changes_the_numbers(field: str, value: Any) -> None:
    other_fields = {"steps": 6, "schedule": "linear", **BESIDE.get(field, {})}
    if field == "objective" and CATALOGUE["objective"][value].corrupts:
        other_fields["architecture"] = "encoder-decoder"
    plain, changed = (
        train_helpers.config(**other_fields),
        train_helpers.config(**other_fields | {field: value}),
    )
    assert (_measured(changed) == _measured(plain)) is (changed == plain)


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"norm": "none"}, {"norm_kind": "none"}),
    ({"n_head": 1}, {"n_head": 1, "head_combine": "sum"}),
    ({}, {"n_kv_head": 2, "d_head": 8, "d_mlp": 64, "attention": "causal"}),
    ({}, {"mask_ratio": 0.5, "mask_kind": "span", "mlm_head_transform": "dense"}),
    (MASKED, MASKED | {"attention": "full"}),
    (
        {"position": "none", "score": "additive"},
        {"position": "none", "score": "additive", "attention_scale": "none"},
    ),
]


@pytest.mark.parametrize(("one", "other"), SAME, ids=str)
def test_two_ways_of_writing_a_run_are_one_run(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert run_of(train_helpers.config(**one)).key == run_of(train_helpers.config(**other)).key
