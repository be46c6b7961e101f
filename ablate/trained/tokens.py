"""The tokenizer of a run, with `[MASK]`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from torch import Tensor

from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.text import tokenizers

MASK = "[MASK]"  # how a text writes the token of a masked model for a hidden token


class TextTokenizer:
    """Encodes text as the tokens of a run, and decodes tokens.

    Attributes:
        mask: The token that replaces a hidden token, written as `MASK` in a text; None if the model
            is not masked.
        separator: Tokens that stand after each document.
        inner: The tokenizer without `MASK`; None if the corpus holds only tokens.

    Args:
        config: The run.
        content: Content of its tokenizer's file, from the file of weights.
        mask: The tokenizer's own token for a hidden one. Without it, the last token of a masked
            model's vocabulary is added.
    """

    def __init__(self, config: RunConfig, content: bytes, mask: int | None = None):
        self.name = config.tokenizer
        masks, last = config.part("objective").masks, config.n_vocab - 1
        self.mask = (last if mask is None else mask) if masks else None
        n_vocab = last if self.mask == last else config.n_vocab
        has_text = content or self.name == "byte" or tokenizers.is_own(self.name)
        located = tokenizers.located(self.name, config.model_extra or {})
        self.inner = tokenizers.of_content(located, content, n_vocab) if has_text else None
        self.separator = tuple(self.inner.separator) if self.inner else ()

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; for a masked model, `MASK` in the text is one token.

        Raises:
            AblateError: The corpus holds only tokens, or the tokenizer cannot encode the text.
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
                raise AblateError(f"tokenizer {self.name!r} reads only UTF-8 text") from None
        return tokens

    def decode(self, tokens: Iterable[int] | Tensor) -> str:
        """Return the text of tokens; bytes that are not valid UTF-8 become U+FFFD."""
        inner = self._of_text()
        numbers = tokens.tolist() if isinstance(tokens, Tensor) else list(tokens)
        return "".join(
            MASK * len(run) if masked else inner.decode(run)
            for masked, group in groupby(numbers, lambda token: token == self.mask)
            for run in [list(group)]
        )

    def _of_text(self) -> tokenizers.Tokenizer:
        if self.inner is None:
            raise AblateError(
                "this model has no tokenizer: its corpus holds only tokens, or its folder no"
                " tokenizer.json"
            )
        return self.inner
