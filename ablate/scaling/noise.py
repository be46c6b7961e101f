"""Distances of runs from a curve and from each other: misfit, and the few runs far off."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ablate.scaling.solve import Floats
from ablate.stats.distributions import f_sf

REPEATS = "repeated runs"
SIGNIFICANT = 0.01  # p below which residuals are larger than the noise from run to run
# A misfit matters from this share of the loss on; beyond a known noise, from this share of the sd
# of the log losses: the curve explains less than 99% of their variance.
HOPELESS, OF_SPREAD = 0.1, 0.1
FAR = 6.0  # times the usual residual (a normal's sd by the median): as good as never by chance
FAR_AT_LEAST = 0.01  # of the loss; nearer than that no run is far off
MOST_FAR = 0.1  # of the runs; where more are far off, that is how residuals are spread
RUNS_A_CONSTANT = 4  # fewest runs a constant to know the usual residual


@dataclass(frozen=True)
class Noise:
    """The sd of log loss from run to run, and its degrees of freedom."""

    sd: float
    dof: int
    of: str  # `REPEATS` | "roughness of the curves"


@dataclass(frozen=True)
class Misfit:
    """How far runs are from their curve, and what their noise does not explain.

    Attributes:
        residual: Sd of log loss about the curve.
        size: Sd of what noise does not explain; the residual where noise is unknown.
        share: The same as a share of the sd of the log losses.
        noise: None if no run is repeated.
    """

    residual: float
    size: float
    share: float
    noise: Noise | None

    @property
    def describes(self) -> bool:
        """Whether the curve describes its runs well enough to be used."""
        small = self.noise is None or self.share <= OF_SPREAD
        return small and self.size <= HOPELESS

    def __str__(self) -> str:
        noise = (
            ""
            if self.noise is None
            else f", their noise by the {self.noise.of} is {self.noise.sd:.2%}: the form is off by"
            f" {self.size:.2%}"
        )
        follows = (
            " Intervals count that as an error that runs share."
            if self.describes
            else " The form does not describe them, and its constants are meaningless."
        )
        return (
            f"The runs deviate from the curve by {self.residual:.2%}{noise},"
            f" {self.share:.0%} of the spread of the losses.{follows}"
        )


def misfit(residual: float, dof: int, log_loss: Floats, noise: Noise | None) -> Misfit | None:
    """Return the misfit of a curve; None if noise explains the residuals or nothing is known.

    Args:
        residual: Sd of log loss about the curve.
        dof: Runs minus constants.
        log_loss: [P].
        noise: From run to run, if it is known.
    """
    spread = max(float(np.std(log_loss)), 1e-12)
    if noise is None:
        found = Misfit(residual, residual, residual / spread, None)
        return None if found.describes else found
    ratio = (residual / max(noise.sd, 1e-12)) ** 2
    if ratio <= 1 or f_sf(ratio, max(dof, 1), noise.dof) > SIGNIFICANT:
        return None
    size = math.sqrt(residual**2 - noise.sd**2)
    return Misfit(residual, size, size / spread, noise)


def noise_of_repeats(cells: npt.NDArray[np.intp], log_loss: Floats) -> Noise | None:
    """Return the noise among runs of one cell, cells [V, P]; None below 5 degrees of freedom."""
    _, member, runs = np.unique(cells, axis=1, return_inverse=True, return_counts=True)
    member = member.reshape(-1)
    within = log_loss - (np.bincount(member, log_loss) / runs)[member]
    spare = int((runs - 1).sum())
    if spare < 5:
        return None
    return Noise(float(np.sqrt((within**2).sum() / spare)), spare, REPEATS)


def residual_sd(residuals: Floats, constants: int) -> float:
    """Return the sd of residuals [P] of a fit with so many constants."""
    return float(np.sqrt((residuals**2).sum() / max(len(residuals) - constants, 1)))


def far_off(residuals: Floats, constants: int) -> npt.NDArray[np.bool_]:
    """Return which residuals [P] of log loss are far from the others.

    A robust fit goes through about as many runs as it has constants; the usual residual is the
    median of the others.
    """
    size = np.abs(residuals)
    none = np.zeros(len(size), bool)
    if len(size) < RUNS_A_CONSTANT * constants:
        return none
    usual = 1.4826 * np.median(np.sort(size)[constants:])
    far = size > max(FAR * usual, FAR_AT_LEAST)
    return far if far.mean() <= MOST_FAR else none
