"""The tokenizer of a run, for text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from torch import Tensor

from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.text import tokenizers

MASK = "[MASK]"  # how a text writes the mark of a masked model


class TextTokenizer:
    """From text to the tokens of a run, and back.

    Attributes:
        mask: The token that stands for a hidden one, which a text writes as `MASK`; None where the
            model is not masked.
        separator: Tokens that stand after each document.
        inner: The tokenizer without `MASK`; None for a corpus that holds tokens alone.

    Args:
        config: The run.
        content: Content of its tokenizer's file, as the weights have it.
    """

    def __init__(self, config: RunConfig, content: bytes):
        self.name = config.tokenizer
        self.mask = config.n_vocab - 1 if config.part("objective").masks else None
        n_vocab = config.n_vocab - (self.mask is not None)
        has_text = content or self.name == "byte" or tokenizers.is_own(self.name)
        self.inner = tokenizers.of_content(self.name, content, n_vocab) if has_text else None
        self.separator = tuple(self.inner.separator) if self.inner else ()

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; in that of a masked model, `MASK` is one token.

        Raises:
            AblateError: The run's text is tokens alone, or the tokenizer cannot encode this one.
        """
        parts = [text] if self.mask is None else text.split(MASK)
        tokens: list[int] = []
        for number, part in enumerate(parts):
            if number:
                assert self.mask is not None
                tokens.append(self.mask)
            try:
                # bytes of a command line that are no UTF-8 are surrogates
                piece = part.encode("utf-8", "surrogateescape")
                tokens += self._of_text().encode([piece])[0] if piece else []
            except UnicodeError:
                raise AblateError(f"tokenizer {self.name!r} reads text in UTF-8 alone") from None
        return tokens

    def decode(self, tokens: Iterable[int] | Tensor) -> str:
        """Return the text of tokens; bytes that are no UTF-8 become U+FFFD."""
        inner = self._of_text()
        numbers = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        return "".join(
            MASK * len(run) if masked else inner.decode(run)
            for masked, group in groupby(numbers, lambda token: token == self.mask)
            for run in [list(group)]
        )

    def _of_text(self) -> tokenizers.Tokenizer:
        if self.inner is None:
            raise AblateError("the corpus of this run holds tokens, and no tokenizer gives text")
        return self.inner
