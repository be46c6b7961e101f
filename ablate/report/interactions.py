"""Factors that are varied together: whether they do more, or less, than each of them by itself."""

from __future__ import annotations

import math

from ablate.report.answers import Answer, Family, numbers
from ablate.report.data import ReportData
from ablate.report.document import Table, Value
from ablate.report.labels import decimals, detectable, ends, p_digits, p_value, plural, signed
from ablate.report.tables import measured
from ablate.store.questions import quoted
from ablate.units import listed


def families(data: ReportData) -> list[Family]:
    """Return a sentence on each significant interaction, and one on all others."""
    labels, answered = data.labels, []
    for (factor, stratum), part in data.interactions.groupby(["factor", "stratum"], sort=False):
        rows, answers = part.to_dict("records"), []
        for row in (row for row in rows if row["significant"]):
            digits = decimals((row["hi"] - row["lo"]) / 2)
            p = p_value(row["p_holm"])
            evidence = (
                f"{plural(row['n'], 'seed')};"
                f" {p if len(rows) == 1 else f'Holm {p} over {len(rows)} combinations'}"
            )
            text = (
                f"differs from the sum of its parts: {labels.phrase} changes by a further"
                f" {signed(row['mean'], digits)}{labels.after} (95% interval"
                f" {ends(row['lo'], row['hi'], digits)}; {evidence})."
            )
            answers.append(Answer(row["level"], text, "changed", numbers(row)))
        rest = [row for row in rows if not row["significant"] and row["n"]]
        see = detectable(labels, [row["resolvable"] for row in rest])
        rest_names = listed(row["level"] for row in rest)
        summary = (
            f"Not significantly different from the sum of the parts: {rest_names}"
            f"{f'; {see}' if see else ''}."
            if rest
            else ""
        )
        if answers or rest:
            where = f" at {stratum}" if stratum else ""
            beyond = (
                "Beyond the sum of its parts:"
                f" {listed(f'{one.level} ({one.numbers})' for one in answers)}. "
                if answers
                else ""
            )
            heading = f"{factor}{where}: is the joint effect the sum of the separate effects?"
            answered.append(Family(heading, summary, tuple(answers), beyond + summary))
    return answered


def interactions(data: ReportData) -> Table:
    """Return a table of all interactions: the effect together minus the sum of effects alone."""
    several = any(data.strata)
    rows = []
    for row in data.interactions.to_dict("records"):
        places = decimals((row["hi"] - row["lo"]) / 2)
        rows.append(
            (
                *((row["stratum"],) if several else ()),
                row["factor"],
                row["level"],
                Value(f"{row['n']}", row["n"]),
                Value(signed(row["mean"], places), row["mean"]),
                Value(
                    "–" if math.isnan(row["lo"]) else ends(row["lo"], row["hi"], places), row["lo"]
                ),
                Value(p_digits(row["p"]), row["p"]),
                Value(p_digits(row["p_holm"]), row["p_holm"]),
                measured(row["resolvable"], places),
            )
        )
    return Table(
        "interactions",
        f"Joint effects of factors on {data.labels.axis} minus the sum of their separate effects:"
        " the mean, over the seeds complete in all of these cells, of the joint difference from"
        " the baseline minus the single differences. Holm's correction is over the levels"
        " of the same factors.",
        (
            *(("stratum",) if several else ()),
            "factors",
            "levels",
            "seeds",
            "beyond the sum",
            "95% interval",
            "p",
            "Holm p",
            "detectable",
        ),
        tuple(rows),
        "-- the differences that are added up and subtracted\nSELECT stratum, factor, level, seed,"
        f" difference\nFROM pairs\nWHERE study = {quoted(data.study.name)} AND status ="
        " 'complete' AND baseline_status = 'complete';",
        data=data.interactions,
    )
