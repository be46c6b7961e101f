"""Parameters, FLOPs and memory of a configuration: the sum of what its components answer; no torch.

Letters: C = d_model, H query heads, G key and value heads, D = d_head, T = n_ctx, V = n_vocab.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

from ablate.components import CATALOGUE, Component, Counts, linear
from ablate.components.base import Parts
from ablate.components.catalogue import OF_MODELS
from ablate.components.finetuning import choices
from ablate.config import LOADED_FIELDS, RunConfig


@dataclass(frozen=True)
class Sizes:
    """How large a model of a configuration is, for one member of a pack; None is "unknown".

    Attributes:
        params: All parameters.
        body: Parameters of the blocks, their position bias and the final norm: without embeddings,
            those of positions among them, and head.
        flops_per_token: Matrix products of a forward pass over n_ctx tokens, per token; attention
            in full, whatever a mask hides of it.
        state_bytes: Weights, gradients and the two moments of Adam.
        activation_bytes_per_token: Kept for the backward pass, with logits and their gradient; an
            estimate.
        recomputed_bytes_per_token: The same where blocks are recomputed in the backward pass.
    """

    params: int
    body: int | None
    flops_per_token: int | None
    state_bytes: int
    activation_bytes_per_token: int | None
    recomputed_bytes_per_token: int | None


class _Unknown(Exception):
    """A component does not know its sizes."""


def count(config: RunConfig) -> Sizes:
    """Return the sizes of `config`. Parameters and FLOPs equal those of the real modules.

    Where a component does not know its sizes, the model is built once on torch's meta device and
    counted, which imports torch.
    """
    # runs that differ only in what is loaded are counted once
    loaded = config.free_of_shape(LOADED_FIELDS)
    defaults = {name: RunConfig.model_fields[name].default for name in loaded}
    return _count(config.model_copy(update=defaults))


def params(config: RunConfig) -> int:
    """Return the parameters that `count` returns, without measuring what else it does."""
    if not config.part("objective").images:
        try:
            _stated(config)
        except _Unknown:
            from ablate.model import measure  # as in `_measured`

            return measure.params(_shape(config), config.n_layer)
    return count(config).params


@functools.lru_cache(maxsize=1 << 14)
def _count(config: RunConfig) -> Sizes:
    parts = _parts(config)
    precision = config.part("precision")

    def kept(counts: Counts) -> int:
        numbers = precision.product * counts.products + precision.stream * counts.streams
        return int(numbers + counts.bytes)

    blocks = parts.block * config.n_layer
    body = blocks.params + parts.body.params
    total = body + parts.rest.params
    block, rest = kept(parts.block), kept(parts.body) + kept(parts.rest)
    casts = precision.product if precision.casts else 0  # weights are cast once a step
    flops = (blocks.flops + parts.body.flops + parts.rest.flops) // parts.tokens
    recomputed = config.n_layer * precision.stream * config.d_model + (block + rest) // parts.tokens
    activations = (config.n_layer * block + rest) // parts.tokens
    return Sizes(
        params=total,
        body=body if parts.divided else None,
        flops_per_token=flops if parts.counted else None,
        state_bytes=total * (4 * precision.stream + casts),
        activation_bytes_per_token=activations if parts.counted else None,
        recomputed_bytes_per_token=recomputed if parts.counted else None,
    )


@dataclass(frozen=True)
class FinetunedSizes:
    """How large a fine-tuned model is: all parameters, and those that are trained, if known."""

    params: int
    trained: int | None


def finetuned(config: Any) -> FinetunedSizes:
    """Return the sizes of a run with a level of `method`: its model with a linear classifier.

    The head of the pre-trained model is not trained: nothing of a task passes through it.
    """
    part, c = config.part, config.d_model
    method, size = part("method"), count(config)
    tokens = len(part("text_format").new(config)) * c
    outputs = config.n_class // choices(config)  # one for each choice
    new = method.added(config) + (c + 1) * outputs + tokens
    if not method.by_steps:
        return FinetunedSizes(size.params + tokens, None)
    try:
        trained = new if method.embeds else new - tokens
        if method.trains == "all" and encoder_alone(config):
            encoder = sum(_encoder(config), Counts()) + _ask(part("embedding"), config, c)
            trained += encoder.params
        elif method.trains == "all":
            trained += size.params - _head(config)
        elif method.trains == "norms":
            trained += _norms(config)
    except _Unknown:
        return FinetunedSizes(size.params + new, None)
    return FinetunedSizes(size.params + new, trained)


def encoder_alone(config: RunConfig) -> bool:
    """Return whether a classifier reads an encoder, and nothing of the decoder."""
    encodes: bool = config.part("architecture").encodes and config.part("corruption").reads
    return encodes


def _head(config: RunConfig) -> int:
    """Return the parameters of a model's head: none of its own where it is the embedding's."""
    factors = ("tie_embeddings", "mlm_head_transform")
    return sum(_ask(config.part(name), config, config.d_model).params for name in factors)


def _norms(config: RunConfig) -> int:
    """Return the parameters of the norms of blocks, and of the final one."""
    widths = _norm_widths(config) * config.n_layer
    widths += [config.d_model] * config.part("norm").final
    return sum(_ask(config.part("norm_kind"), config, width).params for width in widths)


def train_flops(config: RunConfig) -> int | None:
    """Return the FLOPs of a run: three forward passes a token, for a backward pass costs two.

    None if unknown.
    """
    per_token = count(config).flops_per_token
    return None if per_token is None else 3 * per_token * config.tokens


def head_flops_per_token(d_model: int, n_vocab: int, mlm_head_transform: str) -> int:
    """Return the FLOPs a token of the head's matrix products in a forward pass."""
    transform = CATALOGUE["mlm_head_transform"][mlm_head_transform]
    return 2 * d_model * n_vocab + int(transform.flops(d_model))


def memory_bytes(
    config: RunConfig, pack: int = 1, micro_batch: int = 0, recompute: bool = False
) -> int | None:
    """Return the estimated peak memory of a training step; None if unknown.

    Args:
        config: The runs of the pack.
        pack: Number of runs.
        micro_batch: Sequences of each run in memory at once, 0 for the whole batch.
        recompute: Whether blocks are recomputed in the backward pass.
    """
    sizes = count(config)
    per_token = sizes.recomputed_bytes_per_token if recompute else sizes.activation_bytes_per_token
    if per_token is None:
        return None
    at_once = micro_batch or batch(config)
    return pack * (sizes.state_bytes + at_once * config.n_ctx * per_token)


def batch(config: RunConfig) -> int:
    """Return the sequences of an optimiser step: windows of a text, or the texts of a task."""
    n: int = config.part("method").batch(config)
    return n


def score_bytes(config: RunConfig) -> int:
    """Return the part of one run's `memory_bytes` that is kept for the scores of every key."""
    numbers: int = config.part("score").numbers(config)
    tokens = batch(config) * config.n_ctx
    return config.n_layer * int(config.part("precision").product) * tokens * numbers


def _parts(config: RunConfig) -> Parts:
    """Return the sizes by part, as components state them or as they are measured."""
    if config.part("objective").images:
        return _of_images(config)
    try:
        return _stated(config)
    except _Unknown:
        return _measured(_shape(config))


def _ask(component: Component, config: RunConfig, width: int) -> Counts:
    answer = component.sizes(config, width)
    if answer is None:
        raise _Unknown(component)
    return answer


def _stated(config: RunConfig) -> Parts:
    """Add up what components state.

    What norms outside of blocks keep for the backward pass is part of the 5·C numbers of the head.
    """
    part, c = config.part, config.d_model
    block, body, rest = _block(config), *_around(config)
    if part("architecture").encodes:
        block += _cross(config) if part("architecture").crosses else Counts()
        blocks, own_body, own_rest = _encoder(config)
        body += Counts(blocks.params) + own_body
        rest += replace(blocks, params=0) + own_rest
    rest += _ask(part("document_mask"), config, c)
    rest += _ask(part("embedding"), config, c) + _ask(part("tie_embeddings"), config, c)
    rest += _ask(part("mlm_head_transform"), config, c)
    rest += Counts(flops=2 * c * config.n_vocab, streams=5 * c + 3 * config.n_vocab)
    return Parts(block, body, rest)


def _of_images(config: RunConfig) -> Parts:
    """Add up the sizes for one image: its patches, those that are shown, those that are decoded.

    A block that has a part without stated sizes is measured in a model of text.
    """
    part, c, objective = config.part, config.d_model, config.part("objective")
    n, before = config.n_ctx, part("class_token").tokens
    shown, predicted = objective.n_shown(config), objective.n_predicted(config)
    block = _block_of(config, shown + before)
    body, rest = _around(config)
    rest += _ask(part("embedding"), config, c).shared(n) + _ask(part("class_token"), config, c)
    rest += Counts(streams=shown * c if shown < n else 0)
    last = part("architecture").decoder(config)
    if last:
        width = last.d_model
        blocks = _block_of(last, n + before) * last.n_layer
        body += Counts(blocks.params)
        own_body, own_rest = _around(last)
        body, rest = body + own_body, rest + own_rest + replace(blocks, params=0)
        rest += linear(c, width, part("bias").present).shared(shown + before)
        rest += Counts(params=width, products=c * (shown + before), streams=2 * n * width)
    width = last.d_model if last else c
    head = Counts(flops=2 * width * config.n_vocab, streams=5 * width + 3 * config.n_vocab)
    rest += _ask(part("tie_embeddings"), config, width) + objective.sizes(config, width)
    return Parts(block, body, rest + head * predicted, tokens=n)


def _block_of(config: RunConfig, n: int) -> Counts:
    """Return the sizes of a block of a stack that reads n vectors of an image, for all of them."""
    stack = config.model_copy(update={"n_ctx": n})
    try:
        return _block(stack).shared(n)
    except _Unknown:
        return _measured(_shape(stack)).block.shared(n)


def _encoder(config: RunConfig) -> tuple[Counts, Counts, Counts]:
    """Return the sizes of an encoder: its blocks, and what it has once as `_around` does."""
    encoder = config.part("architecture").encoder(config)
    return _block(encoder) * config.n_layer_encoder, *_around(encoder)


def _block(config: RunConfig) -> Counts:
    """Return the sizes of a block of one stack: attention and MLP, norms, dropout."""
    part, c = config.part, config.d_model
    topology = part("topology")
    read = topology.mlp_inputs * c
    block = _ask(part("architecture"), config, c) + Counts(products=c) + _ask(topology, config, c)
    block += _ask(part("mixer"), config, c) + part("position").block_sizes(config)
    block += part("document_mask").block_sizes(config)
    block += _ask(part("mlp"), config, read) + _ask(part("outer_activation"), config, c)
    for width in _norm_widths(config):
        block += _ask(part("norm_kind"), config, width)
    return block + Counts(bytes=2 * c if config.dropout else 0)


def _norm_widths(config: RunConfig) -> list[int]:
    """Return the width of each norm of a block."""
    topology, placement, c = config.part("topology"), config.part("norm"), config.d_model
    widths = [c, topology.mlp_inputs * c] * placement.inputs + [c, c] * placement.outputs
    return widths + [c] * topology.joins * placement.joins


def _cross(config: RunConfig) -> Counts:
    """Return the sizes of what attends to an encoder in a decoder's block."""
    part, c = config.part, config.d_model
    placement = part("norm")
    across = config.model_copy(update={"attention": "full", "position": "none"})
    cross = _ask(CATALOGUE["mixer"]["attention"], across, c) + Counts(products=c)
    joins = part("topology").joins == 2
    for _ in range(placement.inputs + placement.outputs + joins * placement.joins):
        cross += _ask(part("norm_kind"), config, c)
    return cross + Counts(bytes=c if config.dropout else 0)


def _around(config: RunConfig) -> tuple[Counts, Counts]:
    """Return what a stack has once: the part of the body, and the rest."""
    part, c = config.part, config.d_model
    final = _ask(part("norm_kind"), config, c) if part("norm").final else Counts()
    body, rest = Counts(final.params, final.flops), Counts()
    encoding = _ask(part("position"), config, c)
    if part("position").in_body:
        body += encoding
    else:
        rest += encoding
    embed_norm = _ask(part("embed_norm"), config, c)
    return body, rest + Counts(embed_norm.params, embed_norm.flops)


@functools.lru_cache(maxsize=1 << 12)
def alone(config: RunConfig) -> str:
    """Return why runs of this shape train one at a time; "" if they train in packs.

    A model with parts of a user's own is tried once, by the trials that a run would fail by, and a
    pack of two against each by itself. Imports torch then.

    Raises:
        AblateError: One of its modules does not work, or sees what it is to predict.
    """
    shape, why = _shape(config), ""
    if any(one.origin for one in shape.parts):
        from ablate.model import trial  # as in `_measured`

        why = trial.alone(shape)
    solo = (one for one in config.parts if one.plain is not None and one.solo)
    return next((f"{one.factor} = {one.name!r} {one.solo}" for one in solo), why)


def _shape(config: RunConfig) -> RunConfig:
    """Return what decides the sizes of a model's parts, all else at its default.

    A transformer has two blocks. That of a model of images is one of text with the same blocks.
    """
    fields = config.model_dump(mode="json")
    named = {name for name in fields if CATALOGUE[name].group in OF_MODELS}
    kept = {name: fields[name] for name in named | {"objective", "precision"}}
    if config.part("objective").images:
        text = RunConfig(objective="masked")
        kept |= {name: getattr(text, name) for name in ("objective", "architecture", "embedding")}
    layers = {"n_layer": 2} if config.part("architecture").of_blocks else {}
    return RunConfig(**kept | layers | {"batch_tokens": config.n_ctx})


@functools.lru_cache(maxsize=1 << 12)
def _measured(config: RunConfig) -> Parts:
    """Return the sizes by part, counted from the real modules on torch's meta device."""
    from ablate.model import measure  # a later module: `tests/test_structure.py` allows it

    return measure.parts(config)
