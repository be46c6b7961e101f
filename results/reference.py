"""Writes the pages and tables of the reference studies from `reference.db`.

    python results/reference.py            # the tables of README.md
    python results/reference.py --pages    # and the report of every study, in reference/

README.md marks a table by `<!-- table: NAME -->` and `<!-- end -->`; NAME is a key of `TABLES`.
"""

from __future__ import annotations

import math
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import numpy as np
from scipy import stats

import ablate
from ablate import formats, report, store
from ablate.analysis import records
from ablate.analysis.collection import Findings
from ablate.report.labels import metric_labels
from ablate.store.names import studies
from ablate.units import count

RESULTS = Path(__file__).parent
DATABASE = RESULTS / "reference.db"
PAGE = RESULTS / "README.md"

findings: Callable[[str], Findings] = cache(lambda study: ablate.findings(study, str(DATABASE)))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    return formats.render(columns, list(rows), "md").rstrip("\n")


def signed(value: float, lo: float, hi: float, spec: str = ".4f") -> str:
    """Return a difference and its interval, as many digits as `spec` says."""
    ends = ", ".join(f"{end:{spec}}" for end in (lo, hi))
    return f"{value:+{spec}} ({ends})".replace("-", "−")


def effect(contrast: records.Contrast | records.Successive) -> str:
    """Return an effect with its interval and, unless it is significant, its verdict."""
    if contrast.verdict == "untrained":
        return "does not learn beyond token frequencies"
    digits = max(2, min(4, 1 - math.floor(math.log10(max(contrast.hi - contrast.lo, 1e-4) / 2))))
    text = signed(contrast.mean, contrast.lo, contrast.hi, f".{digits}f")
    return text if contrast.verdict in ("better", "worse") else f"{text}, {contrast.verdict}"


def baseline(contrast: records.Contrast) -> str:
    """Return the mean metric of a contrast's baseline."""
    return f"{fmean(pair.baseline_value for pair in contrast.pairs):.4f}"


def excess(contrast: records.Contrast) -> str:
    """Return by what share of the baseline's mean metric the other arm's is higher."""
    value, base = (
        sum(getattr(pair, name) for pair in contrast.pairs) for name in ("value", "baseline_value")
    )
    return f"{value / base - 1:+.2%}".replace("-", "−")


def by_level(found: Sequence[records.Contrast]) -> dict[str, str]:
    """Return the mean of the baseline, then the effect of every level, of one family."""
    return {
        found[0].baseline_level: baseline(found[0]),
        **{one.level: effect(one) for one in found},
    }


def effects(study: str, strata: dict[str, str] | None = None, name: str = "level") -> str:
    """Return a row for each level with its effect in every stratum, baselines with their mean.

    Args:
        study: The study.
        strata: Stratum → heading of its column; by default the strata themselves.
        name: Heading of the first column.
    """
    found = findings(study).of(records.Contrast)
    strata = strata or {one.stratum: one.stratum or "effect" for one in found}
    rows: dict[str, dict[str, str]] = {}
    for one in found:
        rows.setdefault(one.baseline_level, {})[one.stratum] = baseline(one)
        rows.setdefault(one.level, {})[one.stratum] = effect(one)
    return table(
        [name, *strata.values()],
        [(level, *(of.get(stratum, "–") for stratum in strata)) for level, of in rows.items()],
    )


def lengths() -> str:
    """Return the change of loss in contexts longer than those trained with."""
    found = findings("position").of(records.LengthChange)
    columns = dict.fromkeys((one.stratum, one.factor) for one in found)
    rows: dict[str, dict[tuple[str, float], str]] = {}
    for one in found:
        text = signed(one.mean, one.lo, one.hi, ".3f") if one.defined else "not defined"
        rows.setdefault(one.arm, {})[one.stratum, one.factor] = text
    names = [f"{stratum.partition('=')[2]}, {factor:g} ×" for stratum, factor in columns]
    return table(
        ["encoding", *names],
        [(arm, *(cells.get(at, "–") for at in columns)) for arm, cells in rows.items()],
    )


def shapes(study: str) -> str:
    """Return what parallel blocks cost at every number of layers and width."""
    runs = ablate.load(study, str(DATABASE)).set_index("cell")
    rows = []
    for one in findings(study).of(records.Contrast):
        run = runs.loc[one.cell].iloc[0]
        shape = f"{run.n_layer} × {run.d_model}"
        size = count(run.n_params_body)
        rows.append((shape, size, baseline(one), effect(one), excess(one)))
    return table(["layers × width", "body parameters", "serial", "parallel", "share"], rows)


def scale_gap() -> str:
    """Return the excess loss of parallel by size and budget, of means over seeds."""
    rows: dict[str, dict[str, str]] = {}
    for one in findings("scale").of(records.Contrast):
        size, budget = (part.partition("=")[2] for part in one.stratum.split(", "))
        rows.setdefault(size, {})[budget] = excess(one)
    budgets = sorted({budget for of in rows.values() for budget in of}, key=float)
    return table(
        ["body parameters", *(f"{budget} FLOPs" for budget in budgets)],
        [(size, *(of.get(budget, "–") for budget in budgets)) for size, of in rows.items()],
    )


def scale_fits() -> str:
    """Return the constants of the fitted curves with their intervals, and how the curves differ."""
    fits = findings("scale").of(records.ScalingFit)
    (compared,) = findings("scale").of(records.ScalingComparison)
    rows = [
        (label, *("{:.3f} ({:.3f}, {:.3f})".format(*fit.constants[one]) for fit in fits), change)
        for one, label, change in (
            ("E", "E", "–"),
            ("alpha", "α, of N", _exponent(compared, "alpha")),
            ("beta", "β, of D", _exponent(compared, "beta")),
        )
    ]
    rows.append(("noise about the curve", *(f"{fit.noise:.2%}" for fit in fits), "–"))
    rows.append(("largest size held out: miss", *map(_miss, fits), "–"))
    rows.append(("loss at equal budgets", *("–" for _ in fits), signed(*compared.gap, ".2%")))
    return table(["fit", *(fit.curve for fit in fits), "difference"], rows)


def _exponent(compared: records.ScalingComparison, name: str) -> str:
    value, lo, hi, p = compared.exponents[name]
    return f"{signed(value, lo, hi, '.3f')}, Holm p = {p:.2g}"


def _miss(fit: records.ScalingFit) -> str:
    text = f"{fit.miss:+.2%}".replace("-", "−")
    return text if fit.trusted else f"{text}, outside the expected range"


def probes() -> str:
    """Return the loss of the masked models of every size at every probe ratio."""
    found = findings("masking").of(records.ProbeLoss)
    ratios = sorted({one.ratio for one in found})
    rows: dict[tuple[str, str], dict[float, str]] = {}
    for one in found:
        rows.setdefault((one.stratum, one.arm), {})[one.ratio] = f"{one.mean:.3f}"
    return table(
        ["size", "trained at", *(f"probe at {ratio:g}" for ratio in ratios)],
        [
            (stratum.partition("=")[2], arm, *(of[ratio] for ratio in ratios))
            for (stratum, arm), of in rows.items()
        ],
    )


def larger_masked() -> str:
    """Return the accuracy, effect and rate of the larger masked models, and their probe losses."""
    rows = []
    for size in ("25m", "85m"):
        study = f"masking-{size}"
        of = findings(study).of
        told = by_level(of(records.Contrast))
        accuracy = per_seed(study, "era_accuracy")
        rates = {one.arm: one.lr for one in of(records.TuningChange)}
        losses = {(one.arm, one.ratio): f"{one.mean:.3f}" for one in of(records.ProbeLoss)}
        rows += [
            (
                size.upper(),
                level,
                f"{fmean(accuracy[level]):.4f} ± {np.std(accuracy[level], ddof=1):.4f}",
                told[level] if place else "",
                losses[level, 0.15],
                losses[level, 0.4],
                f"{rates[level]:.3g}",
            )
            for place, level in enumerate(told)
        ]
    probes = ("loss, probe at 0.15", "loss, probe at 0.4")
    return table(["size", "trained at", "accuracy", "effect", *probes, "rate"], rows)


def per_seed(study: str, name: str, at: float = 0.0) -> dict[str, list[float]]:
    """Return the values of a final metric: cell → one a seed, in their order."""
    values: dict[str, list[float]] = {}
    with sqlite3.connect(f"file:{DATABASE}?mode=ro", uri=True) as db:
        for cell, value in db.execute(
            "SELECT cell, value FROM runs JOIN final ON final.run_id = runs.run"
            " WHERE study = ? AND role = 'compare' AND name = ? AND at = ? ORDER BY seed",
            (study, name, at),
        ):
            values.setdefault(cell.partition("=")[2], []).append(value)
    return values


def steps() -> str:
    """Return the errors of each step from RNN to transformer, and its effect on the one before."""
    study = "rnn-to-transformer"
    found = findings(study).of(records.Contrast)
    arms = [found[0].baseline_level, *(one.level for one in found)]
    errors = {beam: per_seed(study, "error_rate", beam) for beam in (1.0, 4.0)}
    exact = per_seed(study, "exact_match", 4.0)
    step = {one.level: one for one in findings(study).of(records.Successive)}
    grows = {one.arm: one for one in findings(study).of(records.LengthError)}
    rows = []
    for arm in arms:
        means = [np.mean(of[arm]) for of in (errors[1.0], errors[4.0], exact)]
        long = grows[arm]
        rows.append(
            (
                arm,
                f"{means[0]:.4f}",
                effect(step[arm]) if arm in step else "–",
                f"{means[1]:.4f}",
                f"{means[2]:.3f}",
                signed(long.mean, long.lo, long.hi, ".3f"),
            )
        )
    columns = ["architecture", "error, greedy", "against the row above", "beam 4", "exact, beam 4"]
    return table([*columns, "longest − shortest words"], rows)


def mae() -> str:
    """Return the effect and the reconstruction errors of every ratio of hidden patches."""
    ratios = (0.25, 0.5, 0.75, 0.9)
    errors = {ratio: per_seed("mae", "reconstruction_loss", ratio) for ratio in ratios}
    told = by_level(findings("mae").of(records.Contrast))
    return table(
        ["trained at", "accuracy", *(f"error at {ratio:g}" for ratio in ratios)],
        [
            (level, told[level], *(f"{np.mean(errors[ratio][level]):.3f}" for ratio in ratios))
            for level in sorted(told, key=float)
        ],
    )


def corruption() -> str:
    """Return what every noise reaches on its own task and on the others', and its rate."""
    of = findings("corruption").of
    own = per_seed("corruption", "loss")
    light = {one.arm: one.mean for one in of(records.ProbeLoss) if one.ratio < 0.3}
    probes = {one.arm: one for one in of(records.LinearProbe)}
    rates = {one.arm: one.lr for one in of(records.TuningChange)}
    columns = ["trained with", "own loss", "loss at 0.3", "loss at 0.15"]
    return table(
        [*columns, "accuracy of the probe", "rate"],
        [
            (
                level,
                f"{fmean(own[level]):.3f}",
                told,
                f"{light[level]:.3f}",
                f"{probes[level].mean:.3f} ± {probes[level].sd:.3f}",
                f"{rates[level]:.3g}",
            )
            for level, told in by_level(of(records.Contrast)).items()
        ],
    )


def corruption_finetuned() -> str:
    """Return the accuracy of the models of every noise after fine-tuning, and its rate."""
    of = findings("corruption-finetuned").of
    accuracy = per_seed("corruption-finetuned", "task_accuracy")
    rates = {one.arm: one.lr for one in of(records.TuningChange)}
    return table(
        ["pre-trained with", "accuracy", "difference from infill", "rate of fine-tuning"],
        [
            (
                level,
                f"{fmean(accuracy[level]):.3f} ± {np.std(accuracy[level], ddof=1):.3f}",
                "" if level == "infill" else told,
                f"{rates[level]:.3g}",
            )
            for level, told in by_level(of(records.Contrast)).items()
        ],
    )


LABELS = {"64": "64 labels", "256": "256 labels", "all": "all labels"}


def forgetting() -> str:
    """Return by how much fine-tuning raises the loss of the pre-training, and its own accuracy.

    The accuracy is the gain over scratch less 95% of that of full fine-tuning, with a 95% interval
    of a paired t test over seeds.
    """
    accuracy, lost = (per_seed("finetune", name) for name in ("task_accuracy", "forgetting"))
    rows = []
    for method in ("head", "lora", "adapter", "full"):
        row = [method]
        for labels in LABELS:
            scratch, full, own = (
                np.array(accuracy[f"{one}, labels={labels}"]) for one in ("scratch", "full", method)
            )
            kept = (own - scratch) - 0.95 * (full - scratch)
            lo, hi = stats.ttest_1samp(kept, 0).confidence_interval(0.95)
            row.append(signed(kept.mean(), lo, hi, ".3f") if method != "full" else "–")
        row += [f"{np.mean(lost[f'{method}, labels={labels}']):.2f}" for labels in LABELS]
        rows.append(tuple(row))
    columns = ["method", *LABELS.values(), *(f"forgotten, {one}" for one in LABELS.values())]
    return table(columns, rows)


def settings() -> str:
    """Return the metric of every study, its cells, and the seeds of a cell."""
    with sqlite3.connect(f"file:{DATABASE}?mode=ro", uri=True) as db:
        found = db.execute(
            "SELECT study, metric, goal, count(DISTINCT cell),"
            " count(DISTINCT CASE role WHEN 'compare' THEN seed END),"
            " count(DISTINCT CASE role WHEN 'tune' THEN seed END)"
            " FROM (SELECT study, cell, role, seed FROM all_runs) JOIN study ON name = study"
            " GROUP BY study ORDER BY study"
        )
        rows = [
            (study, metric_labels(metric, goal).phrase, *map(str, numbers))
            for study, metric, goal, *numbers in found
        ]
    columns = ["study", "metric", "cells", "seeds compared", "seeds for tuning"]
    return table(columns, rows)


def cost() -> str:
    """Return runs, tokens and device time of every study, and of all with each run counted once."""
    rows = []
    with sqlite3.connect(f"file:{DATABASE}?mode=ro", uri=True) as db:
        db.execute(
            "CREATE TEMP VIEW once AS SELECT DISTINCT study, run, role, status, tokens,"
            " device_seconds FROM all_runs"
        )
        sums = "sum(status = 'diverged'), sum(tokens), sum(device_seconds)"
        for study, compared, tuned, *of in db.execute(
            f"SELECT study, sum(role = 'compare'), sum(role = 'tune'), {sums}"
            " FROM once GROUP BY study ORDER BY study"
        ):
            rows.append((study, f"{compared}, {tuned}", *_spent(*of)))
        every = f"SELECT count(*), {sums} FROM (SELECT * FROM once GROUP BY run)"
        ((runs, *of),) = db.execute(every)
        rows.append(("all", f"{runs:,} in all", *_spent(*of)))
    columns = ["study", "runs to compare, to tune", "diverged", "tokens", "minutes of a GPU"]
    return table(columns, rows)


def _spent(diverged: int, tokens: int, seconds: float) -> tuple[str, str, str]:
    return str(diverged), count(tokens), f"{seconds / 60:.1f}"


TOPOLOGY = {
    "norm=pre, depth=4x112": "pre, 4 layers",
    "norm=pre, depth=12x64": "pre, 12 layers",
    "norm=post, depth=4x112": "post, 4 layers",
    "norm=post, depth=12x64": "post, 12 layers",
}
TABLES: dict[str, Callable[[], str]] = {
    "settings": settings,
    "topology": partial(effects, "topology", TOPOLOGY, name="wiring"),
    "topology-debian": partial(effects, "topology-debian", name="wiring"),
    "topology-25m": partial(
        effects,
        "topology-25m",
        {f"budget={n}": f"{n} bytes" for n in ("50M", "250M")},
        name="wiring",
    ),
    "parallel-by-size": partial(shapes, "parallel-by-size"),
    "depth-by-width": partial(shapes, "depth-by-width"),
    "wirings-by-depth": partial(
        effects,
        "wirings-by-depth",
        {f"n_layer={n}": f"{n} layers" for n in (2, 4, 8, 16)},
        name="wiring",
    ),
    "topology-85m": partial(effects, "topology-85m", name="wiring"),
    "heads": partial(effects, "heads"),
    "position": partial(
        effects,
        "position",
        {"objective=causal": "causal", "objective=masked": "masked"},
        name="encoding",
    ),
    "lengths": lengths,
    "scale-gap": scale_gap,
    "scale-fits": scale_fits,
    "masking": partial(
        effects,
        "masking",
        {f"size={size}": size for size in ("small", "medium", "large")},
        name="trained at",
    ),
    "probes": probes,
    "larger-masked": larger_masked,
    "steps": steps,
    "mae": mae,
    "corruption": corruption,
    "corruption-finetuned": corruption_finetuned,
    "finetune": partial(
        effects,
        "finetune",
        {f"labels={labels}": name for labels, name in LABELS.items()},
        name="method",
    ),
    "forgetting": forgetting,
    "cost": cost,
}
PART = re.compile(r"<!-- table: ([\w-]+) -->.*?<!-- end -->", re.DOTALL)


def filled(text: str) -> str:
    """Return a page with its tables written anew."""
    return PART.sub(
        lambda match: f"<!-- table: {match[1]} -->\n\n{TABLES[match[1]]()}\n\n<!-- end -->", text
    )


def pages() -> None:
    """Write the index and report of every study, without the files of figures and tables."""
    with store.open(str(DATABASE)) as db, TemporaryDirectory() as folder:
        report.index(db, list(studies(db)), Path(folder))
        for page in (*Path(folder).glob("index.html"), *Path(folder).glob("*/report.html")):
            kept = RESULTS / "reference" / page.relative_to(folder)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page, kept)


if __name__ == "__main__":
    if "--pages" in sys.argv:
        pages()
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
