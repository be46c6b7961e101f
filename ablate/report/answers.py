"""The answer in sentences that a paper could quote: one a contrast, one a family, and what the comparison rests on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ablate import analysis, stats
from ablate.plan.compare import MISMATCH
from ablate.report import tuned
from ablate.report.material import Material
from ablate.report.words import MetricWords, decimals, listed, number, p_value, percent, plural, sentence, signed
from ablate.study import values

SAME = 0.0005  # sizes nearer than this, relatively, are said to be the same
FEW = 3  # strata that each have a line of their own
BROKEN = {"diverged": "diverged", "failed": "failed", "oom": "ran out of memory", "complete": "has no finite value"}


@dataclass(frozen=True)
class Answer:
    """What one contrast says. The sentence begins with the level's name: "parallel is worse than serial: …"."""

    level: str
    text: str  # what follows the level's name
    verdict: str  # "better" | "worse" | "unresolved" | "unknown"


@dataclass(frozen=True)
class Family:
    """The contrasts that are corrected together, and what they say between them."""

    heading: str  # "topology at n_layer=4, against serial"
    summary: str
    answers: tuple[Answer, ...]


def lead(material: Material) -> list[str]:
    """For each stratum, where they are few, which arm has the best mean: what the reader asks first, and no test."""
    words = material.words
    if len(material.strata) > FEW:
        return []
    said = []
    for stratum in material.strata:
        runs = material.good[material.good["cell"].isin(material.arms.loc[material.arms["stratum"] == stratum, "cell"])]
        means = runs.groupby("arm", observed=True)["metric"].mean().sort_values(ascending=words.goal == "min")
        if len(means) > 1:
            where = f"At {stratum} the" if stratum else "The"
            digits = decimals(float(runs.groupby("arm", observed=True)["metric"].std().median()))
            best, second = (f"{name} ({number(float(means[name]), digits)}" for name in means.index[:2])
            side = "lowest" if words.goal == "min" else "highest"
            said.append(f"{where} {side} mean {words.phrase} is that of {best}{words.after}), followed by {second}).")
    return said


def families(material: Material) -> list[Family]:
    """The answers of a study, family by family; where each has one level only, all together."""
    parts = [part.to_dict("records") for _, part in material.effects.groupby("family", sort=False)]
    if len(parts) > 1 and all(len(rows) == 1 for rows in parts):
        answers = tuple(_answer(material, rows[0], 1, _full_name(material, rows[0])) for rows in parts)
        factors = material.effects["factor"].unique()
        heading = (
            f"{factors[0]}, at each of {len(parts)} strata"
            if len(factors) == 1
            else "each factor by itself, against the baseline"
        )
        return [Family(heading, _summary("the baseline", answers), answers)]
    found = []
    for rows in parts:
        answers = tuple(_answer(material, row, len(rows), row["level"]) for row in rows)
        first = rows[0]
        where = f" at {first['stratum']}" if first["stratum"] else ""
        heading = f"{first['factor']}{where}, against {first['baseline_level']}"
        summary = _summary(first["baseline_level"], answers) if len(answers) > 1 else ""
        found.append(Family(heading, summary, answers))
    return found


def _full_name(material: Material, row: Mapping[Any, Any]) -> str:
    """The level with all that tells it from the other rows of a study whose families have one level each."""
    several = material.effects["factor"].nunique() > 1
    return (f"{row['factor']}={row['level']}" if several else row["level"]) + (f" at {row['stratum']}" if row["stratum"] else "")


def changes(material: Material) -> list[Family]:
    """Whose effect is another in the strata behind the first. What is not told from no change is named together."""
    words, found = material.words, []
    single = bool(len(material.changes)) and material.changes.groupby(["factor", "stratum"]).size().max() == 1
    for key, part in material.changes.groupby(["factor"] if single else ["factor", "stratum"], sort=False):
        rows = part.to_dict("records")
        names = [f"{row['level']} at {row['stratum']}" if single else row["level"] for row in rows]
        size = 1 if single else len(rows)
        answers = tuple(_change(words, row, size, name) for row, name in zip(rows, names, strict=True) if row["resolved"])
        rest = {name: row["resolvable"] for row, name in zip(rows, names, strict=True) if not row["resolved"] and row["n"]}
        to = "" if single else f" to {key[1]}"
        heading = f"{key[0]}: does its effect change from {rows[0]['first']}{to}?"
        if answers or rest:
            found.append(Family(heading, _unchanged(words, rest), answers))
    return found


def _unchanged(words: MetricWords, resolvable: Mapping[str, float]) -> str:
    """A sentence on the arms, name → what could be seen, whose effect is not told to change."""
    seen = max((value for value in resolvable.values() if math.isfinite(value)), default=math.nan)
    see = f"; this study can see {number(seen, decimals(seen))}{words.after} or more" if math.isfinite(seen) else ""
    return f"No change is told from zero for {listed(resolvable)}{see}." if resolvable else ""


def _change(words: MetricWords, row: Mapping[Any, Any], family_size: int, name: str) -> Answer:
    digits = decimals((row["hi"] - row["lo"]) / 2)
    text = (
        f"has another effect: its difference in {words.phrase} moves by {signed(row['mean'], digits)}{words.after} "
        f"(95% interval {signed(row['lo'], digits)} to {signed(row['hi'], digits)}; {_evidence(row, family_size)})."
    )
    return Answer(name, text, "changed")


def _answer(material: Material, row: Mapping[Any, Any], family_size: int, name: str) -> Answer:
    pairs = material.pairs[(material.pairs["family"] == row["family"]) & (material.pairs["cell"] == row["cell"])]
    verdict, claim = _claim(material.words, row, family_size)
    rest = [
        claim,
        *_same(material, row),
        *_equivalence(material, pairs, verdict),
        *_losses(row, pairs),
        *_instability(material, row),
        *_confounds(material, row),
    ]
    return Answer(name, " ".join(rest), verdict)


def _claim(words: MetricWords, row: Mapping[Any, Any], family_size: int) -> tuple[str, str]:
    """The verdict, and the sentence with effect, interval, pairs and correction."""
    base, n, mean = row["baseline_level"], row["n"], row["mean"]
    if n == 0:
        return "unknown", f"cannot be compared with {base}: {_nothing(row)}."
    digits = decimals((row["hi"] - row["lo"]) / 2)
    unit = words.after
    if n == 1:
        return "unknown", (
            f"has one pair with {base}: {words.phrase} differs by {signed(mean, 4)}{unit}; one pair says nothing about the noise."
        )
    if math.isnan(row["lo"]):
        return "unknown", (
            f"differs from {base} by exactly {signed(mean, 4)}{unit} in all {plural(n, 'pair')}: "
            "without any noise there is no interval and no test."
        )
    if row["resolved"]:
        verdict, verb = "better" if words.better(mean) else "worse", "raises" if mean > 0 else "lowers"
        low, high = sorted((abs(row["lo"]), abs(row["hi"])))
        return verdict, (
            f"is {verdict} than {base}: it {verb} {words.phrase} by {number(abs(mean), digits)}{unit} "
            f"(95% interval {number(low, digits)} to {number(high, digits)}; {_evidence(row, family_size)})."
        )
    if row["sd"] == 0:
        return "unresolved", f"equals {base} exactly in all {plural(n, 'pair')}: {words.phrase} does not differ."
    almost = ""
    if row["lo"] > 0 or row["hi"] < 0:
        almost = " The interval excludes zero by itself, but the correction for several levels takes that back."
    return "unresolved", (
        f"is not told apart from {base}: {words.phrase} differs by {signed(mean, digits)}{unit} (95% interval "
        f"{signed(row['lo'], digits)} to {signed(row['hi'], digits)}; {_evidence(row, family_size)}). "
        f"Not resolved: this study can see {number(row['resolvable'], digits)}{unit} or more here.{almost}"
    )


def _same(material: Material, row: Mapping[Any, Any]) -> Iterator[str]:
    runs = material.compared.groupby("cell")["key"].agg(set)
    if row["n"] and runs[row["cell"]] == runs[row["baseline"]]:
        yield "The two are the same configuration under two names: they share their runs."


def _equivalence(material: Material, pairs: pd.DataFrame, verdict: str) -> Iterator[str]:
    """Whether the difference is small enough not to matter, where the study file says what that is."""
    delta = (material.settings.get("report") or {}).get("delta")
    if delta is None or pairs.empty:
        return
    margin, unit = float(values.number("delta", delta)), material.words.after
    found = analysis.equivalence(pairs, margin, material.pilots)
    if math.isnan(found.p):
        return
    if found.equivalent:
        yield f"The two are equivalent within ±{margin:g}{unit} (two one-sided tests, {p_value(found.p)})."
    elif verdict == "unresolved":
        yield f"That they are equivalent within ±{margin:g}{unit} is not shown (two one-sided tests, {p_value(found.p)})."


def _nothing(row: Mapping[Any, Any]) -> str:
    if row["lost"] and row["pending"]:
        return f"{plural(row['lost'], 'pair')} lost and {row['pending']} still to run"
    if row["lost"]:
        return "its only pair is lost" if row["lost"] == 1 else f"all {plural(row['lost'], 'pair')} are lost"
    return "its runs are not finished" if row["pending"] else "there is no pair"


def _evidence(row: Mapping[Any, Any], family_size: int) -> str:
    p = p_value(row["p_holm"])
    return f"{plural(row['n'], 'pair')}; {p if family_size == 1 else f'Holm {p} over {family_size} levels'}"


def _losses(row: Mapping[Any, Any], pairs: pd.DataFrame) -> Iterator[str]:
    """What became of the pairs that do not count."""
    if row["lost"]:
        total = row["n"] + row["lost"]
        reasons = _reasons(pairs, row["level"], "status", "value") + _reasons(
            pairs, row["baseline_level"], "baseline_status", "baseline_value"
        )
        yield f"{row['lost']} of {plural(total, 'pair')} {'is' if row['lost'] == 1 else 'are'} lost: {listed(reasons)}."
    if row["pending"] and row["n"]:
        yield f"{plural(row['pending'], 'pair')} {'is' if row['pending'] == 1 else 'are'} still to run."


def _reasons(pairs: pd.DataFrame, name: str, status: str, value: str) -> list[str]:
    """ "parallel diverged with seeds 1 and 3" for each way in which an arm's runs ended without a value."""
    done = pairs[analysis.ended(pairs)]
    broken = done[(done[status] != "complete") | ~np.isfinite(done[value].astype(float))]
    return [
        f"{name} {BROKEN[str(why)]} with seed{'s' if len(part) > 1 else ''} {listed(sorted(part['seed']))}"
        for why, part in broken.groupby(status)
    ]


def _instability(material: Material, row: Mapping[Any, Any]) -> Iterator[str]:
    """The rate at which an arm diverges, where some of its runs do and some do not."""
    runs = material.compared[material.compared["cell"] == row["cell"]]
    ended = runs[runs["status"].isin(["complete", "diverged"])]
    diverged = int((ended["status"] == "diverged").sum())
    if 0 < diverged < len(ended):
        low, high = stats.wilson(diverged, len(ended))
        yield (
            f"It is unstable: {diverged} of {plural(len(ended), 'run')} diverged ({percent(diverged / len(ended))}, "
            f"95% Wilson interval {percent(low)} to {percent(high)})."
        )


def _confounds(material: Material, row: Mapping[Any, Any]) -> Iterator[str]:
    """By how much the arm is larger or dearer than its baseline."""
    sizes = material.compared.groupby("cell")[["n_params_body", "flops"]].first()
    if row["cell"] not in sizes.index or row["baseline"] not in sizes.index:
        return
    ratio = sizes.loc[row["cell"]].astype(float) / sizes.loc[row["baseline"]].astype(float) - 1
    named = {"n_params_body": "parameters (without embeddings and head)", "flops": "training FLOPs"}
    said = [
        f"{percent(abs(ratio[column]))} {'more' if ratio[column] > 0 else 'fewer'} {text}"
        for column, text in named.items()
        if abs(ratio[column]) > MISMATCH
    ]
    if said:
        yield f"It has {listed(said)}."


def _summary(baseline: str, answers: tuple[Answer, ...]) -> str:
    """How many levels are better, worse, not told apart."""
    groups = {
        "better": f"better than {baseline}",
        "worse": f"worse than {baseline}",
        "unresolved": f"not told apart from {baseline}",
        "unknown": "without an answer",
    }
    counts = {verdict: [answer.level for answer in answers if answer.verdict == verdict] for verdict in groups}
    said = [
        f"{listed(names)} {'is' if len(names) == 1 else 'are'} {groups[verdict]}" for verdict, names in counts.items() if names
    ]
    return "; ".join(said) + "."


# -- what the comparison rests on ------------------------------------------------------------------------------------


def fairness(material: Material) -> list[str]:
    """Sentences on what was matched, tuned and paired."""
    return [_matched(material), _tuned(material), _paired(material), *tuned.seeds(material)]


def _matched(material: Material) -> str:
    match = material.settings.get("match") or {}
    sizes = material.compared.groupby("cell")[["n_params_body", "flops"]].first().astype(float)
    base = material.effects.drop_duplicates("cell").set_index("cell")["baseline"]
    known = [cell for cell in base.index if cell in sizes.index and base[cell] in sizes.index]
    ratios = np.abs(sizes.loc[known].to_numpy() / sizes.loc[list(base[known])].to_numpy() - 1)
    params, flops = ratios.max(axis=0) if known else (math.nan, math.nan)
    if not known or not math.isfinite(params):
        left = "sizes are not known"
    elif max(params, flops) < SAME:
        left = "every arm has the parameters and the training FLOPs of its baseline"
    else:
        left = f"the largest difference from a baseline is {percent(params)} of the parameters without embeddings and head" + (
            f" and {percent(flops)} of the training FLOPs" if flops >= SAME else ""
        )
    if match:
        body = "parameters without embeddings and head"
        what = "FLOPs" if match.get("flops") else "all parameters" if match.get("params") == "total" else body
        return f"Matched: {what}, by {match.get('by', 'd_mlp')}; {left}."
    return f"Matched: nothing but the budget of the study file; {left}."


def _tuned(material: Material) -> str:
    tune = material.settings.get("tune") or {}
    rates = sorted(set(material.compared["lr"].dropna())) if "lr" in material.compared else []
    if tune:
        per = tune.get("per", "study")
        each = "once for all cells" if per == "study" else f"for each {listed([per] if isinstance(per, str) else per)}"
        chosen = f"chosen: {listed(f'{rate:.3g}' for rate in rates)}" if rates else "none is chosen yet"
        shares = any(len(row["cells"]) > 1 for row in tuned.found(material))
        first = ", on the first cell of each group" if shares else ""
        return f"Tuned: the learning rate {each}{first}, on seeds of its own ({chosen})."
    if "lr" in (material.settings.get("factors") or {}):
        return "Not tuned: the learning rate is a factor of the study."
    if len(rates) == 1:
        return f"Not tuned: every run has learning rate {rates[0]:.3g}, so an arm that wants another one loses by it."
    return "Not tuned: learning rates are those of the study file."


def _paired(material: Material) -> str:
    seeds = material.compared["seed"].nunique()
    correlation = material.effects["correlation"].dropna()
    median = number(float(correlation.median()), 2) if len(correlation) else ""
    shared = f"; the median correlation of two arms over seeds is {median}" if median else ""
    return (
        f"Paired: runs of one seed share their batch order and the start of every weight of the same name and shape "
        f"({plural(seeds, 'seed')}{shared})."
    )


def state(material: Material) -> str:
    """How far the study is: "40 of 40 runs are complete", and what is missing."""
    counts = material.compared.drop_duplicates("run")["status"].value_counts()
    total = int(counts.sum())
    if not total:
        tuning = material.runs[material.runs["role"] == "tune"].drop_duplicates("run")
        ended = int(tuning["status"].isin(["complete", "diverged"]).sum())
        if len(tuning):
            return f"The learning rates are being tuned: {ended} of {plural(len(tuning), 'run')} ended."
        return "No run is registered yet."
    parts = [f"{int(counts.get('complete', 0))} of {plural(total, 'run')} {'is' if total == 1 else 'are'} complete"]
    for status, text in (("diverged", "diverged"), ("failed", "failed"), ("oom", "ran out of memory")):
        if counts.get(status, 0):
            parts.append(f"{int(counts[status])} {text}")
    waiting = int(sum(counts.get(status, 0) for status in ("planned", "running", "stopped")))
    if waiting:
        parts.append(f"{waiting} {'is' if waiting == 1 else 'are'} still to run")
    return sentence(listed(parts)) + "."
