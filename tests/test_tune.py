"""Tuned rates and seeds: hand-worked ladders, resumption anywhere, seeds apart from compared."""

from __future__ import annotations

import itertools
import math
import random
import re
import signal
import sqlite3
import statistics
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import pytest
import quadratic_worker
from cli_helpers import Run
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import InProcessExecutor
from launch_helpers import HERE, Launcher, content, rows, wait_for
from launch_helpers import launch as launch_by
from report_study import save_svg
from scipy import stats as scipy_stats

from ablate import analysis, figures, report, results, store, study_run, tune
from ablate import plan as planning
from ablate.launch import devices, pool
from ablate.plan import Decision, decide, plan
from ablate.plan.price import price
from ablate.plan.tuning import seeds
from ablate.store import decisions
from ablate.store.register import register
from ablate.study import Study, Tune, load
from ablate.study.model import WIDEST
from ablate.study_run import Outcome
from ablate.tune import search, sensitivity

mpl.use("agg")

TEXT = """
name = "bowl"
question = "Which rate?"
metric = "loss"
seeds = 3
within = ["n_layer"]
[base]
d_model = 8
n_head = 1
n_ctx = 8
batch_tokens = 64
tokens = 64
[factors]
topology = ["serial", "no-attention-skip"]
n_layer = [1, 2]
[tune]
lr = [1e-4, 1e-2]
points = 5
seeds = 1
per = ["topology"]
"""
LADDER = Tune(1e-4, 1e-2, 5, 1, ())  # 0.0001, 0.000316, 0.001, 0.00316, 0.01


@pytest.fixture(autouse=True)
def stub(monkeypatch):
    monkeypatch.setenv("ABLATE_WORKER", "quadratic_worker")
    monkeypatch.setenv("PYTHONPATH", f"{HERE.parent}:{HERE}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(pool, "INGEST", 0.02)
    monkeypatch.setattr(pool, "POLL", 0.02)


def launch(given: Study, path: Path) -> tuple[Outcome, str]:
    """Run a study in this process, and its runs in a thread; return its outcome and output."""
    return launch_by(
        given, path, executor=lambda: InProcessExecutor(devices.find("cpu"), quadratic_worker.Bowl)
    )


def study(folder: Path, *changes: tuple[str, str], text: str = TEXT) -> Study:
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "bowl.toml"
    path.write_text(text)
    return load(str(path))


def decided(path: Path) -> dict[tuple[str, str], float]:
    found = rows(
        path,
        "SELECT cell.label, decision.name, decision.value FROM decision JOIN cell ON cell.id ="
        " cell_id",
    )
    return {(cell, name): float(value) for cell, name, value in found}


def tuned(path: Path, cell: str) -> list[float]:
    sql = "SELECT lr FROM all_runs WHERE role = 'tune' AND cell = ? ORDER BY lr"
    return [lr for (lr,) in rows(path, sql, cell)]


# -- the search ------------------------------------------------------------------------------------


def walk(
    cost: Callable[[float], float | list[float]], table: Tune = LADDER
) -> list[tune.rates.Search]:
    """Return the searches of one group, each with the results of all rates requested before."""
    known: dict[float, list[float]] = {}
    found = [search(table, known.get)]
    while found[-1].best is None:
        for lr in found[-1].rates:
            value = cost(lr)
            known[lr] = value if isinstance(value, list) else [value]
        found.append(search(table, known.get))
    return found


def bowl(best: float) -> Callable[[float], float]:
    return lambda lr: (math.log10(lr) - best) ** 2


def test_the_ladder_is_even_on_a_log_scale() -> None:
    assert LADDER.ladder == (1e-4, 3.16e-4, 1e-3, 3.16e-3, 1e-2)
    assert [LADDER.rate(place) for place in (-1, 0.5, 3.5, 5)] == [
        3.16e-5,
        1.78e-4,
        5.62e-3,
        3.16e-2,
    ]
    assert Tune(3e-4, 1e-2, 3, 1, ()).ladder == (3e-4, 1.73e-3, 1e-2)  # √(3e-4 · 1e-2) = 0.001732


def test_an_optimum_inside_is_refined_once_and_read_off_the_curve() -> None:
    first, second, last = walk(bowl(-2.72))
    assert first.rates == LADDER.ladder
    assert set(second.rates) - set(first.rates) == {1.78e-3, 5.62e-3}  # around 3.16e-3
    # an eighth of a step is 1/16 in log10: −2.75 is nearer to −2.72 than −2.6875
    assert (last.rates, last.best) == (second.rates, 1.78e-3)
    assert not (last.at_edge or last.near_cliff)
    assert walk(bowl(-2.5))[-1].best == 3.16e-3  # the refinement need not win
    assert walk(bowl(-2.57))[-1].best == 2.74e-3, "−2.5625, a rate that was not tried"


def test_an_optimum_at_the_edge_widens_the_range_by_a_step() -> None:
    stages = walk(bowl(-1.6))
    added = [
        sorted(set(after.rates) - set(before.rates)) for before, after in itertools.pairwise(stages)
    ]
    assert added == [[3.16e-2], [1e-1], [1.78e-2, 5.62e-2], []]
    assert (stages[-1].best, stages[-1].at_edge) == (2.37e-2, False)  # −1.625
    low = walk(bowl(-4.6))
    assert [min(stage.rates) for stage in low] == [1e-4, 3.16e-5, 1e-5, 1e-5, 1e-5]
    assert low[-1].best == 2.37e-5


def test_a_diverged_rate_is_never_the_best_and_ends_the_widening() -> None:
    last = walk(lambda lr: math.inf if lr > 0.02 else -lr)[-1]
    # 0.0316 diverged, then 0.0237; each rate below is better for certain, as there is no noise
    assert last.best == 1.78e-2 and last.near_cliff and not last.at_edge
    assert max(last.rates) == 3.16e-2 and {1.33e-2, 2.37e-2} < set(last.rates)


def test_a_rate_beside_a_cliff_is_not_chosen_for_a_gain_within_noise() -> None:
    """The case of the stored studies: 0.316 chosen over 0.1 for 0.004, and 1.65 lost beyond."""
    table = Tune(1e-3, 1.0, 7, 3, ())
    noise = {
        lr: [0.004 * math.sin(37 * k + 11 * j) for k in range(3)]
        for j, lr in enumerate(table.ladder)
    }

    def cost(gain: float) -> Callable[[float], list[float]]:
        def of(lr: float) -> list[float]:
            if lr > 0.35:
                return [2.95] * 3
            at = math.log10(lr) + 1
            smooth = 1.299 + 0.05 * at**2 if at < 0 else 1.299 - 2 * gain * at
            return [smooth + each for each in noise.get(lr, [0.003, -0.004, 0.001])]

        return of

    small, large = (walk(cost(gain), table)[-1] for gain in (0.004, 0.1))
    assert small.near_cliff and large.near_cliff
    assert small.best is not None and small.best <= 0.25
    assert large.best == 0.316, "25 times the noise is a reason"


def test_widening_ends_and_reports_it() -> None:
    up = walk(lambda lr: -lr)[-1]
    assert (up.best, up.at_edge) == (LADDER.rate(4 + WIDEST), True)
    tied = walk(lambda lr: 1.0 if lr <= 1e-3 else 1.1)[-1]  # the lowest of the best is the end
    assert tied.best == 3.16e-6 and tied.rates[:2] == (1e-6, 1.78e-6)
    assert tied.at_edge, "the lowest rate is as good as any"
    nothing = walk(lambda lr: math.inf)[-1]
    assert (nothing.best, nothing.cost, nothing.at_edge) == (LADDER.rate(-WIDEST), None, True), (
        "where all diverge, the lowest that was tried"
    )


def test_the_edge_is_reported_where_the_best_run_is_there_and_the_curve_turns_above_it() -> None:
    """no-mlp-skip in topology-85m: the chosen rate is between the two lowest tried."""
    table = Tune(7e-4, 2.8e-3, 3, 1, ())
    measured = {4.37e-5: 1.4819, 6.19e-5: 1.4954, 8.75e-5: 1.663, 1.75e-4: 2.9643}
    last = walk(lambda lr: measured.get(lr, 3.253), table)[-1]
    assert last.best == 5.2e-5 and last.rates[:2] == (4.37e-5, 6.19e-5)
    assert last.at_edge


def test_a_search_goes_down_until_a_rate_trains() -> None:
    """A model that only learns how frequent each token is has the same loss at every such rate."""

    def cost(lr: float) -> float:
        return (math.log10(lr) + 5.3) ** 2 if lr <= 3.2e-5 else 3 - 1e-4 * math.sin(1e3 * lr)

    found = searched(cost, lambda lr: lr > 3.2e-5)
    assert found.rates == (1e-6, 1.78e-6, 3.16e-6, 5.62e-6, 1e-5, 3.16e-5, *LADDER.ladder)
    assert found.best == 4.87e-6  # 10^-5.3125, an eighth of a step from 10^-5.25 and from 10^-5.3
    nothing = searched(lambda lr: 3 + 1e-4 * math.sin(1e3 * lr), lambda _: True)
    assert (nothing.best, nothing.rates[1:6:4]) == (LADDER.rate(-WIDEST), (3.16e-6, 3.16e-4))
    assert nothing.cost == pytest.approx(3, abs=1e-3) and nothing.at_edge


def test_a_search_goes_up_from_rates_that_are_too_low_to_learn_how_frequent_tokens_are() -> None:
    found = searched(
        lambda lr: 5 - 2 * math.exp(-((math.log10(lr) + 1.4) ** 2)), lambda lr: lr in (3.16e-3,)
    )
    assert max(found.rates) > 3e-2 and found.best == pytest.approx(10**-1.4, rel=0.2)


def searched(cost: Callable[[float], float], alike: Callable[[float], bool]) -> tune.rates.Search:
    """Return the end of a search; `alike`: whether the loss is that of token frequencies."""
    known: dict[float, list[float]] = {}
    while (found := search(LADDER, known.get, set(filter(alike, known)))).best is None:
        known |= {lr: [cost(lr)] for lr in found.rates}
    return found


def test_seeds_that_disagree_about_the_best_rate_are_averaged_by_the_curve() -> None:
    """One lucky run at a rate moves an argmin, and the curve hardly."""

    def lucky(lr: float) -> list[float]:
        at = (math.log10(lr) + 3) ** 2
        return [at + 0.02, at - 0.01, at - (0.25 if lr == 1.78e-3 else 0.0)]

    last = walk(lucky)[-1]
    means = {lr: statistics.fmean(lucky(lr)) for lr in last.rates}
    assert min(means, key=means.get) == 1.78e-3  # type: ignore[arg-type]
    assert last.best is not None and 1e-3 <= last.best < 1.5e-3


@given(
    st.lists(
        st.tuples(*[st.sampled_from([0.0, 1.0, 2.0, 3.0, math.inf])] * 2), min_size=80, max_size=80
    ),
    st.randoms(),
)
@settings(max_examples=40, deadline=None)
def test_a_search_goes_the_same_way_whatever_comes_first(
    costs: list[tuple[float, float]], random: random.Random
) -> None:
    """Results in any order, and more than requested, give the same search."""
    table = Tune(1e-4, 1e-2, 4, 2, ())
    everything = {
        table.rate(quarter / 4): list(costs[quarter + 4 * WIDEST])
        for quarter in range(-4 * WIDEST, 4 * (3 + WIDEST) + 1)
    }
    end = search(table, everything.get)
    assert end.best is not None and len(end.rates) <= 4 + WIDEST * 2 + 4
    known: dict[float, list[float]] = {}
    while (found := search(table, known.get)).best is None:
        assert set(found.rates) <= set(end.rates)
        lr = random.choice([lr for lr in found.rates if lr not in known])
        known[lr] = everything[lr]
    assert found == end
    assert set(known) == set(end.rates)


def test_sensitivity_is_the_mean_miss_of_a_rate() -> None:
    # Wortsman et al. 2023, section 2.2: E[min(l, l0) − l*]; by hand: (0.5 + 0 + 1 + 3 + 3) / 5
    assert sensitivity([2.5, 2.0, 3.0, math.nan, 7.0], ceiling=5.0) == pytest.approx(1.5)
    assert sensitivity([2.0, 2.0, 2.0], ceiling=5.0) == 0
    assert math.isnan(sensitivity([math.nan, math.inf], ceiling=5.0))


# -- the plan --------------------------------------------------------------------------------------


def test_a_group_is_tuned_on_its_first_cell(tmp_path: Path) -> None:
    made = plan(study(tmp_path))
    assert [(group.label, group.cells) for group in made.groups] == [
        ("topology=serial", ("topology=serial, n_layer=1", "topology=serial, n_layer=2")),
        (
            "topology=no-attention-skip",
            ("topology=no-attention-skip, n_layer=1", "topology=no-attention-skip, n_layer=2"),
        ),
    ]
    assert {(run.cell, run.role) for run in made.runs} == {
        (group.representative, "tune") for group in made.groups
    }
    assert [run.config.lr for run in made.runs] == list(LADDER.ladder) * 2
    each = plan(study(tmp_path, ('["topology"]', '"cell"')))
    assert [group.cells for group in each.groups] == [(cell.label,) for cell in each.cells]
    whole = plan(study(tmp_path, ('["topology"]', '"study"')))
    assert [group.label for group in whole.groups] == ["all cells"] and len(
        whole.groups[0].cells
    ) == 4
    assert [one.text[:44] for one in whole.confounds] == [
        "lr is tuned on 'topology=serial, n_layer=1' "
    ]
    assert [one for one in made.confounds if one.kind == "learning rate"] == []


@pytest.mark.parametrize(
    ("per", "said"),
    [
        ('"cell"', "will be tuned for 4 groups of cells, on seeds that are not compared: first"),
        (
            '["topology"]',
            "2 groups of cells, each by runs of its first cell, whose rate the others use, on",
        ),
        ('"study"', "tuned for all cells together, by runs of topology=serial, n_layer=1, on"),
    ],
)
def test_plan_says_what_is_tuned_by_which_runs_and_how_far_the_range_grows(
    tmp_path: Path, ablate: Run, per: str, said: str
) -> None:
    study(tmp_path, ('["topology"]', per))
    out = " ".join(plain(ablate("plan", "bowl.toml")).split())
    assert said in out and "first cell of each group" not in out
    assert (
        f"further steps while the best is at an end of the range (at most {WIDEST} below it and"
        f" {WIDEST} above it), then two around the best" in out
    )


def test_runs_that_wait_for_a_rate_are_priced(tmp_path: Path) -> None:
    cost = price(plan(study(tmp_path)))
    # 5 rates and 2 around the best; 4 cells × 3 seeds
    assert (cost.tuning, cost.runs, cost.pairs) == (2 * 7, 2 * 7 + 4 * 3, 3)
    assert cost.tokens == 26 * 64


def test_a_decision_yields_the_compared_runs_of_its_group(tmp_path: Path) -> None:
    given = study(tmp_path)
    first = plan(given).groups[0]
    made = decide(plan(given), [decisions.Decision(first.representative, "lr", 2e-3)], {})
    assert {run.cell for run in made.runs if run.role == "compare"} == set(first.cells)
    assert {run.config.lr for run in made.runs if run.role == "compare"} == {2e-3}
    assert [group.label for group in made.undecided] == ["topology=no-attention-skip"]


@given(
    st.one_of(
        st.integers(1, 50),
        st.lists(
            st.one_of(st.integers(0, 9), st.integers(2**31 - 9, 2**31 - 1)),
            min_size=1,
            max_size=12,
            unique=True,
        ),
        st.integers(2, 9).map(lambda most: {"pilot": 2, "most": most}),
    ),
    st.integers(1, 12),
)
@settings(max_examples=30, deadline=None)
def test_no_seed_that_tunes_is_ever_compared(tmp_path_factory, compared, number: int) -> None:
    folder = tmp_path_factory.mktemp("seeds")
    text = (
        compared
        if not isinstance(compared, dict)
        else f"{{ pilot = 2, resolution = 0.1, max = {compared['most']} }}"
    )
    given = study(
        folder,
        ("seeds = 3", f"seeds = {text}"),
        ("points = 5\nseeds = 1", f"points = 5\nseeds = {number}"),
    )
    mine = seeds(given)
    assert len(set(mine)) == number and all(0 <= seed < 2**31 for seed in mine)
    assert set(mine).isdisjoint(given.seeds)
    assert min(mine) > compared["most"] if isinstance(compared, dict) else True


# -- whole studies ---------------------------------------------------------------------------------

SERIAL, OTHER = "topology=serial, n_layer=1", "topology=no-attention-skip, n_layer=1"


def test_a_study_tunes_each_group_and_then_compares(tmp_path: Path) -> None:
    given, path = study(tmp_path), tmp_path / "a.db"
    outcome, output = launch(given, path)
    assert outcome == Outcome({"complete": 14 + 12}, 0)
    assert decided(path) == {(SERIAL, "lr"): 1.78e-3, (OTHER, "lr"): 1e-3}
    assert tuned(path, SERIAL) == [1e-4, 3.16e-4, 1e-3, 1.78e-3, 3.16e-3, 5.62e-3, 1e-2]
    assert tuned(path, OTHER) == [1e-4, 3.16e-4, 5.62e-4, 1e-3, 1.78e-3, 3.16e-3, 1e-2]
    compared = rows(
        path,
        "SELECT topology, n_layer, lr, count(*) FROM runs WHERE role = 'compare' GROUP BY cell"
        " ORDER BY min(run)",
    )
    assert set(compared) == {
        (t, n, lr, 3)
        for t, lr in (("serial", 1.78e-3), ("no-attention-skip", 1e-3))
        for n in (1, 2)
    }
    assert not {
        s for (s,) in rows(path, "SELECT DISTINCT seed FROM all_runs WHERE role = 'tune'")
    } & {0, 1, 2}
    assert (
        "bowl: learning rate of topology=serial: 0.00178, the best on a curve of 7 rates" in output
    )
    workers = rows(path, "SELECT count(DISTINCT owner) FROM attempt")
    assert workers == [(1,)], "one launcher does all stages"

    before = content(path), rows(path, "SELECT revision FROM study")
    assert launch(given, path)[0] == outcome
    assert (content(path), rows(path, "SELECT revision FROM study")) == before
    assert rows(path, "SELECT count(*) FROM attempt") == [(26,)]


def test_the_evidence_of_a_decision_is_its_curve(tmp_path: Path) -> None:
    given, path = (
        study(tmp_path, ("serial", "double-skip"), ("no-attention-skip", "parallel")),
        tmp_path / "a.db",
    )
    launch(given, path)
    with store.open(str(path)) as db:
        stored = {decision.evidence["group"]: decision for decision in decisions.read(db, "bowl")}
    assert {name: decision.value for name, decision in stored.items()} == {
        "topology=double-skip": 2.37e-5,  # −4.6: two steps below the ladder; −4.625
        "topology=parallel": 1.78e-2,  # −1.1, but all above 0.02 diverge
    }
    evidence = stored["topology=parallel"].evidence
    (values,) = evidence["values"]
    curve = dict(zip(evidence["rates"], values, strict=True))
    assert curve[3.16e-2] is None
    (seed,) = evidence["seeds"]
    config = plan(given).cells[1].config.model_copy(update={"seed": seed})
    assert curve[1e-2] == quadratic_worker.loss(config.model_copy(update={"lr": 1e-2}))
    assert (evidence["at_edge"], evidence["near_cliff"], evidence["left_range"]) == (
        False,
        True,
        True,
    )
    assert evidence["fitted"] == pytest.approx(curve[1.78e-2], abs=1e-3)
    assert evidence["cells"] == ["topology=parallel, n_layer=1", "topology=parallel, n_layer=2"]


def test_a_rate_is_as_good_as_all_its_seeds_and_bad_where_one_diverges(tmp_path: Path) -> None:
    given, path = (
        study(tmp_path, ("points = 5\nseeds = 1", "points = 5\nseeds = 2")),
        tmp_path / "a.db",
    )
    launch(given, path)
    (evidence,) = (
        d.evidence for d in decisions.read(store.open(str(path)), "bowl") if d.cell == SERIAL
    )
    config = plan(given).cells[0].config
    assert len(evidence["seeds"]) == 2
    for seed, values in zip(evidence["seeds"], evidence["values"], strict=True):
        runs = [config.model_copy(update={"lr": lr, "seed": seed}) for lr in evidence["rates"]]
        assert values == list(map(quadratic_worker.loss, runs))
    with store.open(str(path), create=True) as db:
        with db.begin() as connection:  # one of the two runs at the best rate diverges after all
            connection.exec_driver_sql("DELETE FROM decision")
            connection.exec_driver_sql(
                "UPDATE run SET status = 'diverged' WHERE fields ->> 'lr' = 1.78e-3"
                " AND fields ->> 'topology' = 'serial' AND seed = ?",
                (evidence["seeds"][0],),
            )
        new = {decision.cell: decision for decision in tune.learn(plan(given), db).new}
    assert new[SERIAL].value == 3.16e-3 and new[SERIAL].evidence["values"][0][3] is None


@pytest.mark.parametrize(
    ("unigram", "trains"),
    # the lowest loss is 2.00, at 10^-2.72; 1% below 2.01 is 1.99, which no rate reaches
    [(None, True), (2.5, True), (2.2, True), (2.01, False)],
)
def test_a_group_whose_losses_are_those_of_token_frequencies_is_not_tuned(
    tmp_path: Path, monkeypatch, unigram: float | None, trains: bool
) -> None:
    monkeypatch.setattr(quadratic_worker, "UNIGRAM", unigram)
    decision = decided_alone(tmp_path)
    assert (len(decision.evidence["rates"]), decision.evidence["trains"]) == (7, trains)
    said = tune.describe(decision)
    assert ("the best" in said, "none of 7 rates trains it" in said) == (trains, not trains)


@pytest.mark.parametrize("exploded", [1.0, 9e-3])  # from this rate on the loss is far higher
def test_a_group_goes_down_while_all_losses_are_those_of_token_frequencies(
    tmp_path: Path, monkeypatch, exploded: float
) -> None:
    def loss(config) -> float:
        return 11.0 if config.lr > exploded else 2 - 1e-3 * math.sin(config.lr)

    monkeypatch.setattr(quadratic_worker, "UNIGRAM", 2.0)
    monkeypatch.setattr(quadratic_worker, "loss", loss)
    decision = decided_alone(tmp_path)
    rates = decision.evidence["rates"]
    assert len(rates) == 5 + WIDEST and not decision.evidence["trains"]
    assert decision.value == min(rates) == LADDER.rate(-WIDEST)
    assert f"none of {len(rates)} rates trains it" in tune.describe(decision)


def decided_alone(folder: Path) -> Decision:
    """Run the study, and return the decision of serial."""
    path = folder / "a.db"
    launch(study(folder), path)
    stored = decisions.read(store.open(str(path)), "bowl")
    return next(one for one in stored if one.cell == SERIAL)


def test_three_seeds_are_tuned_where_the_file_names_no_number(tmp_path: Path) -> None:
    given = study(tmp_path, ("points = 5\nseeds = 1", "points = 5"))
    assert len(seeds(given)) == 3
    # 3 seeds of 5 rates and 2 around the best; 4 cells × 3 seeds
    cost = price(plan(given))
    assert (cost.tuning, cost.runs) == (2 * 7 * 3, 2 * 7 * 3 + 4 * 3)
    path = tmp_path / "a.db"
    assert launch(given, path)[0].counts == {"complete": cost.runs}


def test_a_metric_that_is_to_be_high_is_tuned_to_be_high(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    launch(study(tmp_path, ('"loss"', '"accuracy"')), path)
    assert decided(path) == {(SERIAL, "lr"): 1.78e-3, (OTHER, "lr"): 1e-3}


def test_another_metric_than_the_study_s_may_choose_the_rates(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    text = TEXT.replace('"loss"', '"copy_loss"').replace(
        "seeds = 1\nper", 'seeds = 2\nmetric = "loss"\nper'
    )
    given = study(tmp_path, text=text)
    launch(given, path)
    assert decided(path) == {(SERIAL, "lr"): 1.78e-3, (OTHER, "lr"): 1e-3}, "as by loss alone"
    with store.open(str(path)) as db:
        (one,) = (d for d in decisions.read(db, "bowl") if d.cell == SERIAL)
        evidence = one.evidence
        config = plan(given).cells[0].config
        for seed, values in zip(evidence["seeds"], evidence["values"], strict=True):
            runs = [config.model_copy(update={"lr": lr, "seed": seed}) for lr in evidence["rates"]]
            assert values == list(map(quadratic_worker.loss, runs))
        copied = list(map(quadratic_worker.copy_loss, evidence["rates"]))
        assert evidence["outcomes"] == [copied] * 2 and evidence["metric"] == "loss"
        data = report.gather(db, "bowl")
        tuning = {found.cells[0]: found for found in data.findings.of(analysis.records.Tuning)}
        assert tuning[SERIAL].fitted == pytest.approx(2, abs=0.05)
        change, other, *_ = data.findings.of(analysis.records.TuningChange)
        # the best of the baseline by loss, not by the study's metric, which falls to the end
        assert (change.cell, change.shared_lr) == (SERIAL, 1.78e-3)
        at_best = quadratic_worker.copy_loss(1.78e-3)
        assert change.at_shared == change.at_own == other.at_shared == pytest.approx(at_best)
        assert other.at_own == pytest.approx(quadratic_worker.copy_loss(1e-3))
        page = report.write(data, tmp_path / "out").with_suffix(".md").read_text()
    assert "Tuned: the learning rate for each topology by held-out loss" in page
    assert "![Held-out loss over the learning rate" in page

    # runs of which the study's metric is not known decide nothing
    with store.open(str(path), create=True) as db:
        with db.begin() as connection:
            connection.exec_driver_sql("DELETE FROM decision")
            connection.exec_driver_sql(
                "DELETE FROM final WHERE name = 'copy_loss' AND run_id IN (SELECT id FROM run WHERE"
                " fields ->> 'topology' = 'serial' AND fields ->> 'lr' = 1e-3)"
            )
        assert {one.cell for one in tune.learn(plan(given), db).new} == {OTHER}
    launch(given, path)

    # a decision by loss holds only as long as loss decides
    by_copies = study(tmp_path, text=text.replace('metric = "loss"\nper', "per"))
    launch(by_copies, path)
    assert min(decided(path).values()) > 1e-2


@pytest.mark.parametrize(
    ("word", "complete", "failed", "said"),
    [
        # in the refinement of serial alone
        ("0.00562", 13 + 6, 1, "1 of its 7 tuning runs failed; `ablate run` retries it"),
        ("serial", 7 + 6, 5, "5 of its 5 tuning runs failed; `ablate run` retries them"),
    ],
)
def test_failed_tuning_runs_leave_their_group_undecided_and_the_others_go_on(
    tmp_path: Path, monkeypatch, ablate: Run, word: str, complete: int, failed: int, said: str
) -> None:
    fails, path = tmp_path / "fails", tmp_path / "a.db"
    monkeypatch.setenv("FAILS", str(fails))
    fails.write_text(word)
    given = study(tmp_path)
    outcome, output = launch(given, path)
    assert outcome == Outcome({"complete": complete, "failed": failed}, 1)
    assert decided(path) == {(OTHER, "lr"): 1e-3}
    sentence = (
        f"o learning rate is chosen yet for {SERIAL}, so runs that need it are not planned: {said}"
    )
    assert f"bowl: n{sentence}" in output
    for command in (["status"], ["status", "bowl"]):
        assert f"bowl: n{sentence}" in plain(ablate(*command, "--db", str(path)))
    with store.open(str(path)) as db:
        assert f"6 of 6 runs are complete. N{sentence}." in report.answer(report.gather(db, "bowl"))

    fails.unlink()
    assert launch(given, path)[0] == Outcome({"complete": 14 + 12}, 0)
    assert rows(path, "SELECT count(*) FROM attempt") == [(26 + failed,)]
    assert "not chosen" not in plain(ablate("status", "--db", str(path)))


def test_a_rate_at_which_a_run_fails_twice_counts_as_one_that_diverged(
    tmp_path: Path, monkeypatch
) -> None:
    """As of a script that stops at a NaN with an error, or that does not take a value."""
    fails, path = tmp_path / "fails", tmp_path / "a.db"
    monkeypatch.setenv("FAILS", str(fails))
    fails.write_text("0.00562")
    given = study(tmp_path)
    launch(given, path)
    assert decided(path) == {(OTHER, "lr"): 1e-3}
    outcome, _ = launch(given, path)
    # two more rates beside it, as beside one that diverged
    assert outcome == Outcome({"complete": 13 + 2 + 12, "failed": 1}, 1)
    assert decided(path) == {(OTHER, "lr"): 1e-3, (SERIAL, "lr"): 1.78e-3}
    (one,) = (d for d in decisions.read(store.open(str(path)), "bowl") if d.cell == SERIAL)
    assert one.evidence["values"][0][one.evidence["rates"].index(5.62e-3)] is None

    # so it does while it is tried again
    with store.open(str(path), create=True) as db:
        with db.begin() as connection:
            connection.exec_driver_sql("DELETE FROM decision")
            connection.exec_driver_sql("UPDATE run SET status = 'running' WHERE status = 'failed'")
        again = next(d for d in tune.learn(plan(given), db).new if d.cell == SERIAL)
    assert again.evidence["values"] == one.evidence["values"]

    # where all runs fail, the study is wrong and not a rate
    path = tmp_path / "b.db"
    fails.write_text("serial")
    for _ in range(2):
        launch(given, path)
    assert decided(path) == {(OTHER, "lr"): 1e-3} and len(tuned(path, SERIAL)) == 5


def test_groups_whose_tuning_runs_failed_are_named_in_one_sentence(
    tmp_path: Path, monkeypatch, ablate: Run
) -> None:
    fails, path = tmp_path / "fails", tmp_path / "a.db"
    monkeypatch.setenv("FAILS", str(fails))
    fails.write_text("serial no-attention-skip")
    outcome, output = launch(study(tmp_path), path)
    assert outcome == Outcome({"failed": 10}, 1)
    said = (
        f"learning rate is chosen yet for {SERIAL}; {OTHER}, so runs that need it are not planned:"
        " 10 of their 10 tuning runs failed; `ablate run` retries them"
    )
    assert said in output and output.count("is chosen yet") == 1
    assert plain(ablate("status", "--db", str(path))).count("is chosen yet") == 1
    with store.open(str(path)) as db:
        answer = report.answer(report.gather(db, "bowl"))
        assert said in answer and answer.count("is chosen yet for") == 1
        assert "The learning rates are not chosen: 10 of 10 runs that tune failed." in answer
        assert "being tuned" not in answer
        with db.begin() as connection:
            connection.exec_driver_sql("UPDATE run SET status = 'planned' WHERE id > 4")
        answer = report.answer(report.gather(db, "bowl"))
    assert "being tuned: 4 of 10 runs ended, 4 of them without a result." in answer


def test_a_study_that_was_stopped_between_two_stages_is_not_taken_for_complete(
    tmp_path: Path, monkeypatch, ablate: Run
) -> None:
    """All of its runs are, as those that follow from them are not planned yet."""
    given, path = study(tmp_path), tmp_path / "a.db"
    launch(given, path)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM decision")
    said = plain(ablate("status", "--db", str(path)))
    assert "no learning rate is chosen yet for" in said and said.count("is chosen yet") == 1
    assert SERIAL in said and OTHER in said and "not planned: `ablate run`" in said
    monkeypatch.setattr(
        study_run, "run_study", lambda *given, **more: Outcome({"complete": 6}, 130)
    )
    code, output, _ = ablate("run", str(given.path), "--device", "cpu", "--db", str(path))
    assert code == 130 and f"Next: ablate run {given.path}" in output


def plain(ended: tuple[int, str, str]) -> str:
    """What a command that went well printed, as one line."""
    code, output, _ = ended
    assert code == 0
    return " ".join(output.split())


EVAL = ("[tune]", "[eval]\ntokens = 4096\n[tune]")


def test_results_that_were_measured_otherwise_decide_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    launch(study(tmp_path), path)
    assert launch(study(tmp_path, EVAL), path)[0].counts == {"complete": 26}
    assert rows(path, "SELECT count(*) FROM attempt") == [(52,)]
    assert len(decided(path)) == 2


def test_a_decision_holds_until_its_question_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    launch(study(tmp_path), path)
    with store.open(str(path), create=True) as db:
        with db.begin() as connection:
            connection.exec_driver_sql(
                "UPDATE decision SET value = 0.005 WHERE json_extract(evidence, '$.group') LIKE"
                " '%serial'"
            )
            connection.exec_driver_sql(
                "UPDATE final SET value = 9 WHERE run_id IN"
                " (SELECT id FROM run WHERE fields ->> 'lr' = 0.001)"
            )
        assert {
            run.config.lr
            for run in tune.learn(plan(study(tmp_path)), db).plan.runs
            if run.role == "compare"
        } == {0.005, 1e-3}
        changes = [
            ("1e-2]", "2e-2]"),
            ("points = 5", "points = 4"),
            ("d_model = 8", "d_model = 16"),
            ('"loss"', '"accuracy"'),
            EVAL,
        ]
        for change in changes:
            made = tune.learn(plan(study(tmp_path, change)), db).plan
            assert len(made.undecided) == 2, change
        more_cells = tune.learn(
            plan(study(tmp_path, ("[1, 2]", "[1, 2, 3]"), ("seeds = 3", "seeds = 4"))), db
        ).plan
        assert more_cells.undecided == ()
    # the new question is asked, its answer stored in the old one's place
    launch(study(tmp_path, ("points = 5", "points = 4")), path)
    assert decided(path)[SERIAL, "lr"] != 0.005
    assert len(decided(path)) == 2


def test_a_kept_rate_names_the_cells_that_share_it_now(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    launch(study(tmp_path), path)
    launch(study(tmp_path, ("[1, 2]", "[1, 2, 3]")), path)
    each = study(tmp_path, ('["topology"]', '"cell"'))
    with store.open(str(path), create=True) as db:
        evidence = {decision.cell: decision.evidence for decision in decisions.read(db, "bowl")}
        assert evidence[SERIAL]["cells"] == [f"topology=serial, n_layer={n}" for n in (1, 2, 3)]
        assert evidence[SERIAL]["values"][0][3] is not None
        learnt = tune.learn(plan(each), db)
        assert [decision.evidence["cells"] for decision in learnt.new] == [[SERIAL], [OTHER]]
        assert {decision.cell: decision.value for decision in learnt.new} == {
            SERIAL: 1.78e-3,
            OTHER: 1e-3,
        }
        assert len(learnt.plan.undecided) == 2, "only the second layers' rates are open"
        next(tune.stages(plan(each), db, replace=True))  # the third layer leaves the study
        assert tune.learn(plan(each), db).new == ()


def test_studies_share_what_was_tuned(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    launch(study(tmp_path), path)
    again = study(tmp_path, ('"bowl"', '"again"'))
    assert launch(again, path)[0].counts == {"complete": 26}
    assert rows(path, "SELECT count(*) FROM attempt") == [(26,)]
    assert rows(path, "SELECT count(*) FROM decision") == [(4,)]


def test_a_plan_is_built_once_and_derived_once_for_each_set_of_decisions(
    tmp_path: Path, monkeypatch, ablate: Run
) -> None:
    """From the command to its end; cells, which take the time, are never resolved twice."""
    built, derived = [], []
    for found, name in ((built, "build"), (derived, "Tuning")):
        real = getattr(planning, name)
        monkeypatch.setattr(
            planning, name, lambda *of, found=found, real=real: found.append(of) or real(*of)
        )
    given, path = study(tmp_path), tmp_path / "a.db"
    command = ["run", str(given.path), "--device", "cpu", "--db", str(path)]
    assert ablate(*command)[0] == 0
    # the ladder and the refinements that follow; the decisions and the runs compared
    assert len(built) == 1 and 1 < len(derived) <= 5
    seen = [(of[2], of[3]) for of in derived]
    assert all(one != other for k, one in enumerate(seen) for other in seen[:k])
    built.clear(), derived.clear()
    assert ablate(*command)[0] == 0
    assert (len(built), len(derived)) == (1, 2), "without and with the decisions"

    untuned = study(tmp_path, text=TEXT[: TEXT.index("[tune]")])
    built.clear(), derived.clear()
    assert (
        ablate("run", str(untuned.path), "--device", "cpu", "--db", str(tmp_path / "b.db"))[0] == 0
    )
    assert (len(built), len(derived)) == (1, 1)


# -- stopped at any point --------------------------------------------------------------------------

KILLED = TEXT.replace("seeds = 3", "seeds = { pilot = 3, resolution = 0.006, max = 9 }")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_WORKER", "quadratic_worker")
        patch.setenv("PYTHONPATH", f"{HERE.parent}:{HERE}")
        outcome, _ = launch(study(folder, text=KILLED), folder / "a.db")
    return outcome, content(folder / "a.db"), decided(folder / "a.db")


STAGES = {
    "ladder": "SELECT 1 FROM run WHERE status = 'complete'",
    "refinement": "SELECT 1 FROM run WHERE fields ->> 'lr' IN (1.78e-3, 5.62e-3) AND seed > 2",
    "first decision": "SELECT 1 FROM decision",
    "pilot": "SELECT 1 FROM runs WHERE role = 'compare' AND status = 'complete'",
    "seeds": "SELECT 1 FROM decision WHERE name = 'seeds'",
    "added": "SELECT 1 FROM runs WHERE role = 'compare' AND seed > 2 AND status = 'complete'",
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_study_killed_at_any_stage_goes_on_and_decides_the_same(
    tmp_path: Path, monkeypatch, undisturbed, stage: str
) -> None:
    given, path = study(tmp_path, text=KILLED), tmp_path / "a.db"
    monkeypatch.setenv("STUB_DELAY", "0.01")
    first = Launcher(given, path)
    wait_for(lambda: rows(path, STAGES[stage]))
    first.kill(signal.SIGKILL)
    first.wait()
    before = decided(path)
    monkeypatch.setenv("STUB_DELAY", "0")
    assert launch(given, path)[0] == undisturbed[0]
    assert content(path) == undisturbed[1]
    assert decided(path) == undisturbed[2]
    assert before.items() <= decided(path).items()


def test_two_launchers_share_a_study_that_learns(tmp_path: Path, monkeypatch, undisturbed) -> None:
    given, path = study(tmp_path, text=KILLED), tmp_path / "a.db"
    monkeypatch.setenv("STUB_DELAY", "0.02")
    both = [Launcher(given, path), Launcher(given, path)]
    assert [each.wait() for each in both] == [0, 0]
    assert (content(path), decided(path)) == undisturbed[1:]
    assert (
        rows(path, "SELECT count(*), count(DISTINCT run_id) FROM attempt")[0]
        == (len(undisturbed[1]["run"]),) * 2
    )


def test_an_interrupt_at_the_end_of_a_stage_begins_no_other(tmp_path: Path, monkeypatch) -> None:
    given, path = (
        study(tmp_path, ("points = 5", "points = 3"), ('["topology"]\n', '"study"\n')),
        tmp_path / "a.db",
    )
    monkeypatch.setenv("STUB_DELAY", "0.4")
    first = Launcher(given, path)
    wait_for(lambda: rows(path, "SELECT count(*) FROM run WHERE status = 'complete'") == [(2,)])
    wait_for(lambda: rows(path, "SELECT 1 FROM run WHERE status = 'running'"))
    first.kill(signal.SIGTERM)  # the engine does not heed it: the last run of the ladder completes
    assert first.wait() == 143
    assert rows(
        path, "SELECT count(*), sum(status = 'complete') FROM all_runs WHERE role = 'tune'"
    ) == [(3, 3)]
    assert rows(path, "SELECT count(*) FROM runs WHERE role = 'compare'") == [(0,)]


# -- seeds -----------------------------------------------------------------------------------------

NOISY = (
    TEXT[: TEXT.index("[tune]")]
    .replace("seeds = 3", "seeds = { pilot = 4, resolution = 0.01, max = 30 }")
    .replace("tokens = 64\n[f", "tokens = 64\nlr = 1e-3\n[f")
)


def by_hand(given: Study, n_layer: int, resolution: float, level: str = "no-attention-skip") -> int:
    """⌈(t·s / resolution)²⌉ from the pilot's differences, t from scipy."""
    cells = {(cell.config.topology, cell.config.n_layer): cell.config for cell in plan(given).cells}
    arms = [cells[name, n_layer] for name in (level, "serial")]
    values = [
        [quadratic_worker.loss(arm.model_copy(update={"seed": seed})) for seed in range(4)]
        for arm in arms
    ]
    spread = statistics.stdev(a - b for a, b in zip(*values, strict=True))
    return max(4, math.ceil((scipy_stats.t.ppf(0.975, 3) * spread / resolution) ** 2))


def test_each_stratum_gets_the_seeds_that_its_pilot_asks_for(tmp_path: Path) -> None:
    given, path = study(tmp_path, text=NOISY), tmp_path / "a.db"
    outcome, output = launch(given, path)
    wanted = {n: by_hand(given, n, 0.01) for n in (1, 2)}
    assert 4 < wanted[1] != wanted[2], "the case is worth nothing otherwise"
    capped = {n: min(30, number) for n, number in wanted.items()}
    assert decided(path) == {
        (f"topology=serial, n_layer={n}", "seeds"): number for n, number in capped.items()
    }
    compared = rows(
        path, "SELECT n_layer, topology, count(*), min(seed), max(seed) FROM runs GROUP BY cell"
    )
    assert set(compared) == {
        (n, topology, number, 0, number - 1)
        for n, number in capped.items()
        for topology in ("serial", "no-attention-skip")
    }
    assert outcome.counts == {"complete": 2 * sum(capped.values())}
    assert f"bowl: n_layer=1: {capped[1]} seeds after a pilot of 4" in output


def test_the_cap_is_kept_and_reported(tmp_path: Path) -> None:
    given, path = study(tmp_path, ("max = 30", "max = 6"), text=NOISY), tmp_path / "a.db"
    _, output = launch(given, path)
    wanted = by_hand(given, 1, 0.01)
    assert wanted > 6 and decided(path)["topology=serial, n_layer=1", "seeds"] == 6
    assert (
        f"n_layer=1: 6 seeds after a pilot of 4, though the resolution asks for {wanted}" in output
    )


def test_the_noisiest_contrast_serves_its_stratum_and_one_that_diverges_asks_for_nothing(
    tmp_path: Path,
) -> None:
    levels = (
        '["serial", "no-attention-skip"]',
        '["serial", "no-attention-skip", "parallel", "no-mlp-skip"]',
    )
    given, path = study(tmp_path, levels, ("0.01", "0.015"), text=NOISY), tmp_path / "a.db"
    launch(given, path)
    both = {level: by_hand(given, 1, 0.015, level) for level in ("no-attention-skip", "parallel")}
    with store.open(str(path)) as db:
        (decision,) = (d for d in decisions.read(db, "bowl") if d.cell == SERIAL)
    assert decision.value == min(30, max(both.values()))
    assert decision.evidence["wanted"] == {
        f"topology={level}, n_layer=1": n for level, n in both.items()
    } | {"topology=no-mlp-skip, n_layer=1": None}


def test_pairs_that_the_pilot_lost_are_asked_for_again_and_none_of_it_is_dropped(
    tmp_path: Path,
) -> None:
    given, path = study(tmp_path, ("0.01", "1.0"), text=NOISY), tmp_path / "a.db"
    launch(given, path)
    assert set(decided(path).values()) == {4}, "the pilot is enough"
    with store.open(str(path), create=True) as db:
        with db.begin() as connection:
            connection.exec_driver_sql("DELETE FROM decision")
            connection.exec_driver_sql(
                "UPDATE run SET status = 'diverged' WHERE"
                " fields ->> 'topology' = 'no-attention-skip' AND seed = 1"
            )
        made = next(tune.stages(plan(given), db)).plan
    assert set(decided(path).values()) == {4}, "three whole pairs are enough, and one is lost"
    assert {run.config.seed for run in made.runs} == {0, 1, 2, 3}


def test_a_failed_pilot_run_leaves_the_seeds_of_its_stratum_undecided_and_is_reported(
    tmp_path: Path, monkeypatch, ablate: Run
) -> None:
    given, path, fails = (
        study(tmp_path, ("0.01", "1.0"), text=NOISY),
        tmp_path / "a.db",
        tmp_path / "fails",
    )
    monkeypatch.setenv("FAILS", str(fails))
    fails.write_text("no-attention-skip:1:2")
    outcome, output = launch(given, path)
    assert outcome == Outcome({"complete": 15, "failed": 1}, 1)
    assert decided(path) == {("topology=serial, n_layer=2", "seeds"): 4}
    sentence = (
        "he number of seeds of n_layer=1 is not decided yet: 1 of its 8 pilot runs failed;"
        " `ablate run` retries it"
    )
    assert f"bowl: t{sentence}" in output
    assert f"bowl: t{sentence}" in plain(ablate("status", "--db", str(path)))
    with store.open(str(path)) as db:
        assert f"15 of 16 runs are complete and 1 failed. T{sentence}." in report.answer(
            report.gather(db, "bowl")
        )

    fails.unlink()
    assert launch(given, path)[0] == Outcome({"complete": 16}, 0)
    assert set(decided(path).values()) == {4} and len(decided(path)) == 2
    assert "not decided" not in plain(ablate("status", "--db", str(path)))


def test_a_pilot_waits_for_its_learning_rates(tmp_path: Path) -> None:
    given, path = study(tmp_path, text=KILLED), tmp_path / "a.db"
    launch(given, path)
    order = rows(
        path,
        "SELECT name, min(id) FROM (SELECT CASE WHEN role = 'tune' THEN 'a' WHEN all_runs.seed < 3"
        " THEN 'b' ELSE 'c' END AS name, attempt.id FROM all_runs"
        " JOIN attempt ON attempt.run_id = all_runs.run)"
        " GROUP BY name ORDER BY 2",
    )
    assert [name for name, _ in order] == ["a", "b", "c"]
    assert {name for _, name in decided(path)} == {"lr", "seeds"}


# -- the same level twice --------------------------------------------------------------------------
# -- the same level twice --------------------------------------------------------------------------

TWICE = (
    TEXT[: TEXT.index("[factors]")]
    .replace('within = ["n_layer"]', "")
    .replace("seeds = 3", "seeds = 6")
    + '[factors.width]\nonce = { n_layer = 1 }\nagain = { n_layer = 1 }\n"a third time" = { n_layer'
    " = 1, d_mlp = 32 }\n" + '[tune]\nlr = [1e-4, 1e-2]\npoints = 5\nseeds = 1\nper = "cell"\n'
)


def test_the_same_level_twice_shows_no_effect(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(figures, "save", save_svg)
    given, path = study(tmp_path, text=TWICE), tmp_path / "a.db"
    outcome, _ = launch(given, path)
    assert outcome == Outcome({"complete": 7 + 6}, 0), "cells of one configuration share their runs"
    assert {value for (_, name), value in decided(path).items() if name == "lr"} == {1.78e-3}
    assert rows(path, "SELECT count(*), count(DISTINCT run) FROM runs WHERE role = 'compare'") == [
        (18, 6)
    ]
    assert rows(path, "SELECT count(*), sum(difference = 0.0) FROM pairs") == [(12, 12)]
    with store.open(str(path), create=True) as db:
        for effect in analysis.analyse(db, "bowl"):
            assert (effect.n, effect.lost, effect.mean, effect.sd, effect.lo, effect.hi) == (
                6,
                0,
                0.0,
                0.0,
                0.0,
                0.0,
            )
            assert effect.p == effect.p_holm == effect.p_sign_flip == 1.0 and not effect.significant
        assert len(results.load("bowl", db).query("role == 'compare'")) == 18
        data = report.gather(db, "bowl")
        text, page = report.answer(data), report.write(data, tmp_path / "out")
    for level in ("again", "a third time"):
        assert (
            f"{level} equals once exactly in all 6 pairs: held-out loss does not differ. "
            "Both levels give the same configuration, so they share their runs." in text
        )
    assert "6 of 6 runs are complete." in page.read_text()
    assert [one.cell for one in plan(given).confounds if one.kind == "same configuration"] == [
        "width=again",
        "width=a third time",
    ]


# -- what the report says --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory):
    """A report in Markdown: serial, an arm with other rates, one at the edge, one diverging."""
    folder = tmp_path_factory.mktemp("reported")
    levels = '["serial", "no-attention-skip", "parallel", "no-mlp-skip"]'
    text = KILLED.replace('["serial", "no-attention-skip"]', levels).replace(
        "n_layer = [1, 2]", "n_layer = [1]"
    )
    text = (
        text.replace("n_layer = [1]\n", "").replace('within = ["n_layer"]\n', "")
        + "[report]\ndelta = 0.1\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_WORKER", "quadratic_worker")
        patch.setenv("PYTHONPATH", f"{HERE.parent}:{HERE}")
        patch.setattr(figures, "save", save_svg)
        launch(study(folder, text=text), folder / "a.db")
        with store.open(str(folder / "a.db")) as db:
            data = report.gather(db, "bowl")
            page, answer = report.write(data, folder / "out"), report.answer(data)
    return folder / "out", answer, page.with_suffix(".md").read_text().replace("\\", "")


def test_the_report_gives_what_was_tuned_and_its_cost(reported) -> None:
    folder, answer, text = reported
    tuned = next(line for line in answer.splitlines() if line.startswith("Tuned: "))
    for chosen in ("0.00178 for topology=serial", "0.0178 for topology=parallel"):
        assert chosen in tuned
    assert "1e-06" not in tuned  # of the arm that no rate trains
    assert "No rate that was tried trains topology=no-mlp-skip." in tuned
    tuning = 7 + 7 + 10 + 9
    assert f"Tuning took {tuning} runs and {tuning * 0.1:.2g} s of device time" in text
    assert "No rate that was tried trains topology=no-mlp-skip." in text
    # the next rate diverged
    assert "| topology=parallel | 0.0178 (below a cliff) | 10 from 0.0001 to 0.0316 | 2 |" in text
    assert (folder / "figures" / "tuning.svg").read_text().count("chosen 0.0") == 3
    assert (folder / "figures" / "tuning.svg").read_text().count("no-mlp-skip: diverged at") == 9


def test_the_report_gives_the_change_from_a_shared_rate(tmp_path: Path, reported) -> None:
    given = study(tmp_path)
    (seed,) = seeds(given)
    first = plan(given).cells[0].config.model_copy(update={"n_layer": 4, "seed": seed})

    def loss(topology: str, lr: float) -> float:
        return quadratic_worker.loss(first.model_copy(update={"topology": topology, "lr": lr}))

    # the best of serial among the rates that all have: 1.78e-3 was refined for it alone
    base = loss("serial", 3.16e-3)
    shared = loss("parallel", 3.16e-3) - base
    own = loss("parallel", 1.78e-2) - loss("serial", 1.78e-3)
    text = reported[2]
    assert re.search(r"\(0\.00316, the best of serial .*\), no-mlp-skip diverged\.", text)
    said = re.search(
        r"its difference from serial is \+(\d\.\d+) nats per token at one .*, and \+(\d\.\d+) at"
        " the tried rate nearest to each arm's own",
        text,
    )
    assert said and [float(one) for one in said.groups()] == pytest.approx([shared, own], abs=5e-3)
    row = next(
        line for line in text.splitlines() if line.startswith("| parallel | 0.00316 | 0.0178 |")
    )
    assert [float(cell) for cell in row.split("|")[4:8]] == pytest.approx(
        [loss("parallel", 3.16e-3), loss("parallel", 1.78e-2), shared, own], abs=1e-4
    )
    with store.open(str(reported[0].parent / "a.db")) as db:
        effect = analysis.effects("bowl", db).set_index("level").loc["parallel"]
    assert float(row.split("|")[8].split()[0]) == pytest.approx(effect["mean"], abs=0.01), (
        "on seeds that chose nothing"
    )
    assert re.search(rf"9 compared seeds.* \+{effect['mean']:.2f}", text)


def test_the_report_has_the_sensitivity_of_each_group(tmp_path: Path, reported) -> None:
    (seed,) = seeds(study(tmp_path))
    config = (
        plan(study(tmp_path))
        .cells[0]
        .config.model_copy(update={"n_layer": 4, "seed": seed, "topology": "parallel"})
    )
    losses = [
        min(quadratic_worker.loss(config.model_copy(update={"lr": lr})), math.log(256))
        for lr in LADDER.ladder
    ]
    expected = statistics.fmean(losses) - min(losses)
    row = next(
        line for line in reported[2].splitlines() if line.startswith("| topology=parallel |")
    )
    assert float(row.split("|")[7]) == pytest.approx(expected, abs=1e-3)


def test_the_report_names_unstable_cells_capped_seeds_and_equivalence(reported) -> None:
    _, answer, text = reported
    # Wilson: 9 / (9 + 1.96²) = 0.70
    assert "no-mlp-skip failed in 9 of 9 pairs (100%, 95% Wilson interval 70% to 100%)" in answer
    assert re.search(r"pilot of 3 seeds decided on\s+9 .*±0\.006 nats per token", answer)
    assert "topology=no-mlp-skip lost too many pairs of the pilot" in answer
    assert (
        "no-attention-skip does not differ significantly from serial" in answer
        or "no-attention-skip is better than serial" in answer
    )
    assert "The two are equivalent within ±0.1 nats per token (two one-sided tests, p" in answer
    assert (
        "intervals and p therefore take the standard deviation and the degrees of freedom of the"
        " pilot alone" in text
    )


def test_effects_after_a_pilot_rest_on_its_noise(reported) -> None:
    folder = reported[0].parent
    with store.open(str(folder / "a.db")) as db:
        pairs = results.pairs("bowl", db)
        row = next(
            row
            for row in analysis.of_pairs(pairs, analysis.pilots("bowl", db))
            if row.level == "parallel"
        )
    d = pairs[pairs["level"] == "parallel"].sort_values("seed")["difference"].to_numpy(float)
    half = scipy_stats.t.ppf(0.975, 2) * d[:3].std(ddof=1) / 3  # √9 pairs, the pilot of 3
    assert (row.method, row.n) == ("two-stage t", 9)
    assert (row.lo, row.hi) == pytest.approx((d.mean() - half, d.mean() + half))
    assert row.p == pytest.approx(2 * scipy_stats.t.sf(abs(d.mean()) / (d[:3].std(ddof=1) / 3), 2))
    family = scipy_stats.t.ppf(1 - 0.05 / 3 / 2, 2) * d[:3].std(ddof=1) / 3
    assert (row.family_lo, row.family_hi) == pytest.approx((d.mean() - family, d.mean() + family))


def test_while_rates_are_tuned_the_report_says_so(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(figures, "save", save_svg)
    given = study(tmp_path)
    with store.open(str(tmp_path / "a.db"), create=True) as db:
        register(db, plan(given))
        data = report.gather(db, "bowl")
        answer = report.answer(data)
        report.write(data, tmp_path / "out")
    assert "The learning rates are being tuned: 0 of 10 runs ended." in answer
    assert "none is chosen yet" in answer
