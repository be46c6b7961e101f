"""Arrays → effects, intervals, number of seeds. No database, no pandas; random by a Generator."""

from ablate.stats import selection
from ablate.stats.best import ArmAgainstBest, BestArms, best_arms
from ablate.stats.crossed import Component, Components, components, crossed_noise
from ablate.stats.crossed import table as crossed_table
from ablate.stats.failures import FailureRates, WorstRank, failure_rates, worst_rank
from ablate.stats.families import family, holm, max_t, together
from ablate.stats.grids import GridEffects, LevelEffect, Term, grid_effects
from ablate.stats.groups import (
    Association,
    SeedGroups,
    group_association,
    seed_groups,
    within_groups,
)
from ablate.stats.one_sample import OneSample, one_sample
from ablate.stats.pairs import (
    Effect,
    Equivalence,
    Pairing,
    after_pilot,
    compare,
    detectable,
    equivalence,
    pair_correlation,
    paired,
    pairing,
    sign_flip,
    sign_flip_floor,
    unequal_spread,
    wilson,
)
from ablate.stats.planning import (
    equivalence_power,
    power,
    proposed_margin,
    resolvable,
    seeds_needed,
    two_stage,
)
from ablate.stats.robust import HodgesLehmann, Outlying, hodges_lehmann, outlying, unseen
from ablate.stats.text import TextEffect, seed_by_text
from ablate.stats.values import differences, spread

__all__ = [
    "ArmAgainstBest",
    "Association",
    "BestArms",
    "Component",
    "Components",
    "Effect",
    "Equivalence",
    "FailureRates",
    "GridEffects",
    "HodgesLehmann",
    "LevelEffect",
    "OneSample",
    "Outlying",
    "Pairing",
    "SeedGroups",
    "Term",
    "TextEffect",
    "WorstRank",
    "after_pilot",
    "best_arms",
    "compare",
    "components",
    "crossed_noise",
    "crossed_table",
    "detectable",
    "differences",
    "equivalence",
    "equivalence_power",
    "failure_rates",
    "family",
    "grid_effects",
    "group_association",
    "hodges_lehmann",
    "holm",
    "max_t",
    "one_sample",
    "outlying",
    "pair_correlation",
    "paired",
    "pairing",
    "power",
    "proposed_margin",
    "resolvable",
    "seed_by_text",
    "seed_groups",
    "seeds_needed",
    "selection",
    "sign_flip",
    "sign_flip_floor",
    "spread",
    "together",
    "two_stage",
    "unequal_spread",
    "unseen",
    "wilson",
    "within_groups",
    "worst_rank",
]
