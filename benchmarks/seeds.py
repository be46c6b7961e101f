"""Are the rules on seeds, best arms and text what they claim to be? Simulations with known answers.

    python benchmarks/seeds.py [outlying groups best text components crossed]
                               [--studies 4000] [--seed 0]

Prints the tables of docs/method.md, "Seeds, failures and text". `outlying` also prints the critical
scores of ablate/stats/robust.py. Takes about half an hour on one core.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
from printing import row, table

from ablate import stats
from ablate.stats.robust import MAD_SD, OUTLYING
from ablate.stats.values import Floats

CHECKED = 20  # samples a case whose numbers are compared with ablate.stats


def largest_scores(x: Floats) -> Floats:
    """Return the largest score of `stats.outlying` of each sample [R, n] → [R]."""
    best = np.zeros(len(x))
    for at in range(x.shape[1]):
        others = np.delete(x, at, axis=1)
        middle = np.median(others, axis=1)
        mad = MAD_SD * np.median(np.abs(others - middle[:, None]), axis=1)
        best = np.maximum(best, np.abs(x[:, at] - middle) / mad)
    for sample, expected in zip(x[:CHECKED], best[:CHECKED], strict=True):
        assert np.isclose(np.nanmax(stats.outlying(sample).scores), expected)
    return best


def outlying(rng: np.random.Generator, studies: int) -> None:
    """Critical scores by 200,000 samples each, then false positives and power on fresh samples."""
    scores = {
        n: float(np.quantile(largest_scores(rng.normal(size=(200_000, n))), 0.95)) for n in OUTLYING
    }
    print({n: float(f"{score:.3g}") for n, score in scores.items()}, end="\n\n")
    table(
        "seeds",
        "threshold",
        "normal noise: any named",
        "t3",
        "score 5, normal",
        "10 sd away: named",
    )
    for n in (5, 8, 16, 64, 200):
        threshold = OUTLYING[min(n, max(OUTLYING))]
        normal = largest_scores(rng.normal(size=(10 * studies, n)))
        heavy = largest_scores(rng.standard_t(3, (10 * studies, n)))
        bad = rng.normal(size=(studies, n))
        bad[:, 0] += 10
        row(
            n,
            f"{threshold:.3g}",
            float((normal > threshold).mean()),
            float((heavy > threshold).mean()),
            float((normal > 5).mean()),
            float(np.mean([0 in stats.outlying(one).seeds for one in bad])),
        )


def groups(rng: np.random.Generator, studies: int) -> None:
    """False alarms of noise without groups; how often two modes of 3/8 and 5/8 are found."""
    noises = {
        "normal": lambda shape: rng.normal(size=shape),
        "t3": lambda shape: rng.standard_t(3, shape),
        "exponential": lambda shape: rng.exponential(size=shape),
        "log-normal": lambda shape: np.exp(rng.normal(size=shape)),
    }
    table("seeds", *noises, "modes 5 sd apart", "modes 10 sd apart")
    for n in (3, 5, 8, 16):
        rates = [
            float(np.mean([stats.seed_groups(one).separated for one in noise((studies, n))]))
            for noise in noises.values()
        ]
        for apart in (5, 10):
            two = rng.normal(size=(studies, n))
            two[:, : max(1, round(3 * n / 8))] -= apart
            rates.append(float(np.mean([stats.seed_groups(one).separated for one in two])))
        row(n, *rates)


def best(rng: np.random.Generator, studies: int) -> None:
    """Is the true best a candidate, do all intervals hold, how many arms are candidates?"""
    table("noise", "arms", "seeds", "best in set", "all intervals hold", "candidates")
    for (name, spreads), arms, seeds in itertools.product(
        (("equal sd", False), ("sd 1 to 4", True)), (2, 4, 8), (3, 5, 8, 16)
    ):
        sd = np.linspace(4, 1, arms) if spreads else np.ones(arms)
        inside, held, size = [], [], []
        for _ in range(studies):
            truth = np.where(np.arange(arms) < (arms + 1) // 2, 0.0, 2.0)  # half of them tie
            truth[0] -= 1e-9
            x = truth + rng.normal(size=(seeds, 1)) + sd * rng.normal(size=(seeds, arms))
            x[rng.random(x.shape) < 0.05] = np.nan
            found = stats.best_arms(x)
            inside.append(0 in found.candidates)
            size.append(len(found.candidates))
            gaps = truth - [np.delete(truth, i).min() for i in range(arms)]
            held.append(
                all(one.lo <= gap <= one.hi for one, gap in zip(found.arms, gaps, strict=True))
            )
        row(name, arms, seeds, float(np.mean(inside)), float(np.mean(held)), f"{np.mean(size):.2f}")


def text(rng: np.random.Generator, studies: int) -> None:
    """Coverage for new seeds and new text; ρ is the correlation of neighbouring windows."""
    table("seeds", "windows", "ρ", "var window / seed", "new text", "seeds alone", "mean block")
    for seeds, windows, rho, ratio in itertools.product(
        (3, 5, 8, 16), (64, 500, 1000), (0.0, 0.5, 0.9), (0.0, 1.0, 10.0)
    ):
        if rho and not ratio:
            continue
        found = []
        # the variance of the mean window of an AR(1) series, over that of independent windows
        lags = np.arange(1, windows)
        factor = 1 + 2 * float(((1 - lags / windows) * rho**lags).sum())
        scale = np.sqrt(ratio / seeds * windows / factor)
        for _ in range(studies):
            noise = rng.normal(size=windows) * np.sqrt(1 - rho**2)
            noise[0] /= np.sqrt(1 - rho**2)
            series = scale * autoregressive(noise, rho)
            d = rng.normal(size=(seeds, 1)) + series + 3 * rng.normal(size=(seeds, windows))
            one = stats.seed_by_text(d)
            found.append((one.lo <= 0 <= one.hi, one.seed_lo <= 0 <= one.seed_hi, one.block))
        new, alone, block = np.mean(found, axis=0)
        row(seeds, windows, str(rho), str(ratio), float(new), float(alone), f"{block:.1f}")


def autoregressive(noise: Floats, rho: float) -> Floats:
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -rho], noise), float)


def components(rng: np.random.Generator, studies: int) -> None:
    """Coverage of each component's interval."""
    table("inits × orders", "true variances", "init", "order", "residual")
    for (inits, orders), truth in itertools.product(
        ((3, 3), (4, 4), (8, 8), (4, 8)), ((1.0, 1.0, 1.0), (4.0, 0.25, 1.0), (0.0, 1.0, 1.0))
    ):
        held = []
        for _ in range(studies):
            x = (
                np.sqrt(truth[0]) * rng.normal(size=(inits, 1))
                + np.sqrt(truth[1]) * rng.normal(size=(1, orders))
                + np.sqrt(truth[2]) * rng.normal(size=(inits, orders))
            )
            found = stats.components(x)
            held.append(
                [
                    one.lo <= true <= one.hi
                    for one, true in zip(
                        (found.init, found.order, found.residual), truth, strict=True
                    )
                ]
            )
        row(f"{inits} × {orders}", truth, *map(float, np.mean(held, axis=0)))


def crossed(rng: np.random.Generator, studies: int) -> None:
    """Misses of the interval of a mean over crossed seeds, and of the t interval of all pairs."""
    table("inits × orders", "true variances", "crossed", "as independent pairs")
    for (inits, orders), truth in itertools.product(
        ((2, 2), (2, 8), (3, 3), (5, 3), (4, 4), (8, 8)),
        ((0.0, 0.0, 1.0), (1.0, 0.0, 0.01), (1.0, 0.1, 1.0), (1.0, 1.0, 1.0), (1.0, 1.0, 0.01)),
    ):
        seeds = list(itertools.product(range(inits), range(orders)))
        missed = np.zeros(2)
        for _ in range(studies):
            x = (
                np.sqrt(truth[0]) * rng.normal(size=(inits, 1))
                + np.sqrt(truth[1]) * rng.normal(size=(1, orders))
                + np.sqrt(truth[2]) * rng.normal(size=(inits, orders))
            ).ravel()
            both = stats.crossed_noise(x, seeds), stats.paired(x).noise
            missed += [abs(x.mean()) > noise.half(0.95) for noise in both]
        row(f"{inits} × {orders}", truth, *map(float, missed / studies))


PARTS = {one.__name__: one for one in (outlying, groups, best, text, components, crossed)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[*PARTS])
    parser.add_argument("--studies", type=int, default=4000, help="simulated samples a case")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for part in options.parts:
        print()
        PARTS[part](np.random.default_rng(options.seed), options.studies)


if __name__ == "__main__":
    main()
