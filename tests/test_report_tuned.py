"""What a report says of tuned values that may not be the best: at an edge, or without training."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_study import Outcome, study, undrawn  # noqa: F401
from scipy import stats

from ablate import report
from ablate.analysis.records import Contrast
from ablate.plan import Decision
from ablate.report import answers, overview, tuned
from ablate.report.data import ReportData
from ablate.report.document import Table, shown
from ablate.report.method import paragraphs
from ablate.store import decisions

RATES = (1e-4, 1e-3, 1e-2, 1e-1)
LEVELS = ("serial", "parallel", "concat")
BOWL = (2.3, 2.1, 2.0, 2.1)  # the best of RATES is the third
FALLING = (2.9, 2.6, 2.3, 2.0)  # the best lies beyond the last


def found(
    folder: Path, curves: dict[str, tuple[tuple[float, ...], float]], **evidence: Any
) -> ReportData:
    """A study of arms with their means at RATES and the rates chosen.

    Args:
        folder: Of the database.
        curves: Arm → mean at each rate, and the chosen rate.
        evidence: Arm → more evidence of its decision.
    """

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        noise = np.random.default_rng([seed, len(levels["topology"])]).normal(0, 0.01)
        return Outcome(2.0 + 0.3 * LEVELS.index(levels["topology"]) + float(noise))

    arms = {"topology": {one: {"topology": one} for one in curves}}
    toml = 'name = "topology"\n[tune]\nlr = [1e-4, 1e-1]\npoints = 4\nper = "cell"\n'
    db = study(folder, arms, outcome, toml=toml)
    for arm, (means, lr) in curves.items():
        cell = f"topology={arm}"
        noise = np.random.default_rng(len(arm)).normal(0, 0.01, (3, len(RATES)))
        known: dict[str, Any] = {
            "group": cell,
            "cells": [cell],
            "metric": "loss",
            "goal": "min",
            "seeds": [7, 8, 9],
            "ladder": list(RATES),
            "rates": list(RATES),
            "values": (np.array(means) + noise).tolist(),
            "fitted": min(means),
            "at_edge": lr in (RATES[0], RATES[-1]),
            **evidence.get(arm, {}),
        }
        decisions.write(db, 1, [Decision(cell, "lr", lr, known)])
    return report.gather(db, "topology")


def sentences(data: ReportData) -> dict[str, str]:
    """Level → the sentence on its contrast."""
    return {one.level: one.text for family in answers.families(data) for one in family.answers}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("arm", ["serial", "parallel"])
def test_a_rate_at_the_edge_of_those_tried_qualifies_the_answer(tmp_path: Path, arm: str) -> None:
    """Of the baseline, which all contrasts have, and of another arm, which one has."""
    curves = dict.fromkeys(LEVELS, (BOWL, 0.01)) | {arm: (FALLING, 1e-1)}
    data = found(tmp_path, curves)
    of_arm = f"The learning rate of {arm} (0.1; tried: 0.0001 to 0.1) is at the edge of those tried"
    for one in data.findings.of(Contrast):
        concerned = arm in (one.level, one.baseline_level)
        assert (of_arm in sentences(data)[one.level]) == concerned
        assert ("may change this result" in sentences(data)[one.level]) == concerned
    said = f"The learning rate of topology={arm} is at the edge of the rates that were tried"
    assert [line for line in overview.headline(data) if line.startswith(said)]
    assert said in report.answer(data)
    (badge,) = [one for one in overview.badges(data) if "edge" in one.text]
    assert badge.text == "rate at the edge of those tried"
    page = html.unescape(report.write(data, tmp_path / "out").read_text(encoding="utf-8"))
    assert f'id="{badge.section}"' in page
    top = page.split("<nav", 1)[0]
    assert badge.text in top and said in top


def test_both_arms_at_an_edge_are_named_and_none_where_no_rate_trains(tmp_path: Path) -> None:
    curves = {"serial": (FALLING, 1e-1), "parallel": (FALLING[::-1], 1e-4), "concat": (BOWL, 1e-2)}
    (tmp_path / "a").mkdir()
    both = sentences(found(tmp_path / "a", curves))["parallel"]
    assert "of parallel (0.0001; tried: 0.0001 to 0.1) and that of serial (0.1;" in both
    (tmp_path / "b").mkdir()
    data = found(tmp_path / "b", curves, serial={"trains": False}, parallel={"trains": False})
    assert not any("edge" in one for one in sentences(data).values())
    assert not any("edge" in one.text for one in overview.badges(data))
    (tmp_path / "c").mkdir()
    inside = found(tmp_path / "c", dict.fromkeys(LEVELS, (BOWL, 0.01)))
    assert "edge" not in report.answer(inside)
    assert not any("edge" in one.text for one in overview.badges(inside))


def test_what_several_cells_share_was_tuned_by_runs_of_one(tmp_path: Path) -> None:
    curves = dict.fromkeys(LEVELS, (BOWL, 0.01))
    shared = {"group": "all cells", "cells": [f"topology={one}" for one in LEVELS]}
    data = found(tmp_path, {"serial": curves["serial"]}, serial={})
    (said,) = [line for line in report.answer(data).splitlines() if line.startswith("Tuned: ")]
    assert "by runs of" not in said, "it has one cell"
    (tmp_path / "b").mkdir()
    data = found(tmp_path / "b", curves, **dict.fromkeys(LEVELS, shared))
    (said,) = [line for line in report.answer(data).splitlines() if line.startswith("Tuned: ")]
    assert ", by runs of one cell for all that share a rate, on separate seeds" in said


def cells_of(table: Table) -> dict[str, dict[str, str]]:
    """First cell of each row → its cells by heading."""
    rows = [list(map(shown, row)) for row in table.rows]
    return {row[0]: dict(zip(table.columns, row, strict=True)) for row in rows}


def test_a_group_that_no_rate_trains_has_no_error_and_changes_by_no_rate(tmp_path: Path) -> None:
    """Its losses differ between the rates, and by 0.1 from those of the others."""
    flat = (6.2, 6.1, 6.15, 6.3)
    curves = {"serial": (BOWL, 1e-2), "parallel": (flat, 1e-3), "concat": (BOWL[::-1], 1e-3)}
    data = found(tmp_path, curves, parallel={"trains": False})
    rates = cells_of(tuned.rates(data))
    assert rates["topology=parallel"]["error"] == "–" != rates["topology=concat"]["error"]
    assert float(rates["topology=concat"]["error"]) > 0
    assert list(cells_of(tuned.changed(data))) == ["serial", "concat"]
    assert {row[0] for row in tuned.by_rate(data).rows} == {"concat"}
    (said,) = [one for one in tuned.paragraphs(data) if "Tuning changes" in one]
    assert "the result of concat" in said and "parallel" not in said


def test_where_no_rate_trains_the_baseline_nothing_is_compared_with_it(tmp_path: Path) -> None:
    flat = (6.2, 6.1, 6.15, 6.3)
    curves = dict.fromkeys(LEVELS, (BOWL, 0.01)) | {"serial": (flat, 1e-3)}
    data = found(tmp_path, curves, serial={"trains": False})
    assert not tuned.changed(data).rows and not tuned.by_rate(data).rows
    assert not any("uning changes" in one for one in tuned.paragraphs(data))


def test_a_study_that_no_rate_trains_says_what_was_chosen(tmp_path: Path) -> None:
    curves = dict.fromkeys(LEVELS, ((6.2, 6.1, 6.15, 6.3), 0.0001))
    data = found(tmp_path, curves, **{one: {"trains": False} for one in LEVELS})
    (said,) = [line for line in report.answer(data).splitlines() if line.startswith("Tuned: ")]
    assert "(chosen: 0.0001, though no rate trains anything)" in said
    assert "none is chosen yet" not in said
    assert "No rate that was tried trains topology=serial, " in said


@pytest.mark.parametrize("noise", [0.0001, 0.2])
def test_the_method_says_where_the_error_of_a_choice_does_not_count(
    tmp_path: Path, noise: float
) -> None:
    """Tuning runs with much noise leave the best rate unknown, and widen the interval."""
    rough = np.random.default_rng(0).normal(0, noise, (2, 3, len(RATES)))
    flat = 2 + (np.array(BOWL) - 2) / 100  # next to the noise of the compared seeds
    serial, parallel = ({"values": (flat + one).tolist()} for one in rough)
    curves = dict.fromkeys(LEVELS[:2], (BOWL, 1e-2))
    data = found(tmp_path, curves, serial=serial, parallel=parallel)
    (one,) = data.findings.of(Contrast)
    assert one.choice_error > 0
    plain = stats.t.ppf(0.975, one.n - 1) * one.sd / math.sqrt(one.n)
    assert ((one.hi - one.lo) / 2 == pytest.approx(plain)) == (noise < 0.1)
    (said,) = [text for text in paragraphs(data) if "tuned on seeds" in text]
    assert ("except in 1 of 1" in said) == (noise < 0.1)
