"""Small texts and runs for the tests of training, and a journal in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ablate.components import CATALOGUE
from ablate.config import RunConfig
from ablate.evaluation import Evaluation
from ablate.kinds import Context, Job
from ablate.kinds.transformer import run_of
from ablate.text import Tokens
from ablate.train.engine import train

TINY: dict[str, Any] = {
    "d_model": 16,
    "n_layer": 2,
    "n_head": 2,
    "n_ctx": 16,
    "batch_tokens": 64,
    "n_vocab": 32,
    "steps": 30,
    "lr": 1e-2,
}
EVALUATION = Evaluation(points=3, tokens=256)


def config(**changes: Any) -> RunConfig:
    """A tiny run; special tokens of its objective, such as [MASK], follow the 32 of the text."""
    objective = CATALOGUE["objective"][changes.get("objective", "causal")]
    return RunConfig(**TINY | {"n_vocab": 32 + objective.special_tokens} | changes)


@cache
def text(n: int = 4000, n_vocab: int = 32) -> Tokens:
    """A text that is easy to learn: 7 of 8 tokens follow from the last; each has two bytes."""
    random = np.random.default_rng(0)
    stream = np.zeros(n, np.uint8)
    for i in range(1, n):
        stream[i] = (
            random.integers(n_vocab)
            if random.random() < 1 / 8
            else (5 * stream[i - 1] + 3) % n_vocab
        )
    train_part, held_out = stream[: n * 9 // 10], stream[n * 9 // 10 :]
    bounds = [np.array([0, len(part)]) for part in (train_part, held_out)]
    # the last token ends a sentence
    spelling = (*(bytes([65 + k, 32]) for k in range(n_vocab - 1)), b". ")
    one = np.zeros(1, np.int64)
    return Tokens(train_part, held_out, n_vocab, spelling, bounds[0], one, bounds[1], one, (0,))


def pairs(n_ctx: int, letters: int = 2, documents: int = 40) -> Tokens:
    """Pairs of random letters and the same letters turned round, in the vocabulary of `TINY`."""
    random = np.random.default_rng(0)
    tab, end = 30, 31

    def stream(n: int) -> np.ndarray:
        sources = random.integers(30, size=(n, letters))
        marks, ends = np.full((n, 1), tab), np.full((n, 1), end)
        rows = np.concatenate([sources, marks, sources[:, ::-1], ends], 1)
        return rows.astype(np.uint8).ravel()

    parts = [stream(documents), stream(documents // 5)]
    bounds = [np.arange(0, len(part) + 1, 2 * letters + 2) for part in parts]
    spelling = (*(bytes([65 + k]) for k in range(30)), b"\t", b"\f")
    numbers = [np.arange(len(one) - 1) for one in bounds]
    of = (bounds[0], numbers[0], bounds[1], numbers[1])
    return Tokens(*parts, 32, spelling, *of, (end,)).of_pairs(n_ctx)


class Events:
    """Collects the events of one member."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __call__(self, event: str, **values: Any) -> None:
        self.events.append({"event": event, **values})

    def of(self, event: str) -> list[dict[str, Any]]:
        return [found for found in self.events if found["event"] == event]

    def series(self, name: str) -> dict[int, float]:
        """step → value, later attempts over earlier ones; a `start` drops what lies beyond its
        step, as the store does.
        """
        values: dict[int, float] = {}
        for event in self.events:
            if event["event"] == "start":
                values = {step: value for step, value in values.items() if step <= event["step"]}
            elif name in event.get("series", {}):
                values |= dict(zip(event["steps"], event["series"][name], strict=True))
        return values

    def curve(self) -> dict[str, dict[int, float]]:
        """What must be the same whenever the run is the same."""
        return {name: self.series(name) for name in ("train_loss", "grad_norm", "lr", "loss")}

    def finals(self) -> dict[tuple[str, float], float]:
        return {
            (name, at): value for event in self.of("final") for name, at, value in event["values"]
        }

    def measured(self) -> dict[tuple[str, float], float]:
        """The finals without those that tell the time."""
        return {key: value for key, value in self.finals().items() if key[0] != "train_seconds"}

    @property
    def end(self) -> dict[str, Any]:
        return self.of("end")[-1]


def run(
    *configs: RunConfig,
    evaluation: Evaluation = EVALUATION,
    tokens: Tokens | None = None,
    into: Sequence[Events] = (),
    device: str = "cpu",
    stop: Callable[[], bool] = lambda: False,
    device_lock: AbstractContextManager[None] | None = None,
    parent: str = "",
    checkpoint: Path | None = None,
    resume: bool = False,
    **arguments: Any,
) -> list[Events]:
    """Train a pack on the CPU; its members' events, appended to `into`. `resume`: continue from
    `checkpoint`, which must not change which file is written.
    """
    events = list(into) or [Events() for _ in configs]
    job = Job(tuple(run_of(config, parent) for config in configs), evaluation, **arguments)
    job = replace(job, checkpoint=checkpoint, resume=checkpoint if resume else None)
    first = configs[0]
    tokens = tokens or (pairs(first.n_ctx) if first.part("objective").pairs else text())
    train(job, Context(device, events, stop, device_lock or nullcontext()), tokens)
    return events


def after(n: int) -> Callable[[], bool]:
    """A `stop` that says so when it is asked for the n-th time."""
    asked = iter(range(1, 1 << 30))
    return lambda: next(asked) >= n


def main() -> None:
    """Train the run of a configuration's JSON on stdin, and print its curve and finals."""
    import json
    import sys

    import torch

    torch.set_num_threads(1)
    (events,) = run(RunConfig(**json.loads(sys.stdin.read())))
    print(
        json.dumps(
            {
                "curve": events.curve(),
                "finals": [[*key, value] for key, value in events.measured().items()],
            }
        )
    )


if __name__ == "__main__":
    assert Path(__file__).parent.name == "tests"
    main()
