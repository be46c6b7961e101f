"""Findings on whole strata and on the study: the best arms, pairing, failures, multiplicity."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import pandas as pd

from ablate import stats
from ablate.analysis import paired, records
from ablate.analysis.data import StudyData
from ablate.stats import selection
from ablate.stats.pairs import noise_of
from ablate.stats.values import Floats, Noise


def best(
    data: StudyData, failed: frozenset[str], contrasts: Sequence[records.Contrast]
) -> Iterator[records.Best]:
    """Yield the arms of each stratum that are the best or not distinguishable from it.

    Only seeds that ended in every arm count, so that no mean of an unfinished study is over other
    seeds than its rival's.

    Args:
        data: The study.
        failed: Cells with failed runs.
        contrasts: Of the study. Two arms that have a contrast have its verdict, whichever the
            comparison with the best would give: its correction may cover more arms, or fewer.
    """
    verdicts = {
        pair: one.verdict == verdict
        for one in contrasts
        if one.verdict in ("better", "worse", "inconclusive")
        for pair, verdict in (
            ((one.cell, one.baseline), "worse"),
            ((one.baseline, one.cell), "better"),
        )
    }
    for stratum in data.strata:
        if data.incomparable(stratum):
            continue
        arms = data.arms[data.arms["stratum"] == stratum].set_index("cell")["arm"].astype(str)
        judged = [cell for cell in arms.index if cell not in data.sizeless | failed]
        table = (
            data.good[data.good["cell"].isin(judged)]
            .drop_duplicates(["cell", "seed"])
            .pivot(index="seed", columns="cell", values="metric")
            .reindex(columns=judged)
            .dropna()
        )
        exact = data.exact.issuperset(judged)
        if len(arms) < 2 or len(judged) < 2 or len(table) < (1 if exact else 2):
            continue
        goal: Any = data.study.goal
        if exact:
            yield _exact(data, stratum, table, arms)
            continue
        at = {cell: position for position, cell in enumerate(judged)}
        found = stats.best_arms(
            table.to_numpy(float),
            goal=goal,
            noise=_noise(data, stratum, table),
            decided={
                (at[cell], at[other]): better
                for (cell, other), better in verdicts.items()
                if cell in at and other in at
            },
        )
        chosen = [judged[position] for position in found.candidates]
        yield records.Best(
            stratum=stratum,
            arms=tuple(arms[cell] for cell in chosen),
            means=tuple(float(table[cell].mean()) for cell in chosen),
            excluded=tuple(arms[cell] for cell in judged if cell not in chosen),
            failed=tuple(arms[cell] for cell in arms.index if cell not in judged),
            seeds=len(table),
            clear=found.clear,
        )


def _exact(data: StudyData, stratum: str, table: pd.DataFrame, arms: pd.Series) -> records.Best:
    """Return the best arms of a stratum whose runs do not depend on their seed.

    Args:
        data: The study.
        stratum: The stratum.
        table: Metric, seeds × cells, of the arms that are judged.
        arms: Cell → name of its arm.
    """
    values = table.iloc[0]
    best = values.min() if data.study.goal == "min" else values.max()
    chosen = [cell for cell in table.columns if values[cell] == best]
    return records.Best(
        stratum=stratum,
        arms=tuple(arms[cell] for cell in chosen),
        means=tuple(float(values[cell]) for cell in chosen),
        excluded=tuple(arms[cell] for cell in table.columns if cell not in chosen),
        failed=tuple(arms[cell] for cell in arms.index if cell not in table.columns),
        seeds=len(table),
        exact=True,
    )


def _noise(
    data: StudyData, stratum: str, table: pd.DataFrame
) -> Callable[[Floats, int, int], Noise] | None:
    """Return what has the noise of two arms' mean difference, as that of a contrast.

    Args:
        data: The study.
        stratum: The arms' stratum.
        table: Metric, seeds × cells.

    Returns:
        See `ablate.stats.best_arms`.
    """
    pilot = table.index.isin(data.pilots.get(stratum, paired.Pilot()).seeds)
    seeds = paired.split(table.index) if data.crossed else None
    if seeds is None and not pilot.any() and not data.choices:
        return None

    def noise(difference: Floats, i: int, j: int) -> Noise:
        arms = [(str(table.columns[i]), 1), (str(table.columns[j]), -1)]
        alone = noise_of(difference, difference[pilot], crossed=seeds)
        return selection.widened(alone, paired.choice_of(arms, data.choices))

    return noise


def pairing(contrasts: Sequence[records.Contrast]) -> Iterator[records.Pairing]:
    """Yield what pairing by seed gains in each stratum."""
    for stratum in dict.fromkeys(one.stratum for one in contrasts):
        found = [
            stats.pairing(
                [pair.value for pair in one.pairs], [pair.baseline_value for pair in one.pairs]
            )
            for one in contrasts
            if one.stratum == stratum and one.verdict not in records.SIZELESS
        ]
        known = [one for one in found if not math.isnan(one.correlation) and one.ratio > 0]
        if known:
            yield records.Pairing(
                stratum=stratum,
                seeds=max(one.n for one in known),
                correlation=median(one.correlation for one in known),
                width=median(one.ratio for one in known),
            )


def no_failures(data: StudyData, failed: frozenset[str]) -> Iterator[records.NoFailures]:
    """Yield the failure rate that a study without a failed run is compatible with.

    Nothing before all runs have ended: those that are left may fail, and are not fewer seeds.
    """
    if data.waiting or not data.compared["status"].isin(paired.ENDED).all():
        return
    if data.exact.issuperset(data.good["cell"]):
        return  # their runs are the same for every seed
    seeds = data.good.groupby("cell")["seed"].nunique()
    if len(seeds) and not failed:
        yield records.NoFailures(seeds=int(seeds.min()), upper=stats.unseen(int(seeds.min())))


def multiplicity(
    contrasts: Sequence[records.Contrast], *, correction: str, crossed: bool
) -> Iterator[records.Multiplicity]:
    """Yield how many contrasts and families the study tests.

    Args:
        contrasts: All of them.
        correction: What Holm's correction covers: "family" or "study".
        crossed: Whether seeds are crossed, so that no sign-flip test is made.
    """
    contrasts = [one for one in contrasts if one.corrected]
    if all(one.exact or (one.n > 1 and math.isnan(one.p)) for one in contrasts):
        return  # without noise there is no test
    families = Counter(one.family for one in contrasts)
    floors = [
        stats.sign_flip_floor(
            one.n, len(contrasts) if correction == "study" else families[one.family]
        )
        for one in contrasts
        if one.n and not one.exact and not crossed
    ]
    yield records.Multiplicity(
        families=len(families),
        contrasts=len(contrasts),
        correction=correction,
        significant=sum(one.significant for one in contrasts),
        significant_study=sum(one.p_study <= 0.05 for one in contrasts),
        sign_flip_floor=min(floors, default=math.nan),
    )
