"""The whole model, for K members of one shape: embeddings, blocks, final norm and head."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ablate.config import RunConfig
from ablate.model.attention import apart, each, future
from ablate.model.block import Block, norm_where
from ablate.model.layers import Dropout, DropoutRng, Linear, linear
from ablate.model.norm import LayerNorm
from ablate.model.plain import Plain


class Pieces(NamedTuple):
    """What `features` calls of a stack, one after the other."""

    start: Callable[..., tuple[Tensor, Tensor | None]]
    blocks: Sequence[Callable[..., Tensor]]
    final_norm: Callable[[Tensor], Tensor]
    second: Pieces | None = None  # those of the other stack of a model that has two


class Stack(nn.Module):
    """Position encoding, blocks and final norm: vectors [K, B, T, C] → [K, B, T, C].

    Attributes:
        recompute: Whether only the input of each block is kept for the backward pass, which runs
            the block again. That takes a third more time and far less memory, and gives the same
            numbers, since every draw is a function of `rng`.
    """

    rng: DropoutRng
    block: ClassVar[type[Block]] = Block

    def __init__(self, config: RunConfig, pack: int) -> None:
        super().__init__()
        self.config, self.pack, self.recompute = config, pack, False

    def stack(self, name: str = "") -> None:
        """Make the modules of the stack, with draws by `rng`.

        Args:
            name: What their names begin with in the whole model.
        """
        config, pack, width = self.config, self.pack, self.config.d_model
        self.position = config.part("position").build(config, pack, width)
        self.embed_norm = config.part("embed_norm").build(config, pack, width)
        self.dropout = Dropout(config.dropout, f"{name}embedding", self.rng)
        self.blocks = nn.ModuleList(
            self.block(config, pack, self.position, self.rng, f"{name}blocks.{i}")
            for i in range(config.n_layer)
        )
        self.final_norm = norm_where(config.part("norm").final, config, pack, width)

    def enter(self, x: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the stream before the first block, and what is added to all blocks' scores.

        Args:
            x: Embeddings, [K, B, T, C].
            starts: As for `Transformer.features`.

        Returns:
            The stream, [K, B, T, C], and a bias [1 or K, H, T, T] by query and key, or None; with
            `starts` it is [K·B, 1 or H, T, T].
        """
        if starts is None:
            x = self.encoded(x)
            return x, self.bias(x)
        length = x.shape[-2]
        x = self.encoded(x, torch.arange(length, device=x.device) - starts)
        bias = self.position.bias(length)
        hidden = apart(starts)
        if self.config.part("attention").causal:
            hidden = hidden | future(length, x.device)
        if bias is None:  # made once in the precision of the product, for all blocks
            bias = nothing(self.config, x).expand(hidden.shape)
        else:
            bias = each(bias, len(hidden))
        return x, bias.masked_fill(hidden, -torch.inf)

    def encoded(self, x: Tensor, places: Tensor | None = None) -> Tensor:
        """Return embeddings x with their positions, normalised, with dropout: the stream.

        Args:
            x: [K, B, T, C].
            places: Positions of the tokens, [K, B, T]; by default 0 … T − 1.
        """
        encoded: Tensor = self.dropout(self.embed_norm(self.position.embed(x, places)))
        return encoded

    def bias(self, x: Tensor) -> Tensor | None:
        """Return what is added to all blocks' scores of the stream x of one document a row."""
        length = x.shape[-2]
        bias: Tensor | None = self.position.bias(length)
        if bias is not None and self.config.part("attention").causal:
            bias = bias.masked_fill(future(length, x.device), -torch.inf)
        return bias

    def through(self, blocks: Sequence[Callable[..., Tensor]], x: Tensor, *read: Any) -> Tensor:
        """Return the stream after blocks, each of which also takes what is `read`."""
        for block in blocks:
            if self.recompute:
                x = checkpoint(block, x, *read, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, *read)
        return x


def in_precision(module: nn.Module, config: RunConfig) -> None:
    """Give the parameters of a module the run's precision of weights."""
    dtype = getattr(torch, config.part("precision").dtype)
    if dtype != torch.get_default_dtype():
        module.to(dtype)


def nothing(config: RunConfig, x: Tensor) -> Tensor:
    """Return 0 in the precision of the scores of x."""
    dtype = torch.bfloat16 if config.part("precision").casts else x.dtype
    return torch.zeros((), dtype=dtype, device=x.device)


class Transformer(Stack):
    """tokens [K, B, T] → logits [K, B, T, V] in the parameters' precision.

    Weights are NaN until `initialise`. Under `torch.autocast` only matrix products have less
    precision; the stream, norms and logits keep theirs. In training, write the step and a
    micro-batch's first row to `rng.step` and `rng.row`, which dropout reads.
    """

    def __init__(self, config: RunConfig, pack: int = 1, width: int = 0) -> None:
        """Make the models of a pack; `width` is that of the run."""
        super().__init__(config, pack)
        width = config.d_model
        self.rng = DropoutRng(pack)
        self.embedding = config.part("embedding").build(config, pack, width)
        self.stack()
        self.transform = config.part("mlm_head_transform").build(config, pack, width)
        self.unembedding = Unembedding(self.last_stack, pack)
        in_precision(self, config)

    @property
    def last_stack(self) -> RunConfig:
        """The configuration of the stack whose output the head reads."""
        return self.config

    @property
    def n_params(self) -> int:
        """Parameters of one member of the pack."""
        return sum(parameter[0].numel() for parameter in self.parameters())

    def forward(self, tokens: Tensor, *read: Tensor | None) -> Tensor:
        features = self.features(tokens, *read)
        return self.head(features).to(features.dtype)

    def features(
        self,
        tokens: Tensor,
        starts: Tensor | None = None,
        source: Tensor | None = None,
        source_starts: Tensor | None = None,
        *,
        pieces: Pieces | None = None,
    ) -> Tensor:
        """Return the stream after the last block and the final norm.

        Args:
            tokens: [K, B, T].
            starts: Where each token's document starts, [K, B, T] int64: attention stays within a
                document, whose first token has position 0. By default a sequence is one document.
            source: What an encoder reads; None for a model without one.
            source_starts: As `starts`, of the source.
            pieces: What is called, such as compiled pieces; by default the model's own.

        Returns:
            [K, B, T, C].
        """
        pieces = pieces or self.pieces()
        x, *read = self.before(pieces, tokens, starts, source, source_starts)
        return pieces.final_norm(self.through(pieces.blocks, x, *read))

    def before(
        self,
        pieces: Pieces,
        tokens: Tensor,
        starts: Tensor | None = None,
        source: Tensor | None = None,
        source_starts: Tensor | None = None,
    ) -> tuple[Tensor, *tuple[Tensor | None, ...]]:
        """Return the stream before the first block, and what every block reads besides it.

        Arguments are those of `features`.
        """
        return pieces.start(tokens, starts)

    def memory(
        self, pieces: Pieces, source: Tensor | None = None, source_starts: Tensor | None = None
    ) -> tuple[Tensor | None, ...]:
        """Return what every block reads besides the stream and a bias: nothing, without encoder."""
        return ()

    def pieces(self, change: Callable[[Any], Any] = lambda piece: piece) -> Pieces:
        """Return what `features` calls, each piece changed, such as compiled."""
        blocks = [change(block.forward) for block in self.blocks]
        return Pieces(change(self.start), blocks, change(self.final_norm.forward))

    def hidden(self, tokens: Tensor, starts: Tensor | None = None) -> Tensor:
        """Return the hidden states that linear probes read: `features`."""
        return self.features(tokens, starts)

    def head(self, features: Tensor) -> Tensor:
        """Return logits of features, in the precision of the product: [K, …, C] → [K, …, V]."""
        shared = self.embedding.weight if self.unembedding.weight is None else None
        return self.unembedding(self.transform(features), shared)

    @torch.no_grad()
    def stream(self, tokens: Tensor, *read: Tensor | None) -> tuple[Tensor, Tensor]:
        """Measure the stream before the first block and after each; of a decoder, if there are two.

        Args:
            tokens: [K, B, T], T ≥ 2.
            *read: What follows `tokens` in the arguments of `features`.

        Returns:
            RMS, and mean cosine similarity of two tokens of a sequence; [K, n_layer + 1] each. A
            similarity near 1 means that the rank has collapsed.
        """
        x, *of_blocks = self.before(self.pieces(), tokens, *read)
        measured = [_measure(x)]
        for block in self.blocks:
            x = block(x, *of_blocks)
            measured.append(_measure(x))
        rms, similarity = zip(*measured, strict=True)
        return torch.stack(rms, 1), torch.stack(similarity, 1)

    def start(self, tokens: Tensor, starts: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the stream before the first block and the bias, as `enter` does."""
        return self.enter(self.embedding(tokens), starts)

    @torch.no_grad()
    def initialise(self, seeds: Sequence[int], data_seeds: Sequence[int] | None = None) -> None:
        """Set every parameter of member k from (seeds[k], the parameter's name).

        Gains start at 1, biases at 0, all else as the run's `init` says. A plain module draws its
        own values, from (seeds[k], its name).

        Args:
            seeds: Seeds of the members' weights.
            data_seeds: Seeds of their dropout, by default `seeds`.
        """
        assert len(seeds) == self.pack, (len(seeds), self.pack)
        self.rng.seed.copy_(torch.tensor(list(seeds if data_seeds is None else data_seeds)))
        plain = {name: one for name, one in self.named_modules() if isinstance(one, Plain)}
        for name, module in plain.items():
            module.initialise(name, seeds)
        drawn = tuple(f"{name}." for name in plain)
        for name, parameter in self.named_parameters():
            owner, _, kind = name.rpartition(".")
            if name.startswith(drawn):
                continue
            if kind == "gain":
                parameter.fill_(1)
            elif kind == "bias":
                parameter.zero_()
            else:
                deviation = self._deviation(self.get_submodule(owner))
                for member, seed in zip(parameter, seeds, strict=True):
                    member.copy_(normal(seed, name, member.shape) * deviation)

    def _deviation(self, owner: Any) -> float:
        """Return the standard deviation at which the weight or vector of `owner` starts."""
        ends_branch = getattr(owner, "ends_branch", False)
        deviation: float = self.config.part("init").deviation(
            self.config, owner.fan_in, ends_branch
        )
        return deviation


def beside(
    config: RunConfig, tokens: Tensor, starts: Tensor | None = None
) -> tuple[Tensor | None, ...]:
    """Return what a model reads besides tokens where it is tried or counted, not trained.

    An encoder reads a source of as many tokens, which do not depend on these.

    Args:
        config: The run.
        tokens: [K, B, T].
        starts: As for `Transformer.features`.
    """
    if not config.part("architecture").encodes:
        return (starts,)
    places = torch.arange(tokens.shape[-1], device=tokens.device)
    source = (places * 5 + 3) % config.n_vocab
    return (starts, source.expand_as(tokens), torch.zeros_like(tokens))


def model_of(config: RunConfig, pack: int = 1) -> Any:
    """Return the model of a run's architecture: a `Transformer`, or one with its interface."""
    return config.part("architecture").build(config, pack, config.d_model)


class MlmTransform(nn.Module):
    """A square matrix, the activation without its gate and a LayerNorm: [K, …, C] → [K, …, C]."""

    def __init__(self, config: RunConfig, pack: int, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, width, bias=config.part("bias").present, pack=pack)
        self.activation = config.part("activation").build(config, pack, width)
        self.norm = LayerNorm(config, pack, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))


class Unembedding(nn.Module):
    """[K, …, C] → [K, …, V] by a matrix of its own or the embedding's.

    It has a bias only after a transform that asks for one, and for images.
    """

    def __init__(self, config: RunConfig, pack: int) -> None:
        super().__init__()
        self.fan_in = config.d_model
        untied = not config.part("tie_embeddings").tied
        wanted = config.part("mlm_head_transform").logit_bias or config.part("objective").images
        bias = wanted and config.part("bias").present
        self.weight = (
            nn.Parameter(torch.full((pack, config.n_vocab, config.d_model), torch.nan))
            if untied
            else None
        )
        self.bias = nn.Parameter(torch.zeros(pack, config.n_vocab)) if bias else None

    def forward(self, x: Tensor, embedding: Tensor | None) -> Tensor:
        weight = embedding if self.weight is None else self.weight
        assert weight is not None
        return linear(x, weight, self.bias)


def normal(seed: int, name: str, shape: Sequence[int]) -> Tensor:
    """Return standard normal numbers, float32 on the CPU.

    The generator's seed is SHA-256 of seed and name.
    """
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big", signed=True))
    return torch.randn(list(shape), generator=generator)


def _measure(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return RMS [K], and mean cosine of two tokens of a sequence [K], of x [K, B, T, C]."""
    length = x.shape[2]
    total = nn.functional.normalize(x, dim=-1).sum(2).square().sum(-1)  # T + Σ over ordered pairs
    return x.square().mean((1, 2, 3)).sqrt(), ((total - length) / (length * (length - 1))).mean(1)
