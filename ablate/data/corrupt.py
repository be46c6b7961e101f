"""Corrupted text for encoder-decoders: the spans of T5, and the noise of BART.

The encoder reads a window of text with something hidden or moved; the decoder writes what is
missing (T5) or the whole window (BART). All draws are functions of (seed, stream, step, index), and
lengths are fixed, so that a step can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ablate import draws
from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.data.objectives import Drawn, Example, choose, rank
from ablate.errors import AblateError
from ablate.evaluation import PROBE_SPAN
from ablate.text import Tokens

_TRAIN, _TEST = (draws.stream(name) for name in ("corrupt", "corrupt held-out text"))
_TEST_SEED = 0  # of held-out text, whatever the run's seed
_DRAWS = 4  # uniforms a token
_LONGEST = 20  # tokens of a span whose length is drawn


class Noise(NamedTuple):
    """A level of `corruption`, which concerns `Denoise` alone, and the mean length of a span."""

    kind: Any
    mean: float


class Written(NamedTuple):
    """What an objective makes of texts, without the tokens around them."""

    targets: Tensor  # [K, B, T]
    n: Tensor  # of each target's tokens, [K, B, 1]
    weights: Tensor  # 1 where a target's token is scored, [K, B, T] float32
    source: Tensor  # [K, B, S]
    starts: Tensor  # as `Example.source_starts`


class Corrupted(Drawn):
    """Base of the objectives that corrupt text.

    Attributes:
        start: The token that begins what the decoder writes.
        hidden: `start`, and the tokens that stand for the first, the second, … hidden span.
        before: The token before a text; None for none.
        end: The one behind it; None for none.
        ends_itself: Whether a target has a last token of its own, in whose place `end` stands.
    """

    ends_itself: ClassVar[bool] = False

    def __init__(self, configs: Sequence[RunConfig], tokens: Tokens, device: torch.device | str):
        first, kinds = configs[0], CATALOGUE["corruption"]
        special = first.part("corruption_tokens")
        self.start: int = special.start(first)
        self.hidden = torch.tensor((self.start, *special.hidden(first)), device=device)
        self.before, self.end = special.around(first)
        self._cut = first.n_ctx - special.n_text(first)  # tokens that make room for these two
        self._own = Noise(kinds[first.corruption], first.mean_span)
        super().__init__(configs, device)

    def train(self, windows: Tensor, step: Tensor | int, row: int = 0) -> Example:
        texts = self._texts(windows)
        shape = (*texts.shape[1:], _DRAWS)
        uniforms = draws.uniforms(self._seeds, _TRAIN, step, shape, row)
        return self.corrupt(texts, uniforms, self._ratios, self._own)

    def test(self, windows: Tensor, row: int = 0) -> Example:
        n = len(self._ratios)
        texts, uniforms = self._held_out(windows, row)
        texts, uniforms = texts.expand(n, -1, -1), uniforms.expand(n, -1, -1, -1)
        return self.corrupt(texts, uniforms, self._ratios, self._own)

    def probe(self, windows: Tensor, ratio: float, row: int = 0) -> Example:
        """Return an example of [1, W, T] that scores the same hidden tokens in all arms.

        They are in spans as `noise_spans` draws them.

        Args:
            windows: Held-out windows, [W, T + 1].
            ratio: Share of tokens that are hidden.
            row: Number of the first of them among all windows of the evaluation.
        """
        texts, uniforms = self._held_out(windows, row)
        ratios = torch.tensor([ratio], device=texts.device)
        return self.restore(texts, noise_spans(uniforms, ratios, PROBE_SPAN)[0])

    def restore(self, texts: Tensor, hidden: Tensor) -> Example:
        """Return an example of texts [K, B, T] in which hidden tokens [K, B, T], bool, count.

        The encoder reads of the other tokens what it reads in training.
        """
        return self._example(self._restored(texts, hidden), 0.0)

    def corrupt(self, texts: Tensor, uniforms: Tensor, ratios: Tensor, noise: Noise) -> Example:
        """Return an example of texts [K, B, T].

        Args:
            texts: Tokens of windows.
            uniforms: [K, B, T, 4].
            ratios: Shares of tokens that are corrupted, [K].
            noise: How they are corrupted.
        """
        return self._example(self._corrupted(texts, uniforms, ratios, noise), 1.0)

    def _restored(self, texts: Tensor, hidden: Tensor) -> Written:
        raise NotImplementedError

    def _corrupted(self, texts: Tensor, uniforms: Tensor, ratios: Tensor, noise: Noise) -> Written:
        raise NotImplementedError

    def _texts(self, windows: Tensor) -> Tensor:
        """Return the texts of windows [..., T + 1], with room for the tokens around them."""
        return windows[..., : windows.shape[-1] - 1 - self._cut]

    def _held_out(self, windows: Tensor, row: int) -> tuple[Tensor, Tensor]:
        """Return texts [1, W, T] of windows, and draws that depend on no run."""
        texts = self._texts(windows[None]).to(self._seeds.device)
        seed = torch.full_like(self._seeds[:1], _TEST_SEED)
        return texts, draws.uniforms(seed, _TEST, 0, (*texts.shape[1:], _DRAWS), row)

    def _example(self, written: Written, around: float) -> Example:
        """Return what a model reads and writes, with the tokens before and behind texts.

        Args:
            written: The texts.
            around: The weight of these tokens in the loss.
        """
        targets, n, weights, source, starts = written
        if self._cut:
            before, end, fill = self.before, self.end, self.start
            n_read = (starts == 0).sum(-1, keepdim=True)
            source, n_read = between(source, n_read, before, end, fill)
            index = torch.arange(source.shape[-1], device=source.device)
            starts = torch.where(index < n_read, 0, n_read)
            end = None if self.ends_itself else end
            targets, _ = between(targets, n, before, end, fill)
            of_before, of_end = (None if token is None else around for token in (before, end))
            weights, _ = between(weights, n, of_before, of_end, 0)
        first = torch.full_like(targets[..., :1], self.start)
        inputs = torch.cat((first, targets[..., :-1]), -1)
        return Example(inputs, targets, weights, None, source, starts)


class Span(Corrupted):
    """Spans of text, each shown as a sentinel; the decoder writes sentinels and spans.

    Exactly round(mask_ratio · T) tokens are in round(that / mean_span) spans, and a random
    partition gives the lengths of spans and of what lies between. Source: T5, Raffel et al. 2020,
    arXiv:1910.10683, §3.1.4 and `random_spans_noise_mask`.
    """

    ends_itself = True

    def _corrupted(self, texts: Tensor, uniforms: Tensor, ratios: Tensor, noise: Noise) -> Written:
        hidden, _ = noise_spans(uniforms, ratios, noise.mean)
        return self._written(texts, hidden)[0]

    def _restored(self, texts: Tensor, hidden: Tensor) -> Written:
        written, place = self._written(texts, hidden)
        of_text = _scatter(hidden.float(), place, texts.shape[-1], 0)
        return written._replace(weights=of_text)

    def _written(self, texts: Tensor, hidden: Tensor) -> tuple[Written, Tensor]:
        """Return what is written, and where each hidden token is; T for others."""
        length = texts.shape[-1]
        begins = hidden & ~_before(hidden)
        number = begins.cumsum(-1)  # of the span that began last, from 1
        spans = number[..., -1:]
        sentinel = self.hidden[number]
        shown = torch.where(begins, sentinel, texts)
        source, starts = compact(shown, ~hidden | begins, self.start)
        # the j-th hidden token is written behind the sentinels of its own and all earlier spans
        place = torch.where(hidden, hidden.cumsum(-1) - 1 + number, length)
        first = torch.where(begins, place - 1, length)
        targets = _scatter(texts, place, length, self.start)
        targets = _scatter(sentinel, first, length, targets)
        n = hidden.sum(-1, keepdim=True) + spans
        index = torch.arange(length, device=texts.device)
        # the token of an end, or a last sentinel, ends it
        last = self.hidden[spans + 1] if self.end is None else self.end
        targets = torch.where(index == n, last, targets)
        return Written(targets, n + 1, (index <= n).float(), source, starts), place


class Denoise(Corrupted):
    """A window with noise, which `corruption` names; the decoder writes the window.

    Without noise, the encoder reads a first part, or nothing, and the decoder writes the rest.
    Sources: BART, Lewis et al. 2020, arXiv:1910.13461, §2.2; T5, Raffel et al. 2020,
    arXiv:1910.10683, §3.3.1.
    """

    def __init__(self, configs: Sequence[RunConfig], tokens: Tokens, device: torch.device | str):
        super().__init__(configs, tokens, device)
        # a folder without a mask is refused where it is needed
        self.mask = int(self.hidden[:2][-1])
        if self._own.kind.permutes:
            if tokens.spelling is None:
                raise AblateError(
                    f"corruption = {configs[0].corruption!r} needs a tokenizer whose tokens spell"
                    " text; 'tokens' does not"
                )
            ends = [token.rstrip().endswith((b".", b"?", b"!")) for token in tokens.spelling]
            extra = configs[0].n_vocab - len(ends)
            self._ends = torch.tensor(ends + [False] * extra, device=device)

    def _corrupted(self, texts: Tensor, uniforms: Tensor, ratios: Tensor, noise: Noise) -> Written:
        kind, mean = noise
        length = texts.shape[-1]
        if kind.continues:
            split = 1 + (uniforms[..., :1, 3] * (length - 1)).long()
            return self._continued(texts, split, torch.ones_like(texts))
        weights = torch.ones(texts.shape, device=texts.device)
        source, starts = (texts, torch.zeros_like(texts)) if kind.reads else self._nothing(texts)
        if kind.permutes:
            source = permuted(source, self._ends[source], uniforms[..., 2])
        if kind.rotates:
            offset = (uniforms[..., :1, 3] * length).long()
            index = torch.arange(length, device=texts.device)
            source = source.gather(-1, (index + offset) % length)
        if kind.hides:
            hidden = choose(uniforms[..., 0], None, ratios)
            source = source.masked_fill(hidden, self.mask)
        if kind.deletes:
            hidden = choose(uniforms[..., 0], None, ratios)
            source, starts = compact(source, ~hidden, self.start)
        if kind.infills:
            source, starts = infilled(source, uniforms, ratios, mean, self.mask, self.start)
        return Written(texts, _counted(texts), weights, source, starts)

    def _restored(self, texts: Tensor, hidden: Tensor) -> Written:
        kind, begins = self._own.kind, hidden & ~_before(hidden)
        if kind.continues:  # all that stands before the first hidden token
            return self._continued(texts, (~hidden).cumprod(-1).sum(-1, keepdim=True), hidden)
        if kind.reads:
            shown = texts.masked_fill(begins, self.mask)
            source, starts = compact(shown, ~hidden | begins, self.start)
        else:
            source, starts = self._nothing(texts)
        return Written(texts, _counted(texts), hidden.float(), source, starts)

    def _nothing(self, texts: Tensor) -> tuple[Tensor, Tensor]:
        """Return a source without text, one token, and where its documents start."""
        index = torch.arange(texts.shape[-1], device=texts.device)
        return torch.full_like(texts, self.start), (index > 0).long().expand_as(texts)

    def _continued(self, texts: Tensor, split: Tensor, counted: Tensor) -> Written:
        """Return what is written if the decoder writes what follows the first `split` tokens.

        Args:
            texts: [K, B, T].
            split: [K, B, 1], from 1 to T - 1.
            counted: Which tokens count, where they are written; [K, B, T].
        """
        rest = torch.arange(texts.shape[-1], device=texts.device) >= split
        source, starts = compact(texts, ~rest, self.start)
        targets, _ = compact(texts, rest, self.start)
        weights, _ = compact(counted.long(), rest, 0)
        n = rest.sum(-1, keepdim=True)
        return Written(targets, n, weights.float(), source, starts)


def noise_spans(uniforms: Tensor, ratios: Tensor, mean: float) -> tuple[Tensor, Tensor]:
    """Return which tokens are in spans, [K, B, T] bool, and the number of spans, [K, 1, 1].

    A text begins with a token that is in no span, and spans do not touch.

    Args:
        uniforms: [K, B, T, 2 or more].
        ratios: Shares of the tokens that are in spans, [K].
        mean: Mean length of a span.
    """
    length = uniforms.shape[-2]
    n, spans = span_counts(ratios, length, mean)
    ours, others = (
        _segments(uniforms[..., k], count, spans) for k, count in ((0, n), (1, length - n))
    )
    index = torch.arange(length, device=uniforms.device)
    # tokens between spans, by the number of their segment; a span follows its segment
    counted = (index < length - n).long().expand_as(others)
    between = torch.zeros_like(others).scatter_add(-1, others, counted)
    place = index + between.cumsum(-1).gather(-1, ours)
    place = torch.where(index < n, place, length)
    return _scatter(torch.ones_like(place), place, length, 0).bool(), spans


def span_counts(ratios: Tensor, length: int, mean: float) -> tuple[Tensor, Tensor]:
    """Return how many tokens are in spans, and how many spans there are; [K, 1, 1] each."""
    n = (ratios * length).round().clamp(1, length - 1).long()
    spans = (n / mean).round().long().clamp(min=1)
    spans = torch.minimum(spans, torch.minimum(n, length - n))
    return n[:, None, None], spans[:, None, None]


def _segments(uniforms: Tensor, n: Tensor, segments: Tensor) -> Tensor:
    """Divide n items into so many random parts that are not empty; return the part of each."""
    index = torch.arange(uniforms.shape[-1], device=uniforms.device)
    inner = (index > 0) & (index < n)
    cut = inner & (rank(torch.where(inner, uniforms, 2.0)) < segments - 1)
    return cut.long().cumsum(-1)


def infilled(
    texts: Tensor, uniforms: Tensor, ratios: Tensor, mean: float, mask: int, fill: int
) -> tuple[Tensor, Tensor]:
    """Replace spans by one mask each; their lengths are Poisson numbers, and may be 0.

    A text gets no more spans than tokens are replaced.

    Args:
        texts: [K, B, T].
        uniforms: [K, B, T, 2 or more].
        ratios: Shares of the tokens that are replaced, [K].
        mean: Mean of the lengths.
        mask: The token of a span.
        fill: The token behind what is left.

    Returns:
        What is left, and where its tokens' documents start, as in `Example.source_starts`.
    """
    length = texts.shape[-1]
    index = torch.arange(length, device=texts.device)
    n = (ratios * length).round().clamp(1, length // 2).long()[:, None, None]
    # filled on the device: a CUDA graph that is captured cannot copy from the host
    shares = [torch.full((), share, device=texts.device) for share in poisson_shares(mean)]
    drawn = torch.searchsorted(torch.stack(shares), uniforms[..., 0].contiguous())
    # spans are taken until their lengths sum to n
    until = drawn.cumsum(-1).clamp(max=n)
    lengths = torch.diff(until, prepend=torch.zeros_like(until[..., :1]))
    used, long = until - lengths < n, lengths > 0
    removed = lengths.sum(-1, keepdim=True)
    # a source is no longer than its text: of spans of length 0 that would make it so, some are
    # left out at random, by draws that say nothing else of them
    empty = used & ~long
    room = removed - long.sum(-1, keepdim=True)
    used = long | (empty & (rank(torch.where(empty, uniforms[..., 0], 2.0)) < room))
    lengths, _ = compact(lengths, used, 0)
    spans = used.sum(-1, keepdim=True)
    kept = length - removed
    # spans stand before random tokens of those that stay
    marked = (index < kept) & (rank(torch.where(index < kept, uniforms[..., 1], 2.0)) < spans)
    before = marked.cumsum(-1)  # spans before each token that stays, and at it
    gone = torch.cat((torch.zeros_like(lengths[..., :1]), lengths.cumsum(-1)), -1)
    original = (index + gone.gather(-1, before)).clamp(max=length - 1)
    place = torch.where(index < kept, index + before, length)
    source = _scatter(texts.gather(-1, original), place, length, fill)
    first = torch.where(marked, place - 1, length)
    source = _scatter(torch.full_like(texts, mask), first, length, source)
    count = kept + spans
    return source, torch.where(index < count, 0, count)


def poisson_shares(mean: float) -> list[float]:
    """Return the shares of Poisson numbers of at most 0, 1, …, `_LONGEST`."""
    shares, share, total = [], math.exp(-mean), 0.0
    for k in range(_LONGEST + 1):
        total += share
        shares.append(total)
        share *= mean / (k + 1)
    return shares


def permuted(texts: Tensor, ends: Tensor, uniforms: Tensor) -> Tensor:
    """Return texts [K, B, T] with their sentences in a random order.

    Args:
        texts: Tokens.
        ends: Whether each ends a sentence, [K, B, T].
        uniforms: [K, B, T]; the one at its first token orders a sentence.
    """
    index = torch.arange(texts.shape[-1], device=texts.device)
    first = torch.where(_before(ends) | (index == 0), index, 0).cummax(-1).values
    return torch.zeros_like(texts).scatter(-1, rank(uniforms.gather(-1, first)), texts)


def compact(tokens: Tensor, kept: Tensor, fill: int) -> tuple[Tensor, Tensor]:
    """Move the kept tokens of each text to its beginning.

    Args:
        tokens: [K, B, T].
        kept: Which stay, [K, B, T] bool.
        fill: The token behind them.

    Returns:
        The tokens, and where their documents start, as in `Example.source_starts`.
    """
    length = tokens.shape[-1]
    place = torch.where(kept, kept.cumsum(-1) - 1, length)
    index = torch.arange(length, device=tokens.device)
    count = kept.sum(-1, keepdim=True)
    return _scatter(tokens, place, length, fill), torch.where(index < count, 0, count)


def between(
    rows: Tensor, n: Tensor, before: float | None, behind: float | None, fill: float
) -> tuple[Tensor, Tensor]:
    """Return the first n values of each row between two others, and how many these are.

    Args:
        rows: [K, B, T].
        n: [K, B, 1].
        before: What stands before them; None for nothing.
        behind: What stands behind them; None for nothing.
        fill: What fills a row up.

    Returns:
        [K, B, T + 0 to 2], and [K, B, 1].
    """
    first, last = int(before is not None), int(behind is not None)
    index = torch.arange(rows.shape[-1] + first + last, device=rows.device) - first
    inside = index.clamp(0, rows.shape[-1] - 1).expand(*rows.shape[:-1], -1)
    found = rows.gather(-1, inside).masked_fill(index >= n, fill)
    if before is not None:
        found = found.masked_fill(index < 0, before)
    if behind is not None:
        found = found.masked_fill(index == n, behind)
    return found, n + first + last


def _counted(texts: Tensor) -> Tensor:
    """Return the number of tokens of each text, [K, B, 1]."""
    return torch.full_like(texts[..., :1], texts.shape[-1])


def _before(flags: Tensor) -> Tensor:
    """Return each position's flag of the position before it; False at the first."""
    return torch.cat((torch.zeros_like(flags[..., :1]), flags[..., :-1]), -1)


def _scatter(values: Tensor, place: Tensor, length: int, into: Tensor | int) -> Tensor:
    """Write values to places, of which `length` is none, into a tensor or a constant."""
    shape = (*values.shape[:-1], 1)
    base = torch.full_like(values, into) if isinstance(into, int) else into
    padded = torch.cat((base, values.new_zeros(shape)), -1)
    return padded.scatter(-1, place.expand_as(values), values)[..., :length]
