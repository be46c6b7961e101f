"""The MLP."""

from __future__ import annotations

from torch import Tensor, nn

from ablate.config import RunConfig
from ablate.model.layers import Linear


class MLP(nn.Module):
    """[K, B, T, d_in] → [K, B, T, C]: W_2 act(W_1 x), or W_2 (act(W_g x) · W_1 x) where the
    activation is gated.
    """

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        """Make the MLP that reads `width` channels."""
        super().__init__()
        bias, activation = config.part("bias").present, config.part("activation")
        self.activation = activation.build(config, pack, config.d_mlp)
        self.hidden = Linear(width, config.d_mlp, bias=bias, pack=pack)
        self.gate = Linear(width, config.d_mlp, bias=bias, pack=pack) if activation.gated else None
        added = config.part("topology").adds_mlp
        self.output = Linear(config.d_mlp, config.d_model, bias=bias, pack=pack, ends_branch=added)
        self.outer = config.part("outer_activation").build(config, pack, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output in the precision of x."""
        hidden = self.hidden(x)
        hidden = (
            self.activation(hidden) if self.gate is None else self.activation(self.gate(x)) * hidden
        )
        y: Tensor = self.outer(self.output(hidden).to(x.dtype))
        return y
