"""A block: attention and MLP, wired by a topology (`ablate.components.block`), with their norms."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ablate.config import RunConfig
from ablate.model.attention import Attention
from ablate.model.layers import Dropout, DropoutRng
from ablate.model.norm import NoNorm
from ablate.model.position import Position

Map = Callable[[Tensor], Tensor]


class Block(nn.Module):
    """[K, B, T, C] → [K, B, T, C], with what `bias` adds to the scores: see `Transformer.start`.

    P1, P2 act on joins, N1, N2 on the inputs of attention and MLP, O1, O2 on their outputs; those
    that the run's `norm` does not have are the identity.

    Attributes:
        crosses: Whether it attends to an encoder's output.
    """

    crosses = False

    def __init__(
        self, config: RunConfig, pack: int, position: Position, rng: DropoutRng, name: str
    ) -> None:
        """Make the block of that name, in a model whose position encoding and draws are these."""
        super().__init__()
        topology, placement = config.part("topology"), config.part("norm")

        def norm(present: bool, width: int = config.d_model) -> nn.Module:
            return norm_where(present, config, pack, width)

        read = topology.mlp_inputs * config.d_model
        self.wire = topology.build(config, pack, config.d_model)
        self.n1, self.n2 = norm(placement.inputs), norm(placement.inputs, read)
        self.o1, self.o2 = norm(placement.outputs), norm(placement.outputs)
        self.p1 = norm(placement.joins and topology.joins == 2)
        self.p2 = norm(placement.joins)
        self.attention = config.part("mixer").build(config, pack, config.d_model)
        for module in self.attention.modules():
            if isinstance(module, Attention):
                # a bound method: the module, and its parameters, belong to the transformer
                module.rotate = position.rotate
        self.mlp = config.part("mlp").build(config, pack, read)
        self.attention_dropout = Dropout(config.dropout, f"{name}.attention", rng)
        self.mlp_dropout = Dropout(config.dropout, f"{name}.mlp", rng)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return y as the topology's equation says."""
        y: Tensor = self.wire(x, lambda x: self.attend(x, bias), self.feed, self.p1, self.p2)
        return y

    def attend(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """A(x) = O1 Attn(N1 x), and dropout."""
        a: Tensor = self.attention_dropout(self.o1(self.attention(self.n1(x), bias)))
        return a

    def feed(self, h: Tensor) -> Tensor:
        """M(h) = O2 MLP(N2 h), and dropout."""
        m: Tensor = self.mlp_dropout(self.o2(self.mlp(self.n2(h))))
        return m


class DecoderBlock(Block):
    """A block that learns of a source from an encoder.

    It attends to the encoder's output, X(h) = O3 Cross(N3 h, memory), joined at P3 as the topology
    says. No position encoding acts on these scores: places in source and target are no distances. A
    recurrent mixer begins with the encoder's last state.
    """

    def __init__(
        self, config: RunConfig, pack: int, position: Position, rng: DropoutRng, name: str
    ) -> None:
        super().__init__(config, pack, position, rng, name)
        topology, placement, width = config.part("topology"), config.part("norm"), config.d_model
        self.recurs = config.part("mixer").recurs
        self.crosses = config.part("architecture").crosses
        if not self.crosses:
            return
        self.wire_decoder = topology.wire_decoder if topology.plain is None else self._own
        self.n3 = norm_where(placement.inputs, config, pack, width)
        self.o3 = norm_where(placement.outputs, config, pack, width)
        self.p3 = norm_where(placement.joins and topology.joins == 2, config, pack, width)
        across = config.model_copy(update={"attention": "full", "position": "none"})
        self.cross = Attention(across, pack, width)
        self.cross.rotate = lambda x: x
        self.cross_dropout = Dropout(config.dropout, f"{name}.cross", rng)

    def forward(
        self,
        x: Tensor,
        bias: Tensor | None = None,
        memory: Tensor | None = None,
        hidden: Tensor | None = None,
        state: Tensor | None = None,
    ) -> Tensor:
        """Return y as the topology's equation says.

        Args:
            x: [K, B, T, C].
            bias: As for `Block`.
            memory: The encoder's output, [K, B, S, C].
            hidden: What is added to the scores of the memory, [K·B, 1, 1, S]; None for nothing.
            state: Its output at the last token of the source, [K, B, C].
        """

        def attend(x: Tensor) -> Tensor:
            read = (bias, state) if self.recurs else (bias,)
            a: Tensor = self.attention_dropout(self.o1(self.attention(self.n1(x), *read)))
            return a

        def cross(h: Tensor) -> Tensor:
            c: Tensor = self.cross_dropout(self.o3(self.cross(self.n3(h), hidden, memory)))
            return c

        y: Tensor
        if not self.crosses:
            y = self.wire(x, attend, self.feed, self.p1, self.p2)
        else:
            y = self.wire_decoder(x, attend, cross, self.feed, self.p1, self.p3, self.p2)
        return y

    def _own(self, x: Tensor, A: Map, X: Map, M: Map, P1: Map, P3: Map, P2: Map) -> Tensor:
        """Return y of a topology that is a module of a user's own."""
        y: Tensor = self.wire(x, A, M, P1, P2, X=X, P3=P3)
        return y


def norm_where(present: bool, config: RunConfig, pack: int, width: int) -> nn.Module:
    """Return the run's norm, or the identity."""
    made: nn.Module = (config.part("norm_kind").build if present else NoNorm)(config, pack, width)
    return made
