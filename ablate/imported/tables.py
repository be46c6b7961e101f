"""Tables: long or wide, and the two that Weights & Biases exports."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from ablate.errors import AblateError
from ablate.imported.source import (
    OF_ABLATE,
    Recorded,
    Source,
    Wanted,
    check_pattern,
    named,
    of_runs,
)
from ablate.sheet import numbers, sheet
from ablate.units import listed

LOWEST = "__MIN"  # end of the second of three columns that W&B exports for a curve
STATES = {  # of a run in W&B
    "finished": "complete",
    **dict.fromkeys(("running", "pending"), "running"),
    **dict.fromkeys(("failed", "crashed", "killed", "preempted", "preempting"), "failed"),
}
EXPORTED = {"cell", "key", "status", "role", "metric"}  # columns of `ablate export STUDY`
NAMES = ("run", "run_name", "run name", "name", "run_id", "experiment")  # columns of names of runs


def read(path: Path, wanted: Wanted) -> Source:
    """Return the rows of a table in a file; see `ablate.sheet.sheet` for the formats.

    A chart that Weights & Biases exports has a curve in each column. In a table of runs from
    Weights & Biases the column State gives the status of a run, in one of ablate the column status.
    In a wide table a pattern, or the
    name of the seed and a number, as in "seed 3", finds the columns of the seeds.

    Raises:
        AblateError: The file holds no table.
    """

    def asked(names: Sequence[str]) -> bool:
        return all(name in names for name in (*wanted.columns, wanted.metrics[0]))

    table = sheet(path, asked)
    notes = (table.attrs["sheet"],) if table.attrs["sheet"] else ()
    source = Source(
        str(path), table, decimal_comma=table.attrs["decimal_comma"], notes=tuple(notes)
    )
    columns = list(map(str, table))
    if any(name.endswith(LOWEST) for name in columns):
        return _chart(source, wanted)
    source = _with_states(source, wanted)
    if wanted.pattern is not None:
        return _patterned(source, wanted, wanted.pattern)
    return _numbered(source, wanted)


def _chart(source: Source, wanted: Wanted) -> Source:
    """A chart of W&B: a column of steps, and for each run its curve, lowest and highest value."""
    table = source.table
    x, *others = map(str, table)
    curves = [name for name in others if f"{name}{LOWEST}" in others]
    steps = _steps(source, x)
    found: dict[str, dict[str, dict[int, float]]] = {}
    for name in curves:
        run, _, metric = name.rpartition(" - ")
        values = numbers(table[name].tolist(), decimal_comma=source.decimal_comma, units=False)
        found.setdefault(run or name, {})[metric or name] = {
            step: value
            for step, value, cell in zip(steps, values, table[name], strict=True)
            if value is not None and cell  # an empty cell belongs to another run's step
        }
    check_pattern(wanted.pattern, found, source.name)
    fields = [{"run": run} | named(run, wanted.pattern) for run in found]
    runs = of_runs(source.name, fields, [Recorded(points) for points in found.values()], [*found])
    return dataclasses.replace(runs, chart=True)


def _steps(source: Source, column: str) -> list[int]:
    values = numbers(source.table[column].tolist(), decimal_comma=False, units=False)
    for place, value in zip(source.table.index, values, strict=True):
        if value is None or not float(value).is_integer():
            raise AblateError(
                f"{source.place(place)}: {column} = {source.table[column][place]!r:.60}: a step is"
                " a whole number; export the chart with Step as its x axis"
            )
    return [int(value) for value in values if value is not None]


def _with_states(source: Source, wanted: Wanted) -> Source:
    """Return the source with the states of runs, if it is a table that W&B or ablate exports."""
    table = source.table
    if {"Name", "State"} <= set(table) and set(table["State"]) <= set(STATES):
        tool, column, states = "W&B", "State", STATES
    elif set(table) >= EXPORTED and set(table["status"]) <= set(OF_ABLATE):
        tool, column, states = "ablate", "status", OF_ABLATE
    else:
        return dataclasses.replace(source, notes=(*source.notes, *_unread(source, wanted)))
    recorded = {
        place: Recorded(status=states[state], why=f"{tool}: {state}")
        for place, state in table[column].items()
        if states[state] != "complete"
    }
    return dataclasses.replace(source, recorded=recorded)


def _unread(source: Source, wanted: Wanted) -> Iterator[str]:
    """Yield a sentence for each column of another table that seems to say which runs ended."""
    ended = {**STATES, **OF_ABLATE}
    used = (*wanted.columns, *(one.partition("=")[0].rstrip("!<>") for one in wanted.where))
    for column in map(str, source.table):
        if column.lower() not in ("status", "state") or column in used:
            continue
        states = dict.fromkeys(map(str, source.table[column]))
        if other := [one for one in states if ended.get(one.lower(), "complete") != "complete"]:
            yield (
                f"The column {column} is not read: a run that is {other[0]!r} counts as complete if"
                f" it has a value; --where {column}=VALUE chooses rows."
            )


def _patterned(source: Source, wanted: Wanted, pattern: re.Pattern[str]) -> Source:
    """Apply the pattern to whole names of columns; if none matches, to the names of runs."""
    table = source.table
    wide = {name: found for name in map(str, table) if (found := pattern.fullmatch(name))}
    if clash := [group for group in pattern.groupindex if group in table]:
        raise AblateError(
            f"{source.name}: --pattern {pattern.pattern!r} makes a column that exists already:"
            f" {clash[0]}"
        )
    if wide:
        metric = wanted.metrics[0]
        if metric in pattern.groupindex or (metric in table and metric not in wide):
            raise AblateError(
                f"{source.name}: --pattern {pattern.pattern!r} makes one column, {metric!r}, of"
                f" {listed(list(wide)[:3])}, and there is a column of this name already; give the"
                " new one another name with --metric, or let the pattern match names of runs only"
            )
        return _melted(source, wanted.metrics[0], {k: v.groupdict("") for k, v in wide.items()})
    column = next((name for name in map(str, table) if name.lower() in NAMES), None)
    if column is None:
        raise AblateError(
            f"{source.name}: --pattern {pattern.pattern!r} matches no column, and no column"
            f" holds names of runs ({', '.join(NAMES)}); there are {', '.join(map(str, table))}"
        )
    check_pattern(pattern, table[column], source.name)
    said = pd.DataFrame(
        [found.groupdict("") if (found := pattern.search(cell)) else {} for cell in table[column]],
        index=table.index,
        columns=[*pattern.groupindex],
        dtype=object,
    ).fillna("")
    return dataclasses.replace(source, table=table.join(said))


def _numbered(source: Source, wanted: Wanted) -> Source:
    """A table with a column for each seed, such as "seed 0" or "loss_seed0"."""
    table, seed, metric = source.table, wanted.columns[-1], wanted.metrics[0]
    if not seed or seed in table or metric in table:
        return source
    words = rf"(?:{re.escape(metric)}[\W_]*)?{re.escape(seed)}[\W_]*(\d+)"
    wide = {
        name: {seed: found[1]}
        for name in map(str, table)
        if (found := re.fullmatch(words, name, re.IGNORECASE))
    }
    if len(wide) < 2:
        return source
    melted = _melted(source, metric, wide)
    note = f"{source.name}: columns {', '.join(list(wide)[:3])}, … are read as seeds."
    return dataclasses.replace(melted, notes=(*melted.notes, note))


def _melted(source: Source, metric: str, wide: dict[str, dict[str, str]]) -> Source:
    """Return a row for each cell of the wide columns, with the values in their names."""
    table = source.table
    rest = table.drop(columns=list(wide))

    def parts() -> Iterator[pd.DataFrame]:
        for name, said in wide.items():
            yield rest.assign(**said, **{metric: table[name]})

    # rows of one line stay together, in the order of the columns
    long = pd.concat(parts()).sort_index(kind="stable")
    places = [f"{line}, {name}" for line in rest.index for name in wide]
    recorded = {f"{line}, {name}": one for line, one in source.recorded.items() for name in wide}
    long = long.set_axis(pd.Index(places, name=table.index.name))
    return dataclasses.replace(source, table=long, recorded=recorded)
