"""The modules of heads and blocks (`ablate.components.places`)."""

from __future__ import annotations

from typing import Any

from torch import nn

from ablate.components.places import CROSS, Part
from ablate.model.attention import Attention


def block_of(transformer: Any, part: Part) -> nn.Module:
    """Return the block of a part of a model, or the one that it is in."""
    of_encoder = part.stack == "encoder" and hasattr(transformer, "encoder")
    block: nn.Module = (transformer.encoder if of_encoder else transformer).blocks[part.layer]
    return block


def attention_of(transformer: Any, part: Part) -> Attention:
    """Return the attention of a part of a model, or of a head of it."""
    block: Any = block_of(transformer, part)
    within = block.cross if part.attention == CROSS else block.attention
    return next(module for module in within.modules() if isinstance(module, Attention))
