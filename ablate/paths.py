"""Paths as users write them."""

from __future__ import annotations

from pathlib import Path


def expanded(path: str) -> Path:
    """Return a path with ~ and ~USER as a shell expands them; an unknown user's stays as it is."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # there is no such user
        return Path(path)
