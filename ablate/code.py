"""Code from outside of ablate that runs depend on: parts of a user's own, scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import traceback
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SHORT = 12  # digits of a SHA-256 that readers see


@dataclass(frozen=True)
class Code:
    """One source of code in one version; a study keeps all versions that its runs were made by.

    Attributes:
        name: The file or package as a study names it.
        version: SHA-256 of `text`.
        text: What the file holds, or of a package all its files: JSON, path → text, where a path
            begins with the name that imports it; a file that is no UTF-8 is {"base64": …}. None in
            rows of databases in which a package was known by the version that it states.
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

    @property
    def files(self) -> dict[str, bytes]:
        """Path → content of the files of a package; empty for a file of its own."""
        if self.text is None or self.name.endswith(".py"):
            return {}
        return {
            path: held.encode() if isinstance(held, str) else base64.b64decode(held["base64"])
            for path, held in json.loads(self.text).items()
        }


def of_text(name: str, text: str, about: Mapping[str, Any] | None = None) -> Code:
    """Return the code in a text, known by its hash."""
    return Code(name, hashlib.sha256(text.encode()).hexdigest(), text, about or {})


def of_files(name: str, files: Mapping[str, bytes], about: Mapping[str, Any]) -> Code:
    """Return the code of a package, known by the paths and contents of its files."""
    held = {path: _written(content) for path, content in files.items()}
    return of_text(name, json.dumps(held, sort_keys=True, ensure_ascii=False), about)


def _written(content: bytes) -> str | dict[str, str]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def identity(labels: Iterable[str]) -> list[str]:
    """Return what of the labels enters a run's key: code is known by its hash alone."""
    parts = (label.rpartition("@") for label in labels)
    return sorted(
        version if _is_hash(version) else f"{name}@{version}" for name, _, version in parts
    )


def short(version: str) -> str:
    """Return a version for readers: the first digits of a hash, else the version itself."""
    return version[:SHORT] if _is_hash(version) else version


def place(error: BaseException, labels: Collection[str]) -> str:
    """Return the line of this code in which an error was raised last; "" for none."""
    trace = traceback.extract_tb(error.__traceback__)
    places = [(shown(one.filename, labels), one.lineno) for one in trace]
    return next((f"{file}, line {line}" for file, line in reversed(places) if file), "")


def shown(file: str, labels: Collection[str]) -> str:
    """Return what readers call a file that is run: its name, or its path in a package.

    Returns:
        "" where the file is of other code.
    """
    for name, _, version in (label.rpartition("@") for label in labels):
        if file == name:
            return name
        _, found, path = file.partition(f"/{version}/")  # of the copy that is run
        if found:
            return path
    return ""


def _is_hash(version: str) -> bool:
    return len(version) == 64 and set(version) <= set("0123456789abcdef")
