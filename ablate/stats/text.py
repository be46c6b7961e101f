"""The effect on new text: seeds and windows of text are both samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ablate.stats.crossed import mean_squares
from ablate.stats.distributions import norm_isf
from ablate.stats.pairs import Effect, paired
from ablate.stats.values import Floats, Noise

NAN = float("nan")
BLOCKS = 16  # the fewest blocks that windows are merged into
LAG_ALPHA = 0.05  # one-sided, of the lag-1 correlation of neighbouring blocks


@dataclass(frozen=True)
class TextEffect:
    """A paired effect, with an interval for new seeds and new text of the same kind."""

    n: int  # seeds that count
    lost: int  # seeds with a window that is not finite
    windows: int
    block: int  # neighbouring windows that count as one, for their correlation
    lag_correlation: float  # of neighbouring windows' means over seeds
    mean: float
    lo: float  # for new seeds and new text
    hi: float
    p: float  # two-sided, for new seeds and new text
    seed_lo: float  # for new seeds on this text
    seed_hi: float
    seed_sd: float  # of the effect over seeds; the parts of the noise, not below 0
    window_sd: float  # of the effect over windows, or blocks of them
    residual_sd: float
    confidence: float


def seed_by_text(differences: npt.ArrayLike, *, confidence: float = 0.95) -> TextEffect:
    """Return the effect behind differences of seeds and windows, for new seeds and new text.

    Model: d = mean + seed + window + residual, all random. From the mean squares of a two-way
    analysis of variance, the mean's variance is (MS_seed + max(c·MS_window − MS_residual, 0)) /
    (S·W) with Satterthwaite's (1946) degrees of freedom, rounded down. Interval and p are never
    narrower than those for new seeds alone (variance MS_seed / (S·W), S − 1 degrees of freedom):
    the wider counts.

    Windows that follow each other may be alike. While the lag-1 correlation of their means over
    seeds is significant (one-sided 5%), neighbours are merged, 2, 4, … at a time, down to 16
    blocks. What is left of a positive correlation r enters as c = 1 + 2·r.

    Args:
        differences: [S, W], level minus baseline, a row a seed, a column a window of text in the
            text's order. A seed with a value that is not finite is lost. Below two seeds or two
            windows there is no interval.
        confidence: of both intervals.
    """
    d = np.asarray(differences, float)
    assert d.ndim == 2, d.shape
    keep = np.isfinite(d).all(axis=1)
    d, lost = d[keep], int((~keep).sum())
    seeds, windows = d.shape
    mean = float(d.mean()) if d.size else NAN
    if min(d.shape) < 2:
        none = (NAN,) * 8
        return TextEffect(seeds, lost, windows, 1, NAN, mean, *none, confidence=confidence)
    first = lag_correlation(d)
    block, blocks, r = independent(d)
    count = blocks.shape[1]
    seed, window, rest = mean_squares(blocks)
    seed_error = math.sqrt(seed / (seeds * count))
    if r > 0:
        window *= 1 + 2 * r
    extra = max(window - rest, 0.0)
    variance = seed + extra
    parts = seed**2 / (seeds - 1)
    if extra > 0:
        parts += window**2 / (count - 1) + rest**2 / ((seeds - 1) * (count - 1))
    df = max(1, math.floor(variance**2 / parts)) if parts > 0 else seeds - 1
    error = math.sqrt(variance / (seeds * count))
    on_this = Noise(((seed_error, seeds - 1),))
    on_new = Noise(((seed_error, seeds - 1), (error, df)))
    half, seed_half = on_new.half(confidence), on_this.half(confidence)
    return TextEffect(
        n=seeds,
        lost=lost,
        windows=windows,
        block=block,
        lag_correlation=first,
        mean=mean,
        lo=mean - half,
        hi=mean + half,
        p=2 * on_new.tail(abs(mean)),
        seed_lo=mean - seed_half,
        seed_hi=mean + seed_half,
        seed_sd=math.sqrt(max(seed - rest, 0.0) / count),
        window_sd=math.sqrt(extra / seeds),
        residual_sd=math.sqrt(rest),
        confidence=confidence,
    )


def over_windows(differences: Floats) -> tuple[int, Effect]:
    """Return the neighbouring windows that count as one, and the effect on new text, of one seed.

    Args:
        differences: [W], level minus baseline, in the text's order.
    """
    block, blocks, left = independent(differences[None])
    values = blocks[0]
    # a correlation that is left widens the interval, as in `seed_by_text`
    wider = math.sqrt(1 + 2 * left) if left > 0 else 1.0
    return block, paired(values.mean() + wider * (values - values.mean()))


def independent(d: Floats) -> tuple[int, Floats, float]:
    """Merge neighbouring windows of d [S, W] while they are significantly alike, to 16 blocks.

    Returns:
        Windows of a block, the means of the blocks, and the lag-1 correlation that is left.
    """
    block, blocks, r = 1, d, lag_correlation(d)
    while r > significant_lag(blocks.shape[1]) and d.shape[1] // (2 * block) >= BLOCKS:
        block *= 2
        blocks = merged(d, block)
        r = lag_correlation(blocks)
    return block, blocks, r


def lag_correlation(d: Floats) -> float:
    """Return the correlation of the means over seeds of neighbouring windows of d [S, W].

    NaN below four windows, and where they do not vary.
    """
    means = d.mean(axis=0)
    means = means - means.mean()
    total = float(means @ means)
    if len(means) < 4 or total == 0:
        return NAN
    return float(means[1:] @ means[:-1]) / total


def significant_lag(windows: int) -> float:
    """Return the lag-1 correlation that independent windows exceed in 5% of samples."""
    return float(norm_isf(LAG_ALPHA)) / math.sqrt(windows) - 1 / windows


def merged(d: Floats, block: int) -> Floats:
    """Return the means of blocks of neighbouring windows; the first blocks are one larger."""
    each, larger = divmod(d.shape[1], d.shape[1] // block)
    sizes = np.full(d.shape[1] // block, each)
    sizes[:larger] += 1
    sums: Floats = np.add.reduceat(d, np.cumsum(sizes) - sizes, axis=1)
    return sums / sizes
