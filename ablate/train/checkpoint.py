"""Checkpoints: written next to the old one, synced, then renamed, so that a partial one is
never read.
"""

from __future__ import annotations

import pickle
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ablate.paths import atomic, temporary

# raised for a file that a crash cut short, or whose blocks were lost
NOT_WHOLE = (
    OSError,
    RuntimeError,
    EOFError,
    ValueError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
    zlib.error,
)

# tensors, numbers, strings and lists of them: what `torch.load(weights_only=True)` reads
State = dict[str, Any]


def previous(path: Path) -> Path:
    """Return where the checkpoint before the one at `path` is kept."""
    return path.with_name(path.name + ".previous")


def save(path: Path, state: State) -> None:
    """Write `state` to `path`; an existing checkpoint becomes `previous(path)`.

    At every moment one of the two is whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path, previous(path)) as part, part.open("wb") as file:
        torch.save(state, file)


def load(path: Path, fits: Callable[[State], bool] = lambda state: True) -> State | None:
    """Return the newest checkpoint that is whole and `fits`, on the CPU, or None."""
    for candidate in (path, previous(path)):
        if candidate.exists():
            with candidate.open("rb") as file, suppress(*NOT_WHOLE):
                # torch does not notice damaged numbers
                if zipfile.ZipFile(file).testzip() is None:
                    file.seek(0)
                    state = torch.load(file, map_location="cpu", weights_only=True)
                    if fits(state):
                        return state
    return None


def remove(path: Path) -> None:
    """Remove the checkpoint at `path`, the one before it and a half-written one."""
    for name in (path, previous(path), temporary(path)):
        name.unlink(missing_ok=True)
