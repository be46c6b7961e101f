"""Models of images: patches instead of tokens, in the stacks that models of text have.

Shapes: K pack, B batch, T patches of an image, V those that are shown, P numbers of a patch, C =
d_model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ablate.components.objective import patch_width
from ablate.config import RunConfig
from ablate.model.layers import DropoutRng, Linear
from ablate.model.transformer import Pieces, Stack, Transformer, in_precision


class PatchEmbedding(Linear):
    """A linear map of the numbers of a patch: [K, …, P] → [K, …, C]."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(patch_width(config), width, bias=config.part("bias").present, pack=pack)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype)).to(self.weight.dtype)


class ClassToken(nn.Module):
    """A learned vector before all others: [K, B, T, C] → [K, B, 1 + T, C]."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()
        self.fan_in = width
        self.vector = nn.Parameter(torch.full((pack, width), torch.nan))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((_expanded(self.vector, x, 1), x), 2)


class VisionTransformer(Transformer):
    """patches [K, B, T, P] → logits of the classes [K, B, 1, V].

    Source: Dosovitskiy et al. 2020, arXiv:2010.11929. The features of an image are those of its
    class token, or the mean over its patches.
    """

    def __init__(self, config: RunConfig, pack: int = 1, width: int = 0) -> None:
        """Make the models of a pack; `width` is that of the run."""
        super().__init__(config, pack, width)
        token = config.part("class_token")
        self.n_token: int = token.tokens
        self.token = token.build(config, pack, config.d_model) if token.module else nn.Identity()
        in_precision(self.token, config)

    def before(
        self,
        pieces: Pieces,
        tokens: Tensor,
        starts: Tensor | None = None,
        source: Tensor | None = None,
        source_starts: Tensor | None = None,
    ) -> tuple[Tensor, *tuple[Tensor | None, ...]]:
        """Return the stream before the first block, and the bias of the scores.

        Args:
            pieces: What is called.
            tokens: Patches, [K, B, T, P].
            starts: None: an image is one document.
            source: Places of the patches that are shown, [K, B, V] int64; None for all.
            source_starts: None.
        """
        return pieces.start(tokens, source)

    def start(self, tokens: Tensor, shown: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the stream before the first block, and the bias of the scores.

        Args:
            tokens: Patches, [K, B, T, P].
            shown: Places of those that are shown, [K, B, V]; None for all.
        """
        x = self.encoded(self.embedding(tokens))
        if shown is not None:
            x = x.gather(2, shown[..., None].expand(-1, -1, -1, x.shape[-1]))
        x = self.token(x)
        return x, self.bias(x)

    def features(
        self,
        tokens: Tensor,
        starts: Tensor | None = None,
        source: Tensor | None = None,
        source_starts: Tensor | None = None,
        *,
        pieces: Pieces | None = None,
    ) -> Tensor:
        """Return the features of each image, [K, B, 1, C]; arguments are those of `before`."""
        return self.pooled(super().features(tokens, starts, source, source_starts, pieces=pieces))

    def pooled(self, x: Tensor) -> Tensor:
        """Return the features of images [K, B, 1, C] from those of their tokens."""
        return x[:, :, :1] if self.n_token else x.mean(2, keepdim=True)


class MaskedAutoencoder(VisionTransformer):
    """patches [K, B, T, P], of which some are shown → the pixels of all [K, B, T, P].

    The encoder reads the patches that are shown alone. The decoder reads its output at their
    places, and one learned vector at all others. The encoder has the names and, of one seed, the
    initial weights of a `VisionTransformer`. Source: He et al. 2021, arXiv:2111.06377.
    """

    def __init__(self, config: RunConfig, pack: int = 1, width: int = 0) -> None:
        """Make the models of a pack; `width` is that of the run."""
        super().__init__(config, pack, width)
        self.decoder = Decoder(self.last_stack, pack, self.rng, config.d_model, self.n_token)
        in_precision(self.decoder, config)

    @property
    def last_stack(self) -> RunConfig:
        """The configuration of the decoder."""
        of: RunConfig = self.config.part("architecture").decoder(self.config)
        return of

    def features(
        self,
        tokens: Tensor,
        starts: Tensor | None = None,
        source: Tensor | None = None,
        source_starts: Tensor | None = None,
        *,
        pieces: Pieces | None = None,
    ) -> Tensor:
        """Return the decoder's features of each patch, [K, B, T, width of the decoder].

        Arguments are those of `before`.
        """
        pieces = pieces or self.pieces()
        decoder = pieces.second
        assert decoder is not None
        self.decoder.recompute = self.recompute
        read = Transformer.features(self, tokens, starts, source, source_starts, pieces=pieces)
        x, bias = decoder.start(read, source)
        x = decoder.final_norm(self.decoder.through(decoder.blocks, x, bias))
        return x[:, :, self.n_token :]

    def pieces(self, change: Callable[[Any], Any] = lambda piece: piece) -> Pieces:
        """Return what `features` calls, each piece changed, such as compiled."""
        decoder = Pieces(
            change(self.decoder.start),
            [change(block.forward) for block in self.decoder.blocks],
            change(self.decoder.final_norm.forward),
        )
        return super().pieces(change)._replace(second=decoder)

    def hidden(self, tokens: Tensor, starts: Tensor | None = None) -> Tensor:
        """Return the encoder's features of whole images, [K, B, 1, C]."""
        return self.pooled(Transformer.features(self, tokens))


class Decoder(Stack):
    """The stack that fills in the patches that are not shown."""

    def __init__(
        self, config: RunConfig, pack: int, rng: DropoutRng, width: int, n_token: int
    ) -> None:
        """Make the decoder of an encoder of this width and `n_token` tokens before patches."""
        super().__init__(config, pack)
        self.rng, self.n_token, self.n_ctx = rng, n_token, config.n_ctx
        self.embedding = Linear(width, config.d_model, bias=config.part("bias").present, pack=pack)
        self.fan_in = config.d_model
        self.vector = nn.Parameter(torch.full((pack, config.d_model), torch.nan))
        self.stack("decoder.")

    def start(self, read: Tensor, shown: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the stream before the first block, and the bias of the scores.

        Args:
            read: Of the encoder, [K, B, n_token + V, width].
            shown: The places of the patches in it, [K, B, V]; None for all in order.
        """
        x = self.embedding(read).to(read.dtype)
        before, x = x[:, :, : self.n_token], x[:, :, self.n_token :]
        if shown is not None:
            hidden = _expanded(self.vector, x, self.n_ctx)
            x = hidden.scatter(2, shown[..., None].expand_as(x), x)
        x = torch.cat((before, self.encoded(x)), 2)
        return x, self.bias(x)


def _expanded(vector: Tensor, x: Tensor, n: int) -> Tensor:
    """Return a vector [K, C] n times for each sequence of x [K, B, …]: [K, B, n, C]."""
    return vector[:, None, None].expand(-1, x.shape[1], n, -1).to(x.dtype)
