"""The MLP and its nonlinearity."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from ablate.components.base import Component, Config, Counts, linear
from ablate.components.block import VASWANI
from ablate.components.catalogue import level

if TYPE_CHECKING:
    from torch import Tensor

HENDRYCKS = "Hendrycks & Gimpel 2016, arXiv:1606.08415"


class Mlp(Component):
    """Base of the levels of `mlp`. `width`: of what the MLP reads; it returns d_model."""

    factors = ("mlp",)
    adapter = "ablate.model.plain:ToStream"


@level("mlp", "dense", source=VASWANI)
class Dense(Mlp):
    """W_2 act(W_1 x), or W_2 (act(W_g x) · W_1 x) where the activation is gated."""

    module = "ablate.model.mlp:MLP"

    def sizes(self, config: Config, width: int) -> Counts | None:
        """The activation states those of the whole MLP."""
        sizes: Counts | None = config.part("activation").sizes(config, width)
        return sizes


class Activation(Component):
    """Base of all activations. `width`: of what the MLP reads.

    An activation without weights is a function of the hidden vector, `apply`.

    Attributes:
        gated: Whether the MLP has a third matrix, whose output's activation multiplies the hidden
            vector.
        kept: Numbers that a hidden channel keeps for the backward pass.
    """

    factors = ("activation",)
    hooks = ("apply",)
    adapter = "ablate.model.plain:Same"
    gated: ClassVar[bool] = False
    kept: ClassVar[int] = 2

    def d_mlp(self, d_model: int) -> int:
        """Return the default hidden width: that of equal parameters with and without a gate."""
        return round(8 * d_model / 3) if self.gated else 4 * d_model

    def sizes(self, config: Config, width: int) -> Counts | None:
        """Return the sizes of the whole MLP: W_2 act(W_1 x), or W_2 (act(W_g x) · W_1 x)."""
        if self.module:
            return None
        bias, up = config.part("bias").present, 2 if self.gated else 1
        # autocast casts the input of each of two matrices anew
        inputs = width * (up if config.part("precision").casts else 1)
        kept = config.d_mlp * (2 * self.kept if self.gated else self.kept)
        matrices = linear(width, config.d_mlp, bias) * up + linear(
            config.d_mlp, config.d_model, bias
        )
        return matrices + Counts(products=inputs + kept)

    def build(self, config: Config, pack: int, width: int) -> Callable[[Tensor], Tensor]:
        """Return `apply`, or the torch module of an activation that has one."""
        return super().build(config, pack, width) if self.module else self.apply

    def apply(self, x: Any) -> Any:
        """Return the activation of x [K, …, d_mlp]."""
        raise NotImplementedError


@level("activation", "gelu", source=HENDRYCKS)
class Gelu(Activation):
    """x·Φ(x), exact."""

    def apply(self, x: Tensor) -> Tensor:
        from torch.nn.functional import gelu

        return gelu(x)


@level("activation", "gelu-tanh", source=HENDRYCKS)
class GeluTanh(Activation):
    """GELU by its tanh approximation, as in GPT-2."""

    def apply(self, x: Tensor) -> Tensor:
        from torch.nn.functional import gelu

        return gelu(x, approximate="tanh")


@level("activation", "relu", source=VASWANI)
class Relu(Activation):
    """max(x, 0)."""

    kept = 1

    def apply(self, x: Tensor) -> Tensor:
        from torch.nn.functional import relu

        return relu(x)


@level("activation", "swiglu", source="Shazeer 2020, arXiv:2002.05202")
class SwiGLU(Activation):
    """silu(W_g x) · W_u x: a gated MLP of three matrices."""

    gated = True

    def apply(self, x: Tensor) -> Tensor:
        from torch.nn.functional import silu

        return silu(x)
