"""Sizes of a model's parts, counted from its real modules, which have no data."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ablate.components import Counts
from ablate.config import RunConfig
from ablate.model.transformer import Transformer
from ablate.sizes import Parts


def parts(config: RunConfig) -> Parts:
    """Count parameters, FLOPs and activation bytes of one block, and of all else."""
    one, two = (_count(config.model_copy(update={"n_layer": n})) for n in (1, 2))
    block = Counts(two.params - one.params, two.flops - one.flops, bytes=two.bytes - one.bytes)
    rest = Counts(one.params - one.body, one.flops - block.flops, bytes=one.bytes - block.bytes)
    return Parts(block, Counts(one.body - block.params), rest)


def _starts(config: RunConfig, tokens: Tensor) -> Tensor | None:
    """Return starts of documents for a run whose attention stays within them."""
    return torch.zeros_like(tokens) if config.part("document_mask").within else None


def _n_body(model: Transformer) -> int:
    """Return those of the blocks, the final norm and a position encoding that is part of them."""
    modules = ["blocks.", "final_norm."]
    modules += ["position."] * model.config.part("position").in_body
    return sum(
        parameter[0].numel()
        for name, parameter in model.named_parameters()
        if name.startswith(tuple(modules))
    )


class _Count(NamedTuple):
    """Sizes of one member; FLOPs and bytes are per token."""

    params: int
    body: int
    flops: int
    bytes: int


def _count(config: RunConfig) -> _Count:
    """Count a model of one member and one sequence of n_ctx tokens."""
    with torch.device("meta"):
        model, tokens = Transformer(config), torch.zeros(1, 1, config.n_ctx, dtype=torch.int64)
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            model(tokens, _starts(config, tokens))
    flops = counter.get_total_flops() // config.n_ctx
    kept = (_kept(config, 2) - _kept(config, 1)) // config.n_ctx  # without what sequences share
    return _Count(model.n_params, _n_body(model), flops, kept)


def _kept(config: RunConfig, sequences: int) -> int:
    """Return the bytes that autograd saves of a forward pass and its loss, and of the logits.

    A CPU without data takes the same fused attention as a GPU, which keeps no scores.
    """
    precision = config.part("precision")
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with FakeTensorMode(), torch.device("cpu"):
        model = Transformer(config.model_copy(update={"precision": "float32"}))
        tokens = torch.zeros(1, sequences, config.n_ctx, dtype=torch.int64)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision.casts):
                logits = model(tokens, _starts(config, tokens))
            F.cross_entropy(logits.flatten(0, 2), tokens.flatten())
    for parameter in model.parameters():
        saved.pop(parameter.untyped_storage()._cdata, None)
    activations = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    activations += 2 * logits.untyped_storage().nbytes()
    return int(activations * precision.stream // 4)
