"""What a study found, from its stored runs: effects with intervals, and findings as typed records.

`findings(study)` returns all findings; `records` describes each kind. `effects(study)` returns the
effects alone, as a table. Nothing here writes prose: `ablate.report` renders findings as sentences.
"""

from ablate.analysis.collection import Findings, analyse, find, findings
from ablate.analysis.data import StudyData, read
from ablate.analysis.paired import (
    ENDED,
    Pilot,
    changes,
    choices,
    effects,
    equivalence,
    interactions,
    of_pairs,
    pilots,
)
from ablate.analysis.records import Finding

__all__ = [
    "ENDED",
    "Finding",
    "Findings",
    "Pilot",
    "StudyData",
    "analyse",
    "changes",
    "choices",
    "effects",
    "equivalence",
    "find",
    "findings",
    "interactions",
    "of_pairs",
    "pilots",
    "read",
]
