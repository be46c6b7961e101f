"""Parameters, FLOPs and memory of a configuration in closed form; no torch."""

from __future__ import annotations

from ablate.config import RunConfig


def embedding_scale(config: RunConfig) -> float:
    """What embeddings are multiplied by where they enter the stream (Vaswani et al. 2017, §3.4).

    √d_model, for embeddings that start at std 1/√d_model: the stream starts at an RMS of 1, and a tied head is as an
    untied one. 1 for `init = "normal-0.02"`, which is as in GPT-2 and BERT.
    """
    return 1.0 if config.init == "normal-0.02" else config.d_model**0.5


def t5_buckets(config: RunConfig) -> tuple[int, int]:
    """Number of buckets and maximum distance of `position = "t5"`.

    T5's 32 and 128 at its context of 512; the distance follows a quarter of longer contexts and stays within shorter
    ones, which get fewer buckets where some would hold no distance. Full attention shares them between two directions.
    """
    directions = 2 if config.attention == "full" else 1
    distance = min(config.n_ctx, max(128, config.n_ctx // 4))
    each = max(2, min(32 // directions, distance // 2 // 2 * 2))
    return directions * each, distance
