"""Corpora and tokenizers: from the name of a text to its training and held-out tokens. No torch."""

from ablate.text.tokens import Tokens, check, load, n_train, spelt

__all__ = ["Tokens", "check", "load", "n_train", "spelt"]
