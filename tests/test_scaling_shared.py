"""Errors that runs of a size share: their estimate, intervals, comparisons, plans."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats as st

from ablate import scaling
from ablate.errors import AblateError
from ablate.scaling import shared
from ablate.scaling.bootstrap import limits
from ablate.scaling.design import USUAL
from ablate.scaling.forms import FORMS, Cost
from ablate.scaling.groups import Draw, compare, half_width
from ablate.scaling.noise import Noise, misfit
from ablate.scaling.shared import factors, shared_errors, tangent
from ablate.scaling.solve import Floats
from ablate.scaling.summary import claim, faster

ND = FORMS["nd"]
isoflop = importlib.import_module("ablate.scaling.isoflop")  # the package has its function


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def points(sizes: int = 5, budgets: int = 4, seeds: int = 1) -> dict[str, Floats]:
    n = np.repeat(np.geomspace(1e8, 3e9, sizes), budgets)
    d = np.tile(np.geomspace(1e19, 1e21, budgets), sizes) / 6 / n
    return {name: np.tile(column, seeds) for name, column in {"n": n, "d": d}.items()}


def errors(
    random: np.random.Generator, size: float, run: float, sizes: int, budgets: int
) -> Floats:
    by_size = np.repeat(size * random.normal(size=sizes), budgets)
    return by_size + run * random.normal(size=sizes * budgets)


def test_the_likelihood_is_that_of_a_mixed_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its prior the most probable ratio is the REML estimate of statsmodels."""
    columns = points(12, 6)
    of = factors(ND, columns)["size"]
    off = errors(rng(3), 0.005, 0.004, 12, 6)
    monkeypatch.setattr(shared, "factors", lambda *_: {"size": of})
    monkeypatch.setattr(shared, "RATIOS", np.linspace(0, 4, 401))
    monkeypatch.setattr(shared, "CLIPPED", np.inf)
    found = shared_errors(ND, USUAL, columns, off)
    assert found is not None
    likelihood = found.weights * (1 + found.ratios[:, 0] ** 2)
    ratio = found.ratios[1 + likelihood[1:-1].argmax(), 0]
    model = sm.MixedLM(1000 * off, tangent(ND, USUAL, columns), of).fit(reml=True)
    assert ratio**2 == pytest.approx(float(model.cov_re[0, 0]) / model.scale, rel=0.05)
    run = np.sqrt(found.squares / found.dof)[1 + likelihood[1:-1].argmax()]
    assert 1000 * run == pytest.approx(np.sqrt(model.scale), rel=0.01)


def test_intervals_hold_where_a_size_shares_an_error() -> None:
    """To first order: 92% of 250 tables, where runs alone would give 54%."""
    random, columns, hits = rng(), points(), []
    floor, a, alpha, b, beta = USUAL
    by_n, by_d = a * columns["n"] ** -alpha, b * columns["d"] ** -beta
    x = (
        np.stack(
            [np.ones(20), by_n, -by_n * np.log(columns["n"]), by_d, -by_d * np.log(columns["d"])],
            axis=1,
        )
        / (floor + by_n + by_d)[:, None]
    )
    answer = np.linalg.pinv(x)
    for _ in range(250):
        off = errors(random, 0.005, 0.0025, 5, 4)
        found = shared_errors(ND, USUAL, columns, off)
        assert found is not None
        residuals = off - x @ (answer @ off)
        weights = random.exponential(size=(200, 20)) - 1
        both = []
        for shifts in (np.zeros((200, 20)), found.shifts(random, 200)[0]):
            lo, hi = limits(((off + residuals * weights + shifts) @ answer.T)[:, 2], 15)
            both.append(lo <= 0 <= hi)
        hits.append(both)
    alone, together = np.sum(hits, axis=0)
    assert alone < st.binom.ppf(0.001, 250, 0.8)
    assert together >= st.binom.ppf(0.001, 250, 0.92)


def test_only_what_repeats_is_shared() -> None:
    assert list(factors(ND, points())) == ["size", "budget"]
    assert list(factors(ND, points(seeds=3))) == ["size", "budget", "point"]
    one = {"n": np.repeat(np.geomspace(1e7, 1e9, 5), 3)}
    assert list(factors(FORMS["n"], one)) == ["point"]
    assert not factors(FORMS["n"], {"n": np.geomspace(1e7, 1e9, 8)})
    assert (
        shared_errors(FORMS["n"], USUAL[:3], {"n": np.geomspace(1e7, 1e9, 8)}, np.zeros(8)) is None
    )


def test_a_run_far_off_is_no_error_of_its_size() -> None:
    columns, off = points(6, 6), errors(rng(1), 0.0, 0.002, 6, 6)
    clean = shared_errors(ND, USUAL, columns, off)
    off[7] += 0.3
    far = shared_errors(ND, USUAL, columns, off)
    assert clean is not None and far is not None
    assert far.usual()["size"] < 3 * clean.usual()["size"]


def isoflop_runs(
    random: np.random.Generator, size: float, run: float, seeds: int = 3
) -> tuple[dict[str, Floats], Floats]:
    """Six sizes about the best of six budgets; runs of a size share an error."""
    n, c = np.tile(np.geomspace(1e8, 7e9, 6), 6), np.repeat(np.geomspace(1e19, 1e21, 6), 6)
    columns = {name: np.tile(x, seeds) for name, x in {"n": n, "d": c / 6 / n, "c": c}.items()}
    own = run * random.normal(size=36 * seeds)
    return columns, np.log(ND.loss(USUAL, columns)) + own + np.tile(
        size * random.normal(size=6), 6 * seeds
    )


@pytest.mark.parametrize("size", [0.0, 0.005])
def test_isoflop_intervals_hold_where_a_size_shares_an_error(
    size: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """92% of 60 tables; fresh noise of every run alone would give 46% where errors are shared."""

    def no_frontier(*_: object, **__: object) -> None:
        raise AblateError("not of interest here")

    monkeypatch.setattr(isoflop, "fit", no_frontier)
    random, hits, found, widths = rng(4), 0, [], []
    for _ in range(60):
        columns, log_loss = isoflop_runs(random, size, 0.0025)
        a = scaling.isoflop(np.exp(log_loss), rng=random, bootstraps=200, **columns).n_exponent
        hits += a.lo <= USUAL[4] / (USUAL[2] + USUAL[4]) <= a.hi
        found.append(a.value)
        widths.append(a.hi - a.lo)
    assert hits >= st.binom.ppf(0.001, 60, 0.92)
    assert np.median(widths) < 2 * (2 * 1.96 * np.std(found))


def test_errors_of_isoflop_runs_are_estimated_without_a_law() -> None:
    """The restricted likelihood about a cubic a budget, written with matrices of all runs."""
    columns, log_loss = isoflop_runs(rng(2), 0.005, 0.0025)
    budgets = isoflop.split(columns, log_loss)
    found = isoflop.run_errors(columns, log_loss, budgets)
    assert found.factors == ("size", "point") and found.dof == 108 - 6 * 4
    budget = np.unique(columns["c"], return_inverse=True)[1]
    x = np.zeros((108, 24))
    for power in range(4):
        x[np.arange(108), 4 * budget + power] = np.log(columns["n"] / 1e9) ** power
    expected = []
    for ratios in found.ratios:
        v = np.eye(108)
        for ratio, of in zip(ratios, found.members, strict=True):
            v += ratio**2 * (of[:, None] == of)
        left = x.T @ np.linalg.solve(v, np.column_stack([x, log_loss]))
        rest = log_loss - x @ np.linalg.solve(left[:, :-1], left[:, -1])
        squares = rest @ np.linalg.solve(v, rest)
        logdet = np.linalg.slogdet(v)[1] + np.linalg.slogdet(left[:, :-1])[1]
        expected.append(-logdet / 2 - found.dof / 2 * np.log(squares))
    prior = np.log(np.gradient(shared.RATIOS) / (1 + shared.RATIOS**2))
    log_weights = np.log(found.weights) - np.add.outer(prior, prior).ravel()
    off = log_weights - expected
    assert np.allclose(off, off[0], atol=1e-6)
    drawn = found.errors(rng(), 20_000).std(axis=0).mean()
    total = found.weights @ ((1 + (found.ratios**2).sum(axis=1)) * found.squares) / (found.dof - 2)
    assert drawn == pytest.approx(np.sqrt(total), rel=0.05)


def test_a_difference_of_groups_counts_sizes_where_they_share_an_error() -> None:
    """Of differences of sizes by 0.5% and of runs by 0.25%, all around zero, 5% are significant."""
    size, random, false = np.repeat(np.arange(5), 4), rng(5), np.zeros(2)
    for _ in range(400):
        apart = errors(random, 0.005, 0.0025, 5, 4)
        by_run, by_size = half_width(apart, np.arange(20)), half_width(apart, size)
        false += [abs(apart.mean()) > by_run, abs(apart.mean()) > max(by_run, by_size)]
    assert false[1] <= st.binom.ppf(0.999, 400, 0.05) < false[0]
    assert half_width(apart, size) == pytest.approx(
        st.t.isf(0.025, 4) * st.sem([apart[size == one].mean() for one in range(5)])
    )


def test_differences_have_the_degrees_of_freedom_of_a_t_test() -> None:
    """Of pairs those of a regression of the differences; else Welch's, as scipy has them."""
    columns = points(4, 4)
    exact = ND.loss(USUAL, columns)
    base, paired = (
        scaling.fit(
            exact * np.exp(errors(rng(seed), 0, 0.003, 4, 4)), rng=rng(), bootstraps=60, **columns
        )
        for seed in (1, 2)
    )
    draw = Draw.of(paired, base, rng(3))
    own, base_own = draw.own(paired, base)
    x = tangent(ND, base.values, columns)
    dof = sm.OLS(paired.residuals() - base.residuals(), x).fit().df_resid
    assert (draw.dofs(paired, base, own, base_own) == dof).all() and dof == 11
    one = compare(paired, base, "paired", "base", rng(3))
    ends = limits((own - base_own)[:, 2], dof)
    assert (one.exponents["alpha"].interval.lo, one.exponents["alpha"].interval.hi) == ends
    more = points(6, 5)
    other = scaling.fit(
        ND.loss(USUAL, more) * np.exp(errors(rng(4), 0, 0.02, 6, 5)),
        rng=rng(),
        bootstraps=60,
        **more,
    )
    samples = rng(5).normal(size=12), 3 * rng(6).normal(size=26)  # as many as dof + 1
    copies = [st.sem(one) * st.norm.ppf(np.linspace(0.001, 0.999, 999))[:, None] for one in samples]
    (dof,) = Draw.of(other, base, rng(3)).dofs(other, base, copies[1], copies[0])
    assert dof == pytest.approx(st.ttest_ind(*samples, equal_var=False).df, rel=0.01)


def test_equal_curves_whose_sizes_have_errors_of_their_own_do_not_differ() -> None:
    columns, random = points(), rng(5)
    exact = ND.loss(USUAL, columns)
    both = {name: np.tile(column, 2) for name, column in columns.items()}
    loss = [exact * np.exp(errors(random, 0.008, 0.002, 5, 4)) for _ in "ab"]
    (one,) = scaling.fit_table(
        np.concatenate(loss), group=["a"] * 20 + ["b"] * 20, rng=random, bootstraps=60, **both
    ).comparisons
    assert one.measured is not None and one.verdict == "inconclusive"
    apart = np.log(loss[1] / loss[0])
    naive = st.t.isf(0.025, 19) * apart.std(ddof=1) / np.sqrt(20)
    assert one.measured.hi - one.measured.lo > 2 * naive


def test_a_comparison_says_which_curve_is_in_doubt() -> None:
    columns = points(6, 6)
    exact = ND.loss(USUAL, columns)
    bent = exact * np.where(columns["n"] == columns["n"].max(), 1.3, 1.0)
    noise = [np.exp(0.002 * rng(seed).normal(size=36)) for seed in (0, 1)]
    both = {name: np.tile(column, 2) for name, column in columns.items()}
    (one,) = scaling.fit_table(
        np.concatenate([exact * noise[0], bent * noise[1]]),
        group=["good"] * 36 + ["bent"] * 36,
        rng=rng(),
        bootstraps=60,
        **both,
    ).comparisons
    assert not one.trusted
    assert all("bent" in doubt and "good" not in doubt for doubt in one.doubts)
    assert "bent" in claim(one)


def test_a_misfit_has_a_size_and_a_verdict_only_where_it_matters() -> None:
    log_loss = np.linspace(0.7, 1.2, 240)
    assert misfit(0.003, 235, log_loss, Noise(0.0025, 30, "repeated runs")) is None
    small = misfit(0.0059, 235, log_loss, Noise(0.0025, 30, "repeated runs"))
    assert small is not None and small.describes
    assert small.size == pytest.approx(np.sqrt(0.0059**2 - 0.0025**2))
    large = misfit(0.05, 235, log_loss, Noise(0.0025, 30, "repeated runs"))
    assert large is not None and not large.describes
    assert misfit(0.03, 235, log_loss, None) is None
    hopeless = misfit(0.2, 235, log_loss, None)
    assert hopeless is not None and not hopeless.describes


def test_a_smallest_budget_on_another_curve_is_said() -> None:
    columns = points(6, 6)
    c = 6 * columns["n"] * columns["d"]
    loss = ND.loss(USUAL, columns) * np.exp(0.002 * rng(2).normal(size=36))
    assert not any("another curve" in note for note in fit_notes(loss, columns))
    loss[c < 1.01 * c.min()] *= 1.06
    assert any("smallest budgets" in note for note in fit_notes(loss, columns))


def fit_notes(loss: Floats, columns: dict[str, Floats]) -> tuple[str, ...]:
    return scaling.fit(loss, rng=rng(), bootstraps=60, **columns).notes


def test_the_interval_of_a_has_the_error_of_the_path() -> None:
    columns = points(6, 6)
    loss = ND.loss(USUAL, columns) * np.exp(0.002 * rng(2).normal(size=36))
    power = columns | {"c": 6 * columns["n"] ** 0.8 * columns["d"]}
    bent = columns | {"c": (6 * columns["n"] ** 0.8 + 3e8) * columns["d"]}
    assert Cost.of(power).spread == pytest.approx(0, abs=1e-9)
    widths = []
    for table in (power, bent):
        one = scaling.fit(loss, rng=rng(), bootstraps=100, **table)
        widths.append(one.n_exponent.hi - one.n_exponent.lo)
    assert widths[1] > 1.3 * widths[0]


def test_a_best_size_that_grows_faster_than_the_budget_is_explained() -> None:
    columns = points(6, 6)
    columns["c"] = 6 * columns["n"] ** 0.5 * columns["d"]
    law = np.array([1.8, 482.0, 0.25, 3e5, 0.6])
    one = scaling.fit(ND.loss(law, columns), rng=rng(), bootstraps=20, **columns)
    assert one.n_exponent.value > 1 and "D as C^" in faster(one)
    assert not faster(scaling.fit(ND.loss(USUAL, points()), rng=rng(), bootstraps=20, **points()))


def test_a_benchmark_gives_the_same_for_any_number_of_processes(tmp_path: Path) -> None:
    script = tmp_path / "benchmark.py"
    script.write_text(
        "import argparse\n"
        "from cores import Cores, arguments\n"
        "def work(rng, factor):\n"
        "    return factor * rng.normal()\n"
        "if __name__ == '__main__':\n"
        "    parser = argparse.ArgumentParser()\n"
        "    arguments(parser)\n"
        "    with Cores(parser.parse_args()) as cores:\n"
        "        print(list(cores.each(work, [(1,), (1000,)], 5)))\n"
    )
    there = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "benchmarks")}
    one, three, other = (
        subprocess.run(
            [sys.executable, script, *options],
            env=there,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for options in (
            ("--processes", "1"),
            ("--processes", "3"),
            ("--processes", "3", "--seed", "1"),
        )
    )
    assert one == three != other
    rows = ast.literal_eval(one)
    assert [len(row) for row in rows] == [5, 5] and len({x for row in rows for x in row}) == 10
