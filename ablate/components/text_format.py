"""How the texts of a task are written for the model: the tokens before, between and after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ablate.components.base import Component, Config, Field
from ablate.components.block import BERT
from ablate.components.catalogue import level
from ablate.components.finetuning import GPT
from ablate.errors import AblateError

FIELDS = (
    Field(
        "special_ids",
        tuple[int, ...],
        (),
        "Number of each special token in the tokenizer, -1 for a token that is new; filled in.",
    ),
)


class TextFormat(Component):
    """Base of the levels of `text_format`.

    Attributes:
        single: What is written for one text: names of special tokens, and "a" for the text.
        pair: What is written for two texts, "a" and "b", or for a text and one of its choices; ()
            if it cannot write two.
        spellings: Special token → how tokenizers write it, where they have it.
        both_orders: Whether the model reads a pair in both orders, and features are added.
    """

    factors = ("text_format",)
    single: ClassVar[tuple[str, ...]] = ("a",)
    pair: ClassVar[tuple[str, ...]] = ()
    spellings: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    both_orders: ClassVar[bool] = False

    @property
    def special(self) -> tuple[str, ...]:
        """The special tokens, in the order of `special_ids`."""
        named = (one for one in (*self.pair, *self.single) if one not in ("a", "b"))
        return tuple(dict.fromkeys(named))

    def check(self, config: Config) -> None:
        """See `Component.check`."""
        if not config.part("method").finetunes:
            return
        if config.n_texts == 2 and not self.pair:
            raise AblateError(
                f"text_format = {self.name!r} writes one text, and the task has pairs of texts, or"
                " choices; use text_format = 'gpt', 'gpt-both-orders' or 'bert'"
            )
        if config.unit == "choice" and self.both_orders:
            raise AblateError(
                f"text_format = {self.name!r}: a text stands before its choices; use text_format ="
                " 'gpt' or 'bert'"
            )
        if config.n_texts == 1 and not self.single:
            raise AblateError(
                f"text_format = {self.name!r} writes pairs, and the task has one text for each"
                " label; use text_format = 'plain', 'gpt' or 'bert'"
            )
        if not self.special:
            return
        if config.unit == "word":
            raise AblateError(
                f"text_format = {self.name!r}: the words of running text are labelled; use"
                " text_format = 'plain'"
            )
        if config.part("architecture").encodes and not config.part("corruption").reads:
            raise AblateError(
                f"text_format = {self.name!r}: with corruption = {config.corruption!r} the decoder"
                " reads a text without its last token; use text_format = 'plain'"
            )
        least = len(self.pair) if config.n_texts == 2 else len(self.single)
        if config.n_ctx < least:
            raise AblateError(
                f"n_ctx = {config.n_ctx}: text_format = {self.name!r} needs {least} tokens or more"
            )

    def new(self, config: Config) -> tuple[str, ...]:
        """Return the special tokens that the tokenizer lacks."""
        ids: Sequence[int] = getattr(config, "special_ids", ())
        return tuple(name for name, one in zip(self.special, ids, strict=True) if one < 0)

    def write(
        self, a: Sequence[int], b: Sequence[int] | None, config: Config, *, swapped: bool = False
    ) -> list[int]:
        """Return the tokens that a model reads: at most n_ctx of them.

        Where there are more, the longer of two texts loses its last tokens first. A token that is
        new has a number from n_vocab on, in the order of `new`.

        Args:
            a: Tokens of the first text.
            b: Tokens of the second text; None for a task without one.
            config: The run.
            swapped: Whether the second text stands first.
        """
        layout = self.single if b is None else self.pair
        texts = {"a": list(a), "b": list(b or ())}
        room = self._room(config, layout)
        texts["b"] = texts["b"][: max(room // 2, room - len(a))]
        texts["a"] = texts["a"][: room - len(texts["b"])]
        if swapped:
            texts["a"], texts["b"] = texts["b"], texts["a"]
        numbers = self.numbers(config)
        return [token for one in layout for token in (texts.get(one) or numbers.get(one, []))]

    def share_cut(self, config: Config, lengths: Sequence[Sequence[int]]) -> float:
        """Return the share of examples that lose tokens.

        Args:
            config: The run.
            lengths: Tokens of the first text of each example, then of each second text or choice.
        """
        firsts, *others = lengths
        room = self._room(config, self.pair if others else self.single)
        longest = [max(column) for column in zip(*others, strict=True)] or [0] * len(firsts)
        cut = sum(first + other > room for first, other in zip(firsts, longest, strict=True))
        return cut / len(firsts)

    def _room(self, config: Config, layout: Sequence[str]) -> int:
        """Return the tokens of texts that a row has room for."""
        return int(config.n_ctx) - sum(one not in ("a", "b") for one in layout)

    def numbers(self, config: Config) -> dict[str, list[int]]:
        """Return the number of each special token, in a list."""
        ids: Sequence[int] = getattr(config, "special_ids", ())
        new = self.new(config)
        return {
            name: [config.n_vocab + new.index(name) if one < 0 else one]
            for name, one in zip(self.special, ids, strict=True)
        }


@level("text_format", "plain")
class Plain(TextFormat):
    """The tokens of a text alone."""


@level("text_format", "gpt", source=GPT)
class Gpt(TextFormat):
    """`start a extract`, and `start a delimiter b extract` for a pair."""

    single: ClassVar[tuple[str, ...]] = ("start", "a", "extract")
    pair = ("start", "a", "delimiter", "b", "extract")
    fields = FIELDS
    defaults: ClassVar = {"pooling": "last"}


@level("text_format", "gpt-both-orders", source=GPT)
class GptBothOrders(Gpt):
    """A pair as in `gpt`, and again with the second text first; features are added."""

    single = ()
    both_orders = True


@level("text_format", "bert", source=BERT)
class Bert(TextFormat):
    """`[CLS] a [SEP]`, and `[CLS] a [SEP] b [SEP]` for a pair; without embeddings of segments."""

    single = ("[CLS]", "a", "[SEP]")
    pair = ("[CLS]", "a", "[SEP]", "b", "[SEP]")
    spellings: ClassVar = {"[CLS]": ("[CLS]", "<s>"), "[SEP]": ("[SEP]", "</s>")}
    fields = FIELDS
    defaults: ClassVar = {"pooling": "cls"}
