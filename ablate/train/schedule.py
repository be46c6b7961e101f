"""Learning-rate schedules: the share of the peak rate at a step, by tensor operations alone."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor


class Schedule:
    """A linear rise over the warm-up, then `falling`."""

    def __call__(self, step: Tensor, steps: Tensor, warmup: Tensor) -> Tensor:
        """Return the share of the peak learning rate of an optimiser step.

        Args:
            step: 0 … steps − 1, floating.
            steps: Steps of the run.
            warmup: Steps of the rise, 0 for none; all three have one shape.
        """
        rising = ((step + 1) / warmup).clamp(max=1)
        return rising * self.falling(step, steps, warmup)

    def falling(self, step: Tensor, steps: Tensor, warmup: Tensor) -> Tensor:
        """Return the share after the warm-up; arguments are those of the call."""
        raise NotImplementedError


class Cosine(Schedule):
    """Half a cosine from 1 to a tenth over the steps after the warm-up."""

    def falling(self, step: Tensor, steps: Tensor, warmup: Tensor) -> Tensor:
        return 0.1 + 0.45 * (1 + (math.pi * _share(step, warmup, steps)).cos())


class Linear(Schedule):
    """Straight from 1 to 0 over the steps after the warm-up (Bergsma et al. 2025)."""

    def falling(self, step: Tensor, steps: Tensor, warmup: Tensor) -> Tensor:
        return 1 - _share(step, warmup, steps)


class Constant(Schedule):
    """1 after the warm-up."""

    def falling(self, step: Tensor, steps: Tensor, warmup: Tensor) -> Tensor:
        return (step * 0) + 1


class WarmupStableDecay(Schedule):
    """1, then 1 − √share over the last fifth of all steps (Hägele et al. 2024)."""

    def falling(self, step: Tensor, steps: Tensor, warmup: Tensor) -> Tensor:
        return 1 - _share(step, 0.8 * steps, steps).sqrt()


class Given(Schedule):
    """A function of (step, steps, warmup) after the warm-up, written by a user."""

    def __init__(self, falling: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        self._falling = falling

    def falling(self, step: Tensor, steps: Tensor, warmup: Tensor) -> Tensor:
        return self._falling(step, steps, warmup)


def _share(step: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return the share of the steps from `start` to `end` that are done, 0 where there are none."""
    return ((step - start) / (end - start).clamp(min=1)).clamp(0, 1)
