"""What a report says of several strata, and of contexts that are longer than that of training."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from report_study import Outcome, study, svg_only  # noqa: F401
from scipy import stats

from ablate import report
from ablate.analysis.records import Change, GridTerm
from ablate.report import answers
from ablate.report.labels import p_value
from ablate.units import decimals, ends, signed

WIRINGS = {name: {"topology": name} for name in ("serial", "parallel")}
DEPTHS = {str(n): {"n_layer": n} for n in range(1, 7)}


@pytest.mark.usefixtures("svg_only")
def test_strata_are_panels_of_one_figure(tmp_path: Path) -> None:
    depths = {"topology": WIRINGS, "n_layer": DEPTHS}
    falling = {10: 3.0, 20: 2.5, 30: 2.0}
    db = study(
        tmp_path, depths, lambda levels, seed: Outcome(points=falling), within=["n_layer"], seeds=2
    )
    text = report.write(report.gather(db, "topology"), tmp_path / "out").read_text(encoding="utf-8")
    section = text.split('id="curves"')[1].split("</section>")[0]
    curves = section.split('id="figure-curves-tokens"')[1].split("</figure>")[0]
    assert all(curves.count(f">n_layer={depth}<") == 1 for depth in DEPTHS)
    assert curves.count(">serial<") == 1, "the panels share a legend"


def interacting(levels: dict[str, str], seed: int) -> Outcome:
    """A change of two standard deviations of a run: known of all together, not of one by itself."""
    place = [*WIRINGS, "concat"].index(levels["topology"]) * 3 + int(levels["n_layer"])
    noise = float(np.random.default_rng([7, seed, place]).normal(0, 0.01))
    changed = levels["n_layer"] == "2" and levels["topology"] == "parallel"
    return Outcome(2.0 + 0.02 * changed + noise)


def test_a_significant_interaction_is_named_where_no_single_change_is(tmp_path: Path) -> None:
    """Else a page says "p = 0.001" of norm × n_layer and that no effect changes significantly."""
    factors = {
        "topology": {name: {"topology": name} for name in (*WIRINGS, "concat")},
        "n_layer": {n: DEPTHS[n] for n in "12"},
    }
    db = study(tmp_path, factors, interacting, within=["n_layer"], seeds=4)
    data = report.gather(db, "topology")
    (term,) = data.findings.of(GridTerm, lambda one: " × " in one.term)
    assert term.p < 0.05 and not any(one.significant for one in data.findings.of(Change))
    text = report.answer(data)
    assert "does not change significantly" in text
    assert f"{term.term}: F test over all runs, {p_value(term.p)}" in text
    assert "F test" not in answers.changes(data)[0].heading


def test_an_effect_changes_with_one_factor_of_the_strata_at_a_time(tmp_path: Path) -> None:
    """From the first stratum to the last both factors would change, and neither would be known."""
    factors = {
        "topology": WIRINGS,
        "n_layer": {n: DEPTHS[n] for n in "12"},
        "d_model": {n: {"d_model": int(n)} for n in ("32", "64")},
    }
    values = {}

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        place = tuple(levels.values())
        noise = np.random.default_rng([seed, *map(ord, "".join(place))]).normal(0, 0.01)
        worse = levels["topology"] == "parallel"
        values[(*place, seed)] = 2.0 + worse * (0.3 / int(levels["n_layer"])) + float(noise)
        return Outcome(values[(*place, seed)])

    db = study(tmp_path, factors, outcome, within=["n_layer", "d_model"], seeds=5)
    data = report.gather(db, "topology")
    found = {(one.first, one.stratum): one for one in data.findings.of(Change)}

    def gaps(layers: str, width: str) -> np.ndarray:
        arms = [[values[arm, layers, width, seed] for seed in range(5)] for arm in WIRINGS]
        return np.subtract(arms[1], arms[0])

    pairs = {
        (f"n_layer={a}, d_model={b}", f"n_layer={c}, d_model={d}"): gaps(c, d) - gaps(a, b)
        for a, b, c, d in (
            *(("1", "32", "2", "32"), ("1", "64", "2", "64")),
            *(("1", "32", "1", "64"), ("2", "32", "2", "64")),
        )
    }
    assert found.keys() == pairs.keys()
    for key, moved in pairs.items():
        assert (found[key].mean, found[key].p) == pytest.approx(
            (moved.mean(), stats.ttest_1samp(moved, 0).pvalue)
        )
        assert found[key].significant == ("n_layer=1" in key[0] and "n_layer=2" in key[1])
    assert "2 of 4 changes of an effect with n_layer or d_model are significant" in " ".join(
        report.write(data, tmp_path / "out").read_text(encoding="utf-8").split()
    )


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        (
            ("12", "21", "22", "31", "32"),
            {("12", "22"), ("21", "22"), ("12", "32"), ("31", "32"), ("21", "31")},
        ),
        (("11", "22", "31"), {("11", "22"), ("11", "31")}),
    ],
)
def test_strata_of_a_grid_with_gaps_follow_the_order_of_the_file(
    tmp_path: Path, places: tuple[str, ...], expected: set[tuple[str, str]]
) -> None:
    factors = {
        "topology": WIRINGS,
        "n_layer": {n: DEPTHS[n] for n in "123"},
        "n_head": {n: {"n_head": int(n)} for n in "12"},
    }
    left_out = [
        {"topology": arm, "n_layer": layers, "n_head": heads}
        for arm in WIRINGS
        for layers in "123"
        for heads in "12"
        if layers + heads not in places
    ]

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        return Outcome(2 + float(np.random.default_rng([seed, *map(ord, str(levels))]).normal()))

    within = ["n_layer", "n_head"]
    db = study(tmp_path, factors, outcome, within=within, seeds=3, left_out=left_out)
    found = report.gather(db, "topology").findings.of(Change)
    named = {f"n_layer={place[0]}, n_head={place[1]}": place for place in places}
    assert {(named[one.first], named[one.stratum]) for one in found} == expected


def test_effects_below_a_hundred_thousandth_have_digits(tmp_path: Path) -> None:
    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        worse = levels["topology"] == "parallel"
        return Outcome(2.0 + 0.1 * seed + worse * (3e-7 + 1e-8 * seed))

    text = report.answer(
        report.gather(study(tmp_path, {"topology": WIRINGS}, outcome, seeds=5), "topology")
    )
    worse = 3e-7 + 1e-8 * np.arange(5)
    low, high = stats.ttest_1samp(worse, 0).confidence_interval()
    assert "raises held-out loss by 3.20×10⁻⁷ nats per token" in text
    assert f"{low * 1e7:.2f}×10⁻⁷ to {high * 1e7:.2f}×10⁻⁷" in text
    assert "0.00000" not in text


@pytest.mark.usefixtures("svg_only")
def test_letters_that_no_font_has_are_named_on_the_page(tmp_path: Path) -> None:
    names = {"plain": {"topology": "serial"}, "𖼀": {"topology": "parallel"}}  # Miao
    db = study(tmp_path, {"wiring": names}, lambda levels, seed: Outcome(2.0 + 0.1 * seed))
    page = report.write(report.gather(db, "topology"), tmp_path / "out")
    assert "has the letters 𖼀:" in page.read_text(encoding="utf-8")
    assert "has the letters 𖼀:" in page.with_suffix(".md").read_text(encoding="utf-8")


RISES = {
    "rotary": (0.5, 0.7, 0.3),
    "alibi": (-0.25, -0.2, -0.31),
    "t5": (0.1, math.nan, 0.1),
    "none": (math.nan,) * 3,
}


def losses_at_lengths(position: str, seed: int) -> list[tuple[str, float, float]]:
    start = 1.0 + 0.3 * seed
    longer = (
        {2.0: RISES[position][seed] / 2, 4.0: RISES[position][seed]} if position in RISES else {}
    )
    return [
        ("loss_at_length", 1.0, start),
        *(("loss_at_length", at, start + rise) for at, rise in longer.items()),
    ]


def test_the_answer_gives_the_change_of_loss_in_longer_contexts(tmp_path: Path) -> None:
    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        return Outcome(2.0, finals=losses_at_lengths(levels["position"], seed))

    positions = {"position": {name: {"position": name} for name in (*RISES, "learned")}}
    db = study(
        tmp_path,
        positions | {"n_layer": {n: DEPTHS[n] for n in "12"}},
        outcome,
        within=["n_layer"],
        seeds=3,
    )
    text = report.answer(report.gather(db, "topology"))
    for name in ("rotary", "alibi"):
        found = stats.ttest_1samp(RISES[name], 0)
        low, high = found.confidence_interval()
        digits = decimals((high - low) / 2)
        mean = sum(RISES[name]) / 3
        assert text.count(f"{signed(mean, digits)} ({ends(low, high, digits)}) for {name}") == 2
    assert text.count("for t5, over 2 of 3 seeds") == 2 and "for none" not in text
    assert (
        text.count("; learned has no positions beyond the training context.") == 2
        and "At n_layer=2, with 4 times the training context" in text
    )


def test_without_the_training_context_no_change_is_reported(tmp_path: Path) -> None:
    finals = [("loss_at_length", 2.0, 1.0), ("loss_at_length", 4.0, 2.0)]
    db = study(
        tmp_path, {"topology": WIRINGS}, lambda levels, seed: Outcome(2.0, finals=finals), seeds=2
    )
    assert answers.lengths(report.gather(db, "topology")) == []
