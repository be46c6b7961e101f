"""Pairs of source and target: a document `source<TAB>target` is one row of a batch.

A row of a batch is n_ctx + 1 tokens from the start of a document on. What lies behind the
document's end in it belongs to other documents and is neither read nor scored.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ablate.config import RunConfig
from ablate.data.objectives import Example
from ablate.text.pairs import Spelled, marks


class Pairs:
    """The target, token by token and with its end, given the source. Source: Sutskever et al. 2014.

    An encoder-decoder reads the source in its encoder, and its decoder begins with the mark. A
    model with one stack reads source, mark and target as one text.
    """

    def __init__(self, configs: Sequence[RunConfig], tokens: Spelled, device: torch.device | str):
        self._n_runs = len(configs)
        self._encodes = configs[0].part("architecture").encodes
        self.mark, self.end = marks(tokens)

    def load(self, configs: Sequence[RunConfig]) -> None:
        assert len(configs) == self._n_runs

    def train(self, windows: Tensor, step: Tensor | int, row: int = 0) -> Example:
        length = windows.shape[-1] - 1
        index = torch.arange(length + 1, device=windows.device)

        def first(found: Tensor) -> Tensor:
            """Return the place of the first True of each row, [K, B, 1]; `length` without one."""
            return torch.where(found, index, length).amin(-1, keepdim=True)

        mark = first(windows == self.mark)
        end = first((windows == self.end) & (index > mark))
        if not self._encodes:
            inputs, targets = windows[..., :-1], windows[..., 1:]
            scored = (index[1:] > mark) & (index[1:] <= end)
            return Example(
                torch.where(index[:-1] <= end, inputs, self.end), targets, scored.float()
            )
        # the target from the mark on, moved to the start of the row
        moved = windows.gather(-1, (mark + index).clamp(max=length))
        left = end - mark  # tokens of the target, with its end
        inputs = torch.where(index[:-1] < left, moved[..., :-1], self.end)
        scored = index[1:] <= left
        inside = index[:-1] < mark
        source = torch.where(inside, windows[..., :-1], self.end)
        starts = torch.where(inside, 0, mark)
        return Example(inputs, moved[..., 1:], scored.float(), None, source, starts)

    def test(self, windows: Tensor, row: int = 0) -> Example:
        return self.train(windows.expand(self._n_runs, *windows.shape), 0)
