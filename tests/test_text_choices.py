"""Tasks of multiple choice: the table, the logits of the library's models, training."""

from __future__ import annotations

import json
import os
import random
import sqlite3
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import pytest
import torch
from finetune_study import folder_of, planned, refused, table, train
from test_finetune import config
from test_folders import made
from torch import Tensor, nn
from train_helpers import Events, text

import ablate as library
from ablate import sizes
from ablate.config import RunConfig
from ablate.data.passages import Passages, written
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.kinds import Context, Job, Run
from ablate.model.finetuned import Classifier
from ablate.text import tasks
from ablate.train.finetune import Finetuning
from ablate.train.on_task import Parts
from ablate.train.step import Step

COLUMNS = ("text", "choice_0", "choice_1", "choice_2", "label")


def choices(n: int = 90) -> list[tuple[str, ...]]:
    """Texts with three choices, of which the right one has letters of its own."""
    rng = random.Random(0)
    rows = []
    for k in range(n):
        words = ["".join(rng.choices("uvwxyz", k=rng.randint(2, 5))) for _ in range(3)]
        words[k % 3] = "".join(rng.choices("abcdef", k=rng.randint(2, 5)))
        rows.append((f"text {k}", *words, str(k % 3)))
    return rows


# -- tables ----------------------------------------------------------------------------------------


def test_choices_are_read_alike_from_tables_and_lines_of_json(tmp_path: Path) -> None:
    csv = tasks.task(table(tmp_path / "t.csv", choices(), COLUMNS))
    lines = [dict(zip(COLUMNS, row, strict=True)) for row in choices()]
    file = tmp_path / "t.jsonl"
    # labels are numbers, and columns in another order
    texts = (
        json.dumps({**dict(reversed(row.items())), "label": int(row["label"])}) for row in lines
    )
    file.write_text("\n".join(texts))
    found = tasks.task(file)
    assert isinstance(csv, tasks.LabelledTexts) and isinstance(found, tasks.LabelledTexts)
    for one in (csv, found):
        assert one.names == ("0", "1", "2") and one.choices[4] == choices()[4][1:4]
        assert one.classes.tolist() == [k % 3 for k in range(90)]
        assert one.counts.tolist() == [[6, 6, 6], [24, 24, 24]]
    assert (csv.fitted == found.fitted).all()


def test_all_lines_of_json_have_equally_many_choices(tmp_path: Path) -> None:
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in choices()]
    del rows[5]["choice_2"]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(AblateError, match=r"line 6: it has 2 choices, and earlier lines have 3"):
        tasks.task(tmp_path / "t.jsonl")


def test_a_text_lies_on_one_side_with_all_its_choices(tmp_path: Path) -> None:
    rows = [(f"text {k % 30}", *row[1:]) for k, row in enumerate(choices())]
    found = tasks.task(table(tmp_path / "t.csv", rows, COLUMNS))
    sides = {(one, bool(side)) for one, side in zip(found.texts, found.fitted, strict=True)}
    assert len(sides) == 30


@pytest.mark.parametrize(
    ("columns", "row", "said"),
    [
        (
            ("text", "choice_0", "label"),
            ("a", "b", "0"),
            "choice_0, choice_1 and so on, two or more",
        ),
        (("text", "choice_1", "choice_2", "label"), ("a", "b", "c", "1"), "it has choice_1"),
        (
            ("text", "choice_0", "choice_1", "text_pair", "label"),
            ("a", "b", "c", "d", "1"),
            "leave",
        ),
        (
            ("text", "choice_0", "choice_1", "label"),
            ("a", "b", "c", "2"),
            "'2' is none of its .* 1",
        ),
        (("text", "choice_0", "choice_1", "label"), ("a", "", "c", "1"), "there is no choice_0"),
    ],
)
def test_a_table_of_choices_that_does_not_serve_is_refused(
    columns: tuple[str, ...], row: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    with pytest.raises(AblateError, match=said):
        tasks.task(table(tmp_path / "t.csv", [row], columns))


# -- models ----------------------------------------------------------------------------------------


class First(nn.Module):
    """What the pooler of the library's BERT reads, without its layer."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden[:, 0]


@pytest.mark.parametrize("case", ["gpt2", "bert"])
def test_logits_of_choices_are_those_of_the_library(case: str, tmp_path: Path) -> None:
    """Each choice behind the text, with the special tokens; one logit each; by hand from lists."""
    transformers = pytest.importorskip("transformers")
    theirs = made(case)
    theirs.save_pretrained(tmp_path)
    kept = library.load_model(tmp_path)
    causal = case == "gpt2"
    form = {"text_format": "gpt", "special_ids": (40, 41, 42), "pooling": "last"}
    if not causal:
        form = {"text_format": "bert", "special_ids": (40, 41), "pooling": "cls"}
    given = {"method": "head", "unit": "choice", "n_class": 3, "n_texts": 2, "task": "t.csv"}
    of = RunConfig(**kept.config.model_dump() | form | given)
    ours = Classifier(kept.transformer, of).eval()
    assert sum(one.numel() for one in ours.trained.values()) == sizes.finetuned(of).trained == 33
    if causal:
        whole = transformers.GPT2DoubleHeadsModel(theirs.config).eval()
        whole.transformer.load_state_dict(theirs.transformer.state_dict())
        head = whole.multiple_choice_head.summary
    else:
        whole = transformers.BertForMultipleChoice(theirs.config).eval()
        whole.bert.load_state_dict(theirs.bert.state_dict(), strict=False)
        whole.bert.pooler, head = First(), whole.classifier
    with torch.no_grad():
        ours.classifier.weight[0].copy_(head.weight)
        assert ours.classifier.bias is not None
        ours.classifier.bias[0].copy_(head.bias)
    texts = [[1, 2, 3], [4]]
    others = [[[5], [6, 7, 8]], [[9, 10], [11]], [[12, 13, 14, 15], [16, 17]]]  # by choice
    a, b, c = (40, 41, 42) if causal else (40, 41, 41)
    rows = [[[a, *text, b, *column[k], c] for column in others] for k, text in enumerate(texts)]
    longest = max(len(row) for of_text in rows for row in of_text)
    ids = torch.tensor([[row + [0] * (longest - len(row)) for row in one] for one in rows])
    lengths = torch.tensor([[len(row) for row in one] for one in rows])
    inputs, n = written(of, texts, *others)
    asked = Passages(inputs, np.array([2, 0]), np.array([True, True]), n)
    with torch.inference_mode():
        if causal:
            expected = whole(input_ids=ids, mc_token_ids=lengths - 1).mc_logits
        else:
            mask = (torch.arange(longest) < lengths[..., None]).long()
            expected = whole(input_ids=ids, attention_mask=mask).logits
        found = ours(*asked.padded(np.array([0, 1])))
        alone = ours(*asked.padded(np.array([1])))
    assert found.shape == (2, 3) and expected.std() > 0.01
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(alone, expected[1:], atol=1e-5, rtol=1e-5)


# -- studies ---------------------------------------------------------------------------------------

GPT = 'text_format = "gpt"\nfinetune_lr = 1e-2'


def test_choices_are_learnt(tmp_path: Path) -> None:
    folder, db = folder_of(tmp_path), tmp_path / "ablate.db"
    table(folder / "task.csv", choices(), COLUMNS)
    made = planned(folder, 'method = ["scratch", "head"]', finetune=GPT, steps=60)
    assert any("72 texts to train on, 18 held out" in line for line in made.about)
    config = made.cells[0].config
    assert (config.unit, config.n_class, sizes.batch(config)) == ("choice", 3, 24)
    outcome, said = train(made, db)
    assert outcome.exit_code == 0, said
    with sqlite3.connect(db) as connection:
        found: dict[str, float] = dict(
            connection.execute(
                "SELECT name, value FROM runs JOIN final ON run_id = run WHERE method = 'scratch'"
            ).fetchall()
        )
    assert found["task_accuracy"] > 0.9 and found["task_loss"] < 0.4
    assert found["task_chance"] == pytest.approx(1 / 3)


def test_micro_batches_of_choices_train_as_a_whole_batch_does() -> None:
    of = config(
        method="full",
        text_format="gpt",
        special_ids=(-1, -1, -1),
        unit="choice",
        n_texts=2,
        finetune_steps=4,
        finetune_batch=8,
    )
    generator = torch.Generator().manual_seed(0)
    columns = torch.randint(32, (4, 40, 3), generator=generator).tolist()
    inputs, lengths = written(of, *columns)
    asked = Passages(inputs, np.arange(40) % 3, np.arange(40) < 32, lengths)
    curves = []
    for micro_batch in (0, 7):  # of which two examples with three choices fit
        events = Events()
        run = Run("finetune", of.model_dump(mode="json", exclude={"seed"}), of.seed)
        job = Job((run,), Evaluation(points=2), micro_batch=micro_batch)
        parts = Parts(Step([of], text(), "cpu"), asked, None)
        training = Finetuning(parts, job, Context("cpu", [events]), 0.0)
        assert training.at_once == (2 if micro_batch else 8)
        training.run()
        curves.append(list(events.series("train_loss").values()))
    assert len(curves[0]) == 4 and curves[1] == pytest.approx(curves[0])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({"finetune": ""}, "text_format = 'plain' writes one text.*or choices; use"),
    "both orders": (
        {"finetune": 'text_format = "gpt-both-orders"'},
        "text_format = 'gpt-both-orders': a text stands before its choices; use .*'gpt' or 'bert'",
    ),
    "a learner": (
        {"factors": 'method = ["full", "svm"]', "finetune": GPT},
        "method = 'svm' learns classes of texts.*has choices",
    ),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=list(REFUSED))
def test_what_cannot_choose_is_refused(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    table(folder / "task.csv", choices(), COLUMNS)
    factors = given.get("factors", 'method = ["full", "head"]')
    with refused(folder / "tuned.toml", said):
        planned(folder, factors, finetune=given["finetune"])
