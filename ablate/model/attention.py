"""Attention: how queries, keys and values are computed and compared, and how heads are combined.

Shapes: K pack, B batch, T time, C = d_model, H query heads, G key and value heads, D = d_head, N =
K·B.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention

from ablate.config import RunConfig
from ablate.model.layers import Linear, side_by_side


class Attention(nn.Module):
    """[K, B, T, C] → [K, B, T, C]; `bias` is added to the scores: see `Transformer.start`.

    Attributes:
        kept: Keys and values of what was read before, [K·B, G, T, D], in decoding; else None.
    """

    rotate: Callable[[Tensor], Tensor]  # of the position encoding, which its block sets
    kept: dict[str, Tensor] | None = None

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()
        projection, norm = config.part("qkv"), config.part("qk_norm")
        self.d_head = config.d_head
        self.query = projection.build(config, pack, config.n_head * config.d_head)
        self.key = projection.build(config, pack, config.n_kv_head * config.d_head)
        self.value = projection.build(config, pack, config.n_kv_head * config.d_head)
        self.project = type(self.query).together
        self.query_norm = norm.build(config, pack, config.d_head)
        self.key_norm = norm.build(config, pack, config.d_head)
        self.score = config.part("score").build(config, pack, config.d_head)
        self.output = config.part("head_combine").build(config, pack, width)

    def forward(
        self, x: Tensor, bias: Tensor | None = None, memory: Tensor | None = None
    ) -> Tensor:
        """Mix the values of x, or those of a memory [K, B, S, C] that x attends to."""
        if memory is None:
            query, *read = self.project(x, (self.query, self.key, self.value))
        else:
            query = self.query(x)
            read = [] if self.kept else [*self.project(memory, (self.key, self.value))]
        query = self.rotate(_fold(self.query_norm(self._heads(query))))
        mixed = self.score(query, *self._read(read), bias)
        return self.output(mixed.unflatten(0, x.shape[:2]).transpose(2, 3)).to(x.dtype)

    def _read(self, projected: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return keys and values of what is read, after those that are kept of earlier tokens."""
        found: dict[str, Tensor] = {}
        if projected:
            key, value = map(self._heads, projected)
            found = {"key": self.rotate(_fold(self.key_norm(key))), "value": _fold(value)}
        if self.kept is not None:
            for name, more in found.items():
                before = self.kept.get(name)
                self.kept[name] = more if before is None else torch.cat((before, more), 2)
            found = self.kept
        return found["key"], found["value"]

    def choose(self, rows: Tensor) -> None:
        """Keep what is kept of the sequences `rows`, [K·B]."""
        if self.kept:
            self.kept = {name: one.index_select(0, rows) for name, one in self.kept.items()}

    def _heads(self, x: Tensor) -> Tensor:
        """[K, B, T, H·D] → [K, B, T, H, D]."""
        return x.unflatten(-1, (-1, self.d_head))


class LinearProjection(Linear):
    """One matrix: C → width."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(config.d_model, width, bias=config.part("bias").present, pack=pack)

    together = staticmethod(side_by_side)


class MlpProjection(nn.Module):
    """Two matrices with a ReLU between, hidden width C: C → C → width."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()
        bias = config.part("bias").present
        self.hidden = Linear(config.d_model, config.d_model, bias=bias, pack=pack)
        self.output = Linear(config.d_model, width, bias=bias, pack=pack)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(F.relu(self.hidden(x)))

    @staticmethod
    def together(x: Tensor, maps: Sequence[MlpProjection]) -> tuple[Tensor, ...]:
        """Return `[m(x) for m in maps]`."""
        hidden = side_by_side(x, [m.hidden for m in maps])
        return tuple(m.output(F.relu(h)) for m, h in zip(maps, hidden, strict=True))


TILES: Any = {
    # for short contexts too: the kernel for these has no gradient
    "FORCE_USE_FLEX_ATTENTION": True,
    **{f"fwd_BLOCK_{side}": 64 for side in ("M", "N")},
    **{f"bwd_BLOCK_{side}": 64 for side in ("M1", "N1", "M2", "N2")},
    "fwd_num_stages": 2,
    "bwd_num_stages": 1,
}
# bytes of shared memory: an A100 has 163 KiB, an H100 227; `TILES` take less than 100
ROOM = 160 << 10


def flexible(config: RunConfig) -> bool:
    """Return whether FlexAttention (Dong et al. 2024) serves a run on the current GPU.

    It sums the gradient of a learned bias; torch's only other kernel with such a bias writes one
    gradient a sequence. It has no heads smaller than 16, too little shared memory for the bias with
    heads larger than 64, and is slow in float32.
    """
    learned = config.part("position").learned_bias and config.part("score").product
    return bool(
        learned
        and config.part("precision").casts
        and 16 <= config.d_head <= 64
        and _shared_memory() >= ROOM
    )


@functools.cache
def _shared_memory() -> int:
    """Return the most bytes that a thread block of the current GPU shares; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    return getattr(
        torch.cuda.get_device_properties(torch.cuda.current_device()),
        "shared_memory_per_block_optin",
        0,
    )


class DotScore(nn.Module):
    """softmax(scale · Q Kᵀ + bias) V: Q [N, H, T, D]; K, V [N, G, T, D] → [N, H, T, D].

    A bias is cast before it is expanded over sequences, so that it is read with stride 0 and never
    written N times.
    """

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()
        self.causal = config.part("attention").causal
        self.flexible = flexible(config)
        self.shared: dict[str, Any] = {
            "scale": config.part("attention_scale").scale(config.d_head),
            "enable_gqa": config.n_kv_head != config.n_head,
        }

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        query, key = query.to(value.dtype), key.to(value.dtype)
        if self.flexible and bias is not None and query.is_cuda and torch.compiler.is_compiling():
            sequences = len(query) // len(bias)

            def biased(score: Tensor, n: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return score + bias[n // sequences, head, i, j]

            return flex_attention(query, key, value, biased, kernel_options=TILES, **self.shared)
        mask = None if bias is None else each(bias.to(value.dtype), len(query))
        # a single query after keys of earlier tokens sees all of them
        causal = self.causal and bias is None and query.shape[2] == key.shape[2]
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=causal, **self.shared
        )


class AdditiveScore(nn.Module):
    """softmax(vᵀ tanh(q + k) + bias) V with one v [K, H, D] a head; memory O(T²·D).

    Shapes are those of `DotScore`.
    """

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()
        self.causal = config.part("attention").causal
        self.group = config.n_head // config.n_kv_head
        self.fan_in = width
        self.vector = nn.Parameter(torch.full((pack, config.n_head, width), torch.nan))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        key, value = (x.repeat_interleave(self.group, 1) for x in (key, value))
        compared = torch.tanh(
            query.contiguous()[:, :, :, None] + key.contiguous()[:, :, None]
        )  # [N, H, T, T, D]
        scores = (compared.flatten(2, 3) @ each(self.vector, len(query))[..., None]).view(
            compared.shape[:-1]
        )
        if bias is not None:
            scores = scores + each(bias, len(query))
        elif self.causal and query.shape[2] == key.shape[2]:
            scores = scores.masked_fill(future(query.shape[2], query.device), -torch.inf)
        return scores.softmax(-1).to(value.dtype) @ value


class Concatenate(Linear):
    """W_O [head_1; …; head_H]: [K, B, T, H, D] → [K, B, T, C]."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        heads = config.n_head * config.d_head
        super().__init__(
            heads,
            width,
            bias=config.part("bias").present,
            pack=pack,
            ends_branch=config.part("topology").adds_attention,
        )

    def forward(self, heads: Tensor) -> Tensor:
        return super().forward(heads.flatten(-2))


class Sum(Linear):
    """W_O Σ_h head_h with one W_O: D → C: [K, B, T, H, D] → [K, B, T, C].

    Its fan-in is that of all heads.
    """

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(
            config.d_head,
            width,
            bias=config.part("bias").present,
            pack=pack,
            fan_in=config.n_head * config.d_head,
            ends_branch=config.part("topology").adds_attention,
        )

    def forward(self, heads: Tensor) -> Tensor:
        return super().forward(heads.sum(-2))


def future(length: int, device: torch.device) -> Tensor:
    """Return where a key comes after its query, bool [T, T] by query and key."""
    index = torch.arange(length, device=device)
    return index > index[:, None]


def apart(starts: Tensor) -> Tensor:
    """Return where query and key are in two documents, bool [K·B, 1, T, T] by query and key.

    Args:
        starts: Where each token's document starts, [K, B, T].
    """
    starts = starts.flatten(0, 1)[:, None]
    return starts[..., None] != starts[..., None, :]


def _fold(x: Tensor) -> Tensor:
    """[K, B, T, H, D] → [K·B, H, T, D]."""
    return x.flatten(0, 1).transpose(1, 2)


def each(shared: Tensor, n: int) -> Tensor:
    """[1, K or N, …] → [N, …]: one member's for each sequence of its batch."""
    shared = shared[:, None]
    return shared.expand(-1, n // len(shared), *shared.shape[2:]).flatten(0, 1)
