"""A worker without torch for the tests of `ablate.tune`: loss is a bowl over log learning rate.

The topology says where the bowl's minimum lies; above `LIMIT` a run diverges. `FAILS`, a file named
by the environment, holds words (a learning rate, a topology, or "topology:n_layer:seed") whose runs
fail while they are there.
"""

from __future__ import annotations

import math
import os
import random
import time
from pathlib import Path

from stub_worker import COST, Stub, main

# log10 of the best rate
BEST = {"serial": -2.72, "no-attention-skip": -3.0, "parallel": -1.1, "double-skip": -4.6}
LIMIT = {"no-mlp-skip": 0.0}  # the highest rate that does not diverge; 0.02 elsewhere
NOISE = 0.01
UNIGRAM: float | None = None  # the loss of token frequencies, where a test sets one


def loss(config) -> float:
    """The final loss; NaN where it diverges."""
    if config.lr > LIMIT.get(config.topology, 0.02):
        return math.nan
    noise = random.Random(f"{config.topology} {config.n_layer} {config.seed}").gauss(0, NOISE)
    return 2 + (math.log10(config.lr) - BEST[config.topology]) ** 2 + noise


def copy_loss(lr: float) -> float:
    """Another metric of the same runs, lower at higher rates."""
    return 5 - 0.5 * math.log10(lr)


class Bowl(Stub):
    def train(self, job, context):
        time.sleep(float(os.environ.get("STUB_DELAY", "0")))
        fails = Path(os.environ.get("FAILS", "none"))
        for config, to in zip((run.config for run in job.runs), context.emit, strict=True):
            words = {
                str(config.lr),
                config.topology,
                f"{config.topology}:{config.n_layer}:{config.seed}",
            }
            if fails.exists() and words & set(fails.read_text().split()):
                raise ValueError("the stub fails as requested")
            to("start", step=0, compile_mode="none")
            lost = loss(config)
            to("metrics", steps=[1], series={"train_loss": [lost]})
            finals = [["loss", 0, lost], ["bits_per_byte", 0, lost], ["accuracy", 0, -lost]]
            finals += [["copy_loss", 0, copy_loss(config.lr)]]
            if UNIGRAM:
                finals += [["unigram_loss", 0, UNIGRAM]]
            to("final", values=finals)
            ended = "complete" if math.isfinite(lost) else "diverged"
            to("end", status=ended, step=1, error=None, **COST)


if __name__ == "__main__":
    main(Bowl)
