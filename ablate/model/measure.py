"""Sizes of a model's parts, counted from its real modules, which have no data."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from ablate import outside
from ablate.components import Counts
from ablate.components.base import Parts
from ablate.config import RunConfig
from ablate.model.transformer import Transformer, beside, model_of

LARGEST = 1 << 26  # parameters of a model that is tried on the CPU


P = ParamSpec("P")
R = TypeVar("R")


def apart(function: Callable[P, R]) -> Callable[P, R]:
    """Keep what a part of the user's own prints out of what a plan prints."""

    @functools.wraps(function)
    def quiet(*given: P.args, **named: P.kwargs) -> R:
        with contextlib.redirect_stdout(io.StringIO()):
            return function(*given, **named)

    return quiet


@apart
def parts(config: RunConfig) -> Parts:
    """Count parameters, FLOPs and activation bytes of one block, and of all else.

    All of a model without blocks is counted as one.
    """
    if not config.part("architecture").of_blocks:
        all_ = _count(config)
        whole = Counts(all_.params, all_.flops, bytes=all_.bytes)
        return Parts(Counts(), Counts(), whole, all_.counted, divided=False)
    one, two = (_count(config.model_copy(update={"n_layer": n})) for n in (1, 2))
    block = Counts(two.params - one.params, two.flops - one.flops, bytes=two.bytes - one.bytes)
    rest = Counts(one.params - one.body, one.flops - block.flops, bytes=one.bytes - block.bytes)
    return Parts(block, Counts(one.body - block.params), rest, one.counted and two.counted)


@apart
def params(config: RunConfig, n_layer: int) -> int:
    """Return the parameters of a model with this number of blocks, as `parts` counts them."""
    with outside.afresh():
        if not config.part("architecture").of_blocks:
            return _built(config).n_params
        one, two = (_built(config.model_copy(update={"n_layer": n})).n_params for n in (1, 2))
    return one + (n_layer - 1) * (two - one)


def _logits(model: Transformer, tokens: Tensor) -> Tensor:
    """Return the logits of a run whose attention stays within documents if it is to.

    What a part compiles itself runs uncompiled: compiled, it needs data, and hides its operations.
    """
    config = model.config
    starts = torch.zeros_like(tokens) if config.part("document_mask").within else None
    compiles = "torch._dynamo" in sys.modules  # whose import takes long
    with torch.compiler.set_stance("force_eager") if compiles else contextlib.nullcontext():
        logits: Tensor = model(tokens, *beside(config, tokens, starts))
    return logits


def _n_body(model: Transformer) -> int:
    """Return those of the blocks, the final norm and a position encoding that is part of them."""
    modules = ["blocks.", "final_norm.", "encoder.blocks.", "encoder.final_norm."]
    if model.config.part("position").in_body:
        modules += ["position.", "encoder.position."]
    return sum(
        parameter[0].numel()
        for name, parameter in model.named_parameters()
        if name.startswith(tuple(modules))
    )


class _Count(NamedTuple):
    """Sizes of one member; FLOPs and bytes are per token."""

    params: int
    body: int
    flops: int = 0
    bytes: int = 0
    counted: bool = False  # whether these are known


class _Foreign(TorchDispatchMode):
    """Notes whether operations are called that torch's counter of FLOPs does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.found |= func.namespace not in ("aten", "prims", "prim")
        return func(*args, **(kwargs or {}))


def _count(config: RunConfig) -> _Count:
    """Count a model of one member and one sequence of n_ctx tokens.

    Operations of plain modules may lack a version without data: they are then counted with data,
    on the CPU, if the model is small. Tensors that they keep would be of no use on another device.
    """
    with outside.afresh():
        model = _built(config)
        sizes = model.n_params, _n_body(model)
    if all(one.plain is None for one in config.parts):
        return _Count(*sizes, _flops(model, "meta") or 0, _kept_per_token(config), True)
    for device in ("meta", *(["cpu"] if model.n_params <= LARGEST else [])):
        with contextlib.suppress(Exception):
            with outside.afresh():
                flops = _flops(_built(config, device), device)
            if flops is not None:
                with outside.afresh():
                    return _Count(*sizes, flops, _kept_per_token(config), True)
    return _Count(*sizes)


def _built(config: RunConfig, device: str = "meta") -> Transformer:
    """Return a model without data, or with random weights."""
    try:
        with torch.device("meta"):
            model: Transformer = model_of(config)
    except Exception:
        if all(one.plain is None for one in config.parts):
            raise
        model = model_of(config)  # a constructor that needs data
    if device == "meta":
        return model.to("meta")
    model = model_of(config)
    model.initialise([0])
    return model


def _flops(model: Transformer, device: str) -> int | None:
    """Return the FLOPs a token of a forward pass; None where not all operations are known."""
    config, foreign = model.config, _Foreign()
    with torch.device(device):
        tokens = torch.zeros(1, 1, config.n_ctx, dtype=torch.int64)
        counter = FlopCounterMode(display=False)
        with sdpa_kernel(SDPBackend.MATH), counter, foreign:
            _logits(model, tokens)
    return None if foreign.found else counter.get_total_flops() // config.n_ctx


def _kept_per_token(config: RunConfig) -> int:
    """Return the bytes that autograd saves of a forward pass and its loss, and of the logits.

    A CPU without data takes the same fused attention as a GPU, which keeps no scores.
    """
    precision = config.part("precision")
    with FakeTensorMode():
        model = model_of(config.model_copy(update={"precision": "float32"}))
        one, two = (_kept(model, sequences, precision.casts) for sequences in (1, 2))
    more = two - one  # without what sequences share
    return int(more * precision.stream // 4) // config.n_ctx


def _kept(model: Transformer, sequences: int, casts: bool) -> int:
    """Return these bytes for a number of sequences, in float32 or where torch casts."""
    saved: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor
        return tensor

    tokens = torch.zeros(1, sequences, model.config.n_ctx, dtype=torch.int64)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=casts):
            logits = _logits(model, tokens)
        F.cross_entropy(logits.flatten(0, 2), tokens.flatten())
    for parameter in model.parameters():
        saved.pop(parameter.untyped_storage()._cdata, None)
    activations = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    return activations + 2 * logits.untyped_storage().nbytes()
