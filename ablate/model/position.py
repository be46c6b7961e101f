"""Position encodings: modules with three hooks, on embeddings, queries and keys, and scores."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ablate.components.position import rotary_channels, t5_buckets
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.model.layers import Embedding

_TABLE = 4  # tables cover this many training contexts; for longer texts they are computed each time


class Position(nn.Module):
    """Base of all position encodings: three hooks, which do nothing here.

    Attributes:
        offset: Tokens that stand before those which `embed` and `rotate` get.
    """

    offset = 0

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        """Make the encoding of a model whose stream has `width` channels."""
        super().__init__()

    def embed(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        """Return the embeddings x, [K, B, T, C], encoded; once a forward pass.

        Args:
            x: Embeddings.
            places: Positions of the tokens, [K, B, T], where a sequence holds several documents;
                by default from `offset` on. What depends on distances alone needs none.
        """
        return x

    def rotate(self, x: Tensor) -> Tensor:
        """Return queries or keys x, [K·B, H, T, D], encoded; in every block."""
        return x

    def bias(self, length: int) -> Tensor | None:
        """Return what is added to the scores, [1 or K, H, T, T] by query and key, or None.

        Called once a forward pass.
        """
        return None


class NoPosition(Position):
    """No encoding."""


class Sinusoidal(Position):
    """Add sin(t·10000^(−2i/C)) to channel 2i of the embeddings, the cosine to channel 2i + 1."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(config, pack, width)
        self.waves = _Waves(_TABLE * config.n_ctx, width)

    def embed(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        waves = self.waves(self.offset + x.shape[-2]).flip(0).permute(1, 2, 0).flatten(1)
        return x + (waves[self.offset :] if places is None else waves[places])


class Learned(Position):
    """Add one learned vector a position to the embeddings; not defined beyond n_ctx."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(config, pack, width)
        self.table = Embedding(
            config.n_ctx, width, pack=pack, scale=config.part("init").embedding_scale(config)
        )

    def embed(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        length, limit = self.offset + x.shape[-2], self.table.weight.shape[1]
        if length > limit:
            raise AblateError(
                f"position = 'learned' is not defined beyond n_ctx = {limit}: the text has {length}"
                f" tokens; give the model at most {limit} at a time"
            )
        if places is None:
            places = torch.arange(self.offset, length, device=x.device).expand(len(x), 1, -1)
        return x + self.table(places)


class Rotary(Position):
    """Rotate channels i and i + R/2 of queries and keys by t·rope_theta^(−2i/R).

    R is D, or the first rope_share·D channels, of which the rest stays. Scores then depend on
    distance alone.
    """

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(config, pack, width)
        self.turned = rotary_channels(config)
        self.waves = _Waves(_TABLE * config.n_ctx, self.turned, config.rope_theta)

    def rotate(self, x: Tensor) -> Tensor:
        cos, sin = self.waves(self.offset + x.shape[-2])[:, self.offset :]
        if self.turned == x.shape[-1]:
            first, second = x.chunk(2, -1)
            return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
        first, second = x[..., : self.turned].chunk(2, -1)
        rest = x[..., self.turned :]
        return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


class Alibi(Position):
    """Subtract slope · |distance| from a score.

    Slopes are 2^(−8h/H) for h = 1 … H, and the paper's where H is no power of 2.
    """

    slopes: Tensor

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(config, pack, width)
        self.register_buffer("slopes", torch.tensor(_slopes(config.n_head)), persistent=False)

    def bias(self, length: int) -> Tensor:
        index = torch.arange(length, device=self.slopes.device)
        return -(index - index[:, None]).abs() * self.slopes[None, :, None, None]


class T5Bias(Position):
    """Add a learned number a head and bucket of distances, one table for all blocks.

    Half of a direction's buckets hold one distance each, the others grow like powers up to the
    maximum distance, and the last holds all beyond. Full attention has buckets for both directions,
    and the first of those for later keys stays empty, as in T5. `t5_buckets` says how many.
    """

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(config, pack, width)
        self.buckets, self.maximum = t5_buckets(config)
        self.both = not config.part("attention").causal
        self.table = Embedding(self.buckets, config.n_head, pack=pack, fan_in=width)

    def bucket(self, distance: Tensor) -> Tensor:
        """Return the buckets of distances, key position − query position, in the same shape."""
        n = self.buckets // 2 if self.both else self.buckets
        after = n * (distance > 0) if self.both else 0
        back = distance.abs() if self.both else (-distance).clamp(min=0)
        exact = n // 2
        share = torch.log(back.clamp(min=1) / exact) / math.log(self.maximum / exact)
        far = (exact + (share * (n - exact)).long()).clamp(max=n - 1)
        return after + torch.where(back < exact, back, far)

    def bias(self, length: int) -> Tensor:
        """Return the bias by looking up each distance once and shifting rows.

        The gradient is then summed along diagonals first. With a lookup for every pair, a bucket's
        gradient would be T²/2 atomic additions to one address.
        """
        weight = self.table.weight
        buckets = self.bucket(torch.arange(1 - length, length + 1, device=weight.device))
        # [K, H, 2T], the last unused
        line = self.table(buckets.expand(len(weight), -1)).transpose(1, 2)
        rows = line[:, :, None].expand(-1, -1, length, -1).flatten(2)[..., length - 1 : -1]
        return rows.unflatten(2, (length, 2 * length - 1))[..., :length]


class _Waves(nn.Module):
    """Cosines and sines of t·base^(−2i/width): length → [2, T, width/2]."""

    table: Tensor

    def __init__(self, length: int, width: int, base: float = 10000.0) -> None:
        super().__init__()
        self.width, self.base = width, base
        self.register_buffer("table", self._compute(length), persistent=False)

    def _compute(self, length: int) -> Tensor:
        rate = self.base ** (-torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * rate
        return torch.stack((angle.cos(), angle.sin()))

    def forward(self, length: int) -> Tensor:
        if length > self.table.shape[1]:
            return self._compute(length).to(self.table)
        return self.table[:, :length]


def _slopes(n: int) -> list[float]:
    """Return ALiBi's slopes for n heads.

    They are those of the next lower power of two, then every other one of the next higher.
    """
    power = 1 << (n.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return slopes if power == n else slopes + _slopes(2 * power)[::2][: n - power]
