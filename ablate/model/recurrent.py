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

    Attributes:
        kept: State, and memory of an LSTM, after what was read before, [K, B, C] each, in decoding;
            else None.
    """

    kept: dict[str, Tensor] | None = None

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
        begins = [*self.kept.values()] if self.kept else [state] * (2 if self.lstm else 1)
        parts = (self.input.weight, self.recurrent.weight, self.input.bias, self.recurrent.bias)
        with torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False):
            wide = x if x.dtype == torch.float64 else x.float()
            found = [
                self._member(
                    wide[k],
                    [one[k].to(wide) for one in begins],
                    [one[k] for one in parts if one is not None],
                )
                for k in range(len(x))
            ]
        states, *last = (torch.stack(one) for one in zip(*found, strict=True))
        if self.kept is not None:
            self.kept = {f"{number}": one.squeeze(1) for number, one in enumerate(last)}
        return states.to(x.dtype)

    def _member(self, x: Tensor, begins: list[Tensor], weights: list[Tensor]) -> tuple[Tensor, ...]:
        """Return the states [B, T, C], and the last state and, of an LSTM, memory, [1, B, C]."""
        # biases, layers, dropout, keep what a backward pass needs, bidirectional, batch first
        options = (len(weights) > 2, 1, 0.0, torch.is_grad_enabled(), False, True)
        first = tuple(one[None].contiguous() for one in begins)
        found: tuple[Tensor, ...] = (
            torch.lstm(x, first, weights, *options)
            if self.lstm
            else torch.gru(x, first[0], weights, *options)
        )
        return found

    def choose(self, rows: Tensor) -> None:
        """Keep what is kept of the sequences `rows`, [K·B]."""
        if self.kept:
            self.kept = {
                name: one.flatten(0, 1).index_select(0, rows).view_as(one)
                for name, one in self.kept.items()
            }


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
