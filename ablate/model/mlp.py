"""The MLP and its nonlinearities."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ablate.config import RunConfig
from ablate.factors import factor
from ablate.model.layers import Linear


class Gelu(nn.Module):
    """x·Φ(x), exact; and the base of all others."""

    gated = False  # whether the MLP multiplies by a second hidden vector

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class GeluTanh(Gelu):
    """GELU by its tanh approximation."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class Relu(Gelu):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


class SwiGLU(Gelu):
    """x·σ(x) of a gate, which multiplies the hidden vector."""

    gated = True

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(x)


class MLP(nn.Module):
    """[K, B, T, d_in] → [K, B, T, C]: W_2 act(W_1 x), or W_2 (act(W_g x) · W_1 x) where the
    activation is gated.
    """

    def __init__(self, config: RunConfig, d_in: int, pack: int) -> None:
        super().__init__()
        bias = config.bias == "all"
        self.activation = factor("activation").load(config.activation)()
        self.hidden = Linear(d_in, config.d_mlp, bias=bias, pack=pack)
        self.gate = (
            Linear(d_in, config.d_mlp, bias=bias, pack=pack) if self.activation.gated else None
        )
        self.output = Linear(config.d_mlp, config.d_model, bias=bias, pack=pack, ends_branch=True)
        self.outer = config.outer_activation == "relu"

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden(x)
        hidden = (
            self.activation(hidden) if self.gate is None else self.activation(self.gate(x)) * hidden
        )
        y = self.output(hidden).to(x.dtype)
        return F.relu(y) if self.outer else y
