"""Embeddings and head."""

from __future__ import annotations

from typing import ClassVar

from ablate.components.base import Component, Config, Counts, linear
from ablate.components.block import BERT, VASWANI
from ablate.components.catalogue import factor, level
from ablate.components.objective import VIT, patch_width
from ablate.errors import AblateError


class TokenEmbedding(Component):
    """Base of the levels of `embedding`. `width`: d_model.

    Attributes:
        matrix: Whether it is a matrix, a row a token, which the output head may share.
    """

    factors = ("embedding",)
    adapter = "ablate.model.plain:FromTokens"
    matrix: ClassVar[bool] = False

    def check(self, config: Config) -> None:
        if config.part("tie_embeddings").tied and not self.matrix:
            raise AblateError(
                f"embedding = {self.name!r} has no matrix for the head to share; use"
                " tie_embeddings = 'untied'"
            )


@level("embedding", "lookup", source=VASWANI)
class Lookup(TokenEmbedding):
    """One learned vector a token."""

    module = "ablate.model.layers:TokenEmbedding"
    matrix = True

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts(params=config.n_vocab * width)


@level("embedding", "patches", source=VIT)
class Patches(TokenEmbedding):
    """A linear map of the pixels of a patch."""

    module = "ablate.model.vision:PatchEmbedding"

    def check(self, config: Config) -> None:
        super().check(config)
        if not config.part("objective").images:
            raise AblateError(
                "embedding = 'patches' reads images; use objective = 'classify' or 'mae'"
            )

    def sizes(self, config: Config, width: int) -> Counts:
        """See `Component.sizes`: the pixels are kept for the backward pass."""
        numbers = patch_width(config)
        kept = Counts(streams=numbers)
        return linear(numbers, width, config.part("bias").present) + kept


class ClassToken(Component):
    """Base of the levels of `class_token`. `width`: d_model.

    Attributes:
        tokens: Tokens before the patches.
    """

    factors = ("class_token",)
    tokens: ClassVar[int] = 0

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts(params=self.tokens * width)


@level("class_token", "none", source="He et al. 2021, arXiv:2111.06377, §A.1")
class NoClassToken(ClassToken):
    """No token; the features of an image are the mean of those of its patches."""


@level("class_token", "learned", source=f"{VIT}; {BERT}")
class LearnedClassToken(ClassToken):
    """A learned vector, whose features are those of the image."""

    module = "ablate.model.vision:ClassToken"
    tokens = 1

    def check(self, config: Config) -> None:
        """See `Component.check`: the token stands before all patches."""
        if config.part("attention").causal:
            raise AblateError(
                f"class_token = {self.name!r} needs to see the patches after it, but this model has"
                f" attention = {config.attention!r}; use class_token = 'none' or attention = 'full'"
            )


class Tie(Component):
    """Base of the levels of `tie_embeddings`.

    Attributes:
        tied: Whether the output head is the embedding matrix.
    """

    factors = ("tie_embeddings",)
    tied: ClassVar[bool] = False


@level("tie_embeddings", "untied", source=VASWANI)
class Untied(Tie):
    """A matrix of its own."""

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts(params=config.n_vocab * width)


@level("tie_embeddings", "tied", source="Press & Wolf 2017, arXiv:1608.05859")
class Tied(Tie):
    """The embedding matrix, transposed."""

    tied = True


class HeadTransform(Component):
    """Base of the levels of `mlm_head_transform`. `width`: d_model.

    Attributes:
        logit_bias: Whether logits have a bias where the model has biases.
    """

    factors = ("mlm_head_transform",)
    logit_bias: ClassVar[bool] = False

    def flops(self, width: int) -> int:
        """Return FLOPs a token, which follow from the width alone."""
        return 0


@level("mlm_head_transform", "none", source=f"{VASWANI}, §3.4")
class NoTransform(HeadTransform):
    """Nothing."""

    module = "torch.nn:Identity"

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts()


@level("mlm_head_transform", "dense", source=BERT)
class Dense(HeadTransform):
    """A square matrix, the activation and a LayerNorm; with bias = all, also a bias on the
    logits.
    """

    module = "ablate.model.transformer:MlmTransform"
    logit_bias = True

    def flops(self, width: int) -> int:
        return 2 * width * width

    def sizes(self, config: Config, width: int) -> Counts | None:
        bias = config.part("bias").present
        norm = factor("norm_kind")["layernorm"].sizes(config, width)
        own = linear(width, width, bias) + Counts(params=bias * config.n_vocab, streams=5 * width)
        return own + Counts(params=norm.params)
