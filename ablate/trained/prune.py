"""The importance of heads and blocks of a trained model: the held-out loss without each.

Source: Michel et al. 2019, arXiv:1905.10650, §3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from ablate.components import places
from ablate.components.places import Part
from ablate.config import RunConfig
from ablate.data.batches import gather, held_out_starts
from ablate.data.objectives import Example
from ablate.errors import AblateError
from ablate.model.places import attention_of, block_of
from ablate.stats.families import together
from ablate.stats.pairs import Effect
from ablate.stats.text import over_windows
from ablate.text import Tokens, corpora, files, sources, tokenizers
from ablate.text import of as tokens_of
from ablate.text.options import DEFAULT, Request
from ablate.trained.model import Model

What = Literal["heads", "blocks"]
LOGITS = 1 << 27  # that a model computes at once


@dataclass(frozen=True)
class Importance:
    """How much the loss changes without a part.

    Attributes:
        part: The part.
        effect: Loss without it minus loss with it, in nats per scored token, over windows of text.
    """

    part: Part
    effect: Effect


@dataclass(frozen=True)
class Pruned:
    """The importance of all heads or blocks of a model.

    Attributes:
        what: Which parts.
        corpus: Name of the text.
        loss: Held-out loss of the whole model, in nats per scored token: the mean over windows.
        windows: Windows of text.
        block: Largest number of neighbouring windows that count as one, as they are correlated.
        parts: Their importance, in the order of the model.
    """

    what: What
    corpus: str
    loss: float
    windows: int
    block: int
    parts: tuple[Importance, ...]


def prune(
    model: Model,
    what: What,
    *,
    corpus: str = "",
    tokens: int = 32768,
    advance: Callable[[int, int], object] = lambda done, of: None,
) -> Pruned:
    """Return how much the held-out loss changes without each head or block.

    To leave out a head, its output is set to 0 before the matrix that combines heads. To leave out
    a block, its output is replaced by its input. All weights stay the same. The windows are those
    of evaluations. Neighbouring windows are merged while they are significantly correlated. The
    intervals are Student's t intervals over the merged windows, widened by the correlation that
    remains. They hold for other text of the same kind.

    Args:
        model: A model of a run, or of a folder of `transformers`.
        what: Which parts.
        corpus: A text, as a study file names it, paths from the working directory; "" for that of
            the run.
        tokens: Held-out tokens to read.
        advance: Called with the number of parts that are done, and of all parts.

    Raises:
        AblateError: The model has no such parts, there is no such text, or a folder has no tokens
            for what its objective writes.
    """
    found = _parts(model.config, what)
    named, text = _text(model, corpus)
    examples = list(_examples(model, text, tokens))
    whole = _losses(model, examples, None)
    if len(whole) < 2:
        raise AblateError(
            f"corpus {named!r} has {len(whole)} window of {model.config.n_ctx} tokens to read, but"
            " an interval needs two; raise --tokens, or give a longer text"
        )
    effects, merged = [], 1
    for number, part in enumerate(found):
        difference = _losses(model, examples, part) - whole
        block, effect = over_windows(difference)
        merged = max(merged, block)
        effects.append(effect)
        advance(number + 1, len(found))
    worth = zip(found, together(effects), strict=True)
    parts = tuple(Importance(part, effect) for part, effect in worth)
    return Pruned(what, named, float(whole.mean()), len(whole), merged, parts)


def _parts(config: RunConfig, what: What) -> list[Part]:
    """Return the parts of a model.

    Raises:
        AblateError: It has none.
    """
    if not config.part("architecture").of_blocks:
        raise AblateError(f"architecture = {config.architecture!r} has no blocks of ablate's")
    if what == "blocks":
        return [
            Part(stack, layer) for stack, n in places.stacks(config).items() for layer in range(n)
        ]
    if heads := places.heads(config):
        return heads
    raise AblateError(
        f"architecture = {config.architecture!r} with mixer = {config.mixer!r} has no attention,"
        " and no heads; use --blocks"
    )


@contextmanager
def without(model: Model, part: Part | None) -> Iterator[None]:
    """Leave a part of a model out; None leaves it whole."""
    if part is None:
        yield
        return
    if part.head is None:
        block = block_of(model.transformer, part)
        # an attribute of this block alone, which stands before the method of its class
        block.forward = lambda x, *read: x
        try:
            yield
        finally:
            del block.forward
        return
    kept = torch.ones(model.config.n_head, 1, device=next(model.parameters()).device)
    kept[part.head] = 0
    # heads are [K, B, T, H, D]
    output = attention_of(model.transformer, part).output
    hook = output.register_forward_pre_hook(lambda _, given: (given[0] * kept,))
    try:
        yield
    finally:
        hook.remove()


@torch.inference_mode()
def _losses(model: Model, examples: Sequence[Example], part: Part | None) -> np.ndarray:
    """Return the mean loss of each window that scores a token, without a part; [W] float64."""
    found = []
    with without(model, part):
        for example in examples:
            logits = model.logits(*example.read).float()
            nats = F.cross_entropy(logits.mT, example.targets[0], reduction="none")
            scored = example.weights[0].double()
            counts = scored.sum(-1)
            found.append(((nats * scored).sum(-1) / counts)[counts > 0].cpu())
    return torch.cat(found).numpy()


def _examples(model: Model, text: Tokens, n: int) -> Iterator[Example]:
    """Yield what the model's objective makes of held-out windows, some at a time."""
    config, device = model.config, next(model.parameters()).device
    objective = config.part("objective").load()([config], text, device)
    documents = text.held_out_bounds[:-1] if config.part("objective").pairs else None
    starts = held_out_starts(len(text.held_out), config.n_ctx, n, documents)
    at_once = max(1, LOGITS // (config.n_ctx * config.n_vocab))
    mask = model.tokenizer.mask
    for row in range(0, len(starts), at_once):
        windows = gather(text.held_out, starts[row : row + at_once], config.n_ctx + 1)
        example: Example = objective.test(windows.to(device), row)
        if mask is not None:
            # the objective hides a token by the last one of the vocabulary, which is never a text's
            hidden = (example.weights > 0) & (example.inputs == config.n_vocab - 1)
            example = example._replace(inputs=example.inputs.masked_fill(hidden, mask))
        yield example


def _text(model: Model, named: str) -> tuple[str, Tokens]:
    """Return the name of a text, and its tokens by the model's tokenizer."""
    model.check_reads_text("prune")
    config = model.config
    if config.part("objective").corrupts:
        config.part("objective").check_given(config)
    if not named and not config.corpus:
        raise AblateError(
            "a model folder has no text: give one with --corpus, such as --corpus austen"
        )
    corpus = _corpus(model, named)
    if not named and corpus.hash != config.corpus_hash:
        raise AblateError(
            f"corpus {config.corpus!r} here is not the text that the run was trained on; give the"
            " text with --corpus"
        )
    with TemporaryDirectory() as folder:
        spec, extra = config.tokenizer, config.model_extra or {}
        if content := model.about.tokenizer:
            spec = str(Path(folder) / "tokenizer.json")
            Path(spec).write_bytes(content)
        found = tokens_of(corpus, tokenizers.describe(spec, corpus, Path(), extra))
    if config.part("objective").pairs:
        found = found.of_pairs(config.n_ctx)
    elif len(found.held_out) <= config.n_ctx:
        raise AblateError(
            f"corpus {corpus.name!r} holds out {len(found.held_out)} tokens, and a window of n_ctx"
            f" = {config.n_ctx} needs {config.n_ctx + 1}"
        )
    # as many as the model has, of which some may be in no text
    n_vocab = config.n_vocab - config.part("objective").n_added(config)
    return corpus.name, found.of_model(n_vocab)


def _corpus(model: Model, named: str) -> corpora.Corpus:
    """Return a corpus of this name, read as the run's own if it has its format; else the run's."""
    config, location = model.config, model.about.location
    if named:
        own = Request.of(location)
        alike = files.suffix(Path(named)) == files.suffix(Path(own.train))
        return corpora.find(named, Path(), own.reading if alike else DEFAULT)
    try:
        if not location:
            return corpora.find(config.corpus, Path())
        with sources.readable(f"corpus {config.corpus!r}"):
            facts = corpora.read(location)
        return corpora.Corpus(**vars(facts), name=config.corpus, location=location)
    except AblateError as error:
        raise AblateError(f"{error}; give a text with --corpus") from None
