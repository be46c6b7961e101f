"""What a study decided: learning rates, the effect and cost of tuning them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from ablate.analysis.records import Contrast, EffectAtRate, Tuning, TuningChange
from ablate.analysis.tuning import group_names
from ablate.plan.cells import BASELINE
from ablate.report.answers import grouped
from ablate.report.data import ReportData
from ablate.report.document import Estimate, Span, Table, Value
from ablate.report.sentences import arm_name, say
from ablate.report.tables import FOLDED, measured, quoted
from ablate.units import decimals, ends, number, plural, signed


def names(data: ReportData) -> dict[str, str]:
    """Return the tuned cell of each group → the name of the group in tables and figures."""
    return group_names(data, data.findings.of(Tuning))


def paragraphs(data: ReportData) -> list[str]:
    """Return what was tuned on what, at what cost, and what tuning changed."""
    rates = data.findings.of(Tuning)
    sentences = list(_cost(data))
    if any(len(one.cells) > 1 for one in rates):
        sentences.append(say("tuning_shared", data.tuned))
    if untrained := [one.group for one in rates if not one.trains]:
        sentences.append(say("no_rate", untrained, data.tuned))
    if edge := [one.group for one in rates if one.at_edge and one.trains]:
        sentences.append(say("at_edge", edge, len(rates), data.tuned))
    if further := [one for one in rates if one.left_range and one.trains]:
        sentences.append(say("left_range", further, data.tuned))
    if cliff := [one.group for one in rates if one.near_cliff and one.trains]:
        sentences.append(say("near_cliff", cliff, len(rates), data.tuned))
    sentences += [say("by_rate", part, data.labels, data.tuned) for part in _at_rates(data)]
    for frame in _changes(data):
        sentences += _changed(data, frame)
    return sentences


def _changes(data: ReportData) -> list[list[TuningChange]]:
    """Return what tuning changed in each stratum with a baseline that a rate trains."""
    found = grouped(data.findings.of(TuningChange), lambda one: one.stratum)
    return [frame for frame in found if frame[0].cell not in _untrained(data)]


def _untrained(data: ReportData) -> set[str]:
    """Return the tuned cells of the groups that no rate trains."""
    return {one.cells[0] for one in data.findings.of(Tuning) if not one.trains}


def _at_rates(data: ReportData) -> list[list[EffectAtRate]]:
    """Return the contrasts whose sign depends on the rate, each with its effect at every rate."""
    found = grouped(data.findings.of(EffectAtRate), lambda one: (one.family, one.cell))
    return [part for part in found if min(one.hi for one in part) < 0 < max(one.lo for one in part)]


def by_rate(data: ReportData) -> Table:
    """Return a table of every contrast at the rates around those that were chosen."""
    several, short = any(data.strata), data.tuned.short
    rows: list[tuple[str | Value, ...]] = [
        (
            *((one.stratum,) if several else ()),
            one.level,
            one.baseline_level,
            Value(f"{one.lr:.3g}", one.lr),
            Value(f"{one.n}", one.n),
            Value(signed(one.mean, decimals((one.hi - one.lo) / 2)), one.mean),
            Span(
                ends(one.lo, one.hi, decimals((one.hi - one.lo) / 2))
                if not math.isnan(one.lo)
                else "–",
                one.lo,
                one.hi,
            ),
        )
        for one in data.findings.of(EffectAtRate)
    ]
    return Table(
        "effects-by-rate",
        f"Differences in {data.labels.axis} if both arms are trained at one"
        f" {'learning rate' if short == 'rate' else f'value of {data.tuned.name}'}, at the"
        f" {short}s within a step of either arm's own, on the seeds that tuned.",
        (
            *(("stratum",) if several else ()),
            *("level", "baseline", data.tuned.name, "seeds", "difference", "95% interval"),
        ),
        tuple(rows),
        f"SELECT stratum, cell, {data.tuned.field}, avg(metric) AS metric, count(*) AS seeds\nFROM"
        f" all_runs\nWHERE study = {quoted(data.study.name)} AND role = 'tune' AND status ="
        f" 'complete'\nGROUP BY cell, {data.tuned.field};",
        folded=len(rows) > FOLDED,
    )


def _cost(data: ReportData) -> Iterator[str]:
    seconds = data.attempts.drop_duplicates("id").groupby("role")["device_seconds"].sum()
    if seconds.get("tune", 0) > 0:
        tuning = data.runs[data.runs["role"] == "tune"]["run"].nunique()
        tuned, total = float(seconds["tune"]), float(seconds.sum())
        yield say("tuning_cost", tuning, tuned, tuned / total)


def rates(data: ReportData) -> Table:
    """Return a table of the chosen learning rates, with the rates tried and the sensitivity."""
    called, short = names(data), data.tuned.short
    rows: list[tuple[str | Value, ...]] = []
    for one in data.findings.of(Tuning):
        diverged = sum(not math.isfinite(loss) for loss in one.losses)
        notes = {"edge": one.at_edge, "below a cliff": one.near_cliff}
        noted = [text for text, is_so in notes.items() if is_so] if one.trains else ["none trains"]
        edge = f" ({', '.join(noted)})" if noted else ""
        rows.append(
            (
                one.group if one.group != "all cells" or len(called) == 1 else called[one.cells[0]],
                Value(f"{one.lr:.3g}{edge}", one.lr),
                Estimate(
                    f"{len(one.rates)} from {one.rates[0]:.3g} to {one.rates[-1]:.3g}",
                    len(one.rates),
                    *(one.rates[0], one.rates[-1]),
                ),
                Value(f"{diverged}" if diverged else "–", diverged),
                measured(one.fitted, max(data.places, decimals(one.fitted))),
                measured(one.error, decimals(one.error)) if one.trains else Value("–", None),
                measured(one.sensitivity, 3),
                Value(f"{len(one.cells)}", len(one.cells)),
            )
        )
    return Table(
        "rates",
        f"The {data.tuned.name} of each group:"
        f" the best one on a curve over the log {short}, fitted to"
        f" {data.decided_labels.axis} on seeds that are not compared, before any compared run used"
        f" it. Error: the standard error that this choice adds to the group's {data.labels.phrase};"
        f" “–” where no {short} trains the group."
        " Sensitivity: the"
        f" mean over the study file's {short}s of min(loss, ln n_vocab) minus the smallest of them,"
        " in nats per token (Wortsman et al. 2023); “–” where the loss before training is not"
        " ln n_vocab.",
        (
            "group",
            "chosen",
            f"{short}s tried",
            "diverged",
            data.decided_labels.phrase,
            "error",
            "sensitivity",
            "cells",
        ),
        tuple(rows),
        "SELECT cell.label AS cell, decision.value AS chosen, evidence ->> 'rates' AS rates,"
        " evidence ->> 'values' AS metric\nFROM decision JOIN cell ON cell.id = decision.cell_id"
        " JOIN study ON study.id = decision.study_id\nWHERE study.name ="
        f" {quoted(data.study.name)} AND decision.name <> 'seeds';",
    )


def changed(data: ReportData) -> Table:
    """Return a table of every arm at its baseline's best rate and at its own."""
    rows: list[tuple[str | Value, ...]] = []
    compared = {one.cell: one for one in data.findings.of(Contrast)}
    several, short = any(data.strata), data.tuned.short
    seeds = max((len(one.seeds) for one in data.findings.of(Tuning)), default=0)
    favours = f": the choice partly follows the noise there, which favours the chosen {short}"
    untrained = _untrained(data)
    for frame in _changes(data):
        base = frame[0]
        trained = [one for one in frame if one.cell not in untrained]
        for one in trained if len(trained) > 1 else []:
            shared, own = one.at_shared - base.at_shared, one.at_own - base.at_own
            rows.append(
                (
                    *((one.stratum,) if several else ()),
                    one.arm,
                    Value(f"{one.shared_lr:.3g}", one.shared_lr),
                    Value(f"{one.lr:.3g}", one.lr),
                    *(
                        Value("diverged" if math.isnan(at) else number(at, data.places), at)
                        for at in (one.at_shared, one.at_own)
                    ),
                    Value(signed(shared, data.places), shared),
                    Value(signed(own, data.places), own),
                    _compared(compared.get(one.cell)),
                )
            )
    return Table(
        "tuning-changed",
        f"What tuning changed: {data.labels.axis} at one {short} for all, the best of the"
        f" baseline{data.tuned.by} among those that every arm was trained with, and at the tried"
        f" {short} nearest to each arm's own; then the difference from the baseline at either."
        f" Means of {plural(seeds, 'seed')} that tuned{'' if data.tuned.by else favours}. The last"
        f" column is the effect at the arms' own {short}s with its 95%"
        " interval, on the seeds that are compared.",
        (
            *(("stratum",) if several else ()),
            *("arm", f"shared {short}", f"own {short}", "at the shared", "at its own"),
            *("difference, shared", "difference, own", "effect, own"),
        ),
        tuple(rows),
        f"SELECT stratum, cell, {data.tuned.field}, avg(metric) AS metric, sum(status = 'diverged')"
        f" AS diverged\nFROM all_runs\nWHERE study = {quoted(data.study.name)} AND role ="
        f" 'tune'\nGROUP BY cell, {data.tuned.field};",
    )


def _compared(effect: Contrast | None) -> Value:
    if effect is None:
        return Value("baseline", None)
    if math.isnan(effect.mean):
        return Value("–", None)
    places = decimals((effect.hi - effect.lo) / 2)
    text = f"{signed(effect.mean, places)} ({ends(effect.lo, effect.hi, places)})"
    return Estimate(text, effect.mean, effect.lo, effect.hi)


def _changed(data: ReportData, frame: list[TuningChange]) -> Iterator[str]:
    """Yield which arms diverge without tuning, and which difference tuning changed most."""
    base, others = frame[0], frame[1:]
    if base.arm == BASELINE:
        base = replace(base, arm=f"the {BASELINE}")
    if lost := [arm_name(one) for one in others if math.isnan(one.at_shared)]:
        yield say("diverged_at_shared", base, lost, data.tuned)
    trained = [one for one in others if one.cell not in _untrained(data)]
    whole = [one for one in trained if not math.isnan(one.at_shared + one.at_own)]
    if not whole:
        return

    def moved(one: TuningChange) -> float:
        return (one.at_own - base.at_own) - (one.at_shared - base.at_shared)

    most = max(whole, key=lambda one: abs(moved(one)))
    if moved(most) == 0:
        yield say("tuning_equal", base, data.tuned)
    else:
        effect = next((one for one in data.findings.of(Contrast) if one.cell == most.cell), None)
        shown = data.labels, data.places, data.tuned
        yield say("tuning_change", base, most, *shown, effect, len(whole) > 1)
