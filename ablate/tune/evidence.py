"""What a decision is based on: a hash of the question that it answers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from ablate import metrics
from ablate.plan import Decision
from ablate.store.evaluated import measure
from ablate.study import Study

Stored = Mapping[tuple[str, str], Decision]  # by cell and name


def question_hash(study: Study, *question: Any) -> str:
    """Return a hash of a question and of the metric that answers it.

    A stored decision holds as long as the hash of its question stays the same.
    """
    measured = measure(study.evaluation)
    by = study.metric, measured.get(metrics.final(study.metric)[0], measured["loss"])
    return hashlib.sha256(json.dumps([by, question]).encode()).hexdigest()


def values(evidence: Mapping[str, Any]) -> list[list[float]]:
    """Return the metric of a learning rate's tuning runs, a list for each seed, NaN if diverged.

    The evidence of older decisions has one list, of the means over seeds.
    """
    stored = evidence["values"]
    by_seed = stored if stored and isinstance(stored[0], list) else [stored]
    return [[math.nan if one is None else float(one) for one in row] for row in by_seed]
