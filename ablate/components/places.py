"""Heads and blocks of a model: where they are, and how study files, tables and figures name them.

A model with one stack has blocks 0, 1, … and heads 0.0, 0.1, …: block and head. With an encoder,
blocks are encoder.0 and decoder.0, and heads encoder.0.1 and decoder.0.1, of self-attention, and
cross.0.1, of the decoder's attention to the encoder.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from ablate.components.base import Config

CROSS = "cross"


@dataclass(frozen=True)
class Part:
    """A head, or a block.

    Attributes:
        stack: "encoder" or "decoder"; a model with one stack is a decoder if it is causal.
        layer: Number of its block, from 0.
        attention: "self", or "cross" for the attention of a decoder to an encoder; None for the
            whole block.
        head: Number of the head, from 0; None for the whole block.
    """

    stack: str
    layer: int
    attention: str | None = None
    head: int | None = None


def stacks(config: Config) -> dict[str, int]:
    """Return the stacks of a run of blocks → how many blocks each has, in the model's order."""
    if config.part("architecture").encodes:
        return {"encoder": config.n_layer_encoder, "decoder": config.n_layer}
    return {"decoder" if config.part("attention").causal else "encoder": config.n_layer}


def attentions(config: Config) -> list[Part]:
    """Return the attentions of a run of blocks, in the model's order, as parts without a head."""
    architecture = config.part("architecture")
    found: list[Part] = []
    for stack, n in stacks(config).items():
        of_encoder = architecture.encodes and stack == "encoder"
        mixer = (architecture.encoder(config) if of_encoder else config).part("mixer")
        crosses = architecture.encodes and architecture.crosses and not of_encoder
        kinds = ["self"] * mixer.attends + [CROSS] * crosses
        found += [Part(stack, layer, kind) for layer in range(n) for kind in kinds]
    return found


def heads(config: Config) -> list[Part]:
    """Return the heads of a run of blocks, in the model's order."""
    return [replace(one, head=head) for one in attentions(config) for head in range(config.n_head)]


def has_several(places: Collection[tuple[str, str | None]]) -> bool:
    """Return whether parts need the name of their stack: whether the model has an encoder, too.

    Args:
        places: Stack and attention of each part that is named together with others.
    """
    return len({stack for stack, _ in places}) > 1 or CROSS in {kind for _, kind in places}


def named(part: Part, several: bool) -> str:
    """Return the name of a part, as a study file writes it.

    Args:
        part: The part.
        several: Whether the model has an encoder and a decoder.
    """
    stack = CROSS if part.attention == CROSS else part.stack
    numbers = [part.layer] if part.head is None else [part.layer, part.head]
    return ".".join(map(str, [stack, *numbers] if several else numbers))
