"""Findings on what a study decided: learning rates, what tuning them changed, number of seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ablate import tune
from ablate.analysis import records
from ablate.analysis.data import StudyData
from ablate.components import CATALOGUE
from ablate.stats import selection
from ablate.store.records import ACCEPTED
from ablate.study import tuned_field


def rates(data: StudyData) -> Iterator[records.Tuning]:
    """Yield the learning rate of each group, in the order of the cells."""
    rows = data.decisions[data.decisions["name"] != "seeds"].to_dict("records")
    order = {cell: index for index, cell in enumerate(data.arms["cell"])}
    for row in sorted(rows, key=lambda row: order[row["cell"]]):
        evidence, cell = row["evidence"], row["cell"]
        means = np.mean(tune.values(evidence), axis=0)
        outcomes = np.mean(tune.outcomes(evidence), axis=0)
        ladder, rates = evidence["ladder"], evidence["rates"]
        fitted = evidence.get("fitted", dict(zip(rates, means, strict=True)).get(row["value"]))
        fitted = math.nan if fitted is None else float(fitted)
        yield records.Tuning(
            group=evidence["group"],
            cells=(cell, *(other for other in evidence["cells"] if other != cell)),
            lr=float(row["value"]),
            metric=evidence["metric"],
            goal=tune.goal(evidence),
            fitted=fitted,
            error=data.choices[cell].choice.error,
            trains=_trains(evidence),
            rates=tuple(rates),
            losses=tuple(map(float, means)),
            outcomes=tuple(map(float, outcomes)),
            seeds=tuple(evidence["seeds"]),
            requested=(min(ladder), max(ladder)),
            at_edge=evidence["at_edge"],
            near_cliff=evidence.get("near_cliff", False),
            left_range=rates[0] < min(ladder) or rates[-1] > max(ladder),
            sensitivity=_sensitivity(data, cell, ladder),
        )


def _trains(evidence: dict[str, Any]) -> bool:
    """Return whether a rate trained a group at all; older decisions do not say it."""
    means = np.mean(tune.values(evidence), axis=0)
    return bool(evidence.get("trains", np.isfinite(means).any()))


def by_rate(data: StudyData) -> Iterator[records.EffectAtRate]:
    """Yield each contrast at the rates within a ladder step of either arm's own, on tuning seeds.

    Only cells that were tuned themselves, and that a rate trains, have such runs.
    """
    decisions = data.decisions[data.decisions["name"] != "seeds"]
    tuned = {
        row["cell"]: (row["value"], row["evidence"])
        for row in decisions.to_dict("records")
        if _trains(row["evidence"])
    }
    names = ("stratum", "family", "factor", "level", "baseline_level", "cell", "baseline")
    for row in data.effects.to_dict("records"):
        if row["cell"] not in tuned or row["baseline"] not in tuned:
            continue
        (own, arm), (other, base) = tuned[row["cell"]], tuned[row["baseline"]]
        if arm["seeds"] != base["seeds"] or len(arm["seeds"]) < 2:
            continue
        step = 1.01 * arm["ladder"][1] / arm["ladder"][0]
        rates = [
            rate
            for rate in arm["rates"]
            if rate in base["rates"] and min(own, other) / step <= rate <= max(own, other) * step
        ]
        values, baseline = (
            np.array(tune.outcomes(one))[:, [one["rates"].index(rate) for rate in rates]]
            for one in (arm, base)
        )
        for lr, n, mean, low, high in selection.by_rate(rates, values, baseline):
            yield records.EffectAtRate(
                **{name: str(row[name]) for name in names}, lr=lr, n=n, mean=mean, lo=low, hi=high
            )


def _sensitivity(data: StudyData, cell: str, ladder: Sequence[float]) -> float:
    """Return the sensitivity of the held-out loss to the rates of the ladder.

    ln n_vocab is the loss of a uniform prediction.
    """
    runs = data.runs[(data.runs["role"] == "tune") & (data.runs["cell"] == cell)]
    of = CATALOGUE["objective"]
    images = any(of[name].images for name in set(runs["objective"].dropna()) & set(of.names))
    if images or runs["n_vocab"].isna().any():  # the loss before training is unknown
        return math.nan
    whole = runs["loss"].astype(float).where(runs["status"] == "complete")
    tried = runs[tuned_field(data.settings)]
    by_rate = whole.groupby(tried).agg(lambda losses: losses.mean(skipna=False))
    ended = set(tried[runs["status"].isin(ACCEPTED)])
    losses = [float(by_rate[rate]) for rate in ladder if rate in ended]
    if not losses:
        return math.nan
    return tune.sensitivity(losses, math.log(float(runs["n_vocab"].iloc[0])))


def changes(data: StudyData, tuned: Sequence[records.Tuning]) -> Iterator[records.TuningChange]:
    """Yield what the arms of a stratum reach at the baseline's best rate and at their own."""
    for stratum in data.strata:
        cells = data.arms[data.arms["stratum"] == stratum]
        baselines = set(cells.loc[cells["is_baseline"], "cell"])
        of_stratum = [one for one in tuned if one.cells[0] in set(cells["cell"])]
        base = next((one for one in of_stratum if one.cells[0] in baselines), None)
        if base is None or len(of_stratum) < 2:
            continue
        curves = {
            one.cells[0]: dict(zip(one.rates, one.outcomes, strict=True)) for one in of_stratum
        }
        of_base = dict(zip(base.rates, base.losses, strict=True))
        common = [
            rate
            for rate in base.rates
            if all(rate in curve for curve in curves.values()) and math.isfinite(of_base[rate])
        ]
        if not common:
            continue
        sign = 1 if base.goal == "min" else -1
        shared = min(common, key=lambda rate: (sign * of_base[rate], rate))
        names = group_names(data, tuned)
        for one in [base, *(one for one in of_stratum if one is not base)]:
            cell = one.cells[0]
            apart = {
                abs(math.log(rate / one.lr)): value
                for rate, value in curves[cell].items()
                if math.isfinite(value)
            }
            yield records.TuningChange(
                stratum=stratum,
                cell=cell,
                arm=names[cell],
                baseline=one is base,
                shared_lr=shared,
                lr=one.lr,
                at_shared=curves[cell][shared],
                at_own=apart[min(apart)] if apart else math.nan,
            )


def group_names(data: StudyData, tuned: Sequence[records.Tuning]) -> dict[str, str]:
    """Return the tuned cell of each group → the name of the group in tables and figures.

    It is the arm where the group has cells of one arm, else the group's name.
    """
    arm = data.arms.set_index("cell")["arm"].astype(str)
    names = {}
    for one in tuned:
        own = {arm[cell] for cell in one.cells if cell in arm.index}
        names[one.cells[0]] = own.pop() if len(own) == 1 else one.group
    return names


def seed_counts(data: StudyData) -> Iterator[records.SeedCount]:
    """Yield how many seeds each stratum got after its pilot."""
    decided = data.decisions[data.decisions["name"] == "seeds"].to_dict("records")
    for row in decided:
        evidence = row["evidence"]
        yield records.SeedCount(
            stratum=evidence["stratum"],
            pilot=len(evidence["pilot"]),
            seeds=int(row["value"]),
            resolution=evidence["resolution"],
            required=max((count for count in evidence["wanted"].values() if count), default=0),
            capped=evidence["capped"],
            unknown=tuple(cell for cell, count in evidence["wanted"].items() if count is None),
        )
