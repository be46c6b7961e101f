"""Blocks: how attention and MLP are wired, where norms are, biases, and how weights start.

P1, P2 act on joins (norm = post), N1, N2 on the inputs of attention and MLP (pre, peri), O1, O2 on
their outputs (peri); all others are the identity. A(x) = O1 Attn(N1 x), M(h) = O2 MLP(N2 h). A
block of a decoder that reads an encoder has a third part, X(h) = O3 Cross(N3 h, memory), with the
join P3.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ablate.components.base import Component, Config, Counts
from ablate.components.catalogue import level
from ablate.errors import AblateError

if TYPE_CHECKING:
    from torch import Tensor

    Map = Callable[[Tensor], Tensor]

LECTURE = "CS182/282A 2023, lecture 18, Fig. 18.3"
LECTURE_STEPS = "CS182/282A 2023, lecture 18, from RNN to Transformer"
BERT = "Devlin et al. 2019, arXiv:1810.04805"
VASWANI = "Vaswani et al. 2017, arXiv:1706.03762"


class Architecture(Component):
    """Base of the levels of `architecture`: the whole model, from tokens to logits.

    Attributes:
        of_blocks: Whether it is a transformer of ablate's, to whose parts all factors apply.
        encodes: Whether an encoder reads the source of a pair, and the decoder its target alone.
        probed: Whether it has hidden states, which linear probes read.
        equals: Level of another factor → the architecture that it is with that level: its runs have
            the name, and so the key, of that one.
    """

    factors = ("architecture",)
    adapter = "ablate.model.whole:Whole"
    makes = True
    of_blocks: ClassVar[bool] = False
    encodes: ClassVar[bool] = False
    probed: ClassVar[bool] = False
    equals: ClassVar[Mapping[tuple[str, str], str]] = {}

    @classmethod
    def of_plain(cls, names: set[str]) -> dict[str, Any]:
        """A model with a method `features` can be probed."""
        return {"probed": "features" in names}

    def longest_context(self, config: Config) -> int | None:
        return None if self.of_blocks or self.any_length else int(config.n_ctx)

    def check(self, config: Config) -> None:
        if not self.of_blocks and config.part("document_mask").within:
            raise AblateError(
                f"architecture = {self.name!r} does not know where documents are; use"
                " document_mask = 'none'"
            )


@level("architecture", "transformer", source=VASWANI)
class Blocks(Architecture):
    """Embeddings, blocks, a final norm and a head, as all other factors say."""

    module = "ablate.model.transformer:Transformer"
    of_blocks = probed = True

    def sizes(self, config: Config, width: int) -> Counts:
        """Its parts state them."""
        return Counts()


class SequenceToSequence(Architecture):
    """Base of the architectures with an encoder and a decoder, which share the embedding.

    Factors apply to both stacks.

    Attributes:
        crosses: Whether blocks of the decoder attend to the encoder's output. Where `mixer` recurs,
            its state begins as that output at the last token of the source.
        encoder_mixer: The encoder's level of `mixer`; "" for that of the decoder.
    """

    module = "ablate.model.encoder_decoder:EncoderDecoder"
    of_blocks = encodes = probed = True
    crosses: ClassVar[bool] = True
    encoder_mixer: ClassVar[str] = ""
    defaults: ClassVar = {"objective": "pairs"}

    def sizes(self, config: Config, width: int) -> Counts:
        """Its parts state them."""
        return Counts()

    def encoder(self, config: Config) -> Config:
        """Return the configuration of the encoder's stack."""
        changed = {
            "attention": config.encoder_attention,
            "n_layer": config.n_layer_encoder,
            "mixer": self.encoder_mixer or config.mixer,
        }
        return config.model_copy(update=changed)

    def check(self, config: Config) -> None:
        topology = config.part("topology")
        if not config.part("objective").has_source:
            raise AblateError(
                f"architecture = {self.name!r} reads a source; use objective = 'pairs', 'span' or"
                " 'denoise', or architecture = 'transformer'"
            )
        if self.crosses and not topology.has_place:
            raise AblateError(
                f"architecture = {self.name!r}: topology = {topology.name!r} has no place for"
                " attention to an encoder; give it two more parameters, X=None and P3=None, which"
                " are that attention and its join in blocks of a decoder"
            )


class Recurrent(SequenceToSequence):
    """Base of those whose encoder is recurrent."""

    encoder_mixer = "rnn"
    compiles = False  # torch compiles no recurrent layer


@level("architecture", "rnn-seq2seq", source="Sutskever et al. 2014, arXiv:1409.3215")
class RnnSeq2seq(Recurrent):
    """Two recurrent stacks; the decoder learns of the source by its first state alone."""

    implies: ClassVar = {"attention": "causal", "mixer": "rnn"}
    crosses = False


@level("architecture", "rnn-cross-attention", source="Bahdanau et al. 2015, arXiv:1409.0473")
class RnnCrossAttention(Recurrent):
    """rnn-seq2seq whose decoder also attends to the encoder's states."""

    implies: ClassVar = {"attention": "causal", "mixer": "rnn"}


@level("architecture", "rnn-self-attention", source="Cheng et al. 2016, arXiv:1601.06733")
class RnnSelfAttention(Recurrent):
    """rnn-cross-attention whose decoder has causal self-attention over its states."""

    implies: ClassVar = {"attention": "causal", "mixer": "rnn-attention"}


@level("architecture", "rnn-encoder", source=LECTURE_STEPS)
class RnnEncoder(Recurrent):
    """A recurrent encoder; the decoder has self-attention and no recurrent cell."""

    implies: ClassVar = {"attention": "causal", "mixer": "attention"}


@level("architecture", "causal-encoder-decoder", source=LECTURE_STEPS)
class CausalEncoderDecoder(SequenceToSequence):
    """encoder-decoder whose encoder has causal self-attention."""

    implies: ClassVar = {"attention": "causal", "encoder_attention": "causal"}
    equals: ClassVar = {("mixer", "rnn"): "rnn-cross-attention"}


@level("architecture", "encoder-decoder", source=VASWANI)
class EncoderDecoder(SequenceToSequence):
    """An encoder of the source, and a decoder whose blocks also attend to its last block."""

    implies: ClassVar = {"attention": "causal"}
    equals: ClassVar = {
        **CausalEncoderDecoder.equals,
        ("encoder_attention", "causal"): "causal-encoder-decoder",
    }


class OfImages(Architecture):
    """Base of the architectures that read patches of images."""

    of_blocks = probed = True

    def sizes(self, config: Config, width: int) -> Counts:
        """Its parts state them."""
        return Counts()

    def check(self, config: Config) -> None:
        if not config.part("objective").images:
            raise AblateError(
                f"architecture = {self.name!r} reads images; use objective = 'classify' or 'mae'"
            )

    def decoder(self, config: Config) -> Config | None:
        """Return the configuration of the decoder's stack; None without a decoder."""
        return None


@level("architecture", "vision-transformer", source="Dosovitskiy et al. 2020, arXiv:2010.11929")
class VisionTransformer(OfImages):
    """Patches of an image, blocks, a final norm, features of the image and a head."""

    module = "ablate.model.vision:VisionTransformer"


@level("architecture", "masked-autoencoder", source="He et al. 2021, arXiv:2111.06377")
class MaskedAutoencoder(OfImages):
    """An encoder of the patches that are shown, and a light decoder of all patches."""

    module = "ablate.model.vision:MaskedAutoencoder"

    def decoder(self, config: Config) -> Config:
        """See `OfImages.decoder`: the same factors, in its own width and depth."""
        width = config.d_decoder or config.d_model
        n_head = width // config.d_head
        changed = {
            "n_layer": config.n_layer_decoder,
            "d_model": width,
            "d_mlp": config.part("activation").d_mlp(width),
            "n_head": n_head,
            "n_kv_head": n_head * config.n_kv_head // config.n_head,
        }
        return config.model_copy(update=changed)


class Topology(Component):
    """Base of all topologies.

    Attributes:
        mlp_inputs: Width of what the MLP reads, in units of d_model.
        joins: Places where a branch meets the stream: 2 for P1 and P2, 1 for P2 alone.
        adds_attention: Whether A(x) is added to a stream that passes by it.
        adds_mlp: Whether M(h) is.
    """

    factors = ("topology",)
    hooks = ("wire",)
    adapter = "ablate.model.plain:Wiring"
    function_hook = "wire"
    called_with = ("x", "A", "M", "P1", "P2")
    mlp_inputs: ClassVar[int] = 1
    joins: ClassVar[int] = 2
    adds_attention: ClassVar[bool] = True
    adds_mlp: ClassVar[bool] = True

    def wire(self, x: Tensor, A: Map, M: Map, P1: Map, P2: Map) -> Tensor:
        """Return y of a block; x, h, y: [K, B, T, C]."""
        raise NotImplementedError

    def wire_decoder(self, x: Tensor, A: Map, X: Map, M: Map, P1: Map, P3: Map, P2: Map) -> Tensor:
        """Return y of a block that attends to an encoder, too: X is joined as A is.

        A topology of a user's own has X and P3 as parameters of `wire`, None without an encoder.
        """
        wire: Callable[..., Tensor] = self.wire
        return wire(x, A, M, P1, P2, X=X, P3=P3)

    @property
    def has_place(self) -> bool:
        """Whether it says where attention to an encoder stands."""
        if type(self).wire_decoder is not Topology.wire_decoder:
            return True
        wire = self.wire if self.plain is None else self.plain.forward
        return {"X", "P3"} <= set(inspect.signature(wire).parameters)

    def build(self, config: Config, pack: int, width: int) -> Any:
        """Return `wire`, or the torch module of a topology that has one."""
        return super().build(config, pack, width) if self.module else self.wire


@level("topology", "serial", source=f"{LECTURE} option 1; {VASWANI}", aliases=(1, "1"))
class Serial(Topology):
    """h = P1(x + A(x)); y = P2(h + M(h)).

    With an encoder: g = P1(x + A(x)); h = P3(g + X(g)); y = P2(h + M(h)).
    """

    def wire(self, x: Tensor, A: Map, M: Map, P1: Map, P2: Map) -> Tensor:
        h = P1(x + A(x))
        return P2(h + M(h))

    def wire_decoder(self, x: Tensor, A: Map, X: Map, M: Map, P1: Map, P3: Map, P2: Map) -> Tensor:
        h = P1(x + A(x))
        h = P3(h + X(h))
        return P2(h + M(h))


@level("topology", "no-attention-skip", source=f"{LECTURE} option 2", aliases=(2, "2"))
class NoAttentionSkip(Topology):
    """h = P1(A(x)); y = P2(h + M(h)).

    With an encoder: h = P3(X(P1(A(x)))); y = P2(h + M(h)).
    """

    adds_attention = False

    def wire(self, x: Tensor, A: Map, M: Map, P1: Map, P2: Map) -> Tensor:
        h = P1(A(x))
        return P2(h + M(h))

    def wire_decoder(self, x: Tensor, A: Map, X: Map, M: Map, P1: Map, P3: Map, P2: Map) -> Tensor:
        h = P3(X(P1(A(x))))
        return P2(h + M(h))


@level("topology", "no-mlp-skip", source=f"{LECTURE} option 3", aliases=(3, "3"))
class NoMlpSkip(Topology):
    """h = P1(x + A(x)); y = P2(M(h)) (an interpretation of the lost figure).

    With an encoder: g = P1(x + A(x)); h = P3(g + X(g)); y = P2(M(h)).
    """

    adds_mlp = False

    def wire(self, x: Tensor, A: Map, M: Map, P1: Map, P2: Map) -> Tensor:
        h = P1(x + A(x))
        return P2(M(h))

    def wire_decoder(self, x: Tensor, A: Map, X: Map, M: Map, P1: Map, P3: Map, P2: Map) -> Tensor:
        h = P1(x + A(x))
        return P2(M(P3(h + X(h))))


@level("topology", "concat", source=f"{LECTURE} option 3", aliases=("3-concat",))
class Concat(Topology):
    """y = P2(M([x ; P1(A(x))])), N2 over 2·d_model (an interpretation of option 3).

    With an encoder: y = P2(M([x ; P3(X(P1(A(x))))])).
    """

    mlp_inputs = 2
    adds_attention = adds_mlp = False

    def wire(self, x: Tensor, A: Map, M: Map, P1: Map, P2: Map) -> Tensor:
        from torch import cat

        return P2(M(cat((x, P1(A(x))), -1)))

    def wire_decoder(self, x: Tensor, A: Map, X: Map, M: Map, P1: Map, P3: Map, P2: Map) -> Tensor:
        from torch import cat

        return P2(M(cat((x, P3(X(P1(A(x))))), -1)))


@level("topology", "outer-skip", source=f"{LECTURE} options 2, 3", aliases=("3-outer",))
class OuterSkip(Topology):
    """y = P2(x + M(P1(A(x)))) (an interpretation of options 2 and 3).

    With an encoder: y = P2(x + M(P3(X(P1(A(x)))))).
    """

    adds_attention = False

    def wire(self, x: Tensor, A: Map, M: Map, P1: Map, P2: Map) -> Tensor:
        return P2(x + M(P1(A(x))))

    def wire_decoder(self, x: Tensor, A: Map, X: Map, M: Map, P1: Map, P3: Map, P2: Map) -> Tensor:
        return P2(x + M(P3(X(P1(A(x))))))


@level("topology", "double-skip", source=f"{LECTURE} option 4", aliases=(4, "4"))
class DoubleSkip(Topology):
    """h = P1(x + A(x)); y = P2(x + h + M(h)).

    With an encoder: g = P1(x + A(x)); h = P3(g + X(g)); y = P2(x + h + M(h)).
    """

    def wire(self, x: Tensor, A: Map, M: Map, P1: Map, P2: Map) -> Tensor:
        h = P1(x + A(x))
        return P2(x + h + M(h))

    def wire_decoder(self, x: Tensor, A: Map, X: Map, M: Map, P1: Map, P3: Map, P2: Map) -> Tensor:
        h = P1(x + A(x))
        h = P3(h + X(h))
        return P2(x + h + M(h))


@level(
    "topology",
    "parallel",
    source=f"{LECTURE} option 5; Wang & Komatsuzaki 2021 (GPT-J); PaLM, arXiv:2204.02311; ViT-22B,"
    " arXiv:2302.05442",
    aliases=(5, "5"),
)
class Parallel(Topology):
    """y = P2(x + A(x) + M(x)), no P1.

    With an encoder: y = P2(x + A(x) + X(x) + M(x)), no P3.
    """

    joins = 1

    def wire(self, x: Tensor, A: Map, M: Map, P1: Map, P2: Map) -> Tensor:
        return P2(x + A(x) + M(x))

    def wire_decoder(self, x: Tensor, A: Map, X: Map, M: Map, P1: Map, P3: Map, P2: Map) -> Tensor:
        return P2(x + A(x) + X(x) + M(x))


@level("topology", "no-skip", source="Dong et al. 2021, arXiv:2103.03404")
class NoSkip(Topology):
    """y = P2(M(P1(A(x)))): a control that shows rank collapse.

    With an encoder: y = P2(M(P3(X(P1(A(x)))))).
    """

    adds_attention = adds_mlp = False

    def wire(self, x: Tensor, A: Map, M: Map, P1: Map, P2: Map) -> Tensor:
        return P2(M(P1(A(x))))

    def wire_decoder(self, x: Tensor, A: Map, X: Map, M: Map, P1: Map, P3: Map, P2: Map) -> Tensor:
        return P2(M(P3(X(P1(A(x))))))


class Placement(Component):
    """Base of the levels of `norm`: where a block has norms.

    Attributes:
        inputs: N1, N2, on the inputs of attention and MLP.
        outputs: O1, O2, on their outputs.
        joins: P1, P2, on the joins of the topology.
        final: A norm after the last block.
    """

    factors = ("norm",)
    inputs: ClassVar[bool] = False
    outputs: ClassVar[bool] = False
    joins: ClassVar[bool] = False
    final: ClassVar[bool] = False


@level("norm", "pre", source="Xiong et al. 2020, arXiv:2002.04745")
class Pre(Placement):
    """N1, N2 on the inputs of attention and MLP; a final norm after the last block."""

    inputs = final = True


@level("norm", "post", source=VASWANI)
class Post(Placement):
    """P1, P2 on the joins, where attention and MLP meet the stream; no final norm."""

    joins = True


@level("norm", "peri", source="Kim et al. 2025, arXiv:2502.02732")
class Peri(Placement):
    """N1, N2 on the inputs and O1, O2 on the outputs of attention and MLP; a final norm."""

    inputs = outputs = final = True


@level("norm", "none", source="ReZero, arXiv:2003.04887, studies this")
class Nowhere(Placement):
    """No norm in the block and none after the last.

    It is one model with `norm_kind = "none"`.
    """

    implies: ClassVar = {"norm_kind": "none"}


class OuterActivation(Component):
    """Base of the levels of `outer_activation`."""

    factors = ("outer_activation",)
    adapter = "ablate.model.plain:Same"

    def build(self, config: Config, pack: int, width: int) -> Any:
        """Return `apply`, or the torch module of an activation that has one."""
        return super().build(config, pack, width) if self.module else self.apply

    def apply(self, y: Tensor) -> Tensor:
        """Return the activation of the MLP's output y."""
        return y


@level("outer_activation", "none", source=VASWANI)
class NoOuterActivation(OuterActivation):
    """The MLP ends with its second matrix."""


@level("outer_activation", "relu", source=LECTURE)
class OuterRelu(OuterActivation):
    """max(x, 0) on the MLP's output, as some lectures draw it."""

    def sizes(self, config: Config, width: int) -> Counts:
        return Counts(products=width)

    def apply(self, y: Tensor) -> Tensor:
        from torch.nn.functional import relu

        return relu(y)


class Bias(Component):
    """Base of the levels of `bias`.

    Attributes:
        present: Whether linear maps and layernorms have a bias.
    """

    factors = ("bias",)
    present: ClassVar[bool] = True


@level("bias", "all", source=VASWANI)
class Everywhere(Bias):
    """Every linear map and every layernorm of the blocks, and the final norm."""


@level("bias", "none", source="PaLM, arXiv:2204.02311")
class NoBias(Bias):
    """No bias anywhere."""

    present = False


class Init(Component):
    """Base of the levels of `init`: standard deviation 1/√fan_in.

    Attributes:
        unscaled: The level that it is with a topology that adds nothing to the stream; "" where the
            topology makes no difference.
    """

    factors = ("init",)
    unscaled: ClassVar[str] = ""
    function_hook = "deviation"
    called_with = ("config", "fan_in", "ends_branch")

    def deviation(self, config: Config, fan_in: int, ends_branch: bool) -> float:
        """Return the standard deviation at which a matrix, an embedding or a vector starts.

        Args:
            config: The run.
            fan_in: Number of terms that are summed in one output.
            ends_branch: Whether it is an output matrix of attention or MLP that is added to the
                stream.
        """
        return 1 / math.sqrt(fan_in)

    def embedding_scale(self, config: Config) -> float:
        """Return what embeddings are multiplied by on entry (Vaswani et al. 2017, §3.4).

        √d_model, for embeddings that start at std 1/√d_model: the stream starts at an RMS of 1, and
        a tied head starts like an untied one, except that it first favours the input token, which
        training removes within some tens of steps.
        """
        return float(config.d_model) ** 0.5


@level("init", "fan-in", source=f"LeCun et al. 1998, Efficient BackProp; {VASWANI}, §3.4")
class FanIn(Init):
    """Normal, std 1/√fan_in: keeps the variance; embeddings std 1/√d_model, multiplied by √d_model
    on entry, so that the stream starts at 1 and a tied head as an untied one.
    """


@level("init", "depth-scaled", source="GPT-2, Radford et al. 2019")
class DepthScaled(Init):
    """fan-in, with the output matrices of attention and MLP divided by √(2·n_layer) where the
    topology adds what they return to the stream.
    """

    unscaled = "fan-in"

    def deviation(self, config: Config, fan_in: int, ends_branch: bool) -> float:
        return 1 / math.sqrt(fan_in * (2 * config.n_layer if ends_branch else 1))

    def revision(self, config: Config) -> int:
        """1 where an earlier version shrank a path without a residual, which starves the model."""
        topology = config.part("topology")
        return int(not (topology.adds_attention and topology.adds_mlp))


@level("init", "normal-0.02", source=f"GPT-2, Radford et al. 2019; {BERT}")
class Normal002(Init):
    """Normal, std 0.02 for every matrix and embedding, nothing multiplied."""

    def deviation(self, config: Config, fan_in: int, ends_branch: bool) -> float:
        return 0.02

    def embedding_scale(self, config: Config) -> float:
        return 1.0


@level("init", "normal-0.02-scaled", source="GPT-2, Radford et al. 2019, §2.3")
class Normal002Scaled(Normal002):
    """normal-0.02, with the output matrices of attention and MLP divided by √(2·n_layer) where the
    topology adds their outputs to the residual stream.
    """

    unscaled = "normal-0.02"

    def deviation(self, config: Config, fan_in: int, ends_branch: bool) -> float:
        return 0.02 / math.sqrt(2 * config.n_layer if ends_branch else 1)
