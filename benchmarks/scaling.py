"""Do scaling intervals hold what they claim if runs share errors, and beyond the runs?

    python benchmarks/scaling.py [--tables 60] [--pairs 30] [--ladders 20] [--only linear]

Prints the tables of docs/method.md: coverage of the constants, of the curve and of held-out sizes;
false differences of two groups of one law; and coverage of losses predicted at 2, 4 and 10 times
the largest size, of laws that follow the form and of laws that do not.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from datetime import date

import numpy as np
import numpy.typing as npt
import scipy

from ablate import scaling
from ablate.errors import AblateError
from ablate.scaling.beyond import Outlook
from ablate.scaling.bootstrap import limits
from ablate.scaling.design import USUAL
from ablate.scaling.forms import FORMS
from ablate.scaling.shared import shared_errors

Floats = npt.NDArray[np.float64]
Law = Callable[[Floats, Floats], Floats]
ND = FORMS["nd"]
REPLICATES = 200
PARTS = ("linear", "shared", "beyond")
DESIGNS = ((5, 4), (6, 6))  # sizes × budgets
# sd of log loss between runs, shared by a size, shared by a budget
ERRORS = (
    (0.003, 0.0, 0.0),
    (0.02, 0.0, 0.0),
    (0.0025, 0.0025, 0.0),
    (0.0025, 0.005, 0.0),
    (0.005, 0.005, 0.005),
)


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
    errors: tuple[float, float, float],
    ratios: bool = False,
    low: float = 1e8,
    high: float = 3e9,
) -> tuple[dict[str, Floats], Floats]:
    """Return points and losses of a grid of sizes and budgets, or of tokens per parameter."""
    n = np.repeat(np.geomspace(low, high, sizes), budgets)
    middle = 8e9 * low  # FLOPs: for 100 million parameters from 1e19 to 1e21
    c = np.tile(np.geomspace(12.5 * middle, 1250 * middle, budgets), sizes)
    d = n * np.tile(np.geomspace(5, 160, budgets), sizes) if ratios else c / 6 / n
    run, size, budget = errors
    noise = run * rng.normal(size=len(n))
    noise += np.repeat(size * rng.normal(size=sizes), budgets)
    noise += np.tile(budget * rng.normal(size=budgets), sizes)
    return {"n": n, "d": d}, law(n, d) * np.exp(noise)


def table(*columns: str) -> None:
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)


def row(*cells: object) -> None:
    text = (f"{c:.0%}" if isinstance(c, float) else str(c) for c in cells)
    print(f"| {' | '.join(text)} |", flush=True)


def described(errors: tuple[float, float, float]) -> str:
    run, size, budget = (f"{100 * sd:g}%" for sd in errors)
    shared = [f"{sd} {what}" for sd, what in ((size, "size"), (budget, "budget")) if sd != "0%"]
    return " + ".join([run, *shared])


def linear(rng: np.random.Generator, tables: int) -> None:
    """Coverage to first order: least squares linear in the constants, thousands of times faster.

    Columns: exponents and what follows from them; the loss at 8 times the largest size and tokens;
    without and with errors that runs share in the replicates.
    """
    names = ("alpha", "beta", "a", "curve at 8 N, 8 D")
    table("design", "errors", *(f"{name}{how}" for how in (", runs alone", "") for name in names))
    alpha, beta = USUAL[2], USUAL[4]
    far = {"n": np.array([2.4e10]), "d": np.array([4.8e11])}
    exponent = np.array([0, 0, -beta, 0, alpha]) / (alpha + beta) ** 2
    wanted = np.stack([np.eye(5)[2], np.eye(5)[4], exponent, slopes(far)[0]])
    for sizes, budgets in DESIGNS:
        for errors in ERRORS:
            hits = []
            for _ in range(tables):
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
                hits.append(np.concatenate(hit))
            row(f"{sizes} × {budgets}", described(errors), *map(float, np.mean(hits, axis=0)))


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


def shared(rng: np.random.Generator, tables: int, pairs: int) -> None:
    names = (*ND.constants, "a", "curve at 8 N, 8 D", "held-out size")
    table("design", "errors", *names, "width of alpha", "said to differ")
    exponent = USUAL[4] / (USUAL[2] + USUAL[4])
    far = {"n": np.array([2.4e10]), "d": np.array([4.8e11])}
    for sizes, budgets in DESIGNS:
        for errors in ERRORS:
            hits, widths = [], []
            for _ in range(tables):
                columns, loss = runs(rng, usual, sizes, budgets, errors)
                one = scaling.fit(loss, rng=rng, bootstraps=REPLICATES, **columns)
                ends = [one.constants[name] for name in ND.constants] + [one.n_exponent]
                hit = [
                    end.lo <= true <= end.hi
                    for end, true in zip(ends, (*USUAL, exponent), strict=True)
                ]
                band = one.predict(**far)
                hit.append(bool(band.lo[0] <= usual(far["n"], far["d"])[0] <= band.hi[0]))
                hits.append([*hit, one.held_out is not None and one.held_out.trusted])
                widths.append(ends[2].hi - ends[2].lo)
            differ = [differs(rng, sizes, budgets, errors) for _ in range(pairs)]
            row(
                f"{sizes} × {budgets}",
                described(errors),
                *map(float, np.mean(hits, axis=0)),
                f"{np.median(widths):.2f}",
                float(np.mean(differ)) if pairs else "",
            )


def differs(
    rng: np.random.Generator, sizes: int, budgets: int, errors: tuple[float, float, float]
) -> bool:
    """Return whether two groups of one law are said to differ."""
    groups = [runs(rng, usual, sizes, budgets, errors) for _ in "ab"]
    columns = {name: np.tile(column, 2) for name, column in groups[0][0].items()}
    loss = np.concatenate([losses for _, losses in groups])
    (one,) = scaling.fit_table(
        loss,
        group=np.repeat(["a", "b"], len(loss) // 2).tolist(),
        rng=rng,
        bootstraps=REPLICATES,
        **columns,
    ).comparisons
    return one.verdict != "inconclusive"


def beyond(rng: np.random.Generator, ladders: int) -> None:
    table("law", "design", "errors", "2 times", "4 times", "10 times", "± at 10 times")
    for (sizes, budgets), errors, ratios in (
        ((6, 6), (0.003, 0.0, 0.0), True),
        ((5, 4), (0.003, 0.004, 0.0), False),
    ):
        for name, law in LAWS.items():
            hits, widths = [], []
            for _ in range(ladders):
                columns, loss = runs(
                    rng, law, sizes, budgets, errors, ratios=ratios, low=3e7, high=1e9
                )
                try:
                    one = scaling.fit(loss, rng=rng, bootstraps=REPLICATES, **columns)
                except AblateError:
                    continue
                outlook, hit = Outlook.of(one, rng), []
                for factor in (2, 4, 10):
                    n = factor * columns["n"].max()
                    reached = float(law(np.array([n]), np.array([20 * n]))[0])
                    reached *= np.exp(np.hypot(*errors[:2]) * rng.normal())
                    said = outlook.predict({"n": n, "d": 20 * n}).loss
                    hit.append(said.lo <= reached <= said.hi)
                hits.append(hit)
                widths.append((said.hi - said.lo) / said.value / 2)
            grid = "sizes × ratios" if ratios else "sizes × budgets"
            row(
                name,
                f"{sizes} × {budgets} {grid}",
                described(errors),
                *map(float, np.mean(hits, axis=0)),
                f"{np.median(widths):.1%}",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", type=int, default=60, help="simulated tables a case")
    parser.add_argument("--pairs", type=int, default=30, help="pairs of groups a case")
    parser.add_argument("--ladders", type=int, default=20, help="simulated ladders a law")
    parser.add_argument("--linear", type=int, default=400, help="linear tables a case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", choices=("", *PARTS))
    options = parser.parse_args()
    print(
        f"{date.today()}, Python {platform.python_version()}, numpy {np.__version__}, scipy"
        f" {scipy.__version__}, {options}\n"
    )
    started = time.process_time()
    for part in PARTS:
        if options.only in ("", part):
            rng = np.random.default_rng(options.seed)
            if part == "linear":
                linear(rng, options.linear)
            elif part == "shared":
                shared(rng, options.tables, options.pairs)
            else:
                beyond(rng, options.ladders)
            print()
    print(f"\n{time.process_time() - started:.0f} s of processor time")


if __name__ == "__main__":
    main()
