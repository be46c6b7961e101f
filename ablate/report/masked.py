"""Masked models: what their comparison is based on, and the table of probe ratios."""

from __future__ import annotations

import math
from statistics import median

from ablate import metrics
from ablate.analysis.records import ProbeLoss
from ablate.evaluation import CHANCE, LABELLED
from ablate.report.data import ReportData
from ablate.report.document import Table, Value
from ablate.report.labels import decimals
from ablate.report.sentences import say
from ablate.report.tables import measured
from ablate.store.questions import quoted
from ablate.text.labels import LABELS


def sentences(data: ReportData) -> list[str]:
    """Say what a comparison of masked models is based on, in a study that probed some."""
    ratios = sorted({one.ratio for one in data.findings.of(ProbeLoss)})
    if not ratios:
        return []
    name = metrics.final(data.study.metric)[0]
    basis = (
        "probe"
        if name.startswith("probe_")
        else "downstream"
        if name in metrics.METRICS and metrics.METRICS[name].downstream
        else "training"
    )
    return [say("probes", data.labels, basis, [f"{ratio:g}" for ratio in ratios])]


def chance(data: ReportData) -> list[str]:
    """Return the accuracy of a guess, if the metric is a linear probe's."""
    if rule := LABELS.get(data.study.metric):  # its classes are balanced
        return [say("chance", len(rule.names))]
    shares = data.finals.loc[data.finals["name"] == CHANCE, "value"].dropna()
    if data.study.metric != LABELLED or shares.empty:
        return []
    return [say("label_chance", float(shares.iloc[0]))]


def grid(data: ReportData) -> Table:
    """Return a table of masked loss by arm and probe ratio: the same hidden tokens in every arm."""
    found = data.findings.of(ProbeLoss)
    ratios = sorted({one.ratio for one in found})
    spreads = [one.sd for one in found if not math.isnan(one.sd)]
    places = decimals(median(spreads) if spreads else math.nan)
    by_cell: dict[str, dict[float, ProbeLoss]] = {}
    for one in found:
        by_cell.setdefault(one.cell, {})[one.ratio] = one
    several, rows = any(data.strata), []
    for at in by_cell.values():
        first = next(iter(at.values()))
        seeds = max(one.seeds for one in at.values())
        values = [
            measured(at[ratio].mean, places) if ratio in at else Value("–", None)
            for ratio in ratios
        ]
        rows.append(
            (*((first.stratum,) if several else ()), first.arm, Value(f"{seeds}", seeds), *values)
        )
    return Table(
        "probe-grid",
        "Masked loss (nats per token) at each probe ratio, the mean over seeds. The same tokens are"
        " hidden in every arm; an arm does best near the ratio that it was trained at.",
        (
            *(("stratum",) if several else ()),
            "arm",
            "seeds",
            *(f"ratio {ratio:g}" for ratio in ratios),
        ),
        tuple(rows),
        "SELECT stratum, cell, at AS ratio, avg(value) AS probe_loss\nFROM runs JOIN final ON"
        f" final.run_id = runs.run\nWHERE study = {quoted(data.study.name)} AND role ="
        " 'compare' AND name = 'probe_loss'\nGROUP BY cell, at;",
    )
