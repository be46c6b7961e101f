"""Scaling fits: constants recovered, agreement with an optimiser and papers, refusals."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import optimize
from scipy.interpolate import Akima1DInterpolator

from ablate import scaling
from ablate.errors import AblateError
from ablate.scaling import bootstrap, solve
from ablate.scaling.bootstrap import estimate, limits, replicate
from ablate.scaling.design import USUAL
from ablate.scaling.forms import FORMS, Problem, best_split
from ablate.scaling.groups import meeting
from ablate.scaling.isoflop import Budget, roughness
from ablate.scaling.solve import DELTA, Floats, descend

DATA = Path(__file__).parent / "data" / "scaling"
# hparams, warmup, decay, param_count → published exponent of N on RefinedWeb, OpenWebText2
PROTOCOLS = {
    ("base", "long", "kaplan", "kaplan"): (0.834, 0.870),
    ("base", "long", "kaplan", "standard"): (0.701, 0.700),
    ("base", "short", "kaplan", "standard"): (0.604, 0.602),
    ("base", "short", "chinchilla", "standard"): (0.571, 0.569),
    ("tuned", "short", "const", "standard"): (0.497, 0.518),
}


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def grid(sizes: int = 6, ratios: int = 6, lowest: float = 5e7) -> dict[str, Floats]:
    n = np.repeat(np.geomspace(lowest, 100 * lowest, sizes), ratios)
    return {"n": n, "d": n * np.tile(np.geomspace(5, 160, ratios), sizes)}


def losses(
    columns: dict[str, Floats], noise: float, seed: int = 0, constants: Floats = USUAL
) -> Floats:
    exact = FORMS["nd"].loss(constants, columns)
    return exact * np.exp(noise * rng(seed).normal(size=len(exact)))


def huber(theta: Floats, columns: dict[str, Floats], log_loss: Floats) -> float:
    """The objective of Hoffmann et al., written down once more without the solver's parts."""
    e, a, alpha, b, beta = theta
    terms = np.stack(
        [
            np.full(len(log_loss), e),
            a - alpha * np.log(columns["n"]),
            b - beta * np.log(columns["d"]),
        ]
    )
    r = np.abs(np.log(np.exp(terms).sum(axis=0)) - log_loss)
    return float(np.where(r < DELTA, r**2 / 2, DELTA * (r - DELTA / 2)).sum())


@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_the_solver_reaches_the_optimum_of_an_independent_one(noise: float) -> None:
    columns = grid()
    log_loss = np.log(losses(columns, noise))
    problem = Problem.build(FORMS["nd"], columns, log_loss)
    ends = descend(problem.design, log_loss, np.ones((36, 36)), problem.starts(log_loss))
    theta, reached = ends.theta, ends.loss
    # most of the grid of starts ends at one optimum
    assert (reached < reached.min() * 1.0001).mean() > 0.5
    found = problem.constants(theta[[reached.argmin()]])[0]
    start = np.log(found[0]), np.log(found[1]), found[2], np.log(found[3]), found[4]
    assert huber(np.array(start), columns, log_loss) == pytest.approx(reached.min(), rel=1e-9)
    other = min(
        (
            optimize.minimize(
                huber,
                np.array(start) * rng(i).normal(1, 0.02, 5),
                (columns, log_loss),
                method="Nelder-Mead",
                options={
                    "maxiter": 4000,
                    "maxfev": 4000,
                    "fatol": 1e-13,
                    "xatol": 1e-9,
                    "adaptive": True,
                },
            )
            for i in range(3)
        ),
        key=lambda result: result.fun,
    )
    assert reached.min() <= other.fun * (1 + 1e-6)


def test_a_weight_is_a_run_counted_that_often() -> None:
    columns = grid(4, 4)
    log_loss = np.log(losses(columns, 0.01))
    problem = Problem.build(FORMS["nd"], columns, log_loss)
    counts = rng().integers(0, 3, 16)
    repeated = {name: np.repeat(column, counts) for name, column in columns.items()}
    start = problem.starts(log_loss)[[8]]
    weighted = descend(problem.design, log_loss, counts[None].astype(float), start).loss
    longer = Problem.build(FORMS["nd"], repeated, np.repeat(log_loss, counts))
    spelled_out = descend(
        longer.design, np.repeat(log_loss, counts), np.ones((1, counts.sum())), start
    ).loss
    assert weighted == pytest.approx(spelled_out, rel=1e-6)


FLAT = np.array([1.2, 5, 0.06, 190, 0.237])  # a law whose exponent of N is nearly zero


def flat_table() -> tuple[dict[str, Floats], Floats]:
    """Thirty runs of the flat law at 0.5% noise; the fit's best floor is zero."""
    table = pd.read_csv(DATA / "flat_law_30_runs.csv")
    return {name: table[name].to_numpy(float) for name in ("n", "d")}, table["loss"].to_numpy()


def by_scipy(
    columns: dict[str, Floats], log_loss: Floats, weights: Floats, starts: list[Floats]
) -> float:
    """Return the lowest weighted Huber loss that L-BFGS-B finds, from E, A, alpha, B, beta.

    Written without the solver's parts: the parameters are E over the lowest loss, the logarithms of
    both power laws at the mean of their logarithms, and the exponents; the gradient is by hand.
    """
    low = float(np.exp(log_loss.min()))
    logs = [np.log(columns[name]) for name in ("n", "d")]
    off = [log - log.mean() for log in logs]

    def objective(theta: Floats) -> tuple[float, Floats]:
        e, a, alpha, b, beta = theta
        terms = low * np.exp(a - alpha * off[0]), low * np.exp(b - beta * off[1])
        curve = e * low + terms[0] + terms[1]
        r = np.log(curve) - log_loss
        loss = np.where(np.abs(r) < DELTA, r**2 / 2, DELTA * (np.abs(r) - DELTA / 2))
        pull = weights * np.clip(r, -DELTA, DELTA) / curve
        parts = np.full(len(r), low), terms[0], -off[0] * terms[0], terms[1], -off[1] * terms[1]
        # in units in which scipy's stopping rules are tight
        return 1e4 * float(weights @ loss), 1e4 * np.array([pull @ part for part in parts])

    found = []
    for e, a, alpha, b, beta in starts:
        at = [
            e / low,
            np.log(a / low) - alpha * logs[0].mean(),
            alpha,
            np.log(b / low) - beta * logs[1].mean(),
            beta,
        ]
        for _ in range(3):  # L-BFGS-B stops early at a kink; a fresh start there goes on
            end = optimize.minimize(
                objective,
                at,
                jac=True,
                method="L-BFGS-B",
                bounds=[(0, 1.1), (-8, 3), (0, 4), (-8, 3), (0, 4)],
                options={"maxiter": 3000, "maxfun": 10_000, "ftol": 1e-14, "gtol": 1e-9},
            )
            at = end.x
        found.append(end.fun / 1e4)
    return min(found)


def summed_huber(constants: Floats, columns: dict[str, Floats], log_loss: Floats) -> Floats:
    """Return the Huber loss at every run."""
    r = np.abs(np.log(FORMS["nd"].loss(constants, columns)) - log_loss)
    return np.where(r < DELTA, r**2 / 2, DELTA * (r - DELTA / 2))


SEVERAL = [
    np.array([e, a * 1e9**alpha, alpha, b * 1e10**beta, beta])
    for e, a, b in ((0.0, 1.5, 1.0), (0.6, 1.5, 1.0), (1.8, 0.6, 0.5))
    for alpha, beta in ((0.05, 0.25), (0.2, 0.3))
]


def test_a_flat_law_is_fitted_to_the_end_and_its_floor_of_zero_is_said() -> None:
    columns, loss = flat_table()
    found = scaling.fit_table(loss, rng=rng(), bootstraps=200, **columns)
    one = found.fits["all"]
    ours = summed_huber(one.values, columns, np.log(loss)).sum()
    assert ours <= by_scipy(columns, np.log(loss), np.ones(30), SEVERAL) * (1 + 1e-6)
    assert ours == pytest.approx(8.554e-5, rel=1e-3)
    assert one.values[0] == 0.0 and one.constants["alpha"].value == pytest.approx(0.0344, abs=2e-4)
    for name, interval in one.constants.items():
        assert interval.lo <= interval.value < interval.hi, name
        assert name == "E" or interval.lo < interval.value, name
    assert "The floor E is 0" in "\n".join(found.lines())


@pytest.mark.parametrize(
    "seeds", [range(0, 12, 3), pytest.param(range(12), marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_the_estimates_of_flat_laws_are_those_of_an_independent_optimiser(seeds: range) -> None:
    for seed in seeds:
        columns = grid(6, 5)
        log_loss = np.log(losses(columns, 0.005 + 0.001 * seed, seed, FLAT))
        value = estimate(FORMS["nd"], columns, log_loss, rng(), 30).value
        ours = summed_huber(value, columns, log_loss).sum()
        assert ours <= by_scipy(columns, log_loss, np.ones(30), SEVERAL) * (1 + 1e-4), seed


@pytest.mark.parametrize("flat", [True, False])
def test_replicates_are_at_the_optimum_of_an_independent_optimiser(flat: bool) -> None:
    columns, loss = flat_table() if flat else (grid(5, 4), losses(grid(5, 4), 0.02))
    log_loss = np.log(loss)
    problem = Problem.build(FORMS["nd"], columns, log_loss)
    weights = rng(1).exponential(size=(200, len(loss)))
    _, copies, missed = replicate(problem, log_loss, weights)
    constants = problem.constants(copies)
    above = []
    for weight, ours in zip(weights[:40], constants[:40], strict=True):
        reached = weight @ summed_huber(ours, columns, log_loss)
        lowest = by_scipy(columns, log_loss, weight, [ours, *SEVERAL])
        above.append(reached > lowest * (1 + 1e-3))
    # three standard errors of a share, over what the fit says
    assert np.mean(above) <= missed + 3 * math.sqrt(0.02 * 0.98 / 40) and missed < 0.05


def test_a_table_of_many_runs_has_no_interval_that_ends_at_its_estimate() -> None:
    columns = {name: np.tile(column, 40) for name, column in grid(6, 5).items()}
    shocks = 0.01 * rng(5).standard_t(3, size=1200)
    log_loss = np.log(FORMS["nd"].loss(FLAT, columns)) + shocks
    found = estimate(FORMS["nd"], columns, log_loss, rng(), 40)
    lo, hi = limits(found.replicates, 1195)
    assert (lo < found.value).all() and (found.value < hi).all()
    assert len(np.unique(found.replicates, axis=0)) == 40
    ours = summed_huber(found.value, columns, log_loss).sum()
    assert ours <= by_scipy(columns, log_loss, np.ones(1200), [found.value, *SEVERAL]) * (1 + 1e-5)


def test_a_fit_that_has_not_converged_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, loss = flat_table()
    monkeypatch.setattr(solve, "ITERATIONS", 3)
    lines = scaling.fit_table(loss, rng=rng(), bootstraps=50, **columns).lines()
    assert any("did not converge" in line for line in lines)


def test_replicates_that_may_have_missed_their_optimum_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns, loss = flat_table()
    monkeypatch.setattr(bootstrap, "ROUNDS", 1)
    found = scaling.fit_table(loss, rng=rng(), bootstraps=100, **columns)
    (line,) = [line for line in found.lines() if "bootstrap fits may not" in line]
    share = float(re.findall(r"([\d.]+)% of the bootstrap fits", line)[0])
    assert 5 < share < 90


def test_an_exponent_at_the_steepest_searched_is_said() -> None:
    x = np.geomspace(1e6, 1e7, 8)
    loss = 2 + 3 * (x / 1e6) ** -6.0
    found = scaling.fit(loss, n=x, rng=rng(), bootstraps=20)
    assert found.constants["alpha"].value == 4.0
    assert any("alpha is at the largest value searched" in note for note in found.notes)


@pytest.mark.parametrize("form", ["n", "d", "c"])
def test_one_resource_without_noise_gives_the_constants_back(form: str) -> None:
    x = np.geomspace(1e6, 1e9, 8)
    truth = np.array([1.7, 300.0, 0.31])
    found = scaling.fit(FORMS[form].loss(truth, {form: x}), rng=rng(), bootstraps=50, **{form: x})
    assert found.form is FORMS[form]
    assert found.values == pytest.approx(truth, rel=1e-3)
    assert found.noise < 1e-6 and found.held_out is not None and abs(found.held_out.miss) < 1e-4


def test_two_resources_without_noise_give_constants_and_best_split_back() -> None:
    columns = grid()
    found = scaling.fit(losses(columns, 0), rng=rng(), bootstraps=50, **columns)
    assert found.values == pytest.approx(USUAL, rel=1e-3)
    alpha, beta = USUAL[2], USUAL[4]
    assert found.n_exponent.value == pytest.approx(beta / (alpha + beta), rel=1e-3)
    c = np.array([1e20, 1e22])
    n, d, loss = (band.value for band in found.best_split(c))
    assert 6 * n * d == pytest.approx(c)
    for i, budget in enumerate(c):  # the best size by looking for it
        sizes = np.geomspace(n[i] / 30, n[i] * 30, 20_001)
        tried = found.form.loss(found.values, {"n": sizes, "d": budget / 6 / sizes})
        assert sizes[tried.argmin()] == pytest.approx(
            n[i], rel=1e-3
        ) and tried.min() == pytest.approx(loss[i], rel=1e-6)


def test_intervals_hold_the_truth_and_narrow_with_runs() -> None:
    once = grid()
    often = {name: np.tile(column, 5) for name, column in once.items()}
    few, many = (
        scaling.fit(losses(c, 0.01, 1), rng=rng(), bootstraps=300, **c) for c in (once, often)
    )
    for found in (few, many):
        for truth, interval in zip(USUAL, found.constants.values(), strict=True):
            assert interval.lo < truth < interval.hi and interval.lo < interval.value < interval.hi
        assert found.noise == pytest.approx(0.01, rel=0.25)
    width = [found.constants["alpha"].hi - found.constants["alpha"].lo for found in (few, many)]
    assert width[1] < 0.75 * width[0]
    band = many.predict(n=np.array([1e10]), d=np.array([1e12]))
    assert (
        band.lo[0]
        < FORMS["nd"].loss(USUAL, {"n": np.array([1e10]), "d": np.array([1e12])})[0]
        < band.hi[0]
    )


def test_few_runs_are_fitted_with_a_warning() -> None:
    x = np.geomspace(1e6, 1e9, 6)
    loss = FORMS["n"].loss(np.array([1.7, 300.0, 0.31]), {"n": x})
    assert not scaling.fit(loss, n=x, rng=rng(), bootstraps=50).notes
    assert any(
        "5 runs for 3 constants" in note
        for note in scaling.fit(loss[:5], n=x[:5], rng=rng(), bootstraps=50).notes
    )


def test_a_diverged_run_is_lost_and_counted() -> None:
    columns = grid()
    table = losses(columns, 0.005)
    table[[3, 10]] = np.nan, np.inf
    found = scaling.fit(table, rng=rng(), bootstraps=50, **columns)
    assert (found.runs, found.lost) == (34, 2) and np.isfinite(found.values).all()


def test_a_broken_curve_fails_its_held_out_check() -> None:
    columns = grid()
    table = losses(columns, 0.002)
    table[columns["n"] == columns["n"].max()] *= 1.1  # the largest size did not train well
    broken = scaling.fit(table, rng=rng(), bootstraps=200, **columns).held_out
    whole = scaling.fit(losses(columns, 0.002), rng=rng(), bootstraps=200, **columns).held_out
    assert broken is not None and whole is not None
    assert (
        not broken.trusted
        and broken.miss == pytest.approx(0.1, abs=0.03)
        and "do not trust" in str(broken)
    )
    assert whole.trusted and abs(whole.miss) < 0.02 and "do not trust" not in str(whole)
    assert (broken.runs, broken.what) == (6, "largest size (N = 5×10⁹)")


def test_the_largest_budget_can_be_held_out() -> None:
    columns = grid()
    c = 6 * columns["n"] * columns["d"]
    found = scaling.fit(
        losses(columns, 0.002),
        "nd",
        c=c,
        hold_out="largest budget",
        rng=rng(),
        bootstraps=100,
        **columns,
    )
    assert (
        found.held_out is not None
        and found.held_out.runs == 1
        and found.held_out.what.startswith("largest budget (C = ")
    )
    with pytest.raises(AblateError, match="hold_out"):
        scaling.fit(losses(columns, 0.002), hold_out="biggest", rng=rng(), bootstraps=50, **columns)


def test_runs_far_off_are_named_with_what_would_be_fitted_without_them() -> None:
    """As the 5 of 245 points that Besiroglu et al. 2024 left out: β from 0.37 to 0.45."""
    columns = grid(12, 12)
    loss = losses(columns, 0.005)
    away = np.flatnonzero((columns["d"] / columns["n"] < 5.1) & (columns["n"] > 5e8))
    damaged = loss.copy()
    damaged[away] *= np.linspace(1.15, 1.4, len(away))
    without = {name: np.delete(column, away) for name, column in columns.items()}
    found = scaling.fit(damaged, "nd", rng=rng(), bootstraps=50, **columns)
    other = scaling.fit(np.delete(loss, away), "nd", rng=rng(), bootstraps=50, **without)
    (note,) = [note for note in found.notes if "far off" in note]
    assert len(away) > 4 and note.startswith(
        f"{len(away)} runs lie far off, at N = 5e+09, D = 2.5e+10 by +39.9%; at N = "
    )
    assert len(re.findall(r"at N = \S+, D = \S+ by \+\d+\.\d%;", note)) == 4
    assert f"%; and {len(away) - 4} more. The others lie 0." in note
    assert f"without them E = {other.constants['E'].value:.4g}" in note
    assert not any("far off" in note for note in other.notes)


@pytest.mark.parametrize("noise", [0.0, 0.001, 0.05])
def test_noise_alone_puts_no_run_far_off(noise: float) -> None:
    for seed in range(5):
        fit = scaling.fit(losses(grid(), noise, seed), "nd", rng=rng(), bootstraps=2, **grid())
        assert not any("far off" in note for note in fit.notes)


def test_a_loss_that_falls_with_one_resource_has_no_split_of_two() -> None:
    columns = grid()
    along_d = (2 + 30 * columns["d"] ** -0.2) * np.exp(
        0.002 * np.random.default_rng(0).standard_normal(len(columns["d"]))
    )
    with pytest.raises(AblateError, match=r"do not fall with N\. .* Without N"):
        scaling.fit(along_d * columns["n"] ** 0.02, "nd", rng=rng(), bootstraps=2, **columns)


@pytest.mark.parametrize("form", ["nd", "n"])
def test_what_does_not_fall_has_no_curve(form: str) -> None:
    columns = {name: column for name, column in grid().items() if name in form}
    rising = 1 - losses(grid(), 0.0) / 100  # as an accuracy
    with pytest.raises(AblateError, match=r"do not fall with N( or D)?\."):
        scaling.fit(rising, form, rng=rng(), bootstraps=10, **columns)


def test_a_miss_of_nothing_is_to_be_trusted() -> None:
    held = scaling.fit(losses(grid(), 0.0), "nd", rng=rng(), bootstraps=20, **grid()).held_out
    assert held is not None
    held = replace(held, miss=-1e-9, lo=1e-12, hi=1e-11)
    assert held.trusted and "a miss of +0.00% (expected within +0.00% to +0.00%)." in str(held)
    assert not replace(held, miss=1e-3).trusted


def test_repeated_runs_show_that_a_form_does_not_fit() -> None:
    columns = {name: np.tile(column, 3) for name, column in grid().items()}
    waves = 0.05 * np.sin(3 * np.log(columns["n"]))
    bent = scaling.fit(losses(columns, 0.002) * np.exp(waves), rng=rng(), bootstraps=50, **columns)
    assert any("does not describe them" in note for note in bent.notes)
    assert not scaling.fit(losses(columns, 0.002), rng=rng(), bootstraps=50, **columns).notes


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ({"n": [1e6] * 8, "d": np.geomspace(1e7, 1e9, 8)}, "3 sizes.*there are 1 size,"),
        ({"n": [1e6, 2e6, 4e6] * 2, "d": [1e7, 2e7, 4e7] * 2}, "7 runs.*6 runs"),
        (
            {"n": np.geomspace(1e6, 1e8, 9), "d": 20 * np.geomspace(1e6, 1e8, 9)},
            "tokens rise with size",
        ),
        ({"n": np.geomspace(1e6, 1e8, 9), "d": 1e16 / np.geomspace(1e6, 1e8, 9)}, "same budget"),
        ({"n": [1e6, 2e6, 4e6, 4.1e6] * 3}, "4 sizes.*there are 3 sizes"),
        ({"c": [1e17, 1e18, 1e19]}, "4 budgets.*5 runs.*3 budgets"),
    ],
)
def test_a_poor_grid_is_refused_with_one_that_would_do(
    points: dict[str, Floats], reason: str
) -> None:
    columns = {name: np.asarray(values, float) for name, values in points.items()}
    with pytest.raises(AblateError, match=reason) as error:
        scaling.fit(np.linspace(4, 3, len(next(iter(columns.values())))), rng=rng(), **columns)
    assert "this grid would suffice: " in str(error.value)


@pytest.mark.parametrize(
    ("loss", "columns", "reason"),
    [
        ([3.0, 2.0], {"n": [1.0]}, "column n has 1 values for 2 losses"),
        ([3.0, 2.0], {"n": [1.0, -1.0]}, "positive"),
        ([3.0, -2.0], {"n": [1.0, 2.0]}, "zero or below"),
        ([3.0, 2.0], {"x": [1.0, 2.0]}, "unknown form"),
    ],
)
def test_a_wrong_table_is_refused(
    loss: list[float], columns: dict[str, list[float]], reason: str
) -> None:
    with pytest.raises(AblateError, match=reason):
        scaling.fit(
            np.array(loss),
            rng=rng(),
            **{name: np.array(column) for name, column in columns.items()},
        )


def test_the_expected_width_is_the_bootstraps() -> None:
    """What a plan is told beforehand is what a fit says afterwards, within a third."""
    for columns in (grid(), grid(5, 4)):
        expected = scaling.expected_width(FORMS["nd"], USUAL, columns, 0.005)["alpha"]
        got = []
        for seed in range(8):
            found = estimate(
                FORMS["nd"], columns, np.log(losses(columns, 0.005, seed)), rng(seed), 200
            )
            lo, hi = limits(found.replicates, len(columns["n"]) - 5)
            got.append(hi[2] - lo[2])
        assert np.median(got) == pytest.approx(expected, rel=0.34)


def test_points_on_one_line_have_no_width() -> None:
    n = np.geomspace(1e7, 1e9, 12)
    assert scaling.expected_width(FORMS["nd"], USUAL, {"n": n, "d": 20 * n}, 0.01)["alpha"] > 2
    assert (
        scaling.expected_width(FORMS["nd"], USUAL, {"n": n[:5], "d": n[:5]}, 0.01)["alpha"]
        == math.inf
    )
    grids = [scaling.sufficient_grid(FORMS["nd"], noise) for noise in (0.003, 0.01, 0.02)]
    runs = [one.runs for one in grids if one is not None]
    assert len(runs) == 3 and runs == sorted(runs) and runs[0] < runs[2]


def isoflop_table(
    noise: float, sizes: int = 9, spread: float = 10.0, seeds: int = 1
) -> dict[str, Floats]:
    c = np.repeat(np.geomspace(1e19, 1e21, 5), sizes * seeds)
    best, _, _ = best_split(USUAL, c)
    n = best * np.tile(np.repeat(np.geomspace(1 / spread, spread, sizes), seeds), 5)
    columns = {"n": n, "d": c / 6 / n}
    return {**columns, "c": c, "loss": losses(columns, noise)}


def test_isoflop_minima_without_noise_are_the_best_split() -> None:
    found = scaling.isoflop(**isoflop_table(0.0), rng=rng(), bootstraps=50)
    truth = USUAL[4] / (USUAL[2] + USUAL[4])
    assert found.n_exponent.value == pytest.approx(truth, abs=0.004)
    assert found.d_exponent.value == pytest.approx(1 - truth, abs=0.004)
    c = np.array([minimum.c for minimum in found.minima])
    n, d, loss = best_split(USUAL, c)
    assert [minimum.n.value for minimum in found.minima] == pytest.approx(n, rel=0.03)
    assert [minimum.d for minimum in found.minima] == pytest.approx(d, rel=0.03)
    assert [minimum.loss for minimum in found.minima] == pytest.approx(loss, rel=1e-3)
    assert found.best_split(c)[0] == pytest.approx(n, rel=0.03)


@pytest.mark.parametrize("seeds", [1, 3])
def test_isoflop_intervals_hold_the_truth_and_estimate_the_noise(seeds: int) -> None:
    found = scaling.isoflop(**isoflop_table(0.003, seeds=seeds), rng=rng(), bootstraps=200)
    truth = USUAL[4] / (USUAL[2] + USUAL[4])
    assert found.n_exponent.lo < truth < found.n_exponent.hi
    assert found.noise == pytest.approx(0.003, rel=0.35)
    assert found.noise_from == ("repeated runs" if seeds > 1 else "roughness of the curves")


def test_roughness_passes_a_cubic_and_scales_to_the_noise() -> None:
    x = np.sort(rng().uniform(0, 3, 4000).cumsum())[:4000]
    assert np.abs(roughness(x[:30], 2 + x[:30] - x[:30] ** 2 / 50 + x[:30] ** 3 / 900)).max() < 1e-9
    assert roughness(x, rng(1).normal(size=4000)).std() == pytest.approx(1, rel=0.05)
    assert len(roughness(x[:4], x[:4])) == 1


def test_the_minimum_of_the_interpolation_is_exact() -> None:
    """Piecewise cubics, against a dense look at them; ends do not count."""
    x = np.sort(rng(2).uniform(0, 5, 8))
    y = (x[:, None] - 2.5) ** 2 / 60 + 0.04 * rng(3).normal(size=(8, 60))
    dense = np.linspace(x[0], x[-1], 20_001)
    curves = Akima1DInterpolator(x, y, axis=0)(dense)
    expected = dense[curves.argmin(axis=0)]
    ends = (expected == x[0]) | (expected == x[-1])
    each = np.arange(8)
    at, least = Budget(1.0, x, y[:, 0], x, np.ones(8), each, each).lowest(y)
    assert (np.isnan(at) == ends).all() and 5 < ends.sum() < 40
    assert at[~ends] == pytest.approx(expected[~ends], abs=1e-3)
    assert least[~ends] == pytest.approx(curves.min(axis=0)[~ends], abs=1e-7)


def test_a_minimum_at_the_edge_is_not_one() -> None:
    table = isoflop_table(0.0)
    first = table["c"] == table["c"].min()
    # the first budget starts beyond its best size
    inside = ~first | (table["n"] > 1.5 * best_split(USUAL, table["c"])[0])
    found = scaling.isoflop(
        **{name: column[inside] for name, column in table.items()}, rng=rng(), bootstraps=50
    )
    assert found.minima[0].reason == "lowest at its smallest size" and math.isnan(
        found.minima[0].n.value
    )
    assert any("lowest at its smallest size" in note for note in found.notes)
    two = np.isin(table["c"], np.unique(table["c"])[:2])
    with pytest.raises(AblateError, match=r"need 3 budgets .* of 2 budgets 2 have that"):
        scaling.isoflop(**{name: column[two] for name, column in table.items()}, rng=rng())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_published_isoflop_exponents(protocol: tuple[str, ...]) -> None:
    """Porian et al. 2024: five protocols on two texts, to within 0.03."""
    table = pd.read_csv(DATA / "porian_isoflop_points.csv")
    table = table[table.file.isin(["summary_df", "summary_df_owt2"])]
    for text, published in zip(("rw", "owt2"), PROTOCOLS[protocol], strict=True):
        rows = table[
            (table[["hparams", "warmup", "decay", "param_count"]] == list(protocol)).all(axis=1)
            & (table.dataset == text)
        ]
        n, d, c, loss = (rows[name].to_numpy() for name in ("n", "tokens", "flops", "loss"))
        found = scaling.isoflop(loss, n=n, d=d, c=c, rng=rng(), bootstraps=100)
        assert found.n_exponent.value == pytest.approx(published, abs=0.03)
        assert found.n_exponent.lo < published < found.n_exponent.hi
        assert found.n_exponent.value + found.d_exponent.value == pytest.approx(1, abs=0.02)


def test_gadre_models_are_fitted_and_their_held_out_miss_stated() -> None:
    table = pd.read_csv(DATA / "gadre_104_models_losses.csv")
    found = scaling.fit_table(
        table.loss_c4_val.to_numpy(),
        n=table.params.to_numpy(),
        d=table.tokens.to_numpy(),
        group=table.train_set.tolist(),
        rng=rng(),
        bootstraps=100,
    )
    assert list(found.fits) == ["c4_original", "rpj", "rw_original"]
    for one in found.fits.values():
        assert one.noise == pytest.approx(0.03, abs=0.005)  # about 3%, says the tables' README
        assert 0.15 < one.constants["alpha"].value < 0.4 and 0.2 < one.constants["beta"].value < 0.4
        assert one.held_out is not None and abs(one.held_out.miss) < 0.08 and one.held_out.trusted
        # one model in all three
        assert any(
            "far off" in note and "at N = 7.89e+07, D = 3.95e+08" in note for note in one.notes
        )
    text = "\n".join(found.lines())
    assert (
        "a miss of +" in text
        and "Against c4_original, rpj differs in loss, but not significantly in its exponents"
        in text
    )


def two_groups(
    constants: Floats, noise: float = 0.003, seed: int = 0, shared: float = 0.0
) -> scaling.TableFit:
    columns = {name: np.tile(column, 3) for name, column in grid().items()}
    common = np.exp(shared * rng(99).normal(size=len(columns["n"])))
    loss = np.concatenate(
        [
            losses(columns, noise, seed) * common,
            losses(columns, noise, seed + 1, constants) * common,
        ]
    )
    both = {name: np.tile(column, 2) for name, column in columns.items()}
    names = ["serial"] * len(columns["n"]) + ["parallel"] * len(columns["n"])
    return scaling.fit_table(loss, group=names, rng=rng(seed), bootstraps=200, **both)


def test_equal_curves_do_not_differ_significantly() -> None:
    (one,) = two_groups(USUAL).comparisons
    assert (one.group, one.baseline, one.axis, one.verdict) == (
        "parallel",
        "serial",
        "c",
        "inconclusive",
    )
    assert all(difference.p_holm > 0.05 for difference in one.exponents.values())
    assert one.low == pytest.approx(6 * 5e7 * 2.5e8) and one.high == pytest.approx(6 * 5e9 * 8e11)


def test_a_factor_on_the_loss_is_an_offset() -> None:
    found = two_groups(USUAL * [1.03, 1.03, 1, 1.03, 1])
    (one,) = found.comparisons
    assert one.verdict == "offset"
    assert (
        "Against serial, parallel differs in loss, but not significantly in its exponents"
        in "\n".join(found.lines())
    )
    for gap in (one.gap, one.gap_low, one.gap_high):
        assert gap.lo < 0.03 < gap.hi and gap.value == pytest.approx(0.03, abs=0.01)
    assert one.gap.hi - one.gap.lo < 0.5 * (one.gap_high.hi - one.gap_high.lo)


def test_other_exponents_differ_significantly_and_cross_where_they_should() -> None:
    other = USUAL * [1, 5, 1, 5, 1] + [0, 0, 0.08, 0, 0.07]
    (one,) = two_groups(other).comparisons
    assert one.verdict == "exponent"
    assert one.exponents["alpha"].interval.lo < 0.08 < one.exponents["alpha"].interval.hi
    at = optimize.brentq(
        lambda log_c: float(
            best_split(other, np.exp([log_c]))[2][0] - best_split(USUAL, np.exp([log_c]))[2][0]
        ),
        35,
        60,
    )
    assert one.crossing.at.value == pytest.approx(math.exp(at), rel=0.5) and one.crossing.inside
    assert (
        one.crossing.at.lo < math.exp(at) < one.crossing.at.hi and one.crossing.share_inside > 0.95
    )


def test_noise_that_groups_share_drops_out_of_their_comparison() -> None:
    """With the same 2% noise in both groups, the paired difference is far more precise."""
    paired = two_groups(USUAL, noise=0.001, shared=0.02)
    (one,) = paired.comparisons
    difference, alone = one.exponents["alpha"].interval, paired.fits["serial"].constants["alpha"]
    assert difference.hi - difference.lo < 0.4 * (alone.hi - alone.lo)


def test_curves_meet_where_they_change_sign() -> None:
    x = np.geomspace(1, 1e4, 41)
    log_x = np.log(x)
    gaps = np.stack([log_x - np.log(50), np.log(50) - log_x, 1 + log_x, -20 + log_x])
    assert meeting(x, gaps, 10, 1000) == pytest.approx([50, 50, 0, math.inf])
    twice = (log_x - np.log(2)) * (log_x - np.log(300))
    # the one nearest the middle, 100
    assert meeting(x, twice[None], 10, 1000)[0] == pytest.approx(300, rel=0.02)


def test_a_table_fills_in_what_it_can() -> None:
    table = isoflop_table(0.002)
    given = scaling.fit_table(
        table["loss"], n=table["n"], flops=table["c"], rng=rng(), bootstraps=50
    )
    whole = scaling.fit_table(table["loss"], n=table["n"], d=table["d"], rng=rng(), bootstraps=50)
    other = scaling.fit_table(
        table["loss"], d=table["d"], flops=table["c"], rng=rng(), bootstraps=50
    )
    for found in (given, whole, other):
        assert found.fits["all"].form is FORMS["nd"] and found.isoflops[
            "all"
        ].n_exponent.value == pytest.approx(0.51, abs=0.1)
    assert (
        "Tokens taken as d = flops / 6n." in given.lines()
        and "Budgets taken as C = 6·n·d." in whole.lines()
    )
    only_c = scaling.fit_table(
        np.array([4.0, 3.5, 3.2, 3.0, 2.9]),
        flops=np.geomspace(1e17, 1e21, 5),
        rng=rng(),
        bootstraps=50,
    )
    assert only_c.fits["all"].form is FORMS["c"] and not only_c.isoflops
    with pytest.raises(AblateError, match="at least one of the columns"):
        scaling.fit_table(np.array([3.0]), rng=rng())
    with pytest.raises(AblateError, match="unknown hold_out 'biggest'"):
        scaling.fit_table(
            table["loss"], n=table["n"], flops=table["c"], hold_out="biggest", rng=rng()
        )
    with pytest.raises(AblateError, match=r"L\(N, D\) needs the column d"):
        scaling.fit_table(table["loss"], n=table["n"], form="nd", rng=rng())


def test_a_table_of_one_budget_is_refused_with_both_reasons() -> None:
    table = isoflop_table(0.0)
    one = table["c"] == table["c"].min()
    with pytest.raises(AblateError, match=r"same budget.*isoFLOP exponents need"):
        scaling.fit_table(table["loss"][one], n=table["n"][one], flops=table["c"][one], rng=rng())


def test_the_same_seed_gives_the_same_fit() -> None:
    columns = grid()
    first, second = (
        scaling.fit(losses(columns, 0.01), rng=rng(4), bootstraps=50, **columns) for _ in range(2)
    )
    assert first.constants == second.constants and first.held_out == second.held_out
