"""How a model knows where a token stands. Three hooks, each of which does nothing unless a class
says otherwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ablate.components.position import t5_buckets
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.model.layers import Embedding

_TABLE = 4  # tables reach to this many training contexts; longer texts compute theirs anew


class Position(nn.Module):
    """Base of all position encodings: three hooks, which do nothing here."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        """Make the encoding of a model whose stream has `width` channels."""
        super().__init__()

    def embed(self, x: Tensor) -> Tensor:
        """What is done to the embeddings, [K, B, T, C]; once a forward pass."""
        return x

    def rotate(self, x: Tensor) -> Tensor:
        """What is done to queries and keys, [K·B, H, T, D]; in every block."""
        return x

    def bias(self, length: int) -> Tensor | None:
        """What is added to the scores, [1 or K, H, T, T] by query and key; once a forward pass."""
        return None


class NoPosition(Position):
    """No encoding."""


class Sinusoidal(Position):
    """Adds sin(t·10000^(−2i/C)) to channel 2i of the embeddings and the cosine to channel 2i +
    1.
    """

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(config, pack, width)
        self.waves = _Waves(_TABLE * config.n_ctx, width)

    def embed(self, x: Tensor) -> Tensor:
        return x + self.waves(x.shape[-2]).flip(0).permute(1, 2, 0).flatten(1)


class Learned(Position):
    """Adds one learned vector a position to the embeddings; not defined beyond n_ctx."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(config, pack, width)
        self.table = Embedding(
            config.n_ctx, width, pack=pack, scale=config.part("init").embedding_scale(config)
        )

    def embed(self, x: Tensor) -> Tensor:
        length, limit = x.shape[-2], self.table.weight.shape[1]
        if length > limit:
            raise AblateError(
                f"position = 'learned' is not defined beyond n_ctx = {limit}: the text has {length}"
                " tokens; evaluate at lengths = [1], or choose another position"
            )
        return x + self.table(torch.arange(length, device=x.device).expand(len(x), 1, -1))


class Rotary(Position):
    """Turns channels i and i + D/2 of queries and keys by t·10000^(−2i/D), so that scores depend on
    distance alone.
    """

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(config, pack, width)
        self.waves = _Waves(_TABLE * config.n_ctx, config.d_head)

    def rotate(self, x: Tensor) -> Tensor:
        cos, sin = self.waves(x.shape[-2])
        first, second = x.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Alibi(Position):
    """Lowers a score by slope · |distance|; slopes 2^(−8h/H) for h = 1 … H, and as in the paper
    where H is no power of 2.
    """

    slopes: Tensor

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(config, pack, width)
        self.register_buffer("slopes", torch.tensor(_slopes(config.n_head)), persistent=False)

    def bias(self, length: int) -> Tensor:
        place = torch.arange(length, device=self.slopes.device)
        return -(place - place[:, None]).abs() * self.slopes[None, :, None, None]


class T5Bias(Position):
    """Adds a learned number a head and bucket of distances, one table for all blocks.

    Half of a direction's buckets hold one distance each, the others grow like powers up to the
    maximum distance, and the last holds all beyond. Full attention has buckets for both directions,
    and the first of those for later keys stays empty, as in T5. How many:
    `t5_buckets`.
    """

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__(config, pack, width)
        self.buckets, self.maximum = t5_buckets(config)
        self.both = not config.part("attention").causal
        self.table = Embedding(self.buckets, config.n_head, pack=pack, fan_in=width)

    def bucket(self, distance: Tensor) -> Tensor:
        """The bucket of key position − query position, of the same shape."""
        n = self.buckets // 2 if self.both else self.buckets
        after = n * (distance > 0) if self.both else 0
        back = distance.abs() if self.both else (-distance).clamp(min=0)
        exact = n // 2
        share = torch.log(back.clamp(min=1) / exact) / math.log(self.maximum / exact)
        far = (exact + (share * (n - exact)).long()).clamp(max=n - 1)
        return after + torch.where(back < exact, back, far)

    def bias(self, length: int) -> Tensor:
        """A number for each distance, then rows that each begin one further on: a gradient is
        summed along diagonals first.

        Looked up for every pair instead, a bucket's gradient would be T²/2 atomic additions to one
        address.
        """
        weight = self.table.weight
        buckets = self.bucket(torch.arange(1 - length, length + 1, device=weight.device))
        line = self.table(buckets.expand(len(weight), -1)).transpose(
            1, 2
        )  # [K, H, 2T], the last unused
        rows = line[:, :, None].expand(-1, -1, length, -1).flatten(2)[..., length - 1 : -1]
        return rows.unflatten(2, (length, 2 * length - 1))[..., :length]


class _Waves(nn.Module):
    """Cosines and sines of t·10000^(−2i/width): length → [2, T, width/2]."""

    table: Tensor

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("table", self._compute(length), persistent=False)

    def _compute(self, length: int) -> Tensor:
        rate = 10000.0 ** (-torch.arange(0, self.width, 2, dtype=torch.float64) / self.width)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * rate
        return torch.stack((angle.cos(), angle.sin()))

    def forward(self, length: int) -> Tensor:
        if length > self.table.shape[1]:
            return self._compute(length).to(self.table)
        return self.table[:, :length]


def _slopes(n: int) -> list[float]:
    """ALiBi's slopes: those of the next lower power of two, then every other one of the next
    higher.
    """
    power = 1 << (n.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return slopes if power == n else slopes + _slopes(2 * power)[::2][: n - power]
