"""Findings on cells: untrained ones, groups of seeds, lengths, probes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from ablate import metrics, stats
from ablate.analysis import paired, records
from ablate.analysis.data import StudyData
from ablate.analysis.paired import split

# Nats per token by which the repetition of a random string must be predicted better than the string
# itself. Of the 300 runs of the study scale 235 gain less than 0.1, 48 more than 1; any limit from
# 0.2 to 1 gives effects of copying on the loss within 0.004 of each other.
COPIES = 0.5


def lossy(data: StudyData) -> Iterator[records.LossyTokenizer]:
    """Yield the tokenizers whose runs recorded that they lose text, in a study by bits per byte."""
    if data.study.metric != "bits_per_byte":
        return
    of_run = dict(zip(data.good["run"], data.good["tokenizer"], strict=True))
    found = data.finals[data.finals["name"].isin(metrics.LOSSY) & data.finals["run"].isin(of_run)]
    for tokenizer, part in found.groupby(found["run"].map(of_run), sort=True):
        lost = dict(zip(part["name"], part["value"], strict=True))
        yield records.LossyTokenizer(
            tokenizer=str(tokenizer),
            byte_coverage=float(lost.get("byte_coverage", 1.0)),
            text_kept=float(lost.get("text_kept", 1.0)),
        )


def untrained(data: StudyData) -> Iterator[records.Untrained]:
    """Yield the cells with runs that did not learn beyond token frequencies."""
    if data.study.own:
        return  # what a script calls unigram_loss may be anything
    runs = paired.near_unigram(data.finals, data.compared)
    for cell, where in named_cells(data).items():
        of_cell = runs[runs["cell"] == cell]
        low = of_cell[of_cell["near"]]
        if len(low):
            yield records.Untrained(
                **where,
                seeds=tuple(map(int, low["seed"])),
                of=len(of_cell),
                loss=float(low["loss"].mean()),
                unigram=float(low["unigram_loss"].mean()),
                whole=cell in data.untrained,
            )


def seed_groups(data: StudyData) -> Iterator[records.SeedGroups]:
    """Yield the cells whose seeds fall into groups, and whether copying goes with them.

    p is corrected by Holm's method over the cells of the study. One seed alone is no group, so that
    four seeds or more can show groups. Runs of crossed seeds are not independent, as the test
    assumes: then there are none.
    """
    if data.crossed:
        return
    named = named_cells(data)
    tested: dict[str, tuple[pd.DataFrame, stats.SeedGroups]] = {}
    of_cells = dict(iter(data.good.groupby("cell")))
    for cell in named:
        if cell in data.untrained or cell not in of_cells:
            continue
        runs = of_cells[cell]
        tested[cell] = runs, stats.seed_groups(runs["metric"].to_numpy(float))
    corrected = stats.holm([groups.p for _, groups in tested.values()])
    p = dict(zip(tested, map(float, corrected), strict=True))
    found = {
        cell: (runs, groups)
        for cell, (runs, groups) in tested.items()
        if p[cell] <= 0.05 and min(map(len, groups.members)) > 1
    }
    copying = data.finals[data.finals["name"] == "copy_loss"]
    for cell, (runs, groups) in found.items():
        seeds = runs["seed"].to_numpy()
        loss = copying[copying["cell"] == cell].set_index("seed")["value"].reindex(seeds)
        together = stats.group_association(groups, loss.to_numpy(float))
        members = tuple(tuple(int(seeds[at]) for at in group) for group in groups.members)
        yield records.SeedGroups(
            **named[cell],
            groups=members,
            means=groups.means,
            p=p[cell],
            copying=together.means if together.n else (),
            p_copying=together.p,
            like=tuple(
                named[other]["arm"]
                for other, (others, its) in found.items()
                if other != cell
                and named[other]["stratum"] == named[cell]["stratum"]
                and list(others["seed"]) == list(seeds)
                and its.members == groups.members
            ),
        )


def copying(data: StudyData) -> Iterator[records.Copying]:
    """Yield in which cells some seeds have learnt to copy and others not, and what that changes.

    One finding for the study: with few seeds a cell, no cell alone shows two groups.
    """
    wide = data.finals.pivot_table(index=["cell", "seed"], columns="name", values="value")
    if not {"copy_loss", "copy_loss_first"} <= set(wide.columns):
        return
    runs = data.good.set_index(["cell", "seed"])[["metric"]].join(
        (wide["copy_loss_first"] - wide["copy_loss"]).rename("gain").dropna(), how="inner"
    )
    runs["copies"] = runs["gain"] >= COPIES
    counted = runs.groupby("cell", sort=False)["copies"].agg(["sum", "count"])
    divided = counted[(counted["sum"] > 0) & (counted["sum"] < counted["count"])]
    if divided.empty:
        return
    runs = runs[runs.index.get_level_values("cell").isin(divided.index)]
    found = stats.within_groups(
        runs["metric"].to_numpy(float),
        runs["copies"].to_numpy(float),
        list(runs.index.get_level_values("cell")),
    )
    yield records.Copying(
        cells=tuple(divided.index),
        copies=tuple(map(int, divided["sum"])),
        of=tuple(map(int, divided["count"])),
        measured=len(counted),
        mean=found.mean,
        lo=found.lo,
        hi=found.hi,
        p=found.p,
    )


def variance(data: StudyData) -> Iterator[records.Variance]:
    """Yield the parts of each cell's variance where seeds are crossed."""
    if not data.crossed:
        return
    for cell, where in named_cells(data).items():
        runs = data.good[data.good["cell"] == cell].set_index("seed")["metric"]
        if cell not in data.untrained and (parts := of_variance(runs)):
            yield records.Variance(**where, **parts)


def of_variance(values: pd.Series) -> dict[str, Any]:
    """Return the fields of a finding on the variance of values by crossed seed.

    Empty where fewer than two seeds of either kind have values with all of the other kind.
    """
    found = stats.components(stats.crossed_table(values.to_numpy(float), split(values.index)))
    if math.isnan(found.init.share):
        return {}
    parts = {
        name: records.Part(**asdict(getattr(found, name))) for name in ("init", "order", "residual")
    }
    return {"inits": found.inits, "orders": found.orders, **parts}


def lengths(data: StudyData) -> Iterator[records.LengthChange]:
    """Yield the change of loss at the longest context of each cell that was measured."""
    finals = data.finals[data.finals["name"] == "loss_at_length"]
    losses = finals.groupby(["cell", "seed", "at"])["value"].mean().unstack()
    longest = finals["at"].max()
    if 1.0 not in losses or not longest > 1:
        return
    defined = set(finals.loc[finals["at"] == longest, "cell"])
    for cell, where in named_cells(data).items():
        if cell in losses.index:
            changed = (losses[longest] - losses[1.0]).loc[cell]
            yield records.LengthChange(
                **where,
                factor=float(longest),
                defined=cell in defined,
                **_over_seeds(data, changed),
            )


def length_errors(data: StudyData) -> Iterator[records.LengthError]:
    """Yield how the error rate of each cell changes from the shortest sources to the longest."""
    finals = data.finals[data.finals["name"] == "error_at_length"].dropna(subset=["value"])
    named = named_cells(data)
    of_cells = dict(iter(finals.groupby("cell")))
    for cell in filter(of_cells.__contains__, named):
        of_cell = of_cells[cell]
        rates = of_cell.groupby(["seed", "at"])["value"].mean().unstack()
        bins = sorted(of_cell["at"].unique())  # other texts may have others
        if len(bins) > 1:
            changed = rates[bins[-1]] - rates[bins[0]]
            yield records.LengthError(
                **named[cell],
                short=int(bins[1]) - 1,
                long=int(bins[-1]),
                **_over_seeds(data, changed),
            )


def _over_seeds(data: StudyData, changed: pd.Series) -> dict[str, Any]:
    """Return the mean of a change, by seed, with its interval, as fields of a record."""
    crossed = split(changed.index) if data.crossed else None
    change = stats.paired(changed.to_numpy(float), crossed=crossed)
    return {name: getattr(change, name) for name in ("n", "lost", "mean", "lo", "hi")}


def probes(data: StudyData) -> Iterator[records.ProbeLoss]:
    """Yield the loss of each cell on hidden tokens at each probe ratio."""
    for name, ratio, found in _measured(data, ("probe_loss", "corrupted_loss")):
        yield records.ProbeLoss(name=name, ratio=ratio, **found)


def linear_probes(data: StudyData) -> Iterator[records.LinearProbe]:
    """Yield the accuracy of each linear probe on each cell."""
    names = [name for name, row in metrics.METRICS.items() if row.downstream]
    for name, _, found in _measured(data, names):
        yield records.LinearProbe(name=name, **found)


def _measured(data: StudyData, names: Sequence[str]) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """Yield name, `at`, and the fields of a finding on the finals of each cell."""
    finals = data.finals[data.finals["name"].isin(names)].dropna(subset=["value"])
    grouped = finals.groupby(["cell", "name", "at"])["value"].agg(["mean", "std", "count"])
    for cell, where in named_cells(data).items():
        if cell in grouped.index:
            for (name, at), row in grouped.loc[cell].iterrows():  # type: ignore[misc]
                values = {"mean": float(row["mean"]), "sd": float(row["std"])}
                yield name, float(at), {**where, "seeds": int(row["count"]), **values}


def named_cells(data: StudyData) -> dict[str, dict[str, Any]]:
    """Return cell → the stratum, cell and arm that a finding on it names."""
    names = ("stratum", "cell", "arm")
    rows = zip(*(map(str, data.arms[name]) for name in names), strict=True)
    return {row[1]: dict(zip(names, row, strict=True)) for row in rows}
