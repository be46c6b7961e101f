"""Parts of one's own: an activation, a norm with a gain, and a position encoding.

`studies/own-parts.toml` compares them with those that ablate has; docs/own-parts.md explains them.
`ablate check studies/own_parts.py` says what holds of them.
"""

import torch
from torch import nn

from ablate import Field, level


@level("activation", "squared-relu", meaning="relu(x)²", source="So et al. 2021, arXiv:2109.08668")
def squared_relu(x):
    return torch.relu(x) ** 2


@level(
    "norm_kind",
    "p-norm",
    meaning="gain · x / (mean of |x|^p)^(1/p), gain per channel",
    source="docs/own-parts.md",
)
class PNorm(nn.Module):
    fields = (Field("norm_p", float, 2.0, "Power p of the p-norm."),)

    def __init__(self, width, norm_p):
        super().__init__()
        self.p = norm_p
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        size = x.abs().pow(self.p).mean(-1, keepdim=True).add(1e-5).pow(1 / self.p)
        return self.gain * x / size


@level(
    "position",
    "decay",
    meaning="scores lowered by a learned slope · distance, one slope a head",
    source="docs/own-parts.md",
)
class Decay(nn.Module):
    any_length = True

    def __init__(self, n_head):
        super().__init__()
        self.slope = nn.Parameter(torch.linspace(0, 0.5, n_head))

    def bias(self, distance):
        return -self.slope[:, None, None] * distance.abs()
