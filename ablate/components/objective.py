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
    """

    factors = ("objective",)
    masks: ClassVar[bool] = False
    special_tokens: ClassVar[int] = 0
    pairs: ClassVar[bool] = False


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
