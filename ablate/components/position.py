"""How a model knows where a token is."""

from __future__ import annotations

from typing import Any, ClassVar

from ablate.components.base import Component, Config, Counts
from ablate.components.block import VASWANI
from ablate.components.catalogue import level
from ablate.errors import AblateError


class Position(Component):
    """Base of all position encodings. `width`: d_model.

    Attributes:
        in_body: Whether its parameters count to the body of the model, as a bias of scores does,
            and not to the embeddings.
        rotates: Whether it changes queries and keys.
        biases: Whether it adds a bias to the scores.
        learned_bias: Whether that bias is learned.
    """

    factors = ("position",)
    adapter = "ablate.model.plain:Position"
    plain_hooks = ("embed", "rotate", "bias")
    in_body: ClassVar[bool] = False
    rotates: ClassVar[bool] = False
    biases: ClassVar[bool] = False
    learned_bias: ClassVar[bool] = False
    embeds: ClassVar[bool] = False  # of a plain module: whether it encodes embeddings

    @classmethod
    def of_plain(cls, names: set[str]) -> dict[str, Any]:
        """Whether it rotates or biases is whether it has these methods."""
        of_scores = {"rotates": "rotate" in names, "biases": "bias" in names}
        return of_scores | {"in_body": of_scores["biases"], "embeds": "embed" in names}

    def check(self, config: Config) -> None:
        if self.embeds and config.part("document_mask").within:
            raise AblateError(
                f"position = {self.name!r} counts from the start of a sequence, not of a document;"
                " use document_mask = 'none'"
            )

    def longest_context(self, config: Config) -> int | None:
        return config.n_ctx if self.plain is not None and not self.any_length else None

    def farthest(self, config: Config) -> int:
        """Return the distance from which on n_ctx has all biases alike; 0 if it decides none."""
        return 0

    def block_sizes(self, config: Config) -> Counts:
        """Return its sizes in each block, in addition to `sizes`, which counts once per model."""
        return Counts()


class _WithoutWeights(Position):
    """Base of position encodings that learn nothing."""

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts()


def rotary_channels(config: Config) -> int:
    """Return the number of channels of a head, from the first on, that rotary positions turn."""
    return int(config.d_head * config.rope_share)


@level("position", "rotary", source="Su et al. 2021, arXiv:2104.09864")
class Rotary(_WithoutWeights):
    """Queries and keys turned by position·rope_theta^(−2i/d_head)."""

    module = "ablate.model.position:Rotary"
    rotates = True

    def check(self, config: Config) -> None:
        if config.d_head % 2:
            raise AblateError(
                f"position = 'rotary' turns pairs of channels: d_head = {config.d_head} is odd;"
                " make it even"
            )
        turned = rotary_channels(config)
        if turned < 2 or turned % 2:
            raise AblateError(
                f"position = 'rotary' turns pairs of channels: rope_share = {config.rope_share:g}"
                f" of d_head = {config.d_head} is {turned}; make it an even number"
            )


@level("position", "none", source="Haviv et al. 2022, arXiv:2203.16634")
class NoPosition(_WithoutWeights):
    """No encoding; a causal model can still tell."""

    module = "ablate.model.position:NoPosition"


@level("position", "sinusoidal", source=VASWANI)
class Sinusoidal(_WithoutWeights):
    """Fixed sines and cosines added to the embedding."""

    module = "ablate.model.position:Sinusoidal"

    def check(self, config: Config) -> None:
        if config.d_model % 2:
            raise AblateError(
                f"position = 'sinusoidal' fills pairs of channels: d_model = {config.d_model} is"
                " odd; make it even"
            )


@level("position", "learned", source="Radford et al. 2018 (GPT)")
class Learned(Position):
    """One learned vector a position; not defined beyond n_ctx."""

    module = "ablate.model.position:Learned"

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts(params=config.n_ctx * width)

    def longest_context(self, config: Config) -> int | None:
        n_ctx: int = config.n_ctx
        return n_ctx


@level("position", "alibi", source="Press et al. 2022, arXiv:2108.12409")
class Alibi(_WithoutWeights):
    """Scores lowered by slope·distance, symmetric under full attention."""

    module = "ablate.model.position:Alibi"
    biases = True


def t5_buckets(config: Config) -> tuple[int, int]:
    """Return the number of buckets and the maximum distance.

    T5 has 32 and 128 at its context of 512. Longer contexts use a quarter of the context as the
    distance; shorter ones use at most the context, with fewer buckets if some would be empty. Full
    attention divides them between two directions.
    """
    directions = 1 if config.part("attention").causal else 2
    distance = min(config.n_ctx, max(128, config.n_ctx // 4))
    each = max(2, min(32 // directions, distance // 2 // 2 * 2))
    return directions * each, distance


@level("position", "t5", source="Raffel et al. 2020, arXiv:1910.10683")
class T5Bias(Position):
    """A learned bias a head and distance bucket, one table for all blocks: 32 buckets to distance
    128 or n_ctx/4, within n_ctx; in two directions under full attention.
    """

    module = "ablate.model.position:T5Bias"
    in_body = biases = learned_bias = True

    def farthest(self, config: Config) -> int:
        """See `Position.farthest`."""
        return t5_buckets(config)[1]

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts(params=t5_buckets(config)[0] * config.n_head)

    def block_sizes(self, config: Config) -> Counts:
        """The gradient of a learned bias needs the softmax's result."""
        return Counts(streams=config.n_head * config.n_ctx)
