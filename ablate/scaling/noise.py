"""Distances of runs from a curve and from each other: misfit, and the few runs far off."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ablate.scaling.solve import Floats

MISFIT = 2.0  # residuals larger than this times the noise from run to run are the form's fault
# residuals larger than this are, where no run is repeated: seeds differ by a percent or so
HOPELESS = 0.1
FAR = 6.0  # times the usual residual (a normal's sd by the median): as good as never by chance
FAR_AT_LEAST = 0.01  # of the loss; nearer than that no run is far off
MOST_FAR = 0.1  # of the runs; where more are far off, that is how residuals are spread
RUNS_A_CONSTANT = 4  # fewest runs a constant to know the usual residual


def repeated_noise(cells: npt.NDArray[np.intp], log_loss: Floats) -> float:
    """Return the sd of log loss among runs of one cell, cells [V, P]; NaN below 5 dof."""
    _, member, runs = np.unique(cells, axis=1, return_inverse=True, return_counts=True)
    within = log_loss - (np.bincount(member, log_loss) / runs)[member]
    spare = (runs - 1).sum()
    return float(np.sqrt((within**2).sum() / spare)) if spare >= 5 else float("nan")


def misfit(residual: float, noise: float) -> str:
    """Return the note for a curve that does not describe its runs; noise may be NaN."""
    if math.isnan(noise):
        far = f"The runs deviate from the curve by {residual:.1%}, more than noise explains"
        return f"{far}: the form does not describe them, and its constants are meaningless."
    return (
        f"The runs deviate from the curve by {residual:.2%}, but their noise is {noise:.2%}: the"
        " form does not describe them, and its intervals do not include this misfit."
    )


def describes(residual: float, noise: float) -> bool:
    """Return whether a residual is no larger than the noise (NaN if unknown) explains."""
    return not residual > (HOPELESS if math.isnan(noise) else MISFIT * noise)


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
