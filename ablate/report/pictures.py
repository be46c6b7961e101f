"""Which figures a study gets, from what it varies, with captions that say all a reader needs."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd

from ablate import figures
from ablate.figures.cost import front
from ablate.report import tuned
from ablate.report.document import Picture
from ablate.report.gallery import Gallery
from ablate.report.material import Material
from ablate.report.words import sentence
from ablate.units import listed

SLOWER = 1.02  # arms whose times differ by less than this ratio have no figure of loss against time
MARKS = (
    "Mark: mean over seeds with its 95% t-interval, from three seeds on; faint points: single runs."
)
BAND = "Line: mean over seeds; band: lowest to highest seed."
SHORT = "A thin line is a run that ended early, with a cross where it diverged."


def effects(gallery: Gallery, material: Material) -> list[Picture]:
    """The effect plot; none without a contrast."""
    if material.effects.empty:
        return []
    single = material.effects.groupby("family").size().max() == 1
    test = (
        "uncorrected, as each family is one contrast"
        if single
        else "after Holm's correction over a family"
    )
    caption = (
        "Each level minus its baseline. Mark: mean of the paired differences, filled where it is"
        f" told from zero ({test}); line: 95% t-interval; faint points: single pairs, one a seed."
        " An arrow stands for what lies beyond the axis."
    )
    words = material.words
    frames = material.effects, material.pairs
    title = f"Effects on {words.phrase}"
    return [
        gallery.hang(
            "effects",
            title,
            caption,
            figures.effects,
            *frames,
            label=words.difference,
            goal=words.goal,
        )
    ]


def curves(gallery: Gallery, material: Material) -> list[Picture]:
    """For each stratum: learning curves by tokens, the difference from the baseline, then by FLOPs
    and by seconds.

    By FLOPs only where the arms spend different FLOPs a token: the curves are those by tokens
    otherwise.
    """
    frame = _points(material)
    pictures = []
    for number, stratum in enumerate(material.strata):
        part = frame[frame["stratum"] == stratum]
        if part.empty:
            continue
        at = f" at {stratum}" if stratum else ""
        series = "held-out loss" if part["series"].iloc[0] == "loss" else "training loss"
        label = f"{series} (nats per token)"
        comparable = material.compared["mask_ratio"].nunique() == 1
        short = f" {SHORT}" if part.groupby("run")["step"].max().nunique() > 1 else ""
        short += (
            ""
            if comparable
            else (
                " Each arm at the masking ratio it trains with: across ratios the values do not"
                " compare."
            )
        )
        over = {"tokens": "training tokens", "flops": "training FLOPs", "seconds": "training time"}
        price = part["flops"] / part["tokens"]
        if not price.max() > 1.01 * price.min():
            del over["flops"]
        if part["seconds"].isna().all():
            del over["seconds"]
        for x, words in over.items():
            title = f"{sentence(series)} over {words}{at}"
            pictures.append(
                gallery.hang(
                    f"curves-{x}",
                    title,
                    BAND + short,
                    figures.curves,
                    part,
                    x=x,
                    label=label,
                    stratum=number,
                )
            )
        apart = _gaps(part, material)
        if comparable and apart.groupby("run")["step"].nunique().max() > 1:
            title = f"Difference from the baseline over training{at}"
            caption = f"Each run minus the baseline's run of the same seed. {BAND}{short}"
            gap = gallery.hang(
                "gaps",
                title,
                caption,
                figures.gaps,
                apart,
                label=f"difference in {label}",
                stratum=number,
            )
            pictures.insert(len(pictures) - len(over) + 1, gap)
    return pictures


def _points(material: Material) -> pd.DataFrame:
    """Points of held-out loss, or of training loss where held-out loss was seen only once a run,
    with what the axes need.
    """
    frame = material.curves
    held_out = frame[frame["series"] == "loss"]
    enough = not held_out.empty and held_out.groupby("run")["step"].nunique().max() > 2
    frame = held_out if enough else frame[frame["series"] == "train_loss"]
    runs = material.compared.drop_duplicates("run").set_index("run")
    frame = frame.drop_duplicates(["cell", "run", "step"])
    frame = frame.assign(diverged_at=frame["run"].map(runs["diverged_at"]))
    share = frame["tokens"] / frame["run"].map(runs["tokens"])
    return frame.assign(
        flops=share * frame["run"].map(runs["flops"]),
        seconds=share * frame["run"].map(runs["seconds"]),
    )


def _gaps(part: pd.DataFrame, material: Material) -> pd.DataFrame:
    """The points of every arm but the baseline, minus the baseline's at the same seed and step."""
    base = material.arms.loc[material.arms["is_baseline"], "cell"]
    mine = part["cell"].isin(base)
    baseline = (
        part[mine]
        .drop_duplicates(["seed", "step"])
        .set_index(["seed", "step"])["value"]
        .rename("baseline")
    )
    joined = part[~mine].join(baseline, on=["seed", "step"], how="inner")
    return joined.assign(value=joined["value"] - joined["baseline"])


def ordered(gallery: Gallery, material: Material) -> list[Picture]:
    """The metric over each factor that has three numbers or more as levels, a line for each
    combination of the others.
    """
    pictures = []
    words = material.words
    for factor in material.factors:
        levels = pd.to_numeric(_level(material.good, material, factor), errors="coerce")
        if levels.nunique() < 3 or levels.isna().any():
            continue
        others = _others(material.good, material, {factor})
        frame = pd.DataFrame({factor: levels, "metric": material.good["metric"], "others": others})
        hue = "others" if frame["others"].nunique() > 1 else None
        title = f"{sentence(words.phrase)} over {factor}"
        look: dict[str, Any] = {"x": factor, "hue": hue, "label": words.axis}
        pictures.append(
            gallery.hang(f"over-{slug(factor)}", title, MARKS, figures.ordered, frame, **look)
        )
    return pictures


def heat(gallery: Gallery, material: Material) -> list[Picture]:
    """The metric over two factors, where the study has two."""
    if len(material.factors) != 2 or material.good.empty or material.incomparable:
        return []
    x, y = sorted(material.factors, key=lambda factor: -len(material.orders[factor]))
    frame = pd.DataFrame(
        {
            factor: pd.Categorical(
                _level(material.good, material, factor),
                categories=_in_order(material, factor),
                ordered=True,
            )
            for factor in (x, y)
        }
    ).assign(metric=material.good["metric"])
    words = material.words
    title = f"{sentence(words.phrase)} over {x} and {y}"
    caption = (
        "Mean over the seeds that completed; empty where none did. A cell far from the others has"
        " the colour of the end."
    )
    return [gallery.hang("heat", title, caption, figures.heat, frame, x=x, y=y, label=words.axis)]


def _in_order(material: Material, factor: str) -> list[str]:
    """A factor's levels: numbers by size, names as the study file has them."""
    levels = material.orders[factor]
    values = pd.to_numeric(pd.Series(levels), errors="coerce")
    return levels if values.isna().any() else [levels[place] for place in values.argsort()]


def pareto(gallery: Gallery, material: Material) -> list[Picture]:
    """The metric against the seconds of a run, for each stratum whose arms differ in time."""
    pictures = []
    words = material.words
    for number, stratum in enumerate(material.strata):
        frame = material.good[
            (material.good["stratum"] == stratum) & material.good["seconds"].notna()
        ]
        means = frame.groupby("arm", observed=True)["seconds"].mean()
        if len(means) < 2 or means.max() < SLOWER * means.min():
            continue
        title = f"{sentence(words.phrase)} against training time" + (
            f" at {stratum}" if stratum else ""
        )
        best = front(frame, goal=words.goal)
        caption = (
            "Mark: mean over seeds; line: fastest to slowest seed; faint points: single runs, which"
            " shared the machine with "
        )
        caption += "whatever else it did. "
        if best:
            line = ", which the grey line joins" if len(best) > 1 else ""
            caption += (
                f"No other arm is as good in both and better in one than {listed(best)}{line}."
            )
        else:
            caption += (
                "Which arms no other beats in both is not told: their times overlap over seeds with"
                " those of others."
            )
        look = {"goal": words.goal, "label": words.axis}
        pictures.append(
            gallery.hang("pareto", title, caption, figures.pareto, frame, **look, stratum=number)
        )
    return pictures


def blocks(gallery: Gallery, material: Material) -> list[Picture]:
    """RMS of the residual stream and similarity of tokens, block by block, for each stratum: why a
    topology fails.
    """
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
    pictures = []
    for name, (label, caption) in kinds.items():
        frame = material.finals[material.finals["name"] == name].rename(columns={"at": "block"})
        for number, stratum in enumerate(material.strata):
            part = frame[(frame["stratum"] == stratum) & frame["value"].notna()]
            if part["block"].nunique() < 2:
                continue
            title = sentence(label) + (f" at {stratum}" if stratum else "")
            look = {"label": label, "share": name == "token_similarity"}
            pictures.append(
                gallery.hang(
                    slug(name), title, caption, figures.blocks, part, **look, stratum=number
                )
            )
    return pictures


def grids(gallery: Gallery, material: Material) -> list[Picture]:
    """Loss over position and context length, masked loss over the probe ratio; for each stratum."""
    kinds = {
        "loss_at_length": (
            "context (× training context)",
            "held-out loss (nats per token)",
            "The same tokens are scored throughout. ",
        ),
        "probe_loss": (
            "probe ratio",
            "masked loss (nats per token)",
            "The same tokens are scored in every arm. ",
        ),
        "probe_accuracy": (
            "probe ratio",
            "masked accuracy",
            "The same tokens are scored in every arm. ",
        ),
    }
    pictures = _positions(gallery, material)
    for name, (x, label, caption) in kinds.items():
        frame = material.finals[material.finals["name"] == name].rename(columns={"at": x})
        for number, stratum in enumerate(material.strata):
            part = frame[(frame["stratum"] == stratum) & frame["value"].notna()]
            if part[x].nunique() < 2:
                continue
            title = f"{sentence(label.split(' (')[0])} over {x.split(' (')[0]}" + (
                f" at {stratum}" if stratum else ""
            )
            look = {"x": x, "y": "value", "hue": "arm", "label": label}
            pictures.append(
                gallery.hang(
                    slug(name),
                    title,
                    caption + lacking(part, x) + MARKS,
                    figures.ordered,
                    part,
                    **look,
                    stratum=number,
                )
            )
    return pictures


def lacking(frame: pd.DataFrame, x: str) -> str:
    """A sentence for each arm that was not measured where others were: a context that its position
    encoding does not reach.
    """
    everywhere = set(frame[x])
    places = {
        str(arm): sorted(everywhere - set(own[x]))
        for arm, own in frame.groupby("arm", observed=True)
    }
    return "".join(
        f"Not defined for {arm} at {listed(f'{at:g}' for at in missing)}. "
        for arm, missing in places.items()
        if missing
    )


def _positions(gallery: Gallery, material: Material) -> list[Picture]:
    finals = material.finals[material.finals["name"] == "loss_at_position"]
    frame = finals.rename(columns={"at": "position"})
    pictures = []
    for number, stratum in enumerate(material.strata):
        part = frame[(frame["stratum"] == stratum) & frame["value"].notna()]
        if part["position"].nunique() > 1:
            title = "Held-out loss over the position in the context" + (
                f" at {stratum}" if stratum else ""
            )
            label = "held-out loss (nats per token)"
            caption = (
                "Each mark is the mean over positions from its own to the next mark's; the axis is"
                f" logarithmic. {BAND}"
            )
            pictures.append(
                gallery.hang(
                    "positions",
                    title,
                    caption,
                    figures.positions,
                    part,
                    label=label,
                    stratum=number,
                )
            )
    return pictures


def tuning(gallery: Gallery, material: Material) -> list[Picture]:
    """The metric over the learning rates that were tried, from the runs whose role is to tune; the
    chosen ones are marked.
    """
    frame = material.runs[
        (material.runs["role"] == "tune") & material.runs["status"].isin(["complete", "diverged"])
    ]
    called = tuned.names(material)
    named = [
        called.get(cell, str(arm)) for cell, arm in zip(frame["cell"], frame["arm"], strict=True)
    ]
    arms = list(frame["arm"].cat.categories)
    order = arms if set(named) <= set(arms) else list(dict.fromkeys(named))
    frame = frame.assign(group=pd.Categorical(named, categories=order, ordered=True))
    chosen = {row["cell"]: row["value"] for row in tuned.found(material)}
    caption = (
        "Runs made to tune, on seeds that are not compared; mark: mean over them. Ring: the chosen"
        " rate. A cross at the edge is a rate at which a run diverged."
    )
    pictures = []
    for number, stratum in enumerate(material.strata):
        part = frame[frame["stratum"] == stratum]
        if part["lr"].nunique() < 2:
            continue
        title = f"{sentence(material.words.phrase)} over the learning rate" + (
            f" at {stratum}" if stratum else ""
        )
        rings = {called[cell]: chosen[cell] for cell in set(part["cell"]) if cell in chosen}
        look = {"hue": "group", "label": material.words.axis, "goal": material.words.goal}
        pictures.append(
            gallery.hang(
                "tuning", title, caption, figures.rates, part, rings, **look, stratum=number
            )
        )
    return pictures


def slug(text: str) -> str:
    """A name that every file system and every id takes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "x"


def _level(frame: pd.DataFrame, material: Material, factor: str) -> pd.Series:
    return frame["cell"].map({cell: levels.get(factor) for cell, levels in material.levels.items()})


def _others(frame: pd.DataFrame, material: Material, without: set[str]) -> pd.Series:
    """The levels of all factors but `without`, as one name: the level alone where one factor is
    left.
    """
    rest = [factor for factor in material.factors if factor not in without]
    named = {
        cell: ", ".join(
            levels[factor] if len(rest) == 1 else f"{factor}={levels[factor]}"
            for factor in rest
            if factor in levels
        )
        for cell, levels in material.levels.items()
    }
    order = list(dict.fromkeys(named.values()))
    return pd.Series(
        pd.Categorical(frame["cell"].map(named), categories=order, ordered=True), index=frame.index
    )
