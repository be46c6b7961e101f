"""Small runs on images for the tests, and sets of images that are easy to learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from train_helpers import Events

from ablate import images
from ablate.config import RunConfig
from ablate.evaluation import Evaluation
from ablate.kinds import Context, Job, Run, kind

SMALL: dict[str, Any] = {
    "objective": "mae",
    "patch": 2,
    "image_height": 6,
    "image_width": 8,
    "image_channels": 3,
    "n_layer": 2,
    "d_model": 16,
    "n_head": 4,
    "n_class": 5,
}


def fields(**changes: Any) -> dict[str, Any]:
    """The fields of a small run on images, with what follows from others filled in."""
    made = SMALL | changes
    n_class = made.pop("n_class")
    patches = made["image_height"] * made["image_width"] // made["patch"] ** 2
    of_patch = made["patch"] ** 2 * made["image_channels"]
    follows = {
        "n_ctx": patches,
        "n_vocab": of_patch if made["objective"] == "mae" else n_class,
        "batch_tokens": 2 * patches,
    }
    return follows | made


def small(**changes: Any) -> RunConfig:
    """The configuration of a small run on images."""
    return RunConfig(**fields(**changes))


def digits(**changes: Any) -> Run:
    """A run on the shipped digits."""
    found = images.find("digits", Path())
    size = {"image_height": 8, "image_width": 8, "image_channels": 1, "n_class": 10}
    of = {"corpus": "digits", "corpus_hash": found.hash}
    return Run("image", kind("image").check(fields(**size | of | changes)))


def train(
    *runs: Run, evaluation: Evaluation, into: Sequence[Events] = (), **arguments: Any
) -> list[Events]:
    """Train a pack on the CPU; its members' events, appended to `into`."""
    events = list(into) or [Events() for _ in runs]
    found = images.find("digits", Path())
    stop = arguments.pop("stop", lambda: False)
    job = Job(tuple(runs), evaluation, sources={found.hash: found.location}, **arguments)
    kind("image").train(job, Context("cpu", events, stop))
    return events


def save(path: Path, n: int = 40, shape: tuple[int, ...] = (4, 4), n_class: int = 2) -> Path:
    """Write an .npz of random images whose mean says their class."""
    random = np.random.default_rng(0)
    labels = np.arange(n) % n_class
    noise = random.integers(0, 60, (n, *shape))
    pixels = noise + labels.reshape(-1, *[1] * len(shape)) * (190 // max(1, n_class - 1))
    np.savez(path, x=pixels.astype(np.uint8), y=labels)
    return path
