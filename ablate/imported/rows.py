"""Rows of sources that belong to runs: levels, seeds, steps and numbers."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ablate.components.base import RESERVED
from ablate.errors import AblateError, unknown
from ablate.imported.model import Asked, Level
from ablate.imported.source import Source
from ablate.sheet import ABSENT, numbers, select
from ablate.study.imported import CONTENT, FLOPS, PARAMS, SOURCE, TOKENS

REPEATED, RUNNING = "that repeats another", "that has not ended"  # why a row is left out
LARGEST_SEED = 2**31 - 1
PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
ORDINAL = re.compile(r"(\D*[A-Za-z]\D*)(\d+)")  # seed3, run_12
SEEDLIKE = re.compile(r"seed|rep|fold|trial|split|replica", re.IGNORECASE)


@dataclass(frozen=True)
class Row:
    """The requested columns of a row."""

    source: Source
    label: Any
    levels: tuple[str, ...]
    seed: str
    step: int | None
    values: Mapping[str, float | None]  # metric → number of a column; None where there is none
    states: Mapping[str, str]  # metric → text of a cell that is no number

    @property
    def place(self) -> str:
        return self.source.place(self.label)


# -- requested columns --------------------------------------------------------------------------


def require(asked: Asked, sources: Sequence[Source]) -> None:
    """Refuse an import without a metric, a factor or a seed, or with a column used twice."""
    for option, given, what in (
        ("--metric", asked.metrics, "the metric that is compared"),
        ("--factor", asked.factors, "a column that varies"),
        ("--seed", asked.seed, "the column by which runs are paired"),
    ):
        if not given:
            columns = [str(name) for name in sources[0].table]
            raise AblateError(
                f"{option} COLUMN is missing: {what}.{could_be(sources, asked)}"
                f"{_hint(sources[0], columns, option) if option == '--seed' else ''}"
            )
    for kind, names in (("factor", asked.factors), ("metric", asked.metrics)):
        if twice := [name for name in names if names.count(name) > 1]:
            raise AblateError(f"--{kind} {twice[0]} is given twice")
    stored: dict[str, str] = {}
    for name, text in asked.names.items():
        if stored.setdefault(text, name) != name:
            raise AblateError(
                f"--metric {name} and --metric {stored[text]} would both be stored as {text}:"
                " rename one of the columns"
            )
    used = (*asked.factors, asked.seed, *((asked.step,) if asked.step else ()), *asked.metrics)
    if twice := [name for name in used if used.count(name) > 1]:
        raise AblateError(
            f"{twice[0]!r} is used twice: a column is a factor, the seed, the step or a metric"
        )


def could_be(sources: Sequence[Source], asked: Asked) -> str:
    """Return a sentence with the columns that vary and their values."""
    said: dict[str, str] = {}
    for source in sources:
        for name in map(str, source.table):
            values = [value for value in dict.fromkeys(source.table[name]) if value]
            if len(values) < 2 or name in (*asked.factors, asked.seed, asked.step):
                continue
            few = len(values) <= 6
            shown = ", ".join(f"{value:.20}" for value in (values if few else values[:2]))
            said.setdefault(name, f"{name} ({shown}{'' if few else ', …'})")
        for name in source.metrics():
            said.setdefault(name, f"{name} (a metric)")
    shown = "; ".join([one for name, one in said.items() if name not in asked.metrics][:12])
    return f" Columns that vary: {shown}." if shown else " No other column varies."


def _column(source: Source, name: str, option: str) -> str:
    if name not in source.table:
        columns = [str(one) for one in source.table]
        hint = _hint(source, columns, option)
        raise AblateError(f"{option}: {unknown('column', name, columns, source.name)}{hint}")
    return name


def _hint(source: Source, columns: Sequence[str], option: str) -> str:
    """Return a sentence with advice on a missing column."""
    if source.whole and "run" in columns:
        runs = ", ".join(map(repr, source.table["run"].head(3)))
        return (
            f" If the names of runs contain this value ({runs}), --pattern extracts it:"
            " (?P<seed>\\d+) makes a column seed of a number."
        )
    if option != "--seed" or any(map(SEEDLIKE.search, columns)):
        return ""
    numbered = [one for one in columns if re.fullmatch(r"\D+\d+", one)]
    if len(numbered) > 1:
        word = re.escape(numbered[0].rstrip("0123456789")).replace("\\_", "_")
        return (
            f" If the columns {numbered[0]}, {numbered[1]}, … are seeds, add"
            f" --pattern '{word}(?P<seed>\\d+)'."
        )
    return (
        " Runs are paired by seed. If repetitions have no seed, add a column that numbers them, so"
        " that runs with the same number belong together."
    )


def fields_of(factors: Sequence[str]) -> dict[str, str]:
    """Return field → column of each factor; the field can be a column of the results."""
    found: dict[str, str] = {}
    taken = (*RESERVED, CONTENT, SOURCE, PARAMS, TOKENS, FLOPS)
    for column in factors:
        # in SQL, names do not differ by letter case
        name = re.sub(r"\W+", "_", column.lower()).strip("_") or "factor"
        name = f"_{name}" if name[0].isdigit() else name
        while name.lower() in taken or name.lower() in map(str.lower, found):
            name += "_"
        found[name] = column
    return found


# -- rows --------------------------------------------------------------------------------------


def rows_of(source: Source, asked: Asked, left: dict[str, list[str]]) -> Iterator[Row]:
    """Yield the rows that belong to a run; add the places of other rows to `left`."""
    recorded = source.metrics()
    parse = functools.cache(
        lambda name: pd.Series(_numbers(source, name, True), index=source.table.index, dtype=object)
    )
    table = select(source.name, source.table, parse, asked.where)
    for name in asked.factors:
        _column(source, name, "--factor")
    _column(source, asked.seed, "--seed")
    step = asked.step if not source.whole else ""
    if step:
        _column(source, step, "--step")
    for name in asked.resources.values():
        _column(source, name, "parameters, tokens or FLOPs")
    of_columns = [name for name in asked.metrics if name in table]
    for name in asked.metrics:
        if name not in (*table, *recorded):
            numeric = [str(one) for one in table if _all_numbers(source, str(one))]
            raise unknown("metric", name, [*recorded, *numeric], source.name)
    values = {
        name: dict(zip(source.table.index, _numbers(source, name, False), strict=True))
        for name in of_columns
    }
    for name in of_columns:
        for label in table.index:
            if values[name][label] is None:
                raise AblateError(
                    f"{source.place(label)}: {name} = {table[name][label]!r:.60} is not a number"
                )
    texts = table[[*asked.factors, asked.seed, *([step] if step else []), *of_columns]]
    for label, *cells in texts.itertuples(name=None):
        levels, seed = tuple(cells[: len(asked.factors)]), cells[len(asked.factors)]
        place = source.place(label)
        one = source.recorded.get(label)
        if one is not None and one.status == "running":
            left.setdefault(RUNNING, []).append(place)
            continue
        if not seed or ABSENT.fullmatch(seed.lower()):
            left.setdefault("without a seed", []).append(place)
            continue
        if not all(levels):
            without = asked.factors[levels.index("")]
            left.setdefault(f"without a level of {without}", []).append(place)
            continue
        held = dict(zip(of_columns, cells[len(cells) - len(of_columns) :], strict=True))
        number = None
        if step:
            text = cells[len(asked.factors) + 1]
            if not text:
                left.setdefault("without a step", []).append(place)
                continue
            number = _whole(text)
            if number is None:
                raise AblateError(f"{place}: {step} = {text!r:.60}: a step is a whole number")
        numbered: dict[str, float | None] = {}
        for name, text in held.items():
            value = values[name][label]
            absent = value is not None and math.isnan(value) and not _is_nan(text)
            numbered[name] = None if absent else value
        yield Row(source, label, levels, seed, number, numbered, held)


def _numbers(source: Source, name: str, units: bool) -> list[float | None]:
    cells = source.table[name].tolist()
    return numbers(cells, decimal_comma=source.decimal_comma, units=units)


def _all_numbers(source: Source, name: str) -> bool:
    found = _numbers(source, name, False)
    return None not in found and any(value == value for value in found)


def _is_nan(text: str) -> bool:
    """Return whether a cell is a NaN that the run reported, and not a missing number."""
    return text.lower().lstrip("+-") in ("nan", "diverged")


def _whole(text: str) -> int | None:
    if not PLAIN.fullmatch(text) or not float(text).is_integer() or float(text) < 0:
        return None
    return int(float(text)) if "e" in text.lower() or "." in text else int(text)


def typed(texts: set[str]) -> dict[str, Level]:
    """Return text → level: numbers if all texts are numbers, likewise truth values, else text."""
    if all(map(PLAIN.fullmatch, texts)):
        return {text: _plain_number(text) for text in texts}
    if all(text.lower() in ("true", "false") for text in texts):
        return {text: text.lower() == "true" for text in texts}
    return {text: text for text in texts}


def _plain_number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def seeds_of(rows: Sequence[Row], column: str) -> dict[str, int]:
    """Return text → seed: a whole number, or the number after a word, as in seed3."""
    texts = dict.fromkeys(row.seed for row in rows)
    found: dict[str, int | None] = {text: _whole(text) for text in texts}
    words = [ORDINAL.fullmatch(text) for text in texts]
    if None in found.values() and all(words) and len({word[1] for word in words if word}) == 1:
        found = {word[0]: int(word[2]) for word in words if word}
    for row in rows:
        seed = found[row.seed]
        if seed is None or seed > LARGEST_SEED:
            raise AblateError(
                f"{row.place}: {column} = {row.seed!r:.60}: a seed is a whole number from 0 to"
                f" {LARGEST_SEED}"
            )
    return {text: seed for text, seed in found.items() if seed is not None}
