"""The classes of the documents of the shipped corpora, which linear probes predict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ablate.errors import AblateError, unknown
from ablate.text import corpora


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


def find(metric: str, corpus: str, corpus_hash: str) -> Labels:
    """Return the classes of a downstream metric.

    Raises:
        AblateError: there is no such metric, or not on this corpus.
    """
    if metric not in LABELS:
        raise unknown("downstream metric", metric, LABELS)
    labels = LABELS[metric]
    if corpus_hash != corpora.find(labels.corpus, Path()).hash:
        raise AblateError(
            f"downstream metric {metric!r} needs corpus = {labels.corpus!r}; this run reads"
            f" {corpus!r}"
        )
    return labels
