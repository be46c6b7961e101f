"""The model of one run, built from its kept weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ablate import __version__, outside
from ablate.code import of_text
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.model.transformer import model_of
from ablate.train.weights import About
from ablate.trained.tokens import TextTokenizer


class Model(nn.Module):
    """tokens [B, T] → logits [B, T, V] of one run, as its evaluation computes them.

    Attributes:
        config: The run's configuration.
        about: The run, whether these are its final or best weights, and their held-out loss.
        tokenizer: Encodes and decodes text.
        transformer: The model as a pack of one: [1, B, T] → [1, B, T, V].

    Args:
        kept: The weights, by the names of the parameters and buffers of one run.
        about: The metadata of the file. Code of the user's own in it is run.
        mask: The token of a folder of `transformers` for a hidden one.

    Raises:
        AblateError: The code is not that of the run, or the weights do not fit the model.
    """

    def __init__(self, kept: dict[str, Tensor], about: About, mask: int | None = None):
        super().__init__()
        self._use(about)
        if about.run.key != about.key:
            raise AblateError(
                f"the weights of run {about.key[:12]} are by ablate {about.version}; this version"
                f" ({__version__}) computes such a model differently, so install ablate"
                f" {about.version} to load them, or train the run again"
            )
        self.about = about
        self.config: RunConfig = about.run.config
        self.tokenizer = TextTokenizer(self.config, about.tokenizer, mask)
        self.transformer = model_of(self.config)
        self._documents: Any = self.config.part("document_mask").load()(self.tokenizer)
        try:
            self.transformer.load_state_dict({name: one[None] for name, one in kept.items()})
        except RuntimeError as error:
            raise AblateError(
                f"the weights of run {about.key[:12]} (written by ablate {about.version}) do not"
                f" fit the model that this version of ablate builds: {' '.join(str(error).split())}"
            ) from None
        self.eval()

    def check_reads_text(self, what: str) -> None:
        """Refuse a model of images.

        Args:
            what: What is to be done with a model of text, such as "sample".

        Raises:
            AblateError: The model reads images.
        """
        objective = self.config.part("objective")
        if objective.images:
            raise AblateError(
                f"a model with objective = {objective.name!r} reads images: {what} is for models of"
                " text"
            )

    def forward(self, tokens: Tensor, source: Tensor | None = None) -> Tensor:
        """Return the logits of the next token at each position, or of hidden tokens.

        Args:
            tokens: [B, T] int64; T is at most n_ctx if positions beyond n_ctx are not defined.
            source: Tokens that the encoder reads, [B, S] int64; None for a model without encoder.

        Returns:
            [B, T, V] in the precision of the weights.

        Raises:
            AblateError: A source is missing, the model has no encoder to read it, or the tokens are
                more than its positions.
        """
        self._use_levels()
        encodes = self.config.part("architecture").encodes
        if encodes and source is None:
            raise AblateError(
                f"a model with architecture = {self.config.architecture!r} reads a source: call"
                " model(tokens, source)"
            )
        if source is not None and not encodes:
            raise AblateError(
                f"a model with architecture = {self.config.architecture!r} has no encoder for a"
                " source: put it before the tokens"
            )
        given = tokens[None]
        beside = None if source is None else source[None]
        return self.logits(given, self._documents.starts(given), beside)

    def logits(self, tokens: Tensor, *read: Tensor | None) -> Tensor:
        """Return the logits [B, T, V] of what an objective gives a model to read.

        Args:
            tokens: [1, B, T] int64.
            *read: What follows them in `ablate.data.objectives.Example.read`.
        """
        with self.computing():
            logits: Tensor = self.transformer(tokens, *read)
        return logits[0]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Compute as the run's evaluations do: in its precision, with its levels."""
        self._use_levels()
        casts, device = self.config.part("precision").casts, next(self.parameters()).device
        with torch.autocast(device.type, torch.bfloat16, enabled=casts):
            yield

    def _use_levels(self) -> None:
        """Put this model's levels from outside into the catalogue, instead of those of another."""
        if self.about.use:
            outside.use(self.about.use)

    @staticmethod
    def _use(about: About) -> None:
        for code in about.use:
            if code.text is not None and of_text(code.name, code.text).version != code.version:
                raise AblateError(
                    f"the code of {code.name} in the file of weights of run {about.key[:12]} is not"
                    " the code that trained the run"
                )
        if about.use:
            outside.use(about.use)
