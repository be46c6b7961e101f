"""What all figures share: size, colours, fonts, the format of numbers and names."""

from __future__ import annotations

import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import Formatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import Bbox

from ablate import units
from ablate.figures import fonts

WIDTH = 3.4  # inches: a column of a two-column paper
CHARACTERS = 16  # of a legend, an inch
NARROWEST = 2.1  # inches of a panel
INK = "#232629"  # text, axes, the baseline
RULE = "#d5d8dc"  # grid and other thin lines
PAPER = "#fefefe"  # the inside of hollow marks
# most marks of single runs in a figure that are shapes, and tell their values; more are pixels, as
# shapes would take megabytes and minutes
SHAPES = 2000
PALETTE: tuple[str, ...] = tuple(sns.color_palette("colorblind", 7).as_hex())
MARKERS = "osD^vP*X"
DASHES: tuple[object, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.5, 1.5)))

_RC = {
    "font.family": "sans-serif",
    "font.sans-serif": [fonts.FAMILY, "Verdana", "Arial", "Helvetica"],
    "font.size": 8.0,
    "axes.labelsize": 8.0,
    "axes.titlesize": 8.5,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.title_fontsize": 7.5,
    "legend.frameon": False,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": RULE,
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "text.hinting": "none",  # equal widths at every resolution: the files share one layout
    "svg.fonttype": "none",  # text stays text: it can be searched, copied and read aloud
    "svg.hashsalt": "ablate",
    "pdf.fonttype": 42,
}


class Look(NamedTuple):
    """What a user may change of the figures.

    Attributes:
        width: Of the whole figure, in inches; None for `WIDTH`, and twice that for panels.
        style: A style file of matplotlib, whose settings replace those of the theme.
    """

    width: float | None = None
    style: Path | None = None


OURS = Look()
_look: ContextVar[Look] = ContextVar("look", default=OURS)


@contextmanager
def looking(look: Look) -> Iterator[None]:
    """Draw figures with this look until the end of the block.

    Args:
        look: Width and style file; what it does not set is the default.
    """
    token = _look.set(look)
    try:
        yield
    finally:
        _look.reset(token)


def width(columns: int = 1) -> float:
    """Return the width of a new figure in inches.

    Args:
        columns: Columns of a paper that it takes, unless the user's look has a width.
    """
    return _look.get().width or columns * WIDTH


@contextmanager
def theme() -> Iterator[None]:
    """Use the look of the figures, whatever the user's settings; those are restored afterwards."""
    with mpl.rc_context(), warnings.catch_warnings():
        # letters that no font has; the report says which, and an SVG still shows them
        warnings.filterwarnings("ignore", "Glyph .* missing")
        mpl.rcdefaults()  # all but the backend: a matplotlibrc may ask for LaTeX, or lose the axes
        with sns.axes_style("ticks"), sns.plotting_context("paper"):
            mpl.rcParams.update(_RC)  # type: ignore[arg-type]  # its keys are literals
            if file := _look.get().style:
                plt.style.use(file)
                mpl.rcParams["savefig.bbox"] = None  # "tight" would change the width
            yield


def canvas(ax: Axes | None, height: float, legend: Sequence[str] = ()) -> Axes:
    """Return `ax`, or the axes of a new figure of column width, with names wrapped to fit.

    Args:
        ax: Axes to draw on, None for a new figure.
        height: Height in inches without the legend.
        legend: Entries of a legend below, which makes the figure higher.
    """
    if ax is None:
        lines = [1 + name.count("\n") for name in legend]
        columns = np.array_split(lines, _columns(legend, width()))
        height += 0.17 * max(sum(column) for column in columns)
        ax = plt.subplots(figsize=(width(), height), layout="constrained")[1]
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set_wrap(True)
    return ax


SPAN = 1e100  # largest number that an axis can span


def drawable(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with numbers that an axis can span: larger ones become infinite."""
    floats = frame.select_dtypes("float")
    return frame.assign(**floats.mask(floats.abs() > SPAN, floats * math.inf))


def color(index: int) -> str:
    """Return the colour of an arm; the baseline, index 0, has the colour of the text."""
    return INK if index == 0 else PALETTE[(index - 1) % len(PALETTE)]


def arms(frame: pd.DataFrame, hue: str) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Yield name, index and rows of each arm that has rows; the index sets its colour and dash.

    An arm of an ordered categorical has the same index in every figure.
    """
    column = frame[hue]
    if isinstance(column.dtype, pd.CategoricalDtype):
        codes, names = column.cat.codes.to_numpy(), column.cat.categories
    else:
        codes, names = pd.factorize(column)
    rows = np.argsort(codes, kind="stable")
    present, first = np.unique(codes[rows], return_index=True)
    for index, its_rows in zip(present, np.split(rows, first)[1:], strict=True):
        if index >= 0:  # else no arm
            yield str(names[index]), int(index), frame.iloc[its_rows]


def marker(index: int) -> str:
    """Return the marker of an arm."""
    return MARKERS[index % len(MARKERS)]


def look(index: int, size: float) -> dict[str, Any]:
    """Return the colour and the marker of an arm, with its size in points."""
    return {"color": color(index), "marker": marker(index), "markersize": size}


def handle(index: int, **more: Any) -> Line2D:
    """Return an arm's entry of a legend."""
    return Line2D([], [], **{**look(index, 4.0), **more})


def faint(ax: Axes, x: Any, y: Any, mark: str, shade: str, *, of: int = 0, **more: Any) -> Line2D:
    """Draw single runs, behind what is said of them together; `of` is how many the figure has."""
    small: dict[str, Any] = {"alpha": 0.3, "markersize": 2.6, "markeredgewidth": 0}
    small["rasterized"] = max(of, np.size(x)) > SHAPES
    return ax.plot(x, y, mark, color=shade, **small, **more)[0]


def tipped(ax: Axes, text: str, x: Any, y: Any, *mark: str, **look: Any) -> Line2D:
    """Draw marks or a line, with a text to show under the pointer."""
    line = ax.plot(x, y, *mark, **look)[0]
    tip(line, text)
    return line


def dash(index: int) -> object:
    """Return the dash of a line: solid for the first two arms; equal colours differ in dash."""
    again, place = divmod(max(0, index - 1), len(PALETTE))
    return DASHES[(place // 2 + again) % len(DASHES)]


# -- words and numbers -----------------------------------------------------------------------------

_FORBIDDEN = re.compile("[^\t -~\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def visible(text: object) -> str:
    """Return `text` on one line, without controls and what else XML forbids."""
    return _FORBIDDEN.sub("�", " ".join(str(text).split()))


def plain(text: object, width: int | None = None) -> str:
    """Return `text` on one line for matplotlib, with dollars that begin no mathematics.

    Args:
        text: What to print.
        width: Most characters; the middle of a longer text is cut.
    """
    shown = visible(text)
    if width and len(shown) > width:
        shown = f"{shown[: width // 2]}…{shown[len(shown) - (width - width // 2 - 1) :]}"
    # matplotlib drops names that begin with _ from a legend
    return ("\u2009" if shown.startswith("_") else "") + shown.replace("$", r"\$")


_FACTORS = re.compile(r"(^|, )[^,=]*=")
ENTRY = 30  # characters of a line in a legend


def entries(names: Iterable[str], lines: int = 2) -> list[str]:
    """Return names of arms for a legend, at most `lines` lines of `ENTRY` each, all different.

    In "mask_ratio × position=0.4 × alibi" and "size=l, norm=pre" the factors are left out first if
    a line is too short and the levels still identify the arm; then names are cut as by `short`.
    """
    whole = [visible(name) for name in names]
    levels = [_FACTORS.sub(r"\1", name) for name in whole]
    unique = [levels.count(level) == 1 and level not in whole for level in levels]
    chosen = [
        level if len(name) > ENTRY and own else name
        for name, level, own in zip(whole, levels, unique, strict=True)
    ]
    return short(chosen, ENTRY, lines)


def short(names: Iterable[object], width: int, lines: int = 2) -> list[str]:
    """Return names for matplotlib on one or two lines of `width`, different ones not alike.

    A longer name is cut in its middle. Where that leaves names alike, what they share at both ends
    is cut instead; what is alike even then is numbered.
    """
    whole = [visible(name) for name in names]
    chosen = dict(zip(whole, whole, strict=True))
    for _ in range(3):
        for alike in _alike(chosen, width, lines):
            chosen |= _without_shared([chosen[name] for name in alike], alike, width * lines)
    for alike in _alike(chosen, width, lines):
        for number, name in enumerate(alike, 1):
            chosen[name] = f"({number}) {chosen[name]}"
    return [_cut(chosen[name], width, lines) for name in whole]


def _alike(chosen: Mapping[str, str], width: int, lines: int) -> list[list[str]]:
    """Return the groups of names that are cut to the same text."""
    groups: dict[str, list[str]] = {}
    for name, text in chosen.items():
        groups.setdefault(_cut(text, width, lines), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _without_shared(texts: list[str], names: list[str], room: int) -> dict[str, str]:
    """Return name → text without what all texts share at both ends, but for a short start."""
    head = _shared(texts)
    tail = _shared([text[head:][::-1] for text in texts])
    own = [text[head : len(text) - tail] for text in texts]
    start = max(0, min(head, room - max(map(len, own)) - 4) // 2)
    return {
        name: f"{texts[0][:start]}…{text}{'…' if tail else ''}"
        for name, text in zip(names, own, strict=True)
    }


def _shared(texts: list[str]) -> int:
    """Return how many characters all texts begin with, to the end of a word if one is near."""
    differ = (at for at, found in enumerate(zip(*texts, strict=False)) if len({*found}) > 1)
    shared = texts[0][: next(differ, min(map(len, texts)))]
    word = len(re.search(r"[^\W_]*$", shared)[0])  # type: ignore[index]  # it matches any text
    return len(shared) - (word if word <= 12 else 0)


def _cut(text: str, width: int, lines: int) -> str:
    """Return a text on at most `lines` lines of `width`, cut in its middle if it is longer."""
    if lines == 1:
        return plain(text, width)
    wrapped = textwrap.wrap(text, width)
    if len(wrapped) > 2:
        wrapped = [f"{text[: width - 1]}…", text[-width:]]
    return "\n".join(map(plain, wrapped))


def decimal(value: float, places: int | None = None) -> str:
    """Return a tick with a real minus sign, with `places` decimals or as many as needed."""
    text = f"{value:.6g}" if places is None else f"{value:.{places}f}"
    return (units.power(value) if "e" in text else text).replace("-", "−")


def rough(value: float, places: int | None = None) -> str:
    """Return a number with `places` decimals, as tables have it; with four digits for None."""
    return decimal(float(f"{value:.4g}")) if places is None else units.number(value, places)


def fitted(values: np.ndarray, room: float = 0.05) -> tuple[float, float] | None:
    """Return the range of `values` with `room` as a share of it above and below; None of one."""
    if not len(values) or np.ptp(values) == 0:
        return None
    beyond = room * float(np.ptp(values))
    return float(values.min() - beyond), float(values.max() + beyond)


def signed(value: float, places: int | None = None) -> str:
    """Return a difference with its sign and a real minus; 0 has no sign."""
    return "0" if not value else ("+" if value > 0 else "") + decimal(value, places)


def ticks(
    ax: Axes,
    which: str,
    write: Callable[..., str] = decimal,
    *,
    log: bool = False,
    whole: bool = False,
) -> None:
    """Set the ticks of an axis.

    A log axis has ticks at powers of ten, with 3, or with 2 and 5, between them; a short one has
    even steps. The first of these with enough ticks is used. A linear axis has equally many
    decimals on all ticks if `write` is `decimal` or `signed`.

    Args:
        ax: The axes.
        which: "x" or "y".
        write: Formats a number.
        log: Whether the axis is logarithmic.
        whole: Whether ticks are at whole numbers only.
    """
    axis = ax.xaxis if which == "x" else ax.yaxis
    even = write in (decimal, signed) and not log
    if log:
        (ax.set_xscale if which == "x" else ax.set_yscale)("log")
        low, high = sorted(axis.get_view_interval())
        decades = math.log10(high / low) if low > 0 else 1
        # labels next to each other take more room than labels above each other
        fewest, most = (3, 4) if which == "x" else (4, 6)
        locators = (
            _steps(subs, low, high, fewest) for subs in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0))
        )
        axis.set_major_locator(next(filter(None, locators), MaxNLocator(most)))
        axis.set_minor_formatter(NullFormatter())
        if decades < 1:
            axis.minorticks_off()
    else:
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=whole))
    axis.set_major_formatter(Even(write) if even else FuncFormatter(lambda value, _: write(value)))
    if even and which == "x":  # the power of ten beside the numbers, not among the words below
        axis.get_offset_text().set(horizontalalignment="left", verticalalignment="bottom")


def tick_at(ax: Axes, texts: Mapping[float, str]) -> None:
    """Set the ticks of the x axis: value → text, left out where it would overlap the last one."""
    values = list(texts)
    places = ax.transData.transform([(value, 0) for value in values])[:, 0]
    size = 0.6 * float(mpl.rcParams["xtick.labelsize"]) * ax.figure.dpi / 72  # of a digit
    names, end = [], -math.inf
    for place, name in zip(places, texts.values(), strict=True):
        half = size * len(name) / 2
        shown = place - half > end + size
        names.append(name if shown else "")
        end = place + half if shown else end
    ax.set_xticks(values, names)
    ax.minorticks_off()


def _steps(subs: tuple[float, ...], low: float, high: float, least: int) -> LogLocator | None:
    """Return ticks at `subs` times powers of ten, if `least` of them are in the range."""
    locator = LogLocator(subs=subs, numticks=12)
    ticks = np.asarray(locator.tick_values(low, high)) if low > 0 else np.array([])
    return locator if np.sum((ticks >= low) & (ticks <= high)) >= least else None


SMALL = 1e-3  # ticks below have a common power of ten


class Even(Formatter):
    """Writes all ticks of an axis with equally many decimals.

    Of small ticks a common power of ten stands at the end of the axis.
    """

    def __init__(self, write: Callable[..., str]):
        self.write = write
        self.exponent = 0

    def __call__(self, value: float, pos: int | None = None) -> str:
        return self.write(value)

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        largest = max(map(abs, values), default=0.0)
        self.exponent = math.floor(math.log10(largest)) if 0 < largest < SMALL else 0
        # a locator's rounding errors would give a zero a sign
        exact = [round(value / 10.0**self.exponent, 9) + 0.0 for value in values]
        return [self.write(value, _places(exact)) for value in exact]

    def get_offset(self) -> str:
        return f"×{units.power(10.0**self.exponent)}" if self.exponent else ""


def _places(values: Sequence[float]) -> int:
    """Return the fewest decimals that show every tick."""
    return next(
        (n for n in range(6) if all(abs(round(value, n) - value) < 1e-9 for value in values)), 6
    )


# shares of an axis that two arms, and that more arms, need to be distinguishable
TWO, MORE = 1 / 15, 1 / 6

Span = tuple[float, float]


def near(
    spans: Iterable[Span],
    best: int | None = None,
    extents: Iterable[Span] | None = None,
    few: float = 1 / 2,
    more: float = MORE,
) -> list[bool]:
    """Return which arms an axis should fit: all, unless a few make the others unreadable.

    The furthest arms are left out for as long as two thirds of all, or more than half that lie
    before a gap, are too close together to be distinguishable, and would have more than twice the
    room.

    Args:
        spans: Lowest and highest value of each arm, of those that are compared; arms with NaN or ∞
            are never near.
        best: Place of the best arm, which is never left out.
        extents: Lowest and highest value that each arm needs on the axis, if other than `spans`.
        few: Share of the arms of which fewer are left out.
        more: Share of the axis that more than two arms need to be distinguishable.
    """
    ends = np.array(list(spans), float).reshape(-1, 2)
    known = np.isfinite(ends).all(axis=1)
    count = int(known.sum())
    if not count:
        return known.tolist()
    apart = np.abs(ends - np.median(ends[known].mean(axis=1))).max(axis=1)
    if best is not None:
        apart[best] = 0.0
    order = np.argsort(np.where(known, apart, np.inf), kind="stable")[:count]

    def reach(of: np.ndarray) -> np.ndarray:
        """Return the range of the nearest arm, of the two nearest, and so on."""
        low, high = of[order].T
        reached: np.ndarray = np.maximum.accumulate(high) - np.minimum.accumulate(low)
        return reached

    told = reach(ends)
    whole = told if extents is None else reach(np.array(list(extents), float).reshape(-1, 2))
    nearest = np.arange(count)  # place of the furthest of those that may be too close together
    needed = np.where(nearest > 1, more, TWO)
    most = nearest + 1 > 2 / 3 * count
    least = count - math.ceil(few * count) + 1
    kept = count
    while kept > least:
        inner = slice(least - 1, kept - 1)
        # without a gap only a few are left out
        beside = np.where(most[inner], told[kept - 1], told[least:kept])
        close = (told[inner] > 0) & (told[inner] < needed[inner] * beside)
        if not (close & (whole[inner] < whole[kept - 1] / 2)).any():
            break
        kept -= 1
    return np.isin(np.arange(len(ends)), order[:kept]).tolist()


def best_of(values: Iterable[float], goal: str) -> int | None:
    """Return the place of the best of `values`, None if none is finite."""
    found = np.array(list(values), float) * (1 if goal == "min" else -1)
    found[~np.isfinite(found)] = np.inf
    return int(found.argmin()) if np.isfinite(found).any() else None


def fit(ax: Axes, values: np.ndarray, room: float = 0.05) -> None:
    """Fit the y axis to `values`, with `room` as a share of their range above and below."""
    if span := fitted(values, room):
        ax.set_ylim(*span)


def tip(artist: Artist, text: str, *, single: bool = False) -> None:
    """Give `artist` a text to show under the pointer, which `saving.told` returns.

    Args:
        artist: What the text is of.
        text: The text.
        single: Whether it is of one run among many, and `saving.told` leaves it out.
    """
    artist.set_gid(f"{'run' if single else 'tip'}:{visible(text)}")


def labels(ax: Axes, x: str, y: str) -> None:
    """Name both axes; a long name of the y axis has its unit on a second line."""
    ax.set_xlabel(plain(x))
    ax.set_ylabel(plain(y).replace(" (", "\n(", 1) if len(y) > 26 else plain(y))


def finish(
    ax: Axes,
    x: str,
    y: str,
    handles: Sequence[Artist] = (),
    names: Sequence[str] = (),
    grid: Literal["x", "y", "both"] = "y",
) -> Axes:
    """Name the axes, draw the grid and, if there are names, a legend below; return the axes."""
    ax.grid(axis=grid)
    labels(ax, x, y)
    if names:
        legend_below(ax, handles, names)
    return ax


def apart(ax: Axes, words: Sequence[Annotation]) -> None:
    """Move labels of a finished figure up where they overlap; remove those that still do."""
    ax.figure.figure.draw_without_rendering()
    placed: list[Bbox] = []
    for word in sorted(words, key=lambda word: word.get_window_extent().y0):
        box = word.get_window_extent()
        lift = max([0.0, *(below.y1 + 1 - box.y0 for below in placed if box.overlaps(below))])
        moved = box.translated(0, lift)
        if lift > box.height or any(map(moved.overlaps, placed)):
            word.remove()
            continue
        word.xyann = (word.xyann[0], word.xyann[1] + lift * 72 / ax.figure.dpi)
        placed.append(moved)


def legend_below(ax: Axes, handles: Sequence[Artist], names: Sequence[str]) -> None:
    """Draw a legend under the axes, in as many columns as the longest name allows."""
    if ax.figure.axes == [ax]:
        ax.figure.legend(
            handles,
            names,
            loc="outside lower center",
            ncols=_columns(names, ax.figure.figure.get_figwidth()),
            handlelength=2.2,
            columnspacing=1.2,
            handletextpad=0.5,
        )
    else:
        ax.legend(handles, names)


def _columns(names: Sequence[str], inches: float) -> int:
    """Return the columns of a legend of this width, by the characters that fit."""
    room = int(CHARACTERS * inches)
    longest = max((len(line) for name in names for line in name.split("\n")), default=0)
    return max(1, min(len(names), room // 13, room // (longest + 8)))


def multiples(panels: Sequence[tuple[str, Callable[[Axes], object]]]) -> Axes:
    """Draw panels side by side, each with axes of its own, and one legend for all.

    An entry of the legend that differs between panels, such as the value of an arm outside the
    axis, stands in the title of its panel, and in the legend without what differs.

    Args:
        panels: Title of each panel, and a function that draws it on the axes that it is given.

    Returns:
        The axes of the first panel.
    """
    across = max(1, min(2 if len(panels) <= 4 else 3, int(width(2) / NARROWEST)))
    rows = math.ceil(len(panels) / across)
    with theme():
        figure, grid = plt.subplots(
            rows, across, figsize=(width(2), 2.1 * rows), layout="constrained", squeeze=False
        )
        found: dict[tuple[object, ...], list[tuple[Artist, str, int]]] = {}
        titles = [short([title], int(9 * width(2)) // across)[0] for title, _ in panels]
        for number, (ax, (_, draw)) in enumerate(zip(grid.flat, panels, strict=False)):
            draw(ax)
            for arm, handle, name in _entries(ax):
                found.setdefault(arm, []).append((handle, name, number))
            if number + across < len(panels):
                ax.set_xlabel("")
            if number % across:
                ax.set_ylabel("")
        names = []
        for entries in found.values():
            names.append(_in_common([name for _, name, _ in entries]))
            for _, name, number in entries:
                if name != names[-1]:
                    titles[number] += f"\n{' '.join(name.split())}"
        for ax, title in zip(grid.flat, titles, strict=False):
            ax.set_title(title, fontsize=7.5, fontweight="bold", loc="left")
        for ax in grid.flat[len(panels) :]:
            ax.remove()
        if names:
            columns = _columns(names, width(2))
            lines = sum(1 + name.count("\n") for name in names) / columns
            figure.set_figheight(figure.get_figheight() + 0.17 * math.ceil(lines))
            figure.legend(
                [entries[0][0] for entries in found.values()],
                names,
                loc="outside lower center",
                ncols=columns,
                handlelength=2.2,
            )
        return grid.flat[0]


def _in_common(names: Sequence[str]) -> str:
    """Return an entry of a legend without the value in brackets that differs between panels."""
    shortest = min(names, key=len)
    same = all(name.startswith(shortest) for name in names)
    return shortest if same else shortest.rpartition(" (")[0]


def _entries(ax: Axes) -> list[tuple[tuple[object, ...], Artist, str]]:
    """Take the legend off the axes; return the look, the handle and the name of each entry."""
    legend = ax.get_legend()
    if legend is None:
        return []
    found: list[tuple[tuple[object, ...], Artist, str]] = []
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        assert isinstance(handle, Line2D)
        look = (handle.get_color(), handle.get_marker(), handle.get_linestyle())
        again = sum(arm[:3] == look for arm, *_ in found)
        found.append(((*look, again), handle, text.get_text()))
    legend.remove()
    return found
