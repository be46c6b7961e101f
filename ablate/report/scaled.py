"""The scaling section: curves with intervals and a held-out check, the levels of [fit] compared, and their figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ablate import figures
from ablate.errors import AblateError
from ablate.report.document import Picture, Table, Value
from ablate.report.material import Material
from ablate.report.pictures import Gallery
from ablate.report.words import MINUS, p_digits, p_value, plural, sentence
from ablate.scaling import Comparison, Difference, Fit, HeldOut, Interval, Losses, Minimum, TableFit
from ablate.scaling.forms import levels
from ablate.scaling.study import COUNTS, of_study, resources
from ablate.scaling.table import ONE
from ablate.scaling.words import UNTRUSTED, enough
from ablate.units import count, listed, power

LEAST_LEVELS = 3  # of a factor of size or budget, from which a study without [fit] has a scaling section
FEWER = 400  # replicates, for what only a table shows
SYMBOLS = {"alpha": "α", "beta": "β"}
CLAIMS = {
    "exponent": "differs in its exponent",
    "offset": "differs by an offset: exponents are not told apart, the losses are",
    "not told apart": "is not told apart",
}


@dataclass(frozen=True)
class Scaled:
    """A study's runs with what was fitted to them."""

    material: Material
    losses: Losses
    fitted: TableFit | None
    refused: str  # why nothing was fitted

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a run: n, d, c, loss, curve, held_out, residual."""
        names = self.losses.curves if any(self.losses.curves) else (ONE,) * len(self.losses.loss)
        frame = pd.DataFrame({**self.losses.columns, "loss": self.losses.loss, "held_out": False, "residual": math.nan})
        frame["curve"] = pd.Categorical(names, categories=list(dict.fromkeys(names)), ordered=True)
        for name, one in self.fits.items():
            mine = frame["curve"] == name
            columns = {column: frame.loc[mine, column].to_numpy() for column in one.form.columns}
            frame.loc[mine, "residual"] = frame.loc[mine, "loss"] / one.form.loss(one.values, columns) - 1
            if one.held_out is not None:
                frame.loc[mine, "held_out"] = frame.loc[mine, one.held_out.column] >= one.held_out.from_
        return frame

    @property
    def fits(self) -> dict[str, Fit]:
        return self.fitted.fits if self.fitted else {}

    @property
    def order(self) -> list[str]:
        return list(self.frame["curve"].cat.categories)


def gather(material: Material) -> Scaled | None:
    """The scaling of a study with [fit], or with three sizes or budgets; None for any other."""
    wanted = material.settings.get("fit", {})
    grown = (
        [] if wanted else [f for f in resources(material.compared, material.levels) if len(material.orders[f]) >= LEAST_LEVELS]
    )
    if (not wanted and not grown) or material.good.empty:
        return None
    losses = _losses(material)
    if material.study.goal != "min":
        return Scaled(material, losses, None, "No curve is fitted: the forms are of a loss, and this metric rises.")
    try:
        return Scaled(material, losses, losses.fit(hold_out=str(wanted.get("hold_out", ""))), "")
    except AblateError as error:
        return Scaled(material, losses, None, f"No curve is fitted: {error}")


def _losses(material: Material, count: str = "body") -> Losses:
    group = str(material.settings.get("fit", {}).get("group", ""))
    return of_study(material.runs, material.levels, group=group, count=count)


# -- words ---------------------------------------------------------------------------------------------------------


def lead(scaled: Scaled) -> list[str]:
    """Whether the curves of [fit] differ by an offset or an exponent: two sentences each."""
    return [_told(one) for one in (scaled.fitted.comparisons if scaled.fitted else ())]


def _told(one: Comparison) -> str:
    apart = [f"{SYMBOLS[key]} by {_apart(test.interval)}" for key, test in one.exponents.items()]
    apart.append(f"loss by {_gap(one.measured)} at the points of both" if one.measured else f"loss by {_gap(one.gap)}")
    return f"{_claim(one)} It differs from {one.baseline} in {listed(apart)}."


def _claim(one: Comparison) -> str:
    return f"{one.group} {CLAIMS[one.verdict]}{'' if one.trusted else UNTRUSTED}."


def paragraphs(scaled: Scaled) -> list[str]:
    """What was fitted to what, how far it is to be trusted, and how the curves compare."""
    said = [_measured(scaled), *scaled.losses.notes]
    if scaled.fitted is None:
        return [*said, scaled.refused]
    said += [_fit(scaled, name, one) for name, one in scaled.fits.items()]
    said += [_compared(one) for one in scaled.fitted.comparisons]
    return [_minus(text) for text in (*said, *scaled.fitted.notes)]


def _minus(text: str) -> str:
    """Negative numbers with a real minus sign."""
    return re.sub(r"(?<![\w.^-])-(?=\d)", MINUS, text)


def _measured(scaled: Scaled) -> str:
    columns, means = scaled.losses.columns, scaled.losses.means
    price = columns["c"] / (columns["n"] * columns["d"])
    return (
        f"{plural(len(scaled.losses.loss), 'run')} that completed the schedule, on {plural(len(scaled.order), 'curve')}. "
        f"N: {means['n']}, {_range(columns['n'], count)}. D: {means['d']}, {_range(columns['d'], count)}. "
        f"C: {means['c']}, {_range(columns['c'], power)}; {_range(price, lambda value: f'{value:.3g}')} a parameter and token."
    )


def _range(values: np.ndarray, write: object) -> str:
    assert callable(write)
    return " to ".join(dict.fromkeys(write(float(f"{value:.3g}")) for value in (values.min(), values.max())))


def _fit(scaled: Scaled, name: str, one: Fit) -> str:
    exponents = [f"{SYMBOLS[key]} = {_interval(one.constants[key])}" for key in ("alpha", "beta") if key in one.constants]
    if one.form.columns == ("n", "d"):
        exponents.append(f"the best size grows as C^a with a = {_interval(one.n_exponent)}")
    assert scaled.fitted
    iso = scaled.fitted.isoflops.get(name)
    by_minima = f" By isoFLOP minima a = {_interval(iso.n_exponent)}." if iso else ""
    rest = " ".join(str(note) for note in (one.held_out or "", *one.notes, enough(one)) if note)
    who = "" if name == ONE else f"{name}: "
    return f"{who}{one.form.symbol} = {_equation(one)}; {'; '.join(exponents)}.{by_minima} {rest}".strip()


def _equation(one: Fit) -> str:
    terms = [f"{one.constants['E'].value:.3g}"]
    for column, scale, exponent in zip(one.form.columns, ("A", "B"), ("alpha", "beta"), strict=False):
        terms.append(f"{one.constants[scale].value:.3g}/{column.upper()}^{one.constants[exponent].value:.3g}")
    return " + ".join(terms)


def _interval(one: Interval, digits: int = 3) -> str:
    return f"{one.value:.{digits}f} (95% interval {one.lo:.{digits}f} to {one.hi:.{digits}f})"


def _compared(one: Comparison) -> str:
    tests = "; ".join(
        f"{SYMBOLS[key]} by {_change(test)}, with one floor for both by {_change(one.one_floor[key])}"
        for key, test in one.exponents.items()
    )
    axis, base = one.axis.upper(), one.baseline
    low, high = (power(float(f"{end:.3g}")) for end in (one.low, one.high))
    crossing = sentence(str(one.crossing)).replace("at ", f"at {axis} = ", 1)
    at_points = f"{_gap(one.measured)} at the points that both have, " if one.measured else ""
    return (
        f"{_claim(one)} Against {base} its exponents differ thus: {tests}. "
        f"Its loss relative to {base}'s is {at_points}{_gap(one.gap)} by the curves over the measured range, "
        f"{_gap(one.gap_low)} at {axis} = {low} and {_gap(one.gap_high)} at {high}. {crossing}."
    )


def _change(test: Difference) -> str:
    return _apart(test.interval, f"; Holm {p_value(test.p_holm)}")


def _apart(one: Interval, rest: str = "") -> str:
    return _minus(f"{one.value:+.3f} ({one.lo:+.3f} to {one.hi:+.3f}{rest})")


def _gap(one: Interval) -> str:
    return _minus(f"{one.value:+.2%} ({one.lo:+.2%} to {one.hi:+.2%})")


# -- tables --------------------------------------------------------------------------------------------------------


def tables(scaled: Scaled) -> list[Table]:
    return [_constants(scaled), _comparisons(scaled), _minima(scaled), _counts(scaled)]


def _value(one: Interval, write: str = ".3g") -> Value:
    return Value(f"{one.value:{write}} ({one.lo:{write}} to {one.hi:{write}})", one.value)


def _constants(scaled: Scaled) -> Table:
    """The constants of the curves, and how well they foretold what was held out."""
    names = ("E", "A", "alpha", "B", "beta")
    shown = [name for name in names if any(name in one.constants for one in scaled.fits.values())]
    rows: list[tuple[str | Value, ...]] = []
    for name, one in scaled.fits.items():
        miss = Value("–", None) if one.held_out is None else Value(_miss(one.held_out), one.held_out.miss)
        constants = [_value(one.constants[key]) for key in shown]
        rows.append(
            (name, one.form.symbol, Value(f"{one.runs}", one.runs), *constants, Value(f"{one.noise:.2%}", one.noise), miss)
        )
    what = next((one.held_out.what for one in scaled.fits.values() if one.held_out), "what was held out")
    return Table(
        "fits",
        f"Fitted curves, with 95% intervals by bootstrap over runs. The last column: how far the {what} lies from a curve fitted "
        "without it, and the interval that this curve had for it.",
        ("curve", "form", "runs", *(SYMBOLS.get(name, name) for name in shown), "off the curve", "held out"),
        tuple(rows),
    )


def _miss(one: HeldOut) -> str:
    text = f"{one.miss:+.2%}, expected {one.lo:+.2%} to {one.hi:+.2%}"
    return _minus(text) + ("" if one.trusted else ": not to be trusted")


def _comparisons(scaled: Scaled) -> Table:
    rows: list[tuple[str | Value, ...]] = []
    found = scaled.fitted.comparisons if scaled.fitted else ()
    for one in found:
        tests = [cell for key in one.exponents for cell in (*_test(one.exponents[key]), *_test(one.one_floor[key]))]
        at_points = Value(_gap(one.measured), one.measured.value) if one.measured else Value("–", None)
        gaps = [at_points, *(Value(_gap(gap), gap.value) for gap in (one.gap, one.gap_low, one.gap_high))]
        crossing = Value(str(one.crossing), one.crossing.at.value)
        rows.append(
            (one.group, one.baseline, one.verdict + ("" if one.trusted else " (not to be trusted)"), *tests, *gaps, crossing)
        )
    exponents = [SYMBOLS[key] for key in (found[0].exponents if found else ())]
    columns = [f"{symbol}{floors}" for symbol in exponents for floors in ("", ", one floor")]
    return Table(
        "curves-compared",
        "Curves against each other: by how much their exponents differ, each with a floor E of its own and with one floor for "
        "both, p by Holm; the loss relative to the baseline's over the measured range and at its ends; where the curves cross.",
        ("curve", "against", "differs by", *(text for column in columns for text in (f"difference in {column}", "Holm p")),
         "loss at the same points", "by the curves", "at the low end", "at the high end", "crossing"),
        tuple(rows),
    )  # fmt: skip


def _test(one: Difference) -> tuple[Value, Value]:
    return (
        Value(_apart(one.interval), one.interval.value),
        Value(p_digits(one.p_holm), one.p_holm),
    )


def _minima(scaled: Scaled) -> Table:
    isoflops = scaled.fitted.isoflops if scaled.fitted else {}
    rows = [_minimum(name, minimum) for name, iso in isoflops.items() for minimum in iso.minima]
    return Table(
        "isoflop",
        "The size of lowest loss in each budget, on the Akima interpolation of the losses over log size.",
        ("curve", "FLOPs", "best N", "best D", "loss", "no minimum"),
        tuple(rows),
    )


def _minimum(name: str, one: Minimum) -> tuple[str | Value, ...]:
    none = Value("–", None)
    best = Value(f"{count(one.n.value)} ({count(one.n.lo)} to {count(one.n.hi)})", one.n.value)
    found = (none, none, none) if one.reason else (best, Value(count(one.d), one.d), Value(f"{one.loss:.4f}", one.loss))
    return name, Value(power(float(f"{one.c:.3g}")), one.c), *found, one.reason


def _counts(scaled: Scaled) -> Table:
    """What the exponents would be if N and C were counted otherwise."""
    rows = []
    for key, counted in COUNTS.items():
        for name, alpha, a, by_minima in _recounted(scaled, key):
            rows.append((name, counted.n, counted.c, alpha, a, by_minima))
    return Table(
        "counts",
        "The exponents by what counts as N and as C: small models have much of their parameters in embeddings and of their FLOPs "
        "in the head (Porian et al. 2024). Without the head's FLOPs equal budgets are not equal, and have no isoFLOP minima.",
        ("curve", "N", "C", "α", "a of the best N ∝ C^a, by L(N, D)", "a, by isoFLOP minima"),
        tuple(rows),
    )


def _recounted(scaled: Scaled, key: str) -> Iterator[tuple[str, Value, Value, Value]]:
    if scaled.fitted is None:
        return
    try:
        again = scaled.fitted if key == "body" else replace(_losses(scaled.material, key), against={}).fit(bootstraps=FEWER)
    except AblateError:  # a form that cannot be fitted with this count has no row
        return
    for name, one in again.fits.items():
        iso = again.isoflops.get(name)
        a = _value(one.n_exponent) if one.form.columns == ("n", "d") else Value("–", None)
        yield name, _value(one.constants["alpha"]), a, _value(iso.n_exponent) if iso else Value("–", None)


# -- figures -------------------------------------------------------------------------------------------------------


def pictures(gallery: Gallery, scaled: Scaled) -> list[Picture]:
    """The loss over N, D and C; isoFLOP curves; the best split; residuals: those that the runs have points for."""
    words = scaled.material.words
    found = []
    for x, over in {"n": "size", "d": "training tokens", "c": "training FLOPs"}.items():
        if len(levels(scaled.frame[x].to_numpy(float))) > 1:
            title = f"{sentence(words.phrase)} over {over}"
            look: dict[str, Any] = {"x": x, "label": words.axis, "fits": scaled.fits}
            found.append(gallery.hang(f"scaling-{x}", title, _caption(scaled, x), figures.scaling, scaled.frame, **look))
    isoflops = scaled.fitted.isoflops if scaled.fitted else {}
    for number, (name, iso) in enumerate(isoflops.items()):
        part = scaled.frame[scaled.frame["curve"] == name]
        title = "isoFLOP curves" + ("" if name == ONE else f" of {name}")
        caption = "A line a budget: Akima interpolation of the mean losses. Star: its minimum, with the 95% interval of its size."
        found.append(gallery.hang(f"isoflop-{number}", title, caption, figures.isoflop, iso, part, label=words.axis))
    two = {name: one for name, one in scaled.fits.items() if one.form.columns == ("n", "d")}
    if isoflops or two:
        budgets = scaled.frame.groupby("curve", observed=True)["c"]
        ranges = {str(name): (float(c.min()), float(c.max())) for name, c in budgets}
        for which, what in {"n": "size", "d": "number of tokens"}.items():
            title = f"The best {what} of a budget"
            parts = ["Dashed, with its 95% interval: the best split of L(N, D)."] if two else []
            parts += ["Marks and solid line: isoFLOP minima and their power law."] if isoflops else []
            look = {"order": scaled.order, "ranges": ranges, "which": which}
            found.append(gallery.hang(f"frontier-{which}", title, " ".join(parts), figures.frontier, isoflops, two, **look))
    if scaled.fits:
        x = next(iter(scaled.fits.values())).form.columns[0]
        caption = "Every run against its curve; hollow: runs that were held out from the check, though not from this curve."
        shown = scaled.frame[scaled.frame["residual"].notna()]
        found.append(gallery.hang("residuals", "Residuals", caption, figures.residuals, shown, x=x))
    return found


def _caption(scaled: Scaled, x: str) -> str:
    text = "Mark: mean over seeds; faint points: single runs. Both axes are logarithmic."
    if not scaled.fits:
        return text
    one = next(iter(scaled.fits.values()))
    if one.form.columns != ("n", "d"):
        text += f" Line: {one.form.symbol}, with its 95% interval (bootstrap over runs)."
    elif x == "c":
        text += " Thick line: the lowest loss of a budget by L(N, D), with its 95% interval; thin lines: L(N, D) at each size."
    else:
        at = "each size" if x == "d" else f"each {figures.along(scaled.frame)}"
        text += f" Lines: L(N, D) at {at}, with its 95% interval (bootstrap over runs)."
    return text + (" Hollow: held out from the check; dotted: the fit without them." if scaled.frame["held_out"].any() else "")
