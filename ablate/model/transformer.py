"""The whole model: embeddings, blocks, final norm and head, for K members of one shape at once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ablate.config import RunConfig
from ablate.factors import factor
from ablate.model.attention import future
from ablate.model.layers import Dice, Dropout, Embedding, Linear, linear
from ablate.model.norm import LayerNorm, NoNorm
from ablate.sizes import embedding_scale


class Transformer(nn.Module):
    """tokens [K, B, T] → logits [K, B, T, V] in the parameters' precision. Its weights are NaN
    until `initialise`.

    Under `torch.autocast` the matrix products alone take less precision: the stream, norms and
    logits keep theirs. In training, write the step (and a micro-batch's first row) to `dice.step`
    and `dice.row`, which dropout reads. With `recompute`, of each block only the input is kept for
    the backward pass, which runs the block again: a third more time, far less memory, the same
    numbers, for every draw is a function of `dice`.
    """

    def __init__(self, config: RunConfig, pack: int = 1) -> None:
        super().__init__()
        self.config = config
        self.pack = pack
        self.recompute = False
        bias = config.bias == "all"
        block = factor("topology").load(config.topology)
        final_norm = (
            factor("norm_kind").load(config.norm_kind) if config.norm in ("pre", "peri") else NoNorm
        )
        self.dice = Dice(pack)
        self.embedding = Embedding(
            config.n_vocab, config.d_model, pack=pack, scale=embedding_scale(config)
        )
        self.position = factor("position").load(config.position)(config, pack)
        self.embed_norm = factor("embed_norm").load(config.embed_norm)(
            config.d_model, bias=bias, pack=pack
        )
        self.dropout = Dropout(config.dropout, "embedding", self.dice)
        self.blocks = nn.ModuleList(
            block(config, pack, self.position, self.dice, i) for i in range(config.n_layer)
        )
        self.final_norm = final_norm(config.d_model, bias=bias, pack=pack)
        self.transform = (
            MlmTransform(config, pack) if config.mlm_head_transform == "dense" else nn.Identity()
        )
        self.unembedding = Unembedding(config, pack)
        self.to(torch.float64 if config.precision == "float64" else torch.float32)

    def forward(self, tokens: Tensor) -> Tensor:
        features = self.features(tokens)
        return self.head(features).to(features.dtype)

    def features(self, tokens: Tensor) -> Tensor:
        """The stream after the last block and the final norm: [K, B, T] → [K, B, T, C]."""
        x, bias = self.start(tokens)
        for block in self.blocks:
            if self.recompute:
                x = checkpoint(block, x, bias, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, bias)
        return self.final_norm(x)

    def head(self, features: Tensor) -> Tensor:
        """Logits from features, in the precision of the matrix product: [K, …, C] → [K, …, V]."""
        return self.unembedding(self.transform(features), self.embedding.weight)

    @torch.no_grad()
    def stream(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """RMS of the stream, and mean cosine similarity of two of its tokens, at the start and
        after each block.

        tokens [K, B, T], T ≥ 2 → two tensors [K, n_layer + 1]. A similarity near 1 means that the
        rank has collapsed.
        """
        x, bias = self.start(tokens)
        seen = [_measure(x)]
        for block in self.blocks:
            x = block(x, bias)
            seen.append(_measure(x))
        rms, similarity = zip(*seen, strict=True)
        return torch.stack(rms, 1), torch.stack(similarity, 1)

    def start(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """The stream before the first block, and what is added to every block's scores."""
        x = self.dropout(self.embed_norm(self.position.embed(self.embedding(tokens))))
        bias = self.position.bias(tokens.shape[-1])
        if bias is not None and self.config.attention == "causal":
            bias = bias.masked_fill(future(tokens.shape[-1], tokens.device), -torch.inf)
        return x, bias

    @torch.no_grad()
    def initialise(self, seeds: Sequence[int]) -> None:
        """Set every parameter of member k from (seeds[k], the parameter's name), by the
        configuration's `init`.
        """
        assert len(seeds) == self.pack, (len(seeds), self.pack)
        self.dice.seed.copy_(torch.tensor(list(seeds)))
        for name, parameter in self.named_parameters():
            owner, _, kind = name.rpartition(".")
            if kind == "gain":
                parameter.fill_(1)
            elif kind == "bias":
                parameter.zero_()
            else:
                deviation = self._deviation(self.get_submodule(owner))
                for member, seed in zip(parameter, seeds, strict=True):
                    member.copy_(_normal(seed, name, member.shape) * deviation)

    def _deviation(self, owner: Any) -> float:
        """Standard deviation at which the weight or vector of `owner` starts."""
        if self.config.init == "normal-0.02":
            return 0.02
        shrink = self.config.init == "depth-scaled" and getattr(owner, "ends_branch", False)
        return 1 / math.sqrt(owner.fan_in * (2 * self.config.n_layer if shrink else 1))


class MlmTransform(nn.Module):
    """A square matrix, the activation and a LayerNorm: [K, …, C] → [K, …, C]. A gated activation
    stands without gate.
    """

    def __init__(self, config: RunConfig, pack: int) -> None:
        super().__init__()
        bias = config.bias == "all"
        self.dense = Linear(config.d_model, config.d_model, bias=bias, pack=pack)
        self.activation = factor("activation").load(config.activation)()
        self.norm = LayerNorm(config.d_model, bias=bias, pack=pack)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class Unembedding(nn.Module):
    """[K, …, C] → [K, …, V], by a matrix of its own or the embedding's; with a bias after an MLM
    transform alone.
    """

    def __init__(self, config: RunConfig, pack: int) -> None:
        super().__init__()
        self.fan_in = config.d_model
        untied = config.tie_embeddings == "untied"
        bias = config.mlm_head_transform == "dense" and config.bias == "all"
        self.weight = (
            nn.Parameter(torch.full((pack, config.n_vocab, config.d_model), torch.nan))
            if untied
            else None
        )
        self.bias = nn.Parameter(torch.zeros(pack, config.n_vocab)) if bias else None

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return linear(x, embedding if self.weight is None else self.weight, self.bias)


def _normal(seed: int, name: str, shape: Sequence[int]) -> Tensor:
    """Standard normal numbers, float32 on the CPU, from a generator seeded by SHA-256 of seed and
    name.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
    return torch.randn(*shape, generator=generator)


def _measure(x: Tensor) -> tuple[Tensor, Tensor]:
    """RMS [K], and mean cosine of the angle between two tokens of a sequence [K], of x [K, B, T,
    C].
    """
    length = x.shape[2]
    total = nn.functional.normalize(x, dim=-1).sum(2).square().sum(-1)  # T + Σ over ordered pairs
    return x.square().mean((1, 2, 3)).sqrt(), ((total - length) / (length * (length - 1))).mean(1)
