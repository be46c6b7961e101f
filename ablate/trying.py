"""Tries levels of a user's own, as `ablate check` does: every trial of `ablate.model.trial`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ablate.components import CATALOGUE, Component
from ablate.config import RunConfig, resolve
from ablate.errors import AblateError
from ablate.model.trial import TRIALS, said

SMALL: dict[str, Any] = {
    "n_layer": 2,
    "d_model": 32,
    "n_head": 2,
    "n_ctx": 16,
    "batch_tokens": 32,
    "n_vocab": 19,
}


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
    for what, trial in TRIALS.items():
        try:
            wrong = trial.run(config)
        except Exception as error:
            wrong = said(config, error)
        verdict = "FAILED" if trial.fatal else "alone"
        yield Tried(what, verdict if wrong else "ok", wrong or trial.holds)
        if wrong and trial.needed:
            return


def _beside(factor: str) -> dict[str, str]:
    """Return the levels of other factors beside which a factor has a meaning."""
    needs = CATALOGUE[factor].needs
    if not needs or any(getattr(RunConfig(), name) in levels for name, levels in needs.items()):
        return {}
    name, levels = next(iter(needs.items()))
    return _beside(name) | {name: levels[0]}
