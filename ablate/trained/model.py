"""The model of one run, built from its kept weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ablate import outside, store
from ablate.code import of_text
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.model.transformer import model_of
from ablate.store import details
from ablate.train import weights
from ablate.train.weights import About
from ablate.trained.tokens import TextTokenizer


class Model(nn.Module):
    """tokens [B, T] → logits [B, T, V] of one run, as its evaluation computes them.

    Attributes:
        config: The run's configuration.
        about: The run, which of its weights these are, and their held-out loss.
        tokenizer: Encodes and decodes text.
        transformer: The model as a pack of one: [1, B, T] → [1, B, T, V].

    Args:
        kept: The weights, by the names of the parameters and buffers of one run.
        about: What the file says of them. Code of the user's own that it holds is run.

    Raises:
        AblateError: The code is not what made the run, or the weights are of another model.
    """

    def __init__(self, kept: dict[str, Tensor], about: About):
        super().__init__()
        self._use(about)
        self.about = about
        self.config: RunConfig = about.run.config
        self.tokenizer = TextTokenizer(self.config, about.tokenizer)
        self.transformer = model_of(self.config)
        self._documents: Any = self.config.part("document_mask").load()(self.tokenizer)
        try:
            self.transformer.load_state_dict({name: one[None] for name, one in kept.items()})
        except RuntimeError as error:
            raise AblateError(
                f"the weights of run {about.key[:12]} are not those of its model as this version of"
                f" ablate ({about.version} wrote them) builds it: {' '.join(str(error).split())}"
            ) from None
        self.eval()

    def forward(self, tokens: Tensor, source: Tensor | None = None) -> Tensor:
        """Return the logits of tokens: of the next one, or of the hidden ones.

        Args:
            tokens: [B, T] int64; T is at most n_ctx where positions beyond it are not defined.
            source: What the encoder reads, [B, S] int64; None for a model without one.

        Returns:
            [B, T, V] in the precision of the weights.
        """
        if self.about.use:  # the levels of the model that was loaded last are in the catalogue
            outside.use(self.about.use)
        given = tokens[None]
        starts = self._documents.starts(given)
        casts = self.config.part("precision").casts
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=casts):
            logits: Tensor = self.transformer(
                given, starts, None if source is None else source[None]
            )
        return logits[0]

    @staticmethod
    def _use(about: About) -> None:
        for code in about.use:
            if code.text is not None and of_text(code.name, code.text).version != code.version:
                raise AblateError(
                    f"the text of {code.name} in the weights of run {about.key[:12]} is not the one"
                    " that made it"
                )
        if about.use:
            outside.use(about.use)


def load_model(
    run: int | str | Path, db: store.Database | Path | str | None = None, *, device: str = "cpu"
) -> Model:
    """Return the model of a run whose weights are kept, in evaluation mode, with its tokenizer.

    Where the run has levels of the user's own, the text of their file, which is kept with the
    weights, is run.

    Args:
        run: Number of the run, the start of its key, or a file of weights, which needs no database.
        db: A database, its path or URL; None for $ABLATE_DB, else results/ablate.db.
        device: Torch's name of the device.

    Returns:
        A module from tokens [B, T] to logits [B, T, V], with the attributes `tokenizer` (`encode`,
        `decode`), `config` and `about`.

    Raises:
        AblateError: There is no such run, it has no weights, or they cannot be read.
    """
    if isinstance(run, Path) or str(run).endswith(".safetensors"):
        path, key = Path(str(run)), ""
    elif isinstance(db, store.Database):
        path, key = details.weights(db, str(run))
    else:
        with store.open(None if db is None else str(db)) as opened:
            path, key = details.weights(opened, str(run))
    kept, about = weights.read(path)
    if key not in ("", about.key):
        raise AblateError(f"{path} holds the weights of another run, {about.key[:12]}")
    return Model(kept, about).to(device)
