"""Findings on studies of scripts and imported ones: a threshold to beat, seeds without effect,
partial numbers, curves of other lengths.
"""

from __future__ import annotations

from collections.abc import Iterator

from ablate import stats
from ablate.analysis import records
from ablate.analysis.cells import named_cells
from ablate.analysis.data import StudyData
from ablate.store import status
from ablate.study.values import number


def thresholds(data: StudyData) -> Iterator[records.Threshold]:
    """Yield each cell's mean against the threshold of [report]; none of crossed seeds."""
    raw = (data.settings.get("report") or {}).get("threshold")
    if raw is None or data.crossed:
        return
    value = float(number("threshold", raw))
    named = named_cells(data)
    found = [
        stats.one_sample(
            data.good.loc[data.good["cell"] == cell, "metric"].to_numpy(float),
            value,
            goal=data.study.goal,
        )
        for cell in named
    ]
    corrected = stats.holm([one.p for one in found])
    for where, one, p_holm in zip(named.values(), found, corrected, strict=True):
        if one.n:
            yield records.Threshold(
                **where,
                threshold=value,
                p_holm=float(p_holm),
                beaten=bool(p_holm <= 0.05),
                **vars(one),
            )


def same_curves(data: StudyData) -> Iterator[records.SameSeeds | records.SameArms]:
    """Yield the cells of a script in which seeds have identical curves, and those whose curves
    equal the baseline's for every seed.
    """
    if not data.study.own:
        return
    curves, named = status.curves(data.db, data.study.name), named_cells(data)
    for seeds in status.same_seeds(curves):
        if seeds.cell in named:
            yield records.SameSeeds(**named[seeds.cell], seeds=seeds.seeds, of=seeds.of)
    for arms in status.same_arms(data.db, data.study.name, curves):
        yield records.SameArms(**vars(arms))


def partly_reported(data: StudyData) -> Iterator[records.PartlyReported]:
    """Yield the numbers that some completed runs of a script reported, and others did not."""
    if not data.study.own:
        return
    of = int(data.good["run"].nunique())
    finals = data.finals[data.finals["run"].isin(data.good["run"]) & (data.finals["at"] == 0)]
    for name, part in finals.groupby("name", sort=True):
        if (runs := int(part["run"].nunique())) < of:
            yield records.PartlyReported(name=str(name), runs=runs, of=of)


def other_steps(data: StudyData) -> Iterator[records.OtherSteps]:
    """Yield the cells that end at different steps, if the last value of a curve is compared."""
    if not data.study.own or data.study.metric != data.study.reported:
        return
    ends = data.ends[data.ends["series"] == data.study.reported]
    runs = data.good.merge(ends[["run", "last"]], on="run")
    apart = runs[runs.groupby("stratum")["last"].transform("nunique") > 1]
    if apart.empty:
        return
    steps = apart.groupby("cell")["last"].agg(["min", "max"])
    steps = steps.loc[[cell for cell in data.arms["cell"] if cell in steps.index]]
    yield records.OtherSteps(
        cells=tuple(map(str, steps.index)),
        first=tuple(map(int, steps["min"])),
        last=tuple(map(int, steps["max"])),
    )
