"""The mean of one sample against a fixed value, by Student's t."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ablate.stats.distributions import t_cdf, t_isf
from ablate.stats.values import spread


@dataclass(frozen=True)
class OneSample:
    """A mean and its test.

    Attributes:
        n: Finite values.
        mean: Their mean.
        lo: Lower end of its 95% t-interval.
        hi: Upper end of it.
        p: One-sided p value of a true mean that is not beyond the threshold.
    """

    n: int
    mean: float
    lo: float
    hi: float
    p: float


def one_sample(
    values: ArrayLike, threshold: float, *, goal: str, confidence: float = 0.95
) -> OneSample:
    """Test whether the mean of a sample is beyond a threshold, in the direction that is better.

    Args:
        values: One a seed; values that are not finite are left out.
        threshold: The value to beat.
        goal: "min": the mean is to be below it; "max": above it.
        confidence: Of the two-sided interval of the mean.

    Returns:
        The mean, its interval and the one-sided p of a mean that is not beyond the threshold.
    """
    sample = np.asarray(values, float)
    sample = sample[np.isfinite(sample)]
    n, nan = len(sample), math.nan
    mean = float(sample.mean()) if n else nan
    error = spread(sample) / math.sqrt(n) if n > 1 else nan
    if not error > 0:
        return OneSample(n, mean, nan, nan, nan)
    half = float(t_isf((1 - confidence) / 2, n - 1)) * error
    distance = (mean - threshold) / error
    p = float(t_cdf(distance if goal == "min" else -distance, n - 1))
    return OneSample(n, mean, mean - half, mean + half, p)
