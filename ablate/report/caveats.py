"""Caveats of one contrast: lost runs, how far its test can be trusted, what else differs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ablate import analysis, stats
from ablate.plan.compare import MISMATCH
from ablate.report.data import ReportData
from ablate.report.labels import number, p_value, percent, plural
from ablate.study import values
from ablate.units import listed

BROKEN = {
    "diverged": "diverged",
    "failed": "failed",
    "oom": "ran out of memory",
    "complete": "has no finite value",
}
# ratio of the two arms' standard deviations over seeds from which on there is a warning
WIDER = 2.0
SURE = 0.01  # and the largest p of that ratio


def caveats(
    data: ReportData, row: Mapping[Any, Any], pairs: pd.DataFrame, verdict: str
) -> list[str]:
    """Return the sentences that follow the claim of a contrast.

    Args:
        data: of the study.
        row: the contrast, a row of the effects.
        pairs: its rows of the view `pairs`.
        verdict: "better", "worse", "unresolved" or "unknown".
    """
    return [
        *_same(data, row),
        *_equivalence(data, pairs, verdict),
        *_losses(row, pairs),
        *_spread(row, pairs),
        *_instability(data, row),
        *_confounds(data, row),
    ]


def _same(data: ReportData, row: Mapping[Any, Any]) -> Iterator[str]:
    runs = data.compared.groupby("cell")["key"].agg(set)
    if row["n"] and runs[row["cell"]] == runs[row["baseline"]]:
        yield "The two are the same configuration under two names: they share their runs."


def _equivalence(data: ReportData, pairs: pd.DataFrame, verdict: str) -> Iterator[str]:
    """Yield whether the difference is negligible, by the margin in the study file."""
    delta = (data.settings.get("report") or {}).get("delta")
    if delta is None or pairs.empty:
        return
    margin, unit = float(values.number("delta", delta)), data.labels.after
    test = analysis.equivalence(pairs, margin, data.pilots, data.choices)
    if math.isnan(test.p):
        return
    if test.equivalent:
        yield (
            f"The two are equivalent within ±{margin:g}{unit} (two one-sided tests,"
            f" {p_value(test.p)})."
        )
    elif verdict == "unresolved":
        yield (
            f"Equivalence within ±{margin:g}{unit} was not established (two one-sided tests,"
            f" {p_value(test.p)})."
        )


def nothing(row: Mapping[Any, Any], pairs: pd.DataFrame) -> str:
    """Return why a contrast without a pair has none."""
    if not row["lost"]:
        return "its runs are not finished" if row["pending"] else "there is no pair"
    if row["pending"]:
        what = (
            f"{plural(row['lost'], 'pair')} {'is' if row['lost'] == 1 else 'are'} lost and"
            f" {row['pending']} still to run"
        )
    else:
        what = {1: "its only pair is lost", 2: "both pairs are lost"}.get(
            row["lost"], f"all {row['lost']:,} pairs are lost"
        )
    return f"{what}: {_reasons(row, pairs)}"


def _losses(row: Mapping[Any, Any], pairs: pd.DataFrame) -> Iterator[str]:
    """Yield how many pairs are lost or pending, and why."""
    if row["n"] and row["lost"]:
        total = row["n"] + row["lost"]
        yield (
            f"{row['lost']} of {plural(total, 'pair')} {'is' if row['lost'] == 1 else 'are'} lost:"
            f" {_reasons(row, pairs)}."
        )
        if row["n"] > 1:
            yield "The test uses the remaining pairs, which favours an arm that loses seeds."
    if row["n"] and row["pending"]:
        yield (
            f"{plural(row['pending'], 'pair')} {'has' if row['pending'] == 1 else 'have'} not"
            " been run yet."
        )


def _reasons(row: Mapping[Any, Any], pairs: pd.DataFrame) -> str:
    """Return how runs ended without a value: "parallel diverged with seeds 1 and 3; …"."""
    done, reasons = pairs[analysis.ended(pairs)], []
    for name, prefix in ((row["level"], ""), (row["baseline_level"], "baseline_")):
        status = done[f"{prefix}status"]
        broken = done[(status != "complete") | ~np.isfinite(done[f"{prefix}value"].astype(float))]
        reasons += [
            f"{name} {BROKEN[str(why)]} with seed{'s' if len(part) > 1 else ''}"
            f" {listed(sorted(part['seed']))}"
            for why, part in broken.groupby(f"{prefix}status")
        ]
    return "; ".join(reasons)


def _spread(row: Mapping[Any, Any], pairs: pd.DataFrame) -> Iterator[str]:
    """Yield a warning if one arm's seeds clearly spread wider: see docs/method.md, A/A studies."""
    whole = pairs[analysis.counted(pairs).notna().to_numpy()]
    test = stats.unequal_spread(
        whole["value"].to_numpy(float), whole["baseline_value"].to_numpy(float)
    )
    if test.p <= SURE and max(test.ratio, 1 / test.ratio) >= WIDER:
        wide, narrow = (row["level"], row["baseline_level"])[:: 1 if test.ratio > 1 else -1]
        ratio = number(max(test.ratio, 1 / test.ratio), 1)
        yield (
            f"The seeds of {wide} spread {ratio} times as widely as those of {narrow}"
            f" ({p_value(test.p)}, Pitman–Morgan): where one arm has a tail of bad seeds, such"
            " tests have 7 to 17% false positives instead of 5%."
        )


def _instability(data: ReportData, row: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the rate at which an arm diverges, if only some of its runs do."""
    runs = data.compared[data.compared["cell"] == row["cell"]]
    ended = runs[runs["status"].isin(["complete", "diverged"])]
    diverged = int((ended["status"] == "diverged").sum())
    if 0 < diverged < len(ended):
        low, high = stats.wilson(diverged, len(ended))
        yield (
            f"It is unstable: {diverged} of {plural(len(ended), 'run')} diverged"
            f" ({percent(diverged / len(ended))}, 95% Wilson interval {percent(low)} to"
            f" {percent(high)})."
        )


def _confounds(data: ReportData, row: Mapping[Any, Any]) -> Iterator[str]:
    """Yield how much larger or more expensive the arm is than its baseline."""
    sizes = data.compared.groupby("cell")[["n_params_body", "flops"]].first()
    if row["cell"] not in sizes.index or row["baseline"] not in sizes.index:
        return
    ratio = sizes.loc[row["cell"]].astype(float) / sizes.loc[row["baseline"]].astype(float) - 1
    named = {"n_params_body": "parameters (without embeddings and head)", "flops": "training FLOPs"}
    differences = [
        f"{percent(abs(ratio[column]))} {'more' if ratio[column] > 0 else 'fewer'} {text}"
        for column, text in named.items()
        if abs(ratio[column]) > MISMATCH
    ]
    if differences:
        yield f"It has {listed(differences)}."
