"""Tries levels of a user's own, as `ablate check` does: every trial of `ablate.model.trial`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ablate.components import CATALOGUE, Component
from ablate.config import RunConfig, resolve
from ablate.errors import AblateError
from ablate.model.trial import TRIALS, said
from ablate.text import Tokens
from ablate.train.meter import SERIES
from ablate.train.step import Step

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
OF_MODELS = ("block", "attention", "position", "embedding")  # groups of factors
LEARNT = 0.5  # nats by which the loss falls then: more than between two batches
TRAINS = "the loss falls in a run of 60 steps, and again in the same way"


@dataclass(frozen=True)
class Tried:
    """What came of a trial.

    Attributes:
        what: Its name, a key of `ablate.model.trial.TRIALS`.
        verdict: "ok", "FAILED", or "alone" for a level that works, but not in packs.
        text: What holds, or what is wrong.
    """

    what: str
    verdict: str
    text: str


def tried(component: Component) -> Iterator[Tried]:
    """Try a level in a small model, until nothing more can be tried."""
    try:
        config = resolve({**SMALL, **_beside(component.factor), component.factor: component.name})
    except AblateError as error:
        yield Tried("configuration", "FAILED", str(error))
        return
    if CATALOGUE[component.factor].group not in OF_MODELS:
        wrong = _trains(config)
        yield Tried("training", "FAILED" if wrong else "ok", wrong or TRAINS)
        return
    for what, trial in TRIALS.items():
        try:
            wrong = trial.run(config)
        except Exception as error:
            wrong = said(config, error)
        verdict = "FAILED" if trial.fatal else "alone"
        yield Tried(what, verdict if wrong else "ok", wrong or trial.holds)
        if wrong and trial.needed:
            return


def _trains(config: RunConfig) -> str:
    """Train a run twice; return what is wrong."""
    try:
        once, again = _losses(config), _losses(config)
    except Exception as error:
        return said(config, error)
    if not np.array_equal(once, again):
        return "the same run gives other losses the second time"
    first, last = once[0], once[-5:].mean()
    return "" if last < first - LEARNT else f"loss {first:.3f}, then {last:.3f} nats"


def _losses(config: RunConfig) -> Any:
    """Return the training losses of a run on a text in which each token follows from the last."""
    n = config.n_vocab - config.part("objective").special_tokens
    stream = (np.arange(4096) ** 2 % (n - 1)).astype(np.uint8)
    bounds, zero = np.array([0, len(stream)]), np.zeros(1, np.int64)
    spelling = tuple(bytes([65 + k]) for k in range(n))
    text = Tokens(stream, stream, n, spelling, bounds, zero, bounds, zero, (0,))
    step = Step([config], text, "cpu")
    step.run(config.steps, lambda: False)
    return step.read(config.steps)[0][:, SERIES.index("train_loss"), 0]


def _beside(factor: str) -> dict[str, str]:
    """Return the levels of other factors beside which a factor has a meaning."""
    needs = CATALOGUE[factor].needs
    if not needs or any(getattr(RunConfig(), name) in levels for name, levels in needs.items()):
        return {}
    name, levels = next(iter(needs.items()))
    return _beside(name) | {name: levels[0]}
