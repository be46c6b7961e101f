"""Code from outside of ablate that runs depend on: parts of a user's own, scripts."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SHORT = 12  # digits of a SHA-256 that readers see


@dataclass(frozen=True)
class Code:
    """One source of code in one version; a study keeps all versions that its runs were made by.

    Attributes:
        name: The file as a study names it, or a package.
        version: SHA-256 of `text`; where there is no text, what a package calls its version.
        text: What the file holds; None for a package, which is known by its version.
        about: What readers learn of it without loading it, as JSON values.
        file: Absolute path that the text was read from, its `__file__`; kept with no result.
    """

    name: str
    version: str
    text: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    file: str | None = field(default=None, compare=False)

    @property
    def label(self) -> str:
        """Name and version, as the field `code` of a run has them."""
        return f"{self.name}@{self.version}"


def of_text(name: str, text: str, about: Mapping[str, Any] | None = None) -> Code:
    """Return the code in a text, known by its hash."""
    return Code(name, hashlib.sha256(text.encode()).hexdigest(), text, about or {})


def identity(labels: Iterable[str]) -> list[str]:
    """Return what of the labels enters a run's key: a file is known by its hash alone."""
    parts = (label.rpartition("@") for label in labels)
    return sorted(
        version if _is_hash(version) else f"{name}@{version}" for name, _, version in parts
    )


def short(version: str) -> str:
    """Return a version for readers: the first digits of a hash, else the version itself."""
    return version[:SHORT] if _is_hash(version) else version


def place(error: BaseException, names: Collection[str]) -> str:
    """Return the line of one of these files in which an error was raised last; "" for none."""
    trace = traceback.extract_tb(error.__traceback__)
    places = [f"{one.filename}, line {one.lineno}" for one in trace if one.filename in names]
    return places[-1] if places else ""


def _is_hash(version: str) -> bool:
    return len(version) == 64 and set(version) <= set("0123456789abcdef")
