"""What is predicted, and what of a text is masked together."""

from __future__ import annotations

from typing import ClassVar

from ablate.components.base import Component, Config
from ablate.components.catalogue import level
from ablate.components.norm import BERT
from ablate.errors import AblateError


class Objective(Component):
    """Base of the levels of `objective`.

    Attributes:
        masks: Whether tokens are hidden from the input and predicted from both sides.
        special_tokens: Tokens of the vocabulary in addition to the tokenizer's, such as [MASK].
        pairs: Whether the documents of the text are pairs of source and target.
        corrupts: Whether an encoder reads corrupted text.
    """

    factors = ("objective",)
    masks: ClassVar[bool] = False
    special_tokens: ClassVar[int] = 0
    pairs: ClassVar[bool] = False
    corrupts: ClassVar[bool] = False

    @property
    def has_source(self) -> bool:
        """Whether what is predicted has a source: the other part of a pair, or corrupted text."""
        return self.pairs or self.corrupts


@level("objective", "causal", source="Radford et al. 2018 (GPT)")
class Causal(Objective):
    """Each next token."""

    module = "ablate.data.objectives:Causal"
    defaults: ClassVar = {"attention": "causal"}


@level("objective", "masked", source=BERT)
class Masked(Objective):
    """Tokens hidden from the input."""

    module = "ablate.data.objectives:Masked"
    defaults: ClassVar = {"attention": "full"}
    masks = True
    special_tokens = 1


@level("objective", "pairs", source="Sutskever et al. 2014, arXiv:1409.3215")
class Pairs(Objective):
    """The target of a pair, given its source: documents `source<TAB>target`."""

    module = "ablate.data.pairs:Pairs"
    defaults: ClassVar = {"attention": "causal"}
    pairs = True

    def check(self, config: Config) -> None:
        if config.part("document_mask").within:
            raise AblateError(
                "objective = 'pairs' reads one pair a row; use document_mask = 'none'"
            )


T5 = "T5, Raffel et al. 2020, arXiv:1910.10683"


class Corrupts(Objective):
    """Base of the objectives of an encoder-decoder on running text."""

    defaults: ClassVar = {"attention": "causal"}
    corrupts = True

    def check(self, config: Config) -> None:
        if not config.part("architecture").encodes:
            raise AblateError(
                f"objective = {self.name!r} needs an encoder; use architecture = 'encoder-decoder'"
            )
        if config.part("document_mask").within:
            raise AblateError(
                f"objective = {self.name!r} moves tokens of a window; use document_mask = 'none'"
            )
        if not config.mean_span >= 1:
            raise AblateError(f"mean_span = {config.mean_span:g}: at least 1")


@level("objective", "span", source=T5)
class Span(Corrupts):
    """Spans of text, each replaced by a sentinel; the decoder writes sentinels and spans."""

    module = "ablate.data.corrupt:Span"
    special_tokens = 101  # sentinels, and what begins a target

    def check(self, config: Config) -> None:
        super().check(config)
        self.check_spans(config, config.mask_ratio, config.mean_span, "mask_ratio", "mean_span")

    def check_spans(
        self, config: Config, ratio: float, mean: float, of_ratio: str, of_mean: str
    ) -> None:
        """Check that sentinels and rows suffice for so many hidden tokens.

        Args:
            config: The run.
            ratio: Share of tokens that are hidden.
            mean: Mean length of a span.
            of_ratio: What sets the share, for an error.
            of_mean: What sets the mean.

        Raises:
            AblateError: They do not.
        """
        hidden = round(ratio * config.n_ctx)
        spans = max(1, round(hidden / mean))
        if spans >= self.special_tokens - 1:
            raise AblateError(
                f"objective = 'span' has {self.special_tokens - 2} sentinels, and {of_ratio} ="
                f" {ratio:g} of n_ctx = {config.n_ctx} with {of_mean} = {mean:g} makes {spans}"
                f" spans; raise {of_mean}, or lower {of_ratio}"
            )
        if hidden + spans + 1 > config.n_ctx:
            raise AblateError(
                f"objective = 'span': {hidden} hidden tokens and {spans} sentinels are more than a"
                f" row of n_ctx = {config.n_ctx}; lower {of_ratio} or raise {of_mean}"
            )


@level("objective", "denoise", source="BART, Lewis et al. 2020, arXiv:1910.13461")
class Denoise(Corrupts):
    """A window, from what the noise that `corruption` names leaves of it."""

    module = "ablate.data.corrupt:Denoise"
    special_tokens = 2  # the mask, and what begins a target


class Corruption(Component):
    """Base of the levels of `corruption`.

    Attributes:
        hides: Tokens are masked.
        deletes: Tokens are deleted.
        infills: Spans are replaced by one mask each.
        permutes: Sentences are put in a random order.
        rotates: The window begins at a random token.
        continues: The encoder reads the first part of the window, the decoder writes the rest.
        reads: The encoder reads any text.
    """

    factors = ("corruption",)
    hides: ClassVar[bool] = False
    deletes: ClassVar[bool] = False
    infills: ClassVar[bool] = False
    permutes: ClassVar[bool] = False
    rotates: ClassVar[bool] = False
    continues: ClassVar[bool] = False
    reads: ClassVar[bool] = True


BART = "BART, Lewis et al. 2020, arXiv:1910.13461"


@level("corruption", "infill", source=BART)
class Infill(Corruption):
    """Spans of Poisson length with mean mean_span become one mask each; length 0 inserts one."""

    infills = True


@level("corruption", "mask", source=BART)
class MaskTokens(Corruption):
    """Tokens become masks."""

    hides = True


@level("corruption", "delete", source=BART)
class DeleteTokens(Corruption):
    """Tokens are deleted; the decoder has to find where."""

    deletes = True


@level("corruption", "permute", source=BART)
class PermuteSentences(Corruption):
    """Sentences are put in a random order."""

    permutes = True


@level("corruption", "rotate", source=BART)
class Rotate(Corruption):
    """The window begins at a random token, and its beginning follows its end."""

    rotates = True


@level("corruption", "infill-permute", source=BART)
class InfillPermute(Corruption):
    """Sentences in a random order, then infilling: the noise of the published BART."""

    infills = permutes = True


@level("corruption", "prefix", source=f"{T5}, table 4")
class Prefix(Corruption):
    """No noise: the encoder reads a random first part, and the decoder writes the rest."""

    continues = True


@level("corruption", "causal", source=f"{BART}, table 1 (language model)")
class Alone(Corruption):
    """Nothing is read: the decoder is a language model."""

    reads = False


class MaskKind(Component):
    """Base of the levels of `mask_kind`.

    Attributes:
        needs_words: Whether it needs to know where words begin.
    """

    factors = ("mask_kind",)
    needs_words: ClassVar[bool] = False


@level("mask_kind", "token", source=BERT)
class TokenMask(MaskKind):
    """Each token on its own."""

    module = "ablate.data.objectives:TokenMask"


@level("mask_kind", "span", source="SpanBERT, Joshi et al. 2020, arXiv:1907.10529")
class SpanMask(MaskKind):
    """Runs of tokens of geometric length, mean 3."""

    module = "ablate.data.objectives:SpanMask"


@level("mask_kind", "whole-word", source="BERT's whole-word masking")
class WordMask(MaskKind):
    """All tokens of a word."""

    module = "ablate.data.objectives:WordMask"
    needs_words = True
