"""Contrasts and paired finals → effects: differences by seed, their interval, Holm's correction,
what was lost.

The arithmetic stands in `ablate.stats`. This module says which pairs count: a pair counts when both
of its runs completed with a finite value. A pair one of whose runs diverged or failed is lost, and
said to be; a pair still to be run is pending.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ablate import results, stats

if TYPE_CHECKING:
    from ablate.store import Database

CONFIDENCE = 0.95
CHANGE = (
    "n",
    "mean",
    "lo",
    "hi",
    "p",
    "p_holm",
    "resolvable",
    "resolved",
)  # what `changes` says of each
JOINT = " × "  # between the names of factors that are varied together, and between their levels
ENDED = (
    "complete",
    "diverged",
    "failed",
    "oom",
)  # a run of any other status may still bring its value


@dataclass(frozen=True)
class EffectRow:
    """One contrast with its effect, in the metric's own unit: positive means a larger metric than
    the baseline's.
    """

    family: str
    stratum: str
    factor: str
    level: str
    cell: str
    baseline: str  # the baseline cell's label
    metric: str
    n: int  # pairs that count
    lost: int  # pairs that ended without a finite difference
    pending: int  # pairs still to be run
    mean: float
    sd: float  # of the paired differences
    lo: float  # 95% t-interval
    hi: float
    family_lo: float  # simultaneous interval over the family
    family_hi: float
    p: float
    p_holm: float
    p_sign_flip: float
    correlation: float  # of the two arms over seeds
    standardised: float  # mean / sd
    # the smallest true effect that so many pairs of this noise find in 80% of studies, corrected
    resolvable: float
    resolved: bool  # p_holm at or below 0.05
    method: str
    input_hash: str  # of every value that went in: the same hash, the same numbers


def effects(study: str, db: Database | str | None = None) -> pd.DataFrame:
    """The study's effects, computed now from what the database holds: one row a contrast, columns
    as in `EffectRow`.

    Two more: `baseline_level`, the baseline's own level in the factor, and `arm`, the cell's as in
    `ablate.load`.
    """
    rows = of_pairs(results.pairs(study, db), pilots(study, db))
    frame = pd.DataFrame(
        [asdict(row) for row in rows], columns=[field.name for field in fields(EffectRow)]
    )
    levels, arms = results.levels(study, db), results.arms(study, db).set_index("cell")["arm"]
    named = zip(frame["factor"], frame["baseline"], strict=True)
    return frame.assign(
        baseline_level=[
            results.baseline_level(factor, levels[baseline]) for factor, baseline in named
        ],
        arm=pd.Categorical(
            frame["cell"].map(arms.astype(str)), categories=arms.cat.categories, ordered=True
        ),
    )


def analyse(db: Database, study: str) -> list[EffectRow]:
    """Recompute the study's effects and store them in its table `effect`."""
    from ablate.store import effects as table

    rows = of_pairs(results.pairs(study, db), pilots(study, db))
    table.write(db, results.study(study, db).id, rows)  # type: ignore[arg-type]  # the protocol's fields can be set
    return rows


@dataclass(frozen=True)
class Pilot:
    """What decided how many seeds a stratum has; intervals and tests then rest on its noise (see
    `ablate.stats.noise_of`).
    """

    seeds: Sequence[int] = ()
    resolution: float | None = None  # None for differences that it was not meant for


def pilots(study: str, db: Database | str | None = None) -> dict[str, Pilot]:
    """Stratum → its pilot; none for a study whose seeds were given."""
    found = results.decisions(study, db)
    decided = found.loc[found["name"] == "seeds", "evidence"]
    return {
        evidence["stratum"]: Pilot(evidence["pilot"], evidence["resolution"])
        for evidence in decided
    }


def of_pairs(pairs: pd.DataFrame, pilots: Mapping[str, Pilot] = {}) -> list[EffectRow]:
    """The effect of every contrast in `pairs` (as `ablate.results.pairs` gives them), corrected
    within each family.

    pilots: stratum → the pilot that decided on its seeds.
    """
    rows: list[EffectRow] = []
    for _, family in pairs.groupby("family", sort=False):
        contrasts = [
            part.sort_values("seed") for _, part in family.groupby(["cell", "baseline"], sort=False)
        ]
        digest = _digest(family)
        effects = _family(
            [counted(part) for part in contrasts],
            pilots.get(contrasts[0]["stratum"].iloc[0], Pilot()),
        )
        rows += [
            _row(part, effect, digest) for part, effect in zip(contrasts, effects, strict=True)
        ]
    return rows


def changes(pairs: pd.DataFrame, pilots: Mapping[str, Pilot] = {}) -> pd.DataFrame:
    """How the effect of each level changes from the study's first stratum to each other: the
    interaction with `within`.

    A change is the mean, over seeds, of a level's difference in the stratum minus its difference in
    the first one, tested as an effect is, in the family of the effect there. Columns: family,
    factor, level, stratum, first, n, mean, lo, hi, p, p_holm, resolvable, resolved. Without a
    second stratum the frame is empty. pilots: as in `of_pairs`.
    """
    strata = list(dict.fromkeys(pairs["stratum"]))
    by_contrast = {
        key: counted(part)
        for key, part in pairs.groupby(["factor", "level", "stratum"], sort=False)
    }
    rows = []
    for stratum in strata[1:]:
        for family, part in pairs[pairs["stratum"] == stratum].groupby("family", sort=False):
            named = dict.fromkeys(zip(part["factor"], part["level"], strict=True))
            both = [one for one in named if (*one, strata[0]) in by_contrast]
            moved = [by_contrast[*one, stratum] - by_contrast[*one, strata[0]] for one in both]
            pilot = pilots.get(stratum) or pilots.get(strata[0], Pilot())
            for one, effect in zip(both, _family(moved, Pilot(pilot.seeds)), strict=True):
                rows.append(
                    (family, *one, stratum, strata[0], *(getattr(effect, name) for name in CHANGE))
                )
    return pd.DataFrame(rows, columns=["family", "factor", "level", "stratum", "first", *CHANGE])


def interactions(pairs: pd.DataFrame, pilots: Mapping[str, Pilot] = {}) -> pd.DataFrame:
    """By how much factors that are varied together do more than each by itself, where each was
    varied by itself, too.

    An interaction is the mean, over seeds, of the difference of a cell that varies several factors
    minus the sum of the differences of those that vary one of them, tested as an effect is; a
    family is the levels of the same factors in one stratum. Columns: factor, level, stratum, n,
    mean, lo, hi, p, p_holm, resolvable, resolved. pilots: as in `of_pairs`.
    """
    grouped = pairs.groupby(["factor", "level", "stratum"], sort=False)
    by_contrast = {
        (str(factor), str(level), str(stratum)): counted(part)
        for (factor, level, stratum), part in grouped
    }
    families: dict[tuple[str, str], dict[str, pd.Series]] = {}
    for (factor, level, stratum), together in by_contrast.items():
        parts = [
            (*part, stratum) for part in zip(factor.split(JOINT), level.split(JOINT), strict=False)
        ]
        if len(parts) > 1 and all(part in by_contrast for part in parts):
            alone = pd.concat([by_contrast[part] for part in parts], axis=1)
            families.setdefault((factor, stratum), {})[level] = together - alone.sum(
                axis=1, skipna=False
            )
    rows = []
    for (factor, stratum), levels in families.items():
        effects = _family(list(levels.values()), Pilot(pilots.get(stratum, Pilot()).seeds))
        for level, effect in zip(levels, effects, strict=True):
            rows.append((factor, level, stratum, *(getattr(effect, name) for name in CHANGE)))
    return pd.DataFrame(rows, columns=["factor", "level", "stratum", *CHANGE])


def equivalence(
    pairs: pd.DataFrame, margin: float, pilots: Mapping[str, Pilot] = {}
) -> stats.Equivalence:
    """Whether the effect of one contrast, given by its pairs, lies within ± `margin`. pilots: as in
    `of_pairs`.
    """
    difference = counted(pairs)
    pilot = pilots.get(pairs["stratum"].iloc[0], Pilot())
    first = difference[difference.index.isin(pilot.seeds)]
    return stats.equivalence(
        difference.to_numpy(float), margin, pilot=first.to_numpy(float), resolution=pilot.resolution
    )


def ended(pairs: pd.DataFrame) -> pd.Series:
    """Which pairs have both of their runs behind them."""
    return pairs["status"].isin(ENDED) & pairs["baseline_status"].isin(ENDED)


def counted(pairs: pd.DataFrame) -> pd.Series:
    """Seed → the difference of one contrast's pair; NaN where the pair is lost or pending."""
    complete = (pairs["status"] == "complete") & (pairs["baseline_status"] == "complete")
    with np.errstate(invalid="ignore"):
        difference = pairs["value"].astype(float) - pairs["baseline_value"].astype(float)
    return difference.where(complete & np.isfinite(difference)).set_axis(pairs["seed"])


def _family(differences: Sequence[pd.Series], pilot: Pilot) -> list[stats.Effect]:
    """The effects of a family, with a resolvable effect that allows for its correction."""
    if not differences:
        return []
    together = pd.concat(differences, axis=1)
    alpha = (1 - CONFIDENCE) / len(differences)
    first = together.index.isin(pilot.seeds)
    found = stats.family(
        together.to_numpy(float), confidence=CONFIDENCE, pilot=first, resolution=pilot.resolution
    )
    return [
        replace(
            one,
            resolvable=(
                stats.resolvable(one.n, one.sd, alpha=alpha, df=one.noise.df)
                if one.sd > 0
                else math.nan
            ),
        )
        for one in found
    ]


def _row(pairs: pd.DataFrame, effect: stats.Effect, digest: str) -> EffectRow:
    first, done = pairs.iloc[0], ended(pairs)
    value = np.where(counted(pairs).notna(), pairs["value"].astype(float), math.nan)
    return EffectRow(
        **{
            name: str(first[name])
            for name in ("family", "stratum", "factor", "level", "cell", "baseline", "metric")
        },
        n=effect.n,
        lost=int(done.sum()) - effect.n,
        pending=int((~done).sum()),
        mean=effect.mean,
        sd=effect.sd,
        lo=effect.lo,
        hi=effect.hi,
        family_lo=effect.family_lo,
        family_hi=effect.family_hi,
        p=effect.p,
        p_holm=effect.p_holm,
        p_sign_flip=effect.p_sign_flip,
        correlation=stats.pair_correlation(value, pairs["baseline_value"].to_numpy(float)),
        standardised=effect.standardised,
        resolvable=effect.resolvable,
        resolved=bool(effect.resolved),
        method=effect.method,
        input_hash=digest,
    )


def _digest(family: pd.DataFrame) -> str:
    """SHA-256 of the family's pairs, whatever their order."""
    columns = [
        "cell",
        "baseline",
        "seed",
        "metric",
        "value",
        "baseline_value",
        "status",
        "baseline_status",
    ]
    lines: Iterable[str] = sorted(
        repr(row) for row in family[columns].astype(object).itertuples(index=False, name=None)
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
