"""Norms over the last axis, [K, …, width] → [K, …, width], in the parameters' precision.

ε is the run's norm_epsilon.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.config import RunConfig
from ablate.model.layers import across


class NoNorm(nn.Module):
    """The identity, wherever a norm could stand."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return x


class LayerNorm(nn.Module):
    """gain · (x − mean) / √(variance + ε) + bias, gain and bias [K, width]."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()
        self.epsilon = config.norm_epsilon
        self.gain = nn.Parameter(torch.ones(pack, width))
        self.bias = nn.Parameter(torch.zeros(pack, width)) if config.part("bias").present else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.layer_norm(x.to(self.gain.dtype), x.shape[-1:], eps=self.epsilon)
        y = y * across(self.gain, x)
        return y if self.bias is None else y + across(self.bias, x)


class RMSNorm(nn.Module):
    """gain · x / √(mean of squares + ε), gain [K, width]."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()
        self.epsilon = config.norm_epsilon
        self.gain = nn.Parameter(torch.ones(pack, width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.to(self.gain.dtype), x.shape[-1:], eps=self.epsilon) * across(
            self.gain, x
        )


class ScalarLayerNorm(nn.Module):
    """LayerNorm with one gain [K, 1] for all channels and no bias."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()
        self.epsilon = config.norm_epsilon
        self.gain = nn.Parameter(torch.ones(pack, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.to(self.gain.dtype), x.shape[-1:], eps=self.epsilon) * across(
            self.gain, x
        )
