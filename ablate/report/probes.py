"""Masked models: what their comparison is based on, and the table of probe ratios."""

from __future__ import annotations

from ablate import metrics
from ablate.report.data import ReportData
from ablate.report.document import Table, Value
from ablate.report.labels import decimals, percent
from ablate.report.tables import measured
from ablate.store.questions import quoted
from ablate.text.labels import LABELS
from ablate.units import listed


def sentences(data: ReportData) -> list[str]:
    """Say what a comparison of masked models is based on, in a study that probed some."""
    table = grid(data)
    if not table.rows:
        return []
    name = metrics.parse(data.study.metric)[0].name
    if name.startswith("probe_"):
        rests = (
            f"{data.labels.phrase}, of the same hidden tokens in every arm, which favours arms"
            " trained near that ratio"
        )
    elif metrics.METRICS[name].downstream:
        rests = f"{data.labels.phrase}, which favours no masking ratio"
    else:
        rests = f"{data.labels.phrase} at the ratio of training"
    ratios = listed(
        column.removeprefix("ratio ") for column in table.columns if column.startswith("ratio ")
    )
    return [
        f"Masked models: the answer is based on {rests}; masked losses at the probe ratios {ratios}"
        " are shown too."
    ]


def chance(data: ReportData) -> list[str]:
    """Return the accuracy of a guess, if the metric is a linear probe's; classes are balanced."""
    rule = LABELS.get(data.study.metric)
    if rule is None:
        return []
    classes = len(rule.names)
    return [
        f"Chance accuracy is {percent(1 / classes)}: the probe is tested on equally many passages"
        f" of each of {classes} classes."
    ]


def grid(data: ReportData) -> Table:
    """Return a table of masked loss by arm and probe ratio: the same hidden tokens in every arm."""
    finals = data.finals[data.finals["name"] == "probe_loss"].dropna(subset=["value"])
    means = finals.groupby(["cell", "at"])["value"].mean().unstack()
    spread = finals.groupby(["cell", "at"])["value"].std().median()
    several, rows = any(data.strata), []
    for arm in data.arms[data.arms["cell"].isin(means.index)].to_dict("records"):
        values = [
            measured(float(value), decimals(float(spread))) for value in means.loc[arm["cell"]]
        ]
        seeds = finals[finals["cell"] == arm["cell"]]["seed"].nunique()
        rows.append(
            (
                *((arm["stratum"],) if several else ()),
                str(arm["arm"]),
                Value(f"{seeds}", seeds),
                *values,
            )
        )
    return Table(
        "probe-grid",
        "Masked loss (nats per token) at each probe ratio, the mean over seeds. The same tokens are"
        " hidden in every arm; an arm does best near the ratio that it was trained at.",
        (
            *(("stratum",) if several else ()),
            "arm",
            "seeds",
            *(f"ratio {ratio:g}" for ratio in means.columns),
        ),
        tuple(rows),
        "SELECT stratum, cell, at AS ratio, avg(value) AS probe_loss\nFROM runs JOIN final ON"
        f" final.run_id = runs.run\nWHERE study = {quoted(data.study.name)} AND role ="
        " 'compare' AND name = 'probe_loss'\nGROUP BY cell, at;",
    )
