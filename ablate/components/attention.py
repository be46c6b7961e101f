"""Attention: what may be attended to, and how queries, keys and values are made and compared."""

from __future__ import annotations

from typing import ClassVar

from ablate.components.base import Component, Config, Counts, linear
from ablate.components.block import BERT, LECTURE, VASWANI
from ablate.components.catalogue import CATALOGUE, level
from ablate.errors import AblateError

GPT_2 = "Radford et al. 2019 (GPT-2)"


class Attention(Component):
    """Base of the levels of `attention`.

    Attributes:
        causal: Whether a position attends to none after it.
    """

    factors = ("attention",)
    causal: ClassVar[bool] = True


@level("attention", "causal", source=VASWANI)
class Causal(Attention):
    """Itself and what stands before it."""


@level("attention", "full", source=BERT)
class Full(Attention):
    """Every position; refused with objective = causal."""

    causal = False

    def check(self, config: Config) -> None:
        if not (config.part("objective").masks or config.part("objective").images):
            raise AblateError(
                "attention = 'full' lets a causal model see what it predicts; use attention ="
                " 'causal' or objective = 'masked'"
            )


class EncoderAttention(Component):
    """Base of the levels of `encoder_attention`."""

    factors = ("encoder_attention",)


@level("encoder_attention", "full", source=VASWANI)
class EncoderFull(EncoderAttention):
    """Every position of the source."""


@level("encoder_attention", "causal", source=LECTURE)
class EncoderCausal(EncoderAttention):
    """Itself and what stands before it, as an RNN reads."""


class Mixer(Component):
    """Base of the levels of `mixer`: what gives a token information of other tokens.

    `width`: d_model, of what it reads and returns.

    Attributes:
        attends: Whether it is attention, to which the factors of attention and all position
            encodings apply.
        recurs: Whether it has a state, which may begin as what an encoder made of a source.
    """

    factors = ("mixer",)
    adapter = "ablate.model.plain:Same"
    attends: ClassVar[bool] = False
    recurs: ClassVar[bool] = False
    defaults: ClassVar = {"position": "none"}

    def check(self, config: Config) -> None:
        position = config.part("position")
        if not self.attends and (position.rotates or position.biases):
            raise AblateError(
                f"mixer = {self.name!r} has no scores for position = {config.position!r} to act on;"
                " use position = 'none', 'learned' or 'sinusoidal'"
            )
        if (self.recurs or not self.attends) and config.part("document_mask").within:
            raise AblateError(
                f"mixer = {self.name!r} does not know where documents are; use document_mask ="
                " 'none'"
            )

    def longest_context(self, config: Config) -> int | None:
        return config.n_ctx if self.plain is not None and not self.any_length else None


@level("mixer", "attention", source=VASWANI)
class MultiHead(Mixer):
    """Attention of several heads, as the factors of this group say."""

    module = "ablate.model.attention:Attention"
    attends = True
    defaults: ClassVar = {}

    def sizes(self, config: Config, width: int) -> Counts | None:
        queries, keys = config.n_head * config.d_head, config.n_kv_head * config.d_head
        part, counted = config.part, []
        for one in (queries, keys, keys):
            counted.append(part("qkv").sizes(config, one))
        norm = part("qk_norm").sizes(config, config.d_head)
        counted += [norm and norm.shared(config.n_head), norm and norm.shared(config.n_kv_head)]
        if part("qkv").one_tensor and (part("position").rotates or not part("qk_norm").identity):
            # their original values, kept together with the new ones
            counted.append(Counts(products=queries + keys))
        counted.append(part("score").sizes(config, config.d_head))
        counted.append(part("head_combine").sizes(config, width))
        return None if None in counted else sum(counted, Counts())


class Recurs(Mixer):
    """Base of the mixers with a recurrent cell."""

    recurs = True
    compiles = False  # torch compiles no recurrent layer

    def check(self, config: Config) -> None:
        super().check(config)
        objective = config.part("objective")
        if objective.masks or objective.images:
            other = (
                "a model of images sees all patches"
                if objective.images
                else "a masked model predicts from both sides"
            )
            raise AblateError(
                f"mixer = {self.name!r} reads from left to right, and {other}; use objective ="
                " 'causal' or mixer = 'attention'"
            )


@level("mixer", "rnn", source="Elman 1990; Cho et al. 2014, arXiv:1406.1078")
class Rnn(Recurs):
    """A recurrent cell, which `rnn_cell` names, in the place of attention."""

    module = "ablate.model.recurrent:Recurrent"

    def sizes(self, config: Config, width: int) -> Counts:
        return config.part("rnn_cell").sizes(config, width)


@level("mixer", "rnn-attention", source="Cheng et al. 2016, arXiv:1601.06733")
class RnnAttention(Recurs):
    """h + Attn(h): causal attention over the states h of a recurrent cell."""

    module = "ablate.model.recurrent:RecurrentAttention"
    attends = True
    defaults: ClassVar = {}

    def sizes(self, config: Config, width: int) -> Counts | None:
        attention = CATALOGUE["mixer"]["attention"].sizes(config, width)
        cell = config.part("rnn_cell").sizes(config, width)
        return attention and attention + cell


class Cell(Component):
    """Base of the levels of `rnn_cell`.

    `width`: of input and state.

    Attributes:
        gates: Vectors of the state's width that are computed a token.
        has_memory: Whether it keeps a memory besides its state.
    """

    factors = ("rnn_cell",)
    gates: ClassVar[int]
    has_memory: ClassVar[bool] = False

    def sizes(self, config: Config, width: int) -> Counts:
        one = linear(width, self.gates * width, config.part("bias").present)
        kept = Counts(streams=(self.gates + 1 + self.has_memory) * width)
        return one + one + kept


@level("rnn_cell", "gru", source="Cho et al. 2014, arXiv:1406.1078")
class Gru(Cell):
    """Gated recurrent unit, with the reset gate on the product of the state, as torch has it."""

    gates = 3


@level("rnn_cell", "lstm", source="Hochreiter & Schmidhuber 1997; Gers et al. 2000 (forget gate)")
class Lstm(Cell):
    """Long short-term memory."""

    gates = 4
    has_memory = True


class DocumentMask(Component):
    """Base of the levels of `document_mask`.

    Attributes:
        within: Whether attention stays within a document of a window.
    """

    factors = ("document_mask",)
    within: ClassVar[bool] = False

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts()

    def block_sizes(self, config: Config) -> Counts:
        """Return its sizes in each block, in addition to `sizes`, which counts once per model."""
        return Counts()


@level("document_mask", "none", source=GPT_2)
class WholeWindow(DocumentMask):
    """A window is one sequence, whatever documents are in it."""

    module = "ablate.data.documents:WholeWindow"


@level("document_mask", "attention", source="Llama 3, arXiv:2407.21783, §3.2")
class WithinDocuments(DocumentMask):
    """Attention stays within a document, and positions are counted from its first token; the
    separator is the last token of its document.
    """

    module = "ablate.data.documents:WithinDocuments"
    within = True

    def sizes(self, config: Config, width: int) -> Counts:
        """What is added to the scores: a number for each pair of tokens, and each head where the
        position encoding adds to them too. FLOPs are those of all pairs: no kernel leaves any out.
        """
        return Counts(products=0 if self._casts(config) else self._numbers(config))

    def block_sizes(self, config: Config) -> Counts:
        """Where autocast casts these numbers, each block keeps a copy instead."""
        return Counts(products=self._numbers(config) if self._casts(config) else 0)

    def _casts(self, config: Config) -> bool:
        casts: bool = config.part("position").biases and config.part("precision").casts
        return casts

    def _numbers(self, config: Config) -> int:
        heads = config.n_head if config.part("position").biases else 1
        n: int = heads * config.n_ctx
        return n


class HeadCombine(Component):
    """Base of the levels of `head_combine`. `width`: of the output."""

    factors = ("head_combine",)


@level("head_combine", "concat", source=VASWANI)
class Concatenate(HeadCombine):
    """y = W_O [head_1; …; head_H], W_O: n_head·d_head → d_model."""

    module = "ablate.model.attention:Concatenate"

    def sizes(self, config: Config, width: int) -> Counts:
        return linear(config.n_head * config.d_head, width, config.part("bias").present)


@level("head_combine", "sum", source=LECTURE)
class Sum(HeadCombine):
    """y = W_O Σ_h head_h, one W_O: d_head → d_model for all heads; starts with fan-in
    n_head·d_head.
    """

    module = "ablate.model.attention:Sum"

    def sizes(self, config: Config, width: int) -> Counts:
        return linear(config.d_head, width, config.part("bias").present)


class Projection(Component):
    """Base of the levels of `qkv`. `width`: of all heads of the queries, keys or values.

    Attributes:
        one_tensor: Whether queries, keys and values are views of one tensor, which is then kept for
            the backward pass in addition to what is made from them.
    """

    factors = ("qkv",)
    one_tensor: ClassVar[bool] = False


@level("qkv", "linear", source=VASWANI)
class LinearProjection(Projection):
    """One matrix each."""

    module = "ablate.model.attention:LinearProjection"
    one_tensor = True

    def sizes(self, config: Config, width: int) -> Counts:
        return linear(config.d_model, width, config.part("bias").present)


@level("qkv", "mlp", source=LECTURE)
class MlpProjection(Projection):
    """Two matrices each with a ReLU between, hidden width d_model."""

    module = "ablate.model.attention:MlpProjection"

    def sizes(self, config: Config, width: int) -> Counts:
        bias, c = config.part("bias").present, config.d_model
        return linear(c, c, bias) + linear(c, width, bias) + Counts(products=c)


class AttentionScale(Component):
    """Base of the levels of `attention_scale`."""

    factors = ("attention_scale",)

    def scale(self, d_head: int) -> float:
        """Return what scores are multiplied by."""
        raise NotImplementedError


@level("attention_scale", "sqrt", source=VASWANI)
class Sqrt(AttentionScale):
    """1/√d_head."""

    def scale(self, d_head: int) -> float:
        return float(d_head) ** -0.5


@level("attention_scale", "none", source=f"{VASWANI}, §3.2.1 describes its effect")
class Unscaled(AttentionScale):
    """1."""

    def scale(self, d_head: int) -> float:
        return 1.0


class Score(Component):
    """Base of the levels of `score`. `width`: d_head.

    Attributes:
        product: Whether a score is a product of query and key, on which rotary positions act and
            for which there are fused kernels.
    """

    factors = ("score",)
    adapter = "ablate.model.plain:Score"
    product: ClassVar[bool] = False

    def numbers(self, config: Config) -> int:
        """Return how many numbers a token and block keep for the scores of every key."""
        return 0


def _attended(config: Config) -> Counts:
    """Return what scores and the mean of the values take, whatever compares a query with a key."""
    heads, keys = config.n_head * config.d_head, config.n_kv_head * config.d_head
    return Counts(flops=4 * config.n_ctx * heads, products=2 * heads + 2 * keys)


@level("score", "dot", source=VASWANI)
class DotScore(Score):
    """qᵀk."""

    module = "ablate.model.attention:DotScore"
    product = True

    def sizes(self, config: Config, width: int) -> Counts:
        return _attended(config)


@level("score", "additive", source="Bahdanau et al. 2015, arXiv:1409.0473")
class AdditiveScore(Score):
    """vᵀ tanh(q + k), one v a head: memory O(T²·d_head); refused with position = rotary."""

    module = "ablate.model.attention:AdditiveScore"

    def check(self, config: Config) -> None:
        if config.part("position").rotates:
            raise AblateError(
                f"score = {self.name!r} adds queries and keys, but {config.position} acts through"
                " their product; choose another position"
            )

    def sizes(self, config: Config, width: int) -> Counts:
        own = Counts(params=config.n_head * width, products=self.numbers(config))
        return _attended(config) + own

    def numbers(self, config: Config) -> int:
        """tanh(q + k), the scores and their softmax."""
        n: int = config.n_ctx * config.n_head * (config.d_head + 2)
        return n
