"""Which figures a study gets, from what it varies, with captions that say all a reader needs."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from ablate import figures
from ablate.report.document import Picture
from ablate.report.material import Material
from ablate.report.words import sentence

MARKS = "Mark: mean over seeds with its 95% t-interval; faint points: single runs."
BAND = "Line: mean over seeds; band: lowest to highest seed."
GROWS = 1.2  # a factor whose levels change the parameters by this ratio is one of size


class Gallery:
    """Draws figures into a folder, one after the other, and keeps none in memory."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.names: set[str] = set()

    def hang(self, name: str, title: str, caption: str, draw: Callable[[], Axes]) -> Picture:
        """Draw, save as svg, pdf and png, and close."""
        assert name not in self.names, name
        self.names.add(name)
        ax = draw()
        files = figures.save(ax.figure, self.folder / name)  # type: ignore[arg-type]
        plt.close(ax.figure)
        return Picture(name, title, caption, figures.inline(files[0].read_text(encoding="utf-8"), name, html.escape(title)))


def effects(gallery: Gallery, material: Material) -> list[Picture]:
    """The effect plot; none without a contrast."""
    if material.effects.empty:
        return []
    caption = (
        "Each level minus its baseline. Mark: mean of the paired differences, filled where it is told from zero after Holm's "
        "correction; line: 95% t-interval; faint points: single pairs, one a seed. An arrow stands for what lies beyond the axis."
    )
    words = material.words
    draw = lambda: figures.effects(material.effects, material.pairs, label=words.difference, goal=words.goal)  # noqa: E731
    return [gallery.hang("effects", f"Effects on {words.phrase}", caption, draw)]


def curves(gallery: Gallery, material: Material) -> list[Picture]:
    """For each stratum: learning curves by tokens, the difference from the baseline, then by FLOPs and by seconds."""
    frame = _points(material)
    if frame.empty:
        return []
    series = "held-out loss" if frame["series"].iloc[0] == "loss" else "training loss"
    label = f"{series} (nats per token)"
    pictures = []
    for number, stratum in enumerate(material.strata):
        part = frame[frame["stratum"] == stratum]
        if part.empty:
            continue
        at = f" at {stratum}" if stratum else ""
        for x, over in (("tokens", "training tokens"), ("flops", "training FLOPs"), ("seconds", "training time")):
            if part[x].notna().any() and part[x].max() > 0:
                title = f"{series.capitalize()} over {over}{at}"
                pictures.append(
                    gallery.hang(
                        f"curves-{x}-{number}", title, f"{BAND} A cross marks a run that diverged.",
                        lambda part=part, x=x: figures.curves(part, x=x, label=label),  # type: ignore[misc]
                    )
                )  # fmt: skip
            if x == "tokens" and len(apart := _gaps(part, material)):
                title = f"Difference from the baseline over training{at}"
                pictures.append(
                    gallery.hang(
                        f"gaps-{number}", title, f"Each run minus the baseline's run of the same seed. {BAND}",
                        lambda apart=apart: figures.gaps(apart, label=f"difference in {label}"),  # type: ignore[misc]
                    )
                )  # fmt: skip
    return pictures


def _points(material: Material) -> pd.DataFrame:
    """Points of held-out loss, or of training loss where held-out loss was seen only once a run, with what the axes need."""
    frame = material.curves
    held_out = frame[frame["series"] == "loss"]
    enough = not held_out.empty and held_out.groupby("run")["step"].nunique().max() > 2
    frame = held_out if enough else frame[frame["series"] == "train_loss"]
    runs = material.compared.drop_duplicates("run").set_index("run")
    frame = _with_arms(frame.drop_duplicates(["cell", "run", "step"]), material)
    frame = frame.assign(diverged_at=frame["run"].map(runs["diverged_at"]))
    share = frame["tokens"] / frame["run"].map(runs["tokens"])
    return frame.assign(flops=share * frame["run"].map(runs["flops"]), seconds=share * frame["run"].map(runs["seconds"]))


def _gaps(part: pd.DataFrame, material: Material) -> pd.DataFrame:
    """The points of every arm but the baseline, minus the baseline's at the same seed and step."""
    base = material.arms.loc[material.arms["is_baseline"], "cell"]
    mine = part["cell"].isin(base)
    baseline = part[mine].drop_duplicates(["seed", "step"]).set_index(["seed", "step"])["value"].rename("baseline")
    joined = part[~mine].join(baseline, on=["seed", "step"], how="inner")
    return joined.assign(value=joined["value"] - joined["baseline"])


def ordered(gallery: Gallery, material: Material) -> list[Picture]:
    """The metric over each factor that has three numbers or more as levels, a line for each combination of the others."""
    pictures = []
    words = material.words
    for factor in material.factors:
        levels = pd.to_numeric(_level(material.good, material, factor), errors="coerce")
        if levels.nunique() < 3 or levels.isna().any():
            continue
        frame = pd.DataFrame({factor: levels, "metric": material.good["metric"], "others": _others(material.good, material, {factor})})
        hue = "others" if frame["others"].nunique() > 1 else None
        pictures.append(
            gallery.hang(
                f"over-{slug(factor)}", f"{sentence(words.phrase)} over {factor}", MARKS,
                lambda frame=frame, factor=factor, hue=hue: figures.ordered(frame, x=factor, hue=hue, label=words.axis),  # type: ignore[misc]
            )
        )  # fmt: skip
    return pictures


def heat(gallery: Gallery, material: Material) -> list[Picture]:
    """The metric over two factors, where the study has two."""
    if len(material.factors) != 2 or material.good.empty:
        return []
    x, y = sorted(material.factors, key=lambda factor: -len(material.orders[factor]))
    frame = pd.DataFrame(
        {
            factor: pd.Categorical(_level(material.good, material, factor), categories=material.orders[factor], ordered=True)
            for factor in (x, y)
        }
    ).assign(metric=material.good["metric"])
    words = material.words
    title = f"{sentence(words.phrase)} over {x} and {y}"
    draw = lambda: figures.heat(frame, x=x, y=y, label=words.axis)  # noqa: E731
    return [gallery.hang("heat", title, "Mean over the seeds that completed; empty where none did.", draw)]


def scaling(gallery: Gallery, material: Material) -> list[Picture]:
    """The metric over size, an arm for each combination of the other factors; where there are three sizes or more."""
    sizes = [factor for factor in material.factors if _grows(material, factor)]
    if not sizes or material.good["n_params_body"].nunique() < 3:
        return []
    frame = material.good.assign(others=_others(material.good, material, set(sizes)))
    words = material.words
    title = f"{sentence(words.phrase)} over size"
    caption = "Mark: mean over seeds; faint points: single runs. Both axes are logarithmic."
    draw = lambda: figures.scaling(frame, hue="others", label=words.axis)  # noqa: E731
    return [gallery.hang("scaling", title, caption, draw)]


def _grows(material: Material, factor: str) -> bool:
    """Whether the factor's levels change the number of parameters, all else equal."""
    frame = material.good.assign(others=_others(material.good, material, {factor}))
    sizes = frame.groupby("others", observed=True)["n_params_body"].agg(["min", "max"]).astype(float)
    return bool(len(sizes)) and bool((sizes["max"] / sizes["min"] >= GROWS).all())


def pareto(gallery: Gallery, material: Material) -> list[Picture]:
    """The metric against the seconds of a run, for each stratum with two arms or more."""
    pictures = []
    words = material.words
    for number, stratum in enumerate(material.strata):
        frame = material.good[(material.good["stratum"] == stratum) & material.good["seconds"].notna()]
        if frame["arm"].nunique() < 2:
            continue
        pictures.append(
            gallery.hang(
                f"pareto-{number}", f"{sentence(words.phrase)} against training time" + (f" at {stratum}" if stratum else ""),
                "Mark: mean over seeds; faint points: single runs. The grey line joins the arms that no other beats in both.",
                lambda frame=frame: figures.pareto(frame, goal=words.goal, label=words.axis),  # type: ignore[misc]
            )
        )  # fmt: skip
    return pictures


def blocks(gallery: Gallery, material: Material) -> list[Picture]:
    """RMS of the residual stream and similarity of tokens, block by block, for each stratum: why a topology fails."""
    kinds = {
        "stream_rms": ("RMS of the residual stream", f"After each block, on held-out text, at the end of training. {BAND}"),
        "token_similarity": (
            "similarity of tokens",
            f"Mean cosine between the stream's vectors of different tokens, after each block: 1 means that they have collapsed. {BAND}",
        ),
    }
    pictures = []
    for name, (label, caption) in kinds.items():
        frame = material.finals[material.finals["name"] == name].rename(columns={"at": "block"})
        frame = _with_arms(frame, material)
        for number, stratum in enumerate(material.strata):
            part = frame[(frame["stratum"] == stratum) & frame["value"].notna()]
            if part["block"].nunique() < 2:
                continue
            title = sentence(label) + (f" at {stratum}" if stratum else "")
            draw = lambda part=part, label=label: figures.blocks(part, label=label)  # noqa: E731
            pictures.append(gallery.hang(f"{slug(name)}-{number}", title, caption, draw))  # type: ignore[arg-type]
    return pictures


def grids(gallery: Gallery, material: Material) -> list[Picture]:
    """Finals measured at several points: loss over context length, masked loss over the probe ratio; for each stratum."""
    kinds = {
        "loss_at_length": ("context (× training context)", "held-out loss (nats per token)", "The same tokens scored in every context. "),
        "probe_loss": ("probe ratio", "masked loss (nats per token)", "The same tokens scored in every arm. "),
        "probe_accuracy": ("probe ratio", "masked accuracy", "The same tokens scored in every arm. "),
    }
    pictures = []
    for name, (x, label, caption) in kinds.items():
        frame = _with_arms(material.finals[material.finals["name"] == name].rename(columns={"at": x}), material)
        for number, stratum in enumerate(material.strata):
            part = frame[(frame["stratum"] == stratum) & frame["value"].notna()]
            if part[x].nunique() < 2:
                continue
            title = f"{sentence(label.split(' (')[0])} over {x.split(' (')[0]}" + (f" at {stratum}" if stratum else "")
            draw = lambda part=part, x=x, label=label: figures.ordered(part, x=x, y="value", hue="arm", label=label)  # noqa: E731
            pictures.append(gallery.hang(f"{slug(name)}-{number}", title, caption + MARKS, draw))  # type: ignore[arg-type]
    return pictures


def tuning(gallery: Gallery, material: Material) -> list[Picture]:
    """The metric over the learning rates that were tried, from the runs whose role is to tune."""
    frame = material.runs[(material.runs["role"] == "tune") & (material.runs["status"] == "complete") & material.runs["metric"].notna()]
    pictures = []
    for number, (stratum, part) in enumerate(_with_arms(frame, material).groupby("stratum", sort=False)):
        if part["lr"].nunique() < 2:
            continue
        title = f"{sentence(material.words.phrase)} over the learning rate" + (f" at {stratum}" if stratum else "")
        part = part.rename(columns={"lr": "learning rate"})
        draw = lambda part=part: figures.ordered(part, x="learning rate", hue="arm", label=material.words.axis)  # noqa: E731
        caption = "Runs made to tune, on seeds that are not compared. A rate at which a run diverged has no mark."
        pictures.append(gallery.hang(f"tuning-{number}", title, caption, draw))  # type: ignore[arg-type]
    return pictures


def slug(text: str) -> str:
    """A name that every file system and every id takes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40] or "x"


def _with_arms(frame: pd.DataFrame, material: Material) -> pd.DataFrame:
    by_cell = material.arms.set_index("cell")
    arm = pd.Categorical(frame["cell"].map(by_cell["arm"].astype(str)), categories=material.arms["arm"].cat.categories, ordered=True)
    return frame.assign(arm=arm, stratum=frame["cell"].map(by_cell["stratum"]))


def _level(frame: pd.DataFrame, material: Material, factor: str) -> pd.Series:
    return frame["cell"].map({cell: levels.get(factor) for cell, levels in material.levels.items()})


def _others(frame: pd.DataFrame, material: Material, without: set[str]) -> pd.Series:
    """The levels of all factors but `without`, as one name: the level alone where one factor is left."""
    rest = [factor for factor in material.factors if factor not in without]
    named = {
        cell: ", ".join(levels[factor] if len(rest) == 1 else f"{factor}={levels[factor]}" for factor in rest if factor in levels)
        for cell, levels in material.levels.items()
    }
    order = list(dict.fromkeys(named.values()))
    return pd.Series(pd.Categorical(frame["cell"].map(named), categories=order, ordered=True), index=frame.index)
