"""What fits, isoFLOP minima and comparisons say, in lines of plain text."""

from __future__ import annotations

import numpy as np

from ablate.scaling.beyond import Forecast
from ablate.scaling.bootstrap import Interval
from ablate.scaling.design import TARGET, sufficient_grid
from ablate.scaling.fit import Fit
from ablate.scaling.groups import Comparison
from ablate.scaling.isoflop import IsoFlop
from ablate.units import listed

CLAIMS = {
    "exponent": "differs in its exponent",
    "offset": "differs in loss, but not significantly in its exponents",
    "inconclusive": "does not differ significantly",
}
# where the losses of two groups are compared without a curve, by the axis of the comparison
EQUAL = {"n": "at equal sizes", "d": "at equal numbers of tokens", "c": "at equal budgets"}


def fit_lines(name: str, one: Fit) -> list[str]:
    """Return lines on a fit: constants, held-out check, notes."""
    first = (
        f"{name}: {one.form.symbol} = {one.form.equation}, {one.runs} runs, {one.noise:.2%} off the"
        " curve"
    )
    out = [f"  {constant} = {interval}" for constant, interval in one.constants.items()]
    if one.form.columns == ("n", "d"):
        out.append(f"  best N grows as C^a, a = {one.n_exponent}")
        out += [f"  {text}" for text in (faster(one),) if text]
    if one.shared is not None and len(one.sds):
        sds = zip(one.shared.factors, np.median(one.sds, axis=0), strict=True)
        of = listed(f"of a {name} {sd:.2%}" for name, sd in sds)
        out.append(f"  intervals allow for errors that runs share: {of}")
    out += [f"  {one.held_out}"] if one.held_out else []
    out += [f"  {one.lost} runs without a finite loss left out."] if one.lost else []
    notes = [f"  {note}" for note in (*one.notes, enough(one)) if note]
    return [first, *out, *notes] if one.describes else [first, *notes, *out]


def faster(one: Fit) -> str:
    """Return what it means that the best size grows faster than the budget; "" if it does not."""
    a, gamma = one.n_exponent.value, one.cost.gamma
    if not a > 1:
        return ""
    return (
        f"a is above 1, so the best N grows faster than C, and D as C^{1 - gamma * a:.2f}: over"
        f" these sizes C grows as N^{gamma:.2f} · D, because FLOPs that do not depend on N, or"
        " parameters that cost none, weigh more in small models. It will not hold for larger ones."
        if gamma < 0.98
        else f"a is above 1, so the best D falls as C^{1 - gamma * a:.2f}: more tokens hardly lower"
        " the loss of these runs."
    )


def enough(one: Fit) -> str:
    """Return what noise, runs or grid would make a wide interval of alpha narrow; "" if it is."""
    alpha = one.constants["alpha"]
    width = alpha.hi - alpha.lo
    if not width > TARGET or not one.describes:
        return ""
    times = (width / TARGET) ** 2
    more = f"about {times:.2g} times as many" if times < 100 else "over a hundred times as many"
    text = (
        f"The interval of alpha is {width:.2f} wide. For {TARGET:g} the noise would have to be"
        f" about {one.noise * TARGET / width:.2%}, or runs at these points {more}."
    )
    grid = (
        sufficient_grid(one.form, one.noise, constants=one.values, columns=one.columns)
        if alpha.value > 0.01
        else None
    )
    return f"{text} At the present noise, this would suffice: {grid}." if grid else text


def isoflop_lines(name: str, iso: IsoFlop) -> list[str]:
    """Return lines on isoFLOP minima and exponents."""
    complete = sum(not minimum.reason for minimum in iso.minima)
    noise = (
        f"repeated runs differ by {iso.noise:.2%}"
        if iso.rough is None
        else f"the curves are rough by {iso.noise:.2%} (no run is repeated)"
    )
    out = [f"{name}: isoFLOP minima of {complete} budgets, {noise}"]
    out.append(f"  best N grows as C^a, a = {iso.n_exponent}; best D as C^b, b = {iso.d_exponent}")
    if iso.frontier:
        constants = ", ".join(
            f"{constant} = {interval}" for constant, interval in iso.frontier.constants.items()
        )
        out.append(f"  at the minima L(C) = {iso.frontier.form.equation}: {constants}")
        out += [f"  {iso.frontier.held_out}"] if iso.frontier.held_out else []
    return out + [f"  {note}" for note in iso.notes]


def forecast_lines(name: str, one: Forecast) -> list[str]:
    """Return lines on what a curve predicts, and what such predictions have cost."""
    return [
        f"{name}: predictions, with the interval of a run's loss",
        *(f"  {point}" for point in one.points),
        f"  {one.outlook.cost()}",
    ]


def percent(one: Interval) -> str:
    """Return a relative difference with its interval in percent."""
    return f"{one.value:+.2%} [{one.lo:+.2%}, {one.hi:+.2%}]"


def claim(one: Comparison) -> str:
    """Return what a group does against its baseline, to follow the group's name."""
    return CLAIMS[one.verdict] + (f", but {listed(one.doubts)}" if one.doubts else "")


def comparison_lines(one: Comparison) -> list[str]:
    """Return lines on a group and its baseline: exponents, losses, crossing."""
    out = [f"Against {one.baseline}, {one.group} {claim(one)}"]
    for title, tests in (("own floors", one.exponents), ("one floor for both", one.one_floor)):
        out += [
            f"  {constant}, {title}: difference {t.interval}, p (Holm) {t.p_holm:.3g}"
            for constant, t in tests.items()
        ]
    ends = (
        ("", one.gap),
        (f" at {one.axis.upper()} = {one.low:.3g}", one.gap_low),
        (f" at {one.high:.3g}", one.gap_high),
    )
    gaps = ", ".join(f"{percent(gap)}{where}" for where, gap in ends)
    if one.measured:
        out.append(f"  loss against the baseline's, {EQUAL[one.axis]}: {percent(one.measured)}")
    return [
        *out,
        f"  loss against the baseline's, by the curves: {gaps}",
        f"  {one.axis.upper()}: {one.crossing}",
    ]
