"""Effects, families and numbers of seeds, against scipy, statsmodels and hand-worked cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy import stats as st
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import DescrStatsW

from ablate import stats
from ablate.errors import AblateError
from ablate.stats import distributions as of

NAN = float("nan")


@pytest.mark.parametrize("n", [2, 3, 5, 10, 40])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_paired_agrees_with_scipy(n: int, confidence: float) -> None:
    rng = np.random.default_rng(n)
    a, b = rng.normal(2.0, 0.1, n), rng.normal(2.1, 0.1, n)
    effect, reference = stats.compare(a, b, confidence=confidence), st.ttest_rel(a, b)
    interval = reference.confidence_interval(confidence)
    assert effect.n == n and effect.lost == 0
    assert effect.mean == pytest.approx(np.mean(a - b)) and effect.sd == pytest.approx(
        np.std(a - b, ddof=1)
    )
    assert effect.p == pytest.approx(reference.pvalue)
    assert (effect.lo, effect.hi) == pytest.approx((interval.low, interval.high))
    assert effect.standardised == pytest.approx(effect.mean / effect.sd)
    if n > 2:
        assert effect.correlation == pytest.approx(st.pearsonr(a, b).statistic)
        assert np.var(a - b, ddof=1) == pytest.approx(
            a.var(ddof=1) + b.var(ddof=1) - 2 * effect.correlation * a.std(ddof=1) * b.std(ddof=1)
        )


def test_a_pair_that_is_not_finite_is_lost_and_counted() -> None:
    effect = stats.compare([1.0, 2.0, NAN, 4.0, np.inf], [0.5, 1.0, 1.0, np.inf, np.inf])
    assert (effect.n, effect.lost) == (2, 3)
    assert effect.mean == pytest.approx(0.75)
    assert math.isnan(effect.correlation)
    nothing = stats.paired([NAN, -np.inf])
    assert (nothing.n, nothing.lost) == (0, 2)
    assert (
        math.isnan(nothing.mean)
        and math.isnan(nothing.p)
        and math.isnan(nothing.p_sign_flip)
        and not nothing.significant
    )


def test_few_pairs_give_only_what_they_support() -> None:
    empty, one, two = stats.paired([]), stats.paired([0.3]), stats.paired([0.3, 0.5])
    assert empty.n == 0 and math.isnan(empty.mean) and not empty.significant
    assert (
        one.mean == 0.3
        and all(math.isnan(x) for x in (one.sd, one.lo, one.hi, one.p, one.resolvable))
        and not one.significant
    )
    # t = 0.4 / (0.1414 / √2) = 4 on one degree of freedom: p = 1 − (2/π)·atan(4); half width 12.706
    # · 0.1
    assert two.p == pytest.approx(1 - 2 / math.pi * math.atan(4))
    assert two.hi - two.mean == pytest.approx(12.7062 * 0.1, rel=1e-5)
    assert two.p_sign_flip == 0.5


def test_differences_without_spread() -> None:
    same = stats.paired([0.0, 0.0, 0.0])
    assert (same.mean, same.lo, same.hi, same.p) == (0.0, 0.0, 0.0, 1.0) and not same.significant
    # equal but for rounding: nothing is known of the noise
    constant = stats.paired([4.1 - 4.0, 3.1 - 3.0, 2.1 - 2.0])
    assert constant.sd == 0 and constant.mean == pytest.approx(0.1)
    assert math.isnan(constant.p) and math.isnan(constant.lo) and not constant.significant
    assert constant.p_sign_flip == 0.25
    assert math.isnan(stats.pair_correlation([1, 1, 1], [1, 2, 3]))


@pytest.mark.parametrize("n", [1, 2, 5, 8, 11])
def test_sign_flip_counts_every_pattern(n: int) -> None:
    d = np.random.default_rng(n).normal(0.4, 1, n).round(1)  # rounded, so that some sums tie
    sums = [
        abs(sum(s * x for s, x in zip(signs, d, strict=True)))
        for signs in itertools.product((-1, 1), repeat=n)
    ]
    assert stats.sign_flip(d) == pytest.approx(np.mean(np.array(sums) >= abs(d.sum()) - 1e-9))


def test_sign_flip_agrees_with_scipy_and_has_a_floor() -> None:
    d = np.random.default_rng(0).normal(0.5, 1, 12)
    exact = st.permutation_test((d,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert stats.sign_flip(d) == pytest.approx(exact.pvalue)
    assert stats.sign_flip([0.1] * 5) == 2 / 2**5 > 0.05  # five pairs never reach 5%
    assert stats.sign_flip([0.1] * 6) == 2 / 2**6 < 0.05
    assert stats.sign_flip([0.0, 0.0]) == 1.0


def test_sign_flip_is_exact_for_many_pairs_and_goes_over_to_the_normal_limit_smoothly() -> None:
    ones = [1.0] * 31 + [-1.0] * 9
    assert stats.sign_flip(ones) == pytest.approx(st.binomtest(31, 40).pvalue)
    d = np.random.default_rng(1).normal(0.2, 1, 41)
    assert stats.sign_flip(d) == pytest.approx(stats.sign_flip(d[:40]), abs=0.1)
    assert stats.sign_flip(np.zeros(50)) == 1.0


@pytest.mark.parametrize("m", [1, 2, 7, 12])
def test_holm_agrees_with_statsmodels(m: int) -> None:
    for p in np.random.default_rng(m).uniform(0, 0.3, (5, m)).round(2):  # rounded, so that some tie
        assert stats.holm(p) == pytest.approx(multipletests(p, method="holm")[1])


def test_holm_counts_what_could_not_be_tested() -> None:
    assert stats.holm([0.01, NAN, 0.02]) == pytest.approx([0.03, NAN, 0.04], nan_ok=True)
    assert len(stats.holm([])) == 0


@pytest.mark.parametrize("margin", [0.02, 0.05, 0.2])
def test_equivalence_agrees_with_statsmodels(margin: float) -> None:
    d = np.random.default_rng(3).normal(0.01, 0.05, 8)
    found, (p, *_) = stats.equivalence(d, margin), DescrStatsW(d).ttost_mean(-margin, margin)
    assert found.p == pytest.approx(p)
    assert (found.lo, found.hi) == pytest.approx(st.t.interval(0.9, 7, d.mean(), st.sem(d)))
    assert found.equivalent == (p < 0.05) == (-margin < found.lo and found.hi < margin)


def test_equivalence_needs_noise_or_identical_runs() -> None:
    assert not stats.equivalence([0.0], 1.0).equivalent
    assert not stats.equivalence([0.1, 0.1, 0.1], 1.0).equivalent
    assert stats.equivalence([0.0, 0.0], 1.0).equivalent


@pytest.mark.parametrize(("k", "n"), [(0, 5), (1, 5), (5, 5), (3, 40)])
def test_wilson_agrees_with_statsmodels(k: int, n: int) -> None:
    assert stats.wilson(k, n) == pytest.approx(proportion_confint(k, n, method="wilson"), abs=1e-12)


def test_unequal_spread_is_pitmans_test() -> None:
    rng = np.random.default_rng(7)
    a, b = rng.normal(0, 3, 9), rng.normal(0, 1, 9)
    found = stats.unequal_spread(np.append(a, math.nan), np.append(b, 0.0))
    ratio = a.std(ddof=1) / b.std(ddof=1)
    assert found.ratio == pytest.approx(ratio)
    # the statistic as Pitman (1939) gives it, by the ratio of variances and the correlation
    r = np.corrcoef(a, b)[0, 1]
    t = (ratio**2 - 1) * math.sqrt(7) / (2 * ratio * math.sqrt(1 - r**2))
    assert found.p == pytest.approx(2 * st.t.sf(abs(t), 7))
    for few in (([1.0, 2.0, 4.0], [2.0, 1.0, 9.0]), ([1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0])):
        assert math.isnan(stats.unequal_spread(*map(np.asarray, few)).p)


def test_wilson_without_runs_is_zero_to_one() -> None:
    assert stats.wilson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("n", [3, 5, 10, 30])
def test_resolvable_agrees_with_statsmodels(n: int) -> None:
    assert stats.resolvable(n) == pytest.approx(
        TTestPower().solve_power(nobs=n, power=0.8, alpha=0.05), rel=1e-5
    )
    assert stats.resolvable(n, 0.02) == pytest.approx(0.02 * stats.resolvable(n))
    assert stats.power(n, 0.7) == pytest.approx(TTestPower().power(0.7, n, 0.05), abs=1e-6)


def test_resolvable_where_scipy_gives_nan() -> None:
    noise = np.random.default_rng(0).normal(size=(400_000, 2)) + stats.resolvable(2)
    found = np.abs(noise.mean(1)) / (noise.std(1, ddof=1) / math.sqrt(2)) > st.t.isf(0.025, 1)
    assert found.mean() == pytest.approx(0.8, abs=0.003)
    assert (
        stats.resolvable(1) == math.inf
        and stats.power(1, 100.0) == 0
        and stats.power(5, 1e6) == pytest.approx(1)
    )


@pytest.mark.parametrize("effect", [0.3, 1.0, 3.0, 20.0])
def test_seeds_needed_is_the_fewest_that_do(effect: float) -> None:
    n = stats.seeds_needed(effect, 1.0)
    assert stats.power(n, effect) >= 0.8 > stats.power(n - 1, effect)
    assert stats.seeds_needed(-effect / 10, 0.1) == n


def test_two_stage_by_hand() -> None:
    pilot = [0.02, 0.04, 0.06]  # sd 0.02, t(2) = 4.3027: (4.3027 · 0.02 / 0.02)² = 18.5
    assert stats.two_stage(pilot, 0.02) == 19
    assert stats.two_stage([*pilot, NAN], 0.02) == 19
    assert stats.two_stage(pilot, 0.02, most=10) == 10
    assert stats.two_stage(pilot, 1.0) == 3
    assert stats.two_stage([NAN, 0.1], 0.02, most=12) == 12
    with pytest.raises(AblateError, match="pilot of 1 complete pairs"):
        stats.two_stage([0.1], 0.02)
    d = [*pilot, *np.full(16, 0.05)]
    effect = stats.after_pilot(stats.paired(d), d, pilot, 0.02)
    assert (effect.lo + effect.hi) / 2 == pytest.approx(0.92 / 19)
    half = (effect.hi - effect.lo) / 2
    assert half == pytest.approx(4.302653 * 0.02 / math.sqrt(19)) and half <= 0.02


def test_after_a_pilot_all_rests_on_its_noise() -> None:
    """Interval, p, equivalence and power against scipy's t and a simulation."""
    rng = np.random.default_rng(4)
    d = rng.normal(0.3, 1, 40)
    pilot, s = d[:4], d[:4].std(ddof=1) / math.sqrt(40)
    effect = stats.after_pilot(stats.paired(d), d, pilot, 0.4)
    assert stats.two_stage(pilot, 0.4) > 40
    assert (effect.method, effect.n, effect.noise.df) == ("two-stage t", 40, 3)
    assert effect.p == pytest.approx(2 * st.t.sf(abs(d.mean()) / s, 3))
    within = stats.equivalence(d, 1.5, pilot=pilot, resolution=0.4)
    assert (within.lo, within.hi) == pytest.approx(st.t.interval(0.9, 3, d.mean(), s))
    assert within.p == pytest.approx(st.t.sf((1.5 - abs(d.mean())) / s, 3))
    for margin in (1.0001, 0.9999):  # TOST and its interval say the same
        assert stats.equivalence(
            d, margin * max(-within.lo, within.hi), pilot=pilot, resolution=0.4
        ).equivalent == (margin > 1)
    assert effect.resolvable > 1.4 * stats.paired(d).resolvable, (
        "a pilot of four sees less than forty pairs of known number"
    )
    true = effect.resolvable / pilot.std(ddof=1)  # in the sd that the test uses
    noise = rng.normal(true, 1, (100_000, 4))
    rest = rng.normal(true, 1 / 6, 100_000)  # the mean of the other 36
    t = (4 * noise.mean(1) + 36 * rest) / 40 / (noise.std(1, ddof=1) / math.sqrt(40))
    assert (np.abs(t) > st.t.isf(0.025, 3)).mean() == pytest.approx(0.8, abs=0.006)
    assert stats.equivalence(d, 1.5, pilot=[0.1]) == stats.equivalence(d, 1.5), (
        "a pilot of one has decided nothing"
    )


def test_pairs_beyond_what_a_pilot_asked_for_may_widen_its_interval() -> None:
    """A contrast with a quiet pilot, in a stratum that needed many seeds."""
    d = np.array([0.10, 0.101, 0.102, *np.random.default_rng(1).normal(0.1, 1, 37)])
    both = [stats.after_pilot(stats.paired(d[:n]), d[:n], d[:3], 0.01) for n in (3, 40)]
    assert stats.two_stage(d[:3], 0.01) == 3
    assert [effect.method for effect in both] == ["two-stage t"] * 2
    assert (both[0].lo, both[0].hi) == pytest.approx(
        st.t.interval(0.95, 2, 0.101, 0.001 / math.sqrt(3))
    )
    usual = stats.paired(d)
    assert (both[1].lo, both[1].hi, both[1].p) == pytest.approx((usual.lo, usual.hi, usual.p)), (
        "not ±0.0007 around 0.1"
    )
    (together,) = stats.family(d[:, None], pilot=np.arange(40) < 3, resolution=0.01)
    assert (together.lo, together.family_hi, together.p_holm) == pytest.approx(
        (usual.lo, usual.hi, usual.p)
    )
    assert stats.equivalence(d, 0.2, pilot=d[:3], resolution=0.01).p == pytest.approx(
        stats.equivalence(d, 0.2).p
    )


def test_a_family_holds_together() -> None:
    d = np.random.default_rng(5).normal(0.5, 1, (6, 4))
    effects = stats.family(d)
    for column, effect in zip(d.T, effects, strict=True):
        alone = stats.paired(column)
        assert (effect.mean, effect.lo, effect.hi, effect.p) == (
            alone.mean,
            alone.lo,
            alone.hi,
            alone.p,
        )
        low, high = st.t.interval(1 - 0.05 / 4, 5, alone.mean, alone.sd / math.sqrt(6))
        assert (effect.family_lo, effect.family_hi) == pytest.approx((low, high))
    assert [effect.p_holm for effect in effects] == pytest.approx(
        multipletests([e.p for e in effects], method="holm")[1]
    )


def test_max_t_lies_between_one_interval_and_bonferroni() -> None:
    rng = np.random.default_rng(6)
    shared = rng.normal(size=(8, 1))
    close, apart = shared + 0.1 * rng.normal(size=(8, 5)), rng.normal(size=(8, 5))
    assert 1 - stats.max_t(close, rng) > 2 * (1 - stats.max_t(apart, rng))
    assert 0.05 / 5 <= 1 - stats.max_t(apart, rng) < 1 - stats.max_t(close, rng) <= 0.05
    # one contrast five times
    assert stats.max_t(np.repeat(shared, 5, axis=1), rng) == pytest.approx(0.95, abs=0.002)
    assert stats.max_t(shared, rng) == pytest.approx(0.95)
    narrow, wide = (
        stats.family(close, method=method, rng=rng)[0] for method in ("max-t", "bonferroni")
    )
    assert narrow.family_hi - narrow.family_lo < wide.family_hi - wide.family_lo


def test_max_t_agrees_with_the_multivariate_t_of_dunnett() -> None:
    """With 150 seeds, contrasts with one baseline are Dunnett's: correlation one half."""
    rng = np.random.default_rng(7)
    arms = rng.normal(size=(150, 5))
    each = 1 - stats.max_t(arms[:, 1:] - arms[:, :1], np.random.default_rng(8))
    joint = st.multivariate_normal(np.zeros(4), 0.5 * np.eye(4) + 0.5)
    edge = st.norm.isf(each / 2)
    assert joint.cdf(np.full(4, edge), lower_limit=np.full(4, -edge)) == pytest.approx(
        0.95, abs=0.006
    )


def test_a_family_with_lost_pairs_and_a_contrast_that_cannot_be_tested() -> None:
    d = np.random.default_rng(8).normal(2, 1, size=(5, 3))
    d[2, 0] = NAN
    d[1:, 1] = NAN
    for method in ("bonferroni", "max-t"):
        first, second, third = stats.family(d, method=method, rng=np.random.default_rng(0))
        assert (first.n, first.lost, second.n, third.n) == (4, 1, 1, 5)
        assert math.isnan(second.p_holm) and math.isnan(second.family_lo)
        assert third.family_lo < third.lo < third.hi < third.family_hi
        # the family still has three
        assert max(first.p_holm / first.p, third.p_holm / third.p) == pytest.approx(3)
    zero = stats.family(np.zeros((3, 2)))[0]
    assert (zero.family_lo, zero.family_hi, zero.p_holm) == (0, 0, 1)


def grid(lose: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(9)
    rows = [(a, b, seed) for a in ("x", "y", "z") for b in ("u", "v") for seed in range(4)]
    frame = pd.DataFrame(rows, columns=["a", "b", "seed"])
    frame["value"] = frame.a.map({"x": 0, "y": 1, "z": 2}) + 0.5 * (
        (frame.b == "v") & (frame.a == "z")
    )
    frame["value"] += 0.3 * rng.normal(size=len(frame)) + rng.normal(size=4)[frame.seed]
    frame.loc[list(range(3, 3 + lose)), "value"] = NAN
    return frame


@pytest.mark.parametrize("lose", [0, 1, 2])
def test_grid_effects_agree_with_statsmodels(lose: int) -> None:
    frame = grid(lose)
    found = stats.grid_effects(frame.value.to_numpy(), {"a": frame.a, "b": frame.b}, frame.seed)
    model = smf.ols("value ~ C(seed, Sum) + C(a, Sum) * C(b, Sum)", frame.dropna()).fit()
    table = sm.stats.anova_lm(model, typ=3).drop("Intercept")
    assert (found.runs, found.lost, found.df_residual) == (24 - lose, lose, model.df_resid)
    assert [term.name for term in found.terms] == ["seed", "a", "b", "a × b"]
    assert [term.f for term in found.terms] == pytest.approx(table["F"][:4])
    assert [term.p for term in found.terms] == pytest.approx(table["PR(>F)"][:4])
    assert [term.sum_sq for term in found.terms] == pytest.approx(table["sum_sq"][:4])
    if lose == 0:
        assert sum(term.explained for term in found.terms) + found.residual == pytest.approx(1)


def test_level_effects_of_a_whole_grid_are_differences_of_means() -> None:
    frame = grid()
    found = stats.grid_effects(frame.value.to_numpy(), {"a": frame.a, "b": frame.b}, frame.seed)
    means = frame.groupby("a").value.mean()
    by_level = {(one.factor, one.level): one for one in found.levels}
    assert by_level.keys() == {("a", "y"), ("a", "z"), ("b", "v")}
    for level in ("y", "z"):
        one = by_level["a", level]
        assert one.mean == pytest.approx(means[level] - means["x"])
        half = st.t.isf(0.025, found.df_residual) * found.residual_sd * math.sqrt(2 / 8)
        assert (one.lo, one.hi) == pytest.approx((one.mean - half, one.mean + half))


def test_a_grid_that_is_not_identifiable_is_refused() -> None:
    frame = grid()
    frame.loc[(frame.a == "z") & (frame.b == "v"), "value"] = NAN
    factors = {"a": frame.a, "b": frame.b}
    with pytest.raises(AblateError, match="without a run"):
        stats.grid_effects(frame.value.to_numpy(), factors, frame.seed)
    assert [
        term.name
        for term in stats.grid_effects(
            frame.value.to_numpy(), factors, frame.seed, interactions=1
        ).terms
    ] == ["seed", "a", "b"]
    one_seed = frame[frame.seed == 0]
    with pytest.raises(AblateError, match="add seeds"):
        stats.grid_effects([1, 2, 3, 4, 5, 6], {"a": one_seed.a, "b": one_seed.b}, one_seed.seed)


def test_detectable_after_a_pilot_is_in_the_pilots_sd() -> None:
    """A noisy pilot of three, then 37 quiet pairs: the test's noise decides, not that of all."""
    d = np.array([-3.0, 0.0, 3.0, *np.random.default_rng(2).normal(0, 0.1, 37)])
    by_all, effect = stats.paired(d), stats.after_pilot(stats.paired(d), d, d[:3], 2.0)
    half = (effect.hi - effect.lo) / 2
    assert half == pytest.approx(st.t.isf(0.025, 2) * 3 / math.sqrt(40))
    assert effect.resolvable == pytest.approx(stats.resolvable(40, 3.0, df=2))
    assert effect.resolvable > half > by_all.resolvable
    # of four contrasts: at a quarter of the level
    corrected = stats.detectable(40, effect.noise, alpha=0.05 / 4)
    assert corrected == pytest.approx(stats.resolvable(40, 3.0, alpha=0.05 / 4, df=2))
    # a quiet pilot, more pairs than it asked for: the test uses the wider noise, and so does this
    quiet = np.array([0.100, 0.101, 0.102, *np.random.default_rng(1).normal(0.1, 1, 37)])
    wide = stats.after_pilot(stats.paired(quiet), quiet, quiet[:3], 0.01)
    assert wide.resolvable == pytest.approx(stats.paired(quiet).resolvable)
    assert math.isnan(stats.detectable(3, stats.paired([0.0, 0.0, 0.0]).noise))
    assert math.isnan(stats.detectable(3, stats.paired([0.1, 0.1, 0.1]).noise))


P = np.array([1e-9, 0.0125, 0.025, 0.4, 0.5, 0.9, 0.975, 1 - 1e-9])
X = np.array([-40.0, -2.5, -1e-9, 0.0, 0.7, 3.0, 40.0, np.inf])


@pytest.mark.parametrize("df", [1, 2, 2.5, 7, 30, 1e4])
def test_distributions_are_scipys(df: float) -> None:
    def same(ours: object, theirs: object) -> None:
        assert ours == pytest.approx(theirs, rel=1e-10, abs=1e-300, nan_ok=True)

    same(of.norm_cdf(X), st.norm.cdf(X))
    same(of.norm_sf(X), st.norm.sf(X))
    same(of.norm_isf(P), st.norm.isf(P))
    same([of.norm_pdf(x) for x in X], st.norm.pdf(X))
    same(of.t_cdf(X, df), st.t.cdf(X, df))
    same(of.t_sf(X, df), st.t.sf(X, df))
    same(of.t_isf(P, df), st.t.isf(P, df))
    same(of.chi2_cdf(X[3:], df), st.chi2.cdf(X[3:], df))
    same(of.chi2_ppf(P, df), st.chi2.ppf(P, df))
    same(of.chi2_isf(P, df), st.chi2.isf(P, df))
    same(of.f_sf(X[3:], 3, df), st.f.sf(X[3:], 3, df))
    same(of.f_ppf(P, 3, df), st.f.ppf(P, 3, df))


@pytest.mark.parametrize("n", [4, 5, 40])
def test_ps_of_counts_and_correlations_are_scipys(n: int) -> None:
    for k in range(n + 1):
        assert of.binomial_p(k, n) == pytest.approx(st.binomtest(k, n).pvalue, rel=1e-12)
    rng = np.random.default_rng(n)
    for share in (0.0, 0.5, -0.99, 1.0):
        x, noise = rng.normal(size=(2, n))
        y = share * x + (1 - abs(share)) * noise
        found = st.pearsonr(x, y)
        ours = of.correlation_p(float(found.statistic), n)
        assert ours == pytest.approx(found.pvalue, rel=1e-9, abs=1e-300)
