"""A whole model of a user's own, with the interface of `ablate.model.transformer.Transformer`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from ablate.components.base import Component
from ablate.config import RunConfig
from ablate.model.layers import DropoutRng
from ablate.model.plain import Plain
from ablate.model.transformer import in_precision


class Whole(nn.Module):
    """tokens [K, B, T] → logits [K, B, T, V], by a plain module: [B, T] → [B, T, V].

    Attributes:
        recompute: Has no effect: the model has no blocks that could be computed again.
        blocks: None: it is compiled as a whole.
    """

    blocks: Sequence[nn.Module] = ()

    def __init__(
        self, component: Component, config: RunConfig, pack: int = 1, width: int = 0
    ) -> None:
        super().__init__()
        self.config, self.pack, self.recompute = config, pack, False
        self.rng = DropoutRng(pack)
        self.model = Plain(component, config, pack, width)
        in_precision(self, config)

    @property
    def n_params(self) -> int:
        """Parameters of one member of the pack."""
        return sum(parameter[0].numel() for parameter in self.parameters())

    def forward(self, tokens: Tensor, *read: Tensor | None) -> Tensor:
        return self.features(tokens)

    def features(self, tokens: Tensor, *read: Tensor | None, pieces: Any = None) -> Tensor:
        """Return the logits: they are the only features of the model."""
        logits = self.model.call("forward", tokens)
        shape = (*tokens.shape, self.config.n_vocab)
        return self.model.checked(logits, shape, logits)

    def hidden(self, tokens: Tensor, starts: Tensor | None = None) -> Tensor:
        """Return the hidden states of the model's own method `features`, [K, B, T, any width]."""
        states = self.model.call("features", tokens)
        width = states.shape[-1] if isinstance(states, Tensor) and states.ndim else 0
        return self.model.checked(states, (*tokens.shape, width), states)

    def head(self, features: Tensor) -> Tensor:
        """Return logits, which `features` are already."""
        return features

    def initialise(self, seeds: Sequence[int], data_seeds: Sequence[int] | None = None) -> None:
        """Give every member the values that the module's constructor draws, from its seed.

        Args:
            seeds: Seeds of the members' weights.
            data_seeds: Of what else a model of ablate's would draw.
        """
        assert len(seeds) == self.pack, (len(seeds), self.pack)
        self.model.initialise("model", seeds)
