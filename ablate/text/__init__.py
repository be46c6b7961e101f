"""Corpora and tokenizers: from the name of a text to its training and held-out tokens. No torch."""

from ablate.text.tokens import (
    Tokens,
    byte_coverage,
    check,
    content,
    counted,
    encoder,
    load,
    n_train,
    of,
    share_read,
    shipped,
)

__all__ = [
    "Tokens",
    "byte_coverage",
    "check",
    "content",
    "counted",
    "encoder",
    "load",
    "n_train",
    "of",
    "share_read",
    "shipped",
]
