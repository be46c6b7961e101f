"""The scaling section: curves with intervals and a held-out check, their comparison, figures."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd

from ablate import figures
from ablate.analysis.curves import Scaled
from ablate.report.document import Figure
from ablate.report.figure_set import FigureSet
from ablate.report.labels import MetricLabels, p_value, sentence
from ablate.scaling import Comparison, Difference, Fit, Interval
from ablate.scaling.beyond import Forecast
from ablate.scaling.forms import levels
from ablate.scaling.summary import EQUAL, claim, enough, faster
from ablate.scaling.table import ONE
from ablate.units import MINUS, count, ends, listed, number, plural, power, three_digits

SYMBOLS = {"alpha": "α", "beta": "β"}


# -- sentences -------------------------------------------------------------------------------------


def lead(scaled: Scaled) -> list[str]:
    """Say whether the curves of [fit] differ significantly in exponents or loss, and cross."""
    return [_differences(one) for one in (scaled.fitted.comparisons if scaled.fitted else ())]


def claims(scaled: Scaled) -> list[str]:
    """Return what each comparison says first: the difference in loss, and of the exponents."""
    return [_brief(one) for one in (scaled.fitted.comparisons if scaled.fitted else ())]


def _brief(one: Comparison) -> str:
    loss = one.measured or one.gap
    if one.verdict != "offset":
        return f"{_claim(one)[:-1]}: loss {gap(loss)}."
    low, high = sorted(100 * abs(end) for end in (loss.lo, loss.hi))
    return (
        f"The loss of {one.group} is {abs(loss.value):.2%}"
        f" {'higher' if loss.value > 0 else 'lower'} than that of {one.baseline}"
        f"{' ' + EQUAL[one.axis] if one.measured else ''} (95% interval"
        f" {ends(low, high, 2, number, unit='%')}). The difference of their exponents is"
        " inconclusive" + (f", and {listed(one.doubts)}." if one.doubts else ".")
    )


def _differences(one: Comparison) -> str:
    apart = [f"{SYMBOLS[key]} {change(test.interval)}" for key, test in one.exponents.items()]
    apart.append(
        f"loss {gap(one.measured)} {EQUAL[one.axis]}" if one.measured else f"loss {gap(one.gap)}"
    )
    cross = (
        f"cross at {one.axis.upper()} = {three_digits(one.crossing.at.value)}"
        if one.crossing.inside
        else "do not cross"
    )
    return (
        f"{_claim(one)} Differences from {one.baseline}: {listed(apart)}. The curves {cross} within"
        f" the measured range; {one.crossing.share_inside:.0%} of bootstrap samples do."
    )


def _claim(one: Comparison) -> str:
    return f"{one.group} {claim(one)}."


def paragraphs(scaled: Scaled) -> list[str]:
    """Return what was fitted to what, how far to trust it, and how the curves compare."""
    sentences = [_measured(scaled), *scaled.losses.notes]
    if scaled.fitted is None:
        return [*sentences, scaled.refused]
    sentences += [_fit(scaled, name, one) for name, one in scaled.fits.items()]
    sentences += [_compared(one) for one in scaled.fitted.comparisons]
    sentences += [_cost(name, one) for name, one in scaled.forecasts.items()]
    return [minus(text) for text in (*sentences, *scaled.fitted.notes)]


def minus(text: str) -> str:
    """Return `text` with a real minus sign in its negative numbers."""
    return re.sub(r"(?<![\w.^-])-(?=\d)", MINUS, text)


def _measured(scaled: Scaled) -> str:
    columns, means = scaled.losses.columns, scaled.losses.means
    with np.errstate(invalid="ignore"):  # no tokens, no FLOPs
        price = columns["c"] / (columns["n"] * columns["d"])
    return (
        f"{plural(len(scaled.losses.loss), 'run')} that completed the schedule, on"
        f" {plural(len(scaled.order), 'curve')}. N: {means['n']}, {_range(columns['n'], count)}. D:"
        f" {means['d']}, {_range(columns['d'], count)}. C: {means['c']},"
        f" {_range(columns['c'], power)}; {_range(price, lambda value: f'{value:.3g}')} FLOPs per"
        " parameter and token."
    )


def _range(values: np.ndarray, write: object) -> str:
    assert callable(write)
    return " to ".join(
        dict.fromkeys(write(float(f"{value:.3g}")) for value in (values.min(), values.max()))
    )


def _fit(scaled: Scaled, name: str, one: Fit) -> str:
    exponents = [
        f"{SYMBOLS[key]} = {interval(one.constants[key])}"
        for key in ("alpha", "beta")
        if key in one.constants
    ]
    if one.form.columns == ("n", "d"):
        exponents.append(f"the best size grows as C^a with a = {interval(one.n_exponent)}")
    assert scaled.fitted
    iso = scaled.fitted.isoflops.get(name)
    of_a = [faster(one)] if one.form.columns == ("n", "d") else []
    by_minima = f" By isoFLOP minima a = {interval(iso.n_exponent)}." if iso else ""
    rest = " ".join(
        str(note) for note in (*of_a, one.held_out or "", *one.notes, enough(one)) if note
    )
    who = "" if name == ONE else f"{name}: "
    curve = f"{who}{one.form.symbol} = {_equation(one)}"
    return f"{curve}; {'; '.join(exponents)}.{by_minima} {rest}".strip()


def _cost(name: str, one: Forecast) -> str:
    who = "" if name == ONE else f" by {name}"
    return f"Predictions{who}: {one.outlook.cost()}"


def _equation(one: Fit) -> str:
    terms = [three_digits(one.constants["E"].value)]
    for column, scale, exponent in zip(
        one.form.columns, ("A", "B"), ("alpha", "beta"), strict=False
    ):
        terms.append(
            f"{three_digits(one.constants[scale].value)}/{column.upper()}^{one.constants[exponent].value:.3g}"
        )
    return " + ".join(terms)


def interval(one: Interval, digits: int = 3) -> str:
    """Return a value with its 95% interval."""
    return f"{one.value:.{digits}f} (95% interval {ends(one.lo, one.hi, digits, number)})"


def _compared(one: Comparison) -> str:
    tests = "; ".join(
        f"{SYMBOLS[key]} {_tested(test)}, with one floor for both {_tested(one.one_floor[key])}"
        for key, test in one.exponents.items()
    )
    axis, base = one.axis.upper(), one.baseline
    crossing = sentence(one.crossing.text(three_digits)).replace("at ", f"at {axis} = ", 1)
    equal = f"{gap(one.measured)} {EQUAL[one.axis]}, " if one.measured else ""
    return (
        f"{_claim(one)} Differences of its exponents from {base}'s: {tests}. Its loss relative to"
        f" {base}'s is {equal}{gap(one.gap)} by the curves over the measured range,"
        f" {gap(one.gap_low)} at {axis} = {three_digits(one.low)} and {gap(one.gap_high)} at"
        f" {three_digits(one.high)}. {crossing}."
    )


def _tested(test: Difference) -> str:
    return change(test.interval, f"; Holm {p_value(test.p_holm)}")


def change(one: Interval, rest: str = "") -> str:
    """Return a difference of exponents with its interval."""
    return minus(f"{one.value:+.3f} ({ends(one.lo, one.hi, 3)}{rest})")


def gap(one: Interval) -> str:
    """Return a relative difference of losses in percent with its interval."""
    return minus(f"{one.value:+.2%} ({ends(100 * one.lo, 100 * one.hi, 2, unit='%')})")


# -- figures ---------------------------------------------------------------------------------------


def plots(figure_set: FigureSet, scaled: Scaled, labels: MetricLabels) -> list[Figure]:
    """Return loss over N, D and C, isoFLOP curves, best splits and residuals, if runs have them."""
    plotted = []
    for x, over in {"n": "size", "d": "training tokens", "c": "training FLOPs"}.items():
        if x in scaled.frame and len(levels(scaled.frame[x].to_numpy(float))) > 1:
            title = f"{sentence(labels.phrase)} over {over}"
            look: dict[str, Any] = {"x": x, "label": labels.axis, "fits": scaled.fits}
            if scaled.forecasts:
                look["predictions"] = {name: one.points for name, one in scaled.forecasts.items()}
            plotted.append(
                figure_set.add(
                    f"scaling-{x}",
                    title,
                    _caption(scaled, x),
                    figures.scaling,
                    scaled.frame,
                    **look,
                )
            )
    isoflops = scaled.fitted.isoflops if scaled.fitted else {}
    for index, (name, iso) in enumerate(isoflops.items()):
        part = scaled.frame[scaled.frame["curve"] == name]
        title = "isoFLOP curves" + ("" if name == ONE else f" of {name}")
        caption = (
            "One line per budget: Akima interpolation of mean losses. Star: its minimum, with the"
            " 95% interval of its size."
        )
        plotted.append(
            figure_set.add(
                f"isoflop-{index}", title, caption, figures.isoflop, iso, part, label=labels.axis
            )
        )
    two = {name: one for name, one in scaled.fits.items() if one.form.columns == ("n", "d")}
    if isoflops or two:
        budgets = scaled.frame.groupby("curve", observed=True)["c"]
        ranges = {str(name): (float(c.min()), float(c.max())) for name, c in budgets}
        for which, what in {"n": "size", "d": "number of tokens"}.items():
            title = f"The best {what} of a budget"
            parts = ["Dashed, with its 95% interval: the optimal split by L(N, D)."] if two else []
            parts += (
                ["Marks and solid line: isoFLOP minima and their power law."] if isoflops else []
            )
            look = {"order": scaled.order, "ranges": ranges, "which": which}
            plotted.append(
                figure_set.add(
                    f"frontier-{which}",
                    title,
                    " ".join(parts),
                    figures.frontier,
                    isoflops,
                    two,
                    **look,
                )
            )
    if scaled.fits:
        x = next(iter(scaled.fits.values())).form.columns[0]
        caption = (
            "Residual of every run. Hollow: runs that the check leaves out of its fit; this fit has"
            " them."
        )
        shown = scaled.frame[scaled.frame["residual"].notna()]
        plotted.append(
            figure_set.add("residuals", "Residuals", caption, figures.residuals, shown, x=x)
        )
    return plotted


def _caption(scaled: Scaled, x: str) -> str:
    text = "Mark: mean over seeds; faint points: single runs. Both axes are logarithmic."
    if not scaled.fits:
        return text
    one = next(iter(scaled.fits.values()))
    if one.form.columns != ("n", "d"):
        text += f" Line: {one.form.symbol}, with its 95% interval (bootstrap over runs)."
    elif x == "c":
        text += (
            " Thick line: the lowest loss of a budget by L(N, D), with its 95% interval; thin"
            " lines: L(N, D) at "
        )
        text += f"{figures.at_what(_alone(scaled), x)}."
    else:
        text += (
            f" Lines: L(N, D) at {figures.at_what(_alone(scaled), x)}, with its 95% interval"
            " (bootstrap over runs)."
        )
    if scaled.forecasts:
        text += " Diamond: predicted loss, with the 95% interval of a run."
    return text + (
        " Hollow: runs that the check leaves out of its fit; dotted: that fit."
        if scaled.frame["held_out"].any()
        else ""
    )


def _alone(scaled: Scaled) -> pd.DataFrame:
    """Return the runs of the first curve, which has labelled lines."""
    return scaled.frame[scaled.frame["curve"] == scaled.order[0]]
