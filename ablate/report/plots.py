"""The figures of a study, by what it varies, with complete captions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from ablate import figures
from ablate.analysis.records import SeedGroups, Tuning
from ablate.analysis.tuning import group_names
from ablate.figures.cost import front
from ablate.paths import file_name
from ablate.report.data import ReportData
from ablate.report.document import Figure
from ablate.report.figure_set import FigureSet
from ablate.report.labels import sentence
from ablate.study import tuned, tuned_field
from ablate.units import listed

SLOWER = 1.02  # arms whose times differ by less than this ratio have no figure of loss against time
MARKS = (
    "Mark: mean over seeds with its 95% t-interval, from three seeds on; faint points: single runs."
)
BAND = "Line: mean over seeds; band: lowest to highest seed."
SHORT = "A thin line is a run that ended early, with a cross where it diverged."


def effects(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return the effect plot; none without a contrast."""
    if data.effects.empty:
        return []
    sizes = data.effects.groupby("family").size()
    single = sizes.max() == 1 and data.correction == "family"
    test = (
        "uncorrected, as each family is one contrast"
        if single
        else f"after Holm's correction over the {data.correction}"
    )
    caption = (
        "Each level minus its baseline. Mark: mean of the paired differences, filled where it is"
        f" significant ({test}); line: 95% t-interval; faint points: single pairs, one a seed."
        " An arrow marks what lies beyond the axis."
    )
    labels = data.labels
    frames = data.effects, data.pairs
    title = f"Effects on {labels.phrase}"
    look: dict[str, Any] = {"label": labels.difference, "goal": labels.goal}
    return [figure_set.add("effects", title, caption, figures.effects, *frames, **look)]


def seeds(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return the metric of every seed, for each stratum with two seeds or more."""
    lower = {one.cell: one.groups[0] for one in data.findings.of(SeedGroups)}
    plots = []
    for number, stratum in enumerate(data.strata):
        frame = data.good[data.good["stratum"] == stratum]
        if frame["seed"].nunique() < 2:
            continue
        arms = frame.drop_duplicates("cell").set_index("cell")["arm"].astype(str)
        groups = {arms[cell]: lower[cell] for cell in arms.index if cell in lower}
        title = f"{sentence(data.labels.phrase)} of every seed" + (
            f" at {stratum}" if stratum else ""
        )
        caption = (
            "One mark a seed, in the same order for every arm; line: mean."
            + (" Filled and hollow: the two groups of seeds that are separated." if groups else "")
            + " An arm far from the others has its mean in its name and is not drawn."
        )
        look = {"label": data.labels.axis}
        plots.append(
            figure_set.add(
                "seeds", title, caption, figures.seeds, frame, groups, **look, stratum=number
            )
        )
    return plots


def curves(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return learning curves of each stratum, and their difference from the baseline.

    Curves over tokens come first, then over FLOPs, if the arms spend different FLOPs a token, and
    over seconds.
    """
    frame = _points(data)
    plots = []
    for number, stratum in enumerate(data.strata):
        part = frame[frame["stratum"] == stratum]
        if part.empty:
            continue
        at = f" at {stratum}" if stratum else ""
        series = "held-out loss" if part["series"].iloc[0] == "loss" else "training loss"
        unit = "text" if data.study.kind == "finetune" else "token"
        label = f"{series} (nats per {unit})"
        if data.study.own:
            series = label = data.study.reported
        comparable = data.study.own or data.compared["mask_ratio"].nunique() == 1
        short = f" {SHORT}" if part.groupby("run")["step"].max().nunique() > 1 else ""
        if not comparable:
            short += " Each arm has its own masking ratio; values are not comparable across them."
        over = {"tokens": "training tokens", "flops": "training FLOPs", "seconds": "training time"}
        price = (part["flops"] / part["tokens"]).astype(float)
        if not price.max() > 1.01 * price.min():
            del over["flops"]
        if part["tokens"].isna().all():
            del over["tokens"]
            over = {"step": "steps", **over}
        if part["seconds"].isna().all():
            del over["seconds"]
        for x, name in over.items():
            title, look = f"{sentence(series)} over {name}{at}", {"x": x, "label": label}
            plots.append(
                figure_set.add(
                    f"curves-{x}", title, BAND + short, figures.curves, part, **look, stratum=number
                )
            )
        apart = _gaps(part, data)
        if comparable and apart.groupby("run")["step"].nunique().max() > 1:
            title = f"Difference from the baseline over training{at}"
            caption = f"Each run minus the baseline's run of the same seed. {BAND}{short}"
            look = {"label": f"difference in {label}", "x": next(iter(over))}
            gap = figure_set.add(
                "gaps", title, caption, figures.gaps, apart, **look, stratum=number
            )
            plots.insert(len(plots) - len(over) + 1, gap)
    return plots


def _points(data: ReportData) -> pd.DataFrame:
    """Return points of held-out loss, with FLOPs and seconds; of training loss if there are few."""
    frame = data.curves
    if data.study.own:
        return _of_own(data, frame)
    held_out = frame[frame["series"] == "loss"]
    enough = not held_out.empty and held_out.groupby("run")["step"].nunique().max() > 2
    frame = held_out if enough else frame[frame["series"] == "train_loss"]
    runs = data.compared.drop_duplicates("run").set_index("run")
    frame = frame.drop_duplicates(["cell", "run", "step"])
    frame = frame.assign(diverged_at=frame["run"].map(runs["diverged_at"]))
    share = frame["tokens"] / frame["run"].map(runs["tokens"])
    return frame.assign(
        flops=share * frame["run"].map(runs["flops"]),
        seconds=share * frame["run"].map(runs["seconds"]),
    )


def _of_own(data: ReportData, frame: pd.DataFrame) -> pd.DataFrame:
    """Return curves of a script with two points or more; what a step costs is unknown."""
    frame = frame.drop_duplicates(["cell", "run", "step"])
    frame = frame[frame.groupby("run")["step"].transform("nunique") > 1]
    runs = data.compared.drop_duplicates("run").set_index("run")
    unknown = dict.fromkeys(("flops", "seconds"), math.nan)
    return frame.assign(diverged_at=frame["run"].map(runs["diverged_at"]), **unknown)


def _gaps(part: pd.DataFrame, data: ReportData) -> pd.DataFrame:
    """The points of every arm but the baseline, minus the baseline's at the same seed and step."""
    base = data.arms.loc[data.arms["is_baseline"], "cell"]
    is_baseline = part["cell"].isin(base)
    baseline = (
        part[is_baseline]
        .drop_duplicates(["seed", "step"])
        .set_index(["seed", "step"])["value"]
        .rename("baseline")
    )
    joined = part[~is_baseline].join(baseline, on=["seed", "step"], how="inner")
    return joined.assign(value=joined["value"] - joined["baseline"])


def ordered(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return the metric over each factor with three or more numeric levels.

    There is a line for each combination of the other factors.
    """
    plots = []
    labels = data.labels
    for factor in data.factors:
        levels = pd.to_numeric(_level(data.good, data, factor), errors="coerce")
        if levels.nunique() < 3 or levels.isna().any():
            continue
        others = _others(data.good, data, {factor})
        frame = pd.DataFrame({factor: levels, "metric": data.good["metric"], "others": others})
        hue = "others" if frame["others"].nunique() > 1 else None
        title = f"{sentence(labels.phrase)} over {factor}"
        look: dict[str, Any] = {"x": factor, "hue": hue, "label": labels.axis}
        plots.append(
            figure_set.add(
                f"over-{file_name(factor)}", title, MARKS, figures.ordered, frame, **look
            )
        )
    return plots


def heat(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return the metric over two factors, if the study has two."""
    if len(data.factors) != 2 or data.good.empty or data.incomparable:
        return []
    x, y = sorted(data.factors, key=lambda factor: -len(data.orders[factor]))
    frame = pd.DataFrame(
        {
            factor: pd.Categorical(
                _level(data.good, data, factor), categories=_in_order(data, factor), ordered=True
            )
            for factor in (x, y)
        }
    ).assign(metric=data.good["metric"])
    labels = data.labels
    title = f"{sentence(labels.phrase)} over {x} and {y}"
    caption = (
        "Mean over the seeds that completed; empty where none did. A value beyond the colour scale"
        " has the colour of its end."
    )
    return [
        figure_set.add("heat", title, caption, figures.heat, frame, x=x, y=y, label=labels.axis)
    ]


def _in_order(data: ReportData, factor: str) -> list[str]:
    """A factor's levels: numbers by size, names as the study file has them."""
    levels = data.orders[factor]
    values = pd.to_numeric(pd.Series(levels), errors="coerce")
    return levels if values.isna().any() else [levels[index] for index in values.argsort()]


def pareto(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return the metric against seconds a run, for each stratum with arms of unequal speed."""
    plots = []
    labels = data.labels
    for number, stratum in enumerate(data.strata):
        frame = data.good[(data.good["stratum"] == stratum) & data.good["seconds"].notna()]
        means = frame.groupby("arm", observed=True)["seconds"].mean()
        if len(means) < 2 or means.max() < SLOWER * means.min():
            continue
        title = f"{sentence(labels.phrase)} against training time" + (
            f" at {stratum}" if stratum else ""
        )
        best = front(frame, goal=labels.goal)
        caption = (
            "Mark: mean over seeds; line: fastest to slowest seed; faint points: single runs, which"
            " may have shared the machine with "
        )
        caption += "other processes. "
        if best:
            line = ", which the grey line joins" if len(best) > 1 else ""
            caption += f"On the Pareto front of loss and time: {listed(best)}{line}."
        else:
            caption += "The Pareto front is not certain: the times of arms overlap between seeds."
        look = {"goal": labels.goal, "label": labels.axis}
        plots.append(
            figure_set.add("pareto", title, caption, figures.pareto, frame, **look, stratum=number)
        )
    return plots


def blocks(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return the stream's RMS and token similarity, block by block, for each stratum."""
    kinds = {
        "stream_rms": (
            "RMS of the residual stream",
            f"On held-out text, at the end of training. {BAND}",
        ),
        "token_similarity": (
            "mean cosine similarity of tokens",
            f"Mean cosine between the stream's vectors of different tokens: 1 is collapse. {BAND}",
        ),
    }
    plots = []
    for name, (label, caption) in kinds.items():
        frame = _finals(data, name, "block")
        look = {"label": label, "share": name == "token_similarity"}
        for number, at, part in _strata(data, frame, "block"):
            title = sentence(label) + at
            plots.append(
                figure_set.add(
                    name.replace("_", "-"),
                    title,
                    caption,
                    figures.blocks,
                    part,
                    **look,
                    stratum=number,
                )
            )
    return plots


def grids(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return loss over position and context, and masked loss over probe ratio, by stratum."""
    same = "The same tokens are scored"
    kinds = {
        "loss_at_length": ("context (× training context)", "held-out loss", f"{same} throughout. "),
        "probe_loss": ("probe ratio", "masked loss", f"{same} in every arm. "),
        "probe_accuracy": ("probe ratio", "masked accuracy", f"{same} in every arm. "),
    }
    plots = _positions(figure_set, data)
    for name, (x, metric, caption) in kinds.items():
        label = f"{metric} (nats per token)" if metric.endswith("loss") else metric
        look = {"x": x, "y": "value", "hue": "arm", "label": label}
        for number, at, part in _strata(data, _finals(data, name, x), x):
            title = f"{sentence(metric)} over {x.split(' (')[0]}{at}"
            text = caption + lacking(part, x) + MARKS
            plots.append(
                figure_set.add(
                    name.replace("_", "-"),
                    title,
                    text,
                    figures.ordered,
                    part,
                    **look,
                    stratum=number,
                )
            )
    return plots


def _finals(data: ReportData, name: str, at: str) -> pd.DataFrame:
    """Return the numeric final values of a name, with their index in a column called `at`."""
    finals = data.finals[(data.finals["name"] == name) & data.finals["value"].notna()]
    return finals.rename(columns={"at": at})


def _strata(
    data: ReportData, frame: pd.DataFrame, varies: str
) -> Iterator[tuple[int, str, pd.DataFrame]]:
    """Yield the number, the end of a title and the rows of each stratum in which `varies` does."""
    for number, stratum in enumerate(data.strata):
        part = frame[frame["stratum"] == stratum]
        if part[varies].nunique() > 1:
            yield number, f" at {stratum}" if stratum else "", part


def lacking(frame: pd.DataFrame, x: str) -> str:
    """Return a sentence for each arm without a value at some x that other arms have.

    Such an x is a context beyond the reach of the arm's position encoding.
    """
    everywhere = set(frame[x])
    missing_at = {
        str(arm): sorted(everywhere - set(own[x]))
        for arm, own in frame.groupby("arm", observed=True)
    }
    return "".join(
        f"Not defined for {arm} at {listed(f'{at:g}' for at in missing)}. "
        for arm, missing in missing_at.items()
        if missing
    )


def _positions(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    caption = (
        "Each mark is the mean over positions from its own to the next mark's; the axis is"
        f" logarithmic. {BAND}"
    )
    look = {"label": "held-out loss (nats per token)"}
    plots = []
    for number, at, part in _strata(
        data, _finals(data, "loss_at_position", "position"), "position"
    ):
        title = f"Held-out loss over the position in the context{at}"
        plots.append(
            figure_set.add(
                "positions", title, caption, figures.positions, part, **look, stratum=number
            )
        )
    return plots


def tuning(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return the metric over the learning rates tried, with the chosen ones marked."""
    frame = data.runs[
        (data.runs["role"] == "tune") & data.runs["status"].isin(["complete", "diverged"])
    ]
    called = group_names(data, data.findings.of(Tuning))
    named = [
        called.get(cell, str(arm)) for cell, arm in zip(frame["cell"], frame["arm"], strict=True)
    ]
    arms = list(frame["arm"].cat.categories)
    order = arms if set(named) <= set(arms) else list(dict.fromkeys(named))
    frame = frame.assign(group=pd.Categorical(named, categories=order, ordered=True))
    chosen = {one.cells[0]: one.lr for one in data.findings.of(Tuning)}
    field = tuned_field(data.settings)
    frame = frame.assign(lr=frame[field].astype(float)) if field in frame else frame
    caption = (
        "Runs made to tune, on seeds that are not compared; mark: mean over them. Ring: the chosen"
        " rate. A cross at the edge is a rate at which a run diverged."
    )
    look = {
        "hue": "group",
        "label": data.labels.axis,
        "goal": data.labels.goal,
        "axis": tuned(field),
    }
    plots = []
    for number, at, part in _strata(data, frame, "lr"):
        what = "the learning rate" if field == "lr" else field
        title = f"{sentence(data.labels.phrase)} over {what}{at}"
        rings = {called[cell]: chosen[cell] for cell in set(part["cell"]) if cell in chosen}
        plots.append(
            figure_set.add(
                "tuning", title, caption, figures.rates, part, rings, **look, stratum=number
            )
        )
    return plots


def letters(data: ReportData) -> list[str]:
    """Return a sentence if figures show boxes, because no font has the letters of a name."""
    names = [*data.arms["arm"].astype(str), *data.strata, *data.factors, data.labels.axis]
    missing = figures.lacking("".join(names))
    if not missing:
        return []
    return [
        f"No font on the machine that wrote this report has the letters {missing}: the figures"
        " show boxes for them in PNG and PDF. Install a font that has them, such as Noto Sans CJK"
        " for Chinese, Japanese and Korean, and write the report again."
    ]


def _level(frame: pd.DataFrame, data: ReportData, factor: str) -> pd.Series:
    return frame["cell"].map({cell: levels.get(factor) for cell, levels in data.levels.items()})


def _others(frame: pd.DataFrame, data: ReportData, without: set[str]) -> pd.Series:
    """Return the levels of all factors but `without` as one name; of a single factor the level."""
    rest = [factor for factor in data.factors if factor not in without]
    named = {
        cell: ", ".join(
            levels[factor] if len(rest) == 1 else f"{factor}={levels[factor]}"
            for factor in rest
            if factor in levels
        )
        for cell, levels in data.levels.items()
    }
    order = list(dict.fromkeys(named.values()))
    return pd.Series(
        pd.Categorical(frame["cell"].map(named), categories=order, ordered=True), index=frame.index
    )
