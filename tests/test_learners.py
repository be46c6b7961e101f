"""Learners of scikit-learn on frozen features, against scikit-learn's own fit of exported ones."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finetune_study import BASE, folder_of, planned, table, texts, train

import ablate
from ablate import report, store
from ablate.data.passages import Passages
from ablate.data.tasks import chosen
from ablate.errors import AblateError
from ablate.plan import finetuned as planning
from ablate.plan import plan
from ablate.report import method, overview
from ablate.study import load
from ablate.text import tasks

ensemble = pytest.importorskip("sklearn.ensemble")
linear_model = pytest.importorskip("sklearn.linear_model")
measures = pytest.importorskip("sklearn.metrics")
preprocessing = pytest.importorskip("sklearn.preprocessing")
support = pytest.importorskip("sklearn.svm")

LEARNERS = 'method = ["head", "logistic", "svm", "random-forest"]'


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = folder_of(tmp_path_factory.mktemp("learners"))
    # one text in five has another label than that of its letters, or the same
    noisy = [(t, "late" if k % 5 == 0 else label) for k, (t, label) in enumerate(texts(90))]
    table(folder / "task.csv", noisy)
    made = planned(folder, LEARNERS, seeds=2, finetune="labels = 40\nn_trees = 50")
    outcome, said = train(made, folder / "ablate.db")
    assert outcome.exit_code == 0, said
    return folder, made


def finals(folder: Path, method: str, seed: int) -> dict[str, float]:
    with sqlite3.connect(folder / "ablate.db") as connection:
        return dict(
            connection.execute(
                "SELECT name, value FROM runs JOIN final ON run_id = run WHERE method = ? AND"
                " seed = ?",
                (method, seed),
            ).fetchall()
        )


def features(folder: Path, seed: int) -> np.ndarray:
    """The mean of the hidden states of each text, by the parent as `load_model` returns it."""
    with sqlite3.connect(folder / "ablate.db") as connection:
        sql = "SELECT run FROM all_runs WHERE role = 'pretrain' AND seed = ?"
        (run,) = connection.execute(sql, (seed,)).fetchone()
    model = ablate.load_model(run, db=str(folder / "ablate.db"))
    found = []
    for text in tasks.task(folder / "task.csv").texts:
        tokens = torch.tensor([[model.tokenizer.encode(text)[:16]]])
        with torch.no_grad():
            found.append(model.transformer.features(tokens)[0, 0].mean(0).double().numpy())
    return np.array(found)


@pytest.mark.parametrize("seed", [0, 1])
def test_learners_are_scikit_learns_own_on_the_features_of_the_parent(
    trained: tuple[Path, Any], seed: int
) -> None:
    folder, _ = trained
    task = tasks.task(folder / "task.csv")
    given = features(folder, seed)
    asked = Passages(torch.zeros(len(given), 1), task.classes, task.fitted)
    rows, held_out = chosen(asked, 40, seed), np.flatnonzero(~task.fitted)
    scaler = preprocessing.StandardScaler().fit(given[rows])
    truth = task.classes[held_out]
    for name, learner, scale in (
        ("logistic", linear_model.LogisticRegression(max_iter=5000), True),
        ("svm", support.SVC(), True),
        ("random-forest", ensemble.RandomForestClassifier(50, random_state=seed), False),
    ):
        both = scaler.transform(given) if scale else given
        learner.fit(both[rows], task.classes[rows])
        predicted = learner.predict(both[held_out])
        found = finals(folder, name, seed)
        # features are float32, which may move a tree's threshold over one text
        slack = 1.01 / len(truth) if name == "random-forest" else 1e-9
        assert found["task_accuracy"] == pytest.approx(
            measures.accuracy_score(truth, predicted), abs=slack
        )
        if name != "random-forest":
            expected = measures.f1_score(truth, predicted, average="macro")
            assert found["task_f1"] == pytest.approx(expected)
        assert ("task_loss" in found) is (name == "logistic")
        if name == "logistic":
            expected = measures.log_loss(truth, learner.predict_proba(both[held_out]))
            assert found["task_loss"] == pytest.approx(expected, rel=1e-3)
        assert found["forgetting"] == 0
        assert found["pretraining_loss"] == finals(folder, "head", seed)["pretraining_loss"]


def test_learners_share_the_parent_and_the_labels_of_their_seed(trained: tuple[Path, Any]) -> None:
    _, made = trained
    parents = {one.run.parent for one in made.runs if one.role == "compare"}
    assert len(parents) == 2, "one a seed"
    assert {cell.cost.steps for cell in made.cells} == {6, 0}
    report = made.notes
    assert "in 'method=head'" in report[0] and "logistic" not in report[0]


def test_a_report_names_the_learners(trained: tuple[Path, Any]) -> None:
    folder, _ = trained
    with store.open(str(folder / "ablate.db")) as opened:
        data = report.gather(opened, "tuned")
    said = " ".join(" ".join(method.paragraphs(data)).split())
    assert "method logistic, random-forest or svm this learner of scikit-learn" in said


def test_a_study_of_learners_alone_has_no_optimiser(tmp_path: Path) -> None:
    folder, db = folder_of(tmp_path), tmp_path / "ablate.db"
    planned(folder, 'method = ["head", "logistic"]')
    file = folder / "tuned.toml"
    text = re.sub("finetune_(steps|batch) = .\n", "", file.read_text())
    file.write_text(text.replace('["head", "logistic"]', '["logistic", "svm"]'))
    made = plan(load(str(file)))
    assert not [one for one in made.confounds if "learning rate" in one.text]
    outcome, said = train(made, db)
    assert outcome.exit_code == 0, said
    with store.open(str(db)) as opened:
        data = report.gather(opened, "tuned")
    said = " ".join(method.paragraphs(data))
    assert "linear classifier" not in said and "learner of scikit-learn" in said
    assert "learning rate not tuned" not in {badge.text for badge in overview.badges(data)}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "loss": ({"metric": "task_loss"}, "'method=svm'.*gives classes no probabilities"),
    "c": ({"finetune": "learner_c = 0"}, "learner_c = 0.0: a number above 0"),
    "trees": ({"finetune": "n_trees = 0"}, "n_trees = 0: a whole number from 1 to 1000000"),
    "many trees": ({"finetune": "n_trees = 1e12"}, "n_trees = 1000000000000: a whole number from"),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=list(REFUSED))
def test_what_does_not_fit_is_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(AblateError, match=said):
        planned(folder_of(tmp_path), LEARNERS, base=BASE, **given)


def test_without_scikit_learn_the_plan_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "find_spec", lambda name: None)
    with pytest.raises(AblateError, match=r"needs scikit-learn: .*'ablate-studies\[sklearn\]'"):
        planned(folder_of(tmp_path), LEARNERS)
