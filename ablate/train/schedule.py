"""Learning-rate schedules: the share of the peak rate at a step, computed on the device, without a
branch.
"""

from __future__ import annotations

import math

from torch import Tensor


class Schedule:
    """A linear rise over the warm-up, then `falling`. One class a level of the factor
    `schedule`.
    """

    def __call__(self, step: Tensor, steps: Tensor, warmup: Tensor) -> Tensor:
        """The share of the peak learning rate with which optimiser step `step` (0 … steps − 1) is
        made.

        step, steps: numbers of steps, floating; warmup: the steps that the rise takes (0 for none).
        Any one shape.
        """
        rising = ((step + 1) / warmup).clamp(max=1)
        return rising * self.falling(step, steps, warmup)

    def falling(self, step: Tensor, steps: Tensor, warmup: Tensor) -> Tensor:
        raise NotImplementedError


class Cosine(Schedule):
    """Half a cosine from 1 to a tenth over the steps behind the warm-up (Hoffmann et al. 2022)."""

    def falling(self, step: Tensor, steps: Tensor, warmup: Tensor) -> Tensor:
        return 0.1 + 0.45 * (1 + (math.pi * _share(step, warmup, steps)).cos())


class Linear(Schedule):
    """Straight from 1 to 0 over the steps behind the warm-up (Bergsma et al. 2025)."""

    def falling(self, step: Tensor, steps: Tensor, warmup: Tensor) -> Tensor:
        return 1 - _share(step, warmup, steps)


class Constant(Schedule):
    """1 behind the warm-up."""

    def falling(self, step: Tensor, steps: Tensor, warmup: Tensor) -> Tensor:
        return (step * 0) + 1


class WarmupStableDecay(Schedule):
    """1, then 1 − √share over the last fifth of all steps (Hägele et al. 2024)."""

    def falling(self, step: Tensor, steps: Tensor, warmup: Tensor) -> Tensor:
        return 1 - _share(step, 0.8 * steps, steps).sqrt()


def _share(step: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """How much of the way from `start` to `end` lies behind `step`, within 0 and 1; 0 where there
    is no way.
    """
    return ((step - start) / (end - start).clamp(min=1)).clamp(0, 1)
