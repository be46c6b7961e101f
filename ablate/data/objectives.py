"""Objectives: from windows of text to inputs, targets, and which of them are scored.

All draws are pure functions of (seed, stream, step, index), made by tensor operations without a
wait for the device, so that a step can be captured in one CUDA graph. A mask at one ratio is part
of the mask at every larger ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from ablate import draws
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.data.documents import Documents
from ablate.errors import AblateError
from ablate.evaluation import Probe
from ablate.text import Tokens

_TRAIN, _TEST, _ALONE = (
    draws.stream(name) for name in ("mask", "mask held-out text", "mask one token")
)
_TEST_SEED = 0  # of every mask on held-out text, whatever the run's seed
_SPAN_MEAN = 3
_LONGEST_WORD = 16  # tokens; longer runs of letters (scripts without spaces, base64) are cut


class Example(NamedTuple):
    """What a model reads, what it is to predict, and which positions count; [K, B, T] each."""

    inputs: Tensor  # int64
    targets: Tensor  # int64
    weights: Tensor  # float32: 1 where the target is scored, else 0
    # int64: where each position's document starts; None: attention sees the whole sequence
    starts: Tensor | None = None
    source: Tensor | None = None  # int64 [K, B, S]: what an encoder reads; None without one
    source_starts: Tensor | None = None  # as `starts`; what fills a row up is a document of its own

    @property
    def read(self) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """What a model reads, as `ablate.model.transformer.Transformer.features` takes it."""
        return self.inputs, self.starts, self.source, self.source_starts

    def each(self, change: Callable[[Tensor], Tensor]) -> Example:
        """Return the example with every tensor changed."""
        starts, source, source_starts = (
            None if one is None else change(one)
            for one in (self.starts, self.source, self.source_starts)
        )
        inputs, targets, weights = map(change, (self.inputs, self.targets, self.weights))
        return Example(inputs, targets, weights, starts, source, source_starts)

    def rows(self, first: int, n: int) -> Example:
        """Return `n` sequences of each member from the `first` on."""
        return self.each(lambda tensor: tensor[:, first : first + n])

    def last(self, length: int, scored: int) -> Example:
        """Return the last `length` positions, of which only the last `scored` count."""
        cut = self.inputs.shape[-1] - length
        inputs, targets, weights, starts, *_ = self.each(lambda tensor: tensor[..., cut:])
        counts = torch.arange(length, device=weights.device) >= length - scored
        starts = None if starts is None else (starts - cut).clamp(min=0)
        return Example(inputs, targets, weights * counts, starts)


class Objective(Protocol):
    """What a pack of K runs is trained to predict."""

    def load(self, configs: Sequence[RunConfig]) -> None:
        """Take K other runs of the same shape.

        What differs between runs keeps its address on the device.
        """

    def train(self, windows: Tensor, step: Tensor | int, row: int = 0) -> Example:
        """Return an example of [K, B, T] for training.

        Args:
            windows: [K, B, T + 1].
            step: Number of the step, from which masks are drawn.
            row: Row of the step's batch at which the windows begin.
        """

    def test(self, windows: Tensor, row: int = 0) -> Example:
        """Return an example of [K, W, T] from held-out windows.

        What is scored depends on no seed and no step.

        Args:
            windows: [W, T + 1].
            row: Number of the first of them among all windows of the evaluation.
        """


class Causal:
    """Each next token. Source: Radford et al. 2018."""

    def __init__(self, configs: Sequence[RunConfig], tokens: Tokens, device: torch.device | str):
        self._n_runs = len(configs)
        self._documents = _documents(configs, tokens)

    def load(self, configs: Sequence[RunConfig]) -> None:
        assert len(configs) == self._n_runs

    def train(self, windows: Tensor, step: Tensor | int, row: int = 0) -> Example:
        inputs, targets = windows[..., :-1], windows[..., 1:]
        weights = torch.ones_like(targets, dtype=torch.float32)
        return Example(inputs, targets, weights, self._documents.starts(inputs))

    def test(self, windows: Tensor, row: int = 0) -> Example:
        return self.train(windows.expand(self._n_runs, *windows.shape), 0)


class Drawn:
    """Base of the objectives that draw for each run: seeds and shares of tokens, on the device."""

    def __init__(self, configs: Sequence[RunConfig], device: torch.device | str):
        self._seeds = torch.zeros(len(configs), dtype=torch.int64, device=device)
        self._ratios = torch.zeros(len(configs), device=device)
        self.load(configs)

    def load(self, configs: Sequence[RunConfig]) -> None:
        self._seeds.copy_(torch.tensor([config.batches_seed for config in configs]))
        self._ratios.copy_(torch.tensor([config.mask_ratio for config in configs]))


class Masked(Drawn):
    """Tokens hidden from the input: `mask_ratio` of a sequence, shown as `mask_mix` says.

    Reads the first T tokens of a window, so that it sees the text that `Causal` sees. Source:
    Devlin et al. 2019, arXiv:1810.04805.
    """

    def __init__(self, configs: Sequence[RunConfig], tokens: Tokens, device: torch.device | str):
        first = configs[0]
        assert first.n_vocab == tokens.n_vocab + 1, (
            "the last token of a masked model's vocabulary is [MASK]"
        )
        self._n_vocab, self._mix = first.n_vocab, first.mask_mix
        self._tokens, self._device = tokens, device
        self._kind = self._mask(first.mask_kind)
        self._documents = _documents(configs, tokens)
        super().__init__(configs, device)

    def train(self, windows: Tensor, step: Tensor | int, row: int = 0) -> Example:
        texts = windows[..., :-1]
        uniforms = draws.uniforms(self._seeds, _TRAIN, step, (*texts.shape[1:], 4), row)
        return self._hide(texts, uniforms, self._kind, self._ratios, self._mix)

    def test(self, windows: Tensor, row: int = 0) -> Example:
        return self._test(windows, row, self._kind, self._ratios, self._mix)

    def probe(self, windows: Tensor, ratio: float, probe: Probe, row: int = 0) -> Example:
        """Return an example of [1, W, T] from held-out windows, equal for all arms.

        Args:
            windows: [W, T + 1].
            ratio: Share of tokens that are hidden.
            probe: How they are hidden.
            row: Number of the first of them among all windows of the evaluation.
        """
        ratios = torch.tensor([ratio], device=self._device)
        return self._test(windows, row, self._mask(probe.kind), ratios, probe.mix)

    def alone(self, windows: Tensor, count: int) -> Example:
        """Return an example of P ≤ `count` sequences, each with one hidden token.

        exp of the mean loss over them is the pseudo-perplexity. Every window has equally many,
        drawn without replacement. Source: Salazar et al. 2020, arXiv:1910.14659.

        Args:
            windows: Held-out windows, [W, T + 1].
            count: Most sequences.

        Returns:
            [1, P, T] each.
        """
        texts = windows[:, :-1].to(self._device)
        each = max(1, min(count // len(texts), texts.shape[1]))
        texts = texts[: max(1, count)]
        seed = torch.tensor([_TEST_SEED], device=self._device)
        chosen = draws.uniforms(seed, _ALONE, 0, texts.shape)[0].argsort(stable=True)[:, :each]
        hidden = torch.zeros(
            len(texts), each, texts.shape[1], dtype=torch.bool, device=self._device
        )
        hidden = hidden.scatter(2, chosen[..., None], True).flatten(0, 1)[None]
        targets = texts.repeat_interleave(each, 0)[None]
        inputs = targets.masked_fill(hidden, self._n_vocab - 1)
        return Example(inputs, targets, hidden.float(), self._documents.starts(targets))

    def _mask(self, kind: str) -> MaskKind:
        mask: MaskKind = CATALOGUE["mask_kind"][kind].load()(self._tokens, self._device)
        return mask

    def _test(
        self, windows: Tensor, row: int, kind: MaskKind, ratios: Tensor, mix: Sequence[float]
    ) -> Example:
        texts = windows[None, :, :-1].to(self._device)
        seed = torch.tensor([_TEST_SEED], device=self._device)
        uniforms = draws.uniforms(seed, _TEST, 0, (*texts.shape[1:], 4), row)
        return self._hide(texts.expand(len(ratios), *texts.shape[1:]), uniforms, kind, ratios, mix)

    def _hide(
        self, texts: Tensor, uniforms: Tensor, kind: MaskKind, ratios: Tensor, mix: Sequence[float]
    ) -> Example:
        """Score a share of `texts` [K, B, T].

        The last axis of `uniforms` [K or 1, B, T, 4] is order, groups, mix and random token.
        """
        order, groups, mixed, random = uniforms.unbind(-1)
        scored = choose(order, kind.starts(texts, groups), ratios)
        as_mask, as_random, _ = mix
        other = (random * (self._n_vocab - 1)).long()
        shown = torch.where(mixed < as_mask + as_random, other, texts)
        shown = torch.where(mixed < as_mask, self._n_vocab - 1, shown)
        inputs = torch.where(scored, shown, texts)
        return Example(inputs, texts, scored.float(), self._documents.starts(texts))


def _documents(configs: Sequence[RunConfig], tokens: Tokens) -> Documents:
    documents: Documents = configs[0].part("document_mask").load()(tokens)
    return documents


def choose(order: Tensor, starts: Tensor | None, ratios: Tensor) -> Tensor:
    """Return which positions of each sequence are masked, [K, B, T] bool.

    A group is masked whole or not at all; groups are taken in order while half of the next one
    still fits, and at least one is. A larger ratio takes the same groups and more.

    Args:
        order: Ranks groups by the number at their start, lowest first; [K or 1, B, T].
        starts: Where groups start, [K, B, T] bool; None where each position is a group.
        ratios: Shares to mask, [K].
    """
    length = order.shape[-1]
    counts = (ratios * length).round().clamp(1, length).long()[:, None, None]
    if starts is None:
        return rank(order) < counts
    index = torch.arange(length, device=order.device)
    first = torch.where(starts | (index == 0), index, 0).cummax(-1).values
    last = torch.where(starts, index, length).flip(-1).cummin(-1).values.flip(-1).roll(-1, -1)
    last = torch.where(index == length - 1, length, last) - 1
    of_group = rank(order.expand_as(first).gather(-1, first))
    from_rank, to_rank = of_group.gather(-1, first), of_group.gather(-1, last)
    return (from_rank + to_rank < 2 * counts) | (from_rank == 0)


def rank(values: Tensor) -> Tensor:
    """Return each value's rank along the last axis; of equal values the first comes first.

    A compiled step calls an operator of its own: Inductor's own sorting networks take minutes to
    compile. Elsewhere its first call would import torch's compiler, which takes a second.
    """
    if torch.compiler.is_compiling():
        ranks: Tensor = _rank(values)
        return ranks
    return _ranks(values)


def _ranks(values: Tensor) -> Tensor:
    return values.argsort(stable=True).argsort(-1).contiguous()


_rank = torch.library.custom_op("ablate::rank", _ranks, mutates_args=())


@_rank.register_fake
def _(values: Tensor) -> Tensor:
    return values.new_empty(values.shape, dtype=torch.int64)


class MaskKind(Protocol):
    """What is masked together."""

    def starts(self, texts: Tensor, uniforms: Tensor) -> Tensor | None:
        """Return where groups start, bool, or None where each position is a group.

        Args:
            texts: [K, B, T].
            uniforms: [K or 1, B, T].
        """


class TokenMask:
    """Each token on its own: exactly round(ratio · T) of a sequence."""

    def __init__(self, tokens: Tokens, device: torch.device | str):
        pass

    def starts(self, texts: Tensor, uniforms: Tensor) -> None:
        return None


class SpanMask:
    """Runs of tokens of geometric length, mean 3.

    Source: SpanBERT, Joshi et al. 2020, arXiv:1907.10529 (mean 3.8).
    """

    def __init__(self, tokens: Tokens, device: torch.device | str):
        pass

    def starts(self, texts: Tensor, uniforms: Tensor) -> Tensor:
        return (uniforms < 1 / _SPAN_MEAN).expand_as(texts)


class WordMask:
    """All tokens of a word, as far as the window shows it; words as in `Tokens.word_edges`."""

    def __init__(self, tokens: Tokens, device: torch.device | str):
        edges = tokens.word_edges
        if edges is None:
            raise AblateError(
                "mask_kind = 'whole-word' needs a tokenizer whose tokens spell text; 'tokens'"
                " does not"
            )
        at, behind = (torch.from_numpy(edge) for edge in edges)
        one = torch.ones(1, dtype=torch.bool)
        # [MASK] is a word
        self._at, self._behind = (torch.cat([edge, one]).to(device) for edge in (at, behind))

    def starts(self, texts: Tensor, uniforms: Tensor) -> Tensor:
        behind = self._behind[texts]
        begins = self._at[texts] | behind.roll(1, -1)
        index = torch.arange(texts.shape[-1], device=texts.device)
        first = torch.where(begins, index, 0).cummax(-1).values
        return begins | ((index - first) % _LONGEST_WORD == 0)
