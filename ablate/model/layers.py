"""What carries the pack dimension: linear maps, embeddings, and dropout with draws of its own for
each member.

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


def across(parameter: Tensor, x: Tensor) -> Tensor:
    """[K, width] as [K, 1, …, width], so that it meets every vector of x [K, B, …, width]; of a
    pack as [K, B, 1, …, width].

    The gradient of a pack's is then a sum over the tokens of each sequence, then over sequences. In
    one sum, of few columns and many rows, most of a GPU would stand idle; of a single model torch
    makes that sum beside the gradient of x.
    """
    shared = parameter.view(len(parameter), *[1] * (x.ndim - 2), -1)
    return shared if len(shared) == 1 else shared.expand(-1, x.shape[1], *shared.shape[2:])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [K, …, n_in], weight [K, n_out, n_in], bias [K, n_out] → [K, …, n_out], each member by its
    own weights.
    """
    if len(weight) == 1:
        return F.linear(
            x, weight.squeeze(0), None if bias is None else bias.squeeze(0)
        )  # a free view, backwards too
    y = (x.flatten(1, -2) @ weight.mT).unflatten(1, x.shape[1:-1])
    return y if bias is None else y + across(bias, y).to(y.dtype)


class Linear(nn.Module):
    """y = W x + b for each member: [K, …, n_in] → [K, …, n_out].

    `fan_in` is the number of terms summed in an output where that is not n_in; `ends_branch` marks
    the output matrices of attention and MLP, which `init = "depth-scaled"` shrinks.
    """

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
        super().__init__()
        self.fan_in = fan_in or n_in
        self.ends_branch = ends_branch
        self.weight = nn.Parameter(torch.full((pack, n_out, n_in), math.nan))
        self.bias = nn.Parameter(torch.zeros(pack, n_out)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def side_by_side(x: Tensor, maps: Sequence[Linear]) -> tuple[Tensor, ...]:
    """`[m(x) for m in maps]` by one matrix product, which a small model does in a fraction of the
    time of several.
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
        found = F.embedding(index, self.weight.flatten(0, 1))
        return found if self.scale == 1 else found * self.scale


class DropoutRng(nn.Module):
    """What dropout draws from: the members' seeds [K], the step [] and the batch's first row [].

    All are int64 buffers, so that a captured step can be moved on by writing to `step` on the
    device.
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
    """Zeroes a share of x [K, B, …] in training and scales the rest up; draws from the stream that
    its name gives it.
    """

    def __init__(self, share: float, name: str, rng: DropoutRng) -> None:
        super().__init__()
        self.share = share
        self.stream = draws.stream(f"dropout.{name}")
        self.rng = rng

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.share == 0:
            return x
        drawn = draws.uniforms(self.rng.seed, self.stream, self.rng.step, x.shape[1:], self.rng.row)
        return torch.where(drawn >= self.share, x / (1 - self.share), 0.0)
