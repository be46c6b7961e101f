"""The answer in sentences for a paper: the best arms, one sentence a contrast, one a family."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ablate import analysis
from ablate.report.caveats import caveats, nothing
from ablate.report.data import ReportData
from ablate.report.labels import (
    MetricLabels,
    decimals,
    detectable,
    ends,
    number,
    p_value,
    plural,
    sentence,
    signed,
)
from ablate.units import listed

VERDICTS = {  # of a contrast → words
    "better": "better",
    "worse": "worse",
    "unresolved": "not significantly different",
    "unknown": "without an answer",
}
FEW = 3  # strata that each have a line of their own
# from this many contrasts on, the answer summarises families and lists contrasts below
MANY = 10


@dataclass(frozen=True)
class Answer:
    """The result of one contrast, as a sentence that begins with the level's name."""

    level: str
    text: str  # what follows the level's name
    verdict: str  # "better" | "worse" | "unresolved" | "unknown" | "changed"
    numbers: str = ""  # "+0.178, +0.122 to +0.233": the difference and its 95% interval
    detectable: float = math.nan  # the smallest effect detected with 80% power


@dataclass(frozen=True)
class Family:
    """The contrasts that are corrected together, and a summary of them."""

    heading: str  # "topology at n_layer=4, against serial"
    summary: str
    answers: tuple[Answer, ...]
    # the summary with the numbers of significant contrasts: for a study of many
    brief: str = ""


def lead(data: ReportData) -> list[str]:
    """Return which arm has the best mean in each stratum, without a test."""
    if len(data.strata) > FEW:
        return list(_winners(data))
    return [text for stratum in data.strata for text in _best(data, stratum)]


def brief(data: ReportData) -> bool:
    """Return whether the study has so many contrasts that each family gets one sentence."""
    return len(data.effects) >= MANY


def legend(data: ReportData) -> str:
    """Return what a brief answer is based on and what its numbers are."""
    any_significant = (
        data.effects["significant"].any()
        or data.changes["significant"].any()
        or data.interactions["significant"].any()
    )
    return (
        (
            f"In brackets: the difference in {data.labels.axis} with its 95% interval. "
            if any_significant
            else ""
        )
        + "Significance is after Holm's correction over a family. The report's section Effects"
        " has a sentence on each contrast."
    )


def verdict(data: ReportData) -> list[str]:
    """Return a line a family on its contrasts, or one line where there are many families."""
    all_families = families(data)
    if len(all_families) <= FEW:
        return [f"{sentence(family.heading)}: {family.brief}" for family in all_families]
    all_answers = [answer for family in all_families for answer in family.answers]
    counts = Counter(answer.verdict for answer in all_answers)
    counted = [
        f"{counts[name]} {'is' if counts[name] == 1 else 'are'} {text}"
        for name, text in VERDICTS.items()
        if counts[name]
    ]
    see = detectable(
        data.labels, [answer.detectable for answer in all_answers if answer.verdict == "unresolved"]
    )
    return [
        f"Of {plural(len(all_answers), 'contrast')} with a baseline"
        f" {listed(counted)}{f': {see}' if see else ''}."
    ]


def _winners(data: ReportData) -> Iterator[str]:
    """Yield how many strata each arm leads, and how many of these leads are not significant."""
    labels, means = (
        data.labels,
        data.good.groupby(["stratum", "arm"], observed=True)["metric"].mean(),
    )
    best: dict[str, list[str]] = {}
    unsure = 0
    for stratum in data.strata:
        if stratum in means.index and len(means[stratum]) > 1:
            arm, following = means[stratum].sort_values(ascending=labels.goal == "min").index[:2]
            best.setdefault(str(arm), []).append(stratum)
            unsure += bool(_unsure(data, stratum, arm, following))
    if best:
        ranked = sorted(best.items(), key=lambda item: -len(item[1]))
        named = [
            f"{_called(data, arm)} in {len(strata)} of {len(data.strata)} strata ({_some(strata)})"
            for arm, strata in ranked
        ]
        doubt = (
            f", but in {unsure} of these the lead over the next is not significant"
            if unsure
            else ""
        )
        yield (
            f"The {'lowest' if labels.goal == 'min' else 'highest'} mean {labels.phrase} is reached"
            f" by {listed(named)}{doubt}."
        )
        yield from _lost(data, data.compared)


def _called(data: ReportData, arm: Any) -> str:
    """Return the level of an arm, with the factor's name if the level is a number."""
    factors = data.effects["factor"].unique()
    return (
        f"{factors[0]}={arm}"
        if len(factors) == 1 and re.fullmatch(r"[\d.e+-]+", str(arm))
        else str(arm)
    )


def _some(strata: Sequence[str]) -> str:
    return "; ".join(strata[:FEW]) + (f"; {len(strata) - FEW} more" if len(strata) > FEW else "")


def _best(data: ReportData, stratum: str) -> Iterator[str]:
    """Yield the two best means of a stratum with their significance, and the lost seeds."""
    labels = data.labels
    compared = data.compared[data.compared["stratum"] == stratum]
    good = data.good[data.good["stratum"] == stratum].groupby("arm", observed=True)["metric"]
    means = good.mean().sort_values(ascending=labels.goal == "min")
    if len(means) < 2:
        return
    seeds, (first, following) = compared.groupby("arm", observed=True).size(), means.index[:2]
    digits, equal = _telling(
        float(means.iloc[0]), float(means.iloc[1]), decimals(float(good.std().median()))
    )
    best, second = (
        f"{_called(data, name)} ({number(float(means[name]), digits)}{unit}"
        + (
            f", over {good.size()[name]} of {seeds[name]} seeds)"
            if good.size()[name] < seeds[name]
            else ")"
        )
        for name, unit in zip(means.index, (labels.after, ""), strict=False)
    )
    where, side = (
        f"At {stratum} the" if stratum else "The",
        "lowest" if labels.goal == "min" else "highest",
    )
    doubt = equal + _unsure(data, stratum, first, following)
    yield f"{where} {side} mean {labels.phrase} is reached by {best}, followed by {second}{doubt}."
    yield from _lost(data, compared)


def _telling(one: float, other: float, digits: int) -> tuple[int, str]:
    """Return at least `digits` decimals that show two means apart, and a remark if none do."""
    enough = next((n for n in range(digits, 6) if number(one, n) != number(other, n)), None)
    return (digits, ", equal to the digits shown") if enough is None else (enough, "")


def _unsure(data: ReportData, stratum: str, first: Any, second: Any) -> str:
    """Return a remark if no significant contrast separates a stratum's two best arms, else ""."""
    arms = data.arms[data.arms["stratum"] == stratum].set_index("arm")["cell"].astype(str)
    pair = {arms[first], arms[second]}
    between = data.effects[[{row.cell, row.baseline} == pair for row in data.effects.itertuples()]]
    if between.empty:
        return "; the two are compared with the baseline, not with each other"
    return "" if between["significant"].any() else "; the difference is not significant"


def _lost(data: ReportData, compared: pd.DataFrame) -> Iterator[str]:
    """Yield a warning that names the arms with seeds missing from their means."""
    lost = compared[
        compared["status"].isin(analysis.ENDED) & ~compared["run"].isin(data.good["run"])
    ]
    runs = compared.groupby("arm", observed=True).size()
    named = [
        f"{_called(data, name)} lost {len(part)} of {plural(runs[name], 'run')}"
        for name, part in lost.groupby("arm", observed=True)
    ]
    if named:
        yield f"Means are over completed runs, which favours arms that lost some: {listed(named)}."


def families(data: ReportData) -> list[Family]:
    """Return the answers of a study, family by family.

    Where each family has one level only, they are one.
    """
    parts = [part.to_dict("records") for _, part in data.effects.groupby("family", sort=False)]
    if len(parts) > 1 and all(len(rows) == 1 for rows in parts):
        answers = tuple(_answer(data, rows[0], "", _full_name(data, rows[0])) for rows in parts)
        factors = data.effects["factor"].unique()
        heading = (
            f"{factors[0]}, at each of {len(parts)} strata"
            if len(factors) == 1
            else "each factor by itself, against the baseline"
        )
        return [Family(heading, *_summaries(data.labels, "the baseline", answers))]
    answered = []
    for rows in parts:
        first, several = rows[0], len({row["factor"] for row in rows}) > 1
        over = _over(len(rows), "part" if several else "level")
        answers = tuple(
            _answer(data, row, over, f"{row['factor']}={row['level']}" if several else row["level"])
            for row in rows
        )
        where = f" at {first['stratum']}" if first["stratum"] else ""
        what, baseline = (
            ("each part by itself", "the baseline")
            if several
            else (first["factor"], first["baseline_level"])
        )
        answered.append(
            Family(
                f"{what}{where}, against {baseline}", *_summaries(data.labels, baseline, answers)
            )
        )
    return answered


def _full_name(data: ReportData, row: Mapping[Any, Any]) -> str:
    """Return the level with what distinguishes it, where each family has one level."""
    several = data.effects["factor"].nunique() > 1
    return (f"{row['factor']}={row['level']}" if several else row["level"]) + (
        f" at {row['stratum']}" if row["stratum"] else ""
    )


def changes(data: ReportData) -> list[Family]:
    """Return how effects change from the first stratum to the others."""
    labels, answered = data.labels, []
    single = bool(len(data.changes)) and data.changes.groupby("family").size().max() == 1
    for _, part in data.changes.groupby("factor" if single else "family", sort=False):
        rows, several = part.to_dict("records"), part["factor"].nunique() > 1
        names = [
            (f"{row['factor']}={row['level']}" if several else row["level"])
            + (f" at {row['stratum']}" if single else "")
            for row in rows
        ]
        over = _over(1 if single else len(rows), "part" if several else "level")
        answers = tuple(
            _change(labels, row, over, name)
            for row, name in zip(rows, names, strict=True)
            if row["significant"]
        )
        rest = {
            name: row["resolvable"]
            for row, name in zip(rows, names, strict=True)
            if not row["significant"] and row["n"]
        }
        to = "" if single else f" to {rows[0]['stratum']}"
        heading = (
            f"{'each part' if several else rows[0]['factor']}: does its effect change from"
            f" {rows[0]['first']}{to}?"
        )
        if answers or rest:
            moved = [f"{one.level} ({one.numbers})" for one in answers]
            unchanged = _unchanged(labels, rest)
            changed = f"The effect changes for {listed(moved)}. " if moved else ""
            answered.append(Family(heading, unchanged, answers, changed + unchanged))
    return answered


def _unchanged(labels: MetricLabels, resolvable: Mapping[str, float]) -> str:
    """Return a sentence on the arms, name → detectable effect, that do not change significantly."""
    see = detectable(labels, resolvable.values())
    return (
        f"The effect of {listed(resolvable, 'or')} does not change significantly"
        f"{f'; {see}' if see else ''}."
        if resolvable
        else ""
    )


def _change(labels: MetricLabels, row: Mapping[Any, Any], over: str, name: str) -> Answer:
    digits = decimals((row["hi"] - row["lo"]) / 2)
    text = (
        f"has a different effect: its difference in {labels.phrase} changes by"
        f" {signed(row['mean'], digits)}{labels.after} (95% interval"
        f" {ends(row['lo'], row['hi'], digits)}; {_evidence(row, over)})."
    )
    return Answer(name, text, "changed", numbers(row))


def _answer(data: ReportData, row: Mapping[Any, Any], over: str, name: str) -> Answer:
    pairs = data.pairs[
        (data.pairs["family"] == row["family"]) & (data.pairs["cell"] == row["cell"])
    ]
    verdict, claim = _claim(data.labels, row, pairs, over)
    return Answer(
        name,
        " ".join([claim, *caveats(data, row, pairs, verdict)]),
        verdict,
        numbers(row),
        row["resolvable"],
    )


def numbers(row: Mapping[Any, Any]) -> str:
    """Return a difference and its interval: "+0.178, +0.122 to +0.233"."""
    digits = decimals((row["hi"] - row["lo"]) / 2)
    return f"{signed(row['mean'], digits)}, {ends(row['lo'], row['hi'], digits)}"


def _claim(
    labels: MetricLabels, row: Mapping[Any, Any], pairs: pd.DataFrame, over: str
) -> tuple[str, str]:
    """Return the verdict, and a sentence with effect, interval, pairs and correction."""
    base, n, mean = row["baseline_level"], row["n"], row["mean"]
    if n == 0:
        return "unknown", f"cannot be compared with {base}: {nothing(row, pairs)}."
    digits = decimals((row["hi"] - row["lo"]) / 2)
    unit = labels.after
    if n == 1:
        return (
            "unknown",
            (
                f"has one pair with {base}: {labels.phrase} differs by {signed(mean, 4)}{unit}; the"
                " noise cannot be estimated from one pair."
            ),
        )
    if math.isnan(row["lo"]):
        return (
            "unknown",
            (
                f"differs from {base} by exactly {signed(mean, 4)}{unit} in all"
                f" {plural(n, 'pair')}: without any noise there is no interval and no test."
            ),
        )
    if row["significant"]:
        verdict, verb = (
            "better" if labels.better(mean) else "worse",
            "raises" if mean > 0 else "lowers",
        )
        low, high = sorted((abs(row["lo"]), abs(row["hi"])))
        return (
            verdict,
            (
                f"is {verdict} than {base}: it {verb} {labels.phrase} by"
                f" {number(abs(mean), digits)}{unit} (95% interval"
                f" {ends(low, high, digits, number)}; {_evidence(row, over)})."
            ),
        )
    if row["sd"] == 0:
        return (
            "unresolved",
            f"equals {base} exactly in all {plural(n, 'pair')}: {labels.phrase} does not differ.",
        )
    almost = ""
    if row["lo"] > 0 or row["hi"] < 0:
        almost = f" The interval excludes zero only without correction over {over}."
    return (
        "unresolved",
        (
            f"does not differ significantly from {base}: {labels.phrase} differs by"
            f" {signed(mean, digits)}{unit} (95% interval {ends(row['lo'], row['hi'], digits)};"
            f" {_evidence(row, over)}). Inconclusive: {detectable(labels, [row['resolvable']])}."
            f"{almost}"
        ),
    )


def _over(size: int, noun: str) -> str:
    """Return what Holm's correction covers; "" if it has one contrast."""
    return plural(size, noun) if size > 1 else ""


def _evidence(row: Mapping[Any, Any], over: str) -> str:
    p = p_value(row["p_holm"])
    return f"{plural(row['n'], 'pair')}; {f'Holm {p} over {over}' if over else p}"


def _summaries(
    labels: MetricLabels, baseline: str, answers: tuple[Answer, ...]
) -> tuple[str, tuple[Answer, ...], str]:
    """Return how many levels are better, worse and inconclusive: a `Family` without heading."""
    against = {
        "better": f" than {baseline}",
        "worse": f" than {baseline}",
        "unresolved": f" from {baseline}",
        "unknown": "",
    }
    plain, full = [], []
    for verdict, text in VERDICTS.items():
        alike = [answer for answer in answers if answer.verdict == verdict]
        if alike:
            is_so = f"{'is' if len(alike) == 1 else 'are'} {text}{against[verdict]}"
            names = listed(answer.level for answer in alike)
            plain.append(f"{names} {is_so}")
            if verdict == "unresolved":
                none = len(alike) == len(answers) > 1
                sentence_part = (
                    f"none of {len(alike)} ({names}) differs significantly{against[verdict]}"
                    if none
                    else f"{names} {is_so}"
                )
                see = detectable(labels, [one.detectable for one in alike])
                full.append(sentence_part + (f": {see}" if see else ""))
            else:
                numbers = [
                    one.level + f" ({one.numbers})" * (verdict != "unknown") for one in alike
                ]
                full.append(f"{listed(numbers)} {is_so}")
    return "; ".join(plain) + "." if len(answers) > 1 else "", answers, "; ".join(full) + "."
