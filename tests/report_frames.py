"""Frames as `ablate.results` gives them, made up for the tests of figures and report."""

from __future__ import annotations

import numpy as np
import pandas as pd

LEVELS = {
    "serial": 0.0,
    "no-attention-skip": 0.021,
    "no-mlp-skip": 0.034,
    "double-skip": -0.004,
    "parallel": 0.009,
}


def pairs(
    shifts: dict[str, float] = LEVELS,
    strata: tuple[str, ...] = ("n_layer=4", "n_layer=12"),
    seeds: int = 6,
) -> pd.DataFrame:
    """The view `pairs` of a study of one factor, `topology`; the first level is the baseline."""
    rng = np.random.default_rng(3)
    base, *others = shifts
    rows = []
    for depth, stratum in enumerate(strata):
        tail = f", {stratum}" if stratum else ""
        seed_noise = rng.normal(0, 0.02, seeds)
        baseline = 1.40 - 0.05 * depth + seed_noise
        for level in others:
            value = baseline + shifts[level] * (1 + depth) + rng.normal(0, 0.006, seeds)
            for seed in range(seeds):
                rows.append(
                    {
                        "study": "topology",
                        "family": f"topology{tail}",
                        "stratum": stratum,
                        "factor": "topology",
                        "level": level,
                        "cell": f"topology={level}{tail}",
                        "baseline": f"topology={base}{tail}",
                        "seed": seed,
                        "metric": "loss",
                        "value": value[seed],
                        "baseline_value": baseline[seed],
                        "difference": value[seed] - baseline[seed],
                        "status": "complete",
                        "baseline_status": "complete",
                    }
                )
    return pd.DataFrame(rows)


def arms(names: list[str]) -> pd.CategoricalDtype:
    return pd.CategoricalDtype(names, ordered=True)


def curves(
    names: tuple[str, ...] = tuple(LEVELS), seeds: int = 3, points: int = 60, steps: int = 2400
) -> pd.DataFrame:
    """Learning curves with tokens, flops and seconds, one row a point."""
    rng = np.random.default_rng(4)
    step = np.linspace(steps / points, steps, points).astype(int)
    parts = []
    for index, name in enumerate(names):
        for seed in range(seeds):
            value = (
                1.3
                + 0.02 * index
                + 4.2 * np.exp(-step / 180)
                + 0.6 * np.exp(-step / 1200)
                + rng.normal(0, 0.01, points)
            )
            parts.append(
                pd.DataFrame(
                    {
                        "arm": name,
                        "run": index * seeds + seed,
                        "seed": seed,
                        "step": step,
                        "tokens": step * 8192,
                        "value": value,
                        "flops": step * 8192 * 6.0 * 8e5,
                        "seconds": step * (0.02 + 0.002 * index),
                    }
                )
            )
    return pd.concat(parts, ignore_index=True).astype({"arm": arms(list(names))})
