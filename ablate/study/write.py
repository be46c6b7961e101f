"""A study file written from its tables, with a comment on every key."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from ablate.components import CATALOGUE
from ablate.errors import AblateError
from ablate.study.command import CommandTable
from ablate.study.imported import ImportedTable
from ablate.study.parse import TABLES, StudyFile
from ablate.study.values import BUDGETS, label
from ablate.text.options import Reading

Table = dict[str, Any]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_TABLES: dict[str, type[BaseModel]] = {
    **TABLES,
    "data": Reading,
    "command": CommandTable,
    "imported": ImportedTable,
}


def write(raw: Mapping[str, Any]) -> str:
    """Return the text of a study file with the content of `raw`, with comments."""
    lines: list[str] = []
    plain = {key: value for key, value in raw.items() if key == "seeds" or not _is_table(value)}
    for key in [name for name in {**StudyFile.model_fields, **plain} if name in plain]:
        lines.append(_line(key, plain[key], _described(key)))
    for key, value in raw.items():
        if isinstance(value, list) and _is_table(value):
            for table in value:
                lines += [
                    "",
                    f"[[{_key(key)}]]",
                    *(_line(name, field) for name, field in table.items()),
                ]
        elif isinstance(value, dict) and key not in plain:
            lines += ["", *([f"# {_described(key)}"] if _described(key) else []), f"[{_key(key)}]"]
            # else names are the user's own
            known = key in _TABLES or not {"command", "imported"} & raw.keys()
            lines += [
                _line(name, field, _meaning(key, name) if known else "")
                for name, field in value.items()
            ]
    return "\n".join(lines) + "\n"


def value(text: str) -> Any:
    """Return the TOML value of a word of the command line, such as 12 or [0.8, 0.2]; else text."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text


def _is_table(value: object) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)
    )


def _described(key: str) -> str:
    """What a key or table of a study file is."""
    field = StudyFile.model_fields.get(key)
    return (field.description or "") if field else ""


def _meaning(section: str, name: str) -> str:
    if section in _TABLES:
        row = _TABLES[section].model_fields.get(name)
        return (row.description or "") if row else ""
    if name in CATALOGUE:
        return CATALOGUE[name].meaning.rstrip(".")
    return BUDGETS.get(name, "")


def _line(key: str, value: Any, comment: str | None = "") -> str:
    code = f"{_key(key)} = {_toml(value)}"
    return f"{code:<39} # {comment}" if comment else code


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def _toml(value: Any) -> str:
    """A value in TOML; tables inline."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):  # a JSON string is a TOML basic string but for DEL
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int | float):
        return label(value)
    if isinstance(value, dict):
        return (
            "{ "
            + ", ".join(f"{_key(name)} = {_toml(field)}" for name, field in value.items())
            + " }"
        )
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_toml, value)) + "]"
    raise AblateError(f"{value!r} has no place in a study file")
