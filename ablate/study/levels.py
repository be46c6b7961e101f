"""[factors]: lists of values, named levels that set several fields, and the `size` ladder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.components import CATALOGUE
from ablate.components.base import TAKEN
from ablate.errors import AblateError, unknown, written
from ablate.study.model import Fields
from ablate.study.source import Source, located
from ablate.study.values import FOLLOWS, field_value, label, positive, settable

Factors = dict[str, dict[str, Fields]]

LADDER = ("params", "aspect", "d_head")
# what solving a step of the ladder fills in
LADDER_SETS = ("n_layer", "d_model", "n_head", "d_head", "d_mlp")


def parse_factors(source: Source, raw: Mapping[str, Any]) -> Factors:
    """Return factor → level's label → fields.

    Raises:
        AblateError: with the line of what is not valid.
    """
    factors: Factors = {}
    for name, value in raw.items():
        location = ("factors", name)
        with located(source, *location):
            if isinstance(value, list):
                factors[name] = _listed(source, name, value)
            elif (
                name == "size" and isinstance(value, dict) and isinstance(value.get("params"), list)
            ):
                factors[name] = _ladder(source, value)
            elif isinstance(value, dict):
                factors[name] = _named(source, name, value)
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
    return set(LADDER_SETS) if "params" in fields else set(fields)


def check_field(source: Source, name: str, *path: object) -> None:
    """Check that a study may set a key.

    Raises:
        AblateError: the key is unknown, or follows from others.
    """
    if name in FOLLOWS:
        raise AblateError(f"{source.where(*path)}: {name} {FOLLOWS[name]}")
    if name not in settable():
        raise unknown("key", name, settable(), source.where(*path))


def fields_of(source: Source, raw: Mapping[str, Any], *path: object) -> Fields:
    """Return the checked values of a table of configuration fields."""
    fields = {}
    for name, value in raw.items():
        check_field(source, name, *path, name)
        with located(source, *path, name):
            fields[name] = field_value(name, value)
    return fields


def _listed(source: Source, name: str, values: list[Any]) -> dict[str, Fields]:
    if name not in settable():
        check_field(source, name, "factors", name)
    levels: dict[str, Fields] = {}
    meant = set()
    for value in values:
        with located(source, "factors", name, label(value)):
            field = field_value(name, value)
            text = field if name in CATALOGUE and CATALOGUE[name].levels else label(value)
            if text in levels or field in meant:
                raise AblateError(f"{name} level {text!r:.80} is listed twice")
            levels[text] = {name: field}
            meant.add(field)
    return levels


def _named(source: Source, name: str, table: Mapping[str, Any]) -> dict[str, Fields]:
    if name in CATALOGUE or name in TAKEN:
        raise AblateError(
            f"a factor with named levels cannot be called {name!r}: results have a column of that"
            " name"
        )
    if not name.isidentifier():
        raise AblateError(f"factor {name!r}: a name is letters, digits and underscores")
    levels: dict[str, Fields] = {}
    for text, fields in table.items():
        location = ("factors", name, text)
        if not isinstance(fields, dict):
            raise AblateError(
                f"{source.where(*location)}: level {text!r} of {name} is a table of fields, such"
                " as { n_head = 8 }"
            )
        if not text.strip() or not text.isprintable():
            raise AblateError(
                f"{source.where(*location)}: level {text!r} of {name}: a level's name must be"
                " printable text"
            )
        levels[text] = fields_of(source, fields, *location)
    return levels


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
