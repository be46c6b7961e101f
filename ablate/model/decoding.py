"""Decoding token by token: what a model keeps of earlier tokens, so that it reads each one once.

Every part of a block but attention and recurrent cells is a function of one token. Attention keeps
keys and values, those of a memory from the first token on; a cell keeps its state. Numbers are
those of reading the whole text again, up to the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from ablate.model.attention import Attention, future
from ablate.model.recurrent import Recurrent
from ablate.model.transformer import Transformer


class Decoder(Protocol):
    """Predicts the next token of texts that grow."""

    def next(self, tokens: Tensor) -> Tensor:
        """Return the logits of the token that follows, [K, N, V].

        Args:
            tokens: [K, N, T]: those of the call before, as `choose` ordered them, and more.
        """

    def choose(self, rows: Tensor) -> None:
        """Continue with other texts.

        Args:
            rows: Which text each one continues, [K·N], of those numbered through all members; one
                with the same source.
        """


@contextmanager
def decoder(model: Any, beside: tuple[Tensor | None, ...] = (), beam: int = 1) -> Iterator[Decoder]:
    """Yield a decoder of texts, which keeps what it has read if each part of the model can.

    Args:
        model: With the interface of `ablate.model.transformer.Transformer`.
        beside: Source and its starts, for W texts, as `Transformer.features` takes them.
        beam: Texts that are decoded for each source, N = W·beam.
    """
    if not keeps(model):
        source = tuple(None if one is None else one.repeat_interleave(beam, 1) for one in beside)
        yield _Again(model, source)
        return
    kept = _Keeping(model, beside, beam)
    try:
        yield kept
    finally:
        kept.end()


def keeps(model: Any) -> bool:
    """Return whether all parts of a model are known to keep what they have read.

    Of levels of a user's own it is unknown; positions within documents depend on where these start.
    """
    return (
        isinstance(model, Transformer)
        and not model.config.code
        and all(part.plain is None for part in model.config.parts)
        and not model.config.part("document_mask").within
    )


class _Again:
    """Reads the whole text for each token."""

    def __init__(self, model: Any, source: tuple[Tensor | None, ...]) -> None:
        self.model, self.source = model, source

    def next(self, tokens: Tensor) -> Tensor:
        features = self.model.features(tokens, None, *self.source)[:, :, -1:]
        logits: Tensor = self.model.head(features)[:, :, 0]
        return logits

    def choose(self, rows: Tensor) -> None:
        """The text is read again: nothing is to be chosen."""


class _Keeping:
    """Reads each token once."""

    def __init__(self, model: Transformer, source: tuple[Tensor | None, ...], beam: int) -> None:
        self.model, self.seen = model, 0
        blocks: list[Any] = list(model.blocks)
        mixers = [one for block in blocks for one in block.attention.modules()]
        self.growing = [one for one in mixers if isinstance(one, Attention | Recurrent)]
        self.parts = [*self.growing, *(block.cross for block in blocks if block.crosses)]
        for part in self.parts:
            part.kept = {}
        # memory [K, W, S, C], its bias [K·W, 1, 1, S], state [K, W, C]
        self.memory = [
            None if one is None else one.repeat_interleave(beam, axis)
            for axis, one in zip((1, 0, 1), model.memory(model.pieces(), *source), strict=False)
        ]

    def next(self, tokens: Tensor) -> Tensor:
        model, position = self.model, self.model.position
        first, length = self.seen, tokens.shape[-1]
        assert first == 0 or length == first + 1, "only the first call reads several tokens"
        position.offset, self.seen = first, length
        x = model.embed_norm(position.embed(model.embedding(tokens[..., first:])))
        bias = position.bias(length)
        if bias is not None:
            bias = bias[..., first:, :]
            if length - first > 1:
                bias = bias.masked_fill(future(length, x.device), -torch.inf)
        for block in model.blocks:
            x = block(x, bias, *self.memory)
        logits: Tensor = model.head(model.final_norm(x[:, :, -1:]))[:, :, 0]
        return logits

    def choose(self, rows: Tensor) -> None:
        for part in self.growing:
            part.choose(rows)

    def end(self) -> None:
        """Let the model read whole texts again."""
        self.model.position.offset = 0
        for part in self.parts:
            part.kept = None
