"""Tasks of words: which token carries the class of a word, what is held out, and the scores."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from finetune_study import BASE, folder_of, planned, refused, table, train

from ablate.config import RunConfig
from ablate.data.tasks import scores
from ablate.data.words import tagged, tags_of
from ablate.errors import AblateError
from ablate.model.finetuned import Classifier
from ablate.model.transformer import model_of
from ablate.text import corpora, tasks, tokenizers
from ablate.text.labels import FITTED, HELD_OUT, VALIDATED
from ablate.text.tokens import of


def test_the_first_token_of_a_word_carries_its_class_as_in_berts_tagging(tmp_path: Path) -> None:
    """The reference is `word_ids` of transformers: the first token of each word."""
    from transformers import BertTokenizerFast

    vocabulary = ["[UNK]", "the", "cat", "##s", "##ter", "mon", "ran", "##ning", "run"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary))
    library = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    words = ["ran", "the", "cats", "running", "monster", "ran"]
    read = library(words, is_split_into_words=True, add_special_tokens=False)
    places = read.word_ids()
    library.save_pretrained(tmp_path)
    info = tokenizers.describe(
        str(tmp_path / "tokenizer.json"), corpora.find("austen", Path()), tmp_path
    )
    spelling = tokenizers.open(info.location, info.hash, iter(()), 0).spelling
    classes = {"cats": 0, "running": 1, "monster": 2}
    for last in (False, True):
        found = tags_of(read["input_ids"], spelling, classes, last)
        expected = [-1] * len(places)
        for number, word in enumerate(words):
            of_word = [at for at, one in enumerate(places) if one == number]
            if word in classes:
                expected[of_word[-1 if last else 0]] = classes[word]
        assert found == expected and max(expected) == 2


def test_letter_case_apostrophes_and_edges_of_a_passage() -> None:
    spelling = [bytes([value]) for value in range(256)]
    text = b"do Don't do, DO do"
    found = tags_of(list(text), spelling, {"do": 0, "don't": 1, "don": 2}, last=True)
    assert [(at, one) for at, one in enumerate(found) if one >= 0] == [(7, 1), (10, 0), (14, 0)]


def test_words_to_train_on_and_held_out_words_are_in_different_text_and_differ() -> None:
    found = corpora.find("austen", Path())
    info = tokenizers.describe("byte", found, Path())
    tokens = of(found, info)
    words = tasks.syllables()
    given = {"n_ctx": 64, "batch_tokens": 64, "method": "full", "unit": "word", "n_class": 4}
    asked = tagged(RunConfig(**given), tokens, words)
    assert asked.tags is not None
    seen: dict[bool, set[str]] = {True: set(), False: set()}
    for tokens_of, tags, fitted in zip(asked.inputs, asked.tags, asked.fitted, strict=True):
        text = bytes(tokens_of.tolist()).decode(errors="replace").lower()
        for at in np.flatnonzero(tags >= 0):  # the last letter of each word, in a causal model
            word = re.findall(r"[a-z']+$", text[: at + 1])[0].strip("'")
            number, side = words.words[word]
            assert number == tags[at] and side == (FITTED if fitted else HELD_OUT), word
            seen[bool(fitted)].add(word)
    assert len(seen[True]) > 300 and len(seen[False]) > 30 and not seen[True] & seen[False]
    rare = replace(words, words={"the": (0, FITTED), "xyz": (1, HELD_OUT)})
    with pytest.raises(AblateError, match="in one of the 100 passages of the held-out part"):
        tagged(RunConfig(**given, task="t.csv"), tokens, rare)


def test_syllables_are_the_vowels_of_the_pronunciation() -> None:
    words = tasks.syllables()
    by_hand = {"cat": "1", "table": "2", "elephant": "3", "university": "4 or more"}
    assert {word: words.names[words.words[word][0]] for word in by_hand} == by_hand
    share = words.count(HELD_OUT) / len(words.words)
    assert 0.19 < share < 0.21 and not words.count(VALIDATED)


def test_a_word_list_says_what_is_held_out(tmp_path: Path) -> None:
    rows = [(f"w{k}", "ab"[k % 2]) for k in range(40)]
    twice = [*rows, ("W3", "a"), ("W5", "b")]
    found = tasks.word_list(table(tmp_path / "t.csv", twice, ("word", "label")))
    assert "w3" not in found.words and "w5" in found.words and found.n_contradictory == 1
    assert found.count(HELD_OUT) == 7, "a fifth of 20 and of 19 words"
    fewer = tasks.word_list(table(tmp_path / "u.csv", rows[::-1], ("word", "label")))
    assert {w: s for w, s in found.words.items() if w[0] == "w" and s[0] == 0} == {
        w: s for w, s in fewer.words.items() if s[0] == 0
    }, "the order of rows and words of other classes do not matter"
    split = [(*row, ("train", "val", "test")[k // 2 % 3]) for k, row in enumerate(rows)]
    found = tasks.word_list(table(tmp_path / "s.csv", split, ("word", "label", "split")))
    assert (found.count(FITTED), found.count(VALIDATED), found.count(HELD_OUT)) == (14, 14, 12)


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_is_that_of_scikit_learn(seed: int) -> None:
    f1_score = pytest.importorskip("sklearn.metrics").f1_score
    rng = np.random.default_rng(seed)
    truth, predicted = rng.integers(0, 3 + seed, 40), rng.integers(0, 6, 40)
    found = scores(truth, predicted)
    assert found["f1"] == pytest.approx(f1_score(truth, predicted, average="macro"))
    assert found["accuracy"] == (truth == predicted).mean()


def test_a_classifier_of_words_reads_the_hidden_state_of_each_token() -> None:
    given = {"d_model": 16, "n_layer": 1, "n_head": 2, "n_ctx": 12, "batch_tokens": 24}
    of_words = RunConfig(**given, method="head", unit="word", n_class=3)
    model = model_of(of_words)
    model.initialise([0])
    made = Classifier(model, of_words)
    with torch.no_grad():
        made.classifier.weight.normal_()
    tokens = torch.arange(20).reshape(2, 10)
    hidden = model.features(tokens[None])[0]
    expected = hidden @ made.classifier.weight[0].T + made.classifier.bias[0]  # type: ignore[index]
    torch.testing.assert_close(made(tokens, torch.tensor([10, 10])), expected)


LETTERS = [(f"{a}{b}{c}", "vowel" if a in "aeu" else "other")
           for a in "abcdefuvw" for b in "abcdef" for c in "uvw"]  # fmt: skip


def folder_of_words(path: Path) -> Path:
    """A corpus of three-letter words, whose first letter decides their class."""
    folder_of(path)
    rng = np.random.default_rng(0)
    words = [word for word, _ in LETTERS]
    documents = (" ".join(rng.choice(words, 80)) for _ in range(60))
    (path / "corpus.txt").write_text("\n\n\n".join(documents))
    table(path / "task.csv", LETTERS, ("word", "label"))
    return path


def test_classes_of_unseen_words_are_learnt(tmp_path: Path) -> None:
    folder, db = folder_of_words(tmp_path), tmp_path / "ablate.db"
    lr = "finetune_lr = 1e-2"
    made = planned(folder, 'method = ["scratch", "full"]', steps=200, metric="task_f1", finetune=lr)
    assert made.about[-2:] == (
        "Task task.csv: 131 words to train on, 31 held out. By class (to train on + held out):"
        " 'other' 87 + 21 and 'vowel' 44 + 10",
        "Of the words of task task.csv, 131 of 131 to train on are in the training part of corpus"
        " 'corpus', and 31 of 31 held out are in its held-out part",
    )
    outcome, said = train(made, db)
    assert outcome.exit_code == 0, said
    with sqlite3.connect(db) as connection:
        found: dict[str, float] = dict(
            connection.execute(
                "SELECT name, value FROM runs JOIN final ON run_id = run WHERE method = 'full'"
            ).fetchall()
        )
    assert found["task_accuracy"] > 0.9 > found["task_chance"] + 0.1
    assert found["task_f1"] > 0.9 and found["task_loss"] < 0.4


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "pooling": (
        {"finetune": 'pooling = "last"'},
        "pooling = 'last' has no effect: task 'task.csv' labels words",
    ),
    "format": ({"finetune": 'text_format = "gpt"'}, "'gpt': the words of running text"),
    "one label": ({"rows": [(f"w{k}", "a") for k in range(20)]}, "all words have the label 'a'"),
    "rare": ({"rows": [*LETTERS, ("odd", "rare")]}, "'rare' has 1 word, and each label needs"),
    "too many": ({"finetune": "labels = 501"}, "labels = 501: the task has 500 texts"),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=list(REFUSED))
def test_what_does_not_fit_is_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    given = dict(given)
    folder = folder_of_words(tmp_path)
    table(folder / "task.csv", given.pop("rows", LETTERS), ("word", "label"))
    with pytest.raises(AblateError, match=said):
        planned(folder, 'method = ["full", "head"]', base=BASE, **given)


def test_words_that_are_not_in_the_text_are_counted_or_refused(tmp_path: Path) -> None:
    """Three of the words to train on, two held-out ones; letter case does not matter."""
    folder = folder_of_words(tmp_path)
    corpus = folder / "corpus.txt"
    corpus.write_text(corpus.read_text().title())
    words = tasks.word_list(folder / "task.csv").words
    sides = {side: [word for word, (_, its) in words.items() if its == side]
             for side in (FITTED, HELD_OUT)}  # fmt: skip

    def listed(fitted: int, tested: int) -> None:
        kept = {*sides[FITTED][:fitted], *sides[HELD_OUT][:tested]}
        rows = [
            (word.upper() if word in kept else f"{word}xyz", label, "train" if side else "test")
            for word, label in LETTERS
            for side in [words[word][1] == FITTED]
        ]
        table(folder / "task.csv", rows, ("word", "label", "split"))

    listed(3, 2)
    about = planned(folder, 'method = ["scratch", "full"]').about
    warnings = [line for line in about if line.startswith("Warning: task task.csv: ")]
    assert any("3 of 131 to train on" in line and "2 of 31 held out" in line for line in about)
    assert any("3 words of corpus 'corpus' to train on are few" in line for line in warnings)
    assert any("2 held-out words are few" in line for line in warnings)
    for fitted, tested, said in (
        (0, 2, "none of its 131 words to train on stands in the training part of corpus 'corpus'"),
        (3, 0, "none of its 31 words that are held out stands in the held-out part"),
    ):
        listed(fitted, tested)
        with refused(folder / "tuned.toml", f"task = 'task.csv': {said}"):
            planned(folder, 'method = ["scratch", "full"]')
    other = [(word, "vowel" if word in sides[FITTED][:9] else "other") for word, _ in LETTERS]
    absent = [(f"{word}xyz", "none") for word, _ in LETTERS[:9]]
    table(folder / "task.csv", [*other, *absent], ("word", "label"))
    about = planned(folder, 'method = ["scratch", "full"]').about
    assert any("no word to train on is in corpus 'corpus' of 'none'" in line for line in about)


def test_words_of_the_shipped_list_need_an_english_corpus(tmp_path: Path) -> None:
    folder = folder_of_words(tmp_path)
    (folder / "corpus.txt").write_text("\n\n\n".join("été où ça déjà " * 20 for _ in range(20)))
    with pytest.raises(AblateError, match=r"'syllables': none of its 93,\d+ words to train on"):
        planned(folder, 'method = ["scratch", "full"]', task="syllables")
