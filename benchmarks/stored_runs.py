"""Do real runs of one arm, set against each other, show an effect? They must not.

    python benchmarks/stored_runs.py [--runs 256] [--rates 48] [--studies 10000] [--seed 0] [--db
    results/stored-runs.db]

Trains one small model with many seeds, as a study that has it under two names, and with some seeds
at thirteen learning rates (a second of processor time a run; only what the database does not hold).
Then draws A/A studies from the stored runs: a baseline and four levels, all of them other seeds of
that one arm; and two arms that are one, each with a rate tuned on seeds of its own. Prints the
tables of docs/method.md.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from calibration import LEVELS, PAIRS, SEEDS, Floats, check, judged, paired_p, searched
from printing import row, table
from scipy import stats as st
from scipy.interpolate import CubicSpline

import ablate
from ablate.stats import selection

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
RATES = """
name = "one-arm-rates"
question = "How does the loss of one arm depend on the learning rate, seed by seed?"
metric = "loss"
seeds = {runs}
[base]
n_layer = 1
d_model = 32
n_head = 2
n_ctx = 32
corpus = "austen"
tokenizer = "byte"
tokens = "50K"
batch_tokens = 512
[factors]
lr = [2e-3, 3e-3, 4.5e-3, 6.75e-3, 1.01e-2, 1.52e-2, 2.28e-2, 3.42e-2, 5.13e-2, 7.69e-2, 1.15e-1, 1.73e-1, 2.59e-1]
[eval]
points = 1
tokens = "4K"
"""  # noqa: E501
HALF = math.log(1.5)  # every second rate is a rung of the ladder


def train(db: str, study: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "study.toml"
        file.write_text(study)
        subprocess.run(
            [sys.executable, "-m", "ablate", "run", str(file), "--db", db, "--device", "cpu"],
            check=True,
        )


def drawn(losses: Floats, seeds: int, studies: int, rng: np.random.Generator) -> Floats:
    """Differences [R, S, M] of A/A studies, each of runs of which none stands in it twice."""
    picked = np.array([rng.permutation(losses)[: seeds * (1 + LEVELS)] for _ in range(studies)])
    arms = picked.reshape(studies, seeds, 1 + LEVELS)
    return arms[..., 1:] - arms[..., :1]


def tuned(db: str, studies: int, rng: np.random.Generator) -> None:
    """Print how often one arm, tuned twice on other seeds, differs from itself."""
    runs = ablate.load("one-arm-rates", db).query("role == 'compare'")
    runs = runs.assign(
        rate=runs["lr"].astype(float), loss=runs["loss"].where(runs["status"] == "complete")
    )
    frame = runs.pivot(index="seed", columns="rate", values="loss").sort_index(axis=1)
    losses, logs = frame.to_numpy(float), np.log(frame.columns.to_numpy(float))
    count = len(losses)
    # between two rates that a seed was trained at, its loss is that of a spline
    quarters = np.interp(np.arange(2 * len(logs) - 1) / 2, np.arange(len(logs)), logs)
    full = np.full((count, len(quarters)), np.inf)
    splines = []
    for seed, own in enumerate(losses):
        whole = len(own) if np.isfinite(own).all() else int(np.isnan(own).argmax())
        splines.append(CubicSpline(logs[:whole], own[:whole]))
        full[seed, : 2 * whole - 1] = splines[-1](quarters[: 2 * whole - 1])
    known = np.isfinite(losses).all(axis=0)
    best = losses[:, known].mean(axis=0).argmin()
    around = losses[:, best - 2 : best + 3]
    print(
        f"{count} seeds × {len(logs)} rates; best rate {math.exp(logs[best]):.3g}, sd over seeds"
        f" {around[:, 2].std(ddof=1):.4f}; correlation half a step apart"
        f" {np.corrcoef(around.T)[2, [1, 3]].mean():.2f}, a step"
        f" {np.corrcoef(around.T)[2, [0, 4]].mean():.2f}; half a step from the best rate costs"
        f" {(around[:, [1, 3]].mean() - around[:, 2].mean()):.4f}, a step"
        f" {(around[:, [0, 4]].mean() - around[:, 2].mean()):.4f}\n"
    )
    mean = CubicSpline(logs[known], losses[:, known].mean(axis=0))
    fine = np.linspace(logs[known][0], logs[known][-1], 4001)
    lowest = float(mean(fine).min())
    eighths = np.interp(np.arange(4 * len(logs) - 3) / 4, np.arange(len(logs)), logs)
    rungs = list(range(0, len(quarters), 4))[:-1]
    table(
        "tuning seeds",
        "compared seeds",
        "pairs",
        "regret",
        "its root mean square",
        "estimated",
        "plain t: p ≤ 0.05",
        "with choice: p ≤ 0.05",
        "width over plain t",
    )
    for seeds in (1, 3):
        for same in (False, True):
            for pairs in PAIRS:
                picks = np.array([rng.permutation(count) for _ in range(studies)])
                tuning = picks[:, : 2 * seeds].reshape(-1, seeds)
                compared = picks[:, 2 * seeds :][:, : pairs * (1 if same else 2)]
                compared = compared.reshape(studies, -1, pairs)
                some = searched(full[tuning], quarters, rungs, 2 * HALF)
                curves = selection.fit(quarters, some, 2 * HALF)
                chosen = eighths[selection.choose(curves, eighths)].reshape(studies, 2)
                if seeds == 1:
                    noise = float(around[:, 2].std(ddof=1)), pairs - 1
                    curves = selection.fit(quarters, some, 2 * HALF, noise)
                error = selection.regret(curves, chosen.reshape(-1)).reshape(studies, 2)
                values = np.array(
                    [
                        [
                            [float(splines[seed](rate)) for seed in own]
                            for rate, own in zip(
                                rates, np.broadcast_to(of, (2, pairs)), strict=True
                            )
                        ]
                        for rates, of in zip(chosen, compared, strict=True)
                    ]
                ).swapaxes(1, 2)
                zero, df = np.zeros((studies, 2)), selection.regret_df(curves).reshape(studies, 2)
                plain = judged(values, zero, zero, df)
                wide = judged(values, zero, error, df)
                regret = mean(chosen) - lowest
                row(
                    seeds,
                    "the same in both" if same else "different",
                    pairs,
                    f"{regret.mean():.4f}",
                    f"{math.sqrt((regret**2).mean()):.4f}",
                    f"{math.sqrt((error**2).mean()):.4f}",
                    plain[0],
                    wide[0],
                    f"{wide[2] / plain[2]:.2f}",
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=256, help="seeds of the arm")
    parser.add_argument(
        "--rates", type=int, default=48, help="seeds at each learning rate, 0: none"
    )
    parser.add_argument(
        "--studies", type=int, default=10_000, help="A/A studies drawn for each number of seeds"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--db", default="results/stored-runs.db")
    options = parser.parse_args()
    if options.rates:
        train(options.db, RATES.format(runs=options.rates))
        tuned(options.db, options.studies // 5, np.random.default_rng(options.seed))
    if not options.runs:
        return
    train(options.db, STUDY.format(runs=options.runs))
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
