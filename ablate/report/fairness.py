"""How far a study is, and what its comparison rests on: what was matched, tuned and paired."""

from __future__ import annotations

import math

from ablate.analysis.paired import split
from ablate.analysis.records import (
    Contrast,
    LossyTokenizer,
    Mismatch,
    Multiplicity,
    NoFailures,
    OtherSteps,
    Pairing,
    PartlyReported,
    SameArms,
    SameSeeds,
    SeedCount,
    Tuning,
)
from ablate.plan.compare import not_compared, why_not_compared
from ablate.plan.confounds import READ
from ablate.report import masked
from ablate.report.data import ReportData
from ablate.report.labels import percent, sentence
from ablate.report.sentences import same_on_new_text, say
from ablate.store.records import FAILED
from ablate.store.status import UNFINISHED, misread
from ablate.study import tuned_field
from ablate.units import listed, number, plural

NAMED = 4  # groups whose chosen rates are named one by one
SAME = 0.0005  # sizes with a smaller relative difference are the same


def fairness(data: ReportData) -> list[str]:
    """Return sentences on what was matched, tuned, paired and tested."""
    said = [
        _matched(data),
        _read(data),
        _tuned(data),
        *_paired(data),
        *_new_text(data),
        *(say("multiplicity", one) for one in data.findings.of(Multiplicity)),
        *_not_compared(data),
        *(say("no_failures", one) for one in data.findings.of(NoFailures)),
        *masked.chance(data),
        *masked.sentences(data),
        *(say("seed_count", one, data.labels) for one in data.findings.of(SeedCount)),
        *(say("same_seeds", one, data.study.kind) for one in data.findings.of(SameSeeds)),
        *(
            say("same_arms", one, data.study.kind, misread(one.level, one.baseline_level))
            for one in data.findings.of(SameArms)
        ),
        *(say("lossy_tokenizer", one) for one in data.findings.of(LossyTokenizer)),
        *(say("partly_reported", one) for one in data.findings.of(PartlyReported)),
        *(say("other_steps", one, data.study) for one in data.findings.of(OtherSteps)),
        *_unpaired(data),
        *_best_value(data),
    ]
    return [text for text in said if text]


def _unpaired(data: ReportData) -> list[str]:
    """Say which combinations of cell and seed of an imported study have no run."""
    if data.study.kind != "imported":
        return []
    runs = data.compared.drop_duplicates(["cell", "seed"])
    of = int(runs["cell"].nunique() * runs["seed"].nunique())
    return [say("unpaired", of - len(runs), of)] if len(runs) < of else []


def _best_value(data: ReportData) -> list[str]:
    """Say that a study by the best value of a curve flatters."""
    if data.study.own and data.study.metric.startswith("best "):
        return [say("best_value", data.study.reported)]
    return []


def _matched(data: ReportData) -> str:
    if data.study.own:
        return ""
    match = data.settings.get("match") or {}
    body, every = (
        {"params_body": "the parameters without embeddings and head"},
        {"params": "all parameters"},
    )
    counted = (every if match.get("params") == "total" else {**body, **every}) | {
        "flops": "the training FLOPs"
    }
    found = data.findings.of(Mismatch)
    largest, lacking, begun = {}, [], ""
    for name, text in counted.items():
        known = [abs(off) for one in found if not math.isnan(off := getattr(one, name))]
        if math.inf in known:  # relative to none
            begun = "; some arms train, and their baselines do not"
        elif known:
            largest[text] = max(known)
        if not known or len(known) < len(found):
            lacking.append(text)
    if not largest:
        left = "sizes are not known"
    elif apart := [f"{percent(off)} of {name}" for name, off in largest.items() if off >= SAME]:
        left = f"the largest difference from a baseline is {listed(apart)}"
    else:
        same = listed(largest) if lacking or begun else "the parameters and the training FLOPs"
        left = f"every arm has {same} of its baseline"
    if largest and lacking:
        left += f"; {listed(lacking)} are not known of every arm"
    left += begun
    if "method" in data.compared and data.compared["method"].nunique() > 1:
        left += (
            "; of these parameters each method trains its own part, and FLOPs are those of training"
            " all, without the pre-training"
        )
    if match:
        named = next(iter(counted.values())).removeprefix("the ")
        return (
            f"Matched: {'FLOPs' if match.get('flops') else named}, by {match.get('by', 'd_mlp')};"
            f" {left}."
        )
    return f"Matched: only the budget in the study file; {left}."


def _new_text(data: ReportData) -> list[str]:
    """Say of how many effects no sentence has an interval for new text, as it is the same."""
    known = [one for one in data.findings.of(Contrast) if not math.isnan(one.text_lo)]
    same = sum(map(same_on_new_text, known))
    return [say("same_text", same, len(known))] if same else []


def _not_compared(data: ReportData) -> list[str]:
    """Say which factors no contrast is about."""
    factors = {one.factor for one in data.findings.of(Contrast)}
    found = not_compared(data.within, data.levels.values(), factors) if factors else []
    return [f"{why_not_compared(found)}."] if found else []


def _read(data: ReportData) -> str:
    """Say how much of the text arms read, where their tokenizer is not the baseline's; "" for as
    much.
    """
    if data.study.kind != "transformer" or "tokenizer_hash" not in data.good:
        return ""
    epochs = data.finals[data.finals["name"] == "epochs"].groupby("cell")["value"].mean()
    of = data.good.drop_duplicates("cell").set_index("cell")[["corpus_hash", "tokenizer_hash"]]
    ratios = []
    for one in data.findings.of(Contrast):
        pair = [one.cell, one.baseline]
        if not {*pair} <= {*of.index} & {*epochs.index}:
            continue
        corpora, tokenizers = (of.loc[pair, name].nunique() for name in of.columns)
        if corpora == 1 and tokenizers > 1 and epochs[one.baseline]:
            ratios.append(epochs[one.cell] / epochs[one.baseline])
    if not ratios or max(abs(ratio - 1) for ratio in ratios) <= READ:
        return ""
    least, most = (number(ratio, 2) for ratio in (min(ratios), max(ratios)))
    times = least if least == most else f"{least} to {most}"
    return f"Text read: {times} times as much as by the baseline, which has another tokenizer."


def _tuned(data: ReportData) -> str:
    tune = data.settings.get("tune") or {}
    field = tuned_field(data.settings)
    rates = sorted(set(data.compared[field].dropna())) if field in data.compared else []
    if not tune and (data.study.own or not _trained(data)):
        return ""
    if tune:
        per = tune.get("per", "study")
        each = (
            "for all cells together"
            if per == "study"
            else f"for each {listed([per] if isinstance(per, str) else per)}"
        )
        found = data.findings.of(Tuning)
        if 0 < len(found) <= NAMED:
            each_rate = listed(f"{one.lr:.3g} for {one.group}" for one in found if one.trains)
        else:
            each_rate = " to ".join(
                dict.fromkeys(f"{rate:.3g}" for rate in (rates[:1] + rates[-1:]))
            )
        chosen = f"chosen: {each_rate}" if each_rate else "none is chosen yet"
        if found and not any(one.trains for one in found):
            lowest = listed(dict.fromkeys(f"{one.lr:.3g}" for one in found))
            chosen = f"chosen: {lowest}, though no {data.tuned.short} trains anything"
        shares = any(len(one.cells) > 1 for one in found)
        first = ""
        if shares:
            first = (
                f", by runs of {found[0].cells[0]} alone"
                if len(found) == 1
                else f", by runs of one cell for all that share a {data.tuned.short}"
            )
        lost = [one.group for one in found if not one.trains]
        none = f" {say('no_rate', lost, data.tuned)}" if lost else ""
        how = f"{each}{data.tuned.by}{first}"
        tuned = f"Tuned: {_the(field)} {how}, on separate seeds ({chosen}).{none}"
        if field in ("lr", "finetune_lr") or data.study.own:
            return tuned
        return f"{tuned} {_untuned(data)}"
    return _untuned(data)


def one_rate(data: ReportData) -> bool:
    """Return whether all arms of models by ablate share one learning rate that nothing tuned."""
    field = _rate(data)
    varied = field in (data.settings.get("factors") or {})
    own = data.study.own or not _trained(data) or field not in data.compared or varied
    tuned = data.settings.get("tune") and tuned_field(data.settings) == field
    return not own and not tuned and data.compared[field].nunique() == 1


def _trained(data: ReportData) -> bool:
    """Return whether some run was trained, and not only evaluated."""
    return not (data.compared["tokens"] == 0).all()


def _rate(data: ReportData) -> str:
    """Return the field with the learning rate of the runs that are compared."""
    return "finetune_lr" if data.study.kind == "finetune" else "lr"


def _untuned(data: ReportData) -> str:
    field = _rate(data)
    on = " on the task" if field == "finetune_lr" else ""
    if field not in data.compared:
        return "Nothing was tuned."
    rates = sorted(set(data.compared[field].dropna()))
    if field in (data.settings.get("factors") or {}):
        return f"Not tuned: the learning rate{on} is a factor of the study."
    if len(rates) == 1:
        every = f"every run has learning rate {rates[0]:.3g}{on}"
        if data.compared[field].isna().any():  # learners that are fitted to features have none
            every = f"the learning rate{on} is {rates[0]:.3g} in every run that has one"
        return f"Not tuned: {every}, which is a disadvantage for arms that need another one."
    return "Not tuned: learning rates are those of the study file."


def _the(field: str) -> str:
    return "the learning rate" if field == "lr" else field


def _paired(data: ReportData) -> list[str]:
    if data.exact.issuperset(data.good["cell"]):
        return []
    found = data.findings.of(Pairing)
    if found:
        return [say("pairing", found, data.study.kind)]
    if data.crossed:
        seeds = split(data.compared["seed"])
        counts = [len(set(seeds[:, column])) for column in (0, 1)]
        return [say("crossed", *counts, data.study.kind)]
    return [say("paired", int(data.compared["seed"].nunique()), data.study.kind)]


def state(data: ReportData) -> str:
    """Return how far the study is: "40 of 40 runs are complete", and what blocks it."""
    said = [_counted(data), *(f"{sentence(text)}." for text in data.waiting)]
    if data.unplanned and not data.compared.empty:
        cells = [cell for cell in data.arms["cell"] if cell in data.unplanned]
        said.append(f"No run to compare: {listed(cells)}.")
    return " ".join(said)


def _counted(data: ReportData) -> str:
    counts = data.compared.drop_duplicates("run")["status"].value_counts()
    total = int(counts.sum())
    if not total:
        tuning = data.runs[data.runs["role"] == "tune"].drop_duplicates("run")
        ended = int((~tuning["status"].isin(UNFINISHED)).sum())
        failed = int(tuning["status"].isin(FAILED).sum())
        if len(tuning):
            of = plural(len(tuning), "run")
            if failed and ended == len(tuning):
                return f"The {data.tuned.values} are not chosen: {failed} of {of} that tune failed."
            some = f", {failed} of them without a result" if failed else ""
            return f"The {data.tuned.values} are being tuned: {ended} of {of} ended{some}."
        return "No run is registered yet."
    parts = [
        f"{int(counts.get('complete', 0))} of {plural(total, 'run')}"
        f" {'is' if total == 1 else 'are'} complete"
    ]
    for status, text in (
        ("diverged", "diverged"),
        ("failed", "failed"),
        ("oom", "ran out of memory"),
        ("timeout", "ran out of time"),
    ):
        if counts.get(status, 0):
            parts.append(f"{int(counts[status])} {text}")
    waiting = int(sum(counts.get(status, 0) for status in UNFINISHED))
    if waiting:
        parts.append(f"{waiting} {'is' if waiting == 1 else 'are'} still to run")
    return sentence(listed(parts)) + "."
