"""The first screen of a page: the answer in short, what limits it, arms against strata."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import report_study
from report_study import Outcome, study

from ablate import report
from ablate.analysis.records import Change, Contrast, GridLevel, GridTerm
from ablate.report import overview

few_replicates, undrawn = report_study.few_replicates, report_study.undrawn
LEVELS = ("serial", "parallel", "concat", "no-skip")
TOPOLOGY = {"topology": {name: {"topology": name} for name in LEVELS}}
Factors = Mapping[str, Mapping[str, Mapping[str, object]]]
Outcomes = Callable[[dict[str, str], int], Outcome | None]
SHIFT = {"serial": 0.0, "parallel": -0.5, "concat": 0.0, "no-skip": 1.0}


def depths(*layers: int) -> dict[str, dict[str, dict[str, object]]]:
    return {**TOPOLOGY, "n_layer": {str(n): {"n_layer": n} for n in layers}}


def shifted(levels: dict[str, str], seed: int) -> Outcome:
    rng = np.random.default_rng([seed, *map(ord, "".join(levels.values()))])
    return Outcome(2.0 + SHIFT[levels["topology"]] + float(rng.normal(0, 0.02)))


def test_the_matrix_has_the_effect_of_every_contrast_where_its_sentence_is(tmp_path: Path) -> None:
    db = study(tmp_path, depths(1, 2), shifted, within=["n_layer"])
    data = report.gather(db, "topology")
    found = overview.matrix(data)
    assert found and found.columns == ("n_layer=1", "n_layer=2")
    assert [name for name, _ in found.rows] == [
        "serial (baseline)",
        "parallel",
        "concat",
        "no-skip",
    ]
    text = report.write(data, tmp_path / "out").read_text(encoding="utf-8")
    for one in data.findings.of(Contrast):
        cell = dict(found.rows)[one.level][found.columns.index(one.stratum)]
        assert cell and float(cell.text.replace("−", "-")) == pytest.approx(one.mean, abs=5e-4)
        assert cell.verdict == one.verdict
        assert cell.best == (one.level == "parallel")
        assert text.count(f'id="{cell.anchor}"') == 1 == text.count(f'href="#{cell.anchor}"')
        sentence = text.split(f'id="{cell.anchor}"')[1].split("</li>")[0]
        assert f"<b>{one.level}</b>" in sentence
    serial = dict(found.rows)["serial (baseline)"]
    runs = data.good[data.good["arm"].astype(str) == "serial"].groupby("stratum")["metric"].mean()
    assert [float(cell.text) for cell in serial if cell] == pytest.approx(list(runs), abs=5e-3)


@pytest.mark.usefixtures("few_replicates")
def test_many_strata_are_rows_and_two_factors_of_one_arm_are_a_grid(tmp_path: Path) -> None:
    tall = study(tmp_path / "a", depths(*range(1, 9)), shifted, within=["n_layer"], seeds=3)
    found = overview.matrix(report.gather(tall, "topology"))
    assert found and len(found.rows) == 8 and found.columns[1:] == LEVELS[1:]

    one_arm = {name: TOPOLOGY["topology"][name] for name in ("serial", "parallel")}
    two = {
        **depths(2, 10),
        "topology": one_arm,
        "d_model": {name: {"d_model": int(name)} for name in ("16", "32", "8")},
    }
    grid = study(tmp_path / "b", two, shifted, within=["n_layer", "d_model"], seeds=3)
    found = overview.matrix(report.gather(grid, "topology"))
    assert found and found.corner == "parallel"
    assert found.columns == ("d_model=8", "d_model=16", "d_model=32")
    assert [name for name, _ in found.rows] == ["n_layer=2", "n_layer=10"]
    assert all(cell for _, row in found.rows for cell in row)
    assert not found.corrected, "each family is one contrast"


@pytest.mark.usefixtures("undrawn")
def test_the_first_screen_says_the_answer_and_its_limits(tmp_path: Path) -> None:
    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        if levels["topology"] == "no-skip" and seed == 1:
            return Outcome(status="diverged", step=3)
        return shifted(levels, seed)

    db = study(tmp_path, depths(1, 2), outcome, within=["n_layer"], seeds=3)
    data = report.gather(db, "topology")
    first, second = overview.headline(data)
    assert "parallel in 2 of 2 strata" in first
    assert re.search(
        r"^2 of 4 compared cells .* 0\.[45]\d* nats per token \(parallel at n_layer=\d", second
    )
    said = {badge.text: badge.section for badge in overview.badges(data)}
    assert said["2 runs diverged or failed"] == "troubles"
    assert said["learning rate not tuned"] == "basis"
    assert "as few as 2 pairs of runs" in said
    text = report.write(data, tmp_path / "out").read_text(encoding="utf-8")
    for section in said.values():
        assert f'id="{section}"' in text
    top = text.split("<nav", 1)[0]
    assert first in html.unescape(top) and "2 runs diverged or failed" in top


def test_the_first_screen_names_the_stratum_that_others_are_compared_with(tmp_path: Path) -> None:
    """parallel helps at the first depth only; concat nowhere."""

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        turned = levels["topology"] == "parallel" and levels["n_layer"] == "2"
        return shifted(levels | {"topology": "no-skip"} if turned else levels, seed)

    three = {"topology": {name: TOPOLOGY["topology"][name] for name in LEVELS[:3]}}
    db = study(tmp_path, depths(1, 2) | three, outcome, within=["n_layer"], seeds=6)
    said = overview.headline(report.gather(db, "topology"))[1]
    assert (
        "1 of 2 effects in other strata differs significantly from that of the same level" in said
    )


def test_the_first_screen_says_that_differences_are_significant_together_alone(
    tmp_path: Path,
) -> None:
    """Two seeds: a t-test of one degree of freedom finds no change, the F test of all does."""

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        moved = levels["topology"] != "serial" and levels["n_layer"] == "2"
        return Outcome(shifted(levels, seed).loss + 0.1 * moved)

    three = {"topology": {name: TOPOLOGY["topology"][name] for name in LEVELS[:3]}}
    db = study(tmp_path, depths(1, 2) | three, outcome, within=["n_layer"], seeds=2)
    data = report.gather(db, "topology")
    changes = data.findings.of(Change)
    (term,) = (one for one in data.findings.of(GridTerm) if " × " in one.term)
    assert len(changes) == 2 and not any(one.significant for one in changes) and term.p < 0.05
    said = overview.headline(data)[1]
    assert "none of 2 effects in other strata" in said
    assert re.search(rf"all differences together do \({term.term}: .*p [<=] 0\.0", said)


def test_one_arm_in_one_stratum_has_its_effect_and_no_matrix(tmp_path: Path) -> None:
    only = {name: TOPOLOGY["topology"][name] for name in ("serial", "parallel")}
    db = study(tmp_path, {"topology": only}, shifted, seeds=8)
    data = report.gather(db, "topology")
    assert overview.matrix(data) is None
    assert re.search(r"^parallel differs .* by −0\.[45]", overview.headline(data)[1])


@pytest.mark.usefixtures("undrawn")
def test_seeds_that_failed_leave_no_claim_on_the_first_screen(tmp_path: Path) -> None:
    """parallel fails with all seeds, concat with 3 of 8, and is lower on the others."""

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        level = levels["topology"]
        if level == "parallel" or (level == "concat" and seed < 3):
            return Outcome(status="diverged", step=3)
        return shifted(levels | {"topology": "parallel" if level == "concat" else level}, seed)

    three = {"topology": {name: TOPOLOGY["topology"][name] for name in LEVELS[:3]}}
    data = report.gather(study(tmp_path / "a", three, outcome, seeds=8), "topology")
    (partial,) = data.findings.of(Contrast, lambda one: one.verdict == "partial")
    assert partial.level == "concat" and partial.p_holm < 0.05
    said = overview.headline(data)[-1]
    assert "significant" not in said
    assert "parallel (8 of 8 pairs lost" in said and "concat (3 of 8 pairs lost" in said

    data = report.gather(study(tmp_path / "b", TOPOLOGY, outcome, seeds=8), "topology")
    said = overview.headline(data)[-1]
    assert said.startswith("no-skip differs significantly from serial: by +1.0")
    assert "No verdict on parallel (8 of 8 pairs lost" in said


@pytest.mark.usefixtures("undrawn")
def test_without_two_pairs_the_first_screen_claims_no_test(tmp_path: Path) -> None:
    two = {"topology": {name: TOPOLOGY["topology"][name] for name in LEVELS[:2]}}

    def said(name: str, factors: Factors, outcome: Outcomes, seeds: int) -> str:
        db = study(tmp_path / name, factors, outcome, seeds=seeds)
        return overview.headline(report.gather(db, "topology"))[-1]

    assert said("a", TOPOLOGY, lambda levels, seed: None, 3) == "No answer yet: no finished pairs."

    def exact(levels: dict[str, str], seed: int) -> Outcome:
        return Outcome(2.0 - 0.125 * (levels["topology"] == "parallel"))

    one = said("b", two, exact, 1)
    assert one == "One pair cannot be tested: parallel − serial = −0.1250 nats per token."
    several = said("c", TOPOLOGY, exact, 1)
    assert "No difference can be tested" in several and "significant" not in several
    same = said("d", two, exact, 3)
    assert "−0.1250 nats per token with every seed" in same and "significant" not in same


@pytest.mark.usefixtures("undrawn")
def test_empty_places_of_the_matrix_are_explained(tmp_path: Path) -> None:
    one = {"topology": "parallel", "n_layer": "2"}
    for name, out, empty in (("a", [one], 1), ("b", [], 0)):
        db = study(
            tmp_path / name, depths(1, 2), shifted, within=["n_layer"], seeds=3, left_out=out
        )
        data = report.gather(db, "topology")
        found = overview.matrix(data)
        assert found and found.has_blank is bool(empty)
        assert sum(cell is None for _, row in found.rows for cell in row) == empty
        written = report.write(data, tmp_path / name / "out")
        for page in (written, written.with_suffix(".md")):
            assert ("the study has no such cell" in page.read_text("utf-8")) is bool(empty)


def test_a_matrix_of_many_arms_has_the_best_first(tmp_path: Path) -> None:
    arms = {f"v{at}": {"weight_decay": 0.01 * at} for at in range(14)}
    shift = {f"v{at}": 0.3 * ((at * 5) % 14 - 3) for at in range(14)}  # v2 = v0 + 0.3 × 10, …

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        rng = np.random.default_rng([seed, len(levels["variant"])])
        return Outcome(4.0 + shift[levels["variant"]] + float(rng.normal(0, 0.01)))

    factors = {"variant": arms, "n_layer": depths(1, 2)["n_layer"]}
    db = study(tmp_path, factors, outcome, within=["n_layer"], seeds=3)
    found = overview.matrix(report.gather(db, "topology"))
    assert found and found.best_first
    names = [name for name, _ in found.rows]
    assert names[0] == "v0 (baseline)"
    assert names[1:] == sorted((name for name in arms if name != "v0"), key=shift.__getitem__)


@pytest.mark.parametrize(("layers", "step"), [((2,), 0.25), ((2,), 0.0), ((1, 2, 3, 4), 0.25)])
def test_pairs_without_noise_are_no_test_of_which_arm_is_best(
    tmp_path: Path, layers: tuple[int, ...], step: float
) -> None:
    within = ["n_layer"] if len(layers) > 1 else []
    db = study(
        tmp_path,
        depths(*layers) if within else TOPOLOGY,
        lambda levels, seed: Outcome(2.0 + 0.25 * LEVELS.index(levels["topology"]) + step * seed),
        within=within,
    )
    data = report.gather(db, "topology")
    first = overview.headline(data)[0]
    assert "No test is possible" in first and "distinguishable" not in report.answer(data)
    if not within:
        assert ("Each seed shifts all arms by the same amount" in first) == (step > 0)
        assert "serial (2" in first


def test_a_badge_counts_cells_that_did_not_learn_apart_from_those_that_did_in_part(
    tmp_path: Path,
) -> None:
    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        name = levels["topology"]
        lost = name == "concat" or (name == "parallel" and seed == 0)
        loss = 3.0 if lost else 2.0 + 0.01 * seed * len(name)
        return Outcome(loss, finals=[("unigram_loss", 0.0, 3.0)])

    data = report.gather(study(tmp_path, TOPOLOGY, outcome), "topology")
    badges = [badge.text for badge in overview.badges(data)]
    assert "1 cell did not learn more than token frequencies" in badges
    assert "some seeds of 1 cell did not learn more than token frequencies" in badges


@pytest.mark.parametrize("seeds", [1, 5])
def test_one_seed_or_equal_steps_are_no_test_of_how_effects_change(
    tmp_path: Path, seeds: int
) -> None:
    """Interactions and changes by an amount that is the same with every seed have no noise."""

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        parts = 0.25 * (levels["topology"] == "parallel") + 0.5 * (levels["norm"] == "post")
        both = 0.125 * (levels["topology"] == "parallel" and levels["norm"] == "post")
        return Outcome(2.0 + (parts + both) * int(levels["n_layer"]) + 0.25 * seed)

    factors = {
        "topology": {name: {"topology": name} for name in LEVELS[:2]},
        "norm": {name: {"norm": name} for name in ("pre", "post")},
        "n_layer": depths(1, 2)["n_layer"],
    }
    db = study(tmp_path, factors, outcome, within=["n_layer"], seeds=seeds)
    data = report.gather(db, "topology")
    text = report.answer(data)
    exactly, with_each = ("exactly ", "in all 5 seeds") if seeds > 1 else ("", "with one seed")
    assert (
        f"topology=parallel, norm=post differs from the sum of its parts by {exactly}+0.1250 nats"
        f" per token {with_each}" in text
    )
    assert f"changes by {exactly}+0.2500 nats per token {with_each}" in text
    if seeds == 1:
        return
    assert "ignificant" not in text and "F test" not in text
    assert "other strata" not in " ".join(overview.headline(data))
    assert all(math.isnan(one.p) for one in data.findings.of(GridTerm))
    assert all(math.isnan(one.p) for one in data.findings.of(GridLevel))


@pytest.mark.parametrize("layers", [(1, 2), (1, 2, 3, 4)])
def test_strata_in_which_no_arm_is_apart_have_no_best_arm(
    tmp_path: Path, layers: tuple[int, ...]
) -> None:
    """In the last stratum one arm is."""

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        place = [*map(ord, "".join(levels.values()))]
        apart = int(levels["n_layer"]) == layers[-1] and levels["topology"] == "concat"
        return Outcome(2.0 - apart + float(np.random.default_rng([seed, *place]).normal(0, 0.05)))

    db = study(tmp_path, depths(*layers), outcome, within=["n_layer"])
    first = overview.headline(report.gather(db, "topology"))[0]
    apart = f"best arm by held-out loss is concat in 1 of {len(layers)} strata"
    assert apart in first and "serial" not in first
    assert f"no arm is distinguishable as the best in {len(layers) - 1} (n_layer=1" in first
