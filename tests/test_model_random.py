"""Random valid configurations: each has its closed-form size, learns, and uses all fields."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from model_cases import IMAGE_FIELDS, IMAGE_LEVELS, MODEL_GROUPS, build, tokens
from torch import Tensor

from ablate import sizes
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.model import trial
from ablate.model.transformer import beside

NUMBERS: dict[str, list[Any]] = {
    "n_layer": [1, 2, 3],
    "n_layer_encoder": [0, 1, 3],
    "d_model": [8, 12, 16],
    "d_mlp": [5, 24],
    "dropout": [0.0, 0.2],
    "n_head": [2, 4, 6],
    "n_kv_head": [1, 2, 3],
    "d_head": [2, 3, 4],
    "n_ctx": [3, 8, 17],
    "n_vocab": [7, 19],
    "norm_epsilon": [1e-12, 0.01],
    "rope_theta": [100.0, 1e4],
    "rope_share": [0.5, 1.0],
}
FIELDS = [
    name
    for name, row in CATALOGUE.items()
    # models of text have one embedding
    if row.group in MODEL_GROUPS and name not in {*IMAGE_FIELDS, "embedding"}
]
BOUNDED = settings(max_examples=40, deadline=None, derandomize=True)


def _values(field: str) -> SearchStrategy[Any]:
    values = CATALOGUE[field].names or NUMBERS[field]
    return st.sampled_from([value for value in values if value not in IMAGE_LEVELS])


@st.composite
def _configs(draw: DrawFn, **fixed: Any) -> RunConfig:
    fields = (
        {"objective": draw(_values("objective"))}
        | {field: draw(_values(field)) for field in FIELDS}
        | fixed
    )
    corrupts = CATALOGUE["objective"][fields["objective"]].corrupts
    if corrupts:
        fields["architecture"] = "encoder-decoder"
    elif CATALOGUE["architecture"][fields["architecture"]].encodes:
        fields["objective"] = "pairs"
    return _resolved(fields)


def _resolved(fields: dict[str, Any]) -> RunConfig:
    """The configuration, or another draw where the fields contradict each other."""
    try:
        return RunConfig(**(fields | {"batch_tokens": 2 * fields["n_ctx"], "precision": "float64"}))
    except AblateError:
        assume(False)
        raise


@BOUNDED
@given(_configs())
def test_each_builds_with_as_many_parameters_as_the_closed_form_says(config: RunConfig) -> None:
    model = build(config)
    assert sizes.count(config).params == sum(parameter.numel() for parameter in model.parameters())
    logits = trial.logits_of(model, tokens(config))
    assert logits.shape == (1, 2, config.n_ctx, config.n_vocab) and logits.isfinite().all()


def _seen(config: RunConfig) -> tuple[dict[str, torch.Size], Tensor]:
    """What can be observed of a model: the shapes of its parameters, and its logits in training."""
    # without residuals, scores of weights of 0.02 change less than the last digit of the logits
    sharpen = 30 if config.init == "normal-0.02" else 1
    model, read = build(config, sharpen=sharpen), tokens(config)
    starts = None
    if config.document_mask != "none":  # two documents a window
        half = config.n_ctx // 2
        starts = (torch.arange(config.n_ctx) >= half).long().mul(half).expand(read.shape)
    with torch.no_grad():
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        return shapes, model(read, *beside(config, read, starts))


@settings(BOUNDED, max_examples=120)
@given(_configs(), st.data())
def test_every_field_changes_something_observable(config: RunConfig, data: st.DataObject) -> None:
    varied = [name for name in FIELDS if len(CATALOGUE[name].names) != 1]
    field = data.draw(st.sampled_from(["seed", *varied]))
    value = data.draw(
        st.just(1)
        if field == "seed"
        else _values(field).filter(lambda value: value != getattr(config, field))
    )
    changed = _resolved(config.model_dump() | {field: value})
    assume(changed != config)  # where the field has no meaning, it is set back
    (shapes, logits), (other_shapes, other_logits) = _seen(config), _seen(changed)
    assert shapes != other_shapes or not torch.equal(logits, other_logits), (field, value)


@pytest.mark.parametrize("number", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_the_loss_falls_within_30_steps(number: int) -> None:
    @settings(BOUNDED, max_examples=number)
    @given(_configs(d_model=16, n_ctx=17, n_vocab=19))
    def falls(config: RunConfig) -> None:
        # without skip connections and norms, signals of matrices of std 0.02 vanish
        assume(config.topology != "no-skip" or config.norm != "none")
        assert not trial.learns(config)

    falls()
