"""[factors]: lists of values, named levels that set several fields, and the `size` ladder."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ablate.errors import AblateError, unknown, written
from ablate.study.model import Fields
from ablate.study.names import Names
from ablate.study.source import Source, located
from ablate.study.values import label, positive

Factors = dict[str, dict[str, Fields]]

_PATH = re.compile(r"~?(?:/[^\s/](?:[^/\n]*[^\s/])?){2,}")
_BARE = re.compile(r"[\w-]+", re.ASCII)  # a key of TOML that needs no quotes
LADDER = ("params", "aspect", "d_head")
# what solving a step of the ladder fills in
LADDER_SETS = ("n_layer", "d_model", "n_head", "d_head", "d_mlp")


def parse_factors(source: Source, names: Names, raw: Mapping[str, Any]) -> Factors:
    """Return factor → level's label → fields.

    Raises:
        AblateError: with the line of what is not valid.
    """
    factors: Factors = {}
    for name, value in raw.items():
        location = ("factors", name)
        with located(source, *location):
            if isinstance(value, list):
                factors[name] = _listed(source, names, name, value)
            elif names.is_ladder(name, value):
                factors[name] = _ladder(source, value)
            elif isinstance(value, dict):
                factors[name] = _named(source, names, name, value)
            else:
                raise AblateError(
                    f"{name:.80} = {written(value):.80}: a factor is a list of levels, the baseline"
                    " first; a single value belongs in [base]"
                )
            if len(factors[name]) < 2:
                raise AblateError(
                    f"{name}: a factor has two levels or more; a single value belongs in [base]"
                )
    return factors


def sets(fields: Fields) -> set[str]:
    """Return the configuration fields and budgets that a level decides."""
    return set(LADDER_SETS) if fields.keys() >= {*LADDER} else set(fields)


def fields_of(source: Source, names: Names, raw: Mapping[str, Any], *path: object) -> Fields:
    """Return the checked values of a table of fields."""
    fields = {}
    for name, value in raw.items():
        names.check(source, name, *path, name)
        with located(source, *path, name):
            fields[name] = names.value(name, value)
    return fields


def _listed(source: Source, names: Names, name: str, values: list[Any]) -> dict[str, Fields]:
    names.check(source, name, "factors", name)
    levels: dict[str, Fields] = {}
    meant = set()
    for value in values:
        with located(source, "factors", name, label(value)):
            field = names.value(name, value)
            text = names.level(name, value)
            if text in levels or field in meant:
                raise AblateError(f"{name} level {text!r:.80} is listed twice")
            levels[text] = {name: field}
            meant.add(field)
    return dict(zip(without_shared_folders(levels), levels.values(), strict=True))


def without_shared_folders(labels: Collection[str]) -> list[str]:
    """Return labels in which absolute paths are cut to their last parts, as few as keep all apart.

    Labels reach reports and databases that are published, and folders name their user.
    """
    parts = {text: text.split("/")[1:] for text in labels if _PATH.fullmatch(text)}
    for number in range(1, max(map(len, parts.values()), default=0)):
        short = ["/".join(parts[text][-number:]) if text in parts else text for text in labels]
        if len(set(short)) == len(short):
            return short
    return list(labels)


def _named(source: Source, names: Names, name: str, table: Mapping[str, Any]) -> dict[str, Fields]:
    names.check_factor(name)
    levels: dict[str, Fields] = {}
    for text, raw in table.items():
        location = ("factors", name, text)
        fields = names.fields(name, raw)
        if fields is None:
            raise AblateError(
                f"{source.where(*location)}: level {text!r} of {name} is a table of fields, such"
                " as { n_head = 8 }"
            )
        _check_no_tables(source, names, name, text, fields)
        if not text.strip() or not text.isprintable():
            raise AblateError(
                f"{source.where(*location)}: level {text!r} of {name}: a level's name must be"
                " printable text"
            )
        levels[text] = fields_of(source, names, fields, *location)
    return levels


def _check_no_tables(
    source: Source, names: Names, name: str, text: str, fields: Mapping[str, object]
) -> None:
    """Refuse a table as a value: TOML reads 0.1M = { ... } as a level 0 with a table 1M."""
    for key, value in fields.items():
        if not isinstance(value, dict):
            continue
        path = ("factors", name, text, key)
        advice = ""
        try:
            names.check(source, key, *path)
        except AblateError:
            if not _BARE.fullmatch(text):
                raise
            advice = (
                f'; a level\'s name with a dot stands in quotes: "{text}.{_dotted(key, value)}"'
            )
        raise AblateError(
            f"{source.where(*path)}: {key!r} of level {text!r} of {name} is a table, not a value"
            + advice
        )


def _dotted(key: str, table: dict[str, object]) -> str:
    """Return a key with those of the tables that it alone leads to."""
    [(inner, value), *others] = table.items() or [("", None)]
    return f"{key}.{_dotted(inner, value)}" if isinstance(value, dict) and not others else key


def _ladder(source: Source, table: Mapping[str, Any]) -> dict[str, Fields]:
    """Return the levels of { params = ["0.1M", "1M"], aspect = 32, d_head = 32 }: "0.1M", "1M".

    The plan solves them.
    """
    for key in table:
        if key not in LADDER:
            raise unknown(
                "key of the size ladder", key, LADDER, source.where("factors", "size", key)
            )
    if missing := [key for key in LADDER if key not in table]:
        raise AblateError(
            f'size ladder without {" and ".join(missing)}; write {{ params = ["0.1M", "1M"],'
            " aspect = 32, d_head = 32 }"
        )
    aspect, d_head = (positive(key, table[key]) for key in ("aspect", "d_head"))
    if d_head != int(d_head):
        raise AblateError(f"d_head = {table['d_head']!r}: expected a whole number")
    levels: dict[str, Fields] = {}
    meant = set()
    for raw in table["params"]:
        with located(source, "factors", "size", raw):
            params = positive("params", raw)
            if label(raw) in levels or params in meant:
                raise AblateError(f"size {label(raw)!r} is listed twice")
            levels[label(raw)] = {"params": params, "aspect": aspect, "d_head": int(d_head)}
            meant.add(params)
    return levels
