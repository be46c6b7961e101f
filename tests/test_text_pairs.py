"""Tasks of pairs of texts: how they are written for a model, read and held out."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finetune_study import BASE, folder_of, planned, table, train
from tokenizers import Tokenizer, models, pre_tokenizers
from train_helpers import config as run_config

from ablate.config import RunConfig
from ablate.data.passages import Passages, written
from ablate.data.tasks import task
from ablate.errors import AblateError
from ablate.model.finetuned import Classifier
from ablate.model.transformer import model_of
from ablate.text import corpora, sources, tasks, tokenizers
from ablate.text.tokens import of

PAIRED = ("text", "text_pair", "label")


def config(**fields: Any) -> RunConfig:
    given = {"d_model": 16, "n_layer": 2, "n_head": 2, "n_ctx": 12, "batch_tokens": 24}
    return RunConfig(**given | {"method": "full", "n_vocab": 20, "n_class": 2} | fields)


GPT = {"text_format": "gpt", "special_ids": (-1, -1, -1)}


# -- what a model reads ----------------------------------------------------------------------------


def test_a_pair_stands_between_start_delimiter_and_extract() -> None:
    of = config(n_texts=2, **GPT)  # 20, 21 and 22 are new
    form = of.part("text_format")
    assert form.write([1, 2], [3], of) == [20, 1, 2, 21, 3, 22]
    assert form.write([1, 2], [3], of, swapped=True) == [20, 3, 21, 1, 2, 22]
    single = config(**GPT)
    assert single.part("text_format").write([1, 2], None, single) == [20, 1, 2, 22]
    known = config(text_format="gpt", special_ids=(-1, 7, -1), n_texts=2)
    assert known.part("text_format").write([1], [2], known) == [20, 1, 7, 2, 21]


@pytest.mark.parametrize(("n_a", "n_b"), [(2, 3), (9, 2), (2, 9), (9, 9), (7, 8), (1, 8)])
def test_berts_format_is_that_of_transformers(tmp_path: Path, n_a: int, n_b: int) -> None:
    """Also which tokens are left out of a pair that is too long."""
    from transformers import BertTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{k}" for k in range(15))]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    reference = BertTokenizerFast(str(tmp_path / "vocab.txt"), do_lower_case=False)
    a, b = (" ".join(f"w{(k + first) % 15}" for k in range(n)) for n, first in ((n_a, 0), (n_b, 7)))
    expected = reference(a, b, max_length=12, truncation="longest_first")["input_ids"]
    reference.save_pretrained(tmp_path)
    path = str(tmp_path / "tokenizer.json")
    ids = tuple(tokenizers.special(path, [name]) for name in ("[CLS]", "[SEP]"))
    assert ids == (2, 3)
    given = {"objective": "masked", "text_format": "bert", "special_ids": ids, "n_texts": 2}
    of = config(**given)
    read = [reference(text, add_special_tokens=False)["input_ids"] for text in (a, b)]
    found = of.part("text_format").write(*read, of)
    # of an odd number of tokens either text may have the odd one
    assert len(found) == len(expected) and found[0] == 2 and found[-1] == 3
    if n_a + n_b <= 9 or min(n_a, n_b) <= 4:
        assert found == expected
    else:
        lengths = [[row[1:].index(3), len(row)] for row in (found, expected)]
        assert abs(lengths[0][0] - lengths[1][0]) <= 1


def test_new_tokens_are_rows_of_a_larger_embedding() -> None:
    """The reference is a model with a larger vocabulary, whose weights are the same."""
    of = config(n_texts=2, **GPT)
    model = model_of(of)
    model.initialise([of.weights_seed])
    made = Classifier(model, of).eval()
    larger = model_of(of.model_copy(update={"n_vocab": 23}))
    weights = dict(model.state_dict())
    added = weights.pop("embedding.added.weight")
    weights["embedding.weight"] = torch.cat([weights.pop("embedding.inner.weight"), added], 1)
    weights["unembedding.weight"] = torch.zeros(1, 23, 16)
    larger.load_state_dict(weights)
    inputs, lengths = written(of, [[1, 2], [4, 5, 6]], [[3], [7, 8]])
    last = larger.features(inputs.long()[None])[0, torch.arange(2), torch.tensor(lengths) - 1]
    found = made.pooled(inputs.long(), torch.tensor(lengths))
    torch.testing.assert_close(found, last)
    assert len({tuple(row) for row in added[0].tolist()}) == 3 and added.std() > 0.01
    again = Classifier(model_of(of), of).model.state_dict()["embedding.added.weight"]
    assert torch.equal(again, added), "by seed and name"


def test_both_orders_are_read_and_their_features_added() -> None:
    both = config(n_texts=2, text_format="gpt-both-orders", special_ids=(-1, -1, -1))
    one = config(n_texts=2, **GPT)
    made = []
    for order in (both, one):
        model = model_of(order)
        model.initialise([0])
        made.append(Classifier(model, order).eval())
    firsts, seconds = [[1, 2], [4, 5, 6]], [[3], [7, 8]]
    fitted = np.array([True, False])
    inputs, lengths = written(both, firsts, seconds)
    asked = Passages(inputs, np.array([0, 1]), fitted, lengths)
    found = made[0].pooled(*asked.padded(np.array([0, 1])))
    parts = [
        made[1].pooled(tokens.long(), torch.tensor(n))
        for tokens, n in (written(one, firsts, seconds), written(one, seconds, firsts))
    ]
    torch.testing.assert_close(found, parts[0] + parts[1])
    inputs, lengths = written(both, seconds, firsts)
    asked = Passages(inputs, np.array([0, 1]), fitted, lengths)
    torch.testing.assert_close(made[0].pooled(*asked.padded(np.array([0, 1]))), found)


# -- tables ----------------------------------------------------------------------------------------


def pairs(n: int = 60) -> list[tuple[str, str, str]]:
    return [(f"first {k}", f"second {k % 7}", "ab"[k % 2]) for k in range(n)]


def test_pairs_are_read_alike_from_tables_and_lines_of_json(tmp_path: Path) -> None:
    csv = tasks.task(table(tmp_path / "t.csv", pairs(), PAIRED))
    rows = [dict(zip(PAIRED, row, strict=True)) for row in pairs()]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tsv = "\n".join("\t".join(row) for row in [PAIRED, *pairs()])
    (tmp_path / "t.tsv").write_text(tsv)
    for name in ("t.jsonl", "t.tsv"):
        found = tasks.task(tmp_path / name)
        assert (found.texts, found.seconds) == (csv.texts, csv.seconds)
        assert found.fitted.tolist() == csv.fitted.tolist()
    assert csv.seconds == tuple(row[1] for row in pairs())


def test_a_pair_that_is_held_out_is_not_trained_on(tmp_path: Path) -> None:
    rows = [(*row, part) for row in pairs() for part in ("train", "test")[: 1 + len(row[0]) % 2]]
    found = tasks.task(table(tmp_path / "t.csv", rows, (*PAIRED, "split")))
    sides: dict[tuple[str, str], set[bool]] = {}
    for text, second, side in zip(found.texts, found.seconds, found.fitted.tolist(), strict=True):
        sides.setdefault((text, second), set()).add(side)
    assert all(len(side) == 1 for side in sides.values()) and len(sides) == 60


def test_pairs_that_share_their_first_text_are_on_one_side(tmp_path: Path) -> None:
    rows = [(f"premise {k // 3}", f"hypothesis {k}", "abc"[k % 3]) for k in range(90)]
    found = tasks.task(table(tmp_path / "t.csv", rows, PAIRED))
    held_out = {text for text, fit in zip(found.texts, found.fitted, strict=True) if not fit}
    fitted = {text for text, fit in zip(found.texts, found.fitted, strict=True) if fit}
    assert held_out and not held_out & fitted


PAIR = {"finetune": 'text_format = "gpt"'}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, "text_format = 'plain' writes one text.*'gpt', 'gpt-both-orders' or 'bert'"),
    "bert without a mask": (
        {"finetune": 'text_format = "bert"'},
        "pooling = 'cls' needs a masked model",
    ),
    "both orders of one text": (
        {"finetune": 'text_format = "gpt-both-orders"', "columns": ("text", "document", "label")},
        "'gpt-both-orders' writes pairs",
    ),
    "no second text": ({**PAIR, "rows": [*pairs(), ("x", " ", "a")]}, "there is no text_pair"),
    "no room": ({**PAIR, "base": BASE.replace("n_ctx = 16", "n_ctx = 4")}, "n_ctx = 4: .*needs 5"),
    "set by hand": ({"finetune": "n_texts = 2"}, "unknown key of .finetune. 'n_texts'"),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=list(REFUSED))
def test_what_does_not_fit_is_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    given = dict(given)
    folder = folder_of(tmp_path)
    rows = given.pop("rows", pairs())
    table(folder / "task.csv", rows, given.pop("columns", PAIRED))
    with pytest.raises(AblateError, match=said) as error:
        planned(folder, 'method = ["full", "head"]', **given)
    assert "\n" not in str(error.value)


# -- studies ---------------------------------------------------------------------------------------


def test_pairs_are_trained_on_and_the_pre_training_is_measured_as_before(tmp_path: Path) -> None:
    folder, db = folder_of(tmp_path), tmp_path / "ablate.db"
    table(folder / "task.csv", pairs(), PAIRED)
    base = BASE + 'tie_embeddings = "tied"'
    made = planned(
        folder, 'method = ["head", "full"]\ntext_format = ["gpt", "gpt-both-orders"]', base=base
    )
    assert {cell.config.pooling for cell in made.cells} == {"last"}
    outcome, said = train(made, db)
    assert outcome.exit_code == 0, said
    with sqlite3.connect(db) as connection:
        found = connection.execute(
            "SELECT method, value FROM runs JOIN final ON run_id = run WHERE name = 'forgetting'"
        ).fetchall()
    assert sorted(found)[2:] == [("head", 0), ("head", 0)]
    assert all(value != 0 for method, value in found if method == "full")


@pytest.mark.parametrize("name", ["same-novel", "same-speech"])
def test_passages_of_a_pair_stand_in_one_document_or_in_two(name: str) -> None:
    """Found again in the text of the documents."""
    corpus = tasks.TASKS[name].corpus
    found = corpora.find(corpus, Path())
    info = tokenizers.describe("byte", found, Path())
    of_run = run_config(n_ctx=96, batch_tokens=96).model_copy(
        update={"corpus_hash": found.hash, "tokenizer": "byte", "tokenizer_hash": info.hash}
    )
    fields = of_run.model_dump() | GPT | {"method": "full", "n_vocab": 256, "task": name}
    asked = task(
        RunConfig(**fields, n_texts=2, n_class=2), of(found, info), {found.hash: found.location}
    )
    assert len(asked.classes) == 2000 and asked.classes.mean() == 0.5
    assert asked.fitted.sum() == 1000 and asked.classes[asked.fitted].mean() == 0.5
    texts = [b"".join(document.pieces()) for document in sources.at(found.location).documents()]

    def where(passage: bytes) -> set[int]:
        return {number for number, text in enumerate(texts) if passage in text}

    sides: dict[bool, set[int]] = {True: set(), False: set()}
    for row in range(0, len(asked.classes), 37):
        n = asked.lengths[row] if asked.lengths is not None else 0
        tokens = asked.inputs[row, :n].tolist()
        assert (tokens[0], tokens[-1]) == (256, 258)
        cut = tokens.index(257)
        a, b = bytes(tokens[1:cut]), bytes(tokens[cut + 1 : -1])
        assert len(a) == len(b) == 46 and a != b
        assert bool(where(a) & where(b)) is bool(asked.classes[row])
        sides[bool(asked.fitted[row])] |= where(a) | where(b)
    if name == "same-speech":
        assert len(sides[True] & sides[False]) <= 2, "but for phrases that several speeches have"


def test_special_tokens_of_a_tokenizer_are_found(tmp_path: Path) -> None:
    words = {"[UNK]": 0, "a": 1, "</s>": 2, "<s>": 3}
    tokenizer = Tokenizer(models.WordLevel(words, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    path = str(tmp_path / "tokenizer.json")
    assert tokenizers.special(path, ("[CLS]", "<s>")) == 3
    assert tokenizers.special(path, ("[SEP]",)) == tokenizers.special("byte", ("<s>",)) == -1
