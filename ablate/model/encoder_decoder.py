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

        Arguments are those of `Transformer.features`.
        """
        memory = self.memory(pieces, source, source_starts)
        x, bias = pieces.start(tokens, starts)
        read: tuple[Tensor | None, ...] = (bias, *memory)
        return (x, *read)

    def memory(
        self, pieces: Pieces, source: Tensor | None = None, source_starts: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        """Return the encoder's output, what is added to its scores, and its last state.

        They are the arguments of `DecoderBlock.forward`. What does not start at 0 in the source
        fills the row up and is hidden.
        """
        assert source is not None
        memory = self._encoded(pieces, source, source_starts)
        if source_starts is None:
            hidden, state = None, memory[:, :, -1]
        else:
            fills = source_starts != 0
            hidden = nothing(self.config, memory).expand(fills.shape).masked_fill(fills, -torch.inf)
            hidden = hidden.flatten(0, 1)[:, None, None]
            last = (~fills).sum(-1) - 1
            state = memory.gather(2, last[..., None, None].expand(-1, -1, 1, memory.shape[-1]))
            state = state.squeeze(2)
        return memory, hidden, state

    def hidden(self, tokens: Tensor, starts: Tensor | None = None) -> Tensor:
        """Return the output of the encoder for a text, which linear probes read.

        Where the encoder reads no text in training, it is the output of the decoder, behind the
        token with which its targets begin.
        """
        if self.config.part("corruption").reads:
            return self._encoded(self.pieces(), tokens, starts)
        start = self.config.part("corruption_tokens").start(self.config)
        first = torch.full_like(tokens[..., :1], start)
        return self.features(torch.cat((first, tokens[..., :-1]), -1), starts, first)

    def _encoded(self, pieces: Pieces, source: Tensor, starts: Tensor | None) -> Tensor:
        """Return the encoder's output for a source, [K, B, S, C]."""
        encoder = pieces.second
        assert encoder is not None
        self.encoder.recompute = self.recompute
        x, bias = encoder.start(source, starts)
        return encoder.final_norm(self.encoder.through(encoder.blocks, x, bias))

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
        return super().pieces(change)._replace(second=encoder)
