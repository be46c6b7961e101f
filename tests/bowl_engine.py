"""An engine without torch for the tests of `ablate.tune`: a run's loss is a bowl over the logarithm
of its learning rate.

The bowl's place is said by the topology; above `LIMIT` a run diverges. `FAILS`, a file named by the
environment, holds words (a learning rate, a topology, or "topology:n_layer:seed") whose runs fail
as long as they stand there.
"""

from __future__ import annotations

import math
import os
import random
import time
from pathlib import Path

from stub_engine import peak_bytes, setup, status, usable  # noqa: F401

BEST = {
    "serial": -2.72,
    "no-attention-skip": -3.0,
    "parallel": -1.1,
    "double-skip": -4.6,
}  # log10 of the best rate
LIMIT = {"no-mlp-skip": 0.0}  # the highest rate that does not diverge; 0.02 elsewhere
NOISE = 0.01


def loss(config) -> float:
    """The final loss; NaN where it diverges."""
    if config.lr > LIMIT.get(config.topology, 0.02):
        return math.nan
    noise = random.Random(f"{config.topology} {config.n_layer} {config.seed}").gauss(0, NOISE)
    return 2 + (math.log10(config.lr) - BEST[config.topology]) ** 2 + noise


def train(
    configs,
    evaluation,
    sources,
    *,
    device,
    emit,
    checkpoint,
    stop,
    resume,
    micro_batch,
    recompute,
    turn,
):
    time.sleep(float(os.environ.get("STUB_DELAY", "0")))
    fails = Path(os.environ.get("FAILS", "none"))
    for config, to in zip(configs, emit, strict=True):
        words = {
            str(config.lr),
            config.topology,
            f"{config.topology}:{config.n_layer}:{config.seed}",
        }
        if fails.exists() and words & set(fails.read_text().split()):
            raise ValueError("the stub was told to fail")
        to("start", step=0, compile_mode="none")
        value = loss(config)
        to("metrics", steps=[1], series={"train_loss": [value]})
        to(
            "final",
            values=[["loss", 0, value], ["bits_per_byte", 0, value], ["accuracy", 0, -value]],
        )
        ended = "complete" if math.isfinite(value) else "diverged"
        to("end", status=ended, step=1, error=None, device_seconds=0.1, peak_bytes=1 << 20)
