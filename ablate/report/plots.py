"""The figures of a study, by what it varies, with complete captions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd

from ablate import figures, metrics, results
from ablate.analysis.records import Contrast, SeedGroups, Tuning
from ablate.analysis.tuning import group_names
from ablate.components import CATALOGUE
from ablate.figures.compare import MANY, beyond, leaving, near_baseline
from ablate.figures.cost import front
from ablate.figures.rates import far as far_at_rates
from ablate.figures.seeds import far
from ablate.figures.style import arms
from ablate.figures.training import Arm, cut
from ablate.paths import file_name
from ablate.report.data import ReportData
from ablate.report.document import Figure
from ablate.report.figure_set import FigureSet, Panel
from ablate.report.labels import sentence
from ablate.report.sentences import places as places_of
from ablate.store.records import ACCEPTED
from ablate.study import tuned, tuned_field
from ablate.study.values import UNLIMITED
from ablate.units import count, listed

FEW = 4  # panels whose best arms a caption names
SLOWER = 1.02  # arms whose times differ by less than this ratio have no figure of loss against time
SIZES = {  # column of the runs → axis of levels that are names
    "n_params_body": "body parameters",
    "n_params": "parameters",
    "tokens": "training tokens",
}
UNLIKE = 1.05  # levels whose sizes differ by less than this ratio have no order by size
POINTS = 200  # of a curve in a figure
BATCH = 10_000  # runs whose curves are read at once
MARKS = (
    "Mark: mean over seeds with its 95% t-interval, from three seeds on; faint points: single runs."
)
BAND = "Line: mean over seeds; band: lowest to highest seed."
OUTSIDE = "An arm far from the others is not drawn; its mean is in brackets after its name."
LINE_OUTSIDE = "A line beyond the axis has its best value in brackets after its name."
CUT = "The axis cuts off the start of training."
SHORT = "A thin line is a run that ended early, with a cross where it diverged."


def effects(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return the effect plot, and that of differences from the level before, if there are any."""
    against = {
        "effects": ("Effects on", "its baseline", data.effects, data.pairs),
        "successive": (
            "Successive differences in",
            "the previous level",
            data.successive,
            data.successive_pairs,
        ),
    }
    drawn = []
    for name, (title, of, *frames) in against.items():
        if frames[0].empty:
            continue
        many = frames[0].groupby("family").size().max() >= MANY
        labels = data.labels
        caption = (
            f"Each level minus {of}. {_marks(data, frames[0])}"
            + (
                " Arrow: the interval continues beyond the axis."
                if leaving(*frames, goal=labels.goal)
                else ""
            )
            + (" The best levels are first." if name == "effects" and many else "")
        )
        look: dict[str, Any] = {"label": labels.difference, "goal": labels.goal}
        drawn.append(
            figure_set.add(
                name, f"{title} {labels.phrase}", caption, figures.effects, *frames, **look
            )
        )
    return drawn


def _marks(data: ReportData, effects: pd.DataFrame) -> str:
    """Return what the marks and lines of effects are."""
    single = effects.groupby("family").size().max() == 1 and data.correction == "family"
    test = (
        "uncorrected, as each family is one contrast"
        if single
        else f"after Holm's correction over the {data.correction}"
    )
    return (
        f"Mark: mean of the paired differences, filled where it is significant ({test}); line: 95%"
        " t-interval; faint points: single pairs, one a seed."
    )


def seeds(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return the metric of every seed, for each stratum with two seeds or more."""
    lower = {one.cell: one.groups[0] for one in data.findings.of(SeedGroups)}
    panels = []
    for stratum in data.strata:
        frame = data.good[data.good["stratum"] == stratum]
        if frame["seed"].nunique() < 2:
            continue
        frame = frame.assign(untrained=frame["cell"].isin(data.untrained))
        arms = frame.drop_duplicates("cell").set_index("cell")["arm"].astype(str)
        groups = {arms[cell]: lower[cell] for cell in arms.index if cell in lower}
        panels.append(Panel(stratum, frame, groups))
    caption = (
        "One mark a seed, in the same order for every arm; line: mean."
        + (" Filled and hollow: the two groups of seeds that are separated." if lower else "")
        + (f" {OUTSIDE}" if any(far(panel.frames[0], data.labels.goal) for panel in panels) else "")
        + (" Failed and diverged runs are not drawn." if data.broken.any() else "")
    )
    look = {"label": data.labels.axis, "goal": data.labels.goal, "places": data.places}
    title = f"{sentence(data.labels.phrase)} of every seed"
    return figure_set.panels("seeds", title, caption, figures.seeds, panels, **look)


def curves(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return learning curves of each stratum, and their difference from the baseline.

    Curves over tokens come first, then over FLOPs, if the arms spend different FLOPs a token, and
    over seconds.
    """
    name, members = _drawn(data)
    if members.empty:
        return []
    runs = _of_runs(data, name)
    series = "held-out loss" if name == "loss" else "training loss"
    label = f"{series} (nats per {'text' if data.study.kind == 'finetune' else 'token'})"
    if data.study.own:
        series = label = data.study.reported
    measured = data.study.own or data.labels.phrase == series  # the metric
    places = data.places if measured else None
    goal = data.labels.goal if measured else "min"
    contrasts = data.findings.of(Contrast)
    named = dict(zip(data.arms["cell"], data.arms["arm"].astype(str), strict=True))
    comparable = data.study.own or data.compared["mask_ratio"].nunique() == 1
    panels: dict[str, list[Panel]] = {}
    apart: list[Panel] = []
    for stratum in data.strata:
        part = members[members["stratum"] == stratum]
        if part.empty:
            continue
        note = SHORT if part["step"].nunique() > 1 else ""
        budgets = _budgets(_with_runs(results.with_tokens(part), runs))
        whole: dict[str, list[Arm]] = {x: [] for x in budgets}
        for x, of_arms in whole.items():
            panels.setdefault(x, []).append(Panel(stratum, of_arms, note=note))
        is_baseline = part["cell"].isin(data.arms.loc[data.arms["is_baseline"], "cell"])
        baseline = _with_runs(_points(data, name, part[is_baseline]), runs)
        baseline = baseline.drop_duplicates(["seed", "step"]).set_index(["seed", "step"])
        long, gaps = False, []
        for points in _by_arm(data, name, part):
            arm = _with_runs(points, runs)
            for x in budgets:
                whole[x] += figures.summary(arm, x=x)
            gap = _gap(arm[~arm["cell"].isin(part["cell"][is_baseline])], baseline)
            if comparable and len(gap):
                long |= gap.groupby("run")["step"].nunique().max() > 1
                gaps += figures.summary(gap, x=next(iter(panels)))
        if long:
            digits = {
                named[one.cell]: places_of(one) for one in contrasts if one.stratum == stratum
            }
            apart.append(Panel(stratum, gaps, note=note, places=digits if measured else {}))
    caption = BAND
    if not comparable:
        caption += " Each arm has its own masking ratio; values are not comparable across them."
    plots = []
    if any(cut(panel.frames[0], goal) for of in panels.values() for panel in of):
        caption += f" {CUT}"
    for x, of in panels.items():
        title = f"{sentence(series)} over {BUDGETS[x]}"
        look = {"x": x, "label": label, "goal": goal, "places": places}
        plots += figure_set.panels(f"curves-{x}", title, caption, figures.curves, of, **look)
    caption = f"Each run minus the baseline's run of the same seed. {BAND}"
    if any(cut(panel.frames[0], goal, differences=True) for panel in apart):
        caption += f" {CUT}"
    look = {"label": f"difference in {label}", "goal": goal, "x": next(iter(panels))}
    title = "Difference from the baseline over training"
    plots[1:1] = figure_set.panels("gaps", title, caption, figures.gaps, apart, **look)
    return plots


BUDGETS = {  # column of the points → what a curve is over
    "step": "steps",
    "tokens": "training tokens",
    "flops": "training FLOPs",
    "seconds": "training time",
}


def _budgets(points: pd.DataFrame) -> list[str]:
    """Return the columns that curves of these points are drawn over."""
    price = (points["flops"] / points["tokens"]).astype(float)
    known = ["step" if points["tokens"].isna().all() else "tokens"]
    if price.max() > 1.01 * price.min():
        known.append("flops")
    return known if points["seconds"].isna().all() else [*known, "seconds"]


def _drawn(data: ReportData) -> tuple[str, pd.DataFrame]:
    """Return the series whose curves are drawn, and the cells of their runs, with the last step.

    It is that of held-out loss, or of training loss if there are few points; of a script, the
    metric's, and only runs with two points or more.
    """
    members = results.members(data.study.name, data.db).drop(columns="role")
    ends = data.ends[data.ends["run"].isin(members["run"])]
    if data.study.own:
        name, few = data.study.reported, 1
    else:
        enough = (ends["points"][ends["series"] == "loss"] > 2).any()
        name, few = "loss" if enough else "train_loss", 0
    drawn = ends[(ends["series"] == name) & (ends["points"] > few)]
    return name, members.merge(drawn[["run", "last"]].rename(columns={"last": "step"}), on="run")


def _points(data: ReportData, series: str, members: pd.DataFrame) -> pd.DataFrame:
    """Return points of curves with their cells."""
    runs = map(int, members["run"])
    found = results.read_points(data.db, data.study.name, [series], "compare", POINTS, runs)
    frame = results.curves_of(found, members.drop(columns="step"))
    return frame.assign(untrained=frame["cell"].isin(data.untrained))


def _by_arm(data: ReportData, series: str, members: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the points of each arm of a stratum: those of all runs at once would take gigabytes."""
    sizes = members.groupby("arm", observed=True).size()
    batch = sizes.cumsum() // BATCH
    for _, names in sizes.groupby(batch):
        points = _points(data, series, members[members["arm"].isin(names.index)])
        for _, _, arm in arms(points, "arm"):
            yield arm


def _of_runs(data: ReportData, series: str) -> pd.DataFrame:
    """Return run → what curves of this series need of it; of a script, a step's cost is unknown."""
    columns = ["run", "diverged_at", "tokens", "flops", "seconds", "metric"]
    runs = data.compared[columns].drop_duplicates("run").set_index("run")
    metric = runs.pop("metric")
    if data.study.own:
        runs["flops"] = runs["seconds"] = math.nan
        if data.study.metric == data.study.reported:  # not the best value or that of a step
            runs["final"] = metric
    elif series == "loss":
        measured = data.finals[data.finals["name"] == "loss"].drop_duplicates("run")
        runs["final"] = measured.set_index("run")["value"]
    return runs


def _with_runs(points: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Return points with what `_of_runs` has of their runs, FLOPs and seconds until the point."""
    of_points = runs.reindex(points["run"]).set_index(points.index)
    share = points["tokens"] / of_points.pop("tokens")
    spent = {name: share * of_points[name] for name in ("flops", "seconds")}
    return pd.concat([points, of_points.assign(**spent)], axis="columns")


def _gap(arm: pd.DataFrame, baseline: pd.DataFrame) -> pd.DataFrame:
    """Return the points of an arm, minus the baseline's at the same seed and step, its index."""
    values = [name for name in ("value", "final") if name in arm]
    of_seed = baseline[values].add_suffix("_baseline")
    joined = arm.join(of_seed, on=["seed", "step"], how="inner")
    return joined.assign(**{name: joined[name] - joined[f"{name}_baseline"] for name in values})


def ordered(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return the metric over each factor with three or more numeric levels.

    There is a line for each combination of the other factors.
    """
    plots = []
    labels = data.labels
    for factor in data.factors:
        levels = _level(data.good, data, factor).map(partial(_number, data, factor))
        if levels.nunique() < 3 or levels.isna().any():
            continue
        levels, named = _with_unlimited(factor, levels)
        others = _others(data.good, data, {factor})
        frame = pd.DataFrame({"x": levels, "metric": data.good["metric"], "others": others})
        hue = "others" if frame["others"].nunique() > 1 else None
        title = f"{sentence(labels.phrase)} over {factor}"
        look: dict[str, Any] = {"x": "x", "axis": factor, "hue": hue, "label": labels.axis}
        look |= {"places": data.places, "named": named}
        plots.append(
            figure_set.add(
                f"over-{file_name(factor)}", title, MARKS, figures.ordered, frame, **look
            )
        )
    return plots


def effects_over(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return the effects over each factor of `within` with three levels that have an order.

    There is a line for each arm, and a panel for each combination of the other factors of `within`;
    of a single arm there is a line for each combination.
    """
    plots = []
    known = data.effects[data.effects["mean"].notna()].drop_duplicates(["stratum", "arm"])
    for factor in data.within if len(known) else ():
        axis, numbers = _numbers(data, factor)
        levels = _level(known, data, factor).map(numbers)
        if levels.nunique() < 3:
            continue
        levels, named = _with_unlimited(factor, levels)
        if axis != factor:
            named = {number: count(number) for number in numbers.values()}
        effects = known.assign(x=levels, elsewhere=_elsewhere(known, data, factor))
        effects = effects[levels.notna()]
        one_arm = f" of {effects['arm'].iloc[0]}" if effects["arm"].nunique() == 1 else ""
        hue = "elsewhere" if one_arm and len(data.within) > 1 else "arm"
        parts = effects.groupby("elsewhere", observed=True) if hue == "arm" else [("", effects)]
        panels = [
            _effects_panel(data, str(stratum), part, hue)
            for stratum, part in parts
            if part["x"].nunique() > 1
        ]
        look: dict[str, Any] = {"x": "x", "axis": axis, "y": "difference", "hue": hue}
        look |= {"label": data.labels.difference, "places": data.places, "named": named}
        plots += figure_set.panels(
            f"effects-over-{file_name(factor)}",
            f"Effects{one_arm} on {data.labels.phrase} over {factor}",
            f"Each level minus its baseline at the same {factor}. {_marks(data, data.effects)}",
            figures.ordered,
            panels,
            **look,
        )
    return plots


def _effects_panel(data: ReportData, stratum: str, effects: pd.DataFrame, hue: str) -> Panel:
    """Return a panel of effects over x and their pairs, without arms far from the others."""
    goal = data.labels.goal
    means = effects.groupby(hue, observed=True)["mean"]
    lines = pd.DataFrame({"lo": means.min(), "hi": means.max()})
    lines["mean"] = lines["lo" if goal == "min" else "hi"]
    inside = lines.index[near_baseline(lines, goal)]
    far = [str(name) for name in lines.index.difference(inside)]
    effects = effects[effects[hue].isin(inside)]
    of_pair = ["family", "cell"]
    pairs = data.pairs.merge(effects[[*of_pair, "x", hue]], on=of_pair)
    note = f"Not drawn, as too far from the others: {listed(far)}." if far else ""
    return Panel(stratum, pairs, effects, note=note)


def _elsewhere(frame: pd.DataFrame, data: ReportData, factor: str) -> pd.Series:
    """Return the levels of all factors of `within` but one as a name, in the order of levels."""
    rest = [one for one in data.within if one != factor]
    orders = {one: in_order(data, one) for one in rest}
    places = {
        cell: [orders[one].index(levels[one]) if one in levels else -1 for one in rest]
        for cell, levels in data.levels.items()
    }
    names = {
        cell: ", ".join(f"{one}={levels[one]}" for one in rest if one in levels)
        for cell, levels in data.levels.items()
    }
    order = dict.fromkeys(names[cell] for cell in sorted(names, key=places.__getitem__))
    # the first category has the colour of a baseline, which is not drawn
    column = pd.Categorical(frame["cell"].map(names), [" ", *order], ordered=True)
    return pd.Series(column, index=frame.index)


def _numbers(data: ReportData, factor: str) -> tuple[str, dict[str, float]]:
    """Return the axis for a factor, and its levels' places there; none for levels without order.

    Levels that are names are in the order of their parameters, else of their tokens.
    """
    levels = data.orders[factor]
    numbers = {level: _number(data, factor, level) for level in levels}
    if not any(map(math.isnan, numbers.values())):
        return factor, numbers
    of_runs = data.compared.groupby(_level(data.compared, data, factor))
    for column, x in SIZES.items():
        medians = of_runs[column].median().astype(float).dropna().sort_values()
        if len(medians) == len(levels) and (medians.to_numpy()[1:] > UNLIKE * medians[:-1]).all():
            return x, dict(zip(map(str, medians.index), medians, strict=True))
    return factor, {}


def _with_unlimited(factor: str, levels: pd.Series) -> tuple[pd.Series, dict[float, str]]:
    """Put a level without limit a step to the right of the largest number; return its name too."""
    if math.inf not in set(levels):
        return levels, {}
    *_, before, largest, _ = sorted(set(levels))
    beyond_all = largest * max(largest / before, 1.2)
    return levels.replace(math.inf, beyond_all), {beyond_all: UNLIMITED[factor]}


def heat(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return the metric over two factors, if the study has two."""
    if len(data.factors) != 2 or data.good.empty or data.incomparable():
        return []
    x, y = sorted(data.factors, key=lambda factor: -len(data.orders[factor]))
    frame = pd.DataFrame(
        {
            factor: pd.Categorical(
                _level(data.good, data, factor), categories=in_order(data, factor), ordered=True
            )
            for factor in (x, y)
        }
    ).assign(metric=data.good["metric"])
    labels = data.labels
    title = f"{sentence(labels.phrase)} over {x} and {y}"
    caption = (
        "Mean over the seeds that completed."
        + (" Empty: no run." if len(frame.drop_duplicates([x, y])) < _size(frame, x, y) else "")
        + (
            " Values beyond the colour scale have the colour of its end."
            if beyond(frame, x=x, y=y)
            else ""
        )
    )
    look: dict[str, Any] = {"x": x, "y": y, "label": labels.axis, "places": data.places}
    return [figure_set.add("heat", title, caption, figures.heat, frame, **look)]


def _size(frame: pd.DataFrame, *factors: str) -> int:
    """Return how many combinations of levels there are."""
    return math.prod(len(frame[factor].cat.categories) for factor in factors)


def in_order(data: ReportData, factor: str) -> list[str]:
    """Return a factor's levels: numbers by size, names as the study file has them."""
    levels = data.orders[factor]
    values = pd.Series(levels).map(partial(_number, data, factor))
    return levels if values.isna().any() else [levels[index] for index in values.argsort()]


def _number(data: ReportData, factor: str, level: str | None) -> float:
    """Return the number of a level, infinity for one without limit, NaN for a name."""
    if not data.study.own and factor in UNLIMITED and level in ("0", UNLIMITED[factor]):
        return math.inf
    try:
        value = float(level or math.nan)
    except ValueError:
        return math.nan
    return value if math.isfinite(value) else math.nan


def pareto(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return the metric against seconds a run, for each stratum with arms of unequal speed."""
    panels, joined = [], False
    labels = data.labels
    for stratum in data.strata:
        frame = data.good[(data.good["stratum"] == stratum) & data.good["seconds"].notna()]
        means = frame.groupby("arm", observed=True)["seconds"].mean()
        if len(means) < 2 or means.max() < SLOWER * means.min():
            continue
        best = front(frame, goal=labels.goal)
        joined |= len(best) > 1
        if best:
            note = f"no arm is both better and faster than {listed(best, 'or')}."
        else:
            note = "which arms are both better and faster is not certain, as some times overlap."
        panels.append(Panel(stratum, frame, note=note))
    if len(panels) > FEW:  # the line says it in less room
        panels = [Panel(panel.stratum, *panel.frames) for panel in panels]
    title = f"{sentence(labels.phrase)} against training time"
    caption = (
        "Mark: mean over seeds; line: fastest to slowest seed; faint points: single runs, which"
        " may have shared the machine with other processes."
        + (" Grey line: joins the arms that no other arm beats in both." if joined else "")
    )
    look = {"goal": labels.goal, "label": labels.axis, "places": data.places}
    return figure_set.panels("pareto", title, caption, figures.pareto, panels, **look)


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
        panels = [Panel(*part) for part in _strata(data, frame, "block")]
        plots += figure_set.panels(
            name.replace("_", "-"), sentence(label), caption, figures.blocks, panels, **look
        )
    return plots


def grids(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return loss over position and context, errors over the length of the source, and loss on
    hidden tokens over the probe ratio, by stratum.
    """
    same = "The same tokens are scored"
    kinds = {
        "loss_at_length": ("context (× training context)", "held-out loss", f"{same} throughout. "),
        "error_at_length": (
            "length of the source (tokens)",
            "error rate",
            "Held-out pairs in bins of about equal size; a mark is at the shortest length of its"
            " bin. ",
        ),
        "probe_loss": ("probe ratio", "masked loss", f"{same} in every arm. "),
        "probe_accuracy": ("probe ratio", "masked accuracy", f"{same} in every arm. "),
        "reconstruction_loss": (
            "probe ratio",
            "reconstruction error",
            "Squared error of hidden patches, the same ones in every arm. ",
        ),
        "corrupted_loss": ("probe ratio", "loss on hidden tokens", f"{same} in every arm. "),
        "corrupted_accuracy": (
            "probe ratio",
            "accuracy on hidden tokens",
            f"{same} in every arm. ",
        ),
    }
    plots = _positions(figure_set, data)
    for name, (x, metric, caption) in kinds.items():
        label = f"{metric} (nats per token)" if "loss" in metric else metric
        label = f"{metric} (errors per symbol)" if name.startswith("error") else label
        look = {"x": x, "y": "value", "hue": "arm", "label": label}
        panels = [
            Panel(stratum, part, note=lacking(part, x))
            for stratum, part in _strata(data, _finals(data, name, x), x)
        ]
        title, stem = f"{sentence(metric)} over {x.split(' (')[0]}", name.replace("_", "-")
        plots += figure_set.panels(stem, title, caption + MARKS, figures.ordered, panels, **look)
    return plots


def _finals(data: ReportData, name: str, at: str) -> pd.DataFrame:
    """Return the numeric final values of a name, with their index in a column called `at`."""
    finals = data.finals[(data.finals["name"] == name) & data.finals["value"].notna()]
    return finals.rename(columns={"at": at})


def _strata(
    data: ReportData, frame: pd.DataFrame, varies: str
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and the rows of each stratum in which `varies` does."""
    for stratum in data.strata:
        part = frame[frame["stratum"] == stratum]
        if part[varies].nunique() > 1:
            yield stratum, part


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
        "A mark is the mean over the positions from its own up to that of the next mark; the axis"
        f" of positions is logarithmic. {BAND}"
    )
    if _reads_apart(data):
        return []
    found = _finals(data, "loss_at_position", "position")
    panels = [Panel(*part) for part in _strata(data, found, "position")]
    title = "Held-out loss over the position in the context"
    label = "held-out loss (nats per token)"
    return figure_set.panels("positions", title, caption, figures.positions, panels, label=label)


def _reads_apart(data: ReportData) -> bool:
    """Return whether positions differ between arms: some decoders read source and target, other
    ones the target alone.
    """
    if not any(one.pairs for one in data.objectives):
        return False
    row = CATALOGUE["architecture"]
    encode = [name for name in row.names if row[name].encodes]
    return bool(data.compared["architecture"].isin(encode).nunique() > 1)


def tuning(figure_set: FigureSet, data: ReportData) -> list[Figure]:
    """Return what decided over the learning rates tried, with the chosen ones marked."""
    frame = data.runs[(data.runs["role"] == "tune") & data.runs["status"].isin(ACCEPTED)]
    found = data.findings.of(Tuning)
    called = group_names(data, found)
    named = [
        called.get(cell, str(arm)) for cell, arm in zip(frame["cell"], frame["arm"], strict=True)
    ]
    arms = list(frame["arm"].cat.categories)
    order = arms if set(named) <= set(arms) else list(dict.fromkeys(named))
    frame = frame.assign(group=pd.Categorical(named, categories=order, ordered=True))
    chosen = {one.cells[0]: one.lr for one in found}
    untrained = {one.cells[0] for one in found if not one.trains}
    frame = frame.assign(untrained=frame["cell"].isin(untrained))
    field = tuned_field(data.settings)
    frame = frame.assign(lr=frame[field].astype(float)) if field in frame else frame
    short = data.tuned.short
    diverged = (frame["status"] == "diverged").any()
    caption = (
        "Runs made to tune, on seeds that are not compared; mark: mean over them. Ring: the chosen"
        f" {short}."
        + (f" Cross at the edge: a {short} at which a run diverged." if diverged else "")
    )
    labels = data.decided_labels
    if labels != data.labels:
        name, at = metrics.final(data.decided_by)
        finals = results.finals(data.study.name, name, data.db, role="tune")
        of_run = finals[finals["at"] == at].drop_duplicates("run").set_index("run")["value"]
        frame = frame.assign(metric=frame["run"].map(of_run))
    look: dict[str, Any] = {"hue": "group", "label": labels.axis, "goal": labels.goal}
    # a metric that is not compared may measure something else in each arm
    look |= {"axis": tuned(field), "own": "metric" in data.settings.get("tune", {})}
    panels = []
    for stratum, part in _strata(data, frame, "lr"):
        rings = {called[cell]: chosen[cell] for cell in set(part["cell"]) if cell in chosen}
        panels.append(Panel(stratum, part, rings))
    axes = {"hue": "group", "goal": labels.goal}
    if not look["own"] and any(far_at_rates(panel.frames[0], **axes) for panel in panels):
        caption += f" {LINE_OUTSIDE}"
    what = "the learning rate" if field == "lr" else field
    title = f"{sentence(labels.phrase)} over {what}"
    return figure_set.panels("tuning", title, caption, figures.rates, panels, **look)


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
