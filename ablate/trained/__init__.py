"""Models of runs whose weights are kept: load them, generate text, save them for `transformers`."""

from ablate.trained.model import Model, load_model
from ablate.trained.tokens import MASK, TextTokenizer

__all__ = ["MASK", "Model", "TextTokenizer", "load_model"]
