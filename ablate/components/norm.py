"""Norms: of the stream, of queries and keys, of embeddings."""

from __future__ import annotations

from typing import ClassVar

from ablate.components.base import Component, Config, Counts
from ablate.components.block import BERT, LECTURE, VASWANI
from ablate.components.catalogue import level

HENRY = "Henry et al. 2020, arXiv:2010.04245"
VIT_22B = "ViT-22B, arXiv:2302.05442"
ZHANG = "Zhang & Sennrich 2019, arXiv:1910.07467"


class Norm(Component):
    """Base of all norms. `width`: of the vectors that are normalised.

    Attributes:
        identity: Whether it changes nothing.
    """

    factors = ("norm_kind", "qk_norm", "embed_norm")
    adapter = "ablate.model.plain:Same"
    identity: ClassVar[bool] = False


@level("norm_kind", "layernorm", source="Ba et al. 2016, arXiv:1607.06450")
class LayerNorm(Norm):
    """Centre, divide by the standard deviation, gain (and bias) per channel."""

    module = "ablate.model.norm:LayerNorm"

    def sizes(self, config: Config, width: int) -> Counts:
        params = width * (2 if config.part("bias").present else 1)
        return Counts(params=params, streams=2 * width)


@level("norm_kind", "rmsnorm", source=ZHANG)
class RMSNorm(Norm):
    """Divide by the root mean square, gain per channel."""

    module = "ablate.model.norm:RMSNorm"

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts(params=width, streams=2 * width)


@level("norm_kind", "layernorm-scalar", source=LECTURE)
class ScalarLayerNorm(Norm):
    """Layernorm with one gain for all channels and no bias."""

    module = "ablate.model.norm:ScalarLayerNorm"

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts(params=1, streams=2 * width)


class Identity(Norm):
    """No norm."""

    module = "ablate.model.norm:NoNorm"
    identity = True

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts()


@level("norm_kind", "none", source="ReZero, arXiv:2003.04887, studies this")
class NoNorm(Identity):
    """The identity, wherever a norm would stand.

    No norm in the stream: one model with `norm = "none"`.
    """

    implies: ClassVar = {"norm": "none"}


# the norms of the stream also for queries and keys, and for embeddings
for _made, _factor, _name, _meaning, _source in (
    (Identity, "qk_norm", "none", "none", VASWANI),
    (RMSNorm, "qk_norm", "rmsnorm", "RMSNorm with a gain per channel", HENRY),
    (LayerNorm, "qk_norm", "layernorm", "LayerNorm with a gain per channel", VIT_22B),
    (Identity, "embed_norm", "none", "none", VASWANI),
    (LayerNorm, "embed_norm", "layernorm", "LayerNorm", f"{BERT}; BLOOM, arXiv:2211.05100"),
    (RMSNorm, "embed_norm", "rmsnorm", "RMSNorm", ZHANG),
):
    level(_factor, _name, meaning=_meaning, source=_source)(_made)
