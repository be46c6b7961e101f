"""Outlying, grouped and failed seeds, pairing and best arms, against references and simulations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy import stats as st
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.proportion import proportion_confint

from ablate import stats
from ablate.stats.pairs import noise_of

NAN = float("nan")
INF = float("inf")
# held-out losses of one cell of a scaling study: seeds 0, 3 and 5 have learnt to copy
SERIAL = [1.195, 1.268, 1.272, 1.188, 1.275, 1.206, 1.279, 1.278]
COPY_LOSS = [3.34, 5.29, 5.16, 3.05, 5.16, 3.99, 5.31, 5.21]


def below(rate: float, samples: int) -> float:
    """The most a simulated rate exceeds by in one of 30,000 runs: four standard errors."""
    return rate + 4 * math.sqrt(rate * (1 - rate) / samples)


# Hodges–Lehmann, outlying seeds, seeds that were not seen


def test_hodges_lehmann_has_the_published_interval() -> None:
    """Hollander & Wolfe's depression factor, also in R's help of wilcox.test: 96.1% (−0.786,
    −0.010), estimate −0.46.
    """
    first = [1.83, 0.50, 1.62, 2.48, 1.68, 1.88, 1.55, 3.06, 1.30]
    second = [0.878, 0.647, 0.598, 2.05, 1.06, 1.29, 1.06, 3.14, 1.29]
    one = stats.hodges_lehmann(np.subtract(second, first))
    assert (one.n, one.lost) == (9, 0)
    assert (one.estimate, one.lo, one.hi) == pytest.approx((-0.46, -0.786, -0.010))
    assert one.confidence == pytest.approx(1 - 2 * 10 / 512)


@pytest.mark.parametrize("n", [6, 7, 8, 16, 25])
def test_hodges_lehmann_inverts_scipys_signed_rank_test(n: int) -> None:
    d = np.random.default_rng(n).standard_t(3, n) + 0.3
    one = stats.hodges_lehmann([*d, NAN])
    assert (one.n, one.lost) == (n, 1)
    assert one.confidence >= 0.95
    for inside, outside in ((one.lo + 1e-9, one.lo - 1e-9), (one.hi - 1e-9, one.hi + 1e-9)):
        assert st.wilcoxon(d - inside, method="exact").pvalue > 0.05
        beyond = st.wilcoxon(d - outside, method="exact").pvalue
        assert beyond <= 0.05 and beyond == pytest.approx(1 - one.confidence)


def test_hodges_lehmann_of_few_pairs_has_no_interval() -> None:
    for d in ([1.0, 2.0, 4.0, 5.0, 9.0], [0.5] * 7):
        one = stats.hodges_lehmann(d)
        assert one.estimate == np.median(d)
        assert all(math.isnan(x) for x in (one.lo, one.hi, one.confidence))
    assert math.isnan(stats.hodges_lehmann([NAN]).estimate)
    same = stats.hodges_lehmann([0.0] * 7)
    assert (same.estimate, same.lo, same.hi) == (0, 0, 0)
    five = stats.hodges_lehmann([1.0, 2.0, 4.0, 5.0, 9.0], confidence=0.9)
    assert (five.lo, five.hi, five.confidence) == (1, 9, 1 - 2 / 32)


def test_one_bad_seed_moves_the_mean_not_the_estimate() -> None:
    d = [0.010, 0.012, 0.008, 0.011, 0.009, 0.013, 0.007, 0.9]
    one, effect = stats.hodges_lehmann(d), stats.paired(d)
    assert one.estimate < 0.02 < effect.mean
    assert one.lo > 0 > effect.lo
    assert stats.outlying(d).seeds == (7,)


def test_outlying_by_hand() -> None:
    # of 9: the others' median 3, deviations 2 1 0 1 2 2 3 …; here 1 2 3 4 5 → MAD 1
    found = stats.outlying([1.0, 2.0, 3.0, 4.0, 5.0, NAN, 103.0])
    assert found.scores[6] == pytest.approx(100 / 1.4826022185056018)
    assert math.isnan(found.scores[5]) and found.seeds == (6,)
    both = stats.outlying([10.0, 11, 12, 10.5, 11.5, 300, -900, 10.2])
    assert both.seeds == (6, 5), "two bad seeds do not hide each other; the farthest first"
    assert stats.outlying([1.0, 2.0, 99.0]).seeds == ()
    assert stats.outlying([1.0, 1.0, 1.0, 1.0, 1.5]).seeds == (), "no spread shows no noise"


@pytest.mark.parametrize("n", [5, 8, 16, 40])
def test_normal_noise_rarely_has_an_outlying_seed(n: int) -> None:
    x = np.random.default_rng(n).normal(size=(1500, n))
    rate = np.mean([bool(stats.outlying(one).seeds) for one in x])
    assert rate <= below(0.05, 1500)
    x[:, 0] += 30
    assert np.mean([0 in stats.outlying(one).seeds for one in x]) > 0.9


@pytest.mark.parametrize("n", [1, 5, 8, 16])
def test_unseen_is_clopper_and_pearsons_bound(n: int) -> None:
    assert stats.unseen(n) == pytest.approx(
        st.binomtest(0, n, alternative="less").proportion_ci(0.95, "exact").high
    )
    assert stats.unseen(0) == 1


# groups of seeds


def test_the_scaling_studys_seeds_fall_into_two_groups() -> None:
    found = stats.seed_groups(SERIAL)
    assert found.members == ((0, 3, 5), (1, 2, 4, 6, 7))
    assert found.means == pytest.approx((1.19633, 1.2744), abs=1e-5)
    assert found.gap == pytest.approx(0.062)
    assert found.separated and found.p < 0.01
    copied = stats.group_association(found, COPY_LOSS)
    assert copied.above == 1 and copied.p == pytest.approx(2 / 56)
    assert copied.means == pytest.approx((3.46, 5.226))


def test_a_split_by_hand() -> None:
    """Each pair has the sum of squares 0.5: √(1/2) on two degrees of freedom."""
    found = stats.seed_groups([11.0, 0.0, NAN, 10.0, 1.0])
    assert found.members == ((1, 4), (0, 3))
    assert (found.gap, found.within) == pytest.approx((9, math.sqrt(0.5)))


def test_groups_do_not_depend_on_unit_sign_and_order() -> None:
    found = stats.seed_groups(SERIAL)
    mirrored = stats.seed_groups(-100 * np.array(SERIAL) + 7)
    assert mirrored.members == found.members[::-1] and mirrored.p == found.p
    assert stats.seed_groups(SERIAL[::-1]).p == found.p


def test_too_few_or_equal_values_have_no_groups() -> None:
    for values in ([], [1.0], [1.0, 2.0], [2.0, 2.0, 2.0], [0.5, 0.5, 0.7], [0.1 * 3, 0.3, 0.3]):
        found = stats.seed_groups(values)
        assert math.isnan(found.p) and not found.separated
        assert sum(map(len, found.members)) == len(values)


@pytest.mark.parametrize("noise", ["normal", "t3", "exponential"])
@pytest.mark.parametrize("n", [3, 5, 8, 16])
def test_noise_without_groups_is_rarely_separated(n: int, noise: str) -> None:
    rng = np.random.default_rng(100 + n)
    shape = (1000, n)
    x = {
        "normal": lambda: rng.normal(size=shape),
        "t3": lambda: rng.standard_t(3, shape),
        "exponential": lambda: -rng.exponential(size=shape),
    }[noise]()
    assert np.mean([stats.seed_groups(one).separated for one in x]) <= below(0.05, 1000)


def test_a_difference_within_groups_is_least_squares_with_fixed_effects() -> None:
    rng = np.random.default_rng(5)
    groups = [f"g{number}" for number in range(6) for _ in range(5)]
    marked = np.array([number % 5 <= number // 5 % 4 for number in range(30)], float)
    values = rng.normal(size=30) + 0.7 * marked + 10 * np.repeat(np.arange(6), 5)
    frame = pd.DataFrame({"y": values, "x": marked, "g": groups})
    reference = smf.ols("y ~ x + C(g)", frame).fit()
    found = stats.within_groups(values, marked, groups)
    assert found.mean == pytest.approx(reference.params["x"])
    assert (found.lo, found.hi) == pytest.approx(tuple(reference.conf_int().loc["x"]))
    assert found.p == pytest.approx(reference.pvalues["x"])
    alone = stats.within_groups([1.0, 3.0], [0, 1], ["a", "a"])
    assert alone.mean == 2 and math.isnan(alone.p)


def test_association_counts_all_assignments_of_tied_ranks() -> None:
    groups = stats.seed_groups([0.0, 0.1, 5.0, 5.1, 5.2, 5.3, 0.2])  # {0, 1, 6} and {2, 3, 4, 5}
    measure = np.array([1.0, 2.0, 2.0, 3.0, 3.0, NAN, 1.0])
    found = stats.group_association(groups, measure)
    kept = measure[[0, 1, 6, 2, 3, 4]]
    ranks = st.rankdata(kept)
    sums = np.array([sum(one) for one in itertools.combinations(ranks, 3)])
    far = abs(ranks[3:].sum() - ranks.sum() / 2)
    assert found.p == pytest.approx(np.mean(abs(sums - ranks.sum() / 2) >= far - 1e-9))
    assert found.n == 6 and found.above == pytest.approx(8.5 / 9)
    # without ties it is scipy's exact Mann–Whitney test
    x = np.random.default_rng(3).normal(size=7)
    low, high = x[[0, 1, 6]], x[[2, 3, 4, 5]]
    reference = st.mannwhitneyu(low, high, method="exact")
    assert stats.group_association(groups, x).p == pytest.approx(reference.pvalue)
    assert math.isnan(stats.group_association(groups, [1, 2, NAN, NAN, NAN, NAN, 3]).p)


# failed runs


@pytest.mark.parametrize(("only_a", "only_b"), [(5, 0), (0, 6), (3, 4), (0, 0), (1, 8)])
def test_failure_rates_have_the_exact_mcnemar_test(only_a: int, only_b: int) -> None:
    both, neither = 2, 5
    a = [True] * (both + only_a) + [False] * (only_b + neither)
    b = [True] * both + [False] * only_a + [True] * only_b + [False] * neither
    found = stats.failure_rates(a, b)
    reference = mcnemar([[both, only_a], [only_b, neither]], exact=True).pvalue
    assert found.p == pytest.approx(reference)
    assert (found.only_level, found.only_baseline) == (only_a, only_b)
    assert (found.failed, found.baseline_failed, found.n) == (both + only_a, both + only_b, len(a))
    assert found.interval == pytest.approx(
        proportion_confint(both + only_a, len(a), method="wilson")
    )
    assert math.isnan(stats.failure_rates([], []).p)


def signed_rank_by_enumeration(d: np.ndarray) -> float:
    d = d[d != 0]
    ranks = st.rankdata(abs(d))
    sums = np.array([ranks @ one for one in itertools.product((0, 1), repeat=len(d))])
    far = abs(ranks[d > 0].sum() - ranks.sum() / 2)
    return float(np.mean(abs(sums - ranks.sum() / 2) >= far - 1e-9))


def test_a_failed_run_is_worse_than_every_number() -> None:
    """Four of eight level runs failed, the other four are better: no finding."""
    baseline = np.full(8, 1.0)
    level = np.array([0.99, 0.98, NAN, 0.97, INF, 0.96, NAN, NAN])
    found = stats.worst_rank(level, baseline)
    # differences 1 2 3 4 and four failures at the ranks 5 to 8, 6.5 each
    assert (found.worse, found.better, found.ties) == (4, 4, 0)
    assert (found.rank_sum_worse, found.rank_sum_better) == (26, 10)
    stand_in = np.where(np.isfinite(level), level - baseline, 50.0)
    assert found.p == pytest.approx(signed_rank_by_enumeration(stand_in)) and found.p > 0.2
    turned = stats.worst_rank(-level, -baseline, goal="max")
    assert turned == found, "in accuracy too a failed run is the worst"
    swapped = stats.worst_rank(baseline, level)
    assert (swapped.worse, swapped.p) == (found.better, found.p)
    every = stats.worst_rank([NAN] * 8, baseline)
    assert (every.worse, every.p) == (8, pytest.approx(2 / 256))


def test_worst_rank_with_ties_and_without() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=10), rng.normal(size=10)
    assert stats.worst_rank(a, b).p == pytest.approx(st.wilcoxon(a, b, method="exact").pvalue)
    # ties: differences of 0.1 that rounding makes unequal, and an exact tie
    a = np.array([3.1, 4.1, 5.2, 6.4, 7.0, 2.9, NAN])
    b = np.array([3.0, 4.0, 5.0, 6.0, 7.0, 3.0, NAN])
    d = np.array([1, 1, 2, 4, 0, -1, 0.0])
    found = stats.worst_rank(a, b)
    assert (found.ties, found.n) == (2, 7)
    assert found.p == pytest.approx(signed_rank_by_enumeration(d))
    assert stats.worst_rank([NAN, 1.0], [INF, 1.0]).p == 1
    assert math.isnan(stats.worst_rank([], []).p)


def test_many_seeds_have_scipys_normal_approximations() -> None:
    """To count the sums of thousands of ranks takes hours."""
    rng = np.random.default_rng(8)
    a, b = (np.round(64 * rng.normal(mean, size=400)) / 64 for mean in (0.0, 0.1))  # with ties
    scipys = st.wilcoxon(a, b, method="asymptotic").pvalue
    assert stats.worst_rank(a, b).p == pytest.approx(scipys)
    few = rng.normal(0.2, size=150)
    counted, normal = stats.hodges_lehmann(few), stats.hodges_lehmann([*few, 0.0])
    assert abs(normal.confidence - counted.confidence) < 2e-4 and 0.95 <= normal.confidence < 0.951
    groups = stats.seed_groups([*rng.normal(size=100), *rng.normal(90, size=80)])
    measure = rng.normal(size=180) + np.repeat([0.0, 0.2], [100, 80])
    of_groups = st.mannwhitneyu(
        measure[:100], measure[100:], method="asymptotic", use_continuity=False
    )
    found = stats.group_association(groups, measure)
    assert found.p == pytest.approx(of_groups.pvalue)


# the best arms


def test_an_arm_is_a_candidate_unless_another_is_significantly_better() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        x = rng.normal(size=(6, 5)) * [1, 2, 1, 3, 1] + [0, 0.5, 1.5, 1, 3]
        x[0, 1] = NAN
        found = stats.best_arms(x, goal="min")
        for i, j in itertools.permutations(range(5), 2):
            p = st.ttest_rel(x[:, i], x[:, j], alternative="greater", nan_policy="omit").pvalue
            if p < 0.025 / 4:
                assert i not in found.candidates
        excluded = {
            i
            for i, j in itertools.permutations(range(5), 2)
            if st.ttest_rel(x[:, i], x[:, j], alternative="greater", nan_policy="omit").pvalue
            < 0.025 / 4
        }
        assert set(found.candidates) == set(range(5)) - excluded
        turned = stats.best_arms(-x, goal="max")
        assert turned.candidates == found.candidates
        assert [(-a.hi, -a.lo) for a in turned.arms] == [(a.lo, a.hi) for a in found.arms]


def test_the_best_arms_are_the_same_if_the_noise_is_given_pair_by_pair() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(9, 7)) + np.arange(7) / 3
    x[:, 1], x[:, 2], x[2:4, 3], x[1:, 4] = x[:, 0], x[:, 0] + 0.5, NAN, NAN
    by_pairs = stats.best_arms(x, noise=lambda difference, i, j: noise_of(difference))
    assert stats.best_arms(x).candidates == by_pairs.candidates
    assert 0 < len(by_pairs.candidates) < 7
    for one, other in zip(stats.best_arms(x).arms, by_pairs.arms, strict=True):
        assert (one.lo, one.hi) == pytest.approx((other.lo, other.hi), rel=1e-12)


def test_intervals_of_best_arms_by_hand() -> None:
    """Two arms, differences 2, 3, 4: the two-sided 95% bounds on two degrees of freedom."""
    found = stats.best_arms([[1.0, 3.0], [1.0, 4.0], [1.0, 5.0]])
    half = 4.302653 / math.sqrt(3)
    assert found.candidates == (0,)
    assert (found.arms[0].difference, found.arms[1].difference) == (-3, 3)
    # bounds 0.516 and 5.484; those on the wrong side of 0 are moved to it
    assert (found.arms[1].lo, found.arms[1].hi) == pytest.approx((0, 3 + half), rel=1e-5)
    assert (found.arms[0].lo, found.arms[0].hi) == pytest.approx((-3 - half, 0), rel=1e-5)
    close = stats.best_arms([[1.0, 2.0], [1.0, 0.5], [1.0, 2.0]])
    assert close.candidates == (0, 1)


def test_a_verdict_of_another_test_takes_the_place_of_a_comparison_with_the_best() -> None:
    """The first arm is better than the second, and the second than the third, which is noisy."""
    x = np.array([[0.0, 1.0, 2.0], [0.0, 1.1, 2.2], [0.0, 0.9, 1.9], [0.0, 1.0, 2.0]])
    assert stats.best_arms(x).candidates == (0,) and stats.best_arms(x).clear
    apart = stats.best_arms(x, decided={(2, 0): False, (0, 2): False})
    assert apart.candidates == (0,) and not apart.clear, "the third is worse than the second only"
    one_off = stats.best_arms(x, decided={(1, 0): False, (0, 1): False})
    assert one_off.candidates == (0, 1)
    turned = stats.best_arms(-x, goal="max", decided={(1, 0): False})
    assert turned.candidates == (0, 1)
    assert turned.arms[0].lo == -stats.best_arms(x).arms[0].hi


def test_arms_that_cannot_be_distinguished_are_candidates() -> None:
    x = np.array([[1.0, 1.0, 5.0, NAN, NAN], [2.0, 2.0, 6.5, 9.0, NAN], [3.0, 3.0, 7.0, NAN, NAN]])
    found = stats.best_arms(x)
    assert found.candidates == (0, 1, 3), "equal arms, and an arm with one run"
    assert math.isnan(found.arms[4].lo) and found.arms[4].rival == -1
    assert (found.arms[0].lo, found.arms[0].hi) == (0, INF), "equal to one, one with one run"


@pytest.mark.parametrize("sds", [(1.0, 1.0, 1.0, 1.0), (0.2, 1.0, 3.0, 1.0)])
def test_the_best_arm_is_a_candidate(sds: tuple[float, ...]) -> None:
    rng, truth, studies = np.random.default_rng(6), np.array([0.0, 0.0, 0.0, 1.0]), 800
    missed, wrong = 0, 0
    for _ in range(studies):
        x = truth + rng.normal(size=(5, 1)) + rng.normal(size=(5, 4)) * sds
        x[rng.random(x.shape) < 0.05] = NAN
        found = stats.best_arms(x)
        missed += 1 not in found.candidates
        gaps = truth - [np.delete(truth, i).min() for i in range(4)]
        wrong += any(not a.lo <= g <= a.hi for a, g in zip(found.arms, gaps, strict=True))
    # any of the three is the best: the set misses one of them in at most 5% of studies
    assert missed / studies <= below(0.05, studies) and wrong / studies <= below(0.05, studies)


# new text


def anova(x: np.ndarray) -> pd.Series:
    rows, columns = np.indices(x.shape)
    frame = pd.DataFrame({"y": x.ravel(), "r": rows.ravel(), "c": columns.ravel()})
    table = sm.stats.anova_lm(smf.ols("y ~ C(r) + C(c)", frame).fit())
    return table["sum_sq"] / table["df"]


@pytest.mark.parametrize("alike", [False, True])
def test_an_effect_on_new_text_has_the_two_way_variance(alike: bool) -> None:
    rng = np.random.default_rng(7)
    seeds, windows = 5, 30
    d = (
        0.2
        + rng.normal(0, 0.1, (seeds, 1))
        + rng.normal(0, 0.8, (1, windows))
        + rng.normal(0, 0.5, (seeds, windows))
    )
    if alike:  # neighbours as alike as can be, but too few windows to merge any
        d = d[:, d.mean(axis=0).argsort()]
    one = stats.seed_by_text(np.vstack([d, np.full(windows, NAN)]))
    seed, window, rest = anova(d)
    assert (one.n, one.lost, one.windows, one.block) == (5, 1, 30, 1)
    (r,) = sm.tsa.acf(d.mean(axis=0), nlags=1, fft=False)[1:]
    assert one.lag_correlation == pytest.approx(r)
    window *= 1 + 2 * max(r, 0)
    variance = (seed + window - rest) / (seeds * windows)
    df = variance**2 * (seeds * windows) ** 2
    df /= seed**2 / 4 + window**2 / 29 + rest**2 / (4 * 29)
    assert one.mean == pytest.approx(d.mean())
    low, high = st.t.interval(0.95, math.floor(df), d.mean(), math.sqrt(variance))
    assert (one.lo, one.hi) == pytest.approx((low, high))
    assert one.p == pytest.approx(2 * st.t.sf(abs(d.mean()) / math.sqrt(variance), math.floor(df)))
    alone = stats.paired(d.mean(axis=1))
    assert (one.seed_lo, one.seed_hi) == pytest.approx((alone.lo, alone.hi))
    assert one.lo < one.seed_lo and one.hi > one.seed_hi
    assert (r > 0.5) == alike
    assert one.window_sd == pytest.approx(math.sqrt((window - rest) / seeds))
    assert one.residual_sd == pytest.approx(math.sqrt(rest))


def test_new_text_is_never_narrower_than_seeds_alone() -> None:
    rng = np.random.default_rng(8)
    for windows in (2, 20):
        for _ in range(100):
            one = stats.seed_by_text(rng.normal(size=(3, 1)) + 0.3 * rng.normal(size=(3, windows)))
            assert one.lo <= one.seed_lo and one.hi >= one.seed_hi


def test_too_little_text_or_seeds_has_no_interval() -> None:
    for d in ([[0.1, 0.3]], [[0.1], [0.3]], [[0.1, 0.3], [NAN, 0.2]]):
        one = stats.seed_by_text(d)
        assert math.isnan(one.lo) and math.isnan(one.p) and math.isfinite(one.mean)
    same = stats.seed_by_text(np.zeros((3, 20)))
    assert (same.lo, same.hi, same.p) == (0, 0, 1)


def test_neighbouring_windows_that_are_alike_are_merged() -> None:
    rng = np.random.default_rng(9)
    section = np.repeat(rng.normal(size=50), 10)  # a text of 50 sections of 10 windows
    d = 0.1 * rng.normal(size=(4, 1)) + section + 0.2 * rng.normal(size=(4, 500))
    one, shuffled = stats.seed_by_text(d), stats.seed_by_text(rng.permutation(d, axis=1))
    assert one.lag_correlation > 0.7 and one.block >= 8 and shuffled.block == 1
    assert one.mean == pytest.approx(shuffled.mean)
    assert one.hi - one.lo > 1.5 * (shuffled.hi - shuffled.lo)


@pytest.mark.parametrize(("seeds", "windows"), [(3, 64), (8, 64), (5, 300)])
@pytest.mark.parametrize("ratio", [0.0, 1.0, 10.0])
def test_intervals_hold_for_new_text(seeds: int, windows: int, ratio: float) -> None:
    """`ratio`: the variance of the mean that windows cause, over that of seeds."""
    rng, studies, missed = np.random.default_rng(10), 600, 0
    for _ in range(studies):
        one = stats.seed_by_text(
            rng.normal(size=(seeds, 1))
            + math.sqrt(ratio * windows / seeds) * rng.normal(size=(1, windows))
            + rng.normal(size=(seeds, windows))
        )
        missed += not one.lo <= 0 <= one.hi
    # Satterthwaite's approximation misses up to 6% (benchmarks/seeds.py)
    assert missed / studies <= below(0.06, studies)


# pairing, the floor of the sign-flip test, the margin, two kinds of seeds


def test_pairing_compares_scipys_two_intervals() -> None:
    rng = np.random.default_rng(11)
    shared = rng.normal(size=8)
    for share in (0.0, 1.0, 5.0):
        a, b = share * shared + rng.normal(size=8), share * shared + 2 * rng.normal(size=8)
        found = stats.pairing([*a, NAN, 1.0], [*b, 1.0, INF])
        paired = st.ttest_rel(a, b).confidence_interval(0.95)
        welch = st.ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
        assert found.n == 8
        assert found.correlation == pytest.approx(st.pearsonr(a, b).statistic)
        assert found.width == pytest.approx(paired.high - paired.low)
        assert found.unpaired_width == pytest.approx(welch.high - welch.low)
        assert (found.ratio < 1) == (found.width < found.unpaired_width)
    assert found.ratio < 0.5, "a strong shared noise"
    assert math.isnan(stats.pairing([1.0], [2.0]).ratio)
    assert math.isnan(stats.pairing([1.0, 2.0, 3.0], [2.0, 3.0, 4.0]).ratio)


def test_the_floor_of_the_sign_flip_test() -> None:
    for n, size in itertools.product((3, 5, 6, 8, 9), (1, 4, 7)):
        floor = stats.sign_flip_floor(n, size)
        smallest = stats.sign_flip(np.arange(1.0, n + 1))
        assert floor == stats.holm([smallest, *[1.0] * (size - 1)])[0]


@pytest.mark.parametrize("n", [3, 5, 8, 30])
def test_the_proposed_margin_is_met_in_80_percent_of_studies(n: int) -> None:
    margin = stats.proposed_margin(0.5, n)
    d = np.random.default_rng(n).normal(0, 0.5, (100_000, n))
    error = d.std(axis=1, ddof=1) / math.sqrt(n)
    met = st.t.sf((margin - abs(d.mean(axis=1))) / error, n - 1) < 0.05
    assert met.mean() == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / 100_000))
    assert stats.equivalence_power(n, margin, 0.5) == pytest.approx(0.8)
    assert stats.proposed_margin(0.5, 1) == INF


def test_components_have_the_mean_squares_of_an_anova() -> None:
    rng = np.random.default_rng(12)
    x = 3 + 2 * rng.normal(size=(4, 1)) + rng.normal(size=(1, 6)) + 0.5 * rng.normal(size=(4, 6))
    found = stats.components(x)
    init, order, rest = anova(x)
    assert found.init.variance == pytest.approx((init - rest) / 6)
    assert found.order.variance == pytest.approx((order - rest) / 4)
    assert found.residual.variance == pytest.approx(rest)
    assert found.init.share + found.order.share + found.residual.share == pytest.approx(1)
    assert (found.residual.lo, found.residual.hi) == pytest.approx(
        (15 * rest / st.chi2.ppf(0.975, 15), 15 * rest / st.chi2.ppf(0.025, 15))
    )
    # with next to no residual noise the interval is the chi-squared one
    exact = stats.components(rng.normal(size=(5, 1)) + 1e-6 * rng.normal(size=(5, 7)))
    limits = [4 * exact.init.variance / st.chi2.ppf(tail, 4) for tail in (0.975, 0.025)]
    assert (exact.init.lo, exact.init.hi) == pytest.approx(limits, rel=1e-3)


def test_components_without_a_lost_run() -> None:
    x = np.random.default_rng(13).normal(size=(4, 5))
    lost = np.vstack([x, np.full(5, NAN)])
    lost[-1, 0] = 1.0
    found = stats.components(lost)
    assert (found.inits, found.orders, found.lost) == (4, 5, 4)
    assert found.residual == stats.components(x).residual
    assert math.isnan(stats.components([[1.0, 2.0]]).init.variance)
    assert math.isnan(stats.components(np.full((3, 3), NAN)).init.variance)


def test_intervals_of_components_hold() -> None:
    rng, studies = np.random.default_rng(14), 1000
    missed = np.zeros(3)
    for _ in range(studies):
        x = 2 * rng.normal(size=(4, 1)) + rng.normal(size=(1, 4)) + rng.normal(size=(4, 4))
        found = stats.components(x)
        parts = zip((found.init, found.order, found.residual), (4.0, 1.0, 1.0), strict=True)
        missed += [not part.lo <= true <= part.hi for part, true in parts]
    assert max(missed) / studies <= below(0.055, studies)


# -- crossed seeds ---------------------------------------------------------------------------------

GRID = list(itertools.product((0, 1, 2), (4, 5)))  # seeds of initialisation and of data order
# by hand: means of rows 2, 4, 9, of columns 4, 6, of all 5; residuals ±1, 0, ∓1
HAND = [0.0, 4.0, 3.0, 5.0, 9.0, 9.0]


def test_the_noise_of_crossed_seeds_is_that_of_a_hand_worked_table() -> None:
    rows, columns = 2 * (9 + 1 + 16) / 2, 3 * (1 + 1) / 1
    rest = (1 + 1 + 0 + 0 + 1 + 1) / 2
    variance = (rows + columns - rest) / 6
    df = (rows + columns - rest) ** 2 / (rows**2 / 2 + columns**2 + rest**2 / 2)
    found = stats.crossed_noise(HAND, GRID)
    expected = [(math.sqrt(variance), df), (math.sqrt(rows / 6), 2), (math.sqrt(columns / 6), 1)]
    assert np.array(found.errors) == pytest.approx(np.array(expected))
    effect = stats.paired(HAND, crossed=GRID)
    half = max(st.t.ppf(0.975, df) * error for error, df in found.errors)
    assert (effect.mean, effect.hi, effect.lo) == pytest.approx((5, 5 + half, 5 - half))
    assert effect.p == pytest.approx(max(2 * st.t.sf(5 / error, df) for error, df in found.errors))
    assert math.isnan(effect.p_sign_flip) and effect.method == "crossed t"
    order = [4, 0, 5, 2, 1, 3]
    shuffled = stats.crossed_noise([HAND[k] for k in order], [GRID[k] for k in order])
    assert np.array(shuffled.errors) == pytest.approx(np.array(expected))
    # the same noise in a family, in a test of equivalence and among the best arms
    (one,) = stats.family(np.array(HAND)[:, None], crossed=GRID)
    assert (one.lo, one.p_holm) == pytest.approx((effect.lo, effect.p))
    within = stats.equivalence(HAND, 100, crossed=GRID)
    assert within.hi == pytest.approx(
        5 + max(st.t.ppf(0.95, df) * error for error, df in found.errors)
    )
    best = stats.best_arms(
        np.array([HAND, np.zeros(6)]).T,
        noise=lambda difference, i, j: noise_of(difference, crossed=GRID),
    )
    wide = max(st.t.ppf(0.975, df) * error for error, df in found.errors)
    assert best.arms[0].hi == pytest.approx(5 + wide)


def test_a_negative_component_counts_as_none() -> None:
    # rows that agree: their mean square, 0, is below the residual's
    x = [1.0, 3.0, 2.0, 2.0, 3.0, 1.0]
    rest = (1 + 0 + 1 + 1 + 0 + 1) / 2
    found = stats.crossed_noise(x, GRID)
    assert found.errors[0] == pytest.approx((math.sqrt(rest / 6), 2))


def test_lost_pairs_of_crossed_seeds_leave_the_mean_of_the_others() -> None:
    """Its variance by the covariance matrix of the pairs that are left."""
    rng = np.random.default_rng(15)
    seeds = list(itertools.product(range(5), range(4)))
    x = 3 * rng.normal(size=(5, 1)) + 2 * rng.normal(size=(1, 4)) + rng.normal(size=(5, 4))
    x[2, 1] = x[2, 3] = NAN
    found = stats.crossed_noise(x.ravel(), seeds)
    parts = stats.components(x)
    assert (parts.inits, parts.orders) == (4, 4)
    left = np.array([pair for pair, value in zip(seeds, x.ravel(), strict=True) if value == value])
    same = [(left[:, k][:, None] == left[:, k]).astype(float) for k in (0, 1)]
    covariance = (
        parts.init.variance * same[0]
        + parts.order.variance * same[1]
        + parts.residual.variance * np.eye(len(left))
    )
    assert found.errors[0][0] == pytest.approx(math.sqrt(covariance.mean()))
    # a pair that is missing is a pair that is lost
    whole = [k for k, value in enumerate(x.ravel()) if value == value]
    again = stats.crossed_noise(x.ravel()[whole], [seeds[k] for k in whole])
    assert np.array(again.errors) == pytest.approx(np.array(found.errors))


def test_noise_of_crossed_seeds_that_cannot_be_known() -> None:
    one_row = stats.paired([1.0, 2.0, 4.0], crossed=[(0, 0), (0, 1), (0, 2)])
    assert one_row.mean == pytest.approx(7 / 3) and math.isnan(one_row.lo)
    assert math.isnan(stats.paired([], crossed=[]).lo)
    assert math.isnan(stats.paired([1.0], crossed=[(0, 0)]).p)
    same = stats.paired([0.0] * 6, crossed=GRID)
    assert (same.lo, same.hi, same.p) == (0, 0, 1)
    constant = stats.paired([2.0] * 6, crossed=GRID)
    assert constant.mean == 2 and math.isnan(constant.lo) and math.isnan(constant.p)


@pytest.mark.parametrize(
    ("inits", "orders", "sds"),
    [(4, 4, (1, 1, 1)), (2, 6, (1, 0.3, 1)), (5, 3, (1, 1, 0.1)), (4, 4, (0, 0, 1))],
)
def test_the_interval_of_crossed_seeds_holds(
    inits: int, orders: int, sds: tuple[float, float, float]
) -> None:
    rng, studies = np.random.default_rng(16), 1500
    seeds = list(itertools.product(range(inits), range(orders)))
    missed = 0
    for _ in range(studies):
        x = (
            sds[0] * rng.normal(size=(inits, 1))
            + sds[1] * rng.normal(size=(1, orders))
            + sds[2] * rng.normal(size=(inits, orders))
        )
        missed += abs(x.mean()) > stats.crossed_noise(x.ravel(), seeds).half(0.95)
    assert missed / studies <= below(0.052, studies)


def test_intervals_of_shares_hold() -> None:
    rng, studies = np.random.default_rng(17), 400
    missed = np.zeros(3)
    for _ in range(studies):
        x = 2 * rng.normal(size=(6, 1)) + rng.normal(size=(1, 6)) + rng.normal(size=(6, 6))
        found = stats.components(x)
        parts = (found.init, found.order, found.residual)
        for part in parts:
            assert part.share_lo <= part.share <= part.share_hi
        truth = zip(parts, (4 / 6, 1 / 6, 1 / 6), strict=True)
        missed += [not part.share_lo <= true <= part.share_hi for part, true in truth]
    assert max(missed) / studies <= below(0.055, studies)


def test_a_value_without_a_partner_does_not_round_the_other_differences_off() -> None:
    pairs = [1e15, 3.001, 3.002, 3.004], [math.nan, 3.0, 3.0, 3.001]
    assert stats.differences(*pairs)[1:] == pytest.approx([0.001, 0.002, 0.003])
    # and what differs by rounding alone differs by nothing
    assert list(stats.differences([0.1 + 0.2, 3.0], [0.3, 3.0])) == [0, 0]
