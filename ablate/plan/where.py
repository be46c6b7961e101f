"""The line of a study file that an error of a cell is about."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager

from ablate.components import CATALOGUE
from ablate.components.presets import PRESET
from ablate.study import Study
from ablate.study.design import Combination
from ablate.study.names import OF_TABLE
from ablate.study.source import Source, prefixed

_BEGINNING = re.compile(r"[a-z]\w*(?:(?:, | and )[a-z]\w*)*(?=:| ')")
_KEY = re.compile(r"\b([a-z]\w*) = ")
_IN_START = {"start_from": "from"}  # what [start] calls a field


def of_cell(study: Study, chosen: Combination, label: str) -> AbstractContextManager[None]:
    """Begin an error with the line of the key that it is about, and with the cell."""
    return prefixed(study.path, lambda error: f"{where(study, chosen, error)}: cell {label!r}")


def where(study: Study, chosen: Combination, message: str) -> str:
    """Return the line of the first key that a message names and that the file sets for a cell.

    A message names keys as `key = value`, and at its beginning also as `key:` or `key 'value'`. If
    the file sets none of them, the line is that of the table that could set one, or of the preset
    of [base], or of [factors].

    Args:
        study: The study.
        chosen: Factor → label of its level in the cell.
        message: What is wrong with the cell.
    """
    source = Source(study.path, study.toml)
    beginning = _BEGINNING.match(message)
    named = [*re.findall(r"\w+", beginning[0] if beginning else ""), *_KEY.findall(message)]
    of_levels = {
        field: ("factors", factor, level)
        for factor, level in chosen.items()
        for field in study.factors[factor][level]
    }
    for field in named:
        if field in of_levels:
            return source.where(*of_levels[field])
        for path in (("base", field), ("finetune", field), ("start", _IN_START.get(field, field))):
            if source.has(*path):
                return source.where(*path)
    for table, group in OF_TABLE.items():
        of_group = [name for name in named if name in CATALOGUE and CATALOGUE[name].group == group]
        if of_group and source.has(table):
            return source.where(table)
    return source.where(*(("base", PRESET) if source.has("base", PRESET) else ("factors",)))
