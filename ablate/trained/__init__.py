"""Models of runs whose weights are kept: load them, generate text, save them for `transformers`."""

from ablate.trained.model import Model

__all__ = ["Model"]
