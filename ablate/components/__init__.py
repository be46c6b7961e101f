"""Components: one class for each level of each factor, and the catalogue that they register in.

A component says, without torch, what a level needs, which defaults it implies and how large it is,
and how its torch module is built. `ablate.config` checks a run by asking its components,
`ablate.sizes` adds up what they answer, and `ablate.model` builds what they name; none of them
knows a level by its name.
"""

from ablate.components import (
    attention,
    block,
    embedding,
    finetuning,
    mlp,
    norm,
    objective,
    position,
    starting,
    text_format,
    tokenizer,
    training,
)
from ablate.components.base import Component, Counts, Field, linear
from ablate.components.catalogue import CATALOGUE, Factor, factor, level

__all__ = [
    "CATALOGUE",
    "Component",
    "Counts",
    "Factor",
    "Field",
    "attention",
    "block",
    "embedding",
    "factor",
    "finetuning",
    "level",
    "linear",
    "mlp",
    "norm",
    "objective",
    "position",
    "starting",
    "text_format",
    "tokenizer",
    "training",
]
