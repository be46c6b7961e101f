"""The answer in sentences: the best arms, one sentence a contrast, one a family."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

from ablate.analysis.records import (
    SIZELESS,
    Best,
    Change,
    Contrast,
    Copying,
    DifferenceVariance,
    Equivalence,
    Failures,
    GridTerm,
    Interaction,
    LengthChange,
    LengthError,
    Mismatch,
    OfContrast,
    SameRuns,
    SeedGroups,
    Spread,
    Successive,
    Threshold,
    Tuning,
    Untrained,
    Variance,
    Verdict,
)
from ablate.metrics import final
from ablate.plan.cells import BASELINE
from ablate.plan.compare import MISMATCH
from ablate.report.data import ReportData
from ablate.report.labels import MetricLabels, detectable, full, named
from ablate.report.sentences import arm_name, numbers, places, say
from ablate.units import listed, number, plural, signed

VERDICTS: dict[Verdict, str] = {  # of a contrast → words
    "better": "better",
    "worse": "worse",
    "inconclusive": "not significantly different",
    "partial": "compared on some of the seeds only",
    "untrained": "not comparable, as an arm did not learn",
    "lossy": "not comparable, as a tokenizer loses text",
    "unknown": "not tested, for too few pairs or no noise",
}
FEW = 3  # strata that each have a line of their own
MOST = 8  # levels of one verdict that a summary names; of more it has the number
# from this many contrasts on, the answer summarises families and lists contrasts below
MANY = 10


@dataclass(frozen=True)
class Answer:
    """The result of one contrast, as a sentence that begins with the level's name."""

    level: str
    text: str  # what follows the level's name
    finding: Contrast | Successive | Change | Interaction

    @property
    def verdict(self) -> str:
        """The verdict of a difference of two arms; "changed" for a change or an interaction."""
        one = self.finding
        return one.verdict if isinstance(one, Contrast | Successive) else "changed"

    @property
    def anchor(self) -> str:
        """The id of the sentence on a page, which follows from what was compared."""
        one = self.finding
        names = ("family", "stratum", "factor", "level", "cell")
        of = "\n".join(getattr(one, name, "") for name in names)
        return f"{one.kind}-{hashlib.sha256(of.encode()).hexdigest()[:10]}"


@dataclass(frozen=True)
class Family:
    """The contrasts that are corrected together, and a summary of them."""

    heading: str  # "topology at n_layer=4, against serial"
    summary: str
    answers: tuple[Answer, ...]
    # the summary with the numbers of significant contrasts: for a study of many
    brief: str = ""


def lead(data: ReportData) -> list[str]:
    """Return which arms of each stratum are the best, or not distinguishable from it."""
    found = data.findings.of(Best)
    if len(found) > FEW:
        return [best_sets(data)]
    return [f"{best(data, one)} {_unranked(data, one)}".strip() for one in found]


def best(data: ReportData, one: Best) -> str:
    """Return a sentence on the best arm of a stratum, or the arms that may be the best.

    Where pairs have no noise no arm can be tested: then it says so, and the means.
    """
    if found := _noiseless(data, one.stratum):
        values = {pair.baseline_value for pair in found[0].pairs}
        return say("untested", one, found[0].n, list(_candidates(data, one)), len(values) == 1)
    excluded = [introduced(data, arm, one.stratum) for arm in one.excluded]
    return say("best", one, data.labels, list(_candidates(data, one)), excluded)


def _noiseless(data: ReportData, stratum: str) -> list[Contrast]:
    """Return the contrasts of a stratum that can be tested, had they noise; [] if one has some."""
    found = [
        one
        for one in data.findings.of(Contrast)
        if one.stratum == stratum and one.n > 1 and not one.exact and one.verdict not in SIZELESS
    ]
    equal = all(one.verdict == "unknown" or one.lo == one.hi for one in found)
    return found if equal and any(one.verdict == "unknown" for one in found) else []


def best_sets(data: ReportData) -> str:
    """Return a sentence on the best arms of all strata."""
    sets: dict[str, list[str]] = {}
    alike: list[str] = []
    found = [one for one in data.findings.of(Best) if not _noiseless(data, one.stratum)]
    if not found:
        return say("untested_strata")
    for one in found:
        if not one.excluded and len(one.arms) > 1:
            alike.append(one.stratum)
            continue
        order = [arm for arm in data.arms["arm"].cat.categories if arm in one.arms]
        names = listed((called(data, arm) for arm in order), "or")
        sets.setdefault(names, []).append(one.stratum)
    ranked = sorted(sets.items(), key=lambda item: -len(item[1]))
    return say("best_sets", ranked, alike, data.labels, len(found))


def unranked(data: ReportData) -> list[str]:
    """Return a sentence a stratum on the arms that are not ranked, because runs of theirs failed.

    `cells` names those that did not learn.
    """
    return [text for one in data.findings.of(Best) if (text := _unranked(data, one))]


def _unranked(data: ReportData, one: Best) -> str:
    cells = data.arms[data.arms["stratum"] == one.stratum]
    below = set(cells.loc[cells["cell"].isin(data.sizeless), "arm"].astype(str))
    arms = [arm for arm in one.failed if arm not in below]
    return say("unranked", one, arms) if arms else ""


def _candidates(data: ReportData, one: Best) -> Iterator[str]:
    """Yield the arms of a set with their means."""
    for arm, mean in zip(one.arms, one.means, strict=True):
        unit = data.labels.after if arm == one.arms[0] else ""
        mean_of = f"{number(mean, data.places)}{unit}"
        name = introduced(data, arm, one.stratum)
        known = arm == BASELINE and name != arm
        yield f"{name[:-1]}; {mean_of})" if known else f"{name} ({mean_of})"


def at_edge(data: ReportData) -> list[str]:
    """Return a sentence on the tuned values of compared cells that are at an edge of the range."""
    compared = {cell for one in data.findings.of(Contrast) for _, cell in _at_edge(data, one)}
    of = data.findings.of(Tuning)
    groups = [one.group for one in of if any(data.at_edge.get(cell) is one for cell in compared)]
    return [say("at_edge", groups, len(of), data.tuned)] if groups else []


def _at_edge(data: ReportData, one: Contrast) -> list[tuple[str, str]]:
    """Return level and cell of the arms of a difference whose tuned value is at an edge."""
    if one.n == 0 or one.verdict in SIZELESS:
        return []
    arms = (one.level, one.cell), (one.baseline_level, one.baseline)
    return [(level, cell) for level, cell in arms if cell in data.at_edge]


def _edge_named(data: ReportData, one: Contrast) -> str:
    """Return which arms of a difference have a tuned value at an edge; "" for none."""
    found = [(named(one.factor, level), data.at_edge[cell]) for level, cell in _at_edge(data, one)]
    return say("edge_of", found, data.tuned) if found else ""


def cells(data: ReportData) -> list[str]:
    """Return a sentence on each cell that did not learn, or whose seeds fall into groups."""
    untrained = data.findings.of(Untrained)
    whole = [one for one in untrained if one.whole]
    # the losses are the metric itself, or on another scale than it
    places = data.places if final(data.study.metric)[0] == "loss" else 3
    together = [say("untrained_cells", whole, data.known, places)] if len(whole) > 1 else []
    return [
        *together,
        *(
            say("untrained", one, data.known, places)
            for one in untrained
            if not (together and one.whole)
        ),
        *(say("seed_groups", one, data.places) for one in data.findings.of(SeedGroups)),
        *(say("copying", one, data.labels) for one in data.findings.of(Copying)),
        *(say("threshold", one, data.labels) for one in data.findings.of(Threshold)),
    ]


def variances(data: ReportData) -> list[str]:
    """Return a sentence on what the seeds of each cell and each difference vary by."""
    return [
        *(say("variance", one, arm_name(one)) for one in data.findings.of(Variance)),
        *(
            say(
                "variance",
                one,
                f"the difference of {named(one.factor, one.level)} from"
                f" {named(one.factor, one.baseline_level)}",
            )
            for one in data.findings.of(DifferenceVariance)
        ),
    ]


def lengths(data: ReportData) -> list[str]:
    """Return a sentence a stratum on the change of loss at the longest context, and of errors at
    the longest sources.
    """
    sentences = []
    for part in grouped(data.findings.of(LengthChange), lambda one: one.stratum):
        found = sorted((one for one in part if one.n), key=lambda one: one.mean)
        undefined = [arm_name(one) for one in part if not one.defined]
        if found:
            sentences.append(say("lengths", part[0].stratum, found, undefined))
    for errors in grouped(data.findings.of(LengthError), lambda one: one.stratum):
        rates = sorted((one for one in errors if one.n), key=lambda one: -one.mean)
        if rates:
            sentences.append(say("length_errors", rates[0].stratum, rates))
    return sentences


def brief(data: ReportData) -> bool:
    """Return whether the study has so many contrasts that each family gets one sentence."""
    return len(data.findings.of(Contrast)) >= MANY


def legend(data: ReportData, found: Iterable[Family]) -> str:
    """Return what a brief answer is based on and what its numbers are.

    Args:
        data: The study.
        found: The families that the answer summarises.
    """
    intervals = any(
        f"({numbers(one.finding)})" in family.brief for family in found for one in family.answers
    )
    return say("legend", data.labels, intervals)


def called(data: ReportData, arm: Any) -> str:
    """Return the name of an arm, with the factor's name if the arm is a bare value."""
    factors = data.effects["factor"].unique()
    return named(str(factors[0]), arm) if len(factors) == 1 else str(arm)


def introduced(data: ReportData, arm: Any, stratum: str) -> str:
    """Return the name of an arm; of the common baseline, with the levels that it has."""
    return _baseline(data, stratum) if arm == BASELINE else called(data, arm)


def _baseline(data: ReportData, stratum: str) -> str:
    """Return "baseline (norm=pre, bias=none)", or "baseline" where its levels are not known."""
    arms = data.arms
    which = arms["cell"][(arms["stratum"] == stratum) & (arms["arm"].astype(str) == BASELINE)]
    levels = data.levels.get(next(iter(which), ""), {})
    named = (f"{factor}={level}" for factor, level in levels.items() if factor not in data.within)
    return f"{BASELINE} ({', '.join(named)})" if levels else BASELINE


def families(data: ReportData) -> list[Family]:
    """Return the answers of a study, family by family.

    Where each family has one level only, they are one.
    """
    contrasts = data.findings.of(Contrast)
    factors = list(dict.fromkeys(one.factor for one in contrasts))
    whole = data.correction == "study"
    of_study = _over(sum(one.corrected for one in contrasts), "contrast") if whole else ""
    parts = grouped(contrasts, lambda one: one.family)
    if len(parts) > 1 and all(len(part) == 1 for part in parts):
        answers = tuple(
            _answer(
                data,
                one,
                of_study,
                _name(one, apart=len(factors) > 1) + (f" at {one.stratum}" if one.stratum else ""),
            )
            for one in contrasts
        )
        heading = (
            f"{factors[0]}, at each of {len(parts)} strata"
            if len(factors) == 1
            else "each arm against the baseline"
            if any(" × " in factor for factor in factors)
            else f"each factor by itself, against the {_baseline(data, contrasts[0].stratum)}"
        )
        bases = {named(one.factor, one.baseline_level) for one in contrasts}
        base = bases.pop() if len(bases) == 1 else "the baseline"
        return [Family(heading, *_summaries(data.labels, base, answers))]
    answered: list[Family] = []
    for part in parts:
        first, several = part[0], len({one.factor for one in part}) > 1
        size = sum(one.corrected for one in part)
        over = of_study or _over(size, "part" if several else "level")
        answers = tuple(_answer(data, one, over, _name(one, apart=several)) for one in part)
        where = ", ".join(filter(None, (first.stratum, data.beside(first))))
        what, baseline, against = first.factor, named(first.factor, first.baseline_level), ""
        if several:
            taken = data.settings.get("design") == "leave-one-out"
            what, baseline = f"each part {'left out' if taken else 'alone'}", "the baseline"
            against = f"the {_baseline(data, first.stratum)}"
        heading = f"{what}{f' at {where}' if where else ''}, against {against or baseline}"
        answered.append(Family(heading, *_summaries(data.labels, baseline, answers)))
    return answered


def _name(one: Contrast, *, apart: bool) -> str:
    """Return the name of a level; with its factor's, if it is told `apart` from other factors'."""
    return full(one.factor, one.level) if apart else named(one.factor, one.level)


def _answer(data: ReportData, one: Contrast, over: str, name: str) -> Answer:
    """Return the claim of a contrast, followed by the findings that qualify it."""
    of = data.lossy if one.verdict == "lossy" else data.untrained
    below = len({one.cell, one.baseline} & of)
    who = "neither of the two" if below > 1 else "only one of the two"
    if one.verdict == "lossy":
        who = "both" if below > 1 else "one of the two"
    base = named(one.factor, one.baseline_level)
    if beside := data.beside(one):
        base += f" at {beside}"
    said = [say("contrast", one, base, data.labels, over, data.known, who), say("losses", one)]
    said += [say("robust", one), say("new_text", one)]
    said.append(_edge_named(data, one))
    said += [_qualified(data, one, other) for other in data.qualifying[one.family, one.cell]]
    return Answer(name, " ".join(filter(None, said)), one)


def _qualified(data: ReportData, one: Contrast, other: OfContrast) -> str:
    match other:
        case SameRuns():
            return say("same_runs")
        case Equivalence():
            return say("equivalence", other, data.labels, one.verdict == "inconclusive")
        case Failures():
            return say("failures", other)
        case Spread():
            return say("spread", other)
        case Mismatch():
            return say("mismatch", other, MISMATCH)
    raise AssertionError(other)


def successive(data: ReportData) -> list[Family]:
    """Return how each level differs from the one before it, for the factors of [report]."""
    answered: list[Family] = []
    found = data.findings.of(Successive)
    above = {(one.stratum, one.factor, one.level): one for one in data.findings.of(Contrast)}
    families = Counter(one.family for one in above.values() if one.corrected)
    for part in grouped(found, lambda one: (one.factor, one.stratum)):
        corrected = found if data.correction == "study" else part
        over = _over(sum(one.verdict not in SIZELESS for one in corrected), "successive difference")
        beside = data.beside(part[0])
        answers = []
        for one in part:
            base, of = named(one.factor, one.before), over
            contrast = above[one.stratum, one.factor, one.level]
            if one.before == contrast.baseline_level:  # has the verdict of the contrast
                size = families.total() if data.correction == "study" else families[contrast.family]
                of = _over(size, "contrast" if data.correction == "study" else "level")
            base += f" at {beside}" if beside else ""
            said = (say("successive", one, base, data.labels, of), say("mismatch", one, MISMATCH))
            answers.append(Answer(named(one.factor, one.level), " ".join(filter(None, said)), one))
        where = ", ".join(filter(None, (part[0].stratum, beside)))
        heading = f"{part[0].factor}{f' at {where}' if where else ''}"
        heading += ", each level against the previous one"
        summaries = _summaries(data.labels, "the previous level", tuple(answers))
        answered.append(Family(heading, *summaries))
    return answered


def interactions(data: ReportData) -> list[Family]:
    """Return a sentence on each significant interaction, and one on all others."""
    answered: list[Family] = []
    found = data.findings.of(Interaction)
    for rows in grouped(found, lambda one: (one.factor, one.stratum)):
        factor, stratum = rows[0].factor, rows[0].stratum
        answers = tuple(
            Answer(
                full(one.factor, one.level), say("interaction", one, data.labels, len(rows)), one
            )
            for one in rows
            if one.significant
        )
        where = f" at {stratum}" if stratum else ""
        heading = f"{factor}{where}: is the joint effect the sum of the separate effects?"
        named = [(full(one.factor, one.level), one) for one in rows]
        joint = _joint(data, {*factor.split(" × ")})
        answered += _found(data.labels, heading, answers, named, joint)
    return answered


def changes(data: ReportData) -> list[Family]:
    """Return how effects change from one stratum to another."""
    found, strata = data.findings.of(Change), _strata(data)
    single = all(len(part) == 1 for part in grouped(found, lambda one: (one.family, one.first)))
    answered: list[Family] = []
    for rows in grouped(found, lambda one: one.factor if single else (one.family, one.first)):
        several = len({one.factor for one in rows}) > 1
        firsts = {one.first for one in rows}
        names = [
            (full if several else named)(one.factor, one.level)
            + (f" at {one.stratum}" if single else "")
            + (f", from {_apart(one)}," if len(firsts) > 1 else "")
            for one in rows
        ]
        over = _over(1 if single else len(rows), "part" if several else "level")
        answers = tuple(
            Answer(name, say("change", one, data.labels, over), one)
            for one, name in zip(rows, names, strict=True)
            if one.significant
        )
        to = " to the other strata" if single else f" to {rows[0].stratum}"
        change = (
            f"with {listed(data.within, 'or')}" if len(firsts) > 1 else f"from {rows[0].first}{to}"
        )
        heading = f"{'each part' if several else rows[0].factor}: does its effect change {change}?"
        varied = {one.factor for one in rows}
        joint = "" if several else _joint(data, varied, strata)
        found_here = list(zip(names, rows, strict=True))
        answered += _found(data.labels, heading, answers, found_here, joint)
    return answered


def _apart(one: Change) -> str:
    """Return the levels of the other stratum that the stratum does not have."""
    here = one.stratum.split(", ")
    return ", ".join(part for part in one.first.split(", ") if part not in here)


def changed_together(data: ReportData) -> list[GridTerm]:
    """Return the significant interactions with strata where one factor is compared."""
    factors = {one.factor for one in data.findings.of(Change)}
    return _interactions(data, factors, _strata(data)) if len(factors) == 1 else []


def _strata(data: ReportData) -> set[str]:
    """Return the factors that are not compared, whose levels make the strata."""
    contrasted = (one.factor.split(" × ") for one in data.findings.of(Contrast))
    return {*data.factors}.difference(*contrasted)


def _joint(data: ReportData, factors: Set[str], strata: Set[str] = frozenset()) -> str:
    """Return a sentence on interactions of the factors, with strata, that are significant."""
    terms = _interactions(data, factors, strata)
    return say("joint", terms) if terms else ""


def _interactions(data: ReportData, factors: Set[str], strata: Set[str]) -> list[GridTerm]:
    """Return the significant interactions of all these factors, alone or with strata."""
    return [
        one
        for one in data.findings.of(GridTerm)
        if " × " in one.term
        and factors <= {*one.term.split(" × ")} <= factors | strata
        and one.p <= 0.05
    ]


def _found(
    labels: MetricLabels,
    heading: str,
    answers: tuple[Answer, ...],
    rows: Sequence[tuple[str, Change | Interaction]],
    joint: str,
) -> Iterator[Family]:
    """Yield a family of significant changes or interactions and the names of all others.

    Args:
        labels: Of the metric.
        heading: Of the family.
        answers: On the significant ones.
        rows: All of them, each with its name.
        joint: Sentence on all together, said where some have noise and none is significant.
    """
    change = isinstance(rows[0][1], Change)
    begin = "The effect changes for" if change else "Beyond the sum of its parts:"
    others = [(name, one) for name, one in rows if one.n and not one.significant]
    exact = [(name, one) for name, one in others if not one.lo < one.hi]  # or unknown
    rest = {name: one.detectable for name, one in others if one.lo < one.hi}
    size = len(others) + len(answers)
    said = []
    if rest:
        names = list(rest) if len(rest) <= MOST else [_counted(len(rest), size)]
        macro = "unchanged" if change else "additive"
        said.append(say(macro, names, detectable(labels, rest.values())))
        said += [joint] if joint and not answers else []
    if exact:
        all_of = _counted(len(exact), size) if len(exact) > MOST else ""
        said.append(say("noiseless", exact, labels, change, all_of))
    summary = " ".join(said)
    moved = (
        listed(f"{one.level} ({numbers(one.finding)})" for one in answers)
        if len(answers) <= MOST
        else _counted(len(answers), size)
    )
    if size:
        brief = [f"{begin} {moved}."] if moved else []
        yield Family(heading, summary, answers, " ".join([*brief, *filter(None, [summary])]))


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
        many = len(alike) > MOST
        levels = listed(one.level for one in alike)
        if many:
            levels = _counted(len(alike), len(answers))
        is_so = f"{'is' if len(alike) == 1 else 'are'} {text}{against.get(name, '')}"
        plain.append(f"{levels} {is_so}")
        if name == "inconclusive":
            names = "" if many else f" ({levels})"
            part = (
                f"None of {len(alike)}{names} differs significantly from {baseline}"
                if len(alike) == len(answers) > 1
                else f"{levels} {is_so}"
            )
            see = detectable(labels, [one.finding.detectable for one in alike])
            full.append(part + (f": {see}" if see else ""))
        elif name in ("unknown", *SIZELESS):
            full.append(f"{levels} {is_so}")
        elif name == "partial":
            full += [f"{one.level} {say('partial_brief', one.finding)}" for one in alike]
        else:
            each = listed(f"{one.level} ({numbers(one.finding)})" for one in alike)
            full.append(f"{levels} {is_so}, {_range(alike)}" if many else f"{each} {is_so}")
    return "; ".join(plain) + "." if len(answers) > 1 else "", answers, "; ".join(full) + "."


def _counted(n: int, of: int) -> str:
    return f"All {n}" if n == of else f"{n} of {of}"


def _range(alike: Sequence[Answer]) -> str:
    """Return the smallest and the largest effect of several contrasts, which is no interval."""
    found = sorted((one.finding for one in alike), key=lambda one: one.mean)
    least, most = (signed(one.mean, places(one)) for one in (found[0], found[-1]))
    return f"with differences from {least} to {most}"
