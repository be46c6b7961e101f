"""How long 4,000 bootstrap fits of L(N, D) to 240 points take, and whether an independent optimiser
finds better curves.

    python benchmarks/fit.py [--tables 50] [--seed 0] [--processes N]

Prints lines and a table for docs/method.md. Target: under 20 s on 2 cores.
"""

from __future__ import annotations

import argparse
import platform
import time
from datetime import date

import numpy as np
import numpy.typing as npt
import scipy
from cores import Cores, arguments, processor_seconds
from scipy import optimize

from ablate.scaling.bootstrap import estimate
from ablate.scaling.design import USUAL
from ablate.scaling.forms import FORMS
from ablate.scaling.solve import DELTA

Floats = npt.NDArray[np.float64]
ND = FORMS["nd"]
REPLICATES, SIZES, RATIOS, NOISE, TARGET = 4000, 15, 16, 0.01, 20.0
# of the further tables: 5 sizes × 6 budgets of tokens, and starts of the other optimiser
LAWS = {"usual": USUAL, "nearly flat": np.array([1.2, 5, 0.06, 190, 0.237])}
NOISES = (0.005, 0.02)
STARTS = 32


def objective(theta: Floats, columns: dict[str, Floats], log_loss: Floats) -> tuple[float, Floats]:
    """Return the summed Huber loss at ln E, ln A, alpha, ln B, beta, and its slopes [5]."""
    e, a, alpha, b, beta = theta
    logs = np.log(columns["n"]), np.log(columns["d"])
    terms = np.stack([np.full(len(log_loss), e), a - alpha * logs[0], b - beta * logs[1]])
    total = np.logaddexp.reduce(terms)
    share, residual = np.exp(terms - total), total - log_loss
    size = np.abs(residual)
    value = np.where(size < DELTA, residual**2 / 2, DELTA * (size - DELTA / 2)).sum()
    pull = share * np.clip(residual, -DELTA, DELTA)
    slopes = [*pull.sum(axis=1), -(pull[1] @ logs[0]), -(pull[2] @ logs[1])]
    return float(value), np.array(slopes)[[0, 1, 3, 2, 4]]


def logged(constants: Floats) -> Floats:
    e, a, alpha, b, beta = constants
    return np.array([np.log(max(e, 1e-12)), np.log(a), alpha, np.log(b), beta])


def descended(start: Floats, columns: dict[str, Floats], log_loss: Floats) -> float:
    """Return the summed Huber loss where L-BFGS-B ends, within the exponents searched."""
    options = {"maxiter": 5000, "maxfun": 100_000, "ftol": 1e-14, "gtol": 1e-9}
    bounds = [(-30, 3), (None, None), (0, 4), (None, None), (0, 4)]
    found = optimize.minimize(
        objective,
        start,
        (columns, log_loss),
        method="L-BFGS-B",
        jac=True,
        bounds=bounds,
        options=options,
    )
    return float(found.fun)


def speed() -> None:
    rng = np.random.default_rng(0)
    n = np.repeat(np.geomspace(5e7, 5e9, SIZES), RATIOS)
    columns = {"n": n, "d": n * np.tile(np.geomspace(2, 200, RATIOS), SIZES)}
    log_loss = np.log(ND.loss(USUAL, columns)) + NOISE * rng.normal(size=len(n))
    wall, cpu = time.perf_counter(), time.process_time()
    found = estimate(ND, columns, log_loss, rng, REPLICATES)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    ours = logged(found.value)
    reached = objective(ours, columns, log_loss)[0]
    one = time.perf_counter()
    other = descended(ours * 1.02, columns, log_loss)
    one = time.perf_counter() - one
    print(
        f"{REPLICATES} bootstrap fits of {len(n)} points: {wall:.1f} s ({cpu:.1f} s of processor"
        f" time), target {TARGET:g} s"
    )
    print(
        f"summed Huber loss {reached:.9f}; one L-BFGS-B fit from 2% away: {other:.9f}"
        f" in {one:.2f} s"
    )
    sd = found.replicates.std(axis=0)
    print(
        "bootstrap sd: "
        + ", ".join(f"{name} {s:.3g}" for name, s in zip(ND.constants, sd, strict=True))
    )
    assert reached <= other * (1 + 1e-6), "another optimiser found a better curve"


def optima(cores: Cores, tables: int) -> None:
    """Compare the optimum of many tables with the lowest of L-BFGS-B from many starts."""
    print("\n| law | noise | tables | above by > 0.1% | the most | below by > 0.1% |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    cases = [(name, noise) for name in LAWS for noise in NOISES]
    for (name, noise), found in zip(cases, cores.each(excess, cases, tables), strict=True):
        off = np.array(found)
        above, below = int((off > 1e-3).sum()), int((off < -1e-3).sum())
        most = f"{max(off.max(), 0):.2%}"
        print(f"| {name} | {noise:.1%} | {tables} | {above} | {most} | {below} |", flush=True)


def excess(rng: np.random.Generator, name: str, noise: float) -> float:
    """Return by which share the loss of a fit is above that of the other optimiser."""
    n, d = np.repeat(np.geomspace(2e8, 3e9, 5), 6), np.tile(np.geomspace(2e9, 6e11, 6), 5)
    columns = {"n": n, "d": d}
    log_loss = np.log(ND.loss(LAWS[name], columns)) + noise * rng.normal(size=len(n))
    ours = objective(logged(estimate(ND, columns, log_loss, rng, 100).value), columns, log_loss)[0]
    low, best = float(log_loss.min()), np.inf
    for _ in range(STARTS):
        floor, scales = rng.uniform(0.1, 1), rng.uniform(0.02, 0.6, size=2)
        slopes = np.exp(rng.uniform(np.log(0.03), np.log(1), size=2))
        a, b = low + np.log(scales) + slopes * [np.log(n).mean(), np.log(d).mean()]
        start = np.array([low + np.log(floor), a, slopes[0], b, slopes[1]])
        best = min(best, descended(start, columns, log_loss))
    return ours / best - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--tables", type=int, default=50, help="further tables a case")
    arguments(parser)
    options = parser.parse_args()
    print(
        f"{date.today()}, Python {platform.python_version()}, numpy {np.__version__}, scipy"
        f" {scipy.__version__}, {options}"
    )
    speed()
    if options.tables:
        with Cores(options) as cores:
            optima(cores, options.tables)
    print(f"\n{processor_seconds():.0f} s of processor time")


if __name__ == "__main__":
    main()
