"""Findings on cells: untrained ones, groups of seeds, longer contexts, masked probes."""

from __future__ import annotations

from collections.abc import Iterator

from ablate import stats
from ablate.analysis import records
from ablate.analysis.data import StudyData

NEAR = 0.01  # of the unigram loss: a run that ends nearer has learnt no more than frequencies


def untrained(data: StudyData) -> Iterator[records.Untrained]:
    """Yield the cells with runs that did not learn beyond token frequencies."""
    finals = data.finals[data.finals["name"].isin(["loss", "unigram_loss"])]
    if not (finals["name"] == "unigram_loss").any():
        return
    runs = (
        finals.pivot_table(index=["cell", "seed"], columns="name", values="value")
        .dropna()
        .reset_index("seed")
    )
    for cell, arm in _arms(data):
        of_cell = runs[runs.index == cell]
        low = of_cell[of_cell["loss"] >= (1 - NEAR) * of_cell["unigram_loss"]]
        if len(low):
            yield records.Untrained(
                stratum=_stratum(data, cell),
                cell=cell,
                arm=arm,
                seeds=tuple(map(int, low["seed"])),
                of=len(of_cell),
                loss=float(low["loss"].mean()),
                unigram=float(low["unigram_loss"].mean()),
            )


def lengths(data: StudyData) -> Iterator[records.LengthChange]:
    """Yield the change of loss at the longest context of each cell that was measured."""
    finals = data.finals[data.finals["name"] == "loss_at_length"]
    losses = finals.groupby(["cell", "run", "at"])["value"].mean().unstack()
    longest = finals["at"].max()
    if 1.0 not in losses or not longest > 1:
        return
    defined = set(finals.loc[finals["at"] == longest, "cell"])
    for cell, arm in _arms(data):
        if cell in losses.index:
            change = stats.paired((losses[longest] - losses[1.0]).loc[cell])
            yield records.LengthChange(
                stratum=_stratum(data, cell),
                cell=cell,
                arm=arm,
                factor=float(longest),
                defined=cell in defined,
                n=change.n,
                lost=change.lost,
                mean=change.mean,
                lo=change.lo,
                hi=change.hi,
            )


def probes(data: StudyData) -> Iterator[records.ProbeLoss]:
    """Yield the masked loss of each cell at each probe ratio."""
    finals = data.finals[data.finals["name"] == "probe_loss"].dropna(subset=["value"])
    grouped = finals.groupby(["cell", "at"])["value"].agg(["mean", "std", "count"])
    for cell, arm in _arms(data):
        if cell in grouped.index:
            for ratio, row in grouped.loc[cell].iterrows():
                yield records.ProbeLoss(
                    stratum=_stratum(data, cell),
                    cell=cell,
                    arm=arm,
                    ratio=float(ratio),  # type: ignore[arg-type]  # an index of floats
                    seeds=int(row["count"]),
                    mean=float(row["mean"]),
                    sd=float(row["std"]),
                )


def _arms(data: StudyData) -> Iterator[tuple[str, str]]:
    for row in data.arms.itertuples():
        yield str(row.cell), str(row.arm)


def _stratum(data: StudyData, cell: str) -> str:
    return str(data.arms.loc[data.arms["cell"] == cell, "stratum"].iloc[0])
