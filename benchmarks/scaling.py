"""Do scaling intervals hold what they claim if runs share errors, and beyond the runs?

    python benchmarks/scaling.py [--linear 400] [--pairs 30] [--isoflop 100] [--ladders 20]
                                 [--only linear] [--seed 0] [--processes N]

Prints the tables of docs/method.md: coverage of the constants, of the curve and of held-out sizes;
false differences of two groups of one law; coverage of isoFLOP exponents; and coverage of losses
predicted at 2, 4 and 10 times the largest size, of laws that follow the form and of laws that do
not.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from datetime import date
from functools import partial

import numpy as np
import numpy.typing as npt
import printing
import scipy
from cores import Cores, arguments, processor_seconds
from printing import table

from ablate import scaling
from ablate.errors import AblateError
from ablate.scaling.beyond import Outlook
from ablate.scaling.bootstrap import limits
from ablate.scaling.design import USUAL
from ablate.scaling.forms import FORMS
from ablate.scaling.shared import shared_errors

Floats = npt.NDArray[np.float64]
Errors = tuple[float, float, float]
Law = Callable[[Floats, Floats], Floats]
ND = FORMS["nd"]
REPLICATES = 200
DESIGNS = ((5, 4), (6, 6))  # sizes × budgets
# sd of log loss between runs, shared by a size, shared by a budget
ERRORS = (
    (0.003, 0.0, 0.0),
    (0.02, 0.0, 0.0),
    (0.0025, 0.0025, 0.0),
    (0.0025, 0.005, 0.0),
    (0.005, 0.005, 0.005),
)
CASES = [(*design, errors) for design in DESIGNS for errors in ERRORS]
FAR = {"n": np.array([2.4e10]), "d": np.array([4.8e11])}


def usual(n: Floats, d: Floats) -> Floats:
    return ND.loss(USUAL, {"n": n, "d": d})


def kaplan(n: Floats, d: Floats) -> Floats:
    """Equation 1.5 of Kaplan et al. 2020 (arXiv:2001.08361): no floor, a cross term."""
    return ((8.8e13 / n) ** (0.076 / 0.095) + 5.4e13 / d) ** 0.095


def embedding(n: Floats, d: Floats) -> Floats:
    """The usual law in the body's parameters, where those of 32,000 embeddings are counted too."""
    width = np.geomspace(32, 40_000, 4000)
    body = width**3 * 12 / 64
    return usual(np.exp(np.interp(np.log(n), np.log(body + 32_000 * width), np.log(body))), d)


def broken(share: float) -> Law:
    """The exponent of N becomes `share` of its value around 300 million."""

    def law(n: Floats, d: Floats) -> Floats:
        floor, a, alpha, b, beta = USUAL
        bend = (1 + (n / 3e8) ** 2) ** (alpha * (1 - share) / 2)
        return floor + a * n**-alpha * bend + b * d**-beta

    return law


LAWS: dict[str, Law] = {
    "the form": usual,
    "no floor": lambda n, d: 12 * n**-0.076 + 90 * d**-0.2,
    "Kaplan's": kaplan,
    "embeddings counted": embedding,
    "broken, flatter": broken(0.7),
    "broken, steeper": broken(1.3),
    "rates worse with size": lambda n, d: usual(n, d) * np.exp(0.002 * np.log(n / 1e8) ** 2),
    "with a cross term": lambda n, d: usual(n, d) + 3e4 * (n * d) ** -0.27,
}


def runs(
    rng: np.random.Generator,
    law: Law,
    sizes: int,
    budgets: int,
    errors: Errors,
    ratios: bool = False,
    low: float = 1e8,
    high: float = 3e9,
    seeds: int = 1,
) -> tuple[dict[str, Floats], Floats]:
    """Return points and losses of a grid of sizes and budgets, or of tokens per parameter."""
    n = np.repeat(np.geomspace(low, high, sizes), budgets)
    middle = 8e9 * low  # FLOPs: for 100 million parameters from 1e19 to 1e21
    c = np.tile(np.geomspace(12.5 * middle, 1250 * middle, budgets), sizes)
    d = n * np.tile(np.geomspace(5, 160, budgets), sizes) if ratios else c / 6 / n
    run, size, budget = errors
    noise = np.repeat(size * rng.normal(size=sizes), budgets)
    noise += np.tile(budget * rng.normal(size=budgets), sizes)
    n, d, noise = (np.tile(x, seeds) for x in (n, d, noise))
    return {"n": n, "d": d}, law(n, d) * np.exp(noise + run * rng.normal(size=len(n)))


row = partial(printing.row, decimals=0)


def described(errors: Errors) -> str:
    run, size, budget = (f"{100 * sd:g}%" for sd in errors)
    shared = [f"{sd} {what}" for sd, what in ((size, "size"), (budget, "budget")) if sd != "0%"]
    return " + ".join([run, *shared])


def titles(sizes: int, budgets: int, errors: Errors) -> tuple[str, str]:
    return f"{sizes} × {budgets}", described(errors)


def linear(cores: Cores, tables: int) -> None:
    """Coverage to first order: least squares linear in the constants, thousands of times faster.

    Columns: exponents and what follows from them; the loss at 8 times the largest size and tokens;
    without and with errors that runs share in the replicates.
    """
    names = ("alpha", "beta", "a", "curve at 8 N, 8 D")
    table("design", "errors", *(f"{name}{how}" for how in (", runs alone", "") for name in names))
    for case, hits in zip(CASES, cores.each(linear_table, CASES, tables), strict=True):
        row(*titles(*case), *map(float, np.mean(hits, axis=0)))


def linear_table(rng: np.random.Generator, sizes: int, budgets: int, errors: Errors) -> Floats:
    """Return which intervals contain the truth [8], first those of replicates of runs alone."""
    alpha, beta = USUAL[2], USUAL[4]
    exponent = np.array([0, 0, -beta, 0, alpha]) / (alpha + beta) ** 2
    wanted = np.stack([np.eye(5)[2], np.eye(5)[4], exponent, slopes(FAR)[0]])
    columns, loss = runs(rng, usual, sizes, budgets, errors)
    off = np.log(loss / usual(columns["n"], columns["d"]))
    x = slopes(columns)
    answers = wanted @ np.linalg.pinv(x)  # [4, P]
    residuals = off - x @ (np.linalg.pinv(x) @ off)
    found = shared_errors(ND, USUAL, columns, off)
    assert found is not None
    shifts, _ = found.shifts(rng, REPLICATES)
    weights = rng.exponential(size=(REPLICATES, len(off))) - 1
    hit = []
    for more in (0.0, shifts):
        copies = answers @ off + (residuals * weights + more) @ answers.T
        lo, hi = limits(copies, len(off) - 5)
        hit.append((lo <= 0) & (hi >= 0))
    return np.concatenate(hit)


def slopes(columns: dict[str, Floats]) -> Floats:
    """Return the slopes of log loss by E, ln A, alpha, ln B and beta, [P, 5]."""
    floor, a, alpha, b, beta = USUAL
    by_n, by_d = a * columns["n"] ** -alpha, b * columns["d"] ** -beta
    parts = [
        np.ones_like(by_n),
        by_n,
        -by_n * np.log(columns["n"]),
        by_d,
        -by_d * np.log(columns["d"]),
    ]
    return np.stack(parts, axis=1) / (floor + by_n + by_d)[:, None]


def shared(cores: Cores, pairs: int) -> None:
    """Coverage of the fits of two groups of one law, and how often these are said to differ."""
    names = (*ND.constants, "a", "curve at 8 N, 8 D", "held-out size")
    table("design", "errors", "pairs", *names, "width of alpha", "said to differ")
    for case, results in zip(CASES, cores.each(pair, CASES, pairs), strict=True):
        fitted = [one for one in results if one is not None]
        if not fitted:
            row(*titles(*case), 0)
            continue
        hits, widths, differ = zip(*fitted, strict=True)
        row(
            *titles(*case),
            len(fitted),
            *map(float, np.mean(hits, axis=(0, 1))),
            f"{np.median(widths):.2f}",
            float(np.mean(differ)),
        )


def pair(
    rng: np.random.Generator, sizes: int, budgets: int, errors: Errors
) -> tuple[list[list[bool]], list[float], bool] | None:
    """Return of two groups of one law which intervals contain the truth, and if they "differ".

    None if a curve is refused.
    """
    groups = [runs(rng, usual, sizes, budgets, errors) for _ in "ab"]
    columns = {name: np.tile(column, 2) for name, column in groups[0][0].items()}
    loss = np.concatenate([losses for _, losses in groups])
    names = np.repeat(["a", "b"], len(loss) // 2).tolist()
    try:
        found = scaling.fit_table(loss, group=names, rng=rng, bootstraps=REPLICATES, **columns)
    except AblateError:
        return None
    if not found.comparisons:
        return None
    truth = (*USUAL, USUAL[4] / (USUAL[2] + USUAL[4]))
    hits, widths = [], []
    for one in found.fits.values():
        ends = [one.constants[name] for name in ND.constants] + [one.n_exponent]
        hit = [end.lo <= true <= end.hi for end, true in zip(ends, truth, strict=True)]
        band = one.predict(**FAR)
        hit.append(bool(band.lo[0] <= usual(FAR["n"], FAR["d"])[0] <= band.hi[0]))
        hits.append([*hit, one.held_out is not None and one.held_out.trusted])
        widths.append(ends[2].hi - ends[2].lo)
    return hits, widths, found.comparisons[0].verdict != "inconclusive"


def isoflop(cores: Cores, tables: int) -> None:
    """Coverage of a by isoFLOP minima of sizes about the best, with one seed and with three."""
    table("design", "errors", "seeds", "tables", "a", "width of a", "needed")
    cases = [(*case, seeds) for case in CASES for seeds in (1, 3)]
    for case, results in zip(cases, cores.each(minima, cases, tables), strict=True):
        found = np.array([one for one in results if one is not None])
        hits, widths, values = found.T
        needed = 2 * 1.96 * values.std()  # width that 95% of normal estimates need
        cells = f"{np.median(widths):.2f}", f"{needed:.2f}"
        row(*titles(*case[:3]), case[3], len(found), float(hits.mean()), *cells)


def minima(
    rng: np.random.Generator, sizes: int, budgets: int, errors: Errors, seeds: int
) -> tuple[bool, float, float] | None:
    """Return whether the interval of a contains the truth, its width and a.

    None if too few budgets have a minimum.
    """
    columns, loss = runs(rng, usual, sizes, budgets, errors, high=7e9, seeds=seeds)
    c = 6 * columns["n"] * columns["d"]
    try:
        a = scaling.isoflop(loss, c=c, rng=rng, bootstraps=REPLICATES, **columns).n_exponent
    except AblateError:
        return None
    return a.lo <= USUAL[4] / (USUAL[2] + USUAL[4]) <= a.hi, a.hi - a.lo, a.value


def beyond(cores: Cores, ladders: int) -> None:
    table("law", "design", "errors", "2 times", "4 times", "10 times", "± at 10 times")
    cases = [
        (name, *grid)
        for grid in (((6, 6), (0.003, 0.0, 0.0), True), ((5, 4), (0.003, 0.004, 0.0), False))
        for name in LAWS
    ]
    for case, results in zip(cases, cores.each(ladder, cases, ladders), strict=True):
        name, (sizes, budgets), errors, ratios = case
        hits, widths = zip(*(one for one in results if one is not None), strict=True)
        row(
            name,
            f"{sizes} × {budgets} {'sizes × ratios' if ratios else 'sizes × budgets'}",
            described(errors),
            *map(float, np.mean(hits, axis=0)),
            f"{np.median(widths):.1%}",
        )


def ladder(
    rng: np.random.Generator, name: str, design: tuple[int, int], errors: Errors, ratios: bool
) -> tuple[list[bool], float] | None:
    """Return which of three predictions contain the loss, and the half-width of the farthest.

    None if the curve is refused.
    """
    law = LAWS[name]
    columns, loss = runs(rng, law, *design, errors, ratios=ratios, low=3e7, high=1e9)
    try:
        one = scaling.fit(loss, rng=rng, bootstraps=REPLICATES, **columns)
    except AblateError:
        return None
    outlook, hit = Outlook.of(one, rng), []
    for factor in (2, 4, 10):
        n = factor * columns["n"].max()
        reached = float(law(np.array([n]), np.array([20 * n]))[0])
        reached *= np.exp(np.hypot(*errors[:2]) * rng.normal())
        said = outlook.predict({"n": n, "d": 20 * n}).loss
        hit.append(said.lo <= reached <= said.hi)
    return hit, (said.hi - said.lo) / said.value / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=30, help="pairs of groups a case")
    parser.add_argument("--ladders", type=int, default=20, help="simulated ladders a law")
    parser.add_argument("--linear", type=int, default=400, help="linear tables a case")
    parser.add_argument("--isoflop", type=int, default=100, help="isoFLOP tables a case")
    parser.add_argument("--only", default="", choices=("", "linear", "shared", "isoflop", "beyond"))
    arguments(parser)
    options = parser.parse_args()
    print(
        f"{date.today()}, Python {platform.python_version()}, numpy {np.__version__}, scipy"
        f" {scipy.__version__}, {options}\n"
    )
    started = time.perf_counter()
    with Cores(options) as cores:
        for part, count in (
            (linear, options.linear),
            (shared, options.pairs),
            (isoflop, options.isoflop),
            (beyond, options.ladders),
        ):
            if options.only in ("", part.__name__):
                part(cores, count)
                print()
    print(f"{time.perf_counter() - started:.0f} s, {processor_seconds():.0f} s of processor time")


if __name__ == "__main__":
    main()
