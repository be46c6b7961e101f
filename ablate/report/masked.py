"""Hidden tokens: what a comparison is based on, and the tables of probes."""

from __future__ import annotations

import math
from statistics import median

import pandas as pd

from ablate import metrics
from ablate.analysis.records import LinearProbe, ProbeLoss
from ablate.evaluation import CHANCE, LABELLED
from ablate.report.data import ReportData
from ablate.report.document import Table, Value
from ablate.report.labels import arm_of
from ablate.report.sentences import say
from ablate.report.tables import measured
from ablate.store.questions import quoted
from ablate.text.labels import LABELS
from ablate.units import decimals


def sentences(data: ReportData) -> list[str]:
    """Say what a comparison is based on, in a study that probed models on hidden tokens."""
    found = data.findings.of(ProbeLoss)
    hidden = sorted({one.ratio for one in found if one.name == "corrupted_loss"})
    ratios = sorted({one.ratio for one in found if one.name == "probe_loss"})
    said = [say("corrupted", [f"{ratio:g}" for ratio in hidden])] if hidden else []
    if not ratios:
        return said
    name = metrics.final(data.study.metric)[0]
    basis = (
        "probe"
        if name.startswith("probe_")
        else "downstream"
        if name in metrics.METRICS and metrics.METRICS[name].downstream
        else "training"
    )
    return [*said, say("probes", data.labels, basis, [f"{ratio:g}" for ratio in ratios])]


EQUAL = 1e-9  # of two accuracies, whose last bits may differ
# accuracy → the final that has the share of the class that is commonest where a model is trained
_CHANCE = {LABELLED: CHANCE, "task_accuracy": "task_chance"}


def chance(data: ReportData) -> list[str]:
    """Return what a guess, or an empty output, has of the metric, and which arms are no better.

    [] for a metric without such a bound, and for error rates that are all better.
    """
    metric, bounds, below = metrics.final(data.study.metric)[0], _bounds(data), no_better(data)
    if bounds.empty or (metric == "error_rate" and below.empty):
        return []
    if rule := LABELS.get(metric):  # its classes are balanced
        said = say("chance", len(rule.names))
    elif metric == "error_rate":
        said = say("empty_output")
    else:
        said = say("label_chance", bounds.min(), bounds.max(), metric)
    if below.empty:
        return [said]
    columns = (below[name].astype(str) for name in ("cell", "arm", "stratum"))
    names = [arm_of(*one) for one in zip(*columns, strict=True)]
    return [f"{said} {say('no_better', names, len(below) == len(bounds), metric)}"]


def no_better(data: ReportData) -> pd.DataFrame:
    """Return the rows of `data.arms` that are on average no better than a guess."""
    bounds = _bounds(data)
    means = data.good.groupby("cell")["metric"].mean().reindex(bounds.index)
    beyond = means - bounds if data.study.goal == "max" else bounds - means
    return data.arms[data.arms["cell"].isin(beyond.index[beyond <= EQUAL])]


def _bounds(data: ReportData) -> pd.Series:
    """Return cell → the accuracy of a guess, or the error rate of an empty output, if known."""
    metric = metrics.final(data.study.metric)[0]
    cells = pd.Index([] if data.study.own else data.good["cell"].unique())
    if rule := LABELS.get(metric):
        return pd.Series(1 / len(rule.names), cells)
    if metric == "error_rate":
        return pd.Series(1.0, cells)
    known = data.finals[data.finals["name"] == _CHANCE.get(metric)]
    return known.groupby("cell")["value"].mean().reindex(cells).dropna()


def grids(data: ReportData) -> list[Table]:
    """Return tables of loss by arm and probe ratio, and of linear probes by arm."""
    return [
        _table(
            data,
            "probe-grid",
            "Masked loss (nats per token) at each probe ratio, the mean over seeds. The same tokens"
            " are hidden in every arm; an arm does best near the ratio that it was trained at.",
            _losses(data, "probe_loss"),
        ),
        _table(
            data,
            "corrupted-grid",
            "Loss on hidden tokens (nats per token) at each probe ratio, the mean over seeds. The"
            " same tokens are hidden in every arm.",
            _losses(data, "corrupted_loss"),
        ),
        _table(
            data,
            "linear-probes",
            "Accuracy of linear probes on frozen features, the mean over seeds.",
            [
                (one, one.name, 0.0, one.name.replace("_", " "))
                for one in data.findings.of(LinearProbe)
            ],
        ),
    ]


# a finding, the name and place of its final, and its column
Cell = tuple[ProbeLoss | LinearProbe, str, float, str]


def _losses(data: ReportData, name: str) -> list[Cell]:
    found = data.findings.of(ProbeLoss, lambda one: one.name == name)
    return [(one, name, one.ratio, f"ratio {one.ratio:g}") for one in found]


def _table(data: ReportData, table: str, caption: str, found: list[Cell]) -> Table:
    """Return a table of means with a row for each cell, in the order of columns in `found`."""
    columns = list(dict.fromkeys(column for *_, column in sorted(found, key=lambda one: one[2])))
    spreads = [one.sd for one, *_ in found if not math.isnan(one.sd)]
    places = decimals(median(spreads) if spreads else math.nan)
    by_cell: dict[str, dict[str, ProbeLoss | LinearProbe]] = {}
    for one, _, _, column in found:
        by_cell.setdefault(one.cell, {})[column] = one
    several, rows = any(data.strata), []
    for of_cell in by_cell.values():
        first = next(iter(of_cell.values()))
        seeds = max(one.seeds for one in of_cell.values())
        values = [
            measured(of_cell[column].mean, places) if column in of_cell else Value("–", None)
            for column in columns
        ]
        rows.append(
            (*((first.stratum,) if several else ()), first.arm, Value(f"{seeds}", seeds), *values)
        )
    names = ", ".join(quoted(name) for name in dict.fromkeys(name for _, name, *_ in found))
    return Table(
        table,
        caption,
        (*(("stratum",) if several else ()), "arm", "seeds", *columns),
        tuple(rows),
        "SELECT stratum, cell, name, at, avg(value) AS mean\nFROM runs JOIN final ON"
        f" final.run_id = runs.run\nWHERE study = {quoted(data.study.name)} AND role ="
        f" 'compare' AND name IN ({names})\nGROUP BY cell, name, at;",
    )
