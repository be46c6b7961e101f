"""Studies that fine-tune, from the pre-trained runs to the report."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_helpers import Run
from finetune_study import BASE, folder_of, planned, table, texts, train
from report_study import svg_only  # noqa: F401
from tokenizers import Tokenizer, models, pre_tokenizers

from ablate import report, store
from ablate.kinds import Context, Job
from ablate.kinds.finetune import Finetune
from ablate.kinds.transformer import Transformer
from ablate.plan import plan
from ablate.report import method as method_section
from ablate.report import overview
from ablate.store import runs
from ablate.study import load
from ablate.train import weights


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(path) as connection:
        return connection.execute(sql).fetchall()


RUNS = """
SELECT cell, role, run.seed, run.status, parent.status,
       (SELECT count(*) FROM attempt WHERE run_id = run.id)
FROM all_runs JOIN run ON run.id = run LEFT JOIN run AS parent ON parent.id = run.parent_run_id
ORDER BY run
"""


@pytest.mark.usefixtures("svg_only")
def test_parents_are_trained_once_and_children_from_their_weights(
    ablate: Run, tmp_path: Path
) -> None:
    folder, db = folder_of(tmp_path), tmp_path / "ablate.db"
    made = planned(folder, seeds=2)
    outcome, said = train(made, db)
    assert outcome.exit_code == 0, said
    found = rows(db, RUNS)
    assert {(row[3], row[5]) for row in found} == {("complete", 1)}
    assert len({one.run.key for one in made.runs}) == 12 == outcome.counts["complete"]
    for cell, role, _, _, parent, _ in found:
        starts = role == "compare" and cell != "method=scratch"
        assert parent == ("complete" if starts else None), cell
    finals = {
        (cell, name): value
        for cell, name, value in rows(
            db, "SELECT cell, name, value FROM runs JOIN final ON run_id = run WHERE seed = 0"
        )
    }
    (loss,) = rows(db, "SELECT DISTINCT loss FROM all_runs WHERE role = 'pretrain' AND seed = 0")
    for method in ("head", "adapter", "lora", "full"):
        before = (
            finals[f"method={method}", "pretraining_loss"]
            - finals[f"method={method}", "forgetting"]
        )
        assert before == pytest.approx(loss[0], abs=1e-12)
    assert finals["method=head", "forgetting"] == 0 != finals["method=full", "forgetting"]
    assert ("method=scratch", "forgetting") not in finals
    assert all(0 <= value <= 1 for (_, name), value in finals.items() if "accuracy" in name)
    kept = sorted(path.name for path in (tmp_path / "ablate.weights").iterdir())
    parents = {one.run.key for one in made.runs if one.role == "pretrain"}
    assert kept == sorted(f"{key[:12]}-final.safetensors" for key in parents)

    assert ablate("report", "tuned", "--db", str(db))[0] == 0
    report = (tmp_path / "results" / "tuned" / "report.md").read_text()
    assert "were pre-trained on 2.56k tokens" in report and "trained on the task task.csv" in report
    assert "each method trains its own part" in report
    child, parent = (
        next(row[0] for row in rows(db, f"SELECT run, role FROM all_runs WHERE {where}"))
        for where in ("cell = 'method=lora' AND role = 'compare'", "role = 'pretrain'")
    )
    assert (
        f"the weights of run {parent} (complete)" in ablate("show", str(child), "--db", str(db))[1]
    )
    assert "Runs that start from" in ablate("show", str(parent), "--db", str(db))[1]

    again, said = train(made, db)
    assert again.exit_code == 0 and len(rows(db, "SELECT id FROM attempt")) == 12

    more = planned(folder, 'finetune_lr = [1e-3, 1e-2]\nmethod = ["full", "head"]', name="more")
    outcome, said = train(more, db)
    assert outcome.exit_code == 0, said
    count = "SELECT count(*) FROM attempt JOIN run ON run.id = run_id WHERE kind = 'transformer'"
    assert rows(db, count) == [(2,)], "another study has the same parents"


def test_a_report_judges_the_learning_rate_on_the_task(tmp_path: Path) -> None:
    folder, db = folder_of(tmp_path), tmp_path / "ablate.db"
    tuned = 'method = ["full", "head"]\n[tune]\nfinetune_lr = [1e-3, 1e-1]\npoints = 3\nseeds = 1'
    for name, factors, said in (
        ("shared", 'method = ["full", "head"]', True),
        ("varied", 'finetune_lr = [1e-3, 1e-2]\nmethod = ["full", "head"]', False),
        ("tuned", f'{tuned}\nper = "cell"', False),
    ):
        outcome, printed = train(planned(folder, factors, name=name, steps=2), db)
        assert outcome.exit_code == 0, printed
        with store.open(str(db)) as opened:
            data = report.gather(opened, name)
        badges = {badge.text for badge in overview.badges(data)}
        assert ("learning rate not tuned" in badges) is said, name


def test_a_report_says_which_arms_only_guess_and_how_many_texts_are_cut(tmp_path: Path) -> None:
    rows = [(f"{n:03}" + "x" * (30 if n < 7 else 2), "rare" if n % 10 == 0 else "often")
            for n in range(100)]  # fmt: skip
    folder, db = folder_of(tmp_path, rows), tmp_path / "ablate.db"
    made = planned(folder, 'method = ["head", "scratch"]', name="guess", steps=2)
    outcome, printed = train(made, db)
    assert outcome.exit_code == 0, printed
    with store.open(str(db)) as opened:
        data = report.gather(opened, "guess")
        assert "Chance accuracy is 90%" in report.answer(data)
        assert "No arm is above it" in report.answer(data)
        badges = {badge.text for badge in overview.badges(data)}
        assert "2 cells no better than chance" in badges
        assert "Of 7.0% of the texts a model reads the first n_ctx tokens only" in " ".join(
            method_section.paragraphs(data)
        )


def test_a_rate_is_chosen_on_the_validation_part_and_the_test_part_is_reported(
    tmp_path: Path,
) -> None:
    folder, db = folder_of(tmp_path), tmp_path / "ablate.db"
    sides = ["train", "train", "validation", "test"]
    split = [(*row, sides[k // 2 % 4]) for k, row in enumerate(texts())]
    table(folder / "task.csv", split, ("text", "label", "split"))
    methods = 'method = ["full", "head"]\n[tune]\nfinetune_lr = [1e-3, 1e-1]\npoints = 3\nseeds = 1'
    made = planned(folder, f'{methods}\nper = "cell"', metric="task_loss", steps=3)
    assert made.about[0].startswith(
        "Task task.csv: 32 texts to train on, 14 held out, 14 of a validation part, on which [tune]"
        " decides. By class (to train on + held out): 'early' 16 + 7 and 'late' 16 + 7"
    )
    outcome, printed = train(made, db)
    assert outcome.exit_code == 0, printed
    values = {
        name: rows(
            db,
            "SELECT cell, finetune_lr, value FROM all_runs JOIN final ON run_id = run"
            f" WHERE role = 'tune' AND name = '{name}' ORDER BY cell, finetune_lr",
        )
        for name in ("validation_loss", "task_loss")
    }
    assert values["validation_loss"] != values["task_loss"]
    ends = [line for line in printed.splitlines() if " complete, " in line]
    of_rates = [line for line in ends if ", finetune_lr " in line]
    assert of_rates and all("validation_loss" in line for line in of_rates)
    assert not any("task_loss" in line for line in of_rates), "the test part is not shown"
    assert any("task_loss" in line for line in ends)
    for cell, evidence in rows(
        db, "SELECT label, evidence FROM decision JOIN cell ON cell.id = cell_id"
    ):
        read = json.loads(evidence)
        of_cell = {lr: value for one, lr, value in values["validation_loss"] if one == cell}
        assert read["metric"] == "validation_loss"
        assert read["values"] == [[of_cell[lr] for lr in read["rates"]]]
    reported = rows(db, "SELECT metric, value FROM runs JOIN final ON run_id = run"
                        " WHERE name = 'task_loss'")  # fmt: skip
    assert reported and all(metric == value for metric, value in reported)
    with store.open(str(db)) as opened:
        text = report.gather(opened, "tuned")
    said = " ".join(" ".join(method_section.paragraphs(text)).split())
    assert "the results are those on its test part" in said


def failing(old: Callable[..., None]) -> Callable[..., None]:
    def train(self: Any, job: Job, context: Context) -> None:
        if type(self) is Transformer:
            raise ValueError("the corpus is on fire")
        old(self, job, context)

    return train


def test_children_of_a_failed_parent_fail_once_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, made = tmp_path / "ablate.db", planned(folder_of(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(Transformer, "train", failing(Transformer.train))
        outcome, said = train(made, db)
    assert outcome.exit_code == 1
    assert outcome.counts == {"complete": 1, "failed": 5}, said
    sql = "SELECT error FROM attempt JOIN run ON run.id = run_id WHERE kind = 'finetune'"
    errors = rows(db, f"{sql} AND attempt.status = 'failed'")
    parent = next(one.run.key for one in made.runs if one.role == "pretrain")
    assert errors == [(f"its parent run {parent[:12]} failed",)] * 4
    assert said.count("its parent run") == 4

    outcome, said = train(made, db)
    assert outcome.counts == {"complete": 6}, said


def test_children_fail_whose_complete_parent_fails_when_it_is_trained_again_for_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, db = folder_of(tmp_path), tmp_path / "ablate.db"
    made = planned(folder, 'method = ["full", "head"]')
    (parent,) = {one.run.key: one.run for one in made.runs if one.role == "pretrain"}.values()
    alone = (folder / "tuned.toml").read_text()
    begin, end = alone.index("[finetune]"), alone.index("[eval]")
    alone = alone[:begin] + "[factors]\nlr = [1e-2, 2e-2]\n" + alone[end:]
    alone = alone.replace("lr = 1e-2\n", "", 1).replace("task_accuracy", "loss")
    (folder / "plain.toml").write_text(alone.replace('"tuned"', '"plain"'))
    plain = plan(load(str(folder / "plain.toml")))
    assert parent.key in {one.run.key for one in plain.runs}
    assert train(plain, db)[0].exit_code == 0
    with monkeypatch.context() as patch:
        patch.setattr(Transformer, "train", failing(Transformer.train))
        outcome, said = train(made, db)
    assert outcome.exit_code == 1, said
    assert outcome.counts == {"complete": 1, "failed": 2}
    outcome, said = train(made, db)
    assert outcome.exit_code == 0 and outcome.counts == {"complete": 3}, said


def test_children_of_a_diverged_parent_fail_and_are_not_tried_again(tmp_path: Path) -> None:
    db = tmp_path / "ablate.db"
    made = planned(folder_of(tmp_path), base=BASE.replace("lr = 1e-2", "lr = 1e9"))
    for _ in range(2):
        outcome, said = train(made, db)
        assert outcome.exit_code == 1
        assert outcome.counts == {"complete": 1, "diverged": 1, "failed": 4}, said
        assert len(rows(db, "SELECT id FROM attempt")) == 6
    errors = rows(db, "SELECT error FROM attempt WHERE status = 'failed'")
    assert {error.split(" ")[-1] for (error,) in errors} == {"diverged"}


def test_a_complete_parent_without_weights_is_trained_again(tmp_path: Path) -> None:
    """A study that kept none has trained it."""
    folder, db = folder_of(tmp_path), tmp_path / "ablate.db"
    written = planned(folder, 'topology = [1, 5]\nmethod = ["full", "head"]')
    ordinary = (folder / "tuned.toml").read_text()
    begin, end = ordinary.index("[finetune]"), ordinary.index("[factors]")
    ordinary = (ordinary[:begin] + ordinary[end:]).replace('method = ["full", "head"]', "")
    (folder / "plain.toml").write_text(
        ordinary.replace("task_accuracy", "loss").replace('"tuned"', '"plain"')
    )
    assert train(plan(load(str(folder / "plain.toml"))), db)[0].exit_code == 0
    losses = rows(db, "SELECT run, loss FROM runs WHERE study = 'plain'")
    outcome, said = train(written, db)
    assert outcome.exit_code == 0 and "2 complete runs have no weights" in said
    assert rows(db, "SELECT run, loss FROM runs WHERE study = 'plain'") == losses
    attempts = "SELECT count(*) FROM attempt JOIN run ON run.id = run_id WHERE kind = '{}'"
    assert rows(db, attempts.format("transformer")) == [(4,)]
    assert rows(db, attempts.format("finetune")) == [(4,)]


ATTEMPTS = """
SELECT kind, count(*) FROM attempt JOIN run ON run.id = run_id WHERE attempt.status <> 'failed'
GROUP BY kind
"""


@pytest.mark.parametrize("harm", ["missing", "cut short"])
def test_a_parent_whose_file_is_lost_is_trained_again_before_its_children(
    ablate: Run, tmp_path: Path, harm: str
) -> None:
    """Such as where the database alone was copied to another machine."""
    folder, db = folder_of(tmp_path), tmp_path / "ablate.db"
    assert train(planned(folder, 'method = ["full", "head"]'), db)[0].exit_code == 0
    (file,) = (tmp_path / "ablate.weights").iterdir()
    before = {name: value.clone() for name, value in weights.read(file)[0].items()}
    lost = "1 complete run has no weights"
    more = planned(folder, 'method = ["full", "lora"]', name="more")
    assert lost not in ablate("plan", str(folder / "more.toml"), "--db", str(db))[1]
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-1])
    said = ablate("plan", str(folder / "more.toml"), "--db", str(db))[1]
    assert lost in said and "Done: 1 of 3 runs" in said
    outcome, said = train(more, db)
    assert outcome.exit_code == 0 and outcome.counts == {"complete": 3}, said
    assert said.count(lost) == 1
    assert rows(db, ATTEMPTS) == [("finetune", 3), ("transformer", 2)]
    after, _ = weights.read(file)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert ablate("db", "check", "--db", str(db))[0] == 0


def test_a_parent_whose_children_have_their_results_needs_no_file(
    ablate: Run, tmp_path: Path
) -> None:
    folder, db = folder_of(tmp_path), tmp_path / "ablate.db"
    made = planned(folder, 'method = ["full", "head"]')
    assert train(made, db)[0].exit_code == 0
    (file,) = (tmp_path / "ablate.weights").iterdir()
    file.unlink()
    for repair in ((), ("--repair",)):  # by which the database forgets the file
        ablate("db", "check", "--db", str(db), *repair)
        said = ablate("plan", str(folder / "tuned.toml"), "--db", str(db))[1]
        assert "Done: 3 of 3 runs" in said and "no weights" not in said
        outcome, said = train(made, db)
        assert outcome.exit_code == 0 and "no weights" not in said
        assert rows(db, ATTEMPTS) == [("finetune", 2), ("transformer", 1)]
    outcome, said = train(planned(folder, 'method = ["full", "head"]', seeds=2), db)
    assert outcome.exit_code == 0 and outcome.counts == {"complete": 6}, said
    assert rows(db, ATTEMPTS) == [("finetune", 4), ("transformer", 2)], "only the new seed's"


def test_two_launchers_train_a_parent_whose_file_is_lost_once(tmp_path: Path) -> None:
    folder, db = folder_of(tmp_path), tmp_path / "ablate.db"
    assert train(planned(folder, 'method = ["full", "head"]'), db)[0].exit_code == 0
    (file,) = (tmp_path / "ablate.weights").iterdir()
    file.unlink()
    more = planned(folder, 'method = ["full", "lora"]', name="more")
    with store.open(str(db), create=True) as late:
        lost = runs.unkept(late, more)
        assert train(more, db)[0].exit_code == 0  # by another launcher, before this one goes on
        assert len(lost) == 1 and not runs.unkept(late, more)
        runs.forget_lost_weights(late, lost)
    outcome, _ = train(planned(folder, 'method = ["full", "adapter"]', name="last"), db)
    assert outcome.exit_code == 0
    assert rows(db, ATTEMPTS) == [("finetune", 4), ("transformer", 2)]


def test_a_child_whose_parents_file_vanishes_fails_and_the_next_launcher_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, db = folder_of(tmp_path), tmp_path / "ablate.db"
    made = planned(folder, 'method = ["full", "head"]')
    old = Finetune.train

    def vanished(self: Finetune, job: Job, context: Context) -> None:
        for file in job.parents:
            assert file
            file.unlink(missing_ok=True)
        old(self, job, context)

    with monkeypatch.context() as patch:
        patch.setattr(Finetune, "train", vanished)
        outcome, said = train(made, db)
    assert outcome.counts == {"complete": 1, "failed": 2}, said
    errors = rows(db, "SELECT error FROM attempt WHERE status = 'failed'")
    assert all("`ablate run` trains the parent again" in error for (error,) in errors)
    outcome, said = train(made, db)
    assert outcome.exit_code == 0 and outcome.counts == {"complete": 3}, said


def test_a_stopped_child_begins_again_and_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(tmp_path)
    made = planned(folder, 'method = ["full", "lora"]')
    train(made, tmp_path / "whole.db")
    old = Finetune.train

    def stopped(self: Finetune, job: Job, context: Context) -> None:
        asked = iter(range(99))
        old(self, job, Context(context.device, context.emit, lambda: next(asked) > 2))

    with monkeypatch.context() as patch:
        # a launcher tries a stopped run again at once: the second time it is whole
        patch.setattr(Finetune, "train", _once(stopped, old))
        outcome, said = train(made, tmp_path / "parts.db")
    assert outcome.exit_code == 0, said
    curve = (
        "SELECT r.cell, s.name, step, value FROM metric JOIN series AS s ON s.id = series_id"
        " JOIN runs AS r ON r.run = run_id ORDER BY r.cell, s.name, step"
    )
    assert rows(tmp_path / "parts.db", curve) == rows(tmp_path / "whole.db", curve) != []
    statuses = rows(tmp_path / "parts.db", "SELECT DISTINCT status FROM attempt")
    assert set(statuses) == {("complete",), ("stopped",)}


def _once(first: Callable[..., None], then: Callable[..., None]) -> Callable[..., None]:
    seen: set[str] = set()

    def train(self: Any, job: Job, context: Context) -> None:
        key = job.runs[0].key
        (then if key in seen else first)(self, job, context)
        seen.add(key)

    return train


# -- learning --------------------------------------------------------------------------------------

WORDS = [[f"{topic}{k}" for k in range(250)] for topic in "ab"]


def test_pre_training_beats_random_weights_at_64_labels(tmp_path: Path) -> None:
    """Two topics, whose words stand together in the corpus; 64 texts show a tenth of the words."""
    rng = random.Random(0)

    def documents(n: int, length: int) -> list[tuple[str, str]]:
        topics = [rng.randrange(2) for _ in range(n)]
        return [(" ".join(rng.choices(WORDS[topic], k=length)), "ab"[topic]) for topic in topics]

    text = "\n\n\n".join(one for one, _ in documents(1500, 15))
    (tmp_path / "corpus.txt").write_text(text)
    table(tmp_path / "task.csv", documents(600, 2))
    words = {word: n for n, word in enumerate(["[UNK]", "<eos>", *WORDS[0], *WORDS[1]])}
    tokenizer = Tokenizer(models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(tmp_path / "words.json"))
    base = f"""
corpus = "corpus.txt"
tokenizer = "words.json"
n_layer = 1
d_model = 32
n_head = 2
n_ctx = 16
batch_tokens = 512
lr = 1e-2
tokens = {512 * 150}
document_mask = "attention"
"""
    made = planned(
        tmp_path,
        'method = ["scratch", "head", "full"]',
        base=base,
        finetune="labels = 64",
        steps=40,
    )
    outcome, said = train(made, tmp_path / "ablate.db")
    assert outcome.exit_code == 0, said
    found: dict[str, list[float]] = {}
    for cell, value in rows(tmp_path / "ablate.db", "SELECT cell, metric FROM runs"):
        found.setdefault(cell.removeprefix("method="), []).append(value)
    assert min(found["head"] + found["full"]) > max(found["scratch"]) + 0.15


def test_weights_of_a_parent_are_those_of_its_run(tmp_path: Path) -> None:
    made = planned(folder_of(tmp_path), 'method = ["full", "head"]')
    train(made, tmp_path / "ablate.db")
    (file,) = (tmp_path / "ablate.weights").iterdir()
    _, about = weights.read(file)
    assert about.key == next(one.run.key for one in made.runs if one.role == "pretrain")
