"""The tasks of fine-tuned models: of shipped corpora, and in files of a user's own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ablate.errors import AblateError
from ablate.text import sources
from ablate.text.labels import (
    EACH,
    FITTED,
    HELD_OUT,
    LABELS,
    TESTED,
    VALIDATED,
    LabelledTexts,
    content_of,
    labelled,
    rows_of,
)

PAIRS = 500  # most pairs of a class of shipped documents to train on, and to test on
PASSAGES = 500  # most passages of running text whose words are tagged; a fifth to test on


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


SAME = ("different", "same")  # classes of two passages, by their documents
TASKS = {
    **{
        metric.removesuffix("_accuracy"): Task(one.corpus, one.names, EACH, metric)
        for metric, one in LABELS.items()
    },
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


def task(path: Path) -> LabelledTexts:
    """Return the texts and labels of the file of a task, and which of them are trained on.

    The file is one as `read` takes; a column `text_pair` has the second text of each example. A
    column `split` says which texts are held out; those of a
    validation part are for [tune], where there are others. Else a fifth of the documents of each
    class are held out: those with the lowest SHA-256 of the name that a column `document` has, or
    of the text, which is then a document by itself. A text that is held out is not trained on.

    Raises:
        AblateError: See `read`; or a class has no text on one side.
    """
    content = content_of(path)
    rows = rows_of(path, content)
    names = sorted({row.label for row in rows})
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
    examples = [(row.text, row.second) for row in rows]
    pairs = any(row.second for row in rows)
    return labelled(path, content, names, examples, classes, sides, pairs=pairs)


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
