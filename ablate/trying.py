"""Tries levels and metrics of a user's own, as `ablate check` does.

A level passes every trial of `TRIALS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ablate import outside, sizes
from ablate.components import CATALOGUE, Component
from ablate.components.catalogue import OF_MODELS
from ablate.config import RunConfig, resolve
from ablate.errors import AblateError
from ablate.metrics import METRICS, Metric
from ablate.model import trial
from ablate.text import Tokens, corpora, sources
from ablate.text.tokenizers import Own, located
from ablate.train.meter import SERIES
from ablate.train.own import OwnMetric, random_tokens
from ablate.train.step import Step
from ablate.units import listed

SMALL: dict[str, Any] = {
    "n_layer": 2,
    "d_model": 32,
    "n_head": 2,
    "n_ctx": 16,
    "batch_tokens": 32,
    "n_vocab": 19,
    "steps": 60,
    "lr": 1e-2,
}
LEARNT = 0.5  # nats by which the loss falls then: more than between two batches
TRAINS = "the loss falls in a run of 60 steps, and in the same way again and from a checkpoint"


@dataclass(frozen=True)
class Tried:
    """What came of a trial.

    Attributes:
        what: Its name, a key of `TRIALS`.
        verdict: "ok", "FAILED", "alone" for a level that works, but not in packs, or "note" for
            what may be meant.
        text: What holds, or what is wrong.
    """

    what: str
    verdict: str
    text: str


def sized(config: RunConfig) -> str:
    """Whether the model has as many parameters as is said of it."""
    planned, found = sizes.count(config).params, trial.built(config).n_params
    return "" if planned == found else f"{planned:,} parameters are stated, the model has {found:,}"


@dataclass(frozen=True)
class Trial:
    """One trial.

    Attributes:
        holds: What holds where nothing is found.
        run: Returns what is wrong, "" for nothing.
        needed: Whether other trials mean nothing without it.
        otherwise: The verdict where something is found.
    """

    holds: str
    run: Callable[[RunConfig], str]
    needed: bool = False
    otherwise: str = "FAILED"


TRIALS = {
    "shapes": Trial("logits are [B, T, V] and finite", trial.shapes, needed=True),
    "determinism": Trial(
        "the same seed and tokens give the same numbers", trial.deterministic, needed=True
    ),
    "causality": Trial("no token sees a later one, or another sequence", trial.causality),
    "gradients": Trial("a gradient reaches every parameter", trial.gradients),
    "zeros": Trial("no parameter has a gradient of 0", trial.zeros, otherwise="note"),
    "packs": Trial(
        "a member of a pack computes what it computes alone", trial.packed, otherwise="alone"
    ),
    "sizes": Trial("the model has the parameters that are planned", sized),
    "learning": Trial(f"the loss falls within {trial.STEPS} steps", trial.learns),
}


def tried(component: Component) -> Iterator[Tried]:
    """Try a level in a small model, until nothing more can be tried."""
    if CATALOGUE[component.factor].open:
        yield from _tried_tokenizer(component)
        return
    try:
        config = resolve({**SMALL, **_beside(component.factor), component.factor: component.name})
    except AblateError as error:
        yield Tried("configuration", "FAILED", str(error))
        return
    if CATALOGUE[component.factor].group not in OF_MODELS:
        wrong = _trains(config)
        yield Tried("training", "FAILED" if wrong else "ok", wrong or TRAINS)
        return
    for what, one in TRIALS.items():
        try:
            wrong = one.run(config)
        except Exception as error:
            wrong = trial.said(config, error)
        yield Tried(what, one.otherwise if wrong else "ok", wrong or one.holds)
        if wrong and one.needed:
            return


METRIC_TRIALS = {
    "shapes": "a number for each token, and one of their means",
    "determinism": "the same tokens give the same number",
    "windows": "a window has the same numbers beside others",
}


def tried_metric(row: Metric) -> Iterator[Tried]:
    """Try a metric with random logits of 256 tokens, those of the tokenizer byte."""
    config = resolve({**SMALL, "n_vocab": 256})
    given = random_tokens(config, 4, "cpu")

    def metric() -> OwnMetric:
        return OwnMetric(METRICS[row.name], config, [bytes([k]) for k in range(256)])

    def sums(made: OwnMetric, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        part = {name: of[first:last] for name, of in given.items()}
        return made.sums(part, torch.ones_like(part["targets"], dtype=torch.bool))

    try:
        made = metric()
        whole, (head, tail) = sums(made, 0, 4), (sums(made, 0, 1), sums(made, 1, 4))
        made.value(*whole)
        with outside.afresh():
            elsewhere = sums(metric(), 0, 4)
        again = sums(made, 0, 4), elsewhere
        wrong = {
            "determinism": not all(torch.equal(whole[0], one[0]) for one in again),
            "windows": not torch.allclose(whole[0], head[0] + tail[0]),
        }
    except AblateError as error:
        yield Tried("shapes", "FAILED", str(error))
    else:
        yield from _judged(METRIC_TRIALS, wrong)


TOKENIZER_TRIALS = {
    "numbers": "encode makes numbers from 0 to n_vocab - 1",
    "determinism": "the same text gives the same tokens",
    "round trip": "decode makes the text again, so that bits_per_byte compares tokenizers",
    "bytes": "decoded one by one, the tokens have the bytes of the text",
}


def _tried_tokenizer(component: Component) -> Iterator[Tried]:
    """Try a tokenizer on the first pieces of a text in English."""
    documents = iter(sources.at(corpora.find("austen", Path()).location).documents())
    pieces = list(islice(next(documents).pieces(), 20))
    try:
        made = Own(located(component.name, {}))
        tokens = made.encode(pieces)
        decoded = [made.decode(one).encode() for one in tokens]
        with outside.afresh():
            again = Own(located(component.name, {})).encode(pieces)
        wrong = {
            "determinism": tokens != again,
            "round trip": decoded != pieces,
            "bytes": [b"".join(made.spelling[k] for k in one) for one in tokens] != decoded,
        }
    except AblateError as error:
        yield Tried("numbers", "FAILED", str(error))
    else:
        yield from _judged(TOKENIZER_TRIALS, wrong)


def _judged(trials: Mapping[str, str], wrong: Mapping[str, bool]) -> Iterator[Tried]:
    for what, holds in trials.items():
        failed = wrong.get(what, False)
        yield Tried(what, "FAILED" if failed else "ok", f"not so: {holds}" if failed else holds)


def _trains(config: RunConfig) -> str:
    """Train a run twice, from a checkpoint and with another warm-up; return what is wrong."""
    try:
        begun = _begun(config)
        initial = [parameter.detach().clone() for parameter in begun.model.parameters()]
        once = _losses(begun)
        with outside.afresh():
            again = _losses(_begun(config))
        half, rest = _begun(config), _begun(config)
        _losses(half, config.steps // 2)
        rest.load_state(half.state(), torch.tensor([0]))
        resumed = _losses(rest, config.steps - config.steps // 2)
        warmed = _losses(_begun(config.model_copy(update={"warmup": 0.5})))
    except Exception as error:
        return trial.said(config, error)
    if not np.array_equal(once, again, equal_nan=True):
        return "the same run gives other losses the second time"
    first, last = once[0], once[-5:].mean()
    if not last < first - LEARNT:
        return f"loss {first:.3f}, then {last:.3f} nats"
    moved = zip(begun.model.named_parameters(), initial, strict=True)
    if fixed := [name for (name, now), then in moved if torch.equal(now, then)]:
        return f"{listed(fixed[:3])} {'do' if len(fixed) > 1 else 'does'} not change in training"
    if not all(parameter.isfinite().all() for parameter in begun.model.parameters()):
        return "weights are not finite after the last step"
    if np.array_equal(once, warmed):
        return (
            "a longer warm-up gives the same losses: the schedule has no effect; an optimiser gets"
            " the rate of each step as `lr` of its `param_groups`"
        )
    if not np.array_equal(once[-len(resumed) :], resumed):
        return (
            "a run that goes on from a checkpoint gives other losses; checkpoints hold the"
            " `state_dict` of an optimiser, which has what is kept in `self.state`"
        )
    return ""


def _begun(config: RunConfig) -> Step:
    """Return a run before its first step on a text in which each token follows from the last."""
    n = config.n_vocab - config.part("objective").n_added(config)
    stream = (np.arange(4096) ** 2 % (n - 1)).astype(np.uint8)
    bounds, zero = np.array([0, len(stream)]), np.zeros(1, np.int64)
    spelling = tuple(bytes([65 + k]) for k in range(n))
    text = Tokens(stream, stream, n, spelling, bounds, zero, bounds, zero, (0,))
    return Step([config], text, "cpu")


def _losses(step: Step, n: int = 0) -> Any:
    """Make n steps, by default all of the run, and return their training losses."""
    n = n or step.config.steps
    step.run(n, lambda: False)
    return step.read(n)[0][:, SERIES.index("train_loss"), 0]


def _beside(factor: str) -> dict[str, str]:
    """Return the levels of other factors beside which a factor has a meaning."""
    needs = CATALOGUE[factor].needs
    if not needs or any(getattr(RunConfig(), name) in levels for name, levels in needs.items()):
        return {}
    name, levels = next(iter(needs.items()))
    return _beside(name) | {name: levels[0]}
