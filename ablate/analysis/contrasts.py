"""Findings on single contrasts: effects with verdicts, equivalence, spread, failures, sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pandas as pd

from ablate import stats
from ablate.analysis import paired, records
from ablate.analysis.cells import of_variance
from ablate.analysis.data import StudyData
from ablate.stats.text import over_windows
from ablate.study import values

# ratio of the two arms' standard deviations over seeds from which on it is a finding
WIDER = 2.0
# size in a finding → its column
SIZES = {"params": "n_params", "params_body": "n_params_body", "flops": "flops"}
SURE = 0.01  # and the largest p of that ratio


def contrasts(data: StudyData) -> Iterator[records.Finding]:
    """Yield each contrast, followed by the findings that qualify it."""
    pairs = dict(iter(data.pairs.groupby(["family", "cell"], sort=False)))
    sizes = _sizes(data)
    keys = data.compared.groupby("cell")["key"].agg(frozenset)
    tested = [not {*cells} & data.sizeless for cells in data.effects[["cell", "baseline"]].values]
    study_p = np.full(len(tested), math.nan)
    study_p[tested] = stats.holm(data.effects["p"].to_numpy(float)[tested])
    for row, p_study in zip(data.effects.to_dict("records"), study_p, strict=True):
        of_row = pairs[row["family"], row["cell"]].sort_values("seed")
        which: dict[str, Any] = {
            name: str(row[name])
            for name in (
                *("stratum", "family", "factor", "level"),
                *("baseline_level", "cell", "baseline"),
            )
        }
        verdict = _verdict(data, row)
        yield _contrast(data, row, which, of_row, verdict, float(p_study))
        if data.crossed and verdict not in records.SIZELESS:
            parts = of_variance(paired.counted(of_row))
            if parts:
                yield records.DifferenceVariance(**which, **parts)
        if row["n"] and keys[row["cell"]] == keys[row["baseline"]]:
            yield records.SameRuns(**which)
        if verdict not in records.SIZELESS:
            yield from _equivalence(data, which, of_row, row)
            if not data.crossed:  # the tests of spread and failures need independent pairs
                yield from _spread(which, of_row)
        yield from _failures(data, which, of_row)
        yield from _mismatch(sizes, which)


def _verdict(data: StudyData, row: Mapping[Any, Any]) -> records.Verdict:
    if {row["cell"], row["baseline"]} & data.untrained:
        return "untrained"
    if {row["cell"], row["baseline"]} & data.lossy:
        return "lossy"
    if row["n"] < 2 or math.isnan(row["lo"]):
        return "unknown"
    if row["lost"]:
        return "partial"
    if not row["significant"]:
        return "inconclusive"
    better = row["mean"] < 0 if data.study.goal == "min" else row["mean"] > 0
    return "better" if better else "worse"


def _contrast(
    data: StudyData,
    row: Mapping[Any, Any],
    which: Mapping[str, Any],
    pairs: pd.DataFrame,
    verdict: records.Verdict,
    p_study: float,
) -> records.Contrast:
    numbers: dict[str, Any] = {field.name: row[field.name] for field in fields(records.Measured)}
    columns = ("seed", "value", "baseline_value", "status", "baseline_status")
    return records.Contrast(
        **which,
        **numbers,
        verdict=verdict,
        p_study=p_study,
        detectable=row["resolvable"],
        significant=bool(row["significant"]),
        pairs=tuple(
            records.Pair(int(seed), float(value), float(baseline), *map(str, statuses))
            for seed, value, baseline, *statuses in pairs[list(columns)].to_numpy(object)
        ),
        exact={row["cell"], row["baseline"]} <= data.exact,
        choice_error=paired.choice(pairs, data.choices).error if data.choices else math.nan,
        **_robust(pairs, verdict, data.crossed),
        **_new_text(data, row, pairs, verdict),
    )


def _new_text(
    data: StudyData, row: Mapping[Any, Any], pairs: pd.DataFrame, verdict: records.Verdict
) -> dict[str, Any]:
    """Return the interval for new seeds and new text, from losses of the same windows.

    What the contrast's own interval has beyond that of independent seeds is added. Where seeds
    change no window, as in models that are evaluated without training, it is one for new text.
    """
    arm, baseline = (data.windows.get(row[name]) for name in ("cell", "baseline"))
    unknown = {"text_lo": math.nan, "text_hi": math.nan}
    if arm is None or baseline is None or verdict in records.SIZELESS:
        return unknown
    counted = paired.counted(pairs).dropna().index
    difference = (arm - baseline).reindex(counted).dropna(how="all").dropna(axis="columns")
    if difference.shape[1] < 2 or len(difference) < len(counted):
        return unknown  # runs of an earlier version have no windows
    values = difference.to_numpy(float)
    if verdict == "unknown":
        exact = {row["cell"], row["baseline"]} <= data.exact
        if not exact and (len(values) < 2 or (values != values[0]).any()):
            return unknown
        _, effect = over_windows(values[0])
        half = (effect.hi - effect.lo) / 2
        return {"text_lo": row["mean"] - half, "text_hi": row["mean"] + half}
    one = stats.seed_by_text(values)
    # what the contrast's own noise has beyond that of independent seeds: choices, pilot, crossing
    beyond = ((row["hi"] - row["lo"]) / 2) ** 2 - ((one.seed_hi - one.seed_lo) / 2) ** 2
    half = math.sqrt(((one.hi - one.lo) / 2) ** 2 + max(beyond, 0.0))
    return {"text_lo": row["mean"] - half, "text_hi": row["mean"] + half}


def _robust(pairs: pd.DataFrame, verdict: records.Verdict, crossed: bool) -> dict[str, Any]:
    """Return the Hodges–Lehmann estimate of a contrast and the seeds that lie far from it."""
    difference = paired.counted(pairs)
    values = difference.to_numpy(float)
    if verdict in records.SIZELESS:
        values = np.full_like(values, math.nan)
    one = stats.hodges_lehmann(values)
    return {
        "median": one.estimate,
        # the signed-rank sum is that of independent pairs
        "median_lo": math.nan if crossed else one.lo,
        "median_hi": math.nan if crossed else one.hi,
        "outlying": _seeds(difference.index, stats.outlying(values).seeds),
    }


def _seeds(seeds: Iterable[Any], positions: Iterable[int]) -> tuple[int, ...]:
    known = list(seeds)
    return tuple(sorted(int(known[position]) for position in positions))


def _equivalence(
    data: StudyData, which: Mapping[str, Any], pairs: pd.DataFrame, row: Mapping[Any, Any]
) -> Iterator[records.Equivalence]:
    """Yield whether the difference is negligible.

    The margin is that of the study file, else the smallest at which such a study finds two equal
    arms equivalent with 80% power.
    """
    delta = (data.settings.get("report") or {}).get("delta")
    if row["lost"] or (delta is None and data.crossed):  # a proposal takes pairs as independent
        return
    if delta is None:
        # a margin from the noise of seeds alone would be too narrow where rates were chosen too
        free = row["sd"] > 0 and not paired.choice(pairs, data.choices).error
        margin = stats.proposed_margin(row["sd"], row["n"]) if free else math.nan
    else:
        margin = float(values.number("delta", delta))
    if math.isnan(margin):
        return
    test = paired.equivalence(pairs, margin, data.pilots, data.choices, crossed=data.crossed)
    if not math.isnan(test.p):
        yield records.Equivalence(
            **which, margin=margin, proposed=delta is None, p=test.p, equivalent=test.equivalent
        )


def _spread(which: Mapping[str, Any], pairs: pd.DataFrame) -> Iterator[records.Spread]:
    whole = pairs[paired.counted(pairs).notna().to_numpy()]
    arm, baseline = (whole[name].to_numpy(float) for name in ("value", "baseline_value"))
    test = stats.unequal_spread(arm, baseline)
    if test.p <= SURE and max(test.ratio, 1 / test.ratio) >= WIDER:
        levels = which["level"], which["baseline_level"]
        wide, narrow = levels if test.ratio > 1 else levels[::-1]
        yield records.Spread(
            **which,
            wide=wide,
            narrow=narrow,
            ratio=max(test.ratio, 1 / test.ratio),
            p=test.p,
            outlying=_seeds(
                whole["seed"].to_numpy(), stats.outlying(arm if test.ratio > 1 else baseline).seeds
            ),
        )


def _failures(
    data: StudyData, which: Mapping[str, Any], pairs: pd.DataFrame
) -> Iterator[records.Failures]:
    """Yield the failure rates of a contrast with failed runs."""
    done = pairs[paired.ended(pairs)]
    values: dict[str, Any] = {
        prefix: done[f"{prefix}value"]
        .astype(float)
        .where(done[f"{prefix}status"] == "complete")
        .to_numpy(np.float64)
        for prefix in ("", "baseline_")
    }
    failed = {prefix: ~np.isfinite(value) for prefix, value in values.items()}
    if not (failed[""].any() or failed["baseline_"].any()):
        return
    rates = stats.failure_rates(failed[""], failed["baseline_"])
    goal: Any = data.study.goal
    ranks = stats.worst_rank(values[""], values["baseline_"], goal=goal)
    tested: dict[str, Any] = {
        "rate_lo": rates.interval[0],
        "rate_hi": rates.interval[1],
        "p": rates.p,
        "p_worst_rank": ranks.p,
    }
    yield records.Failures(
        **which,
        ended=len(done),
        failed=_seeds(done["seed"].to_numpy(), np.flatnonzero(failed[""])),
        baseline_failed=_seeds(done["seed"].to_numpy(), np.flatnonzero(failed["baseline_"])),
        **(dict.fromkeys(tested, math.nan) if data.crossed else tested),
        worse=ranks.rank_sum_worse > ranks.rank_sum_better,
    )


def _mismatch(sizes: pd.DataFrame, which: Mapping[str, Any]) -> Iterator[records.Mismatch]:
    if which["cell"] in sizes.index and which["baseline"] in sizes.index:
        yield records.Mismatch(**which, **_relative(sizes, which))


def _relative(sizes: pd.DataFrame, which: Mapping[Any, Any]) -> dict[str, Any]:
    """Return by what share a cell is larger than its baseline, and its training more expensive."""
    one, other = (sizes.reindex([which[name]]).iloc[0] for name in ("cell", "baseline"))
    ratio = dict((one / other - 1).where(one != other, 0.0))  # of no FLOPs, too
    return {name: float(ratio[column]) for name, column in SIZES.items()}


def _sizes(data: StudyData) -> pd.DataFrame:
    return data.compared.groupby("cell")[list(SIZES.values())].first().astype(float)


def successive(data: StudyData) -> Iterator[records.Successive]:
    """Yield how each level differs from the one before it, for the factors of [report]."""
    sizes = _sizes(data)
    for row in data.successive.to_dict("records"):
        yield records.Successive(
            **{name: row[name] for name in ("stratum", "factor", "level", "lost")},
            before=row["baseline_level"],
            verdict=_verdict(data, row),
            **_relative(sizes, row),
            **_tested(row),
        )


def changes(data: StudyData) -> Iterator[records.Change]:
    """Yield how effects change from one stratum to another."""
    for row in data.changes.to_dict("records"):
        yield records.Change(
            **{name: row[name] for name in ("family", "factor", "level", "stratum", "first")},
            **_tested(row),
        )


def interactions(data: StudyData) -> Iterator[records.Interaction]:
    """Yield the effect of factors that were varied together beyond the sum of each alone.

    None of a stratum with an arm without an effect size.
    """
    lost = {row.stratum for row in data.arms.itertuples() if row.cell in data.sizeless}
    for row in data.interactions.to_dict("records"):
        if row["stratum"] in lost:
            continue
        yield records.Interaction(
            **{name: row[name] for name in ("factor", "level", "stratum")}, **_tested(row)
        )


def _tested(row: Mapping[Any, Any]) -> dict[str, Any]:
    names = ("n", "mean", "lo", "hi", "p", "p_holm", "significant")
    return {name: row[name] for name in names} | {"detectable": row["resolvable"]}
