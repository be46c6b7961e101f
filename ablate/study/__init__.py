"""study.toml → `Study`: one question, what varies, and what every run starts from."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ablate.errors import AblateError, nearest
from ablate.study import examples
from ablate.study.model import (
    OWN,
    Crossed,
    Fields,
    Keep,
    Ray,
    Slurm,
    Study,
    Tune,
    TwoStage,
    kind_of,
    resource_fields,
    split_seed,
    tuned,
    tuned_field,
)
from ablate.study.parse import parse
from ablate.study.source import Source

LARGEST_FILE = 1 << 20  # bytes

__all__ = [
    "OWN",
    "Crossed",
    "Fields",
    "Keep",
    "Ray",
    "Slurm",
    "Study",
    "Tune",
    "TwoStage",
    "find",
    "kind_of",
    "load",
    "name",
    "resource_fields",
    "split_seed",
    "tuned",
    "tuned_field",
]


def load(path_or_name: str) -> Study:
    """Return the study in a file, the one in `studies/NAME.toml`, or an example.

    Code that it uses is loaded.

    Raises:
        AblateError: with the file and the line, for the first thing in it that is not valid.
    """
    path = find(path_or_name)
    return parse(_text(path), path)


def name(path: Path) -> str:
    """Return the name of the study in a file, without checking the rest or loading code.

    Raises:
        AblateError: The file has no name of a study.
    """
    found = Source(path, _text(path)).tables().get("name")
    if not isinstance(found, str):
        raise AblateError(f"{path}: a study file has a name")
    return found


def _text(path: Path) -> str:
    try:
        if (size := path.stat().st_size) > LARGEST_FILE:
            raise AblateError(f"{path}: too large for a study file ({size:,} bytes)")
        return path.read_text(encoding="utf-8-sig")  # without an editor's byte order mark
    except UnicodeDecodeError:
        raise AblateError(f"{path}: a study file must be UTF-8 text") from None
    except OSError as error:
        raise AblateError(f"{path}: cannot be read ({error.strerror})") from None


def find(path_or_name: str) -> Path:
    """Return the study file of a path or of a bare name, such as "quickstart".

    A file in studies/ comes before one in this folder, and that before the example of its name.

    Raises:
        AblateError: there is no such file.
    """
    path = Path(path_or_name)
    named = Path("studies") / f"{path_or_name.removesuffix('.toml')}.toml"
    shipped = {file.stem: file for file in examples.studies()}
    beside = Path(named.name)
    for file in (path, named, beside, *filter(None, [shipped.get(path_or_name)])):
        with contextlib.suppress(OSError, ValueError):  # a name that no file can have
            if file.is_file():
                return file
            if file.exists() and file.suffix == ".toml":
                raise AblateError(f"{file}: a study file is a regular file")
    if "/" in path_or_name and path.is_dir():
        raise AblateError(f"{path_or_name}: this is a folder; give a study file, or its name")
    existing = sorted({file.stem for file in examples.here()} | shipped.keys())
    meant = nearest(path.stem, existing)
    raise AblateError(
        f"no study file {path_or_name!r:.200}, and none called {named!s:.200}"
        + (f"; did you mean {meant!r}?" if meant else ".")
        + (f" Studies: {', '.join(existing)}." if existing else "")
        + " `ablate new NAME --factor …` writes one."
    )
