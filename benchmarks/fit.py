"""How long 4,000 bootstrap fits of L(N, D) to 240 points take, and that an independent optimiser
finds no better curve.

    python benchmarks/fit.py

Prints a line for docs/method.md. Target: under 20 s on 2 cores.
"""

from __future__ import annotations

import platform
import time
from datetime import date

import numpy as np
import scipy
from scipy import optimize

from ablate.scaling.bootstrap import estimate
from ablate.scaling.design import USUAL
from ablate.scaling.forms import FORMS
from ablate.scaling.solve import DELTA

REPLICATES, SIZES, RATIOS, NOISE, TARGET = 4000, 15, 16, 0.01, 20.0


def main() -> None:
    rng = np.random.default_rng(0)
    n = np.repeat(np.geomspace(5e7, 5e9, SIZES), RATIOS)
    columns = {"n": n, "d": n * np.tile(np.geomspace(2, 200, RATIOS), SIZES)}
    log_loss = np.log(FORMS["nd"].loss(USUAL, columns)) + NOISE * rng.normal(size=len(n))
    wall, cpu = time.perf_counter(), time.process_time()
    found = estimate(FORMS["nd"], columns, log_loss, rng, REPLICATES)
    value, replicates = found.value, found.replicates
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu

    def objective(theta: np.ndarray) -> float:
        e, a, alpha, b, beta = theta
        terms = [
            np.full(len(n), e),
            a - alpha * np.log(columns["n"]),
            b - beta * np.log(columns["d"]),
        ]
        residual = np.abs(np.logaddexp.reduce(terms) - log_loss)
        return float(
            np.where(residual < DELTA, residual**2 / 2, DELTA * (residual - DELTA / 2)).sum()
        )

    ours = np.array([np.log(value[0]), np.log(value[1]), value[2], np.log(value[3]), value[4]])
    one = time.perf_counter()
    other = optimize.minimize(
        objective,
        ours * 1.02,
        method="L-BFGS-B",
        options={"maxiter": 5000, "maxfun": 100_000, "ftol": 1e-14},
    )
    one = time.perf_counter() - one
    sd = replicates.std(axis=0)
    print(
        f"{date.today()}, Python {platform.python_version()}, numpy {np.__version__}, scipy"
        f" {scipy.__version__}"
    )
    print(
        f"{REPLICATES} bootstrap fits of {len(n)} points: {wall:.1f} s ({cpu:.1f} s of processor"
        f" time), target {TARGET:g} s"
    )
    print(
        f"summed Huber loss {objective(ours):.9f}; one L-BFGS-B fit from 2% away: {other.fun:.9f}"
        f" in {one:.2f} s"
    )
    print(
        "bootstrap sd: "
        + ", ".join(f"{name} {s:.3g}" for name, s in zip(FORMS["nd"].constants, sd, strict=True))
    )
    assert objective(ours) <= other.fun * (1 + 1e-6), "another optimiser found a better curve"


if __name__ == "__main__":
    main()
