"""Block topologies: how attention, MLP and residual connections are wired. One class each, and
nothing else.

P1, P2 act on joins (norm = post), N1, N2 on the inputs of attention and MLP (pre, peri), O1, O2 on
their outputs (peri); all others are the identity. A(x) = O1 Attn(N1 x) is `attend`, M(h) = O2
MLP(N2 h) is `feed`. x, h, y: [K, B, T, C].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.config import RunConfig
from ablate.factors import factor
from ablate.model.attention import Attention
from ablate.model.layers import Dice, Dropout
from ablate.model.mlp import MLP
from ablate.model.norm import NoNorm
from ablate.model.position import NoPosition


class Block(nn.Module):
    """What all topologies share: the parts, and which norms are the identity."""

    mlp_inputs = 1  # width of what the MLP reads, in units of d_model
    first_join = True  # whether there is a P1

    def __init__(
        self, config: RunConfig, pack: int, position: NoPosition, dice: Dice, index: int
    ) -> None:
        super().__init__()

        def norm(*places: str, width: int = config.d_model) -> nn.Module:
            kind = factor("norm_kind").load(config.norm_kind) if config.norm in places else NoNorm
            return kind(width, bias=config.bias == "all", pack=pack)

        read = self.mlp_inputs * config.d_model
        self.n1, self.n2 = norm("pre", "peri"), norm("pre", "peri", width=read)
        self.o1, self.o2 = norm("peri"), norm("peri")
        self.p1, self.p2 = norm("post") if self.first_join else norm(), norm("post")
        self.attention = Attention(config, pack, position)
        self.mlp = MLP(config, read, pack)
        self.attention_dropout = Dropout(config.dropout, f"blocks.{index}.attention", dice)
        self.mlp_dropout = Dropout(config.dropout, f"blocks.{index}.mlp", dice)

    def attend(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """A(x) = O1 Attn(N1 x), and dropout."""
        return self.attention_dropout(self.o1(self.attention(self.n1(x), bias)))

    def feed(self, h: Tensor) -> Tensor:
        """M(h) = O2 MLP(N2 h), and dropout."""
        return self.mlp_dropout(self.o2(self.mlp(self.n2(h))))


class Serial(Block):
    """h = P1(x + A(x)); y = P2(h + M(h))."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        h = self.p1(x + self.attend(x, bias))
        return self.p2(h + self.feed(h))


class NoAttentionSkip(Block):
    """h = P1(A(x)); y = P2(h + M(h))."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        h = self.p1(self.attend(x, bias))
        return self.p2(h + self.feed(h))


class NoMlpSkip(Block):
    """h = P1(x + A(x)); y = P2(M(h))."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        h = self.p1(x + self.attend(x, bias))
        return self.p2(self.feed(h))


class Concat(Block):
    """y = P2(M([x ; P1(A(x))])), N2 over 2·d_model."""

    mlp_inputs = 2

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.p2(self.feed(torch.cat((x, self.p1(self.attend(x, bias))), -1)))


class OuterSkip(Block):
    """y = P2(x + M(P1(A(x))))."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.p2(x + self.feed(self.p1(self.attend(x, bias))))


class DoubleSkip(Block):
    """h = P1(x + A(x)); y = P2(x + h + M(h))."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        h = self.p1(x + self.attend(x, bias))
        return self.p2(x + h + self.feed(h))


class Parallel(Block):
    """y = P2(x + A(x) + M(x)), no P1."""

    first_join = False

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.p2(x + self.attend(x, bias) + self.feed(x))


class NoSkip(Block):
    """y = P2(M(P1(A(x))))."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return self.p2(self.feed(self.p1(self.attend(x, bias))))
