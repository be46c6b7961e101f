"""The tasks of fine-tuned models: of shipped corpora, and in files of a user's own."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ablate.errors import AblateError
from ablate.text import corpora, sources
from ablate.text.files import Mended
from ablate.text.labels import (
    EACH,
    FITTED,
    HELD_OUT,
    LABELS,
    TESTED,
    VALIDATED,
    LabelledTexts,
    content_of,
    has_column,
    labelled,
    rows_of,
)

PAIRS = 500  # most pairs of a class of shipped documents to train on, and to test on
PASSAGES = 500  # most passages of running text whose words are tagged; a fifth to test on


WORDS = "word"  # the column of a word list, in place of text


@dataclass(frozen=True)
class Task:
    """A task of a shipped corpus.

    Attributes:
        corpus: Name of the corpus; "" for the corpus of the run.
        names: The classes.
        most: Most texts of a class to train on, and to test on.
        metric: The metric whose passages and classes it has; "" for another task.
        n_texts: Texts of each example.
        unit: What has a label, "text" or "word".
    """

    corpus: str
    names: tuple[str, ...]
    most: int
    metric: str = ""
    n_texts: int = 1
    unit: str = "text"

    @property
    def numbers(self) -> tuple[int, int]:
        """Most examples to train on, and to test on."""
        if self.unit == "word":
            return self.most, self.most // TESTED
        return self.most * len(self.names), self.most * len(self.names)


SAME = ("different", "same")  # classes of two passages, by their documents
TASKS = {
    **{
        metric.removesuffix("_accuracy"): Task(one.corpus, one.names, EACH, metric)
        for metric, one in LABELS.items()
    },
    "syllables": Task("", ("1", "2", "3", "4 or more"), PASSAGES, unit="word"),
    "same-novel": Task("austen", SAME, PAIRS, n_texts=2),
    "same-speech": Task("sotu", SAME, PAIRS, n_texts=2),
}


def check_number(n: int, there: int, n_class: int) -> None:
    """Check a number of labelled texts to train on, 0 for all.

    Args:
        n: The number.
        there: Labelled texts that there are to train on.
        n_class: Their classes.

    Raises:
        AblateError: It is larger than `there`, or smaller than `n_class`.
    """
    if n > there:
        raise AblateError(
            f"labels = {n:,}: the task has {there:,} texts to train on, besides those held out;"
            " give fewer, or 0 for all"
        )
    if 0 < n < n_class:
        raise AblateError(
            f"labels = {n}: the task has {n_class} classes, and each needs one text or more; give"
            f" {n_class} or more"
        )


@dataclass(frozen=True)
class WordList:
    """Words with their classes.

    Attributes:
        hash: SHA-256 of the file; "" for a shipped list.
        names: The classes, in alphabetical order.
        words: Word in lower case → number of its class and its side, one of `FITTED`, `VALIDATED`
            and `HELD_OUT`.
        n_contradictory: Words that are left out, because they have more than one class.
        mended: What was changed as the file was read.
    """

    hash: str
    names: tuple[str, ...]
    words: Mapping[str, tuple[int, int]]
    n_contradictory: int = 0
    mended: tuple[str, ...] = ()

    def count(self, side: int) -> int:
        """Return the number of words on a side."""
        return sum(one == side for _, one in self.words.values())


def word_list(path: Path) -> WordList:
    """Return the words and labels of the file of a task of words.

    A column `split` says which words are held out. Else they are a fifth of the words of each
    class: those with the lowest SHA-256. Letter case does not matter.

    Raises:
        AblateError: It is no such table, or a class has no word on one side.
    """
    content, mended = content_of(path), Mended()
    labels: dict[str, set[str]] = {}
    splits: dict[str, str] = {}
    for row in rows_of(path, mended, WORDS):
        word = row.text.strip().lower()
        labels.setdefault(word, set()).add(row.label)
        splits.setdefault(word, row.split)
    of = {word: its.copy().pop() for word, its in labels.items() if len(its) == 1}
    sides = {}
    if any(splits.values()):
        sides = {word: _side(path, splits[word]) for word in of}
        if HELD_OUT not in sides.values():
            sides = {word: one if one == FITTED else HELD_OUT for word, one in sides.items()}
    n_several = len(labels) - len(of)
    found = _sided(hashlib.sha256(content).hexdigest(), of, sides, n_several, tuple(mended))
    if len(found.names) < 2:
        known = f"all words have the label {found.names[0]!r:.40}" if of else "it has no rows"
        raise AblateError(f"{path}: {known}; a task needs two labels or more")
    for number, name in enumerate(found.names):
        its = [side for one, side in found.words.values() if one == number]
        if not {FITTED, HELD_OUT} <= set(its):
            raise AblateError(
                f"{path}: label {name!r:.40} has {len(its)} word{'s'[: len(its) != 1]}, and each"
                " label needs words to train on and words to hold out"
            )
    return found


@functools.cache
def syllables() -> WordList:
    """Return the words of the shipped dictionary by their number of syllables, up to 4 or more.

    A syllable is a vowel in a word's pronunciation, whose phoneme ends in a digit, its stress.
    """
    corpus = corpora.find("cmudict", Path())
    of: dict[str, str] = {}
    for document in sources.at(corpus.location).documents():
        word, _, phonemes = b"".join(document.pieces()).decode().partition("\t")
        n = sum(one[-1].isdigit() for one in phonemes.split())
        if n and word.isalpha():
            of[word.lower()] = str(n) if n < 4 else "4 or more"
    return _sided("", of, {}, 0)


def _sided(
    hash: str, of: Mapping[str, str], sides: Mapping[str, int], n: int, mended: tuple[str, ...] = ()
) -> WordList:
    """Return a word list; words without a side are on one by their hash.

    Args:
        hash: SHA-256 of the file.
        of: Word → label.
        sides: Word → side, or nothing.
        n: Words that are left out.
        mended: What was changed as the file was read.
    """
    names = sorted(set(of.values()))
    numbers = {name: number for number, name in enumerate(names)}
    classes = np.array([numbers[label] for label in of.values()], int)
    if not sides:
        chosen = held_out(list(of), classes)
        sides = dict(zip(of, np.where(chosen, HELD_OUT, FITTED).tolist(), strict=True))
    words = {word: (numbers[label], sides[word]) for word, label in of.items()}
    return WordList(hash, tuple(names), words, n, mended)


def read(path: Path) -> LabelledTexts | WordList:
    """Return what a file of a task holds: a word list if it has a column `word`, else texts."""
    if has_column(path, WORDS):
        return word_list(path)
    return task(path)


def task(path: Path) -> LabelledTexts:
    """Return the texts and labels of the file of a task, and which of them are trained on.

    The file is one as `read` takes; a column `text_pair` has the second text of each example.
    Columns from `choice_0` on have the texts that an example chooses from, and its label is the
    number of the right one. A column `split` says which texts are held out; those of a validation
    part are for [tune], where there are others. Else a fifth of the documents of each class are
    held out: those with the lowest SHA-256 of the name that a column `document` has, or of the
    text, which is then a document by itself. A text that is held out is not trained on.

    Raises:
        AblateError: See `read`; a class has no text on one side; or a label is no choice.
    """
    content, mended = content_of(path), Mended()
    rows = rows_of(path, mended, choices=True)
    choices = len(rows[0].choices) if rows else 0
    names = [str(k) for k in range(choices)] or sorted({row.label for row in rows})
    if wrong := [row.label for row in rows if row.label not in names]:
        raise AblateError(
            f"{path}: label {wrong[0]!r:.40} is none of its choices, which are numbered from 0 to"
            f" {choices - 1}"
        )
    classes = np.array([names.index(row.label) for row in rows], int)
    if len(names) < 2:
        found = f"all texts have the label {names[0]!r:.40}" if names else "it has no rows"
        raise AblateError(f"{path}: {found}; a task needs two labels or more")
    if any(row.split for row in rows):
        sides = np.array([_side(path, row.split) for row in rows])
        if not (sides == HELD_OUT).any():
            sides[sides == VALIDATED] = HELD_OUT
    else:
        chosen = held_out([row.document or row.text for row in rows], classes)
        sides = np.where(chosen, HELD_OUT, FITTED)
    if choices:
        of_choices = [(row.text, *row.choices) for row in rows]
        return labelled(path, content, names, of_choices, classes, sides, mended, choices=True)
    examples = [(row.text, row.second) for row in rows]
    pairs = any(row.second for row in rows)
    return labelled(path, content, names, examples, classes, sides, mended, pairs=pairs)


def _side(path: Path, split: str) -> int:
    """Return the side of a row of this `split`.

    Raises:
        AblateError: Its word says none.
    """
    if split.lower() not in sources.PART_OF:
        words = ", ".join(sources.PART_OF)
        raise AblateError(f"{path}: split = {split!r:.40}; choices: {words}")
    return {"train": FITTED, "validation": VALIDATED}.get(sources.PART_OF[split.lower()], HELD_OUT)


def held_out(documents: Sequence[str], classes: np.ndarray) -> np.ndarray:
    """Return which texts are held out: those of a fifth of each class's documents, [N] bool.

    A document that has several classes counts as one of its first text's. One of two or more
    documents is held out.

    Args:
        documents: The document of each text.
        classes: The class of each text, [N] int.
    """
    of_document: dict[str, int] = {}
    for document, number in zip(documents, classes.tolist(), strict=True):
        of_document.setdefault(document, number)
    chosen: set[str] = set()
    for number in set(of_document.values()):
        of_class = [one for one, its in of_document.items() if its == number]
        ranked = sorted(of_class, key=lambda one: hashlib.sha256(one.encode()).digest())
        least = 1 if len(ranked) > 1 else 0
        chosen.update(ranked[: max(least, len(ranked) // TESTED)])
    return np.array([document in chosen for document in documents])
