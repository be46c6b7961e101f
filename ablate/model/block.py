"""A block: attention and MLP, wired by a topology (`ablate.components.block`), with their norms."""

from __future__ import annotations

from torch import Tensor, nn

from ablate.config import RunConfig
from ablate.model.layers import Dropout, DropoutRng
from ablate.model.norm import NoNorm
from ablate.model.position import Position


class Block(nn.Module):
    """[K, B, T, C] → [K, B, T, C], with what `bias` adds to the scores: see `Transformer.start`.

    P1, P2 act on joins, N1, N2 on the inputs of attention and MLP, O1, O2 on their outputs; those
    that the run's `norm` does not have are the identity.
    """

    def __init__(
        self, config: RunConfig, pack: int, position: Position, rng: DropoutRng, index: int
    ) -> None:
        """Make block number `index` of a model whose position encoding and draws are these."""
        super().__init__()
        topology, placement = config.part("topology"), config.part("norm")
        kind = config.part("norm_kind")

        def norm(present: bool, width: int = config.d_model) -> nn.Module:
            made: nn.Module = (kind.build if present else NoNorm)(config, pack, width)
            return made

        read = topology.mlp_inputs * config.d_model
        self.wire = topology.build(config, pack, config.d_model)
        self.n1, self.n2 = norm(placement.inputs), norm(placement.inputs, read)
        self.o1, self.o2 = norm(placement.outputs), norm(placement.outputs)
        self.p1 = norm(placement.joins and topology.joins == 2)
        self.p2 = norm(placement.joins)
        self.attention = config.part("mixer").build(config, pack, config.d_model)
        if config.part("mixer").attends:
            # a bound method: the module, and its parameters, belong to the transformer
            self.attention.rotate = position.rotate
        self.mlp = config.part("mlp").build(config, pack, read)
        self.attention_dropout = Dropout(config.dropout, f"blocks.{index}.attention", rng)
        self.mlp_dropout = Dropout(config.dropout, f"blocks.{index}.mlp", rng)

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
