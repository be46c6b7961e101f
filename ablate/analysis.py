"""Contrasts and paired finals → effects: differences by seed, their interval, Holm's correction, what was lost.

The arithmetic stands in `ablate.stats`. This module says which pairs count: a pair counts when both of its runs completed with a
finite value. A pair one of whose runs diverged or failed is lost, and said to be; a pair still to be run is pending.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ablate import results, stats

if TYPE_CHECKING:
    from ablate.store import Database

CONFIDENCE = 0.95
ENDED = ("complete", "diverged", "failed", "oom")  # a run of any other status may still bring its value


@dataclass(frozen=True)
class EffectRow:
    """One contrast with its effect, in the metric's own unit: positive means a larger metric than the baseline's."""

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
    resolvable: float  # the smallest true effect that so many pairs of this noise find in 80% of studies, corrected
    resolved: bool  # p_holm at or below 0.05
    method: str
    input_hash: str  # of every value that went in: the same hash, the same numbers


def effects(study: str, db: Database | str | None = None) -> pd.DataFrame:
    """The study's effects, one row a contrast, columns as in `EffectRow`; computed now, from what the database holds."""
    rows = of_pairs(results.pairs(study, db))
    return pd.DataFrame([asdict(row) for row in rows], columns=[field.name for field in fields(EffectRow)])


def analyse(db: Database, study: str) -> list[EffectRow]:
    """Recompute the study's effects and store them in its table `effect`."""
    from ablate.store import effects as table

    rows = of_pairs(results.pairs(study, db))
    table.write(db, results.study(study, db).id, rows)  # type: ignore[arg-type]  # the protocol's fields can be set
    return rows


def of_pairs(pairs: pd.DataFrame) -> list[EffectRow]:
    """The effect of every contrast in `pairs` (as `ablate.results.pairs` gives them), corrected within each family."""
    rows: list[EffectRow] = []
    for _, family in pairs.groupby("family", sort=False):
        contrasts = [part.sort_values("seed") for _, part in family.groupby(["cell", "baseline"], sort=False)]
        found = _family([_compare(part, len(contrasts)) for part in contrasts])
        rows += [_row(part, effect, _digest(family)) for part, effect in zip(contrasts, found, strict=True)]
    return rows


def ended(pairs: pd.DataFrame) -> pd.Series:
    """Which pairs have both of their runs behind them."""
    return pairs["status"].isin(ENDED) & pairs["baseline_status"].isin(ENDED)


def _compare(pairs: pd.DataFrame, family_size: int) -> stats.Effect:
    """The effect of one contrast, with an interval and a resolvable effect that hold for the whole family (Bonferroni)."""
    done = pairs[ended(pairs)]
    complete = (done["status"] == "complete") & (done["baseline_status"] == "complete")
    value, base = np.where(complete, done["value"].to_numpy(float), math.nan), done["baseline_value"].to_numpy(float)
    effect = stats.compare(value, base, confidence=CONFIDENCE)
    together = stats.compare(value, base, confidence=1 - (1 - CONFIDENCE) / family_size)
    return replace(effect, family_lo=together.lo, family_hi=together.hi, resolvable=together.resolvable)


def _family(effects: Sequence[stats.Effect]) -> list[stats.Effect]:
    return [
        replace(effect, p_holm=float(p)) for effect, p in zip(effects, stats.holm([effect.p for effect in effects]), strict=True)
    ]


def _row(pairs: pd.DataFrame, effect: stats.Effect, digest: str) -> EffectRow:
    first = pairs.iloc[0]
    return EffectRow(
        **{name: str(first[name]) for name in ("family", "stratum", "factor", "level", "cell", "baseline", "metric")},
        n=effect.n,
        lost=effect.lost,
        pending=int((~ended(pairs)).sum()),
        mean=effect.mean,
        sd=effect.sd,
        lo=effect.lo,
        hi=effect.hi,
        family_lo=effect.family_lo,
        family_hi=effect.family_hi,
        p=effect.p,
        p_holm=effect.p_holm,
        p_sign_flip=effect.p_sign_flip,
        correlation=effect.correlation,
        standardised=effect.standardised,
        resolvable=effect.resolvable,
        resolved=bool(effect.resolved),
        method=effect.method,
        input_hash=digest,
    )


def _digest(family: pd.DataFrame) -> str:
    """SHA-256 of the family's pairs, whatever their order."""
    columns = ["cell", "baseline", "seed", "metric", "value", "baseline_value", "status", "baseline_status"]
    lines: Iterable[str] = sorted(repr(row) for row in family[columns].astype(object).itertuples(index=False, name=None))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
