"""Number of seeds: what n pairs can detect, how many an effect needs, Stein's two-stage rule."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import optimize, special

from ablate.errors import AblateError
from ablate.stats.distributions import chi2_cdf, chi2_ppf, t_isf
from ablate.stats.values import Values, finite, quantile, spread

POWER = 0.8
ALPHA = 0.05
NODES, WEIGHTS = special.roots_legendre(500)
NODES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2  # quadrature on (0, 1)


def power(
    n: int, effect: float, sd: float = 1.0, *, alpha: float = ALPHA, df: float | None = None
) -> float:
    """Return the chance that a two-sided paired t-test finds a true effect.

    From the noncentral t distribution, as an integral over the distribution of the estimated sd
    (scipy's own is NaN for few pairs and large effects). 0 below two pairs.

    Args:
        n: pairs.
        effect: the true one, in the unit of `sd`.
        sd: of the paired differences.
        alpha: of the test.
        df: degrees of freedom of the estimated sd; n − 1 unless it is that of a pilot.
    """
    assert sd > 0, sd
    if n < 2:
        return 0.0
    df = n - 1 if df is None else df
    edge = quantile(df, 1 - alpha)
    centre = abs(effect) / sd * math.sqrt(n)
    noise = np.sqrt(chi2_ppf(NODES, df) / df)  # estimated sd / true sd
    detected = special.ndtr(centre - edge * noise) + special.ndtr(-centre - edge * noise)
    return float(WEIGHTS @ detected)


@lru_cache(maxsize=1024)
def _resolvable_in_sd(n: int, target: float, alpha: float, df: float | None) -> float:
    if n < 2:
        return math.inf
    high = 1.0
    while power(n, high, alpha=alpha, df=df) < target:
        high *= 2
    return float(
        optimize.brentq(
            lambda effect: power(n, effect, alpha=alpha, df=df) - target, 0.0, high, xtol=1e-10
        )
    )


def resolvable(
    n: int, sd: float = 1.0, power: float = POWER, *, alpha: float = ALPHA, df: float | None = None
) -> float:
    """Return the smallest true effect that n pairs detect with a power.

    Args:
        n: pairs.
        sd: of the paired differences; with 1 the effect is in sd.
        power: the chance of detection.
        alpha: of the test.
        df: as in `power`.

    >>> round(resolvable(5), 2), round(resolvable(10), 2)
    (1.68, 1.0)
    """
    return _resolvable_in_sd(n, power, alpha, df) * sd


def seeds_needed(effect: float, sd: float, *, power: float = POWER, alpha: float = ALPHA) -> int:
    """Return the fewest pairs that detect a true effect with a power.

    Args:
        effect: not 0, in the unit of `sd`.
        sd: of the paired differences, above 0.
        power: the chance of detection.
        alpha: of the test.

    >>> seeds_needed(0.01, sd=0.01)
    10
    """
    assert effect != 0 and sd > 0, (effect, sd)
    low, high = 1, 2
    while resolvable(high, sd, power, alpha=alpha) > abs(effect):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (
            (low, middle)
            if resolvable(middle, sd, power, alpha=alpha) <= abs(effect)
            else (middle, high)
        )
    return high


def equivalence_power(n: int, margin: float, sd: float = 1.0, *, alpha: float = ALPHA) -> float:
    """Return the chance that two one-sided paired t-tests find equivalence of equal arms.

    The true effect is 0. Exact for normal noise, as an integral over the distribution of the
    estimated sd up to the sd at which no mean is equivalent. 0 below two pairs.

    Args:
        n: pairs.
        margin: above 0, in the unit of `sd`.
        sd: of the paired differences.
        alpha: of each one-sided test.
    """
    assert margin > 0 and sd > 0, (margin, sd)
    if n < 2:
        return 0.0
    df, edge = n - 1, float(t_isf(alpha, n - 1))
    reach = margin / sd * math.sqrt(n)
    top = float(chi2_cdf((reach / edge) ** 2 * df, df))
    noise = np.sqrt(chi2_ppf(NODES * top, df) / df)  # estimated sd / true sd
    return float(top * WEIGHTS @ (2 * special.ndtr(reach - edge * noise) - 1))


def proposed_margin(sd: float, n: int, *, power: float = POWER, alpha: float = ALPHA) -> float:
    """Return the smallest margin that n pairs of equal arms meet with a power.

    It is the margin of equivalence at which two one-sided tests find arms equivalent, whose true
    effect is 0, in 80% of studies: what the noise lets a study show, not what matters in practice.

    Args:
        sd: of the paired differences, above 0.
        n: pairs; the margin is infinite below two.
        power: the chance to find equivalence.
        alpha: of each one-sided test.

    >>> round(proposed_margin(1.0, 8), 2)
    1.15
    """
    if n < 2:
        return math.inf
    high = 1.0
    while equivalence_power(n, high, alpha=alpha) < power:
        high *= 2
    return sd * float(
        optimize.brentq(
            lambda margin: equivalence_power(n, margin, alpha=alpha) - power, 1e-9, high, xtol=1e-10
        )
    )


def two_stage(
    pilot: Values, resolution: float, *, confidence: float = 0.95, most: int | None = None
) -> int:
    """Return how many pairs Stein's rule (1945) requires in all, after a pilot.

    N = max(pilot, ⌈(t·s / resolution)²⌉) with s the sd of the pilot's paired differences and t on
    pilot − 1 degrees of freedom. The effect of all N differences is then `after_pilot`'s.

    Args:
        pilot: differences; lost pairs do not count.
        resolution: the half width of the interval, above 0.
        confidence: of the interval.
        most: the largest answer, and the answer where fewer than two whole pairs are left.

    Raises:
        AblateError: fewer than two whole pairs, and no `most`.
    """
    assert resolution > 0, resolution
    first, _ = finite(pilot)
    n = len(first)
    if n < 2:
        if most is None:
            raise AblateError(
                f"seeds: a pilot of {n} complete pairs does not show the noise; two are needed,"
                " five or more recommended."
            )
        return most
    required = max(n, math.ceil((quantile(n - 1, confidence) * spread(first) / resolution) ** 2))
    return required if most is None else min(required, most)
