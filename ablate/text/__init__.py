"""Corpora and tokenizers: from the name of a text to its training and held-out tokens. No torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ablate.text.tokens import (
        Tokens,
        byte_coverage,
        check,
        content,
        counted,
        encoder,
        lengths,
        load,
        n_held_out,
        n_train,
        of,
        share_read,
        shipped,
        text_kept,
    )

__all__ = [
    "Tokens",
    "byte_coverage",
    "check",
    "content",
    "counted",
    "encoder",
    "lengths",
    "load",
    "n_held_out",
    "n_train",
    "of",
    "share_read",
    "shipped",
    "text_kept",
]


def __getattr__(name: str) -> Any:
    """Import what a text is made of on first use: a study file is read without numpy."""
    if name not in __all__:
        raise AttributeError(name)
    from ablate.text import tokens

    return getattr(tokens, name)
