"""A study stage by stage: which learning rates and seeds are decided, and what can be trained now.

The database is the only record. Each stage is derived from it again, so that a study that was
stopped at any point resumes, and decides the same. A decision is stored before a run uses it.
"""

from ablate.tune.evidence import OUTCOMES, goal, outcomes, values
from ablate.tune.rates import search, sensitivity
from ablate.tune.stages import Stage, describe, learn, stages

__all__ = [
    "OUTCOMES",
    "Stage",
    "describe",
    "goal",
    "learn",
    "outcomes",
    "search",
    "sensitivity",
    "stages",
    "values",
]
