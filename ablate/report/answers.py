"""The answer in sentences: the best arms, one sentence a contrast, one a family."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pandas as pd

from ablate import analysis
from ablate.analysis.records import (
    Change,
    Contrast,
    Equivalence,
    Failures,
    Interaction,
    LengthChange,
    Mismatch,
    OfContrast,
    SameRuns,
    Spread,
    Untrained,
    Verdict,
)
from ablate.plan.compare import MISMATCH
from ablate.report.data import ReportData
from ablate.report.labels import MetricLabels, decimals, detectable, number, plural, sentence
from ablate.report.sentences import numbers, say
from ablate.units import listed

VERDICTS: dict[Verdict, str] = {  # of a contrast → words
    "better": "better",
    "worse": "worse",
    "inconclusive": "not significantly different",
    "partial": "compared on some of the seeds only",
    "untrained": "not comparable, as an arm did not learn beyond token frequencies",
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
    finding: Contrast | Change | Interaction

    @property
    def verdict(self) -> str:
        """The verdict of a contrast; "changed" for a change or an interaction."""
        return self.finding.verdict if isinstance(self.finding, Contrast) else "changed"


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


def untrained(data: ReportData) -> list[str]:
    """Return a sentence on each cell with runs that learnt no more than token frequencies."""
    return [say("untrained", one) for one in data.findings.of(Untrained)]


def lengths(data: ReportData) -> list[str]:
    """Return a sentence a stratum on the change of loss at the longest context."""
    sentences = []
    for part in grouped(data.findings.of(LengthChange), lambda one: one.stratum):
        found = sorted((one for one in part if one.n), key=lambda one: one.mean)
        undefined = [one.arm for one in part if not one.defined]
        if found:
            sentences.append(say("lengths", part[0].stratum, found, undefined))
    return sentences


def brief(data: ReportData) -> bool:
    """Return whether the study has so many contrasts that each family gets one sentence."""
    return len(data.findings.of(Contrast)) >= MANY


def legend(data: ReportData) -> str:
    """Return what a brief answer is based on and what its numbers are."""
    significant = any(
        one.significant for one in data.findings if isinstance(one, Contrast | Change | Interaction)
    )
    return say("legend", data.labels, significant)


def verdict(data: ReportData) -> list[str]:
    """Return a line a family on its contrasts, or one line where there are many families."""
    all_families = families(data)
    if len(all_families) <= FEW:
        return [f"{sentence(family.heading)}: {family.brief}" for family in all_families]
    found = data.findings.of(Contrast)
    counts = Counter(one.verdict for one in found)
    counted = [
        f"{counts[name]} {'is' if counts[name] == 1 else 'are'} {text}"
        for name, text in VERDICTS.items()
        if counts[name]
    ]
    see = detectable(
        data.labels, [one.detectable for one in found if one.verdict == "inconclusive"]
    )
    return [
        f"Of {plural(len(found), 'contrast')} with a baseline"
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
    contrasts = data.findings.of(Contrast)
    factors = list(dict.fromkeys(one.factor for one in contrasts))
    parts = grouped(contrasts, lambda one: one.family)
    if len(parts) > 1 and all(len(part) == 1 for part in parts):
        answers = tuple(
            _answer(
                data,
                one,
                "",
                (f"{one.factor}={one.level}" if len(factors) > 1 else one.level)
                + (f" at {one.stratum}" if one.stratum else ""),
            )
            for one in contrasts
        )
        heading = (
            f"{factors[0]}, at each of {len(parts)} strata"
            if len(factors) == 1
            else "each factor by itself, against the baseline"
        )
        return [Family(heading, *_summaries(data.labels, "the baseline", answers))]
    answered: list[Family] = []
    for part in parts:
        first, several = part[0], len({one.factor for one in part}) > 1
        over = _over(len(part), "part" if several else "level")
        answers = tuple(
            _answer(data, one, over, f"{one.factor}={one.level}" if several else one.level)
            for one in part
        )
        where = f" at {first.stratum}" if first.stratum else ""
        what, baseline = (
            ("each part by itself", "the baseline")
            if several
            else (first.factor, first.baseline_level)
        )
        heading = f"{what}{where}, against {baseline}"
        answered.append(Family(heading, *_summaries(data.labels, baseline, answers)))
    return answered


def _answer(data: ReportData, one: Contrast, over: str, name: str) -> Answer:
    """Return the claim of a contrast, followed by the findings that qualify it."""
    said = [say("contrast", one, data.labels, over), say("losses", one)]
    said += [
        _qualified(data, one, other)
        for cls in (SameRuns, Equivalence, Failures, Spread, Mismatch)
        for other in data.findings.of(cls)
        if (other.family, other.cell) == (one.family, one.cell)
    ]
    return Answer(name, " ".join(filter(None, said)), one)


def _qualified(data: ReportData, one: Contrast, other: OfContrast) -> str:
    match other:
        case SameRuns():
            return say("same_runs", other)
        case Equivalence():
            return say("equivalence", other, data.labels, one.verdict == "inconclusive")
        case Failures():
            return say("failures", other) if one.n else ""
        case Spread():
            return say("spread", other)
        case Mismatch():
            return say("mismatch", other, MISMATCH)
    raise AssertionError(other)


def interactions(data: ReportData) -> list[Family]:
    """Return a sentence on each significant interaction, and one on all others."""
    answered: list[Family] = []
    found = data.findings.of(Interaction)
    for rows in grouped(found, lambda one: (one.factor, one.stratum)):
        factor, stratum = rows[0].factor, rows[0].stratum
        answers = tuple(
            Answer(one.level, say("interaction", one, data.labels, len(rows)), one)
            for one in rows
            if one.significant
        )
        rest = {one.level: one.detectable for one in rows if not one.significant and one.n}
        where = f" at {stratum}" if stratum else ""
        heading = f"{factor}{where}: is the joint effect the sum of the separate effects?"
        answered += _found(data.labels, heading, answers, rest, "Beyond the sum of its parts:")
    return answered


def changes(data: ReportData) -> list[Family]:
    """Return how effects change from the first stratum to the others."""
    found = data.findings.of(Change)
    single = all(len(part) == 1 for part in grouped(found, lambda one: one.family))
    answered: list[Family] = []
    for rows in grouped(found, lambda one: one.factor if single else one.family):
        several = len({one.factor for one in rows}) > 1
        names = [
            (f"{one.factor}={one.level}" if several else one.level)
            + (f" at {one.stratum}" if single else "")
            for one in rows
        ]
        over = _over(1 if single else len(rows), "part" if several else "level")
        answers = tuple(
            Answer(name, say("change", one, data.labels, over), one)
            for one, name in zip(rows, names, strict=True)
            if one.significant
        )
        rest = {
            name: one.detectable
            for one, name in zip(rows, names, strict=True)
            if not one.significant and one.n
        }
        to = "" if single else f" to {rows[0].stratum}"
        heading = (
            f"{'each part' if several else rows[0].factor}: does its effect change from"
            f" {rows[0].first}{to}?"
        )
        answered += _found(data.labels, heading, answers, rest, "The effect changes for")
    return answered


def _found(
    labels: MetricLabels,
    heading: str,
    answers: tuple[Answer, ...],
    rest: dict[str, float],
    begin: str,
) -> Iterator[Family]:
    """Yield a family of significant changes or interactions and the names of all others."""
    macro = "unchanged" if begin.startswith("The effect") else "additive"
    summary = say(macro, list(rest), detectable(labels, rest.values())) if rest else ""
    moved = listed(f"{one.level} ({numbers(one.finding)})" for one in answers)
    if answers or rest:
        yield Family(heading, summary, answers, (f"{begin} {moved}. " if moved else "") + summary)


T = TypeVar("T")


def grouped(items: Iterable[T], key: Callable[[T], Any]) -> list[list[T]]:
    """Return items with equal keys together, in the order of their first."""
    groups: dict[Any, list[T]] = {}
    for one in items:
        groups.setdefault(key(one), []).append(one)
    return list(groups.values())


def _over(size: int, noun: str) -> str:
    """Return what Holm's correction covers; "" if it has one contrast."""
    return plural(size, noun) if size > 1 else ""


def _summaries(
    labels: MetricLabels, baseline: str, answers: tuple[Answer, ...]
) -> tuple[str, tuple[Answer, ...], str]:
    """Return how many levels are better, worse and inconclusive: a `Family` without heading."""
    against = {
        "better": f" than {baseline}",
        "worse": f" than {baseline}",
        "inconclusive": f" from {baseline}",
    }
    plain, full = [], []
    for name, text in VERDICTS.items():
        alike = [one for one in answers if one.verdict == name]
        if not alike:
            continue
        levels = listed(one.level for one in alike)
        is_so = f"{'is' if len(alike) == 1 else 'are'} {text}{against.get(name, '')}"
        plain.append(f"{levels} {is_so}")
        if name == "inconclusive":
            part = (
                f"none of {len(alike)} ({levels}) differs significantly from {baseline}"
                if len(alike) == len(answers) > 1
                else f"{levels} {is_so}"
            )
            see = detectable(labels, [_contrast(one).detectable for one in alike])
            full.append(part + (f": {see}" if see else ""))
        elif name in ("unknown", "untrained"):
            full.append(f"{levels} {is_so}")
        elif name == "partial":
            full += [f"{one.level} {say('partial_brief', one.finding)}" for one in alike]
        else:
            each = listed(f"{one.level} ({numbers(one.finding)})" for one in alike)
            full.append(f"{each} {is_so}")
    return "; ".join(plain) + "." if len(answers) > 1 else "", answers, "; ".join(full) + "."


def _contrast(answer: Answer) -> Contrast:
    assert isinstance(answer.finding, Contrast)
    return answer.finding
