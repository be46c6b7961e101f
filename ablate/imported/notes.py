"""Sentences that tell the user about the imported runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ablate.imported.model import Asked, CellKey, ImportedRun
from ablate.imported.rows import REPEATED, RUNNING, Row
from ablate.store.records import FAILED
from ablate.units import listed, plural

SHOWN = 4  # most places that a note names
MANY = {REPEATED: "that repeat another", RUNNING: "that have not ended"}  # of several rows
FOLDER = re.compile(r"folder\d+")  # part of a path, which may be a factor


def _places(places: Sequence[str]) -> str:
    return "; ".join(places[:SHOWN]) + (f"; {len(places) - SHOWN:,} more" * (len(places) > SHOWN))


def rows_left(left: Mapping[str, list[str]]) -> list[str]:
    """Return how many rows are left out for each reason, and their places."""
    return [
        f"{plural(len(places), 'row')} {why if len(places) == 1 else MANY.get(why, why)}"
        f" ({_places(places)})"
        for why, places in left.items()
    ]


def outcomes(runs: Sequence[ImportedRun]) -> Iterator[str]:
    """Yield which runs diverged or failed."""
    diverged = [run.place for run in runs if run.status == "diverged"]
    if diverged:
        yield f"Diverged, without a finite number: {len(diverged):,} ({_places(diverged)})."
    failed = [run for run in runs if run.status in FAILED]
    if failed:
        places = [f"{run.place}: {run.error}" for run in failed]
        yield f"Failed: {len(failed):,} ({_places(places)})."


def shorter(runs: Sequence[ImportedRun], asked: Asked) -> Iterator[str]:
    """Yield which runs end before others of their cell, if the last value is compared."""
    if asked.at != "last":
        return
    name = asked.names[asked.metrics[0]]
    last = {
        (run.cell, run.seed): (max(run.points[name]), run)
        for run in runs
        if run.status == "complete" and run.points.get(name)
    }
    longest: dict[CellKey, int] = {}
    for (cell, _), (step, _) in last.items():
        longest[cell] = max(step, longest.get(cell, 0))
    early = [
        f"{run.place}: step {step:,} of {longest[cell]:,}"
        for (cell, _), (step, run) in last.items()
        if step < longest[cell]
    ]
    if early:
        end, its = ("ends", "its") if len(early) == 1 else ("end", "their")
        yield (
            f"Warning: {plural(len(early), 'run')} {end} before others of {its} cell"
            f" ({_places(early)}). {its.capitalize()} last value is compared; --at STEP compares"
            " all runs at one step."
        )


def followers(groups: Mapping[tuple[CellKey, int], list[Row]], asked: Asked) -> Iterator[str]:
    """Yield which other columns have one value in each cell, but differ between cells."""
    cells: dict[CellKey, list[Row]] = {}
    for (cell, _), rows in groups.items():
        cells.setdefault(cell, []).append(rows[0])
    first = next(iter(groups.values()))[0]
    used = (*asked.factors, asked.seed, asked.step, *asked.metrics, *asked.resources.values())
    found = []
    for name in map(str, first.source.table):
        if name in used or FOLDER.fullmatch(name):
            continue
        if any(name not in row.source.table for of in cells.values() for row in of):
            continue
        of = {c: {row.source.table[name][row.label] for row in rows} for c, rows in cells.items()}
        values = {value for held in of.values() for value in held}
        alone = all(len(held) == 1 for held in of.values())
        if alone and len(values) > 1 and max(map(len, cells.values())) > 1:
            found.append(name)
    if found:
        yield f"Confounded with the factors, constant in each cell: {listed(found[:8])}."
