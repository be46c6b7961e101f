"""ablate: find out whether a part of a transformer matters, and by how much.

In Python: `ablate.load(study)`, `ablate.curves(study)` and `ablate.effects(study)` give tidy DataFrames.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ablate.analysis import effects as effects
    from ablate.results import curves as curves
    from ablate.results import load as load

__version__ = "0.1.0"

# where each is, imported on first use: pandas takes half a second
_LAZY = {"load": "ablate.results", "curves": "ablate.results", "effects": "ablate.analysis"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'ablate' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
