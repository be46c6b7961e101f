"""Closed forms equal what the real modules have and do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from model_cases import ONE_FACTOR, ONE_FACTOR_IDS, build, small, tokens
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ablate import sizes
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.model import measure

TOPOLOGY_AND_NORM = [
    small(topology=t, norm=n) for t in CATALOGUE["topology"].names for n in CATALOGUE["norm"].names
]
BERT = small(
    objective="masked",
    mlm_head_transform="dense",
    tie_embeddings="tied",
    embed_norm="layernorm",
    position="learned",
)
CASES = [
    *zip(ONE_FACTOR_IDS, (changed for _, _, _, changed in ONE_FACTOR), strict=True),
    *((f"{config.topology}, {config.norm}", config) for config in TOPOLOGY_AND_NORM),
    *(
        (f"rmsnorm, no bias, {norm}", small(norm=norm, norm_kind="rmsnorm", bias="none"))
        for norm in ("post", "peri")
    ),
    (
        "grouped swiglu concat",
        small(n_kv_head=2, d_head=6, qkv="mlp", activation="swiglu", topology="concat"),
    ),
    ("bert", BERT),
    ("t5, full", small(position="t5", objective="masked", head_combine="sum", score="additive")),
]


@pytest.mark.parametrize("config", [config for _, config in CASES], ids=[name for name, _ in CASES])
def test_parameters_and_flops_equal_the_modules(config: RunConfig) -> None:
    model, given = build(config), tokens(config)
    body = sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if name.removeprefix("encoder.").startswith(("blocks.", "final_norm."))
        or (
            config.part("position").in_body
            and name.removeprefix("encoder.").startswith("position.")
        )
    )
    # without data no layer is fused, whose products the counter does not know
    model, given = model.to("meta"), given.to("meta")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(given, *_read(config, given))
    counted = sizes.count(config)
    assert counted.params == sum(parameter.numel() for parameter in model.parameters())
    assert counted.body == body
    assert counted.flops_per_token * given.numel() == counter.get_total_flops()


def test_by_hand() -> None:
    config = RunConfig(
        n_layer=1, d_model=8, n_head=2, n_ctx=4, batch_tokens=8, steps=10, n_vocab=10
    )
    norms = 3 * 16  # before attention, before the MLP, final
    assert sizes.count(config).body == 4 * (64 + 8) + (8 * 32 + 32) + (32 * 8 + 8) + norms
    assert sizes.count(config).params == sizes.count(config).body + 2 * 80
    per_token = 2 * (4 * 64 + 2 * 8 * 32) + 2 * 2 * 4 * 8 + 2 * 80
    assert sizes.count(config).flops_per_token == per_token
    assert sizes.train_flops(config) == 3 * per_token * 80


def _kept(config: RunConfig) -> int:
    """Return the bytes that autograd keeps from a forward pass and its loss, with the logits."""
    model, given = build(config), tokens(config)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bfloat16"):
            logits = model(given, *_read(config, given))
        loss = F.cross_entropy(logits.flatten(0, 2), given.flatten())
    assert loss.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values()) + 2 * logits.nbytes


def _read(config: RunConfig, given: Tensor) -> tuple[Tensor | None, ...]:
    zeros = torch.zeros_like(given)
    starts = zeros if config.document_mask == "attention" else None
    return (starts, given, zeros) if config.part("architecture").encodes else (starts,)


MEMORY: list[dict[str, Any]] = [
    {},
    {"norm": "peri", "qk_norm": "rmsnorm"},
    {"norm": "post", "topology": "concat"},
    {"norm": "none", "topology": "parallel"},
    {"activation": "swiglu", "n_kv_head": 1},
    {"activation": "relu", "qkv": "mlp", "dropout": 0.1},
    {"position": "t5"},
    {"score": "additive", "position": "none"},
    {"objective": "masked", "mlm_head_transform": "dense", "n_vocab": 2000},
    *(
        {"document_mask": "attention", "position": position}
        for position in CATALOGUE["position"].names
    ),
    {"document_mask": "attention", "score": "additive", "position": "alibi"},
]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("fields", MEMORY, ids=str)
def test_activation_memory_is_within_a_tenth(
    fields: dict[str, Any], precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "_flops", lambda model, device: 0)  # another test counts them
    config = RunConfig(
        **({"n_layer": 3, "d_model": 64, "n_ctx": 64, "batch_tokens": 512} | fields),
        precision=precision,
    )
    counted = sizes.count(config)
    # weights in bfloat16, kept for the backward pass
    cast = 2 * counted.params if precision == "bfloat16" else 0
    estimate = config.batch_tokens * counted.activation_bytes_per_token + cast
    kept = _kept(config)
    assert 0.9 < estimate / kept < 1.1
    parts = sizes._measured(sizes._shape(config))  # as where a component does not state its sizes
    measured = config.n_layer * parts.block.bytes + parts.body.bytes + parts.rest.bytes
    assert 0.9 < (config.batch_tokens * measured + cast) / kept < 1.1


def test_memory_is_states_and_activations_of_every_member() -> None:
    config = RunConfig(n_vocab=256, batch_tokens=512)
    counted = sizes.count(config)
    assert counted.state_bytes == 16 * counted.params
    assert (
        sizes.count(config.model_copy(update={"precision": "float64"})).state_bytes
        == 32 * counted.params
    )
    expected = 3 * (counted.state_bytes + 512 * counted.activation_bytes_per_token)
    assert sizes.memory_bytes(config, pack=3) == expected


def test_less_is_in_memory_at_once_of_a_micro_batch_and_of_blocks_computed_again() -> None:
    config = RunConfig(n_layer=6, n_ctx=64, batch_tokens=512)
    one, two = (
        sizes.count(config.model_copy(update={"n_layer": n})).activation_bytes_per_token
        for n in (1, 2)
    )
    counted = sizes.count(config)
    assert (
        counted.recomputed_bytes_per_token == one + 6 * 4 * config.d_model < one + 6 * (two - one)
    )
    expected = counted.state_bytes + 2 * 64 * counted.recomputed_bytes_per_token
    assert sizes.memory_bytes(config, micro_batch=2, recompute=True) == expected
