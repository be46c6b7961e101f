"""Recurrent layers in the place of attention: torch's GRU and LSTM, one call a member of a pack."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.config import RunConfig
from ablate.model.attention import Attention
from ablate.model.layers import Linear


class Recurrent(nn.Module):
    """States of a recurrent cell that reads from the first token on: [K, B, T, C] → [K, B, T, C].

    The weights are those of `torch.nn.GRU` and `torch.nn.LSTM`: of the input, and of the state. It
    works in float32 at any precision of matrix products.
    """

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()
        cell, bias = config.part("rnn_cell"), config.part("bias").present
        self.lstm = cell.has_memory
        self.input = Linear(width, cell.gates * width, bias=bias, pack=pack)
        self.recurrent = Linear(width, cell.gates * width, bias=bias, pack=pack)

    def forward(self, x: Tensor, bias: Tensor | None = None, state: Tensor | None = None) -> Tensor:
        """Return the states.

        Args:
            x: [K, B, T, C].
            bias: Of scores, which it does not have.
            state: State before the first token, [K, B, C]; 0 by default. An LSTM's memory begins
                as it does.
        """
        if state is None:
            state = x.new_zeros(*x.shape[:2], x.shape[-1])
        parts = (self.input.weight, self.recurrent.weight, self.input.bias, self.recurrent.bias)
        with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
            wide = x if x.dtype == torch.float64 else x.float()
            states = [
                self._member(
                    wide[k], state[k].to(wide), [one[k] for one in parts if one is not None]
                )
                for k in range(len(x))
            ]
        return torch.stack(states).to(x.dtype)

    def _member(self, x: Tensor, state: Tensor, weights: list[Tensor]) -> Tensor:
        # biases, layers, dropout, keep what a backward pass needs, bidirectional, batch first
        options = (len(weights) > 2, 1, 0.0, torch.is_grad_enabled(), False, True)
        first = state[None].contiguous()
        found: Tensor = (
            torch.lstm(x, (first, first), weights, *options)
            if self.lstm
            else torch.gru(x, first, weights, *options)
        )[0]
        return found


class RecurrentAttention(nn.Module):
    """h + Attn(h) of the states h of a recurrent cell: [K, B, T, C] → [K, B, T, C]."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()
        self.cell = Recurrent(config, pack, width)
        self.over = Attention(config, pack, width)

    def forward(self, x: Tensor, bias: Tensor | None = None, state: Tensor | None = None) -> Tensor:
        """Return the mixed states; arguments as for `Recurrent` and `Attention`."""
        h = self.cell(x, None, state)
        mixed: Tensor = h + self.over(h, bias)
        return mixed
