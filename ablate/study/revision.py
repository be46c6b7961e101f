"""How a study file differs from an earlier text of it, key by key."""

from __future__ import annotations

import tomllib
from typing import Any

from ablate.formats import each_text, without_absolute


def changes(old: str, new: str, *, folders: bool = False) -> list[str]:
    """Return the keys whose values differ: "seeds: 5, now 8".

    Args:
        old: TOML text of the study that was registered.
        new: TOML text of its file.
        folders: Whether folders that were taken out of one text, to publish it, are a difference.

    Returns:
        One line for each key, in the order of the file; none where only comments or the layout
        differ, or one of the texts is not TOML.
    """
    try:
        before, after = _flat(tomllib.loads(old)), _flat(tomllib.loads(new))
    except tomllib.TOMLDecodeError:
        return []
    lines = []
    for key in dict.fromkeys([*after, *before]):
        if key not in before:
            lines.append(f"{key}: added, {after[key]!r}")
        elif key not in after:
            lines.append(f"{key}: removed, was {before[key]!r}")
        elif before[key] != after[key] and (folders or not _alike(before[key], after[key])):
            lines.append(f"{key}: {before[key]!r}, now {after[key]!r}")
    return lines


def _alike(one: object, other: object) -> bool:
    """Whether one value is the other one without folders."""
    return one == each_text(other, without_absolute) or other == each_text(one, without_absolute)


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
