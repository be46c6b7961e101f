"""Models of runs whose weights are kept: load them, generate text, save them for `transformers`."""

import importlib
from typing import Any

from ablate.trained.model import Model

__all__ = ["Model"]


def __getattr__(name: str) -> Any:
    if name in ("hugging_face", "prune", "sample"):  # imported on first use: SciPy takes time
        return importlib.import_module(f"ablate.trained.{name}")
    raise AttributeError(f"module 'ablate.trained' has no attribute {name!r}")
