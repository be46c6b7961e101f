"""A pre-trained model with a classifier, and what `method` and `text_format` add to it: adapters,
low-rank changes, tokens.

Shapes: K = 1 pack, B batch, T time, C = d_model.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ablate.components.finetuning import choices
from ablate.config import RunConfig
from ablate.model.attention import Attention
from ablate.model.block import Block
from ablate.model.layers import Embedding, Linear
from ablate.model.transformer import in_precision, normal
from ablate.sizes import encoder_alone

NORMS = ("n1", "n2", "o1", "o2", "p1", "p2", "final_norm")  # of blocks, and the final one
HEAD = ("unembedding", "transform")  # what no text's class passes through


class Classifier(nn.Module):
    """Texts [B, T] with their lengths [B] → logits of the classes: [B, n_class], or [B, T, n_class]
    for a task of words.

    Of a pair in both orders, texts are [2·B, T]: rows b and B + b are one pair, whose features are
    added. Of a task with choices they are [n_class·B, T]: row k·B + b is choice k of example b, and
    has one logit (Radford et al. 2018, §3.3; Devlin et al. 2019, §4.4). The classifier
    starts at 0, so that each class is as likely as another; what `method` adds to the model starts
    as a change by nothing. Weights of the model are not changed.

    Attributes:
        trained: Name → parameter, of those that `method` trains; the others are frozen.
    """

    def __init__(self, model: nn.Module, config: RunConfig) -> None:
        """Add the classifier, and what the run's method adds, to a model that has its weights."""
        super().__init__()
        options = config.model_extra or {}
        self.config, self.model = config, model
        self._of_words = options["unit"] == "word"
        self._choices = choices(config)
        outputs = options["n_class"] // self._choices
        self.classifier = Linear(config.d_model, outputs, bias=True, pack=1)
        method = config.part("method")
        known = {id(parameter) for parameter in model.parameters()}
        method.add(model, config)
        add_tokens(model, config)
        with torch.no_grad():
            self.classifier.weight.zero_()
            for name, parameter in model.named_parameters():
                if id(parameter) not in known and parameter.isnan().any():
                    drawn = normal(config.weights_seed, name, parameter.shape[1:])
                    owner = model.get_submodule(name.rpartition(".")[0])
                    parameter.copy_(drawn[None] * _deviation(owner, config))
        in_precision(self, config)
        self.to(next(model.parameters()).device)
        for name, parameter in model.named_parameters():
            own = id(parameter) not in known and (method.embeds or not _of_tokens(name))
            parameter.requires_grad_(own or _trains(method.trains, name, config))
        self.trained = {
            name: parameter
            for name, parameter in self.named_parameters()
            if parameter.requires_grad
        }

    def forward(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Return the logits of the classes.

        Args:
            inputs: Tokens, [B, T] int64; shorter texts are filled up.
            lengths: Tokens of each text, [B].
        """
        pooled = self.pooled(inputs, lengths)
        logits: Tensor = self.classifier(pooled[None]).squeeze(0)
        if self._choices > 1:
            logits = logits.view(self._choices, -1).T
        return logits.to(pooled.dtype)

    def pooled(self, inputs: Tensor, lengths: Tensor) -> Tensor:
        """Return the features that the classifier reads, [B, C]; of words [B, T, C]."""
        pooling, text_format = self.config.part("pooling"), self.config.part("text_format")
        prefix = pooling.prefix and not text_format.special
        if prefix:
            mask = self.config.n_vocab - 1  # [MASK] is the last token
            room = self.config.n_ctx - 1
            inputs = F.pad(inputs[:, :room], (1, 0), value=mask)
            lengths = lengths.clamp(max=room) + 1
        index = torch.arange(inputs.shape[1], device=inputs.device)
        inside = index < lengths[:, None]
        # what fills a text up is a document of its own, which the text does not attend to
        starts = None if inside.all() else torch.where(inside, 0, lengths[:, None])[None]
        hidden: Any = self.model.hidden
        features: Tensor = hidden(inputs[None], starts).squeeze(0)
        if self._of_words:
            return features
        if pooling.prefix:
            pooled = features[:, 0]
        elif pooling.name == "last":
            pooled = features[torch.arange(len(features), device=features.device), lengths - 1]
        else:
            pooled = (features * inside[..., None]).sum(1) / lengths[:, None]
        return torch.stack(pooled.chunk(2)).sum(0) if text_format.both_orders else pooled


def _trains(what: str, name: str, config: RunConfig) -> bool:
    """Whether a parameter of the pre-trained model is trained; see `Method.trains`."""
    parts = name.split(".")
    if what == "all" and encoder_alone(config):
        return parts[0] in ("embedding", "encoder")
    if what == "norms":
        return not set(NORMS).isdisjoint(parts)
    return what == "all" and parts[0] not in HEAD


def _of_tokens(name: str) -> bool:
    """Whether a parameter is the embedding of tokens that `text_format` adds."""
    return name == "embedding.added.weight"


def _deviation(owner: Any, config: RunConfig) -> float:
    """Return the standard deviation at which the weight of an added module starts."""
    if isinstance(owner, Embedding):
        deviation: float = config.part("init").deviation(config, owner.fan_in, False)
        return deviation
    return float(owner.weight.shape[-1] ** -0.5)


def add_tokens(model: Any, config: RunConfig) -> None:
    """Add an embedding for each token of `text_format` that the tokenizer lacks."""
    new = config.part("text_format").new(config)
    if new:
        model.embedding = WithTokens(model.embedding, len(new), config)


class WithTokens(nn.Module):
    """An embedding of n_vocab tokens, and of more of them, which the output head has not."""

    def __init__(self, inner: nn.Module, n: int, config: RunConfig) -> None:
        super().__init__()
        scale = config.part("init").embedding_scale(config)
        self.inner, self.n_vocab = inner, config.n_vocab
        self.added = Embedding(n, config.d_model, pack=1, scale=scale)

    @property
    def weight(self) -> Tensor:
        """The matrix that an output head may share, [1, n_vocab, C]."""
        weight: Tensor = self.inner.weight  # type: ignore[assignment]
        return weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the vectors of tokens: [1, B, T] → [1, B, T, C]."""
        vectors: Tensor = self.inner(tokens.clamp(max=self.n_vocab - 1))
        added = self.added((tokens - self.n_vocab).clamp(min=0))
        return torch.where((tokens < self.n_vocab)[..., None], vectors, added)


class Adapter(nn.Module):
    """x + W_up gelu(W_down x), [1, B, T, C]: the identity at first, since W_up starts at 0."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.down = Linear(width, size, bias=True, pack=1)
        self.up = Linear(size, width, bias=True, pack=1)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.up(F.gelu(self.down(x)))
        return x + changed.to(x.dtype)


def add_adapters(model: nn.Module, config: RunConfig) -> None:
    """Put an adapter after attention and MLP of each block, before the stream (Houlsby 2019)."""
    size = (config.model_extra or {})["adapter_size"]
    for block in [module for module in model.modules() if isinstance(module, Block)]:
        for name in ("attention", "mlp"):
            inner = getattr(block, name)
            setattr(block, name, Adapted(inner, Adapter(config.d_model, size)))


class Adapted(nn.Module):
    """A sublayer, and the adapter that changes its output, [1, B, T, C]."""

    def __init__(self, inner: nn.Module, adapter: Adapter) -> None:
        super().__init__()
        self.inner, self.adapter = inner, adapter

    def forward(self, *read: Tensor | None) -> Tensor:
        changed: Tensor = self.adapter(self.inner(*read))
        return changed


class LowRank(nn.Module):
    """W → W + B A, with A [1, rank, n_in] and B [1, n_out, rank], which starts at 0 (Hu 2021).

    The change is not scaled: the rate of its training does that.
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        _, n_out, n_in = weight.shape
        self.a = Linear(n_in, rank, bias=False, pack=1)
        self.b = Linear(rank, n_out, bias=False, pack=1)
        nn.init.zeros_(self.b.weight)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b.weight @ self.a.weight


def add_low_rank(model: nn.Module, config: RunConfig) -> None:
    """Add low-rank changes to the query and value matrices of each block."""
    rank = (config.model_extra or {})["lora_rank"]
    for attention in [module for module in model.modules() if isinstance(module, Attention)]:
        for projection in (attention.query, attention.value):
            change = LowRank(projection.weight, rank)
            parametrize.register_parametrization(projection, "weight", change, unsafe=True)


def merge(model: nn.Module) -> None:
    """Write low-rank changes into the matrices that they change, in place."""
    for module in list(model.modules()):
        if parametrize.is_parametrized(module, "weight"):
            parametrize.remove_parametrizations(module, "weight")
