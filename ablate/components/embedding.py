"""Embeddings and head."""

from __future__ import annotations

from typing import ClassVar

from ablate.components.base import Component, Config, Counts, linear
from ablate.components.block import VASWANI
from ablate.components.catalogue import factor, level
from ablate.components.norm import BERT


class Tie(Component):
    """Base of the levels of `tie_embeddings`.

    Attributes:
        tied: Whether the output head is the embedding matrix.
    """

    factors = ("tie_embeddings",)
    tied: ClassVar[bool] = False


@level("tie_embeddings", "untied", meaning="a matrix of its own", source=VASWANI)
class Untied(Tie):
    """A second matrix, n_vocab × d_model."""

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts(params=config.n_vocab * width)


@level(
    "tie_embeddings",
    "tied",
    meaning="the embedding matrix, transposed",
    source="Press & Wolf 2017, arXiv:1608.05859",
)
class Tied(Tie):
    """The embedding matrix."""

    tied = True


class HeadTransform(Component):
    """Base of the levels of `mlm_head_transform`. `width`: d_model.

    Attributes:
        logit_bias: Whether logits have a bias where the model has biases.
    """

    factors = ("mlm_head_transform",)
    logit_bias: ClassVar[bool] = False

    def flops(self, width: int) -> int:
        """Return FLOPs a token, which follow from the width alone."""
        return 0


@level("mlm_head_transform", "none", meaning="nothing", source=f"{VASWANI}, §3.4")
class NoTransform(HeadTransform):
    """The identity."""

    module = "torch.nn:Identity"

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts()


@level(
    "mlm_head_transform",
    "dense",
    meaning="a square matrix, the activation and a LayerNorm; with bias = all, also a bias on the"
    " logits",
    source=BERT,
)
class Dense(HeadTransform):
    """A matrix, the activation and a LayerNorm."""

    module = "ablate.model.transformer:MlmTransform"
    logit_bias = True

    def flops(self, width: int) -> int:
        return 2 * width * width

    def sizes(self, config: Config, width: int) -> Counts | None:
        bias = config.part("bias").present
        norm = factor("norm_kind")["layernorm"].sizes(config, width)
        own = linear(width, width, bias) + Counts(params=bias * config.n_vocab, streams=5 * width)
        return own + Counts(params=norm.params)
