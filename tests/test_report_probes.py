"""A masked study's report names its metric and has the masked loss at every probe ratio."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_study import Outcome, study
from scipy import stats

from ablate import analysis, report
from ablate.analysis.records import LengthError
from ablate.report.data import gather
from ablate.report.document import exported
from ablate.report.figure_set import FigureSet
from ablate.report.masked import grids
from ablate.store import Database
from ablate.store import query as queries

RATIOS = {"mask_ratio": {"0.15": {"mask_ratio": 0.15}, "0.4": {"mask_ratio": 0.4}}}


def masked(folder: Path, metric: str) -> Database:
    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        trained = float(levels["mask_ratio"])
        finals = [
            ("probe_loss", at, 2 + abs(at - trained) + 0.01 * seed) for at in (0.15, 0.4, 0.8)
        ]
        finals += [("era_accuracy", 0, 0.5 + 0.01 * seed), ("label_accuracy", 0, 0.8 + 0.01 * seed)]
        return Outcome(1.0, finals=[*finals, ("label_chance", 0, 0.7)])

    folder.mkdir()
    base = {"objective": "masked", "n_vocab": 257}
    return study(
        folder,
        RATIOS,
        outcome,
        seeds=3,
        metric=metric,
        goal="max" if "accuracy" in metric else "min",
        base=base,
    )


def test_the_probe_grid_has_the_databases_means(tmp_path: Path) -> None:
    db = masked(tmp_path / "a", "era_accuracy")
    table, _, linear = grids(gather(db, "topology"))
    assert table.columns == ("arm", "seeds", "ratio 0.15", "ratio 0.4", "ratio 0.8")
    rows = {str(row[0]): [exported(cell) for cell in row[2:]] for row in table.rows}
    assert rows["0.15"] == pytest.approx([2.01, 2.26, 2.66])
    assert rows["0.4"] == pytest.approx([2.26, 2.01, 2.41])
    _, found = queries.run(db, table.sql)
    assert [row[-1] for row in found] == pytest.approx(rows["0.15"] + rows["0.4"])
    assert linear.columns == ("arm", "seeds", "era accuracy", "label accuracy")
    assert [[exported(cell) for cell in row[2:]] for row in linear.rows] == [
        pytest.approx([0.51, 0.81])
    ] * 2


@pytest.mark.parametrize(
    ("objective", "finals", "title"),
    [
        ("causal", [("loss_at_length", 1.0, 2.0), ("loss_at_length", 4.0, 2.1)], "Context"),
        ("masked", [("probe_loss", 0.15, 2.0), ("probe_loss", 0.4, 2.1)], "Masking"),
        (
            "masked",
            [("probe_loss", 0.4, 2.0), ("loss_at_position", 0, 2.0), ("loss_at_position", 1, 2.0)],
            "Context and masking",
        ),
    ],
)
def test_the_section_is_named_by_what_it_holds(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    objective: str,
    finals: list[tuple[str, float, float]],
    title: str,
) -> None:
    wirings = {"topology": {name: {"topology": name} for name in ("serial", "parallel")}}
    db = study(
        tmp_path,
        wirings,
        lambda levels, seed: Outcome(1.0, finals=finals),
        seeds=2,
        base={"objective": objective},
    )
    monkeypatch.setattr(FigureSet, "draw", lambda figure_set: None)
    gathered = report.gather(db, "topology")
    assert [
        one.title for one in report._sections(gathered, FigureSet(tmp_path)) if one.id == "grids"
    ] == [title]


def test_errors_at_the_longest_sources_are_compared_with_those_at_the_shortest(
    tmp_path: Path,
) -> None:
    wirings = {"architecture": {name: {"architecture": name} for name in ("rnn-seq2seq", "none")}}
    growth = {"rnn-seq2seq": 0.3, "none": 0.01}

    def outcome(levels: dict[str, str], seed: int) -> Outcome:
        rate = growth[levels["architecture"]]
        finals = [
            ("error_at_length", at, 0.1 + rate * k + 0.001 * seed * k)
            for k, at in ((0, 2), (0.4, 6), (1, 11))
        ]
        return Outcome(1.0, finals=finals)

    wirings["architecture"]["none"] = {"architecture": "encoder-decoder"}
    db = study(tmp_path, wirings, outcome, seeds=3, base={"objective": "pairs"})
    found = analysis.findings("topology", db).of(LengthError)
    assert [(one.short, one.long, one.n) for one in found] == [(5, 11, 3)] * 2
    assert [one.mean for one in found] == pytest.approx([0.301, 0.011])
    half = stats.t.ppf(0.975, 2) * 0.001 / 3**0.5
    assert [one.hi for one in found] == pytest.approx([0.301 + half, 0.011 + half])
    answer = " ".join(report.answer(gather(db, "topology")).split())
    assert (
        "From sources of at most 5 tokens to those of 11 or more the error rate changes by +0.3010"
        " (+0.2985 to +0.3035) for rnn-seq2seq and +0.0110 (+0.0085 to +0.0135) for none."
    ) in answer


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        (
            "era_accuracy",
            "is based on era accuracy of a linear probe, which favours no masking ratio",
        ),
        (
            "probe_loss@0.4",
            (
                "is based on masked loss at ratio 0.4, of the same hidden tokens in every arm,"
                " which favours arms"
            ),
        ),
        ("label_accuracy", "is based on label accuracy of a linear probe, which favours no"),
        ("loss", "is based on held-out loss at the ratio of training"),
    ],
)
def test_the_answer_names_its_metric(tmp_path: Path, metric: str, words: str) -> None:
    answer = report.answer(report.gather(masked(tmp_path / "a", metric), "topology"))
    assert f"Masked models: the answer {words}" in answer
    assert ("Chance accuracy is 25%" in answer) is (metric == "era_accuracy")
    assert ("Chance accuracy is 70%" in answer) is (metric == "label_accuracy")
    assert "masked losses at the probe ratios 0.15, 0.4 and 0.8" in answer
