"""The first screen of a page: the answer in short, what limits it, and arms against strata."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import fmean

from ablate.analysis.records import (
    SIZELESS,
    Best,
    Change,
    Contrast,
    Copying,
    Mismatch,
    OtherSteps,
    SameArms,
    SameSeeds,
    SeedGroups,
    Successive,
    Untrained,
)
from ablate.metrics import final
from ablate.plan.cells import BASELINE
from ablate.plan.compare import MISMATCH
from ablate.report import answers, fairness, masked, plots, scaled
from ablate.report.data import ReportData
from ablate.report.labels import detectable, full, named, percent
from ablate.report.sentences import places, say
from ablate.store.records import FAILED
from ablate.units import ends, number, plural, signed

MANY = 12  # arms of a matrix from which on the best are first
ACROSS = 6  # strata that a matrix shows side by side, even if it has fewer arms


@dataclass(frozen=True)
class Badge:
    """Something that limits the answer, in a few words.

    Attributes:
        text: What it is.
        section: Id of the section of the page that says more.
    """

    text: str
    section: str


@dataclass(frozen=True)
class Cell:
    """One arm in one stratum.

    Attributes:
        text: Its effect; of a baseline its mean.
        detail: The interval of the effect, or why there is none.
        verdict: Of its contrast; "baseline" for a baseline.
        best: Whether it is the best arm of its stratum, or not distinguishable from the best.
        anchor: Id of the sentence on its contrast; "" for a baseline.
    """

    text: str
    detail: str
    verdict: str
    best: bool
    anchor: str = ""


@dataclass(frozen=True)
class Matrix:
    """Arms against strata. A row is its name and a cell for each column, None where there is none.

    Attributes:
        corner: What the rows are.
        columns: Names of the columns.
        rows: Name and cells of each row.
        corrected: Whether Holm's correction is over several contrasts.
        best_first: Whether the rows are arms in the order of their effects.
    """

    corner: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    corrected: bool = True
    best_first: bool = False

    @property
    def has_best(self) -> bool:
        """Whether a cell is marked as best."""
        return any(cell.best for cell in self._cells)

    @property
    def has_baseline(self) -> bool:
        """Whether it has the baselines."""
        return any(cell.verdict == "baseline" for cell in self._cells)

    @property
    def has_blank(self) -> bool:
        """Whether it has a place without a cell."""
        return any(cell is None for _, row in self.rows for cell in row)

    @property
    def _cells(self) -> Iterator[Cell]:
        return (cell for _, row in self.rows for cell in row if cell)


def headline(data: ReportData) -> list[str]:
    """Return the answer in short: the best arms or curves, and how far effects reach."""
    best = data.findings.of(Best)
    first = scaled.claims(data.curves_fitted) if data.curves_fitted else []
    if not first and len(best) == 1:
        first = [answers.best(data, best[0])]
    elif not first and best:
        first = [answers.best_sets(data)]
    contrasts = data.findings.of(Contrast)
    if not contrasts:
        return first or ["The study has no contrast: nothing is compared."]
    steps = data.findings.of(Successive)
    if {one.factor for one in contrasts} == {one.factor for one in steps}:
        return [*first[:1], _steps(data, steps), *answers.at_edge(data)]
    return [*first[:1], _reach(data, contrasts), *answers.at_edge(data)]


def _steps(data: ReportData, steps: Sequence[Successive]) -> str:
    """Say which levels differ significantly from the previous ones, and how far."""
    named = [(one, _name(data, one, place=len(data.strata) > 1)) for one in steps]
    ranked = sorted(named, key=lambda item: item[0].mean)
    found = [item for item in ranked if item[0].verdict in ("better", "worse")]
    inconclusive = [one for one in steps if one.verdict == "inconclusive"]
    see = detectable(data.labels, [one.detectable for one in inconclusive])
    tested = len(found) + len(inconclusive)
    if not tested:
        return "No level can be tested against the previous one."
    others = tested < len(steps)
    return f"{say('reach', found, 'the previous level', data.labels, see, others, tested)}."


def _reach(data: ReportData, contrasts: Sequence[Contrast]) -> str:
    """Say how far significant effects reach, if they change between strata, and what is unknown.

    Contrasts of arms whose runs failed have no verdict in section Effects, so none here.
    """
    baselines = {one.baseline_level for one in contrasts}
    base = answers.called(data, baselines.pop()) if len(baselines) == 1 else "the baseline"
    names = [_name(data, one, place=len(data.strata) > 1) for one in contrasts]
    named = sorted(zip(contrasts, names, strict=True), key=lambda item: item[0].mean)
    if all(one.exact for one in contrasts):
        ranked, ordered = zip(*named, strict=True)
        return f"{say('exact_reach', ranked, ordered, base, data.labels)}."
    found = [item for item in named if item[0].verdict in ("better", "worse")]
    inconclusive = [one.detectable for one in contrasts if one.verdict == "inconclusive"]
    unknown = [
        (one, name)
        for one, name in zip(contrasts, names, strict=True)
        if one.verdict in ("partial", "unknown", "lossy")
        or (one.verdict == "untrained" and not found)
    ]
    rest = say("no_verdict", unknown, data.labels) if unknown else ""
    if not found and not inconclusive:
        return say("no_test", unknown, data.labels) or rest
    tested = len(contrasts) - len(unknown) - sum(one.verdict == "untrained" for one in contrasts)
    changes = data.findings.of(Change, lambda one: not math.isnan(one.p))
    changed = sum(one.significant for one in changes)
    see = detectable(data.labels, inconclusive)
    reach = say("reach", found, base, data.labels, see, bool(unknown), tested)
    if changes:
        together = [] if changed else answers.changed_together(data)
        reach += f"; {say('changed', changes, data.within, changed, together)}"
    said = [f"{reach}.", rest]
    # "no other arm" follows those without a verdict
    return " ".join(filter(None, said if found else said[::-1]))


def _name(data: ReportData, one: Contrast | Successive, *, place: bool = False) -> str:
    """Return the arm of a difference."""
    if isinstance(one, Contrast):
        name = answers.called(data, data.arm_of[one.cell])
    else:
        several = len({other.factor for other in data.findings.of(Contrast)}) > 1
        name = (full if several else named)(one.factor, one.level)
    return f"{name} at {one.stratum}" if place and one.stratum else name


def badges(data: ReportData) -> list[Badge]:
    """Return what a reader has to be careful about; [] where nothing is known of."""
    return [Badge(text, section) for text, section in _limits(data)]


def _limits(data: ReportData) -> Iterator[tuple[str, str]]:
    open_runs = data.compared.drop_duplicates("run")["status"]
    if waiting := int(open_runs.isin(fairness.UNFINISHED).sum()):
        yield f"{plural(waiting, 'run')} still to run", "runs"
    if broken := int(open_runs.isin(["diverged", *FAILED]).sum()):
        yield f"{plural(broken, 'run')} diverged or failed", "troubles"
    if unplanned := len(data.unplanned):
        yield f"{plural(unplanned, 'cell')} without a run to compare", "effects"
    untrained = data.findings.of(Untrained)
    if whole := sum(one.whole for one in untrained):
        yield f"{plural(whole, 'cell')} did not learn more than {data.known.what}", "effects"
    if partly := len(untrained) - whole:
        cells = plural(partly, "cell")
        yield f"some seeds of {cells} did not learn more than {data.known.what}", "effects"
    if lossy := len(data.lossy):
        yield f"{plural(lossy, 'cell')} of a tokenizer that loses text", "basis"
    if guessing := len(masked.no_better(data)):
        metric = final(data.study.metric)[0]
        than = "an empty output" if metric == "error_rate" else "chance"
        yield f"{plural(guessing, 'cell')} no better than {than}", "basis"
    if fairness.one_rate(data):
        yield "learning rate not tuned", "basis"
    if answers.at_edge(data):
        yield f"{data.tuned.short} at the edge of those tried", "tuning"
    for what, name in (("params_body", "parameters"), ("flops", "training FLOPs")):
        offs = [abs(getattr(one, what)) for one in data.findings.of(Mismatch)]
        if math.inf in offs:
            yield "some arms train, and their baselines do not", "basis"
        off = max((one for one in offs if math.isfinite(one)), default=0.0)
        if off > MISMATCH:
            yield f"{name} differ by up to {percent(off)}", "basis"
    if grouped := len(data.findings.of(SeedGroups)):
        yield f"the seeds of {plural(grouped, 'cell')} fall into groups", "effects"
    for found in data.findings.of(Copying):
        cells = f"{len(found.cells)} of {plural(found.measured, 'cell')}"
        yield f"in {cells} only some seeds have learnt to copy", "effects"
    if data.findings.of(SameArms):
        yield "some arms have identical curves", "basis"
    if data.findings.of(SameSeeds):
        yield "some seeds have identical curves", "basis"
    if data.findings.of(OtherSteps):
        yield "runs end at different steps", "basis"
    contrasts = data.findings.of(Contrast)
    narrow = sum(
        one.verdict in ("better", "worse") and one.text_lo <= 0 <= one.text_hi for one in contrasts
    )
    if narrow:
        yield f"{plural(narrow, 'effect')} not significant for new text", "effects"
    pairs = {one.n for one in contrasts if one.n}
    if pairs and (seeds := min(pairs)) < 5:
        yield (
            f"{'only' if len(pairs) == 1 else 'as few as'} {plural(seeds, 'pair')} of runs",
            "basis",
        )


def matrix(data: ReportData) -> Matrix | None:
    """Return the effect of every arm in every stratum; None for a study of one stratum."""
    contrasts = data.findings.of(Contrast)
    strata = list(dict.fromkeys(one.stratum for one in contrasts))
    if len(strata) < 2:
        return None
    arms = list(dict.fromkeys(_name(data, one) for one in contrasts))
    best = _best_cells(data)
    families = Counter(one.family for one in contrasts)
    corrected = data.correction == "study" or max(families.values()) > 1
    cells = {(_name(data, one), one.stratum): _cell(data, one, best) for one in contrasts}
    if len(arms) == 1 and (grid := _grid(data, contrasts, cells)):
        return replace(grid, corrected=corrected)
    bases = list(dict.fromkeys(data.arm_of[one.baseline] for one in contrasts))
    base = f"{bases[0]} (baseline)" if len(bases) == 1 and bases[0] != BASELINE else BASELINE
    last = {one.stratum: one for one in contrasts}  # all of a stratum have its baseline
    cells |= {(base, stratum): _baseline(data, one, best) for stratum, one in last.items()}
    if many := len(arms) >= MANY:
        arms = _best_first(data, arms, contrasts, best)
    names = [base, *arms]
    if len(strata) <= max(ACROSS, len(names)):
        factors = {one.factor for one in contrasts}
        corner = factors.pop() if len(factors) == 1 else "arm"
        rows = tuple(
            (arm.removeprefix(f"{corner}="), tuple(cells.get((arm, place)) for place in strata))
            for arm in names
        )
        return Matrix(corner, tuple(strata), rows, corrected, best_first=many)
    rows = tuple((place, tuple(cells.get((arm, place)) for arm in names)) for place in strata)
    return Matrix("stratum", tuple(names), rows, corrected)


def _best_first(
    data: ReportData, arms: Sequence[str], contrasts: Sequence[Contrast], best: Set[str]
) -> list[str]:
    """Return the arms that are best in most strata first, the others by their mean effect."""

    def rank(arm: str) -> tuple[int, float]:
        of = [one for one in contrasts if _name(data, one) == arm]
        known = [one.mean for one in of if math.isfinite(one.mean)]
        effect = fmean(known) if known else math.inf
        worse = effect if data.labels.goal == "min" or not known else -effect
        return -sum(one.cell in best for one in of), worse

    return sorted(arms, key=rank)


def _grid(
    data: ReportData, contrasts: Sequence[Contrast], cells: Mapping[tuple[str, str], Cell]
) -> Matrix | None:
    """Return the one arm of a study over the two factors of its strata; None if it has not two."""
    has_both = (data.levels[one.cell].keys() >= {*data.within} for one in contrasts)
    if len(data.within) != 2 or not all(has_both):
        return None
    down, across = data.within
    at = {
        (data.levels[one.cell][down], data.levels[one.cell][across]): cells[
            _name(data, one), one.stratum
        ]
        for one in contrasts
    }
    columns = plots.in_order(data, across)
    return Matrix(
        _name(data, contrasts[0]),
        tuple(f"{across}={level}" for level in columns),
        tuple(
            (f"{down}={level}", tuple(at.get((level, column)) for column in columns))
            for level in plots.in_order(data, down)
        ),
    )


def _cell(data: ReportData, one: Contrast, best_cells: frozenset[str]) -> Cell:
    best = one.cell in best_cells
    where = answers.Answer("", "", one).anchor
    if one.verdict in ("unknown", *SIZELESS) or one.n == 0:
        whole = {found.cell for found in data.findings.of(Untrained) if found.whole}
        text = "no interval" if one.n else "no pair"
        if one.verdict == "untrained":
            text = "did not learn" if one.cell in whole else "baseline did not learn"
        elif one.verdict == "lossy":
            text = "loses text" if one.cell in data.lossy else "baseline loses text"
        return Cell(text, "", one.verdict, best, where)
    detail = ends(one.lo, one.hi, places(one)) if one.n > 1 else "one pair"
    if one.verdict == "partial":
        detail += f"; {one.n} of {one.n + one.lost} seeds"
    return Cell(signed(one.mean, places(one)), detail, one.verdict, best, where)


def _baseline(data: ReportData, one: Contrast, best_cells: frozenset[str]) -> Cell:
    values = [pair.baseline_value for pair in one.pairs if pair.baseline_status == "complete"]
    best = one.baseline in best_cells
    if not values:
        return Cell("no run", "", "baseline", best)
    mean = number(sum(values) / len(values), data.places)
    return Cell(mean, "mean", "baseline", best)


def _best_cells(data: ReportData) -> frozenset[str]:
    """Return the cells that are the best of their stratum, or not distinguishable from the best."""
    best = {(one.stratum, arm) for one in data.findings.of(Best) for arm in one.arms}
    named = zip(data.arms["cell"], data.arms["stratum"], data.arms["arm"].astype(str), strict=True)
    return frozenset(cell for cell, stratum, arm in named if (stratum, arm) in best)
