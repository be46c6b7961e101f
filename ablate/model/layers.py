"""Layers with a pack dimension: linear maps, embeddings, and dropout with its own draws a member.

Shapes: K pack, B batch, T time, C = d_model. A parameter's name ends in `weight` (matrices and
embeddings: random at the start, decayed in training), `bias` (starts at 0), `gain` (starts at 1) or
`vector` (random, not decayed).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate import draws
from ablate.config import RunConfig


def across(parameter: Tensor, x: Tensor) -> Tensor:
    """Return a parameter in the shape that broadcasts over x.

    The gradient of a pack's parameter is then summed over the tokens of each sequence first, then
    over sequences: a single sum, of few columns and many rows, would leave most of a GPU idle. For
    a single model torch computes the sum together with the gradient of x.

    Args:
        parameter: [K, width].
        x: [K, B, …, width].

    Returns:
        [1, 1, …, width] for K = 1, else [K, B, 1, …, width].
    """
    shared = parameter.view(len(parameter), *[1] * (x.ndim - 2), -1)
    return shared if len(shared) == 1 else shared.expand(-1, x.shape[1], *shared.shape[2:])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply each member's linear map.

    Args:
        x: [K, …, n_in].
        weight: [K, n_out, n_in].
        bias: [K, n_out] or None.

    Returns:
        [K, …, n_out].
    """
    if len(weight) == 1:  # views cost nothing, in the backward pass too
        return F.linear(x, weight.squeeze(0), None if bias is None else bias.squeeze(0))
    y = (x.flatten(1, -2) @ weight.mT).unflatten(1, x.shape[1:-1])
    return y if bias is None else y + across(bias, y).to(y.dtype)


class Linear(nn.Module):
    """y = W x + b for each member: [K, …, n_in] → [K, …, n_out]."""

    def __init__(
        self,
        n_in: int,
        n_out: int,
        *,
        bias: bool,
        pack: int,
        fan_in: int | None = None,
        ends_branch: bool = False,
    ) -> None:
        """Make the map.

        Args:
            n_in: Width of the input.
            n_out: Width of the output.
            bias: Whether there is a bias.
            pack: Number of members.
            fan_in: Number of terms summed in an output, where that is not n_in.
            ends_branch: Whether it is an output matrix of attention or MLP that is added to the
                stream, which some levels of `init` shrink.
        """
        super().__init__()
        self.fan_in = fan_in or n_in
        self.ends_branch = ends_branch
        self.weight = nn.Parameter(torch.full((pack, n_out, n_in), math.nan))
        self.bias = nn.Parameter(torch.zeros(pack, n_out)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def side_by_side(x: Tensor, maps: Sequence[Linear]) -> tuple[Tensor, ...]:
    """Return `[m(x) for m in maps]` by one matrix product.

    A small model computes one product in a fraction of the time of several.
    """
    biases: list[Tensor] = [m.bias for m in maps if m.bias is not None]
    weight = torch.cat(tuple(m.weight for m in maps), 1)
    return linear(x, weight, torch.cat(biases, 1) if biases else None).split(
        [m.weight.shape[1] for m in maps], -1
    )


class Embedding(nn.Module):
    """One vector an index, multiplied by `scale`: indices [K, …] → [K, …, width]."""

    def __init__(
        self, n: int, width: int, *, pack: int, fan_in: int | None = None, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.fan_in = fan_in or width
        self.scale = scale
        self.weight = nn.Parameter(torch.full((pack, n, width), math.nan))

    def forward(self, index: Tensor) -> Tensor:
        pack, n, _ = self.weight.shape
        if pack > 1:  # row i of member k is row k·n + i of all members' tables in one
            first = torch.arange(0, pack * n, n, device=index.device)
            index = index + first.view(-1, *[1] * (index.ndim - 1))
        vectors = F.embedding(index, self.weight.flatten(0, 1))
        return vectors if self.scale == 1 else vectors * self.scale


class TokenEmbedding(Embedding):
    """One vector a token: tokens [K, …] → [K, …, width], scaled as the run's `init` says."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        scale = config.part("init").embedding_scale(config)
        super().__init__(config.n_vocab, width, pack=pack, scale=scale)


class DropoutRng(nn.Module):
    """State of dropout's draws: seeds of the members [K], the step [] and the batch's first row [].

    All are int64 buffers, so that a captured step is advanced by writing to `step` on the device.
    """

    seed: Tensor
    step: Tensor
    row: Tensor

    def __init__(self, pack: int) -> None:
        super().__init__()
        self.register_buffer("seed", torch.zeros(pack, dtype=torch.int64), persistent=False)
        self.register_buffer("step", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("row", torch.zeros((), dtype=torch.int64), persistent=False)


class Dropout(nn.Module):
    """Zero a share of x [K, B, …] in training and scale the rest up.

    Its name decides the stream that it draws from. The stream's number is a tensor, so that all
    blocks share compiled code, which would have a number as a constant.
    """

    stream: Tensor

    def __init__(self, share: float, name: str, rng: DropoutRng) -> None:
        super().__init__()
        self.share = share
        number = torch.tensor(draws.stream(f"dropout.{name}"), dtype=torch.int64)
        self.register_buffer("stream", number, persistent=False)
        self.rng = rng

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.share == 0:
            return x
        drawn = draws.uniforms(self.rng.seed, self.stream, self.rng.step, x.shape[1:], self.rng.row)
        return torch.where(drawn >= self.share, x / (1 - self.share), 0.0)
