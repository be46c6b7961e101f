"""One contrast: the differences of a level against its baseline, paired by seed, and what they say.

A difference that is not finite belongs to a pair one of whose runs diverged. It is a lost pair:
counted in `Effect.lost`, never part of a mean. What remains follows these rules:

- no pair: every number is NaN; one pair: the mean is known, its noise is not (sd, interval and p
  are NaN);
- two pairs and more: Student's t on n − 1 degrees of freedom;
- all differences exactly zero (the same runs under two names): interval [0, 0], p = 1;
- all differences equal but not zero: nothing was learnt about noise, so interval and p are NaN, as
  for one pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ablate.stats.crossed import crossed_noise
from ablate.stats.distributions import correlation_p, norm_isf, norm_sf, t_isf
from ablate.stats.planning import ALPHA, resolvable, two_stage
from ablate.stats.values import (
    Floats,
    Noise,
    Values,
    differences,
    finite,
    quantile,
    satterthwaite,
    spread,
    spreads,
)
from ablate.units import SAME

NAN = float("nan")
EXACT_PAIRS = 40  # the most pairs whose 2^n sign patterns `sign_flip` counts exactly


@dataclass(frozen=True)
class Effect:
    """A paired effect, in the metric's own unit. NaN: cannot be known from so few pairs."""

    n: int  # pairs that count
    lost: int  # pairs with a non-finite difference
    mean: float
    sd: float  # of the differences
    noise: Noise  # that interval and p rest on
    lo: float
    hi: float
    confidence: float  # of [lo, hi]
    p: float  # two-sided
    p_sign_flip: float  # two-sided, exact; a check on p that assumes symmetry only
    standardised: float  # mean / sd
    resolvable: float  # smallest true effect that a test on this noise finds in 80% of studies
    correlation: float = NAN  # of the two arms over seeds; NaN when only differences are known
    method: str = "paired t"
    p_holm: float = NAN  # within the family; set by `family`
    family_lo: float = NAN  # simultaneous interval within the family; set by `family`
    family_hi: float = NAN

    @property
    def significant(self) -> bool:
        """Whether p, Holm's in a family, is at most 1 − confidence."""
        return (self.p if math.isnan(self.p_holm) else self.p_holm) <= 1 - self.confidence

    @property
    def resolved(self) -> bool:
        """The former name of `significant`."""
        return self.significant


def paired(
    differences: Values, *, confidence: float = 0.95, crossed: npt.ArrayLike | None = None
) -> Effect:
    """Return the effect behind paired differences.

    Args:
        differences: [n], one a seed; a value that is not finite is a lost pair.
        confidence: of the interval.
        crossed: [n, 2], seeds of initialisation and of data order, where these are crossed. The
            noise is then that of `crossed_noise`, and there is no sign-flip test.

    Returns:
        Mean, Student-t interval, p and the smallest effect that n pairs detect with 80% power.

    >>> effect = paired([0.1, 0.3, 0.2, float("nan")])
    >>> effect.n, effect.lost, round(effect.mean, 3), round(effect.p, 4)
    (3, 1, 0.2, 0.0742)
    """
    d, lost = finite(differences)
    n, sd, noise = len(d), spread(d), noise_of(differences, crossed=crossed)
    mean = float(d.mean()) if n else NAN
    half = noise.half(confidence)
    return Effect(
        n=n,
        lost=lost,
        mean=mean,
        sd=sd,
        noise=noise,
        lo=mean - half,
        hi=mean + half,
        confidence=confidence,
        p=2 * noise.tail(abs(mean)),
        p_sign_flip=sign_flip(d) if crossed is None else NAN,
        standardised=mean / sd if sd > 0 else NAN,
        resolvable=detectable(n, noise, alpha=1 - confidence),
        method="paired t" if crossed is None else "crossed t",
    )


def compare(values: Values, baseline: Values, *, confidence: float = 0.95) -> Effect:
    """Return `paired` of two arms, with their correlation over seeds.

    The correlation says what pairing gained: var(difference) = var(a) + var(b) − 2·r·sd(a)·sd(b).

    Args:
        values: [n], one a seed.
        baseline: [n], of the same seeds.
        confidence: of the interval.
    """
    a, b = np.asarray(values, float), np.asarray(baseline, float)
    assert a.shape == b.shape, (a.shape, b.shape)
    effect = paired(differences(a, b), confidence=confidence)
    return replace(effect, correlation=pair_correlation(a, b))


def after_pilot(
    effect: Effect, differences: Values, pilot: Values, resolution: float | None = None
) -> Effect:
    """Return `effect` with the interval and test of Stein's rule (1945).

    Args:
        effect: of all differences.
        differences: [N], those of the pilot included.
        pilot: the differences that decided on N. With fewer than two whole pairs, or exactly equal
            arms, `effect` is returned unchanged.
        resolution: the half width that the pilot decided on N for; see `noise_of`.
    """
    if not pilot_spread(pilot):
        return effect
    noise = noise_of(differences, pilot, resolution)
    half, p = noise.half(effect.confidence), 2 * noise.tail(abs(effect.mean))
    return replace(
        effect,
        noise=noise,
        lo=effect.mean - half,
        hi=effect.mean + half,
        p=p,
        resolvable=detectable(effect.n, noise, alpha=1 - effect.confidence),
        method="two-stage t",
    )


def standard_errors(d: Floats) -> Floats:
    """Return the standard error of the mean of each row, [...]; NaN where it is not known.

    Args:
        d: Differences, [..., n]; those that are not finite are lost.
    """
    known, sd = np.isfinite(d), spreads(d)
    none = ~np.where(known, d, 0.0).any(axis=-1)
    errors = sd / np.sqrt(known.sum(axis=-1).clip(1))
    return np.where((sd > 0) | ((sd == 0) & none), errors, NAN)


def half_widths(d: Floats, confidence: float) -> Floats:
    """Return half the width of the t interval of the mean of each row, as `noise_of` has it.

    Args:
        d: As in `standard_errors`.
        confidence: Of each interval.
    """
    counts, which = np.unique(np.isfinite(d).sum(axis=-1), return_inverse=True)
    return np.asarray(t_isf((1 - confidence) / 2, counts - 1)[which] * standard_errors(d))


def noise_of(
    differences: Values,
    pilot: Values = (),
    resolution: float | None = None,
    crossed: npt.ArrayLike | None = None,
) -> Noise:
    """Return the noise of the mean of differences, some of which may be a pilot.

    After a pilot it is the pilot's sd and degrees of freedom, over √N: this makes coverage exact
    whatever N the pilot asked for; the sd of all N would be too small where the pilot's was. Where
    N is more than this pilot asked for, the wider of both noises counts, since a pilot shows too
    little of heavy-tailed noise.

    Args:
        differences: [N].
        pilot: the differences among them that decided on N.
        resolution: the half width that N was decided for; None where it was decided otherwise.
        crossed: [N, 2], as in `paired`; such seeds have no pilot.
    """
    if crossed is not None:
        return crossed_noise(differences, crossed)
    d, _ = finite(differences)
    n, error = len(d), float(standard_errors(d))
    if not (first := pilot_spread(pilot)):
        return Noise(((error, n - 1),))
    stein = first / math.sqrt(n), len(finite(pilot)[0]) - 1
    if resolution is not None and n <= two_stage(pilot, resolution):
        return Noise((stein,))
    return Noise((stein, (error, n - 1)))


def detectable(n: int, noise: Noise, *, alpha: float = ALPHA) -> float:
    """Return the smallest true effect that n pairs of this noise detect with 80% power.

    Each standard error counts with its own degrees of freedom, after a pilot the pilot's sd with
    the pilot's; the largest is the answer. NaN where the noise is not known or zero.

    Args:
        n: pairs.
        noise: of their mean.
        alpha: of the two-sided test.
    """
    if not all(error > 0 for error, _ in noise.errors):
        return NAN
    return max(
        resolvable(n, error * math.sqrt(n), alpha=alpha, df=df) for error, df in noise.errors
    )


def pilot_spread(pilot: Values) -> float:
    """Return the sd of the differences of a pilot; 0 for a pilot that shows none."""
    first, _ = finite(pilot)
    return spread(first) if len(first) > 1 else 0.0


def pair_correlation(a: Values, b: Values) -> float:
    """Return the Pearson correlation over whole pairs.

    NaN below three of them, and where an arm does not vary.

    Args:
        a: [n], one a seed.
        b: [n], of the same seeds.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    whole = np.isfinite(a) & np.isfinite(b)
    a, b = a[whole], b[whole]
    if len(a) < 3 or spread(a) == 0 or spread(b) == 0:
        return NAN
    return float(np.corrcoef(a, b)[0, 1])


@dataclass(frozen=True)
class Pairing:
    """Whether pairing two arms by seed pays."""

    n: int  # whole pairs
    correlation: float  # of the arms over seeds; NaN below three pairs
    width: float  # of the paired t interval
    unpaired_width: float  # of Welch's interval of the same values

    @property
    def ratio(self) -> float:
        """The paired interval's width over the unpaired one's; below 1 pairing pays."""
        return self.width / self.unpaired_width if self.unpaired_width > 0 else NAN


def pairing(values: Values, baseline: Values, *, confidence: float = 0.95) -> Pairing:
    """Compare the widths of the paired and of Welch's (1947) unpaired interval.

    Pairing removes the noise that both arms share and costs up to half of the degrees of freedom.
    Both intervals are of the whole pairs; the widths are NaN below two of them, or where
    differences are equal but not zero.

    Args:
        values: [n], one a seed.
        baseline: [n], of the same seeds.
        confidence: of both intervals.

    Returns:
        Both widths, in the unit of the values; `ratio` is below 1 where pairing pays.
    """
    a, b = np.asarray(values, float), np.asarray(baseline, float)
    whole = np.isfinite(a) & np.isfinite(b)
    a, b = a[whole], b[whole]
    n, unpaired = len(a), NAN
    parts = [spread(one) ** 2 / n for one in (a, b)] if n > 1 else [NAN]
    if (variance := sum(parts)) > 0:
        df = satterthwaite(parts, [n - 1, n - 1])
        unpaired = 2 * quantile(df, confidence) * math.sqrt(variance)
    return Pairing(
        n, pair_correlation(a, b), 2 * noise_of(differences(a, b)).half(confidence), unpaired
    )


@dataclass(frozen=True)
class Spread:
    """How differently two arms vary over the same seeds."""

    ratio: float  # the first arm's standard deviation over the other's
    p: float  # two-sided, of equal spread


def unequal_spread(a: Values, b: Values) -> Spread:
    """Test whether the values of two arms, paired by seed, have equal variances.

    Equal variances make the sums and the differences of the pairs uncorrelated; p is that of their
    correlation (Pitman 1939, Morgan 1939). NaN below four whole pairs, and where an arm or the
    difference does not vary.

    Args:
        a: [n], one a seed.
        b: [n], of the same seeds.

    Returns:
        The ratio of the standard deviations, a's over b's, and the two-sided p of equal ones.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    whole = np.isfinite(a) & np.isfinite(b)
    a, b = a[whole], b[whole]
    if len(a) < 4 or min(map(spread, (a, b, a + b, a - b))) == 0:
        return Spread(NAN, NAN)
    r = float(np.corrcoef(a + b, a - b)[0, 1])
    return Spread(spread(a) / spread(b), correlation_p(r, len(a)))


def sign_flip(differences: Values) -> float:
    """Return the two-sided p of the mean under all 2^n sign flips of the differences.

    Exact for noise that is symmetric about zero under the null, whatever its shape. The smallest
    possible value is 2/2^n, so fewer than six pairs never reach 0.05. Up to 40 pairs the patterns
    are counted (the sums of both halves are sorted and matched); beyond, the normal limit with
    variance Σd² is used. Lost pairs are left out; NaN without pairs.

    Args:
        differences: [n], one a seed.
    """
    d, _ = finite(differences)
    n, observed = len(d), abs(float(d.sum()))
    if n == 0:
        return NAN
    if n > EXACT_PAIRS:
        return float(2 * norm_sf(observed / math.sqrt(float(d @ d)))) if np.any(d) else 1.0
    left, right = flipped_sums(d[: n // 2]), np.sort(flipped_sums(d[n // 2 :]))
    # a sum equal to the observed one counts, rounding or not
    edge = observed - SAME * float(np.abs(d).sum())
    above = len(right) - np.searchsorted(right, edge - left, side="left")
    return min(1.0, 2 * int(above.sum()) / 2**n)


def sign_flip_floor(n: int, family_size: int = 1) -> float:
    """Return the smallest p that the sign-flip test can reach in a family after Holm.

    Args:
        n: pairs; without any it is NaN.
        family_size: contrasts that are corrected together.

    >>> sign_flip_floor(8, 7)
    0.0546875
    """
    return min(1.0, family_size * 2 / 2**n) if n else NAN


def flipped_sums(d: Floats) -> Floats:
    """Return the sums of d [n] under all sign patterns, [2^n]."""
    sums = np.zeros(1)
    for value in d:
        sums = np.concatenate([sums + value, sums - value])
    return sums


@dataclass(frozen=True)
class Equivalence:
    """Whether an effect lies within ±margin: two one-sided tests (Schuirmann 1987)."""

    margin: float
    p: float  # the larger of the two one-sided p
    lo: float  # the 1 − 2·alpha interval; inside ±margin exactly when p < alpha
    hi: float
    equivalent: bool


def equivalence(
    differences: Values,
    margin: float,
    *,
    alpha: float = 0.05,
    pilot: Values = (),
    resolution: float | None = None,
    crossed: npt.ArrayLike | None = None,
) -> Equivalence:
    """Test |true effect| < margin by two one-sided tests (Schuirmann 1987).

    Without a noise estimate nothing is equivalent (p is NaN).

    Args:
        differences: [n], paired by seed.
        margin: above 0.
        alpha: of each one-sided test.
        pilot: as in `noise_of`.
        resolution: as in `noise_of`.
        crossed: as in `noise_of`.

    Returns:
        The larger of the two p values, the 1 − 2·alpha interval, and whether p is below alpha.
    """
    assert margin > 0, margin
    d, _ = finite(differences)
    mean = float(d.mean()) if len(d) else NAN
    noise = noise_of(differences, pilot, resolution, crossed)
    half, p = noise.half(1 - 2 * alpha), noise.tail(margin - abs(mean))
    return Equivalence(margin, p, mean - half, mean + half, p < alpha)


def wilson(k: int, n: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return the interval of Wilson (1927) for a rate of k in n, such as diverged seeds.

    (0, 1) when n is 0.

    Args:
        k: Seeds that diverged, or of what the rate is.
        n: All seeds.
        confidence: of the interval.

    Returns:
        Lower and upper end, shares from 0 to 1.
    """
    assert 0 <= k <= n, (k, n)
    if n == 0:
        return 0.0, 1.0
    z = float(norm_isf((1 - confidence) / 2))
    centre = (k + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(k * (n - k) / n + z * z / 4)
    return (0.0 if k == 0 else centre - half), (1.0 if k == n else centre + half)
