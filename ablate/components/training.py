"""Learning-rate schedules and arithmetic."""

from __future__ import annotations

from typing import Any, ClassVar

from ablate.components.base import Component, Config
from ablate.components.catalogue import level


class Schedule(Component):
    """Base of the levels of `schedule`."""

    factors = ("schedule",)
    adapter = "ablate.train.schedule:Given"
    plain_hooks = ()
    called_with = ("step", "steps", "warmup")

    def make(self) -> Any:
        """Return the share of the peak rate as a function of step, steps and warm-up."""
        made = self.load()
        return made() if self.plain is None else made(self.plain)


@level(
    "schedule",
    "cosine",
    source="Loshchilov & Hutter 2017, arXiv:1608.03983; to a tenth: Hoffmann et al. 2022,"
    " arXiv:2203.15556",
)
class Cosine(Schedule):
    """Half a cosine down to a tenth."""

    module = "ablate.train.schedule:Cosine"


@level("schedule", "linear", source="Bergsma et al. 2025, arXiv:2502.15938")
class Linear(Schedule):
    """Straight down to zero."""

    module = "ablate.train.schedule:Linear"


@level("schedule", "constant", source="Hägele et al. 2024, arXiv:2405.18392, compares with it")
class Constant(Schedule):
    """Not at all."""

    module = "ablate.train.schedule:Constant"


@level("schedule", "wsd", source="Hägele et al. 2024, arXiv:2405.18392")
class WarmupStableDecay(Schedule):
    """Constant, then 1 − √ down to zero over the last fifth."""

    module = "ablate.train.schedule:WarmupStableDecay"


class Optimiser(Component):
    """Base of the levels of `optimiser`, whose module takes the model alone."""

    factors = ("optimiser",)
    adapter = "ablate.train.optimiser:Given"
    plain_class = ("torch.optim.optimizer", "Optimizer")
    plain_hooks = ("step",)
    solo = "is a torch.optim.Optimizer, which serves one model"

    def make(self, model: Any, config: Config) -> Any:
        """Return the optimiser of a model."""
        made = self.load()
        return made(model) if self.plain is None else made(model, self, config)


@level("optimiser", "adamw", source="Loshchilov & Hutter 2019, arXiv:1711.05101")
class AdamW(Optimiser):
    """Adam with decoupled weight decay, betas 0.9 and 0.95."""

    module = "ablate.train.optimiser:AdamW"


class Precision(Component):
    """Base of the levels of `precision`.

    Attributes:
        stream: Bytes of a number of weights, stream, norms and loss.
        product: Bytes of a number of the matrix products.
        casts: Whether autocast casts weights and inputs of matrix products.
        dtype: Torch's name of the type of weights and stream.
        on_cpu: The level that `--size tiny` takes instead, for a CPU.
    """

    factors = ("precision",)
    stream: ClassVar[int] = 4
    product: ClassVar[int] = 4
    casts: ClassVar[bool] = False
    dtype: ClassVar[str] = "float32"

    @property
    def on_cpu(self) -> str:
        """The level that `--size tiny`, made for a CPU, takes instead."""
        return self.name


@level("precision", "float32", source="IEEE 2019 (standard 754)")
class Float32(Precision):
    """float32 throughout."""


@level("precision", "bfloat16", source="Kalamkar et al. 2019, arXiv:1905.12322")
class BFloat16(Precision):
    """bfloat16 matrix products."""

    product = 2
    casts = True
    on_cpu = "float32"


@level("precision", "float64", source="IEEE 2019 (standard 754)")
class Float64(Precision):
    """float64 throughout; for checks."""

    stream = product = 8
    dtype = "float64"
