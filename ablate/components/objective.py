"""What is predicted of text or images, and what of a text is masked together."""

from __future__ import annotations

import math
from typing import ClassVar

from ablate.components.base import Component, Config, Counts, Field
from ablate.components.block import BERT
from ablate.components.catalogue import level
from ablate.errors import AblateError


class Objective(Component):
    """Base of the levels of `objective`.

    Attributes:
        masks: Whether tokens are hidden from the input and predicted from both sides.
        special_tokens: Tokens of the vocabulary in addition to the tokenizer's, such as [MASK].
        pairs: Whether the documents of the text are pairs of source and target.
        corrupts: Whether an encoder reads corrupted text.
        images: Whether it reads images.
        regresses: Whether numbers are predicted, and not one of n_vocab classes.
        shapes: Fields that decide the shape of a step under this objective, though they are only
            loaded into the step of others.
    """

    factors = ("objective",)
    masks: ClassVar[bool] = False
    special_tokens: ClassVar[int] = 0
    pairs: ClassVar[bool] = False
    corrupts: ClassVar[bool] = False
    images: ClassVar[bool] = False
    regresses: ClassVar[bool] = False
    shapes: ClassVar[tuple[str, ...]] = ()

    @property
    def has_source(self) -> bool:
        """Whether what is predicted has a source: half of a pair, corrupted text, or an image."""
        return self.pairs or self.corrupts or self.images

    @property
    def by_document(self) -> bool:
        """Whether a row of a batch is a document or an image, and not a window of running text."""
        return self.pairs or self.images

    def n_added(self, config: Config) -> int:
        """Return how many tokens a run's vocabulary has in addition to its tokenizer's."""
        return self.special_tokens

    def span(self, config: Config) -> int:
        """Return the integers in a row of a batch, from which inputs and targets are made."""
        return int(config.n_ctx) + 1

    def guess(self, config: Config) -> float:
        """Return the loss of a model that knows nothing."""
        return math.log(config.n_vocab)

    def sizes(self, config: Config, width: int) -> Counts:
        """See `Component.sizes`: what it adds to the head, which reads `width` channels."""
        return Counts()


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

    def check_given(self, config: Config) -> None:
        """Check that the tokens of a folder suffice to corrupt text, which reading it needs not.

        Raises:
            AblateError: They do not.
        """
        tokens = config.part("corruption_tokens")
        if not tokens.added and not tokens.hidden(config):
            raise AblateError(
                "the folder's tokenizer has no token for hidden text, which an encoder-decoder"
                " writes: neither <extra_id_0>, as T5's, nor a mask_token, as BART's"
            )

    def n_added(self, config: Config) -> int:
        """See `Objective.n_added`: none where a folder names tokens of its own vocabulary."""
        return self.special_tokens if config.part("corruption_tokens").added else 0


@level("objective", "span", source=T5)
class Span(Corrupts):
    """Spans of text, each replaced by a sentinel; the decoder writes sentinels and spans."""

    module = "ablate.data.corrupt:Span"
    special_tokens = 101  # sentinels, and what begins a target

    def check(self, config: Config) -> None:
        super().check(config)
        if config.part("corruption_tokens").added:  # those of a folder: see `check_given`
            self.check_spans(config, config.mask_ratio, config.mean_span, "mask_ratio", "mean_span")

    def check_given(self, config: Config) -> None:
        """See `Corrupts.check_given`."""
        super().check_given(config)
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
        tokens = config.part("corruption_tokens")
        length, most = tokens.n_text(config), tokens.most_spans(config)
        hidden = round(ratio * length)
        spans = max(1, round(hidden / mean))
        if spans > most:
            raise AblateError(
                f"{of_ratio} = {ratio:g} of n_ctx = {config.n_ctx} with {of_mean} = {mean:g} makes"
                f" {spans} spans, and objective = 'span' can write {most}; raise {of_mean}, or"
                f" lower {of_ratio}"
            )
        if hidden + spans + 1 > length:
            raise AblateError(
                f"{of_ratio} = {ratio:g}: {hidden} hidden tokens and {spans} spans are more than a"
                f" row of n_ctx = {config.n_ctx} holds with objective = 'span'; lower {of_ratio} or"
                f" raise {of_mean}"
            )


@level("objective", "denoise", source="BART, Lewis et al. 2020, arXiv:1910.13461")
class Denoise(Corrupts):
    """A window, from what the noise that `corruption` names leaves of it."""

    module = "ablate.data.corrupt:Denoise"
    special_tokens = 2  # the mask, and what begins a target


MAE = "MAE, He et al. 2021, arXiv:2111.06377"
VIT = "ViT, Dosovitskiy et al. 2020, arXiv:2010.11929"
_PATCH = (
    Field("patch", int, 2, "Side of the square patches of an image, in pixels.", VIT),
    Field("image_height", int, 0, "Pixels of an image from top to bottom; filled in."),
    Field("image_width", int, 0, "Pixels of an image from left to right; filled in."),
    Field("image_channels", int, 0, "Numbers of a pixel; filled in."),
)


def patch_width(config: Config) -> int:
    """Return the numbers of a patch."""
    return int(config.patch**2 * config.image_channels)


class OfImages(Objective):
    """Base of the objectives on images: a token is a patch, n_ctx are the patches of an image."""

    implies: ClassVar = {"embedding": "patches", "tie_embeddings": "untied"}
    defaults: ClassVar = {"attention": "full", "position": "learned"}
    images = True
    fields: ClassVar[tuple[Field, ...]] = _PATCH

    def check(self, config: Config) -> None:
        height, width, patch = config.image_height, config.image_width, config.patch
        if patch < 1 or height % patch or width % patch:
            both = math.gcd(height, width)
            fitting = [str(side) for side in range(1, both + 1) if both % side == 0]
            raise AblateError(
                f"patch = {patch} does not divide the images of {height} × {width} pixels; choose"
                f" one of {', '.join(fitting)}"
            )
        patches = height * width // patch**2
        if patches < 2:
            raise AblateError(
                f"patch = {patch}: an image of {height} × {width} pixels is a single patch; choose"
                " a smaller one"
            )
        if config.n_ctx != patches:
            raise AblateError(
                f"n_ctx = {config.n_ctx}: an image has {patches} patches of {patch} × {patch}"
            )
        if config.part("document_mask").within:
            raise AblateError(
                f"objective = {self.name!r} reads one image a row; use document_mask = 'none'"
            )

    def span(self, config: Config) -> int:
        """See `Objective.span`: the bytes of an image's pixels and of its class."""
        return int(config.image_height * config.image_width * config.image_channels) + 2

    def n_shown(self, config: Config) -> int:
        """Return the patches that the encoder reads."""
        return int(config.n_ctx)

    def n_predicted(self, config: Config) -> int:
        """Return the vectors of an image that the head reads."""
        return 1

    def n_outputs(self, n_patch: int, n_class: int) -> int:
        """Return n_vocab, for images of `n_class` classes with `n_patch` numbers of a patch."""
        raise NotImplementedError

    def sizes(self, config: Config, width: int) -> Counts:
        """See `Objective.sizes`: a bias."""
        return Counts(params=config.n_vocab if config.part("bias").present else 0)


@level("objective", "classify", source=VIT)
class Classify(OfImages):
    """The class of an image."""

    module = "ablate.data.images:Classify"
    implies: ClassVar = OfImages.implies | {"architecture": "vision-transformer"}

    def n_outputs(self, n_patch: int, n_class: int) -> int:
        """See `OfImages.n_outputs`."""
        return n_class


@level("objective", "mae", source=MAE)
class MaskedAutoencoding(OfImages):
    """The pixels of hidden patches, each patch normalised by its own mean and deviation."""

    module = "ablate.data.images:MaskedAutoencoding"
    implies: ClassVar = OfImages.implies | {"architecture": "masked-autoencoder"}
    defaults: ClassVar = OfImages.defaults | {"mask_ratio": 0.75}
    regresses = True
    shapes = ("mask_ratio",)
    fields = (
        *_PATCH,
        Field("n_layer_decoder", int, 2, "Number of blocks of the decoder.", MAE),
        Field("d_decoder", int, 0, "Width of the decoder's stream; 0 for d_model.", MAE),
    )

    def check(self, config: Config) -> None:
        super().check(config)
        position = config.part("position")
        if position.rotates or position.biases:
            raise AblateError(
                f"position = {config.position!r} counts distances in a sequence, and the encoder of"
                " objective = 'mae' reads patches that are not neighbours; use 'learned',"
                " 'sinusoidal' or 'none'"
            )
        if patch_width(config) < 2:
            raise AblateError(
                "patch = 1 of grey images has one number, which normalised is 0: choose a larger"
                " patch"
            )
        if not 1 <= self.n_hidden(config) < config.n_ctx:
            raise AblateError(
                f"mask_ratio = {config.mask_ratio:g} hides {self.n_hidden(config)} of"
                f" {config.n_ctx} patches; at least one has to be hidden and one shown"
            )
        # as n_layer and d_model, of which these are the decoder's
        for name, least, most in (("n_layer_decoder", 1, 1024), ("d_decoder", 0, 65536)):
            if not least <= (value := getattr(config, name)) <= most:
                raise AblateError(f"{name} = {value}: a number from {least} to {most} is wanted")
        width, group = config.d_decoder or config.d_model, config.n_head // config.n_kv_head
        if width % (config.d_head * group):
            raise AblateError(
                f"d_decoder = {width} is not a multiple of {config.d_head * group}: heads of the"
                f" decoder have d_head = {config.d_head}, and {group} share keys and values"
            )

    def guess(self, config: Config) -> float:
        """See `Objective.guess`: the mean square of a normalised number."""
        return 1.0

    def n_hidden(self, config: Config) -> int:
        """Return the patches of an image that are hidden."""
        return round(config.mask_ratio * config.n_ctx)

    def n_shown(self, config: Config) -> int:
        """See `OfImages.n_shown`."""
        return int(config.n_ctx) - self.n_hidden(config)

    def n_predicted(self, config: Config) -> int:
        """See `OfImages.n_predicted`: all patches, of which the hidden ones are scored."""
        return int(config.n_ctx)

    def n_outputs(self, n_patch: int, n_class: int) -> int:
        """See `OfImages.n_outputs`."""
        return n_patch


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


class CorruptionTokens(Component):
    """Base of the levels of `corruption_tokens`.

    Attributes:
        added: Whether they are added to those of the tokenizer.
    """

    factors = ("corruption_tokens",)
    added: ClassVar[bool] = True

    def start(self, config: Config) -> int:
        """Return the token that begins a target."""
        raise NotImplementedError

    def hidden(self, config: Config) -> tuple[int, ...]:
        """Return the tokens that stand for the first, the second, … hidden span."""
        raise NotImplementedError

    def around(self, config: Config) -> tuple[int | None, int | None]:
        """Return the tokens before and after a text; None for none."""
        return None, None

    def n_text(self, config: Config) -> int:
        """Return the tokens of a text in a row of n_ctx tokens."""
        return int(config.n_ctx) - sum(token is not None for token in self.around(config))

    def most_spans(self, config: Config) -> int:
        """Return how many spans can be hidden: without an end, a last sentinel ends a target."""
        return len(self.hidden(config)) - (self.around(config)[1] is None)


@level("corruption_tokens", "last")
class LastTokens(CorruptionTokens):
    """The last tokens of the vocabulary: sentinels or the mask, then what begins a target."""

    def start(self, config: Config) -> int:
        """See `CorruptionTokens.start`."""
        return int(config.n_vocab) - 1

    def hidden(self, config: Config) -> tuple[int, ...]:
        """See `CorruptionTokens.hidden`."""
        last: int = config.n_vocab - 1
        return tuple(range(last - 1, last - config.part("objective").special_tokens, -1))


@level("corruption_tokens", "folder")
class TokensOfFolder(CorruptionTokens):
    """The special tokens of a folder of `transformers`, with those before and after a text."""

    added = False
    fields = (
        Field("source_token", int, -1, "Token before a text, -1 for none; filled in."),
        Field("target_token", int, 0, "Token that begins a target; filled in."),
        Field("end_token", int, -1, "Token after a text, -1 for none; filled in."),
        Field(
            "hidden_tokens",
            tuple[int, ...],
            (),
            "Tokens that stand for the first, the second, … hidden span; filled in.",
        ),
    )

    def start(self, config: Config) -> int:
        """See `CorruptionTokens.start`."""
        return int(config.target_token)

    def hidden(self, config: Config) -> tuple[int, ...]:
        """See `CorruptionTokens.hidden`."""
        tokens: tuple[int, ...] = config.hidden_tokens
        return tokens

    def around(self, config: Config) -> tuple[int | None, int | None]:
        """See `CorruptionTokens.around`."""
        before, behind = (
            None if token < 0 else int(token) for token in (config.source_token, config.end_token)
        )
        return before, behind


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


@level("mask_kind", "whole-word", source=f"{BERT}, whole-word masking of its code base")
class WordMask(MaskKind):
    """All tokens of a word."""

    module = "ablate.data.objectives:WordMask"
    needs_words = True
