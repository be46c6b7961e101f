"""Files and folders → runs: the numbers of each cell and seed, and which rows were left out."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.errors import AblateError
from ablate.formats import LARGEST
from ablate.imported import notes
from ablate.imported.formats import read
from ablate.imported.model import Asked, CellKey, Gathered, ImportedRun, text_of
from ablate.imported.rows import (
    REPEATED,
    Row,
    could_be,
    fields_of,
    require,
    rows_of,
    seeds_of,
    typed,
)
from ablate.metrics import likely_goal
from ablate.sheet import numbers
from ablate.store.records import ACCEPTED
from ablate.study.command import best
from ablate.study.imported import FLOPS
from ablate.units import listed

STEPLIKE = re.compile(r"step|epoch|iter|token|seen|checkpoint|ckpt", re.IGNORECASE)
Schedules = Mapping[str, list[set[int]]]  # metric → steps with a value, of each run of a cell

LOST = {"oom": "oom", "failed": "failed", "crashed": "failed"}  # cell → status of the run


def gather(paths: Sequence[Path], asked: Asked, *, extends: bool = False) -> Gathered:
    """Read runs.

    Args:
        paths: Files and folders.
        asked: Which columns are factors, seed, step and metrics.
        extends: Whether they extend a study with these factors, whose levels it has already.

    Raises:
        AblateError: A file cannot be read, a column is missing, or the runs cannot be a study; one
            line says what to do.
    """
    sources = read(paths, asked)
    require(asked, sources)
    left: dict[str, list[str]] = {}
    rows = [row for source in sources for row in rows_of(source, asked, left)]
    if not rows:
        raise AblateError(f"no row is a run: {'; '.join(notes.rows_left(left))}")
    goal, guessed = _goal(asked, rows)
    asked = replace(asked, goal=goal)
    groups = _groups(rows, asked)
    columns = fields_of(asked.factors)
    factors = {
        name: list(dict.fromkeys(cell[at] for cell, _ in groups)) for at, name in enumerate(columns)
    }
    for name, levels in factors.items():
        if len(levels) < 2 and not extends:
            raise AblateError(
                f"{columns[name]} is {text_of(levels[0])} in"
                f" {'the only run' if len(groups) == 1 else f'all {len(groups):,} runs'}: this"
                f" column does not vary, and cannot be a factor.{could_be(sources, asked)}"
            )
    schedules = _schedules(groups, asked)
    runs = [
        _run(cell, seed, part, asked, schedules[cell], left)
        for (cell, seed), part in groups.items()
    ]
    _check_at(runs, asked)
    said = [
        *(note for source in sources for note in source.notes),
        *(
            f"Column {column} is stored as {name}."
            for name, column in columns.items()
            if name != column
        ),
        *(
            f"Metric {metric} is stored as {name}."
            for metric, name in asked.names.items()
            if name != metric
        ),
        *(f"Left out: {rows}." for rows in notes.rows_left(left)),
        *notes.outcomes(runs),
        *notes.shorter(runs, asked),
        *notes.followers(groups, asked),
        *guessed,
    ]
    return Gathered(factors, columns, goal, runs, said)


def _check_at(runs: Sequence[ImportedRun], asked: Asked) -> None:
    """Refuse a step at which no run has a value, and a choice among the values of no curve."""
    metric = asked.metrics[0]
    steps = sorted({step for run in runs for step in run.points.get(asked.names[metric], ())})
    if asked.at != "last" and not steps:
        raise AblateError(
            f"--at {asked.at} has no effect: {metric} has one value for each run; if the rows are"
            " steps of runs, add --step COLUMN"
        )
    at = asked.at
    if isinstance(at, int) and at not in steps:
        near = sorted(sorted(steps, key=lambda step: abs(step - at))[:3])
        raise AblateError(
            f"--at {at}: no run has a value of {metric} at this step; the nearest steps are"
            f" {listed(map(str, near))}"
        )


def _goal(asked: Asked, rows: Sequence[Row]) -> tuple[str, list[str]]:
    """Return which direction of the metric is better, and a note where that is a guess."""
    metric = asked.metrics[0]
    if asked.goal:
        return asked.goal, []
    told: dict[str, Row] = {}  # direction → the first row whose tool says so
    for row in rows:
        recorded = row.source.recorded.get(row.label)
        if recorded is not None and metric in recorded.goals:
            told.setdefault(recorded.goals[metric], row)
    if len(told) > 1:
        places = "; ".join(f"{goal} in {row.place}" for goal, row in told.items())
        raise AblateError(
            f"{metric} is better in opposite directions ({places}): choose one with --goal, or"
            " rows with --where"
        )
    if told:
        return next(iter(told)), []
    goal = likely_goal(metric)
    if not goal:
        raise AblateError(
            f"--goal lower or higher is missing: the name of {metric!r} does not say which is"
            " better"
        )
    return goal, [
        f"{metric}: {goal} is better, by the words of its name; --goal sets the direction."
    ]


def _schedules(
    groups: Mapping[tuple[CellKey, int], list[Row]], asked: Asked
) -> dict[CellKey, Schedules]:
    """Return cell → metric → the steps at which each of its runs has a value."""
    found: dict[CellKey, Schedules] = {}
    for (cell, _), rows in groups.items():
        of_cell = found.setdefault(cell, {metric: [] for metric in asked.metrics})
        for metric, runs in of_cell.items():
            steps = (row.step for row in rows if row.values.get(metric) is not None)
            runs.append({step for step in steps if step is not None})
    return found


def _groups(rows: Sequence[Row], asked: Asked) -> dict[tuple[CellKey, int], list[Row]]:
    """Return cell and seed → their rows, in the order of the files."""
    levels = [typed({row.levels[at] for row in rows}) for at in range(len(asked.factors))]
    seeds = seeds_of(rows, asked.seed)
    groups: dict[tuple[CellKey, int], list[Row]] = {}
    for row in rows:
        cell = tuple(of[text] for of, text in zip(levels, row.levels, strict=True))
        groups.setdefault((cell, seeds[row.seed]), []).append(row)
    return groups


def _run(
    cell: CellKey,
    seed: int,
    rows: list[Row],
    asked: Asked,
    schedules: Schedules,
    left: dict[str, list[str]],
) -> ImportedRun:
    """Return the run of the rows of one cell and seed."""
    first = rows[0]
    curves: dict[str, dict[int, float]] = {}
    if first.step is None:
        for other in rows[1:]:
            if other.step is not None or not _same(first, other, asked.metrics):
                raise _twice(cell, seed, first, other, asked)
            left.setdefault(REPEATED, []).append(other.place)
    else:
        curves = _curves(cell, seed, rows, asked, schedules, left)
    recorded = first.source.recorded.get(first.label)
    for metric in asked.metrics:
        if recorded is not None and metric in recorded.points:
            curves.setdefault(metric, dict(recorded.points[metric]))
    for step in itertools.chain.from_iterable(curves.values()):
        if abs(step) > LARGEST:
            raise AblateError(f"{first.place}: step {step}: a step is at most {LARGEST} in size")
    values = {metric: _last(metric, first, curves) for metric in asked.metrics}
    metric, curve = asked.metrics[0], curves.get(asked.metrics[0], {})
    decided = curve.get(asked.at) if isinstance(asked.at, int) else values[metric]
    names = asked.names
    finals = {(names[name], 0.0): one for name, one in values.items() if one is not None}
    if finite := [value for value in curve.values() if math.isfinite(value)]:
        lowest = asked.goal == "lower"
        finals[best(names[metric]), 0.0] = min(finite) if lowest else max(finite)
    elif asked.at == "best" and decided is not None:
        finals[best(names[metric]), 0.0] = decided
    if isinstance(asked.at, int) and decided is not None:
        finals[names[metric], float(asked.at)] = decided
    status, error = _status(first, recorded, decided, asked)
    lost = [step for step, value in sorted(curve.items()) if not math.isfinite(value)]
    return ImportedRun(
        cell,
        seed,
        _resources(first, asked),
        first.place,
        {names[name]: of for name, of in curves.items()},
        finals if status in ACCEPTED else {},
        status,
        min(lost, default=max(curve, default=None)) if status == "diverged" else None,
        error,
    )


def _status(row: Row, recorded: Any, decided: float | None, asked: Asked) -> tuple[str, str]:
    """Return the status of a run, and why it failed."""
    if recorded is not None and recorded.status != "complete":
        return recorded.status, recorded.why
    if decided is None:
        text = row.states.get(asked.metrics[0], "")
        at = f" at step {asked.at}" if isinstance(asked.at, int) else ""
        said = (
            f": the cell says {text!r}" if text and row.values.get(asked.metrics[0]) is None else ""
        )
        return LOST.get(text.lower(), "failed"), f"no value of {asked.metrics[0]}{at}{said}"
    return ("complete" if math.isfinite(decided) else "diverged"), ""


def _last(metric: str, row: Row, curves: Mapping[str, Mapping[int, float]]) -> float | None:
    """Return the final of a run: the recorded final, else the last value of its curve."""
    recorded = row.source.recorded.get(row.label)
    if recorded is not None and metric in recorded.finals:
        return recorded.finals[metric]
    if row.step is None and row.values.get(metric) is not None:
        return row.values[metric]
    curve = curves.get(metric)
    return curve[max(curve)] if curve else None


def _curves(
    cell: CellKey,
    seed: int,
    rows: list[Row],
    asked: Asked,
    schedules: Schedules,
    left: dict[str, list[str]],
) -> dict[str, dict[int, float]]:
    """Return the curves of a run that has a row for each step.

    A run without a value at a step where its schedule has one has reported NaN there, which pandas
    writes as an empty cell.
    """
    at: dict[int, Row] = {}
    curves: dict[str, dict[int, float]] = {}
    for row in rows:
        assert row.step is not None
        before = at.setdefault(row.step, row)
        for metric, value in row.values.items():
            if value is None:
                continue
            old = curves.setdefault(metric, {}).setdefault(row.step, value)
            if not (old == value or (math.isnan(old) and math.isnan(value))):
                raise _twice(cell, seed, before, row, asked)
        if before is not row and before.values == row.values:
            left.setdefault(REPEATED, []).append(row.place)
    for metric, curve in curves.items():
        due = _due(sorted(curve), at.keys(), schedules[metric])
        if due is not None:
            curve[due] = math.nan
    return curves


def _due(valued: list[int], rows: Collection[int], mates: Sequence[set[int]]) -> int | None:
    """Return the step of the value that a run lacks behind its last one; None if it lacks none.

    It is known from the run itself where its values are equally far apart, else from runs of its
    cell that have values at the same steps up to there, and go on.

    Args:
        valued: Steps with a value, in order.
        rows: Steps of its rows.
        mates: Steps with a value of each run of the cell.
    """
    last = valued[-1]
    apart = {after - before for before, after in itertools.pairwise(valued)}
    if len(valued) > 2 and len(apart) == 1:
        step = last + apart.pop()
        return step if step in rows else None
    same = [of for of in mates if {step for step in of if step <= last} == set(valued)]
    later = [step for of in same for step in of if step > last and step in rows]
    return min(later, default=None)


def _same(one: Row, other: Row, metrics: Sequence[str]) -> bool:
    """Return whether two rows have the same numbers."""

    def held(row: Row) -> list[Any]:
        recorded = row.source.recorded.get(row.label)
        curves = (
            [sorted(recorded.points.get(name, {}).items()) for name in metrics] if recorded else []
        )
        finals = [recorded.finals.get(name) for name in metrics] if recorded else []
        return [[row.values.get(name) for name in metrics], curves, finals]

    return repr(held(one)) == repr(held(other))  # NaN is NaN


def _twice(cell: CellKey, seed: int, one: Row, other: Row, asked: Asked) -> AblateError:
    """Return the error for two rows of one cell and seed with different numbers."""
    name = listed(
        f"{factor}={text_of(level)}" for factor, level in zip(asked.factors, cell, strict=True)
    )
    step = f", step {one.step}," if one.step is not None else ""
    columns = [
        str(column)
        for column in one.source.table
        if str(column) not in (*asked.metrics, asked.step)
        and column in other.source.table
        and one.source.table[column][one.label] != other.source.table[column][other.label]
    ]
    steps = [column for column in columns if STEPLIKE.search(column)]
    apart = f". The rows differ in {listed(columns[:6])}" if columns else ""
    advice = "name the column that varies with --factor, or choose rows with --where"
    if steps and not asked.step:
        advice = f"if the rows are steps of one run, add --step {steps[0]!r}; else {advice}"
    metric = asked.metrics[0]
    return AblateError(
        f"{other.place}: seed {seed} of {name}{step} has two rows: {metric} is"
        f" {_value(one, metric)} in {one.place} and {_value(other, metric)} here{apart};"
        f" {advice}"
    )


def _value(row: Row, metric: str) -> str:
    curves = row.source.recorded[row.label].points if row.label in row.source.recorded else {}
    value = _last(metric, row, curves) if row.step is None else row.values.get(metric)
    return "missing" if value is None else f"{value:.6g}"


def _resources(row: Row, asked: Asked) -> dict[str, int | float]:
    """Return parameters, tokens and FLOPs of a run, from the first of its rows."""
    found: dict[str, int | float] = {}
    for name, column in asked.resources.items():
        text = row.source.table[column][row.label]
        (value,) = numbers([text], decimal_comma=row.source.decimal_comma, units=True)
        if value is None or not 0 < value < math.inf:
            if text and (value is None or value == value):
                raise AblateError(
                    f"{row.place}: {column} = {text!r:.60}: a number above 0 is wanted"
                )
            continue
        if name != FLOPS and value > LARGEST:
            raise AblateError(
                f"{row.place}: {column} = {text!r:.60}: a number up to {LARGEST:.3g} is wanted"
            )
        found[name] = float(value) if name == FLOPS else round(value)
    return found
