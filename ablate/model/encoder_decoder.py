"""An encoder of the source, and a decoder that attends to it: for K members of one shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from ablate.config import RunConfig
from ablate.model.block import Block, DecoderBlock
from ablate.model.layers import DropoutRng
from ablate.model.transformer import Pieces, Stack, Transformer, in_precision, nothing


class Encoder(Stack):
    """The stack that reads the source."""

    def __init__(self, config: RunConfig, pack: int, rng: DropoutRng) -> None:
        super().__init__(config, pack)
        self.rng = rng
        self.stack("encoder.")


class EncoderDecoder(Transformer):
    """tokens [K, B, T], source [K, B, S] → logits [K, B, T, V].

    The decoder has the names and, of one seed, the initial weights of a `Transformer`; the encoder
    and cross-attention have weights of their own.
    """

    block: ClassVar[type[Block]] = DecoderBlock

    def __init__(self, config: RunConfig, pack: int = 1, width: int = 0) -> None:
        """Make the models of a pack; `width` is that of the run."""
        super().__init__(config, pack, width)
        self.encoder = Encoder(config.part("architecture").encoder(config), pack, self.rng)
        in_precision(self.encoder, config)

    def before(
        self,
        pieces: Pieces,
        tokens: Tensor,
        starts: Tensor | None = None,
        source: Tensor | None = None,
        source_starts: Tensor | None = None,
    ) -> tuple[Tensor, *tuple[Tensor | None, ...]]:
        """Return the decoder's stream before its first block, and what its blocks read.

        Arguments are those of `Transformer.features`. What does not start at 0 in the source fills
        the row up and is hidden.
        """
        assert source is not None and pieces.encoder is not None
        encoder = pieces.encoder
        memory, bias = encoder.start(source, source_starts)
        self.encoder.recompute = self.recompute
        memory = encoder.final_norm(self.encoder.through(encoder.blocks, memory, bias))
        x, bias = pieces.start(tokens, starts)
        if source_starts is None:
            hidden, state = None, memory[:, :, -1]
        else:
            fills = source_starts != 0
            hidden = nothing(self.config, x).expand(fills.shape).masked_fill(fills, -torch.inf)
            hidden = hidden.flatten(0, 1)[:, None, None]
            last = (~fills).sum(-1) - 1
            state = memory.gather(2, last[..., None, None].expand(-1, -1, 1, memory.shape[-1]))
            state = state.squeeze(2)
        return x, bias, memory, hidden, state

    def read(self, source: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the encoder's stream before its first block and the bias of its scores."""
        return self.encoder.enter(self.embedding(source), starts)

    def pieces(self, change: Callable[[Any], Any] = lambda piece: piece) -> Pieces:
        """Return what `features` calls, each piece changed, such as compiled."""
        encoder = Pieces(
            change(self.read),
            [change(block.forward) for block in self.encoder.blocks],
            change(self.encoder.final_norm.forward),
        )
        return super().pieces(change)._replace(encoder=encoder)
