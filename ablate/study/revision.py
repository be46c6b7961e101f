"""How a study file differs from an earlier text of it, key by key."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
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
    lines = []
    for key, before, after in _differing(old, new, folders):
        if not before:
            lines.append(f"{key}: added, {after[0]!r}")
        elif not after:
            lines.append(f"{key}: removed, was {before[0]!r}")
        else:
            lines.append(f"{key}: {before[0]!r}, now {after[0]!r}")
    return lines


def between(one: str, other: str, places: tuple[str, str]) -> list[str]:
    """Return the keys whose values differ: "seeds: 5 in a.db, 8 in b.db".

    Args:
        one: TOML text of a study.
        other: TOML text of another one, neither of which is the earlier.
        places: Where each of the two is, for readers.

    Returns:
        As `changes`, where folders are a difference.
    """
    return [
        f"{key}: "
        + ", ".join(
            f"{repr(values[0]) if values else 'absent'} in {place}"
            for values, place in zip(sides, places, strict=True)
        )
        for key, *sides in _differing(one, other, folders=True)
    ]


def _differing(
    old: str, new: str, folders: bool
) -> Iterator[tuple[str, tuple[Any, ...], tuple[Any, ...]]]:
    """Yield each key whose values differ, with its value on either side; () where it is absent."""
    try:
        before, after = _flat(tomllib.loads(old)), _flat(tomllib.loads(new))
    except tomllib.TOMLDecodeError:
        return
    for key in dict.fromkeys([*after, *before]):
        one, other = ((side[key],) if key in side else () for side in (before, after))
        if one != other and (folders or not one or not other or not _alike(one[0], other[0])):
            yield key, one, other


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
