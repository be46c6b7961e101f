"""Tokenizers of a user's own; those of ablate are values, such as "bpe:8192", and no levels."""

from __future__ import annotations

from ablate.components.base import Component


class Tokenizer(Component):
    """Base of the levels of `tokenizer`, which are given their own fields alone."""

    factors = ("tokenizer",)
    adapter = "ablate.text.tokenizers:Own"
    plain_class = ("builtins", "object")
    plain_hooks = ("encode",)
    makes = True
    configured = False
