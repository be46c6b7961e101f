"""Where the example studies and the reference database are: in the repository, or installed."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parents[1]


def studies() -> list[Path]:
    """Return the files of the example studies, sorted by name."""
    installed = _PACKAGE / "examples"
    folder = installed if installed.is_dir() else _PACKAGE.parent / "studies"
    return sorted(folder.glob("*.toml"))


def here() -> list[Path]:
    """Return the study files in studies/ of the working directory, sorted by name; no pipes."""
    return sorted(file for file in Path("studies").glob("*.toml") if file.is_file())


def reference() -> Path | None:
    """Return the database of the reference studies; None if it was removed."""
    places = (_PACKAGE / "examples" / "results", _PACKAGE.parent / "results")
    return next((file for place in places if (file := place / "reference.db").is_file()), None)
