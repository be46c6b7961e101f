"""The classes that linear probes and fine-tuned models predict: of shipped documents, and of a
study's own texts.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ablate.errors import AblateError, unknown
from ablate.evaluation import LABELLED
from ablate.text import files, readers
from ablate.text.files import Mended
from ablate.text.options import Reading
from ablate.units import listed

COLUMNS = ("text", "label")
PAIR = "text_pair"  # the column of the second text of a pair
CHOICE = re.compile(r"choice_(\d+)")  # a column of the choices after a text, from choice_0 on
SIDES = ("split", "document")  # columns that a task may have, which say what is held out
AS_IT_STANDS = Reading(line_ends="kept")  # a quoted text may have line ends of its own
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


def find(metric: str) -> Labels:
    """Return the classes of a downstream metric.

    Raises:
        AblateError: there is no such metric.
    """
    if metric not in LABELS:
        raise unknown("downstream metric", metric, [*LABELS, LABELLED])
    return LABELS[metric]


FEW = 20  # held-out examples below which an accuracy says little


def few_held_out(n: int, what: str = "texts") -> str:
    """Return a warning of few held-out examples; "" for enough."""
    if n >= FEW:
        return ""
    return f"{n} held-out {what} are few: one of them is {1 / n:.0%} of the accuracy"


def as_read(mended: Sequence[str]) -> str:
    """Return the end of a sentence: what was changed in a file as it was read; "" for nothing."""
    return f"; changed while it was read: {listed(mended)}" if mended else ""


@dataclass(frozen=True)
class LabelledTexts:
    """The texts of a study's own probe or task.

    Attributes:
        hash: SHA-256 of the file.
        names: The classes, in alphabetical order.
        texts: The texts, in the order of the file; no example occurs twice with one label.
        seconds: The second text of each example; () for a task of single texts.
        classes: The class of each text, [N] int.
        fitted: Whether the probe is fitted, or a model trained, on a text, which is else held out;
            [N] bool.
        validation: Whether a held-out text is for the decisions of [tune], where others are tested;
            [N] bool.
        n_left_out: Rows that are not used, because their text is among those held out.
        n_contradictory: Number of different texts in the file that have more than one label.
        choices: The texts that each example chooses from, by number of the class; () for a task
            without choices.
        mended: What was changed as the file was read, such as its encoding.
    """

    hash: str
    names: tuple[str, ...]
    texts: tuple[str, ...]
    seconds: tuple[str, ...]
    classes: np.ndarray
    fitted: np.ndarray
    validation: np.ndarray
    n_left_out: int
    n_contradictory: int
    choices: tuple[tuple[str, ...], ...] = ()
    mended: tuple[str, ...] = ()

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
    """Return the texts and labels of a file: CSV, or by its name TSV, JSON lines or Parquet.

    Rows that are equal count once. The fifth of each class with the lowest SHA-256 of the text is
    tested: that depends on the class's texts alone, not on their order or on other classes. A text
    with several labels that one of them tests is not fitted with another.

    Raises:
        AblateError: there is no such file, it is not a table with the columns text and label, or
            its classes are too few or too small.
    """
    content, mended = content_of(path), Mended()
    rows = list(dict.fromkeys((row.text, row.label) for row in rows_of(path, mended)))
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
    sides = np.full(len(texts), FITTED)
    for number in range(len(names)):
        of_class = np.flatnonzero(classes == number)
        ranked = of_class[np.argsort(digests[of_class], kind="stable")]
        sides[ranked[: len(ranked) // TESTED]] = HELD_OUT
    examples = [(text, "") for text in texts]
    return labelled(path, content, names, examples, classes, sides, mended)


HELD_OUT, VALIDATED, FITTED = range(3)  # the side of a text, the first of which has precedence


def labelled(
    path: Path,
    content: bytes,
    names: Sequence[str],
    examples: Sequence[tuple[str, ...]],
    classes: np.ndarray,
    sides: np.ndarray,
    mended: Mended,
    *,
    pairs: bool = False,
    choices: bool = False,
) -> LabelledTexts:
    """Return labelled examples, each on one side: one of two sides keeps the rows of the first.

    Examples that differ in blanks alone count as one here. Equal rows count once.

    Args:
        path: The file.
        content: What it holds.
        names: The classes.
        examples: Text and second text of each example, or text and choices; N.
        classes: The class of each example, [N] int.
        sides: The side of each row, [N] int.
        mended: What was changed as it was read.
        pairs: Whether examples are pairs.
        choices: Whether they have choices. Without both, all second texts are "".

    Raises:
        AblateError: A class has no text on one side; of choices, there is none on one side.
    """
    first: dict[tuple[str, ...], int] = {}
    plain = [tuple(" ".join(text.split()) for text in example) for example in examples]
    for text, side in zip(plain, sides.tolist(), strict=True):
        first[text] = min(side, first.get(text, side))
    kept = np.array([side == first[text] for text, side in zip(plain, sides, strict=True)], bool)
    n_left_out = int((~kept).sum())
    rows, seen = list(zip(examples, classes.tolist(), strict=True)), set[tuple[Any, int]]()
    for number, row in enumerate(rows):
        kept[number] &= row not in seen
        seen |= {row} if kept[number] else set()
    used = [example for example, keep in zip(examples, kept, strict=True) if keep]
    found = LabelledTexts(
        hashlib.sha256(content).hexdigest(),
        tuple(names),
        tuple(one[0] for one in used),
        tuple(one[1] for one in used) if pairs else (),
        classes[kept],
        sides[kept] == FITTED,
        sides[kept] == VALIDATED,
        n_left_out,
        sum(n > 1 for n in Counter(example for example, _ in dict.fromkeys(rows)).values()),
        tuple(one[1:] for one in used) if choices else (),
        tuple(mended),
    )
    if choices and (lacking := [k for k, there in enumerate(found.counts) if not there.any()]):
        raise AblateError(f"{path}: it has no rows to {('hold out', 'train on')[lacking[0]]}")
    if choices:
        return found
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


def content_of(path: Path) -> bytes:
    if path.exists() and not path.is_file():
        raise AblateError(f"{path}: it is not a file")
    try:
        return path.read_bytes()
    except OSError as error:
        reason = "there is no such file" if not path.exists() else str(error.strerror).lower()
        raise AblateError(f"{path}: {reason}") from None


class Row(NamedTuple):
    """A row; what the file has no column for is ""."""

    text: str
    label: str
    second: str
    split: str
    document: str
    choices: tuple[str, ...] = ()


def has_column(path: Path, name: str) -> bool:
    """Return whether a file of a task has a column of this name, and none of texts."""
    content_of(path)  # what is no file is refused
    first: Any = next(_raw_rows(path, Mended()), (0, {}))[1]
    return isinstance(first, dict) and name in first and COLUMNS[0] not in first


def rows_of(
    path: Path, mended: Mended, first: str = COLUMNS[0], *, choices: bool = False
) -> list[Row]:
    """Return the different rows, in order.

    Args:
        path: The file.
        mended: Counts what was changed as it was read.
        first: Name of the column of texts, or of words.
        choices: Whether columns of choices are read.
    """
    found: dict[Row, None] = {}
    for number, row in _table(path, mended, (first, COLUMNS[1]), choices):
        text, label = row[first], row[COLUMNS[1]].strip()
        others = {name: one for name, one in row.items() if CHOICE.fullmatch(name)}
        wanted = {first: text, COLUMNS[1]: label, **others}
        wanted |= {PAIR: row[PAIR]} if PAIR in row else {}
        for name, value in wanted.items():
            if not value.strip():
                raise AblateError(f"{path}, line {number}: there is no {name}")
        split, document = (row.get(name, "").strip() for name in SIDES)
        of_choices = tuple(others.values())
        found[Row(text, label, row.get(PAIR, ""), split, document, of_choices)] = None
    return list(found)


def _table(
    path: Path, mended: Mended, needed: Sequence[str], choices: bool
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the number of each row of a table, and the columns that a task reads.

    Raises:
        AblateError: A column that is needed is missing, or it is not a table.
    """
    pairs: bool | None = None
    known: list[str] | None = None  # columns of choices
    for number, row in _raw_rows(path, mended, needed):
        if not isinstance(row, dict):
            raise AblateError(f"{path}, line {number}: an object with {' and '.join(needed)}")
        for name in needed:
            value = row.get(name)
            if value is None:
                raise AblateError(f"{path}, line {number}: there is no {name}")
            if not isinstance(value, str | int):
                raise AblateError(
                    f"{path}, line {number}: {name} = {value!r:.40} is neither text nor a whole"
                    " number"
                )
        pairs = PAIR in row if pairs is None else pairs
        if (PAIR in row) is not pairs:
            raise AblateError(f"{path}, line {number}: {PAIR} is in some lines only")
        columns = _choices(path, row) if choices else []
        known = columns if known is None else known
        if columns != known:
            raise AblateError(
                f"{path}, line {number}: it has {len(columns)} choices, and earlier lines have"
                f" {len(known)}; give all lines equally many"
            )
        read = [*needed, PAIR, *SIDES, *columns]
        values = {name: row[name] for name in read if name in row}
        yield number, {name: "" if one is None else str(one) for name, one in values.items()}


def _raw_rows(path: Path, mended: Mended, needed: Sequence[str] = ()) -> Iterator[tuple[int, Any]]:
    """Yield the number of each row of a file, and what its columns hold.

    Raises:
        AblateError: It is not a table, or its first line does not name columns that are needed.
    """
    name = readers.of(path, AS_IT_STANDS).name
    if name == "parquet":
        yield from readers.parquet_rows(path)
        return
    with files.text(path, AS_IT_STANDS, mended) as buffer:
        if name == "jsonl":
            yield from readers.json_rows(path, buffer)
            return
        lines = lambda: (line.decode() for line in files.lines(buffer))  # noqa: E731
        rows = readers.csv_rows(path, lines, name == "tsv")
        _, columns = next(rows, (0, []))
        for wanted in needed:
            if columns.count(wanted) != 1:
                found = ", ".join(map(repr, columns)) or "nothing"
                raise AblateError(
                    f"{path}: the first line must name the columns {' and '.join(needed)}, once"
                    f" each; it has {found:.200}"
                )
        for number, row in rows:
            yield number, dict(zip(columns, row, strict=True))


def _choices(path: Path, columns: Collection[str]) -> list[str]:
    """Return the columns of choices, in their order.

    Raises:
        AblateError: They are not choice_0, choice_1 and so on, or stand beside `text_pair`.
    """
    found = sorted(int(one[1]) for name in columns if (one := CHOICE.fullmatch(name)))
    names = [f"choice_{number}" for number in range(len(found))]
    if found and (len(found) < 2 or found != [*range(len(found))]):
        has = ", ".join(f"choice_{number}" for number in found)
        raise AblateError(
            f"{path}: a table with choices needs choice_0, choice_1 and so on, two or more; it has"
            f" {has}"
        )
    if found and PAIR in columns:
        raise AblateError(f"{path}: it has choices and a column {PAIR}; leave one of them out")
    return names
