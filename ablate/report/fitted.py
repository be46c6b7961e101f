"""Tables of the scaling section: constants, comparisons, isoFLOP minima, other counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ablate.analysis.curves import Scaled, losses
from ablate.errors import AblateError
from ablate.report.data import ReportData
from ablate.report.document import Estimate, Table, Value
from ablate.report.labels import p_digits
from ablate.report.scaled import SYMBOLS, change, gap, minus
from ablate.scaling import Difference, HeldOut, Interval, Minimum
from ablate.scaling.beyond import OUTSIDE
from ablate.scaling.study import COUNTS
from ablate.units import count, three_digits

FEWER = 400  # replicates, for what only a table shows


def tables(scaled: Scaled, data: ReportData) -> list[Table]:
    """Return the tables of the scaling section."""
    return [
        _constants(scaled),
        _comparisons(scaled),
        _predictions(scaled),
        _minima(scaled),
        _counts(scaled, data),
    ]


def _value(one: Interval, write: Callable[[float], str] = three_digits) -> Estimate:
    return _estimate(f"{write(one.value)} ({write(one.lo)} to {write(one.hi)})", one)


def _estimate(text: str, one: Interval) -> Estimate:
    return Estimate(text, one.value, one.lo, one.hi)


def _constants(scaled: Scaled) -> Table:
    """The constants of the curves, and how well they predicted what was held out."""
    names = ("E", "A", "alpha", "B", "beta")
    shown = [name for name in names if any(name in one.constants for one in scaled.fits.values())]
    rows: list[tuple[str | Value, ...]] = []
    for name, one in scaled.fits.items():
        miss = (
            Value("–", None)
            if one.held_out is None
            else Estimate(_miss(one.held_out), one.held_out.miss, one.held_out.lo, one.held_out.hi)
        )
        constants = [_value(one.constants[key]) for key in shown]
        rows.append(
            (
                name,
                one.form.symbol,
                Value(f"{one.runs}", one.runs),
                *constants,
                Value(f"{one.noise:.2%}", one.noise),
                miss,
            )
        )
    what = next(
        (one.held_out.what for one in scaled.fits.values() if one.held_out), "what was held out"
    )
    return Table(
        "fits",
        "Fitted curves, with 95% intervals by bootstrap over runs. The last column: the distance of"
        f" the {what} from a curve fitted without it, and the prediction interval of that"
        " curve.",
        (
            "curve",
            "form",
            "runs",
            *(SYMBOLS.get(name, name) for name in shown),
            "off the curve",
            "held out",
        ),
        tuple(rows),
    )


def _miss(one: HeldOut) -> str:
    text = f"{one.miss:+.2%}, expected {one.lo:+.2%} to {one.hi:+.2%}"
    return minus(text) + ("" if one.trusted else ": not to be trusted")


def _comparisons(scaled: Scaled) -> Table:
    rows: list[tuple[str | Value, ...]] = []
    comparisons = scaled.fitted.comparisons if scaled.fitted else ()
    for one in comparisons:
        tests = [
            cell
            for key in one.exponents
            for cell in (*_test(one.exponents[key]), *_test(one.one_floor[key]))
        ]
        at_points = _estimate(gap(one.measured), one.measured) if one.measured else Value("–", None)
        gaps = [
            at_points,
            *(_estimate(gap(curve), curve) for curve in (one.gap, one.gap_low, one.gap_high)),
        ]
        crossing = _estimate(one.crossing.text(three_digits), one.crossing.at)
        rows.append(
            (
                one.group,
                one.baseline,
                one.verdict + ("" if one.trusted else " (not to be trusted)"),
                *tests,
                *gaps,
                crossing,
            )
        )
    exponents = [SYMBOLS[key] for key in (comparisons[0].exponents if comparisons else ())]
    columns = [f"{symbol}{floors}" for symbol in exponents for floors in ("", ", one floor")]
    return Table(
        "curves-compared",
        "Comparison of the curves: differences of exponents, with separate floors E and with one"
        " floor for both, p after Holm's correction; the loss relative to the baseline's over the"
        " measured range and at its ends; where the curves cross. Verdict offset: the loss differs,"
        " the exponents do not differ significantly.",
        (
            "curve",
            "against",
            "verdict",
            *(
                text
                for column in columns
                for text in (f"difference in {column}", f"Holm p of {column}")
            ),
            "loss at the same points",
            "by the curves",
            "at the low end",
            "at the high end",
            "crossing",
        ),
        tuple(rows),
    )


def _predictions(scaled: Scaled) -> Table:
    shown = [(name, point) for name, one in scaled.forecasts.items() for point in one.points]
    resources = [name for name in ("n", "d", "c") if any(name in point.at for _, point in shown)]
    below = [key for key in resources if any(point.under[key] > OUTSIDE for _, point in shown)]
    rows: list[tuple[str | Value, ...]] = []
    for name, point in shown:
        at = [Value(three_digits(point.at[key]), point.at[key]) for key in resources]
        out = [Value(f"{point.out[key]:.3g}", point.out[key]) for key in resources]
        under = [Value(f"{point.under[key]:.3g}", point.under[key]) for key in below]
        rows.append((name, *at, _value(point.loss, "{:.4g}".format), *out, *under))
    return Table(
        "predictions",
        "Predicted losses of a run, with 95% intervals from what such predictions of the largest"
        " runs have cost, and the resources as multiples of the largest run's. Where a point is"
        " smaller than all runs: the smallest run's resource as a multiple of the point's.",
        (
            "curve",
            *(key.upper() for key in resources),
            "loss",
            *(f"{key.upper()} beyond the runs" for key in resources),
            *(f"{key.upper()} below the runs" for key in below),
        ),
        tuple(rows),
    )


def _test(one: Difference) -> tuple[Value, Value]:
    return (_estimate(change(one.interval), one.interval), Value(p_digits(one.p_holm), one.p_holm))


def _minima(scaled: Scaled) -> Table:
    isoflops = scaled.fitted.isoflops if scaled.fitted else {}
    rows = [_minimum(name, minimum) for name, iso in isoflops.items() for minimum in iso.minima]
    return Table(
        "isoflop",
        "The size with the lowest loss at each budget, by Akima interpolation of loss over log"
        " size.",
        ("curve", "FLOPs", "best N", "best D", "loss", "no minimum"),
        tuple(rows),
    )


def _minimum(name: str, one: Minimum) -> tuple[str | Value, ...]:
    none = Value("–", None)
    best = _value(one.n, count)
    at_minimum = (
        (none, none, none)
        if one.reason
        else (best, Value(count(one.d), one.d), Value(f"{one.loss:.4f}", one.loss))
    )
    return name, Value(three_digits(one.c), one.c), *at_minimum, one.reason


def _counts(scaled: Scaled, data: ReportData) -> Table:
    """What the exponents would be if N and C were counted otherwise."""
    rows = []
    for key, counted in COUNTS.items():
        for name, alpha, a, by_minima in _recounted(scaled, data, key):
            rows.append((name, counted.n, counted.c, alpha, a, by_minima))
    return Table(
        "counts",
        "The exponents for different definitions of N and C: in small models embeddings hold many"
        " of the parameters and the head takes many of the FLOPs (Porian et al. 2024). Without the"
        " head's FLOPs the runs of a budget differ in C, so there are no isoFLOP minima.",
        ("curve", "N", "C", "α", "a of the best N ∝ C^a, by L(N, D)", "a, by isoFLOP minima"),
        tuple(rows),
    )


def _recounted(
    scaled: Scaled, data: ReportData, key: str
) -> Iterator[tuple[str, Value, Value, Value]]:
    if scaled.fitted is None:
        return
    try:
        again = (
            scaled.fitted
            if key == "body"
            else replace(losses(data, key), against={}).fit(bootstraps=FEWER)
        )
    except AblateError:  # a form that cannot be fitted with this count has no row
        return
    for name, one in again.fits.items():
        iso = again.isoflops.get(name)
        a = _value(one.n_exponent) if one.form.columns == ("n", "d") else Value("–", None)
        yield (
            name,
            _value(one.constants["alpha"]),
            a,
            _value(iso.n_exponent) if iso else Value("–", None),
        )
