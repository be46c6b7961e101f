"""Do real runs of one arm, set against each other, show an effect? They must not.

    python benchmarks/stored_runs.py [--runs 256] [--studies 10000] [--seed 0] [--db
    results/stored-runs.db]

Trains one small model with many seeds, as a study that has it under two names (a second of
processor time a run; only what the database does not hold). Then draws A/A studies from the stored
runs: a baseline and four levels, all of them other seeds of that one arm. Prints the table of
docs/method.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from calibration import LEVELS, SEEDS, Floats, check, paired_p, row, table
from scipy import stats as st

import ablate

STUDY = """
name = "one-arm"
question = "Does one arm under two names differ from itself?"
metric = "loss"
seeds = {runs}
[base]
n_layer = 1
d_model = 32
n_ctx = 32
corpus = "austen"
tokenizer = "byte"
tokens = "50K"
batch_tokens = 512
lr = 3e-3
[factors.heads]
once = {{ n_head = 2 }}
again = {{ n_head = 2, n_kv_head = 2 }}
[eval]
points = 1
tokens = "4K"
"""


def train(db: str, runs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "one-arm.toml"
        file.write_text(STUDY.format(runs=runs))
        subprocess.run(
            [sys.executable, "-m", "ablate", "run", str(file), "--db", db, "--device", "cpu"],
            check=True,
        )


def drawn(losses: Floats, seeds: int, studies: int, rng: np.random.Generator) -> Floats:
    """Differences [R, S, M] of A/A studies, each of runs of which none stands in it twice."""
    picked = np.array([rng.permutation(losses)[: seeds * (1 + LEVELS)] for _ in range(studies)])
    arms = picked.reshape(studies, seeds, 1 + LEVELS)
    return arms[..., 1:] - arms[..., :1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=256, help="seeds of the arm")
    parser.add_argument(
        "--studies", type=int, default=10_000, help="A/A studies drawn for each number of seeds"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--db", default="results/stored-runs.db")
    options = parser.parse_args()
    train(options.db, options.runs)
    (effect,) = ablate.effects("one-arm", options.db).to_dict("records")
    print(
        f"\nTwo names: {effect['n']} pairs, effect {effect['mean']}, interval [{effect['lo']},"
        f" {effect['hi']}], p {effect['p']}"
    )
    losses = (
        ablate.load("one-arm", options.db)
        .query("heads == 'once' and status == 'complete'")["loss"]
        .to_numpy(float)
    )
    shape = (
        f"sd {losses.std(ddof=1):.4f}, skewness {st.skew(losses):+.2f}, excess kurtosis"
        f" {st.kurtosis(losses):+.2f}"
    )
    print(f"{len(losses)} runs, mean loss {losses.mean():.3f}, {shape}\n")
    table("seeds", "p ≤ 0.05", "coverage", "Holm", "Bonferroni intervals")
    rng = np.random.default_rng(options.seed)
    for seeds in SEEDS:
        d = drawn(losses, seeds, options.studies, rng)
        p = paired_p(d)
        check(d, p)
        holm, intervals = (
            (p.min(axis=1) * LEVELS <= 0.05).mean(),
            (p.min(axis=1) < 0.05 / LEVELS).mean(),
        )
        row(
            seeds,
            float((p <= 0.05).mean()),
            float((p > 0.05).mean()),
            float(holm),
            float(intervals),
        )


if __name__ == "__main__":
    main()
