"""The texts of a task, as a model reads them, and which of them are trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ablate import draws, text
from ablate.config import RunConfig
from ablate.data.batches import gather
from ablate.data.passages import Passages, of_texts, passages, written
from ablate.data.words import tagged
from ablate.errors import AblateError
from ablate.evaluation import PASSAGE
from ablate.text import Tokens, tasks


def task(config: RunConfig, tokens: Tokens, sources: Mapping[str, str]) -> Passages:
    """Return the texts of a run's `task`: those to train on, which are `fitted`, and the others.

    Args:
        config: A run that is fine-tuned.
        tokens: The text of its corpus.
        sources: Content hash of corpus, tokenizer and the task's file → location.

    Raises:
        AblateError: The file has changed since the plan, or a text has no tokens.
    """
    options = config.model_extra or {}
    if options["unit"] == "word":
        return tagged(config, tokens, _words(config, sources))
    if options["task_hash"]:
        named = f"task = {options['task']!r}"
        return of_texts(tasks.task, options["task_hash"], named, config, sources)
    shipped = tasks.TASKS[options["task"]]
    if shipped.n_texts == 2:
        return _same_document(options["task"], config, tokens, sources)
    found = passages(shipped.metric, config, tokens, sources)
    if not config.part("text_format").special:
        return found
    inputs, lengths = written(config, found.inputs.tolist())
    return replace(found, inputs=inputs, lengths=lengths)


def _words(config: RunConfig, sources: Mapping[str, str]) -> tasks.WordList:
    """Return the words of a run's task.

    Raises:
        AblateError: Their file has changed since the plan.
    """
    options = config.model_extra or {}
    if not options["task_hash"]:
        return tasks.syllables()
    path = Path(sources.get(options["task_hash"], ""))
    if path == Path() or (found := tasks.word_list(path)).hash != options["task_hash"]:
        raise AblateError(
            f"task = {options['task']!r} has changed since the study was planned: run the study"
            " again"
        )
    return found


def chosen(asked: Passages, n: int, seed: int) -> np.ndarray:
    """Return the numbers of `n` passages to train on, of all that are fitted.

    Each class has its share of them, and one at least. More labels of one seed contain fewer.

    Args:
        asked: The passages.
        n: How many; 0 for all.
        seed: The seed that they are drawn by.

    Raises:
        AblateError: There are fewer, or fewer than classes are asked for.
    """
    fitted = np.flatnonzero(asked.fitted)
    classes = asked.classes[fitted]
    n_class = int(asked.classes.max()) + 1
    tasks.check_number(n, len(fitted), n_class)
    place = np.empty(len(fitted))
    for number in range(n_class):
        of_class = np.flatnonzero(classes == number)
        draw = np.random.default_rng((seed, draws.stream("finetune.labels"), number))
        place[draw.permutation(of_class)] = np.arange(len(of_class)) / max(1, len(of_class))
    return fitted[np.lexsort((classes, place))[: n or len(fitted)]]


def scores(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Return accuracy, and macro F1: the mean F1 of all classes that occur in one of the two.

    Args:
        truth: Classes, [N] int.
        predicted: Classes, [N] int.
    """
    n = int(max(truth.max(), predicted.max())) + 1
    hits = np.bincount(truth[truth == predicted], minlength=n)
    both = np.bincount(truth, minlength=n) + np.bincount(predicted, minlength=n)
    f1 = 2 * hits[both > 0] / both[both > 0]
    return {"accuracy": float((truth == predicted).mean()), "f1": float(f1.mean())}


def _same_document(
    name: str, config: RunConfig, tokens: Tokens, sources: Mapping[str, str]
) -> Passages:
    """Return pairs of passages, half of them of one document, half of two: classes 1 and 0.

    Pairs to train on are of the training part, the others of the held-out part. They are the same
    for all runs with one tokenizer. A passage has half of 128 tokens, or of n_ctx, if that is
    smaller, without the tokens of `text_format`.
    """
    shipped = tasks.TASKS[name]
    tokens = text.shipped(shipped.corpus, config, tokens, sources)
    length = (min(PASSAGE, config.n_ctx) - len(config.part("text_format").special)) // 2
    if length < 1:
        raise AblateError(f"task = {name!r}: n_ctx = {config.n_ctx} has no room for two passages")
    firsts: list[list[int]] = []
    seconds: list[list[int]] = []
    classes: list[int] = []
    for part, stream, bounds, documents in (
        ("train", tokens.train, tokens.train_bounds, tokens.train_documents),
        ("held_out", tokens.held_out, tokens.held_out_bounds, tokens.held_out_documents),
    ):
        starts = {
            int(document): np.arange(start, end - length, length)
            for start, end, document in zip(bounds[:-1], bounds[1:], documents, strict=True)
            if end - length > start + length
        }
        if len(starts) < 2:
            raise AblateError(f"task = {name!r}: too few passages of {length} tokens; lower n_ctx")
        rng = np.random.default_rng(draws.stream(f"task.{name}.{part}"))
        pairs = _pairs(starts, shipped.most, rng)
        for side, into in ((0, firsts), (1, seconds)):
            into.extend(gather(stream, np.array([pair[side] for pair in pairs]), length).tolist())
        classes += [number % 2 for number in range(len(pairs))]
    inputs, lengths = written(config, firsts, seconds)
    fitted = np.arange(len(classes)) < 2 * shipped.most
    return Passages(inputs, np.array(classes), fitted, lengths)


def _pairs(
    starts: Mapping[int, np.ndarray], n: int, rng: np.random.Generator
) -> list[tuple[int, int]]:
    """Return where the passages of 2·n pairs start: in turn of two documents and of one.

    Each document is as often the first one as another, as far as n allows.

    Args:
        starts: Document → where its passages start, two or more.
        n: Pairs of each class.
        rng: Of the draws.
    """
    numbers = sorted(starts)
    rounds = -(-n // len(numbers))
    order = np.concatenate([rng.permutation(numbers) for _ in range(rounds)])[:n]
    found: list[tuple[int, int]] = []
    for one in order.tolist():
        other = int(rng.choice([number for number in numbers if number != one]))
        found.append((int(rng.choice(starts[one])), int(rng.choice(starts[other]))))
        first, second = rng.choice(starts[one], 2, replace=False)
        found.append((int(first), int(second)))
    return found
