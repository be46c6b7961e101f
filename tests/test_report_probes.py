"""A masked study's report names its metric and has the masked loss at every probe ratio."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_study import Outcome, study

from ablate import report
from ablate.report.data import gather
from ablate.report.document import exported
from ablate.report.figure_set import FigureSet
from ablate.report.masked import grid
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
    table = grid(gather(db, "topology"))
    assert table.columns == ("arm", "seeds", "ratio 0.15", "ratio 0.4", "ratio 0.8")
    rows = {str(row[0]): [exported(cell) for cell in row[2:]] for row in table.rows}
    assert rows["0.15"] == pytest.approx([2.01, 2.26, 2.66])
    assert rows["0.4"] == pytest.approx([2.26, 2.01, 2.41])
    _, found = queries.run(db, table.sql)
    assert [row[-1] for row in found] == pytest.approx(rows["0.15"] + rows["0.4"])


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
