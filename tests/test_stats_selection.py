"""The chosen rate: curves worked by hand, scipy, and simulations with known answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as st

from ablate import stats
from ablate.stats import selection
from ablate.stats.selection import Choice

STEP = 0.76  # ln
HALVES = np.arange(-6, 7) / 2  # steps
LOGS = STEP * HALVES
FIRST = (0, 2, 4, 5, 6, 7, 8, 10, 12)  # the ladder, and two half steps around its middle


def tried(costs: np.ndarray) -> np.ndarray:
    """Costs [..., K] at the rates of `FIRST`, NaN at the others."""
    some = np.full(costs.shape, np.nan)
    some[..., FIRST] = costs[..., FIRST]
    return some


def noisy(rng: np.random.Generator, studies: int, sd: float = 1.0, a: float = 0.5) -> np.ndarray:
    """Costs [R, 3, K] of a bowl whose best rate is the ladder's middle; a a squared half step."""
    noise = rng.normal(size=(studies, 3, len(LOGS))) + rng.normal(size=(studies, 3, 1))
    return a * (2 * HALVES) ** 2 + sd * noise


def chosen(curves: selection.Curves) -> np.ndarray:
    eighths = STEP * np.arange(-24, 25) / 8
    return eighths[selection.choose(curves, eighths)]


def test_without_noise_the_curve_is_the_bowl_and_its_best_rate_is_found() -> None:
    costs = tried(2 + 0.3 * (HALVES - 0.13) ** 2)
    curves = selection.fit(LOGS, np.array([costs] * 3), STEP)
    assert chosen(curves) == pytest.approx(STEP / 8)
    assert selection.expected(curves, [0.13 * STEP]) == pytest.approx(2, abs=1e-4)
    assert selection.regret(curves, STEP / 8) < 1e-3
    # a step away the curve costs 0.3 · (1.13² − 0) more
    assert selection.regret(curves, -STEP) == pytest.approx(0.3 * 1.13**2, rel=0.02)


def test_what_all_rates_of_a_seed_share_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    costs = tried(noisy(rng, 20))
    moved = costs + rng.normal(size=(20, 3, 1)) * 10
    a, b = (selection.fit(LOGS, each, STEP) for each in (costs, moved))
    assert np.allclose(chosen(a), chosen(b))
    assert np.allclose(selection.regret(a, 0 * a.floor), selection.regret(b, 0 * b.floor))


def test_the_noise_is_the_interaction_of_seed_and_rate() -> None:
    """Against the residuals of a two-way analysis of variance, by hand."""
    costs = noisy(np.random.default_rng(1), 1)[0][:, 4:9]
    logs = LOGS[4:9]
    curves = selection.fit(logs, costs, STEP)
    residual = costs - costs.mean(0) - costs.mean(1, keepdims=True) + costs.mean()
    sd, df = math.sqrt((residual**2).sum() / 8), 8
    assert curves.df == df
    # the level of the curve is known as well as one mean of three seeds, or better
    at_best = math.sqrt((curves.root @ curves.root.T)[0, 0])
    assert 0.3 * sd / math.sqrt(3) < at_best < 1.1 * sd / math.sqrt(3)


def test_the_regret_is_as_large_as_it_is_said_to_be() -> None:
    """400 bowls: root mean squares within a third; a standard error is below 8%."""
    curves = selection.fit(LOGS, tried(noisy(np.random.default_rng(2), 400)), STEP)
    places = chosen(curves) / STEP * 2
    true = math.sqrt(np.mean((0.5 * places**2) ** 2))
    said = math.sqrt(np.mean(selection.regret(curves, chosen(curves)) ** 2))
    assert 0.75 * true < said < 2.2 * true


def test_rates_beyond_a_cliff_move_nothing_and_the_rate_beside_it_needs_a_reason() -> None:
    costs = np.repeat(0.02 * (2 * HALVES - 0.4)[None] ** 2, 3, axis=0)
    costs += 0.005 * np.random.default_rng(3).normal(size=costs.shape)
    for lost in (3.0, math.inf):
        over = costs.copy()
        over[:, 7:] = lost
        curves = selection.fit(LOGS, tried(over), STEP)
        # the middle is beside the cliff, half a step below is not; the gain is within noise
        assert (curves.high, curves.safe) == (0.0, -0.5) and selection.near_cliff(curves)
        falling = over.copy()
        falling[:, :7] -= 0.2 * HALVES[:7]  # 20 times the noise between two rates
        assert chosen(selection.fit(LOGS, tried(falling), STEP)) == 0.0
        flat = over.copy()
        flat[:, :7] = (
            0.02 * (2 * HALVES[:7] + 0.9) ** 2 + (over - 0.02 * (2 * HALVES - 0.4) ** 2)[:, :7]
        )
        assert chosen(selection.fit(LOGS, tried(flat), STEP)) <= -0.5 * STEP
    smooth = selection.fit(LOGS, tried(costs), STEP)
    assert not selection.near_cliff(smooth)


def test_a_contrast_has_the_errors_of_both_choices() -> None:
    d = np.array([0.1, 0.3, 0.2, 0.5, 0.1])
    (plain,) = stats.family(d[:, None])
    both = selection.combined([(1, Choice(0.12, 6.0)), (-1, Choice(0.16, 4.0))])
    assert both.error == pytest.approx(0.2)
    assert both.df == pytest.approx(0.2**4 / (0.12**4 / 6 + 0.16**4 / 4))  # Satterthwaite 1946
    (wide,) = selection.with_choices([plain], [both])
    own = st.sem(d)
    error = math.hypot(own, 0.2)
    df = error**4 / (own**4 / 4 + 0.2**4 / both.df)
    assert (wide.lo, wide.hi) == pytest.approx(st.t.interval(0.95, df, d.mean(), error))
    assert wide.p == wide.p_holm == pytest.approx(2 * st.t.sf(d.mean() / error, df))
    assert (wide.mean, wide.sd, wide.p_sign_flip) == (plain.mean, plain.sd, plain.p_sign_flip)
    assert selection.with_choices([plain], [Choice()]) == [plain]


def test_the_error_of_an_outcome_is_how_far_it_moves_with_the_choice() -> None:
    """Bowls whose best rate is 0, and an outcome that falls by 0.8 a step, with a noise of its own.

    At rates that luck chose, the outcome is off by 0.8 times their distance from 0.
    """
    rng = np.random.default_rng(11)
    costs = tried(noisy(rng, 300))
    rates = np.exp(LOGS)
    at = chosen(selection.fit(LOGS, costs, STEP))
    tried_at = np.isfinite(costs[0, 0])
    for slope in (0.8, -0.8, 0.0):
        outcomes = slope * HALVES + 0.05 * rng.normal(size=costs.shape)
        found = [
            selection.choice_error(
                rates[tried_at],
                one[:, tried_at],
                math.exp(place),
                step=STEP,
                outcomes=own[:, tried_at],
            )
            for one, own, place in zip(costs, outcomes, at, strict=True)
        ]
        true = math.sqrt(np.mean((slope * at / STEP) ** 2))
        said = math.sqrt(np.mean([one.error**2 for one in found]))
        if slope:
            assert 0.75 * true < said < 2.2 * true
        else:
            assert said < 0.05
        turned = selection.choice_error(
            rates[tried_at],
            costs[0][:, tried_at],
            math.exp(at[0]),
            step=STEP,
            outcomes=-outcomes[0][:, tried_at],
        )
        assert turned.error == pytest.approx(found[0].error)
    # without noise in what decides there is no luck
    smooth = np.array([0.3 * HALVES**2] * 3)
    exact = selection.choice_error(rates, smooth, 1.0, step=STEP, outcomes=outcomes[0])
    assert exact.error < 0.02
    # and of a metric to be maximised it is the same
    mirror = selection.choice_error(
        rates[tried_at],
        -costs[0][:, tried_at],
        math.exp(at[0]),
        step=STEP,
        goal="max",
        outcomes=outcomes[0][:, tried_at],
    )
    assert mirror.error == pytest.approx(found[0].error)


def test_a_small_error_of_many_degrees_of_freedom_never_narrows_an_interval() -> None:
    (plain,) = stats.family(np.array([[0.1], [0.3], [0.2]]))
    (wide,) = selection.with_choices([plain], [Choice(0.01, 100.0)])
    assert (wide.lo, wide.hi, wide.p) == (plain.lo, plain.hi, plain.p)


def test_arms_of_one_decision_share_their_luck() -> None:
    one = Choice(0.03, 6.0)
    assert selection.combined([(0, one)]).error == 0
    twice = selection.combined([(2, one)])
    assert (twice.error, twice.df) == pytest.approx((0.06, 6.0))


def test_holm_and_equivalence_take_the_choice() -> None:
    rng = np.random.default_rng(4)
    d = rng.normal(0.3, 0.2, size=(8, 3))
    effects = stats.family(d)
    choices = [Choice(0.2, 5.0), Choice(), Choice(0.05, 5.0)]
    wide = selection.with_choices(effects, choices)
    assert [effect.p_holm for effect in wide] == pytest.approx(
        stats.holm([effect.p for effect in wide]).tolist()
    )
    assert wide[1].p == effects[1].p and wide[0].p > 10 * effects[0].p
    for effect, at in zip(wide, effects, strict=True):
        assert effect.family_lo <= at.family_lo and effect.family_hi >= at.family_hi
    plain = stats.equivalence(d[:, 0], 0.6)
    test = selection.equivalence_with(d[:, 0], 0.6, choices[0])
    assert plain.equivalent and not test.equivalent and test.lo < plain.lo
    assert selection.equivalence_with(d[:, 1], 0.6, choices[1]) == stats.equivalence(d[:, 1], 0.6)


def test_after_a_pilot_the_choice_widens_both_noises() -> None:
    d = np.random.default_rng(5).normal(0.1, 0.3, size=12)
    (effect,) = stats.family(d[:, None], pilot=np.arange(12) < 5, resolution=2.0)
    (wide,) = selection.with_choices([effect], [Choice(0.1, 5.0)])
    own = [error for error, _ in effect.noise.errors]
    assert [error for error, _ in wide.noise.errors] == pytest.approx(
        [*own, *(math.hypot(error, 0.1) for error in own)]
    )
    assert wide.method == effect.method and wide.p > effect.p


def test_runs_that_all_diverged_have_no_error_of_choice() -> None:
    values = np.full((3, 5), np.nan)
    assert selection.choice_error(np.exp(LOGS[:5]), values, 0.1, step=STEP) == Choice()


def test_a_metric_to_be_maximised_has_the_same_error() -> None:
    costs = noisy(np.random.default_rng(6), 1, a=5)[0][:, 4:9]
    rates = np.exp(LOGS[4:9])
    low = selection.choice_error(rates, costs, 1.2, step=STEP)
    assert low == selection.choice_error(rates, -costs, 1.2, step=STEP, goal="max")
    assert low.error > 0 and low.df == 4, "half of (3 − 1) · (5 − 1)"


def test_one_tuning_seed_takes_the_noise_that_is_given() -> None:
    costs = 0.5 * (2 * HALVES[None, 4:9]) ** 2
    rates = np.exp(LOGS[4:9])
    quiet, loud = (
        selection.choice_error(rates, costs, 1.0, step=STEP, noise=(sd, 9)) for sd in (0.1, 1.0)
    )
    assert loud.error > 2 * quiet.error and loud.df == quiet.df == 4.5


def test_the_effect_at_each_rate_is_a_paired_t_of_tuning_seeds() -> None:
    rng = np.random.default_rng(8)
    a, b = rng.normal(size=(2, 4, 3))
    a[2, 1] = np.nan
    a[1:, 2] = np.nan
    rows = selection.by_rate([1e-3, 2e-3, 4e-3], a, b)
    assert [(rate, n) for rate, n, *_ in rows] == [(1e-3, 4), (2e-3, 3), (4e-3, 1)]
    test = st.ttest_rel(a[:, 0], b[:, 0])
    assert rows[0][2] == pytest.approx((a - b)[:, 0].mean())
    assert rows[0][3:] == pytest.approx(tuple(test.confidence_interval(0.95)))
    assert math.isnan(rows[2][3]) and math.isnan(rows[2][4])
    assert selection.by_rate([1e-3], np.full((3, 1), np.nan), b[:3, :1]) == []


@pytest.mark.parametrize("pairs", [8, 16])
def test_identical_arms_with_rates_of_their_own_differ_in_five_percent_of_studies(
    pairs: int,
) -> None:
    """2,000 studies: a share of 5% has a standard error of 0.5 points, so 6.5% is three of them.

    With the rate of the lowest loss of one seed it is above 10%, so that the test would see it.
    """
    rng, studies = np.random.default_rng(9), 2000
    arms = [selection.fit(LOGS, tried(noisy(rng, studies)), STEP) for _ in range(2)]
    rates = [chosen(one) for one in arms]
    regrets = [0.5 * (2 * rate / STEP) ** 2 for rate in rates]
    d = (regrets[1] - regrets[0])[:, None] + rng.normal(size=(studies, pairs)) * math.sqrt(2)
    errors = [selection.regret(one, rate) for one, rate in zip(arms, rates, strict=True)]
    false, widths = 0, []
    for k, row in enumerate(d):
        choice = selection.combined([(1, Choice(float(each[k]), 4.0)) for each in errors])
        (effect,) = selection.with_choices(stats.family(row[:, None]), [choice])
        false += effect.p <= 0.05
        widths.append((effect.hi - effect.lo) / (2 * stats.paired(row).noise.half(0.95)))
    assert 0.025 <= false / studies <= 0.065
    assert np.mean(widths) < 1.1, "power is not thrown away"
    argmin = [noisy(rng, studies)[:, 0, 2:11].argmin(axis=1) - 4 for _ in range(2)]
    lucky = d - (regrets[1] - regrets[0])[:, None]
    lucky += (0.5 * (argmin[1] ** 2 - argmin[0] ** 2))[:, None]
    p = st.ttest_1samp(lucky, 0, axis=1).pvalue
    assert (p <= 0.05).mean() > 0.08


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("beyond", [0.5, 1.0])
def test_the_regret_at_an_edge_counts_a_best_rate_beyond_it(side: int, beyond: float) -> None:
    """200 bowls whose best rate lies beyond the rates tried; the choice is at the edge in all.

    What is said is at least the truth, and at most 2.5 times as much. It was below 0.01.
    """
    places = np.array([0, 1, 2, 3, 3.5, 4]) * side
    places.sort()
    edge = 4.0 * side
    rng = np.random.default_rng(7)
    costs = (places - edge - beyond * side) ** 2 + 0.1 * rng.normal(size=(200, 3, len(places)))
    curves = selection.fit(STEP * places, costs, STEP)
    candidates = STEP * np.arange(-32, 33) / 8
    inside = candidates[(candidates >= STEP * places[0]) & (candidates <= STEP * places[-1])]
    at = inside[selection.choose(curves, inside)]
    assert np.isclose(at, STEP * edge).all()
    said = math.sqrt(np.mean(selection.regret(curves, at) ** 2))
    assert beyond**2 < said < 2.5 * beyond**2
    # half a step inside the edge it is sought within the rates tried
    within = selection.regret(curves, at - side * 0.5 * STEP)
    assert within == pytest.approx((beyond + 0.5) ** 2 - beyond**2, rel=0.6)


def test_rates_beyond_a_cliff_are_no_edge_and_are_not_searched() -> None:
    costs = (HALVES + 3 - 3.5) ** 2 + 0.01 * np.random.default_rng(8).normal(size=(3, len(HALVES)))
    whole, over = costs[:, :6], costs[:, :7].copy()
    over[1, 6] = np.inf  # the next rate diverged
    edge, cliff = selection.fit(LOGS[:6], whole, STEP), selection.fit(LOGS[:7], over, STEP)
    assert selection.regret(cliff, LOGS[5]) < 0.02 < 0.5 < selection.regret(edge, LOGS[5])


def test_an_outcome_at_an_edge_moves_as_far_as_the_best_rate_may_lie_beyond() -> None:
    """The best rate is a step beyond; the other metric falls by 0.8 a step."""
    costs = np.array([(HALVES - 4) ** 2] * 3)
    costs += 0.02 * np.random.default_rng(9).normal(size=costs.shape)
    outcomes = -0.8 * HALVES + 0.02 * np.random.default_rng(10).normal(size=costs.shape)
    found = selection.choice_error(
        np.exp(LOGS), costs, math.exp(LOGS[-1]), step=STEP, outcomes=outcomes
    )
    assert 0.6 < found.error < 1.0
