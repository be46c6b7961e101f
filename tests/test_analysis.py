"""Effects equal scipy's and statsmodels'; lost and pending pairs are counted apart."""

from __future__ import annotations

import itertools
import math
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_frames import pairs
from report_study import Outcome, study
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

import ablate
from ablate import analysis, report, results
from ablate.analysis import paired, records
from ablate.analysis.data import read as data_of
from ablate.stats import selection
from ablate.store import Database, query

LEVELS = ("serial", "parallel", "concat", "double-skip")
TOPOLOGY = {"topology": {name: {"topology": name} for name in LEVELS}}


def losses() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shared = rng.normal(2, 0.1, 8)
    return {
        name: shared + 0.02 * place + rng.normal(0, 0.02, 8) for place, name in enumerate(LEVELS)
    }


def finished(tmp_path: Path) -> tuple[Database, dict[str, np.ndarray]]:
    values = losses()
    return (
        study(
            tmp_path,
            TOPOLOGY,
            lambda levels, seed: Outcome(float(values[levels["topology"]][seed])),
            seeds=8,
        ),
        values,
    )


def test_effects_equal_scipy_and_statsmodels(tmp_path: Path) -> None:
    db, values = finished(tmp_path)
    frame = ablate.effects("topology", db).set_index("level")
    tests = {name: scipy_stats.ttest_rel(values[name], values["serial"]) for name in LEVELS[1:]}
    holm = multipletests([test.pvalue for test in tests.values()], method="holm")[1]
    for (name, test), corrected in zip(tests.items(), holm, strict=True):
        row = frame.loc[name]
        assert row["n"] == 8
        assert row["mean"] == pytest.approx(np.mean(values[name] - values["serial"]))
        assert row["sd"] == pytest.approx(np.std(values[name] - values["serial"], ddof=1))
        assert row["p"] == pytest.approx(test.pvalue)
        assert row["p_holm"] == pytest.approx(corrected)
        assert (row["lo"], row["hi"]) == pytest.approx(tuple(test.confidence_interval(0.95)))
        assert (row["family_lo"], row["family_hi"]) == pytest.approx(
            tuple(test.confidence_interval(1 - 0.05 / 3))
        )
        assert row["correlation"] == pytest.approx(
            np.corrcoef(values[name], values["serial"])[0, 1]
        )
        assert row["significant"] == row["resolved"] == (corrected <= 0.05)
        seen = TTestPower().power(row["resolvable"] / row["sd"], nobs=8, alpha=0.05 / 3)
        assert seen == pytest.approx(0.8, abs=1e-3)
        flips = scipy_stats.permutation_test(
            (values[name] - values["serial"],),
            np.mean,
            permutation_type="samples",
            n_resamples=np.inf,
        )
        assert row["p_sign_flip"] == pytest.approx(flips.pvalue)


def test_analyse_stores_what_it_returns(tmp_path: Path) -> None:
    db, _ = finished(tmp_path)
    for _ in range(2):  # the second time replaces the first
        rows = analysis.analyse(db, "topology")
    columns, values = query.run(db, "SELECT * FROM effects")
    stored = pd.DataFrame(values, columns=columns).set_index("level")
    assert len(stored) == len(rows) == 3
    for row in rows:
        for name in ("n", "lost", "mean", "sd", "lo", "hi", "p", "p_holm", "method"):
            assert stored.loc[row.level, name] == pytest.approx(getattr(row, name))
    hashes = query.run(db, "SELECT DISTINCT input_hash FROM effect")[1]
    assert hashes == [(rows[0].input_hash,)]


def test_families_are_corrected_apart() -> None:
    rows = analysis.of_pairs(pairs())
    assert len({row.family for row in rows}) == 2
    for family in {row.family for row in rows}:
        mine = [row for row in rows if row.family == family]
        assert [row.p_holm for row in mine] == pytest.approx(
            multipletests([row.p for row in mine], method="holm")[1]
        )


def test_lost_and_pending_pairs_are_counted_and_never_in_the_mean() -> None:
    frame = pairs(strata=("",), seeds=8)
    mine = frame["level"] == "parallel"
    lost = {
        0: ("diverged", "complete"),
        1: ("complete", "failed"),
        2: ("oom", "complete"),
        3: ("planned", "complete"),
        4: ("complete", "running"),
    }
    for seed, statuses in lost.items():
        frame.loc[mine & (frame["seed"] == seed), ["status", "baseline_status"]] = statuses
    # a diverged run may have left a finite number
    frame.loc[mine & (frame["seed"] == 0), "value"] = 1e9
    frame.loc[mine & (frame["seed"] == 1), "baseline_value"] = math.nan
    frame.loc[mine & (frame["seed"] == 5), "value"] = math.inf  # complete, and yet not finite
    row = next(row for row in analysis.of_pairs(frame) if row.level == "parallel")
    assert (row.n, row.lost, row.pending) == (2, 4, 2)
    assert row.mean == pytest.approx(
        frame.loc[mine & frame["seed"].isin([6, 7]), "difference"].mean()
    )


def test_a_baseline_that_failed_loses_its_pairs_even_with_a_value() -> None:
    frame = pairs(strata=("",), seeds=4)
    frame.loc[frame["seed"] == 2, "baseline_status"] = "failed"
    assert {(row.n, row.lost) for row in analysis.of_pairs(frame)} == {(3, 1)}


def test_without_pairs_nothing_is_known_and_nothing_breaks() -> None:
    frame = pairs(strata=("",), seeds=3).assign(
        status="diverged", value=math.nan, difference=math.nan
    )
    for row in analysis.of_pairs(frame):
        assert (row.n, row.lost, row.pending, row.resolved) == (0, 3, 0, False)
        assert math.isnan(row.mean)
        assert math.isnan(row.p_holm)
    assert analysis.of_pairs(frame.iloc[:0]) == []


def test_one_seed_has_a_mean_and_no_test() -> None:
    for row in analysis.of_pairs(pairs(strata=("",), seeds=1)):
        assert row.n == 1
        assert math.isfinite(row.mean)
        assert math.isnan(row.p)
        assert not row.resolved


def test_the_hash_follows_the_values_and_not_their_order() -> None:
    frame = pairs(strata=("",))
    digest = {row.input_hash for row in analysis.of_pairs(frame)}
    assert digest == {
        row.input_hash for row in analysis.of_pairs(frame.sample(frac=1, random_state=1))
    }
    changed = frame.copy()
    changed.loc[3, "value"] += 1e-12
    assert digest != {row.input_hash for row in analysis.of_pairs(changed)}


def test_an_empty_effects_frame_has_its_columns(tmp_path: Path) -> None:
    db = study(tmp_path, {"topology": {"serial": {}}}, lambda levels, seed: Outcome(1.0), seeds=2)
    frame = ablate.effects("topology", db)
    assert frame.empty
    assert "p_holm" in frame
    assert analysis.analyse(db, "topology") == []
    assert isinstance(frame, pd.DataFrame)


def test_successive_differences_are_those_of_a_level_and_the_one_before_it(tmp_path: Path) -> None:
    values = losses()
    lost = {("serial", 0), ("concat", 3)}

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        name = levels["topology"]
        if (name, seed) in lost:
            return Outcome(status="diverged", step=1)
        return Outcome(float(values[name][seed]))

    toml = 'name = "topology"\n[report]\nsuccessive = ["topology"]\n'
    db = study(tmp_path, TOPOLOGY, outcome, seeds=8, toml=toml)
    found = analysis.findings("topology", db).of(records.Successive)
    assert [(one.level, one.before) for one in found] == list(zip(LEVELS[1:], LEVELS, strict=False))
    tests = []
    for one in found:
        seeds = [seed for seed in range(8) if not {(one.level, seed), (one.before, seed)} & lost]
        arm, before = values[one.level][seeds], values[one.before][seeds]
        tests.append(scipy_stats.ttest_rel(arm, before))
        assert (one.n, one.mean) == (len(seeds), pytest.approx((arm - before).mean()))
        assert (one.lo, one.hi) == pytest.approx(tuple(tests[-1].confidence_interval(0.95)))
        assert one.p == pytest.approx(tests[-1].pvalue)
    assert [one.n for one in found] == [7, 7, 7]
    holm = multipletests([test.pvalue for test in tests], method="holm")[1]
    assert [one.p_holm for one in found[1:]] == pytest.approx(list(holm[1:]))
    # the first one is a difference from the baseline, too: two arms have one verdict
    first = next(iter(analysis.findings("topology", db).of(records.Contrast)))
    assert (found[0].p_holm, found[0].significant) == (first.p_holm, first.significant)
    assert first.p_holm != pytest.approx(holm[0])
    assert {one.verdict for one in found} == {"partial"}
    _, drawn = report.figures_of(report.gather(db, "topology"))
    assert "successive" in [figure.name for figure in drawn]


def test_successive_differences_pass_over_a_level_that_a_stratum_lacks() -> None:
    frame = pairs()
    table = frame.pivot(index="seed", columns=["level", "stratum"], values="difference")
    lacks = (frame["level"] == "no-mlp-skip") & (frame["stratum"] == "n_layer=12")
    levels = ["serial", "no-attention-skip", "no-mlp-skip", "double-skip", "parallel"]
    rows = paired.of_pairs(pd.concat(paired.successive(frame[~lacks], levels)))
    expected = {
        "n_layer=4": [None, *levels[1:]],
        "n_layer=12": [None, "no-attention-skip", "double-skip", "parallel"],
    }
    assert len(rows) == 7
    for stratum, names in expected.items():
        found = [row for row in rows if row.stratum == stratum]
        tests = [
            scipy_stats.ttest_1samp(
                table[level, stratum] - (0 if before is None else table[before, stratum]), 0
            )
            for before, level in itertools.pairwise(names)
        ]
        assert [row.level for row in found] == names[1:]
        assert [row.p for row in found] == pytest.approx([test.pvalue for test in tests])
        holm = multipletests([test.pvalue for test in tests], method="holm")[1]
        assert [row.p_holm for row in found] == pytest.approx(list(holm))


def test_successive_differences_have_the_noise_of_a_pilot_and_of_chosen_rates(
    tmp_path: Path,
) -> None:
    values, levels = losses(), LEVELS[1:]
    toml = 'name = "topology"\n[report]\nsuccessive = ["topology"]\n'
    db = study(
        tmp_path,
        TOPOLOGY,
        lambda levels, seed: Outcome(float(values[levels["topology"]][seed])),
        seeds=8,
        toml=toml,
    )
    read = partial(data_of, db, "topology")
    moved = [values[level] - values[before] for before, level in zip(LEVELS, levels, strict=False)]
    pilot = read()
    # seeds of little noise, decided for differences from the baseline: all seeds count, too
    seeds = np.argsort(np.abs(moved[0] - np.median(moved[0])))[:3]
    vars(pilot)["pilots"] = {"": analysis.Pilot(list(map(int, seeds)), 1e-9)}
    # the first level is compared with the baseline, and has that interval
    for row, of in list(zip(pilot.successive.to_dict("records"), moved, strict=True))[1:]:
        half = max(
            scipy_stats.t.ppf(0.975, len(part) - 1) * part.std(ddof=1) / 8**0.5
            for part in (of[seeds], of)
        )
        assert (row["lo"], row["hi"]) == pytest.approx((of.mean() - half, of.mean() + half))
    tuned = read()
    rate = selection.Choice(0.05, 10.0)
    # the last two share a rate
    vars(tuned)["choices"] = {
        f"topology={name}": paired.Chosen("one" if name in LEVELS[2:] else name, rate)
        for name in LEVELS
    }
    plain = read().successive
    wider = (tuned.successive["hi"] - tuned.successive["lo"]) / (plain["hi"] - plain["lo"])
    assert (wider[:2] > 2).all() and wider[2] == pytest.approx(1)


def test_a_level_that_did_not_learn_has_no_successive_difference(tmp_path: Path) -> None:
    values = losses() | {"concat": np.full(8, 3.0)}

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        loss = float(values[levels["topology"]][seed])
        return Outcome(loss, finals=[("unigram_loss", 0.0, 3.0)])

    toml = 'name = "topology"\n[report]\nsuccessive = ["topology"]\n'
    db = study(tmp_path, TOPOLOGY, outcome, seeds=8, toml=toml)
    found = analysis.findings("topology", db).of(records.Successive)
    test = scipy_stats.ttest_rel(values["parallel"], values["serial"])
    assert found[0].p_holm == pytest.approx(test.pvalue)  # the only one that is corrected
    assert [one.verdict for one in found[1:]] == ["untrained", "untrained"]
    assert all(math.isnan(one.mean) for one in found[1:])


@pytest.mark.parametrize("within", [(), ("tokenizer",)])
def test_a_tokenizer_that_loses_text_has_no_verdict_against_another(
    tmp_path: Path, within: tuple[str, ...]
) -> None:
    values = losses()
    tokenizers = {
        name: {"tokenizer": name, "tokenizer_hash": name * 2} for name in ("byte", "cut", "own")
    }
    norms = {name: {"norm": name} for name in ("pre", "post")}

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        place = list(tokenizers).index(levels["tokenizer"]) + (levels.get("norm") == "post")
        value = float(values[LEVELS[place]][seed])
        finals = [("byte_coverage", 0.0, 0.5)] if levels["tokenizer"] == "cut" else []
        finals.append(("epochs", 0.0, 1.0 if levels["tokenizer"] == "byte" else 1.5))
        return Outcome(2.0, finals=[("bits_per_byte", 0.0, value), *finals])

    factors = {"tokenizer": tokenizers} | ({"norm": norms} if within else {})
    db = study(
        tmp_path, factors, outcome, seeds=8, within=within, metric="bits_per_byte"
    )  # within one tokenizer nothing is lost that another arm has
    verdicts = [one.verdict for one in analysis.findings("topology", db).of(records.Contrast)]
    assert ("lossy" in verdicts) is (not within) and len(verdicts) == (3 if within else 2)
    frame = analysis.effects("topology", db).set_index("level")
    if not within:
        assert verdicts[0] == "lossy" != verdicts[1] and math.isnan(frame.loc["cut", "mean"])
        test = scipy_stats.ttest_rel(values[LEVELS[2]], values[LEVELS[0]])
        assert frame.loc["own", "p_holm"] == pytest.approx(test.pvalue)  # the only one to correct
        (best,) = analysis.findings("topology", db).of(records.Best)
        assert "cut" not in best.arms
        answer = report.answer(report.gather(db, "topology"))
        assert "cut has no effect size against byte" in answer
        assert "Text read: 1.50 times as much as by the baseline" in answer


def test_changes_are_differences_of_differences_by_seed() -> None:
    frame = pairs()
    table = frame.pivot(index="seed", columns=["level", "stratum"], values="difference")
    found = analysis.changes(frame).set_index("level")
    assert set(found["stratum"]) == {"n_layer=12"}
    tests = {
        level: scipy_stats.ttest_rel(table[level, "n_layer=12"], table[level, "n_layer=4"])
        for level in found.index
    }
    holm = multipletests([test.pvalue for test in tests.values()], method="holm")[1]
    for (level, test), corrected in zip(tests.items(), holm, strict=True):
        assert found.loc[level, "mean"] == pytest.approx(
            (table[level, "n_layer=12"] - table[level, "n_layer=4"]).mean()
        )
        assert found.loc[level, "p"] == pytest.approx(test.pvalue)
        assert found.loc[level, "p_holm"] == pytest.approx(corrected)
        assert (found.loc[level, "lo"], found.loc[level, "hi"]) == pytest.approx(
            tuple(test.confidence_interval(0.95))
        )


def test_changes_and_equivalence_after_a_pilot_use_its_noise() -> None:
    frame = pairs(seeds=9)
    pilots = dict.fromkeys(["n_layer=4", "n_layer=12"], analysis.Pilot([0, 1, 2], 0.001))
    table = frame.pivot(index="seed", columns=["level", "stratum"], values="difference")
    found = analysis.changes(frame, pilots).set_index("level")
    for level in found.index:
        moved = (table[level, "n_layer=12"] - table[level, "n_layer=4"]).to_numpy()
        error = moved[:3].std(ddof=1) / 3
        expected = scipy_stats.t.interval(0.95, 2, moved.mean(), error)
        assert (found.loc[level, "lo"], found.loc[level, "hi"]) == pytest.approx(expected)
        assert found.loc[level, "p"] == pytest.approx(
            2 * scipy_stats.t.sf(abs(moved.mean()) / error, 2)
        )
    one = frame[(frame["level"] == "parallel") & (frame["stratum"] == "n_layer=4")]
    d = one.sort_values("seed")["difference"].to_numpy()
    within = analysis.equivalence(one.sample(frac=1, random_state=0), 0.5, pilots)
    assert (within.lo, within.hi) == pytest.approx(
        scipy_stats.t.interval(0.9, 2, d.mean(), d[:3].std(ddof=1) / 3)
    )
    assert analysis.equivalence(one, 0.5).lo == pytest.approx(
        scipy_stats.t.interval(0.9, 8, d.mean(), d.std(ddof=1) / 3)[0]
    )


def test_interactions_are_combined_minus_single_differences_by_seed(tmp_path: Path) -> None:
    names = {"topology": ("serial", "parallel", "concat"), "norm": ("pre", "post")}
    factors = {
        factor: {name: {factor: name} for name in levels} for factor, levels in names.items()
    }
    noise = np.random.default_rng(3).normal(0, 0.02, (3, 2, 6))
    extra = {("parallel", "post"): 0.5}

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        at = tuple(names[factor].index(levels[factor]) for factor in names)
        lost = levels == {"topology": "concat", "norm": "pre"} and seed == 2
        value = (
            2
            + 0.1 * sum(at)
            + extra.get((levels["topology"], levels["norm"]), 0)
            + float(noise[at][seed])
        )
        return Outcome(status="diverged", step=1) if lost else Outcome(value)

    db = study(tmp_path, factors, outcome, seeds=6)
    found = analysis.interactions(results.pairs("topology", db)).set_index("level")
    assert list(found["factor"]) == ["topology × norm"] * 2 and list(found["n"]) == [6, 5]
    loss = noise + 2 + 0.1 * np.arange(3)[:, None, None] + 0.1 * np.arange(2)[:, None]
    loss[1, 1] += 0.5
    tests = []
    for level, place, keep in (
        ("parallel × post", 1, range(6)),
        ("concat × post", 2, [0, 1, 3, 4, 5]),
    ):
        moved = (loss[place, 1] - loss[place, 0] - loss[0, 1] + loss[0, 0])[list(keep)]
        tests.append(scipy_stats.ttest_1samp(moved, 0))
        assert found.loc[level, "mean"] == pytest.approx(moved.mean())
        assert (found.loc[level, "lo"], found.loc[level, "hi"]) == pytest.approx(
            tuple(tests[-1].confidence_interval(0.95))
        )
    assert list(found["p_holm"]) == pytest.approx(
        multipletests([test.pvalue for test in tests], method="holm")[1]
    )
    answer = report.answer(report.gather(db, "topology"))
    assert "topology × norm: is the joint effect the sum of the separate effects?" in answer
    assert (
        "topology=parallel, norm=post differs from the sum of its parts: held-out loss changes by a"
        " further +0.5" in answer
    )
    rest = "Not significantly different from the sum of the parts: topology=concat, norm=post; only"
    assert rest in answer
    # a level alone is compared where the other factor is at its baseline, and the answer says so
    assert "topology at norm=pre, against serial" in answer
    assert "parallel is worse than serial at norm=pre: " in answer
    assert "norm at topology=serial, against pre" in answer


def test_a_pair_lost_in_one_stratum_is_lost_to_the_change() -> None:
    frame = pairs(seeds=5)
    lost = (
        (frame["stratum"] == "n_layer=12") & (frame["level"] == "parallel") & (frame["seed"] == 2)
    )
    frame.loc[lost, "status"] = "diverged"
    assert analysis.changes(frame).set_index("level")["n"].to_dict()["parallel"] == 4
    assert analysis.changes(pairs(strata=("",))).empty
