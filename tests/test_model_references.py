"""Equality with public models by copied weights: logits to 1e-5, gradients of one backward.

`ablate.trained.architectures` turns our parameters into theirs by a linear function, which turns
our gradients into theirs too, and turns theirs into ours. Multiplied-up random weights, gains and
biases make attention far from uniform.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.nn.functional as F

from ablate.components.position import t5_buckets
from ablate.config import RunConfig
from ablate.model.transformer import model_of
from ablate.trained.architectures import ARCHITECTURES, Architecture, architecture_of

transformers = pytest.importorskip("transformers")

LAYERS, WIDTH, HEADS, HIDDEN, CONTEXT, VOCABULARY = 2, 32, 4, 48, 20, 50
# of each architecture, what is not the default; `init`: nothing is multiplied, as in the library
FIELDS: dict[str, dict[str, Any]] = {
    "GPT-2": {"position": "learned", "activation": "gelu-tanh", "tie_embeddings": "tied"},
    "BERT": {
        "norm": "post",
        "position": "learned",
        "embed_norm": "layernorm",
        "objective": "masked",
        "mlm_head_transform": "dense",
        "tie_embeddings": "tied",
    },
    "GPT-NeoX": {"topology": "parallel"},
    "Llama": {"norm_kind": "rmsnorm", "activation": "swiglu", "n_kv_head": 2, "bias": "none"},
    "T5": {
        "architecture": "encoder-decoder",
        "norm_kind": "rmsnorm",
        "bias": "none",
        "position": "t5",
        "activation": "relu",
        "attention_scale": "none",
        "d_head": 6,
        "n_ctx": 128,
    },
    "BART": {
        "architecture": "encoder-decoder",
        "norm": "post",
        "position": "learned",
        "embed_norm": "layernorm",
        "tie_embeddings": "tied",
    },
}
# the other levels that it has
CHANGED: dict[str, dict[str, Any]] = {
    "GPT-2": {"activation": "relu", "attention_scale": "none", "tie_embeddings": "untied"},
    "BERT": {"activation": "relu", "tie_embeddings": "untied", "norm_epsilon": 1e-2},
    "GPT-NeoX": {
        "topology": "serial",
        "activation": "gelu-tanh",
        "tie_embeddings": "tied",
        "rope_share": 0.25,
        "norm_epsilon": 1e-2,
    },
    "Llama": {
        "bias": "all",
        "d_head": 6,
        "tie_embeddings": "tied",
        "rope_theta": 100.0,
        "norm_epsilon": 1e-2,
    },
    "T5": {"activation": "gelu-tanh", "n_layer_encoder": 3, "n_ctx": 600, "norm_epsilon": 1e-2},
    "BART": {"activation": "relu", "n_layer_encoder": 1, "norm_epsilon": 1e-5},
}


def _config(**fields: Any) -> RunConfig:
    sizes = {
        "n_layer": LAYERS,
        "d_model": WIDTH,
        "n_head": HEADS,
        "d_mlp": HIDDEN,
        "n_ctx": CONTEXT,
        "n_vocab": VOCABULARY,
    }
    sizes |= fields
    return RunConfig(**sizes | {"batch_tokens": 2 * sizes["n_ctx"], "init": "normal-0.02"})


def _check(config: RunConfig, of: Architecture) -> None:
    """Randomise ours, turn it into theirs, compare outputs and gradients."""
    torch.manual_seed(0)
    ours, theirs = model_of(config), of.make(config)
    ours.initialise([0])
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            deviation = 0.1 if parameter.ndim == 2 else 0.25  # the first axis is that of the pack
            parameter.copy_(torch.randn(parameter.shape) * deviation + name.endswith("gain"))
    parameters = {name: parameter[0] for name, parameter in ours.named_parameters()}
    weights = of.weights(config, parameters, theirs)
    assert not theirs.load_state_dict(weights, strict=False).unexpected_keys
    given = torch.randint(1, VOCABULARY, (2, CONTEXT))
    if of.model == "T5EncoderModel":
        expected, found = theirs(input_ids=given).last_hidden_state, ours.features(given[None])[0]
    elif config.part("architecture").encodes:
        source = torch.randint(1, VOCABULARY, (2, CONTEXT - 7))
        expected = theirs(input_ids=source, decoder_input_ids=given, use_cache=False).logits
        found = ours(given[None], None, source[None])[0]
    else:
        expected, found = theirs(input_ids=given).logits, ours(given[None])[0]
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    targets = torch.randint(expected.shape[-1], (2 * CONTEXT,))
    for output in (found, expected):
        F.cross_entropy(output.flatten(0, 1), targets).backward()
    gradients = {name: parameter.grad[0] for name, parameter in ours.named_parameters()}
    turned = of.weights(config, gradients, theirs)
    for name in turned.keys() - of.zeros(config).keys():
        expected = theirs.get_parameter(name).grad
        torch.testing.assert_close(turned[name], expected, atol=1e-5, rtol=1e-4)
    shapes = {name: one.shape for name, one in parameters.items()}
    returned = of.parameters(config, shapes, theirs)
    assert returned.keys() == parameters.keys()
    for name, parameter in parameters.items():
        torch.testing.assert_close(returned[name], parameter)
    covered = {id(theirs.get_parameter(name)) for name in turned}
    assert covered == {id(one) for one in theirs.parameters() if one.grad is not None}


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("of", ARCHITECTURES, ids=lambda of: of.name)
def test_ours_computes_what_the_library_does(of: Architecture, changed: bool) -> None:
    config = _config(**FIELDS[of.name] | (CHANGED[of.name] if changed else {}))
    assert architecture_of(config) is of
    _check(config, of)


def test_t5s_encoder() -> None:
    config = _config(
        norm_kind="rmsnorm",
        bias="none",
        position="t5",
        attention="full",
        objective="masked",
        activation="relu",
        attention_scale="none",
        d_head=6,
        tie_embeddings="tied",  # a head that is not compared
    )
    buckets, distance = t5_buckets(config)
    t5 = Architecture(
        name="T5",
        kind="t5",
        model="T5EncoderModel",
        fields={},
        read=lambda theirs: {},
        settings=lambda config: {
            "d_model": WIDTH,
            "d_kv": 6,
            "d_ff": HIDDEN,
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "relative_attention_num_buckets": buckets,
            "relative_attention_max_distance": distance,
            "layer_norm_epsilon": 1e-5,
            "feed_forward_proj": "relu",
        },
        outside={
            "embedding": "shared",
            "final_norm": "encoder.final_layer_norm",
            "position.table": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        },
        blocks="encoder.block.{}",
        inside={
            "n1": "layer.0.layer_norm",
            "attention.query": "layer.0.SelfAttention.q",
            "attention.key": "layer.0.SelfAttention.k",
            "attention.value": "layer.0.SelfAttention.v",
            "attention.output": "layer.0.SelfAttention.o",
            "n2": "layer.1.layer_norm",
            "mlp.hidden": "layer.1.DenseReluDense.wi",
            "mlp.output": "layer.1.DenseReluDense.wo",
        },
    )
    _check(config, t5)


@pytest.mark.parametrize("causal", [True, False])
def test_t5_buckets_are_transformers_for_any_distance(causal: bool) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    from ablate.model.position import T5Bias

    for n_ctx in (16, 64, 512, 4096):
        config = RunConfig(
            objective="masked",
            attention="causal" if causal else "full",
            n_ctx=n_ctx,
            batch_tokens=n_ctx,
        )
        ours, reach = T5Bias(config, 1, config.d_model), torch.arange(-3 * n_ctx, 3 * n_ctx)
        theirs = T5Attention._relative_position_bucket(
            reach, not causal, ours.buckets, ours.maximum
        )
        assert torch.equal(ours.bucket(reach), theirs)
