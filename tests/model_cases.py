"""Small models for the tests of `ablate.model` and `ablate.sizes`, and changes of each factor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ablate.components import CATALOGUE
from ablate.components.catalogue import IMAGES
from ablate.config import RunConfig
from ablate.model import trial
from ablate.model.transformer import Transformer
from ablate.model.trial import tokens as tokens

MODEL_GROUPS = ("block", "attention", "position", "embedding")
# levels and fields of models that read images: tests/test_images.py
IMAGE_LEVELS = (*IMAGES, "patches", "classify", "mae")
IMAGE_FIELDS = {
    name
    for name, row in CATALOGUE.items()
    for needed in row.needs.values()
    if set(needed) <= set(IMAGE_LEVELS)
}
SMALL = {"n_layer": 2, "d_model": 16, "n_head": 4, "n_ctx": 12, "batch_tokens": 24, "n_vocab": 11}
# a value other than SMALL's or the default for each model factor without levels
NUMBERS: dict[str, list[Any]] = {
    "n_layer": [3],
    "n_layer_encoder": [3],
    "d_model": [24],
    "d_mlp": [20],
    "dropout": [0.25],
    "n_head": [2],
    "n_kv_head": [1, 2],
    "d_head": [6],
    "n_ctx": [6],
    "n_vocab": [13],
    "norm_epsilon": [0.01],
    "rope_theta": [100.0],
    "rope_share": [0.5],
}
BESIDE: dict[str, dict[str, Any]] = {  # what a level needs to have a meaning
    "mlm_head_transform": {"objective": "masked"},
    "score": {"position": "t5"},
    "attention": {"objective": "masked"},
    "encoder_attention": {"architecture": "encoder-decoder"},
    "n_layer_encoder": {"architecture": "encoder-decoder"},
    "rnn_cell": {"mixer": "rnn"},
}


def small(**fields: Any) -> RunConfig:
    """A tiny configuration with `fields` changed."""
    return RunConfig(**(SMALL | {"batch_tokens": 2 * fields.get("n_ctx", SMALL["n_ctx"])} | fields))


def one_factor() -> Iterator[tuple[str, Any, RunConfig, RunConfig]]:
    """(factor, value, baseline, changed) for every level or value of every factor of a model."""
    for name, row in CATALOGUE.items():
        if row.group in MODEL_GROUPS and name not in IMAGE_FIELDS:
            other_fields = BESIDE.get(name, {})
            for value in [one for one in row.names or NUMBERS[name] if one not in IMAGE_LEVELS]:
                yield name, value, small(**other_fields), small(**other_fields, **{name: value})


ONE_FACTOR = list(one_factor())
ONE_FACTOR_IDS = [f"{name}={value}" for name, value, _, _ in ONE_FACTOR]


def build(config: RunConfig, *seeds: int, sharpen: float = 1.0) -> Transformer:
    """A model initialised with `seeds` (default: the configuration's), queries and keys multiplied
    by `sharpen`.
    """
    model = trial.built(config, *seeds)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".query." in name or ".key." in name or name.endswith(".vector"):
                parameter *= sharpen
    return model
