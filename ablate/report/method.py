"""The methods paragraphs: what was done, in words that a paper can use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd

from ablate.analysis import paired
from ablate.analysis.data import values
from ablate.analysis.records import (
    Best,
    Contrast,
    Equivalence,
    Failures,
    Spread,
    Successive,
    Tuning,
    Variance,
)
from ablate.code import short
from ablate.components import CATALOGUE
from ablate.config import field_info, meaningful
from ablate.evaluation import Evaluation
from ablate.formats import without_folders
from ablate.metrics import TEXTS_CUT
from ablate.plan.commands import deciding
from ablate.report.data import ReportData
from ablate.report.labels import percent, sentence
from ablate.study.design import PARTWISE
from ablate.units import count, listed, plural

# size of a model → the field that has a meaning where the size has one
SHAPE = {"n_layer": "n_layer", "d_model": "d_model", "n_head": "head_combine", "d_mlp": "d_mlp"}
# settings of the optimiser that a reader needs to repeat it
RECIPE = ("weight_decay", "grad_clip", "warmup", "dropout")
FEW = 3  # values of a setting that are named one by one
SIGN_FLIP_FROM = 6  # fewest pairs for an exact sign-flip test to reach p < 0.05


def paragraphs(data: ReportData) -> list[str]:
    """Return the methods: training, comparison, statistics and provenance."""
    if data.compared.empty:
        return []
    return [
        _training(data),
        *_tuning(data),
        _comparison(data),
        _statistics(data),
        *_further(data),
        _provenance(data),
    ]


def _training(data: ReportData) -> str:
    runs = data.compared
    if data.study.kind == "command":
        return _script(data)
    if data.study.kind == "imported":
        return _imported(data)
    texts = {
        name: listed(sorted({without_folders(str(text)) for text in runs[name].unique()}), "or")
        for name in ("corpus", "tokenizer", "schedule", "precision")
    } | {"n_ctx": _values(runs["n_ctx"])}
    pretrained = data.runs[data.runs["role"] == "pretrain"]
    tokens = sorted(set((runs if pretrained.empty else pretrained)["tokens"]))
    made = "trained" if pretrained.empty else "pre-trained"
    amount = " to ".join(dict.fromkeys((count(tokens[0]), count(tokens[-1]))))
    batch = _values(runs["batch_tokens"], count)
    known = [name for name in runs if name in CATALOGUE and name != "seed"]
    # runs of earlier versions lack fields, which had the default
    fields = [
        {str(name): value for name, value in run.items() if value == value}
        for run in runs[known].drop_duplicates().to_dict("records")
    ]
    shapes = {
        name: {run[name] for run in fields if meaningful(about, run)}
        for name, about in SHAPE.items()
    }
    shape = listed(f"{name} {_values(values)}" for name, values in shapes.items() if values)
    patches = _values({int(run["patch"]) for run in fields if "patch" in run})
    read = (
        f"patches of the images {texts['corpus']} ({patches} pixels a side,"
        f" {texts['n_ctx']} an image, {batch} a step)"
        if data.of_images
        else f"tokens of {texts['corpus']} ({texts['tokenizer']} tokens, {texts['n_ctx']} a"
        f" sequence, {batch} a step)"
    )
    recipe = listed(
        f"{name.replace('_', ' ')} {_values(runs[name], '{:g}'.format)}" for name in RECIPE
    )
    if tokens == [0]:
        return (
            f"{_models(data)} ({shape}) were evaluated, without training."
            f"{_started(data)} {_held_out(data)}"
        )
    return (
        f"{_models(data)} ({shape}) were {made} on"
        f" {amount} {read} by {_levels(runs, 'optimiser', {'adamw': 'AdamW'})} with a"
        f" {texts['schedule']} schedule, in"
        f" {texts['precision']}: {recipe}.{_started(data)} {_held_out(data)}{_task(data)}"
        " tables/runs.csv has the settings of every run."
    )


def _values(values: Iterable[Any], write: Callable[[Any], str] = str) -> str:
    """Return numbers as a list, or their range, where the table of runs has what is between."""
    ordered = sorted(set(values))
    if len(ordered) <= FEW:
        return listed(map(write, ordered), "or")
    return f"{write(ordered[0])} to {write(ordered[-1])}"


def _started(data: ReportData) -> str:
    """Return which weights runs started from; "" where all were random."""
    runs = data.compared
    if "start_hash" not in runs:
        return ""
    given = runs[runs["start_hash"].astype(object).fillna("") != ""]
    if given.empty:
        return ""
    named = {
        f"those of {without_folders(str(name))} (SHA-256 {key[:12]})"
        for name, key in zip(given["start_from"], given["start_hash"], strict=True)
    }
    who = "" if len(given) == len(runs) else ", but for the runs of random weights,"
    return f" They started{who} from given weights: {listed(sorted(named))}."


def _task(data: ReportData) -> str:
    """Return how the models were fine-tuned; "" for a study that does not fine-tune."""
    if data.study.kind != "finetune":
        return ""
    runs = data.compared

    def values(name: str) -> str:
        found = {f"{x:g}" if isinstance(x, float) else str(x) for x in runs[name].dropna()}
        return listed(sorted(found), "or")

    tasks = listed(sorted({without_folders(str(task)) for task in runs["task"]}), "or")
    labels = listed(
        (
            "all labelled texts" if n == 0 else f"{n:g} labelled texts"
            for n in sorted(set(runs["labels"]))
        ),
        "or",
    )
    learners = sorted(
        set(runs["method"]) & {one.name for one in CATALOGUE["method"].levels if not one.by_steps}
    )
    features = f"{values('pooling')} features"
    if "unit" in runs and "word" in set(runs["unit"]):
        features = "the hidden states of words"
    trained = ""
    if len(learners) < runs["method"].nunique():
        trained = (
            f" A linear classifier on {features} was then trained on the task {tasks} ({labels},"
            f" {values('finetune_steps')} steps of {values('finetune_batch')} texts, peak learning"
            f" rate {values('finetune_lr')}), together with the weights that `method` trains."
            " Optimiser and schedule were those of the pre-training."
        )
    if learners:
        trained += (
            f" With method {listed(learners, 'or')} this learner of scikit-learn was fitted to"
            f" {features} of the pre-trained model on the task {tasks} ({labels})."
        )
    cut = data.finals.loc[data.finals["name"] == TEXTS_CUT, "value"]
    if len(cut):
        most = "up to " if cut.nunique() > 1 or len(cut) < len(data.good) else ""
        share = f"{most}{percent(cut.max())}"
        trained += f" Of {share} of the texts a model reads the first n_ctx tokens only."
    return (
        trained
        + " Held-out texts of the task are never trained on."
        + (
            " What was tuned was chosen on the validation part of the task, and the results are"
            " those on its test part."
            if data.settings.get("tune") and runs.get("n_validation", pd.Series([0])).max() > 0
            else ""
        )
    )


def _models(data: ReportData) -> str:
    """Return what was trained for what: "Transformers with causal language modelling"."""
    models = _levels(data.compared, "architecture", {"transformer": ""})
    objectives = _levels(data.compared, "objective", {})
    sources = any(one.has_source for one in data.objectives)
    return (
        (f"Models of architecture {models}" if models else "Transformers")
        + " with "
        + (f"the objective {objectives}" if sources else f"{objectives} language modelling")
    )


def _levels(runs: pd.DataFrame, factor: str, called: Mapping[str, str]) -> str:
    """Return the levels of a factor."""
    levels = sorted(values(runs, factor) if factor in runs else {field_info(factor).default})
    return called.get(levels[0], levels[0]) if len(levels) == 1 else listed(levels, "or")


def _script(data: ReportData) -> str:
    """Return the command line, the version of its code and the value that decides."""
    command = data.settings.get("command") or {}
    versions = sorted({str(code)[:12] for code in data.compared["code"] if code})
    code = f" The code has the version {listed(versions)} (SHA-256)." if versions else ""
    commits = data.attempts[data.attempts["commit"].notna()]
    named = {
        f"{str(commit)[:12]}{' with uncommitted changes' if dirty else ''}"
        for commit, dirty in zip(commits["commit"], commits["dirty"], strict=True)
    }
    code += f" Git commit: {listed(sorted(named))}." if named else ""
    return (
        f"Every run was made by the command {without_folders(str(command.get('run', '')))!r}, once"
        f" for each seed.{code} ablate knows neither the number of parameters nor the data: the"
        " script reads, trains and measures by itself."
    )


def _imported(data: ReportData) -> str:
    """Return where the runs come from."""
    table = data.settings.get("imported") or {}
    files = listed(without_folders(str(name)) for name in table.get("files") or ())
    rows = listed(map(repr, table.get("where") or ()))
    return (
        f"The runs were not made by ablate: their numbers were imported from {files}"
        f"{f', of rows with {rows}' if rows else ''}. How they were trained, what they were"
        " measured on, and what a seed fixes is not known here; a run without a number counts as"
        " failed, one whose number is not finite as diverged."
    )


def _held_out(data: ReportData) -> str:
    """Return how the text was split, and how much of it the metric reads."""
    runs = data.compared
    # runs of earlier versions do not say it, unlike others of the same text, and had one rule
    known = runs.get("split", pd.Series("", runs.index)).astype(object).fillna("")
    if "corpus_hash" in runs:
        known = known.where(known != "", known.groupby(runs["corpus_hash"]).transform("max"))
    splits = {
        f"Held-out images are {split}; they are never trained on."
        if data.of_images
        else f"Held-out text is {split}; it is never trained on."
        if split
        else "Held-out text is the file val.bin of the corpus; it is never trained on."
        if tokenizer == "tokens"
        else "Held-out text is the last tenth of each document, or every tenth document where there"
        " are 50 or more; it is never trained on."
        for split, tokenizer in zip(known, runs["tokenizer"], strict=True)
    }
    evaluation = Evaluation.model_validate_json(data.study.evaluation)
    decoded = (
        f" The targets of up to {count(evaluation.decoded)} held-out pairs are decoded, by beams of"
        f" width {listed(evaluation.beams)}."
        if any(one.pairs for one in data.objectives)
        else ""
    )
    return " ".join(sorted(splits)) + (
        " The final loss is measured on the first"
        f" {count(evaluation.n_final)} {'patches' if data.of_images else 'tokens'} held out, on all"
        f" if there are fewer.{decoded}"
    )


def _tuning(data: ReportData) -> list[str]:
    if not data.findings.of(Tuning):
        return []
    one = data.tuned.short
    return [
        f"{sentence(data.tuned.values)} were tuned on seeds that are not compared: first {one}s"
        f" evenly spaced on a log scale, then further steps while the best {one} was at the edge,"
        f" then {one}s around the best. The {one} is the best on a curve over the log {one} that"
        f" was fitted to the {data.decided_labels.phrase} of the runs of all tuning seeds, away"
        f" from {one}s at which runs diverge. {_of_choice(data, one)} is part of the standard error"
        f" of every contrast whose arms have {one}s of their own (Welch 1947){_without(data)}; the"
        f" effect is that of the arms at their best {one}s. A chosen {one} was stored before any"
        " compared run used it."
    ]


def _without(data: ReportData) -> str:
    """Say in how many contrasts the interval is that without the error of a choice."""
    found = data.findings.of(Contrast, lambda one: one.choice_error > 0 and one.lo < one.hi)
    rows = paired.of_pairs(
        data.pairs,
        data.pilots,
        correction=data.correction,
        crossed=data.crossed,
        sizeless=data.sizeless,
    )
    alone = {(row.family, row.cell): (row.lo, row.hi) for row in rows}
    same = sum(alone[one.family, one.cell] == (one.lo, one.hi) for one in found)
    if not same:
        return ""
    which = f"all {same}" if same == len(found) > 1 else f"{same} of {len(found)}"
    return (
        f", except in {which}: there the interval without it is the wider, as it has fewer degrees"
        " of freedom, and counts"
    )


def _of_choice(data: ReportData, one: str) -> str:
    """What the choice of a rate adds to an error."""
    if not data.tuned.by:
        return "The root mean square regret of the choice"
    return (
        f"The root mean square difference of the {data.labels.phrase} at the chosen {one} and at"
        f" the best {one}, by curves of both metrics drawn from their posteriors,"
    )


def _comparison(data: ReportData) -> str:
    if data.crossed:
        pairs = paired.split(data.compared["seed"])
        inits, orders = (len(set(pairs[:, column])) for column in (0, 1))
        return (
            f"Every cell was trained with the same {inits} seeds of the initialisation, each with"
            f" the same {orders} seeds of the data order. The first fix, by name and shape, the"
            " initial value of every weight; the second batch order, masks and dropout; a cell and"
            f" its baseline are compared in pairs that share both. {_when(data)}"
        )
    counts = data.compared.groupby("cell")["seed"].nunique()
    least, most = int(counts.min()), int(counts.max())
    seeds = (
        f"the same {plural(most, 'seed')}"
        if least == most
        else f"the seeds of its stratum, {least} to {most} of them"
    )
    if data.study.own:
        made = "has" if data.study.kind == "imported" else "was trained with"
        return (
            f"Every cell {made} {seeds}, and a cell and its baseline are compared in pairs of one"
            f" seed. {_when(data)}"
        )
    return (
        f"Every cell was trained with {seeds}. A seed fixes the batch order and, by name and shape,"
        " the initial value of every weight, so that a cell and its baseline are compared in"
        f" pairs. {_when(data)}"
    )


def _when(data: ReportData) -> str:
    if data.study.own:
        return f"What decides is {deciding(data.study.metric)}."
    meanings = {name: f" ({meaning})" for name, *_, meaning in data.metrics}
    meaning = meanings.get(data.study.metric, "")
    return (
        f"The metric is {data.labels.axis}{meaning} at the end of the whole schedule; no checkpoint"
        " was chosen."
    )


def _statistics(data: ReportData) -> str:
    most = int(data.effects["n"].max()) if len(data.effects) else 0
    check = (
        f" With {plural(most, 'pair')} that test cannot reach p < 0.05, which needs"
        f" {SIGN_FLIP_FROM}: the result relies on the t-test's assumption of normal differences."
        if 0 < most < SIGN_FLIP_FROM
        else ""
    )
    df = (
        "Satterthwaite's degrees of freedom (Satterthwaite 1946), with the variance of its mean"
        " from a two-way analysis of variance in which both seeds are random, and never narrower"
        " than for either seed alone"
        if data.crossed
        else "n − 1 degrees of freedom for n pairs"
    )
    sign_flip = (
        ""
        if data.crossed
        else f" The exact sign-flip p (Fisher 1935) is a check that assumes symmetric noise"
        f" only.{check}"
    )
    return (
        "An effect is the mean of the paired differences, with the interval and the two-sided p of"
        f" Student's t (Student 1908) on {df}. {_corrected(data)}, p is corrected"
        " by Holm's method (Holm 1979) and the family intervals by Bonferroni's; an effect is"
        " significant where Holm's p is at most"
        f" 0.05.{_stages(data)}{sign_flip} A pair is lost if one of its runs diverged, failed, or"
        " ended without a finite value: it is counted and named, not imputed. The detectable effect"
        " is the smallest"
        " true effect that a t-test finds with 80% power, for this number of pairs, the noise"
        " found and the family's correction."
    )


def _further(data: ReportData) -> list[str]:
    """Return how the findings beside the effects were tested, of those that the study has."""
    found = data.findings
    said = []
    if successive := found.of(Successive):
        factors = listed(dict.fromkeys(one.factor for one in successive))
        where = "" if data.correction == "study" else ", of each factor and stratum,"
        said.append(
            f"Each level of {factors} was also compared with the level before it; Holm's correction"
            f" covers these differences{where} by themselves."
        )
    if found.of(Best):
        said.append(
            "The best arms are those that no other arm beats significantly in multiple comparisons"
            " with the best (Hsu 1984), by paired t-tests at 0.05/(M − 1) for M arms, on the seeds"
            " that all arms completed. Two arms that have a contrast have the verdict of that"
            " contrast."
        )
    if any(not math.isnan(one.text_lo) for one in found.of(Contrast)):
        said.append(
            "The interval for new text treats seeds and windows of held-out text as random (two-way"
            " random effects)."
        )
    if any(one.outlying and not math.isnan(one.median_lo) for one in found.of(Contrast)):
        said.append(
            "Where pairs lie far from the others, the Hodges–Lehmann estimate (Hodges & Lehmann"
            " 1963) is stated too, with its exact interval."
        )
    if found.of(Spread):
        said.append(
            "Spreads over seeds are compared by the Pitman–Morgan test (Pitman 1939; Morgan 1939)."
        )
    if found.of(Failures):
        said.append(
            "Failure rates have Wilson's interval (Wilson 1927) and are compared by McNemar's exact"
            " test (McNemar 1947); the signed-rank test (Wilcoxon 1945) is exact and ranks a failed"
            " run below every other (Lachin 1999)."
        )
    if any(not one.proposed for one in found.of(Equivalence)):
        said.append("Equivalence is tested by two one-sided tests at 0.05 (Schuirmann 1987).")
    if found.of(Variance):
        said.append(
            "Shares of the variance over seeds have generalised intervals (Weerahandi 1993)."
        )
    said += _curves(data)
    return [" ".join(said)] if said else []


def _curves(data: ReportData) -> list[str]:
    """Return how scaling curves were fitted."""
    fitted = data.curves_fitted.fitted if data.curves_fitted else None
    if fitted is None:
        return []
    said = [
        "Curves minimise the summed Huber loss of log loss (Hoffmann et al. 2022; Besiroglu et al."
        " 2024). Their intervals come from a Bayesian bootstrap over runs (Rubin 1981), which also"
        " shifts the runs of a size or budget together, by a standard deviation with a half-Cauchy"
        " prior (Gelman 2006); percentiles are those of a t (Hesterberg 2015)."
    ]
    if fitted.isoflops:
        said.append(
            "isoFLOP minima are those of an Akima interpolation (Akima 1970) of log loss over log"
            " size (Porian et al. 2024)."
        )
    return said


def _corrected(data: ReportData) -> str:
    sized = ", without contrasts of arms that did not learn" if data.untrained else ""
    sized += ", without contrasts of tokenizers that lose text" if data.lossy else ""
    if data.correction == "study":
        return f"Over all contrasts of the study{sized}"
    return f"Within a family, which is {_family(data)} in one stratum{sized}"


def _family(data: ReportData) -> str:
    parts = data.settings.get("design") in PARTWISE
    return (
        "all parts that are taken away or added one at a time"
        if parts
        else "the levels of one factor"
    )


def _stages(data: ReportData) -> str:
    if "two-stage t" not in set(data.effects["method"]):
        return ""
    return (
        " The number of seeds was decided by the noise of a pilot (Stein 1945); intervals and p"
        " therefore take the standard deviation and the degrees of freedom of the pilot alone,"
        " which keeps their coverage for any number of seeds. A contrast with more seeds than"
        " its own pilot required uses the wider of that interval and the usual one."
    )


def _provenance(data: ReportData) -> str:
    hashes = sorted({str(value)[:12] for value in data.effects["input_hash"]})
    where = listed(hashes) if len(hashes) <= FEW else "column input_hash of tables/effects.csv"
    inputs = f" SHA-256 of all values that went into a family's effects: {where}." if hashes else ""
    return (
        f"All numbers are in the study's database: study {data.study.name}, revision"
        f" {data.study.revision}.{inputs}{_code(data)}"
    )


def _code(data: ReportData) -> str:
    """Return which code from outside made runs, and what could not be done with it."""
    text = ""
    for one in data.code:
        runs = sum(one.cells.values())
        called = "version" if one.code.text is None else "SHA-256"
        source = f"{without_folders(one.code.name)} ({called} {short(one.code.version)})"
        kept = "" if one.code.text is None else "; its text is in the database"
        if runs:
            text += f" Code of {source} made {runs} of the runs{kept}."
        if one.left:
            text += f" {one.left} runs by {source} are not part of this report."
    attempts = data.attempts
    noted = attempts[attempts["note"].notna()].drop_duplicates("id")
    for note, of in noted.groupby("note", sort=False):
        text += f" {plural(len(of), 'attempt')}: {note}."
    return text
