"""What a study decided: learning rates, the effect and cost of tuning them, number of seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from ablate import tune
from ablate.report.data import ReportData
from ablate.report.document import Table, Value
from ablate.report.labels import decimals, ends, number, percent, plural, sentence, signed
from ablate.report.tables import measured, quoted
from ablate.units import duration, listed

Evidence = Mapping[str, Any]  # evidence of a decision on a learning rate, with its cell and value


def learning_rates(data: ReportData) -> list[dict[str, Any]]:
    """Return the learning rates: evidence, `cell`, `value` and `curve` (rate → metric)."""
    rows = data.decisions[data.decisions["name"] == "lr"].to_dict("records")
    order = {cell: index for index, cell in enumerate(data.arms["cell"])}
    rows.sort(key=lambda row: order[row["cell"]])
    return [
        {
            **row["evidence"],
            "cell": row["cell"],
            "value": row["value"],
            "curve": _curve(row["evidence"]),
        }
        for row in rows
    ]


def _curve(evidence: Mapping[str, Any]) -> dict[float, float]:
    """Rate → metric, the mean over tuning seeds."""
    means = np.mean(tune.values(evidence), axis=0)
    return dict(zip(evidence["rates"], map(float, means), strict=True))


def _at_own(row: Evidence) -> float:
    """Metric at the chosen rate: of the fitted curve, where one was fitted."""
    fitted = row.get("fitted")
    return float(row["curve"].get(row["value"], math.nan) if fitted is None else fitted)


def names(data: ReportData) -> dict[str, str]:
    """Return representative cell → the name of its group in a figure.

    It is the arm where the group has cells of one arm, else the group's name.
    """
    arm = data.arms.set_index("cell")["arm"].astype(str)
    group_names = {}
    for row in learning_rates(data):
        own = {arm[cell] for cell in row["cells"] if cell in arm.index}
        group_names[row["cell"]] = own.pop() if len(own) == 1 else row["group"]
    return group_names


def paragraphs(data: ReportData) -> list[str]:
    """Return what was tuned on what, at what cost, and what tuning changed."""
    rows = learning_rates(data)
    sentences = [*_cost(data), *_shared_by(rows), *_edges(rows)]
    for stratum in data.strata:
        sentences += _changed(data, stratum, _against_shared(data, rows, stratum))
    return sentences


def _cost(data: ReportData) -> Iterator[str]:
    seconds = data.attempts.drop_duplicates("id").groupby("role")["device_seconds"].sum()
    if seconds.get("tune", 0) > 0:
        tuning = data.runs[data.runs["role"] == "tune"]["run"].nunique()
        share = percent(float(seconds["tune"] / seconds.sum()))
        took = duration(float(seconds["tune"]))
        yield (
            f"Tuning took {plural(tuning, 'run')} and {took} of device time, {share} of the"
            " study's."
        )


def _shared_by(rows: list[dict[str, Any]]) -> Iterator[str]:
    if any(len(row["cells"]) > 1 for row in rows):
        yield (
            "Each learning rate was tuned on the first cell of its group and is used for the"
            " group's other cells, a disadvantage for those that need another rate."
        )


def _edges(rows: list[dict[str, Any]]) -> Iterator[str]:
    hopeless = [row["group"] for row in rows if not np.isfinite(list(row["curve"].values())).any()]
    edge = [row["group"] for row in rows if row["at_edge"] and row["group"] not in hopeless]
    if hopeless:
        yield (f"{sentence(listed(hopeless))} diverged at every rate tried; the lowest is used.")
    if edge:
        yield (
            f"The rate of {listed(edge)} is at the edge of the rates that were tried; a better one"
            " may lie beyond."
        )


def rates(data: ReportData) -> Table:
    """Return a table of the chosen learning rates, with the rates tried and the sensitivity."""
    called = names(data)
    rows: list[tuple[str | Value, ...]] = []
    for row in learning_rates(data):
        finite = [value for value in row["curve"].values() if math.isfinite(value)]
        diverged = len(row["curve"]) - len(finite)
        best = _at_own(row)
        missed = _sensitivity(data, row)
        rows.append(
            (
                (
                    row["group"]
                    if row["group"] != "all cells" or len(called) == 1
                    else called[row["cell"]]
                ),
                Value(f"{row['value']:.3g}" + (" (edge)" if row["at_edge"] else ""), row["value"]),
                Value(
                    f"{len(row['rates'])} from {row['rates'][0]:.3g} to {row['rates'][-1]:.3g}",
                    len(row["rates"]),
                ),
                Value(f"{diverged}" if diverged else "–", diverged),
                measured(best, 4),
                measured(missed, 3),
                Value(f"{len(row['cells'])}", len(row["cells"])),
            )
        )
    return Table(
        "rates",
        f"The learning rate of each group, chosen by {data.labels.axis} on seeds that are not"
        " compared, before any compared run used it. Sensitivity: the mean over the study file's"
        " rates of min(loss, ln n_vocab) minus the smallest of them, in nats per token (Wortsman et"
        " al. 2023).",
        ("group", "chosen", "rates tried", "diverged", data.labels.phrase, "sensitivity", "cells"),
        tuple(rows),
        "SELECT cell.label AS cell, decision.value AS chosen, evidence ->> 'rates' AS rates,"
        " evidence ->> 'values' AS metric\nFROM decision JOIN cell ON cell.id = decision.cell_id"
        " JOIN study ON study.id = decision.study_id\nWHERE study.name ="
        f" {quoted(data.study.name)} AND decision.name = 'lr';",
        data=data.decisions,
    )


def _sensitivity(data: ReportData, row: Evidence) -> float:
    """Return the sensitivity of the held-out loss to the rates of the ladder.

    ln n_vocab is the loss of a uniform prediction.
    """
    runs = data.runs[(data.runs["role"] == "tune") & (data.runs["cell"] == row["cell"])]
    whole = runs["loss"].astype(float).where(runs["status"] == "complete")
    by_rate = whole.groupby(runs["lr"]).agg(lambda losses: losses.mean(skipna=False))
    ended = runs[runs["status"].isin(["complete", "diverged"])]["lr"]
    ladder = [rate for rate in row["ladder"] if rate in set(ended)]
    return (
        tune.sensitivity(
            [float(by_rate[rate]) for rate in ladder], math.log(float(runs["n_vocab"].iloc[0]))
        )
        if ladder
        else math.nan
    )


# -- against one rate for all ----------------------------------------------------------------------


def _against_shared(data: ReportData, rows: list[dict[str, Any]], stratum: str) -> pd.DataFrame:
    """Return what the arms of a stratum reach at the baseline's best rate and at their own.

    The frame has the columns cell, arm, shared (the rate), own, at_shared, at_own, with the
    baseline first, on the seeds that tuned; it is empty with fewer than two arms.
    """
    cells = data.arms[data.arms["stratum"] == stratum]
    of_stratum = [row for row in rows if row["cell"] in set(cells["cell"])]
    base = next(
        (row for row in of_stratum if row["cell"] in set(cells.loc[cells["is_baseline"], "cell"])),
        None,
    )
    if base is None or len(of_stratum) < 2:
        return pd.DataFrame()
    common = [
        rate
        for rate in base["rates"]
        if all(rate in row["curve"] for row in of_stratum) and np.isfinite(base["curve"][rate])
    ]
    if not common:
        return pd.DataFrame()
    sign = 1 if data.study.goal == "min" else -1
    shared = min(common, key=lambda rate: (sign * base["curve"][rate], rate))
    called = names(data)
    return pd.DataFrame(
        [
            {
                "cell": row["cell"],
                "arm": called[row["cell"]],
                "shared": shared,
                "own": row["value"],
                "at_shared": row["curve"][shared],
                "at_own": _at_own(row),
            }
            for row in [base, *(row for row in of_stratum if row is not base)]
        ]
    )


def changed(data: ReportData) -> Table:
    """Return a table of every arm at its baseline's best rate and at its own."""
    rows: list[tuple[str | Value, ...]] = []
    compared = data.effects.set_index("cell")
    several = any(data.strata)
    tuned_on = plural(max((len(row["seeds"]) for row in learning_rates(data)), default=0), "seed")
    for stratum in data.strata:
        frame = _against_shared(data, learning_rates(data), stratum)
        for row in frame.to_dict("records"):
            base = frame.iloc[0]
            rows.append(
                (
                    *((stratum,) if several else ()),
                    row["arm"],
                    Value(f"{row['shared']:.3g}", row["shared"]),
                    Value(f"{row['own']:.3g}", row["own"]),
                    Value(
                        "diverged" if math.isnan(row["at_shared"]) else number(row["at_shared"]),
                        row["at_shared"],
                    ),
                    Value(
                        "diverged" if math.isnan(row["at_own"]) else number(row["at_own"]),
                        row["at_own"],
                    ),
                    Value(
                        signed(row["at_shared"] - base["at_shared"]),
                        row["at_shared"] - base["at_shared"],
                    ),
                    Value(signed(row["at_own"] - base["at_own"]), row["at_own"] - base["at_own"]),
                    (
                        _compared(compared.loc[row["cell"]])
                        if row["cell"] in compared.index
                        else Value("baseline", None)
                    ),
                )
            )
    return Table(
        "tuning-changed",
        f"What tuning changed: {data.labels.axis} at one rate for all, the best of the baseline"
        " among those that every arm was trained with, and at each arm's own rate; then the"
        f" difference from the baseline at either. These are of {tuned_on} that tuned: the"
        " choice partly follows the noise there, which favours the chosen rate. The last"
        " column is the effect at the arms' own rates with its 95% interval, on the seeds that are"
        " compared.",
        (
            *(("stratum",) if several else ()),
            "arm",
            "shared rate",
            "own rate",
            "at the shared",
            "at its own",
            "difference, shared",
            "difference, own",
            "effect, own",
        ),
        tuple(rows),
        "SELECT stratum, cell, lr, avg(metric) AS metric, sum(status = 'diverged') AS"
        f" diverged\nFROM runs\nWHERE study = {quoted(data.study.name)} AND role ="
        " 'tune'\nGROUP BY cell, lr;",
    )


def _compared(effect: pd.Series) -> Value:
    if not effect["n"]:
        return Value("–", None)
    places = decimals((effect["hi"] - effect["lo"]) / 2)
    return Value(
        f"{signed(effect['mean'], places)} ({ends(effect['lo'], effect['hi'], places)})",
        effect["mean"],
    )


def _changed(data: ReportData, stratum: str, frame: pd.DataFrame) -> Iterator[str]:
    """Yield which arms diverge without tuning, and which difference tuning changed most."""
    if frame.empty:
        return
    base, others = frame.iloc[0], frame.iloc[1:]
    begin = (
        f"{f'At {stratum}, with' if stratum else 'With'} the best common learning rate of"
        f" {base['arm']} ({base['shared']:.3g})"
    )
    lost = others[others["at_shared"].isna()]
    if len(lost):
        yield f"{begin} {listed(lost['arm'])} diverged."
    whole = others.dropna(subset=["at_shared", "at_own"])
    if len(whole):
        untuned = (whole["at_shared"] - base["at_shared"]).to_numpy(float)
        tuned = (whole["at_own"] - base["at_own"]).to_numpy(float)
        most = int(np.argmax(np.abs(tuned - untuned)))
        digits = decimals(max(min(abs(tuned[most]), abs(untuned[most])), 1e-3))
        if tuned[most] == untuned[most]:
            yield f"{begin} every difference from {base['arm']} is the same."
        else:
            yield (
                f"{begin} {whole['arm'].iloc[most]} − {base['arm']} is"
                f" {signed(untuned[most], digits)}{data.labels.after}; with each arm's own rate it"
                f" is {signed(tuned[most], digits)}, both on the seeds that tuned. This is the"
                f" largest change. {_on_compared_seeds(data, whole.iloc[most], digits)}"
            )


def _on_compared_seeds(data: ReportData, arm: pd.Series, digits: int) -> str:
    """Return the difference at own rates on the compared seeds, with its standard deviation.

    No rate was chosen on these seeds.
    """
    effect = next(
        (row for row in data.effects.to_dict("records") if row["cell"] == arm["cell"]), None
    )
    chosen = "The choice of a rate partly follows the noise of those seeds"
    if effect is None or effect["n"] < 2:
        return f"{chosen}, so only the compared seeds will show how much of it remains."
    return (
        f"{chosen}; on the {effect['n']} compared seeds, at the same rates, the difference is"
        f" {signed(effect['mean'], digits)}, with a standard deviation over seeds of"
        f" {number(effect['sd'], digits)}."
    )


# -- seeds -----------------------------------------------------------------------------------------


def seeds(data: ReportData) -> Iterator[str]:
    """Yield how many seeds each stratum got, and why."""
    decided = data.decisions[data.decisions["name"] == "seeds"].to_dict("records")
    for row in decided:
        evidence = row["evidence"]
        where = f"At {evidence['stratum']} the" if evidence["stratum"] else "The"
        required = max((count for count in evidence["wanted"].values() if count), default=0)
        capped = (
            f"; the requested resolution needs {required}, more than the study file allows, so"
            " intervals may be wider"
            if evidence["capped"]
            else ""
        )
        blind = [cell for cell, count in evidence["wanted"].items() if count is None]
        unseen = (
            f" {listed(blind)} lost too many pairs of the pilot to be included." if blind else ""
        )
        yield (
            f"{where} pilot of {plural(len(evidence['pilot']), 'seed')} decided on"
            f" {int(row['value'])} seeds, for 95% intervals within"
            f" ±{evidence['resolution']:g}{data.labels.after}{capped}.{unseen}"
        )
