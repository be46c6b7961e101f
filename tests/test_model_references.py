"""Equality with public models by copied weights: logits to 1e-5, gradients of one backward.

A map gives, for each of our parameters, theirs and the linear function that turns theirs into ours;
the same function turns their gradient into ours. Multiplied-up random weights, gains and biases
make attention far from uniform.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.components.position import t5_buckets
from ablate.config import RunConfig
from ablate.model.transformer import Transformer

transformers = pytest.importorskip("transformers")

# our parameter → (their parameter, theirs → ours)
Map = dict[str, tuple[str, Callable[[Tensor], Tensor]]]
LAYERS, WIDTH, HEADS, HIDDEN, CONTEXT, VOCABULARY = 2, 32, 4, 48, 20, 50
D_HEAD = WIDTH // HEADS
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
    "max_position_embeddings": CONTEXT,
}


def _same(weight: Tensor) -> Tensor:
    return weight


def _config(**fields: Any) -> RunConfig:
    sizes = {
        "n_layer": LAYERS,
        "d_model": WIDTH,
        "n_head": HEADS,
        "d_mlp": HIDDEN,
        "n_ctx": CONTEXT,
        "n_vocab": VOCABULARY,
    }
    return RunConfig(**sizes, batch_tokens=2 * CONTEXT, init="normal-0.02", **fields)


def _map(outside: dict[str, str], inside: dict[str, str], blocks: str) -> Map:
    """Names to names without endings: `inside` once a block, {} in `blocks` its number."""
    names = dict(outside)
    for i in range(LAYERS):
        names |= {
            f"blocks.{i}.{ours}": blocks.format(i) + theirs for ours, theirs in inside.items()
        }
    endings = {"weight": "weight", "gain": "weight", "bias": "bias"}
    return {
        f"{ours}.{a}": (f"{theirs}.{b}", _same)
        for ours, theirs in names.items()
        for a, b in endings.items()
    }


def _split(mapping: Map, joint: str, part: Callable[[int], Callable[[Tensor], Tensor]]) -> None:
    """Add query, key and value, parts of one map of theirs."""
    for i in range(LAYERS):
        for index, name in enumerate(("query", "key", "value")):
            for end in ("weight", "bias"):
                ours = f"blocks.{i}.attention.{name}.{end}"
                mapping[ours] = (f"{joint.format(i)}.{end}", part(index))


def _check(
    config: RunConfig,
    theirs: nn.Module,
    mapping: Map,
    prepare: Callable[[Transformer], None] = lambda ours: None,
) -> None:
    """Randomise theirs, copy it into ours by the map, compare outputs and gradients."""
    torch.manual_seed(0)
    theirs.eval()
    named = dict(theirs.named_parameters())
    with torch.no_grad():
        for name, parameter in named.items():
            gain = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(
                torch.randn(parameter.shape) * (0.1 if parameter.ndim == 1 else 0.25) + gain
            )
    ours = Transformer(config)
    ours.initialise([0])
    pairs = {name: mapping[name] for name, _ in ours.named_parameters()}
    with torch.no_grad():
        for name, (their, turn) in pairs.items():
            ours.get_parameter(name).copy_(turn(named[their])[None])
    prepare(ours)
    given = torch.randint(1, VOCABULARY, (2, CONTEXT))  # 0 is padding in some, and gets no gradient
    if isinstance(theirs, transformers.T5EncoderModel):
        expected, found = theirs(input_ids=given).last_hidden_state, ours.features(given[None])[0]
    else:
        expected, found = theirs(input_ids=given).logits, ours(given[None])[0]
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    targets = torch.randint(expected.shape[-1], (2 * CONTEXT,))
    for output in (found, expected):
        F.cross_entropy(output.flatten(0, 1), targets).backward()
    for name, (their, turn) in pairs.items():
        torch.testing.assert_close(
            ours.get_parameter(name).grad[0], turn(named[their].grad), atol=1e-5, rtol=1e-4
        )


def _third(index: int) -> Callable[[Tensor], Tensor]:
    """Query, key or value of GPT-2's joint map, which is stored with inputs first."""
    return lambda joint: (
        joint.T[index * WIDTH : (index + 1) * WIDTH]
        if joint.ndim == 2
        else joint[index * WIDTH :][:WIDTH]
    )


def test_gpt2() -> None:
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=CONTEXT,
            n_embd=WIDTH,
            n_layer=LAYERS,
            n_head=HEADS,
            n_inner=HIDDEN,
        )
    )
    mapping = _map(
        {
            "embedding": "transformer.wte",
            "position.table": "transformer.wpe",
            "final_norm": "transformer.ln_f",
        },
        {
            "n1": "ln_1",
            "n2": "ln_2",
            "attention.output": "attn.c_proj",
            "mlp.hidden": "mlp.c_fc",
            "mlp.output": "mlp.c_proj",
        },
        "transformer.h.{}.",
    )
    for name, (their, _) in mapping.items():
        if their.endswith(("c_proj.weight", "c_fc.weight")):
            mapping[name] = (their, lambda weight: weight.T)
    _split(mapping, "transformer.h.{}.attn.c_attn", _third)
    _check(
        _config(position="learned", activation="gelu-tanh", tie_embeddings="tied"), theirs, mapping
    )


def test_bert_with_its_mlm_head() -> None:
    theirs = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, layer_norm_eps=1e-5))
    mapping = _map(
        {
            "embedding": "bert.embeddings.word_embeddings",
            "position.table": "bert.embeddings.position_embeddings",
            "embed_norm": "bert.embeddings.LayerNorm",
            "transform.dense": "cls.predictions.transform.dense",
            "transform.norm": "cls.predictions.transform.LayerNorm",
            "unembedding": "cls.predictions",
        },
        {
            "attention.query": "attention.self.query",
            "attention.key": "attention.self.key",
            "attention.value": "attention.self.value",
            "attention.output": "attention.output.dense",
            "p1": "attention.output.LayerNorm",
            "mlp.hidden": "intermediate.dense",
            "mlp.output": "output.dense",
            "p2": "output.LayerNorm",
        },
        "bert.encoder.layer.{}.",
    )

    def fold_segment(ours: Transformer) -> None:
        with torch.no_grad():
            ours.position.table.weight += theirs.bert.embeddings.token_type_embeddings.weight[0]

    config = _config(
        norm="post",
        position="learned",
        embed_norm="layernorm",
        objective="masked",
        mlm_head_transform="dense",
        tie_embeddings="tied",
    )
    _check(config, theirs, mapping, fold_segment)


def _neox_part(index: int) -> Callable[[Tensor], Tensor]:
    """Query, key or value of GPT-NeoX's joint map, which is stored head by head."""
    return lambda joint: joint.unflatten(0, (HEADS, 3, D_HEAD))[:, index].flatten(0, 1)


def test_gpt_neox() -> None:
    theirs = transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            **SIZES,
            rotary_pct=1.0,
            rope_parameters={
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 1.0,
            },
            use_parallel_residual=True,
        )
    )
    # its name since and before transformers 5
    head = "lm_head" if hasattr(theirs, "lm_head") else "embed_out"
    mapping = _map(
        {
            "embedding": "gpt_neox.embed_in",
            "final_norm": "gpt_neox.final_layer_norm",
            "unembedding": head,
        },
        {
            "n1": "input_layernorm",
            "n2": "post_attention_layernorm",
            "attention.output": "attention.dense",
            "mlp.hidden": "mlp.dense_h_to_4h",
            "mlp.output": "mlp.dense_4h_to_h",
        },
        "gpt_neox.layers.{}.",
    )
    _split(mapping, "gpt_neox.layers.{}.attention.query_key_value", _neox_part)
    _check(_config(topology="parallel", position="rotary"), theirs, mapping)


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
    theirs = transformers.T5EncoderModel(
        transformers.T5Config(
            vocab_size=VOCABULARY,
            d_model=WIDTH,
            d_kv=6,
            d_ff=HIDDEN,
            num_layers=LAYERS,
            num_heads=HEADS,
            relative_attention_num_buckets=buckets,
            relative_attention_max_distance=distance,
            layer_norm_epsilon=1e-5,
            feed_forward_proj="relu",
        )
    )
    mapping = _map(
        {
            "embedding": "shared",
            "final_norm": "encoder.final_layer_norm",
            "position.table": "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
        },
        {
            "n1": "layer.0.layer_norm",
            "attention.query": "layer.0.SelfAttention.q",
            "attention.key": "layer.0.SelfAttention.k",
            "attention.value": "layer.0.SelfAttention.v",
            "attention.output": "layer.0.SelfAttention.o",
            "n2": "layer.1.layer_norm",
            "mlp.hidden": "layer.1.DenseReluDense.wi",
            "mlp.output": "layer.1.DenseReluDense.wo",
        },
        "encoder.block.{}.",
    )
    _check(config, theirs, mapping)


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


def test_llama() -> None:
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **SIZES, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False
        )
    )
    mapping = _map(
        {"embedding": "model.embed_tokens", "final_norm": "model.norm", "unembedding": "lm_head"},
        {
            "n1": "input_layernorm",
            "attention.query": "self_attn.q_proj",
            "attention.key": "self_attn.k_proj",
            "attention.value": "self_attn.v_proj",
            "attention.output": "self_attn.o_proj",
            "n2": "post_attention_layernorm",
            "mlp.gate": "mlp.gate_proj",
            "mlp.hidden": "mlp.up_proj",
            "mlp.output": "mlp.down_proj",
        },
        "model.layers.{}.",
    )
    _check(
        _config(
            norm_kind="rmsnorm", activation="swiglu", position="rotary", n_kv_head=2, bias="none"
        ),
        theirs,
        mapping,
    )
