"""Texts whose documents are pairs: `source<TAB>target`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ablate.errors import AblateError
from ablate.text.tokens import Tokens

MARK = b"\t"  # between source and target


class Spelled(Protocol):
    """What has the spelling of tokens: a tokenizer, or the tokens of a text."""

    @property
    def spelling(self) -> Sequence[bytes] | None: ...

    @property
    def separator(self) -> Sequence[int]: ...


def marks(tokens: Spelled) -> tuple[int, int]:
    """Return the tokens between source and target, and after a document.

    Raises:
        AblateError: The tokenizer has no token of its own for one of them.
    """
    spelling = tokens.spelling or ()
    with_mark = [token for token, text in enumerate(spelling) if MARK in text]
    if len(with_mark) != 1 or spelling[with_mark[0]] != MARK or len(tokens.separator) != 1:
        raise AblateError(
            "objective = 'pairs' needs a tokenizer with one token for a tab and one for the end of"
            " a document; use tokenizer = 'byte'"
        )
    return with_mark[0], tokens.separator[0]


def spelled(tokens: Tokens, stream: np.ndarray) -> str:
    """Return the text of some tokens, without what is not UTF-8."""
    spelling = tokens.spelling or ()
    return b"".join(spelling[token] for token in stream).decode(errors="replace")


def target_counts(tokens: Tokens) -> np.ndarray:
    """Return how often each token stands in a training target or ends it, [V] int64."""
    stream, bounds = tokens.train[: tokens.train_bounds[-1]], tokens.train_bounds
    mark, _ = marks(tokens)
    behind = np.flatnonzero(stream == mark).repeat(np.diff(bounds))
    targets = stream[np.arange(len(stream)) > behind]
    return np.bincount(targets, minlength=tokens.n_vocab)


def check(tokens: Tokens, corpus: str, n_ctx: int) -> None:
    """Check that every document is a pair that fits into a row.

    Raises:
        AblateError: A document has no tab, or more tokens than n_ctx + 1.
    """
    mark, _ = marks(tokens)
    for stream, bounds in (
        (tokens.train, tokens.train_bounds),
        (tokens.held_out, tokens.held_out_bounds),
    ):
        n_marks = np.add.reduceat(stream == mark, bounds[:-1], dtype=np.int64)
        if (n_marks != 1).any():
            number = int(np.flatnonzero(n_marks != 1)[0])
            text = spelled(tokens, stream[bounds[number] : bounds[number + 1]][:60])
            raise AblateError(
                f"corpus {corpus!r}: {n_marks[number]} tabs in {text!r}:"
                " objective = 'pairs' needs documents of source, one tab and target; name two"
                " columns of a table by [data] pairs"
            )
        longest = int(np.diff(bounds).max())
        if longest > n_ctx + 1:
            raise AblateError(
                f"corpus {corpus!r}: the longest pair has {longest} tokens with mark and end, more"
                f" than n_ctx + 1 = {n_ctx + 1}; set n_ctx = {longest - 1} or more"
            )
