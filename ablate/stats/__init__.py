"""Arrays → effects, intervals, number of seeds. No database, no pandas; random by a Generator."""

from ablate.stats import selection
from ablate.stats.families import family, holm, max_t
from ablate.stats.grids import GridEffects, LevelEffect, Term, grid_effects
from ablate.stats.pairs import (
    Effect,
    Equivalence,
    after_pilot,
    compare,
    equivalence,
    pair_correlation,
    paired,
    sign_flip,
    unequal_spread,
    wilson,
)
from ablate.stats.planning import power, resolvable, seeds_needed, two_stage

__all__ = [
    "Effect",
    "Equivalence",
    "GridEffects",
    "LevelEffect",
    "Term",
    "after_pilot",
    "compare",
    "equivalence",
    "family",
    "grid_effects",
    "holm",
    "max_t",
    "pair_correlation",
    "paired",
    "power",
    "resolvable",
    "seeds_needed",
    "selection",
    "sign_flip",
    "two_stage",
    "unequal_spread",
    "wilson",
]
