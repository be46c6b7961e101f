"""Arrays → effects, intervals and the number of seeds. No database, no pandas; a `numpy.random.Generator` where random."""

from ablate.stats.families import holm
from ablate.stats.pairs import Effect, Equivalence, compare, equivalence, pair_correlation, paired, sign_flip, wilson
from ablate.stats.planning import power, resolvable, seeds_needed

__all__ = [
    "Effect",
    "Equivalence",
    "compare",
    "equivalence",
    "holm",
    "pair_correlation",
    "paired",
    "power",
    "resolvable",
    "seeds_needed",
    "sign_flip",
    "wilson",
]
