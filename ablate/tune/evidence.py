"""What a decision is based on: a hash of the question that it answers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from ablate import metrics
from ablate.plan import Decision
from ablate.store.evaluated import measure
from ablate.study import Study

OUTCOMES = "outcomes"  # where another metric decided: the study's metric, as `values` has its own

Stored = Mapping[tuple[str, str], Decision]  # by cell and name


def question_hash(study: Study, asked: Sequence[str], *question: Any) -> str:
    """Return a hash of a question and of the metrics that answer it.

    A stored decision holds as long as the hash of its question stays the same.
    """
    measured = measure(study.evaluation)
    how = [measured.get(metrics.final(name)[0], measured["loss"]) for name in asked]
    by = [*chain(*zip(asked, how, strict=True))]
    return hashlib.sha256(json.dumps([by, question]).encode()).hexdigest()


def goal(evidence: Mapping[str, Any]) -> str:
    """Return the goal of the metric that decided a learning rate, "min" or "max"."""
    stored: str | None = evidence.get("goal")  # absent in older decisions
    return stored or metrics.parse(evidence["metric"])[0].goal


def values(evidence: Mapping[str, Any]) -> list[list[float]]:
    """Return what decided a learning rate, of its tuning runs: a list for each seed, NaN: diverged.

    The evidence of older decisions has one list, of the means over seeds.
    """
    return _by_seed(evidence["values"])


def outcomes(evidence: Mapping[str, Any]) -> list[list[float]]:
    """Return the study's metric of the same runs, in the same order."""
    return _by_seed(evidence.get(OUTCOMES, evidence["values"]))


def _by_seed(stored: Any) -> list[list[float]]:
    by_seed = stored if stored and isinstance(stored[0], list) else [stored]
    return [[math.nan if one is None else float(one) for one in row] for row in by_seed]
