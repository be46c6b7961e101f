"""Where the documents of a window start, for attention that stays within them."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Separated(Protocol):
    """What knows which tokens stand after each document."""

    @property
    def separator(self) -> tuple[int, ...]: ...


class Documents(Protocol):
    """A level of `document_mask`."""

    def starts(self, texts: Tensor) -> Tensor | None:
        """Return where each token's document starts, or None for a window that is one sequence.

        Args:
            texts: Tokens with nothing hidden, [K, B, T].
        """


class WholeWindow:
    """A window is one sequence."""

    def __init__(self, tokens: Separated) -> None:
        pass

    def starts(self, texts: Tensor) -> None:
        return None


class WithinDocuments:
    """A document ends with its separator; the first of a window may have begun before it."""

    def __init__(self, tokens: Separated) -> None:
        assert len(tokens.separator) == 1, "the plan refuses this"
        (self._separator,) = tokens.separator

    def starts(self, texts: Tensor) -> Tensor:
        index = torch.arange(texts.shape[-1], device=texts.device)
        first = (texts == self._separator).roll(1, -1) & (index > 0)
        return torch.where(first, index, 0).cummax(-1).values
