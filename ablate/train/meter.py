"""The training series of a pack: values of each step, averaged into about 200 points a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SERIES = ("train_loss", "grad_norm", "lr")  # what a step records, in this order
POINTS = 200


@dataclass(frozen=True)
class Point:
    """Series of all members [K] at `step`, the number of steps made."""

    step: int
    values: dict[str, NDArray[np.float64]]


class Meter:
    """Means over the steps since the last point; for the learning rate the value at the point."""

    def __init__(self, steps: int, n_members: int):
        self.steps = steps
        self.every = -(-steps // POINTS)
        self.sums = np.zeros((len(SERIES), n_members))
        self.count = 0

    def add(self, first: int, block: NDArray[np.float64]) -> list[Point]:
        """Add the steps first + 1 … first + n and return the points that they complete.

        Args:
            first: Steps made before.
            block: Metrics, [n, len(SERIES), K].
        """
        points = []
        for step, row in enumerate(block, start=first + 1):
            self.sums += row
            self.count += 1
            if step % self.every == 0 or step == self.steps:
                values = dict(zip(SERIES, self.sums / self.count, strict=True))
                points.append(Point(step, values | {"lr": row[SERIES.index("lr")]}))
                self.sums[:] = 0
                self.count = 0
        return points
