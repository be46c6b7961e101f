"""The pictures of docs/statistics.md: data simulated with stated seeds, judged by `ablate.stats`.

`docs/generate.py` writes what each shows, with its numbers, into the page, and draws the files in
docs/pictures/.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import t as stats_t

from ablate import stats
from ablate.figures import theme
from ablate.stats import selection

FOLDER = Path(__file__).parent / "pictures"
WIDTH = 4.6  # inches: letters stay legible on a phone
INK, BLUE, ORANGE, GREY = "#232629", "#0173b2", "#c05200", "#949494"
SEED = 1  # of every simulation


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        title: What it is about, in a few words.
        text: What it shows, with its numbers: the caption.
        draw: Draws it.
    """

    title: str
    text: str
    draw: Callable[[], Figure]

    def markdown(self, name: str) -> str:
        """Return the picture and its caption as a page shows them."""
        return f"![{self.title}](pictures/{name}.svg)\n\n*{self.text}*"


def panels(*heights: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels below each other, of these heights in inches."""
    figure, axes = plt.subplots(
        len(heights),
        1,
        figsize=(WIDTH, sum(heights)),
        layout="constrained",
        height_ratios=heights,
        squeeze=False,
    )
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes.flat)


def interval(ax: Axes, y: float, lo: float, hi: float, color: str) -> None:
    """Draw an interval with its middle."""
    ax.plot([lo, hi], [y, y], color=color, linewidth=1.6, solid_capstyle="butt")
    ax.plot((lo + hi) / 2, y, "o", color=color, markersize=4)


# -- pairs -----------------------------------------------------------------------------------------


def pairs() -> Picture:
    """Two arms whose runs share what their seed draws."""
    rng, n, true = np.random.default_rng(SEED), 8, -0.02
    shared = rng.normal(0, 0.04, n)
    baseline = 2.1 + shared + rng.normal(0, 0.007, n)
    level = 2.1 + true + shared + rng.normal(0, 0.007, n)
    found, widths = stats.compare(level, baseline), stats.pairing(level, baseline)
    half = widths.unpaired_width / 2

    def draw() -> Figure:
        figure, (runs, ends) = panels(2.3, 1.2)
        worse = level > baseline
        for one in range(n):
            runs.plot([0, 1], [baseline[one], level[one]], color=ORANGE if worse[one] else BLUE)
        runs.plot(np.zeros(n), baseline, "o", color=INK)
        runs.plot(np.ones(n), level, "o", color=INK)
        runs.set_xticks([0, 1], ["baseline", "level"])
        runs.set_xlim(-0.4, 1.4)
        runs.set_ylabel("held-out loss\n(nats per token)")
        runs.set_title("A line joins the two runs of a seed", loc="left")
        ends.axvline(0, color=INK, linewidth=0.7)
        interval(ends, 1, found.mean - half, found.mean + half, GREY)
        interval(ends, 0, found.lo, found.hi, BLUE)
        ends.set_yticks([1, 0], ["unpaired", "paired"])
        ends.set_ylim(-0.6, 1.6)
        ends.set_xlabel("difference, with its 95% interval (nats per token)")
        return figure

    return Picture(
        "Paired and unpaired differences",
        f"{n} seeds, simulated: a seed moves both arms by the same amount (sd 0.04), each run by"
        f" another one (sd 0.007), and the level lowers the loss by {-true:g}. The arms overlap,"
        f" but in {int((level < baseline).sum())} of {n} seeds the level is lower. The unpaired"
        f" interval reaches {half:.3f} to each side of the mean and contains 0; the paired one"
        f" reaches {widths.width / 2:.4f}, is {1 / widths.ratio:.1f} times narrower, and does not.",
        draw,
    )


# -- the choice of a learning rate -----------------------------------------------------------------

RUNGS = np.log(10.0) / 2 * np.arange(-3, 4)  # log rates, in half powers of ten
STEP = float(np.log(10.0) / 2)
ARMS, NOISE, BOWL = 4000, 0.02, 0.01  # simulated arms; sd of a run; rise of one step, in nats


def true_loss(logs: np.ndarray, best: np.ndarray) -> np.ndarray:
    """Return how far the expected loss [arms, K] at log rates [K] is above that at the best."""
    return BOWL * ((logs - best[:, None]) / STEP) ** 2


def rate() -> Picture:
    """The lowest of several noisy numbers is low by luck, too."""
    rng = np.random.default_rng(SEED)
    best = rng.uniform(-STEP / 2, STEP / 2, ARMS)
    above = true_loss(RUNGS, best)
    read = above[:, None] + rng.normal(0, NOISE, (ARMS, 3, len(RUNGS)))  # [arms, seeds, rates]
    everyone = np.arange(ARMS)
    lowest = read[:, 0].argmin(axis=1)
    luck = (read[:, 0] - above)[everyone, lowest]
    regret = above[everyone, lowest]
    finer = np.linspace(RUNGS[0], RUNGS[-1], 8 * (len(RUNGS) - 1) + 1)
    curve = selection.choose(selection.fit(RUNGS, read, STEP), finer)
    costs = 1000 * true_loss(finer, best)[everyone, curve].mean()
    of_means = 1000 * above[everyone, read.mean(axis=1).argmin(axis=1)].mean()
    shown = int(np.argsort(luck)[len(luck) // 4])  # an arm with more luck than three quarters

    def draw() -> Figure:
        figure, (one, many) = panels(2.3, 1.7)
        rates = 3e-3 * np.exp(RUNGS)
        line = np.linspace(RUNGS[0], RUNGS[-1], 200)
        one.plot(3e-3 * np.exp(line), true_loss(line, best)[shown], color=INK, label="expected")
        one.plot(rates, read[shown, 0], "o", color=BLUE, label="one seed")
        at = lowest[shown]
        one.plot(rates[at], read[shown, 0, at], "o", markersize=10, fillstyle="none", color=ORANGE)
        one.annotate(
            "chosen",
            (rates[at], read[shown, 0, at]),
            (0, -14),
            textcoords="offset points",
            ha="center",
            color=ORANGE,
        )
        one.vlines(rates[at], read[shown, 0, at], above[shown, at], color=ORANGE, linestyle=":")
        one.set_xscale("log")
        one.margins(y=0.2)
        one.set_xlabel("learning rate")
        one.set_ylabel("loss − lowest expected\n(nats per token)")
        one.legend(loc="upper center")
        many.hist(luck, bins=40, color=BLUE)
        many.axvline(0, color=INK, linewidth=0.7)
        many.set_yticks([])
        many.set_xlabel("loss read at the chosen rate − its expected loss (nats per token)")
        many.set_title(f"{ARMS:,} simulated arms", loc="left")
        return figure

    return Picture(
        "The winner's curse of a learning rate chosen on one seed",
        f"Simulated: {len(RUNGS)} rates, a run's noise has sd {NOISE:g}. Above, one arm: the lowest"
        " of the rates tried is chosen, and its run is lower than what the rate gives on average"
        f" (dotted). Below: over {ARMS:,} arms the number that was read is {-luck.mean():.3f}"
        f" too low in the mean, and too low in {np.mean(luck < 0):.0%} of arms. That choice of a"
        f" rate costs {1000 * regret.mean():.1f} thousandths of a nat in the mean, that of the"
        f" lowest mean of three seeds {of_means:.1f}, and that of a curve fitted to all three"
        f" {costs:.1f}.",
        draw,
    )


# -- the number of pairs ---------------------------------------------------------------------------


def number() -> Picture:
    """What few pairs cannot show."""
    n = np.arange(2, 13)
    alone = [stats.sign_flip_floor(int(one)) for one in n]
    of_four = [stats.sign_flip_floor(int(one), 4) for one in n]
    detectable = [stats.resolvable(int(one)) for one in n]
    first, first_of_four = (int(n[np.argmax(np.array(p) <= 0.05)]) for p in (alone, of_four))

    def draw() -> Figure:
        figure, (p, size) = panels(1.9, 1.9)
        right = {"color": ORANGE, "ha": "right"}
        p.axhline(0.05, color=ORANGE, linewidth=1)
        p.annotate("p = 0.05", (n[-1], 0.05), (0, 3), textcoords="offset points", **right)
        p.plot(n, of_four, "s--", color=GREY, label="of four levels, after Holm")
        p.plot(n, alone, "o-", color=BLUE, label="of one level")
        p.set_yscale("log")
        p.set_ylabel("smallest p of the\nsign-flip test")
        p.legend(loc="lower left")
        size.plot(n, detectable, "o-", color=BLUE)
        size.set_yscale("log")
        size.set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
        size.minorticks_off()
        size.set_ylabel("detectable effect\n(sd of a difference)")
        size.set_xlabel("pairs")
        for ax in (p, size):
            ax.set_xticks(n)
            ax.grid(axis="y")
        return figure

    at = dict(zip(n.tolist(), detectable, strict=True))
    return Picture(
        "Why six pairs",
        "Above: the sign-flip test asks in how many of the 2ⁿ ways to flip the signs of n"
        " differences their mean is as far from 0. Even if all have one sign, 2 of the 2ⁿ are:"
        f" below {first} pairs its p is never 0.05 or less, nor below {first_of_four} pairs with"
        " Holm's correction for four levels."
        " Below: the smallest effect that the t-test finds in 80% of studies, in sd of the paired"
        f" difference: {at[2]:.1f} at 2 pairs, {at[3]:.1f} at 3, {at[6]:.1f} at 6, {at[12]:.2f} at"
        " 12.",
        draw,
    )


# -- held-out text ---------------------------------------------------------------------------------


def text() -> Picture:
    """An effect that differs between texts, measured on few of them."""
    rng, studies, seeds, windows, true = np.random.default_rng(SEED), 1000, 6, 16, -0.02
    differences = (
        true
        + rng.normal(0, 0.01, (studies, seeds, 1))
        + rng.normal(0, 0.04, (studies, 1, windows))
        + rng.normal(0, 0.03, (studies, seeds, windows))
    )
    found = [stats.seed_by_text(one) for one in differences]
    on_this = np.array([(one.seed_lo, one.seed_hi) for one in found])
    on_new = np.array([(one.lo, one.hi) for one in found])

    def misses(ends: np.ndarray) -> np.ndarray:
        return (ends[:, 0] > true) | (ends[:, 1] < true)

    def draw() -> Figure:
        figure, axes = panels(2.2, 2.2)
        titles = ("Interval for new seeds, on this text", "Interval for new seeds and new text")
        for ax, ends, title in zip(axes, (on_this, on_new), titles, strict=True):
            for place, (one, missed) in enumerate(zip(ends[:40], misses(ends)[:40], strict=True)):
                color = ORANGE if missed else GREY
                ax.plot([place, place], one, color=color, linewidth=2, solid_capstyle="butt")
            ax.axhline(true, color=INK, linewidth=0.8)
            ax.set_title(title, loc="left")
            ax.set_xticks([])
            ax.set_ylim(on_new[:40].min() - 0.005, on_new[:40].max() + 0.005)
            ax.set_ylabel("effect\n(nats per token)")
        axes[1].set_xlabel("40 studies, each with its own held-out text; orange: it misses")
        return figure

    return Picture(
        "What an interval over held-out text is",
        f"{studies:,} studies, simulated: {seeds} pairs, {windows} windows of held-out text; the"
        f" effect is −{-true:g} on average (line), but differs between windows (sd 0.04), seeds"
        " (sd 0.01), and by noise (sd 0.03). The interval for new seeds is about this text alone:"
        f" it misses the effect on all text in {misses(on_this).mean():.0%} of studies. That for"
        f" new seeds and new text misses it in {misses(on_new).mean():.1%}.",
        draw,
    )


# -- many levels -----------------------------------------------------------------------------------


def family() -> Picture:
    """Many levels without effect, and how often one of them seems to have one."""
    rng, studies, pairs_, most = np.random.default_rng(SEED), 2000, 6, 10
    runs = rng.normal(0, 1, (studies, most + 1, pairs_))
    differences = runs[:, 1:] - runs[:, :1]
    error = differences.std(axis=-1, ddof=1) / np.sqrt(pairs_)
    p = 2 * stats_t(pairs_ - 1).sf(np.abs(differences.mean(axis=-1)) / error)
    levels = np.arange(1, most + 1)
    plain = np.array([(p[:, :m].min(axis=1) <= 0.05).mean() for m in levels])
    held = np.array([(p[:, :m].min(axis=1) * m <= 0.05).mean() for m in levels])  # Holm's first

    def draw() -> Figure:
        figure, (ax,) = panels(2.2)
        ax.axhline(5, color=INK, linewidth=0.7)
        ax.plot(levels, 100 * plain, "o-", color=ORANGE, label="each p by itself")
        ax.plot(levels, 100 * held, "s-", color=BLUE, label="Holm's p")
        ax.set_xticks(levels)
        ax.set_ylim(0)
        ax.set_xlabel("levels of the factor, none of which has an effect")
        ax.set_ylabel("studies that\nfind something (%)")
        ax.legend()
        return figure

    return Picture(
        "Why a family of levels is corrected",
        f"{studies:,} studies, simulated: {pairs_} pairs, levels that equal their baseline. With"
        f" one level {plain[0]:.1%} of studies find an effect that is not there; with six"
        f" {plain[5]:.0%}, with ten {plain[9]:.0%}, if each p stands by itself. After Holm's"
        f" correction it is {held[5]:.1%} and {held[9]:.1%}.",
        draw,
    )


PICTURES: dict[str, Callable[[], Picture]] = {
    "pairs": pairs,
    "number": number,
    "family": family,
    "rate": rate,
    "text": text,
}


def save(name: str, picture: Picture) -> None:
    """Draw a picture into its file, on white, with the same bytes each time."""
    FOLDER.mkdir(exist_ok=True)
    with theme():
        figure = picture.draw()
        figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None}, facecolor="white")
        plt.close(figure)
