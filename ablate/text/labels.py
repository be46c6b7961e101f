"""The classes that linear probes and fine-tuned models predict: of shipped documents, and of a
study's own texts.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ablate.errors import AblateError, unknown
from ablate.evaluation import LABELLED
from ablate.text import readers, sources

COLUMNS = ("text", "label")
SIDES = ("split", "document")  # columns that a task may have, which say what is held out
TESTED = 5  # one text in so many of each class is tested, the others are fitted on
LEAST = 10  # texts of a class
EACH = 200  # most passages of a class of shipped documents to fit on, and to test on


@dataclass(frozen=True)
class Labels:
    """Classes of a corpus's documents: class i is documents `firsts[i]` up to `firsts[i + 1]`."""

    corpus: str
    names: tuple[str, ...]
    firsts: tuple[int, ...]

    def of(self, documents: np.ndarray) -> np.ndarray:
        """Return the class of each document, by its number in the corpus."""
        return np.searchsorted(self.firsts, documents, side="right") - 1


LABELS = {
    "novel_accuracy": Labels(
        "austen",
        (
            "Emma",
            "Mansfield Park",
            "Northanger Abbey",
            "Persuasion",
            "Pride and Prejudice",
            "Sense and Sensibility",
        ),
        (0, 1, 2, 3, 4, 5),
    ),
    # From Lincoln's first message of December 1861, Wilson's of December 1913 (from whom on they
    # were spoken again), and Truman's of January 1946.
    "era_accuracy": Labels(
        "sotu", ("1790–1860", "1861–1912", "1913–1945", "1946–2026"), (0, 72, 124, 157)
    ),
}

# task of a shipped corpus → the metric whose passages and classes it has
TASKS = {metric.removesuffix("_accuracy"): metric for metric in LABELS}


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


def find(metric: str) -> Labels:
    """Return the classes of a downstream metric.

    Raises:
        AblateError: there is no such metric.
    """
    if metric not in LABELS:
        raise unknown("downstream metric", metric, [*LABELS, LABELLED])
    return LABELS[metric]


@dataclass(frozen=True)
class LabelledTexts:
    """The texts of a study's own probe or task.

    Attributes:
        hash: SHA-256 of the file.
        names: The classes, in alphabetical order.
        texts: The texts, in the order of the file; no pair of text and label occurs twice.
        classes: The class of each text, [N] int.
        fitted: Whether the probe is fitted, or a model trained, on a text, which is else held out;
            [N] bool.
        validation: Whether a held-out text is for the decisions of [tune], where others are tested;
            [N] bool.
        n_left_out: Rows that are not used, because their text is among those held out.
        n_contradictory: Number of different texts in the file that have more than one label.
    """

    hash: str
    names: tuple[str, ...]
    texts: tuple[str, ...]
    classes: np.ndarray
    fitted: np.ndarray
    validation: np.ndarray
    n_left_out: int
    n_contradictory: int

    @property
    def counts(self) -> np.ndarray:
        """Texts of each class to test on, and to fit on; [2, classes]."""
        return np.stack(
            [
                np.bincount(self.classes[side], minlength=len(self.names))
                for side in (~self.fitted & ~self.validation, self.fitted)
            ]
        )

    @property
    def chance(self) -> float:
        """Share of the tested texts that have the label which is commonest among the fitted."""
        tested, fitted = self.counts
        return float(tested[fitted.argmax()] / tested.sum())


def read(path: Path) -> LabelledTexts:
    """Return the texts and labels of a CSV file, or of a TSV file by its name.

    Rows that are equal count once. The fifth of each class with the lowest SHA-256 of the text is
    tested: that depends on the class's texts alone, not on their order or on other classes. A text
    with several labels that one of them tests is not fitted with another.

    Raises:
        AblateError: there is no such file, it is not a table with the columns text and label, or
            its classes are too few or too small.
    """
    content = _content(path)
    rows = _pairs(path, content)
    sizes = Counter(label for _, label in rows)
    names = sorted(sizes)
    if len(names) < 2:
        found = f"all texts have the label {names[0]!r:.40}" if names else "it has no rows"
        raise AblateError(f"{path}: {found}; a probe needs two labels or more")
    rarest = min(names, key=lambda name: sizes[name])
    if sizes[rarest] < LEAST:
        raise AblateError(
            f"{path}: label {rarest!r:.40} has {sizes[rarest]} different texts; a probe needs"
            f" {LEAST} or more of each of its {len(names)} labels"
        )
    texts, labels = zip(*rows, strict=True)
    classes = np.searchsorted(np.array(names, object), np.array(labels, object))
    digests = np.array([hashlib.sha256(text.encode()).hexdigest() for text in texts])
    sides = np.full(len(texts), _FITTED)
    for number in range(len(names)):
        of_class = np.flatnonzero(classes == number)
        ranked = of_class[np.argsort(digests[of_class], kind="stable")]
        sides[ranked[: len(ranked) // TESTED]] = _TESTED
    return _labelled(path, content, names, texts, classes, sides)


_TESTED, _VALIDATED, _FITTED = range(3)  # the side of a text, the first of which has precedence


def _labelled(
    path: Path,
    content: bytes,
    names: Sequence[str],
    texts: Sequence[str],
    classes: np.ndarray,
    sides: np.ndarray,
) -> LabelledTexts:
    """Return labelled texts, each on one side: a text of two sides keeps the rows of the first.

    Texts that differ in blanks alone count as one here. Equal pairs of text and label count once.

    Args:
        path: The file.
        content: What it holds.
        names: The classes.
        texts: The texts, N.
        classes: The class of each text, [N] int.
        sides: The side of each row, [N] int.

    Raises:
        AblateError: A class has no text on one side.
    """
    first: dict[str, int] = {}
    plain = [" ".join(text.split()) for text in texts]
    for text, side in zip(plain, sides.tolist(), strict=True):
        first[text] = min(side, first.get(text, side))
    kept = np.array([side == first[text] for text, side in zip(plain, sides, strict=True)], bool)
    n_left_out = int((~kept).sum())
    pairs, seen = list(zip(texts, classes.tolist(), strict=True)), set[tuple[str, int]]()
    for row, pair in enumerate(pairs):
        kept[row] &= pair not in seen
        seen |= {pair} if kept[row] else set()
    found = LabelledTexts(
        hashlib.sha256(content).hexdigest(),
        tuple(names),
        tuple(text for text, keep in zip(texts, kept, strict=True) if keep),
        classes[kept],
        sides[kept] == _FITTED,
        sides[kept] == _VALIDATED,
        n_left_out,
        sum(n > 1 for n in Counter(text for text, _ in dict.fromkeys(pairs)).values()),
    )
    for side, there in zip(("hold out", "train on"), found.counts, strict=True):
        if not there.all():
            least = int(there.argmin())
            number = int((classes == least).sum())
            raise AblateError(
                f"{path}: label {names[least]!r:.40} has {number} text{'s'[: number != 1]}, and"
                f" none to {side}; each label needs texts to train on and texts to hold out"
                + (", and a text that is held out is not trained on" if found.n_left_out else "")
            )
    return found


def task(path: Path) -> LabelledTexts:
    """Return the texts and labels of the file of a task, and which of them are trained on.

    The file is one as `read` takes. A column `split` says which texts are held out; those of a
    validation part are for [tune], where there are others. Else a fifth of the documents of each
    class are held out: those with the lowest SHA-256 of the name that a column `document` has, or
    of the text, which is then a document by itself. A text that is held out is not trained on.

    Raises:
        AblateError: See `read`; or a class has no text on one side.
    """
    content = _content(path)
    rows = _rows(path, content)
    names = sorted({row.label for row in rows})
    classes = np.array([names.index(row.label) for row in rows], int)
    if len(names) < 2:
        found = f"all texts have the label {names[0]!r:.40}" if names else "it has no rows"
        raise AblateError(f"{path}: {found}; a task needs two labels or more")
    if any(row.split for row in rows):
        sides = np.array([_side(path, row.split) for row in rows])
        if not (sides == _TESTED).any():
            sides[sides == _VALIDATED] = _TESTED
    else:
        held_out = _held_out([row.document or row.text for row in rows], classes)
        sides = np.where(held_out, _TESTED, _FITTED)
    return _labelled(path, content, names, [row.text for row in rows], classes, sides)


def _side(path: Path, split: str) -> int:
    """Return the side of a row of this `split`.

    Raises:
        AblateError: Its word says none.
    """
    if split.lower() not in sources.PART_OF:
        words = ", ".join(sources.PART_OF)
        raise AblateError(f"{path}: split = {split!r:.40}; choices: {words}")
    return {"train": _FITTED, "validation": _VALIDATED}.get(sources.PART_OF[split.lower()], _TESTED)


def _held_out(documents: Sequence[str], classes: np.ndarray) -> np.ndarray:
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


def _content(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise AblateError(f"{path}: it is not a file")
    try:
        return path.read_bytes()
    except OSError as error:
        reason = "there is no such file" if not path.exists() else str(error.strerror).lower()
        raise AblateError(f"{path}: {reason}") from None


def _pairs(path: Path, content: bytes) -> list[tuple[str, str]]:
    """Return different pairs of text and label, in order."""
    return list(dict.fromkeys((row.text, row.label) for row in _rows(path, content)))


class _Row(NamedTuple):
    """A row; `split` and `document` are "" where the file has no such column."""

    text: str
    label: str
    split: str
    document: str


def _rows(path: Path, content: bytes) -> list[_Row]:
    """Return the different rows, in order."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise AblateError(f"{path} is not UTF-8 text: convert it") from None
    # line ends as they are: a quoted text may have its own
    rows = readers.csv_rows(path, lambda: io.StringIO(text, newline=""), path.suffix == ".tsv")
    _, columns = next(rows, (0, []))
    for name in COLUMNS:
        if columns.count(name) != 1:
            found = ", ".join(map(repr, columns)) or "nothing"
            raise AblateError(
                f"{path}: the first line is to name the columns text and label, once each; it has"
                f" {found:.200}"
            )
    found_rows: dict[_Row, None] = {}
    for number, row in rows:
        values = {name: row[columns.index(name)] for name in (*COLUMNS, *SIDES) if name in columns}
        passage, label = (values[name] for name in COLUMNS)
        if not passage.strip() or not label.strip():
            missing = "label" if passage.strip() else "text"
            raise AblateError(f"{path}, line {number}: there is no {missing}")
        one = _Row(passage, label.strip(), *(values.get(name, "").strip() for name in SIDES))
        found_rows[one] = None
    return list(found_rows)
