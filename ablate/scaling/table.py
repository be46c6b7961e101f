"""Fit a table of losses: one curve a group, isoFLOP exponents if budgets repeat, comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ablate.errors import AblateError
from ablate.scaling import summary
from ablate.scaling.beyond import Forecast, Outlook, check_point
from ablate.scaling.bootstrap import BOOTSTRAPS
from ablate.scaling.design import SAME_LINE
from ablate.scaling.fit import Fit, chosen_form, fit, not_converged, with_noise
from ablate.scaling.forms import FLOPS_PER_PARAM_TOKEN, FORMS, level_of, levels
from ablate.scaling.groups import Comparison, compare_groups
from ablate.scaling.held_out import chosen_check
from ablate.scaling.isoflop import LEAST_SIZES, IsoFlop, isoflop
from ablate.scaling.solve import Floats
from ablate.units import listed

APART = 1.2  # neighbouring budgets with a larger ratio are distinct
# runs times replicates; a table of more runs gets fewer replicates, but LEAST_REPLICATES
MOST_WORK = 3_000_000
LEAST_REPLICATES = 200
ONE = "all"  # name of the curve of a table without groups


@dataclass(frozen=True)
class TableFit:
    """The fits of a table of losses.

    Groups are in order of appearance; the first is the baseline. A single group is called "all".
    """

    fits: dict[str, Fit]
    isoflops: dict[str, IsoFlop]
    comparisons: tuple[Comparison, ...]
    notes: tuple[str, ...]
    forecasts: dict[str, Forecast]  # of each group, where losses are to be predicted

    def lines(self) -> list[str]:
        """Return the whole result as lines of plain text."""
        parts = [summary.fit_lines(name, one) for name, one in self.fits.items()]
        parts += [summary.isoflop_lines(name, iso) for name, iso in self.isoflops.items()]
        parts += [summary.comparison_lines(one) for one in self.comparisons]
        parts += [summary.forecast_lines(name, one) for name, one in self.forecasts.items()]
        return [line for part in parts for line in part] + list(self.notes)


def silent(text: str) -> None:
    """Show no progress."""


def fit_table(
    loss: Floats,
    *,
    n: Floats | None = None,
    d: Floats | None = None,
    flops: Floats | None = None,
    group: Sequence[str] | None = None,
    against: Mapping[str, str] | None = None,
    form: str = "",
    hold_out: str = "",
    predict: Sequence[Mapping[str, float]] = (),
    rng: np.random.Generator,
    bootstraps: int = BOOTSTRAPS,
    progress: Callable[[str], object] = silent,
) -> TableFit:
    """Fit P runs, a curve for each group, and compare the groups.

    IsoFLOP minima are fitted as well if budgets repeat. From 3,000 runs on the number of replicates
    falls with the number of runs, and a note says so.

    Args:
        loss: [P].
        n: Parameters [P]; of n, d and flops, two give the third by C = 6·N·D.
        d: Tokens [P].
        flops: FLOPs [P].
        group: Curve of each run.
        against: Group → its baseline; by default the first group for all.
        form: "n", "d", "c" or "nd"; by default by `natural_form`.
        hold_out: As in `fit`.
        predict: Points to predict the loss at, as for `Outlook.predict`.
        rng: For the bootstrap.
        bootstraps: Number of replicates.
        progress: Called with what is being fitted.

    Raises:
        AblateError: Nothing can be fitted.
    """
    for name, column in {"n": n, "d": d, "flops": flops, "group": group}.items():
        if column is not None and len(column) != len(loss):
            raise AblateError(f"column {name} has {len(column)} values for {len(loss)} losses.")
    columns, notes = complete(n, d, flops)
    names = np.array([ONE] * len(loss) if group is None else [str(name) for name in group])
    if not form:
        form, why = natural_form(columns, names)
        notes += why
    chosen = chosen_form(form, columns)
    chosen_check(hold_out, chosen, columns)
    for given in predict:
        check_point(chosen, given)
    bootstraps, why = affordable(len(loss), bootstraps)
    notes += why
    # runs of the same point have the same index in every group
    order = np.lexsort([*columns.values()])
    curves = {name: order[names[order] == name] for name in dict.fromkeys(names.tolist())}
    fits: dict[str, Fit] = {}
    isoflops: dict[str, IsoFlop] = {}
    refused: dict[str, list[str]] = {}  # why → curves
    for at, (name, rows) in enumerate(curves.items(), 1):
        which = f" of {name} ({at} of {len(curves)})" if group is not None else ""
        progress(f"Fitting the curve{which} to {len(rows):,} runs …")
        part = {column: values[rows] for column, values in columns.items()}
        losses = np.asarray(loss, float)[rows]
        try:
            fits[name] = fit(
                losses, form, rng=rng, hold_out=hold_out, bootstraps=bootstraps, **part
            )
        except AblateError as error:
            refused.setdefault(str(error), []).append(name)
        if not _has_minima(part, flops is not None):
            continue
        try:
            isoflops[name] = isoflop(losses, rng=rng, bootstraps=bootstraps, **part)
        except AblateError as error:
            refused.setdefault(str(error), []).append(name)
    complaints = _complaints(refused, 0 if group is None else len(curves))
    if not fits and not isoflops:
        raise AblateError(" ".join(complaints))
    for name, iso in isoflops.items():
        if name in fits and iso.rough is not None:
            fits[name] = with_noise(fits[name], iso.rough)
    comparisons, why = _compared(fits, against, rng, progress)
    forecasts = (
        {name: Outlook.of(one, rng).at(predict) for name, one in fits.items()} if predict else {}
    )
    return TableFit(fits, isoflops, comparisons, (*complaints, *notes, *why), forecasts)


def affordable(runs: int, bootstraps: int) -> tuple[int, list[str]]:
    """Return how many replicates so many runs get, and a note if they are fewer."""
    fewer = max(MOST_WORK // max(runs, 1), LEAST_REPLICATES)
    if fewer >= bootstraps:
        return bootstraps, []
    return fewer, [
        f"Intervals are from {fewer} bootstrap replicates instead of {bootstraps:,}, as there"
        f" are {runs:,} runs. All runs are fitted."
    ]


def _has_minima(part: Mapping[str, Floats], measured: bool) -> bool:
    """Return whether a curve's budgets repeat enough; `measured` is whether FLOPs are given."""
    return {"n", "c"} <= part.keys() and repeating(
        part["n"], part["c"], at_least=2 if measured else LEAST_SIZES
    )


def _compared(
    fits: Mapping[str, Fit],
    against: Mapping[str, str] | None,
    rng: np.random.Generator,
    progress: Callable[[str], object],
) -> tuple[tuple[Comparison, ...], list[str]]:
    """Compare curves as in `fit_table`; return notes on those that cannot be compared, too."""
    pairs = dict.fromkeys(list(fits)[1:], next(iter(fits), "")) if against is None else against
    notes = [
        f"{a} is not compared with {b}: {one} has no curve."
        for a, b in pairs.items()
        for one in (a, b)
        if one not in fits
    ]
    pairs = {a: b for a, b in pairs.items() if a in fits and b in fits}
    if not pairs:
        return (), notes
    progress(f"Comparing {len(fits)} curves …")
    comparisons = compare_groups(fits, pairs, rng=rng)
    notes += [
        f"{one.group} and {one.baseline} with one floor: {note}"
        for one in comparisons
        for note in not_converged(one.missed)
    ]
    return tuple(comparisons), notes


def _complaints(refused: Mapping[str, Sequence[str]], curves: int) -> list[str]:
    """Return why curves were refused, once for all with one reason, by name if there are others."""
    return [
        (
            why
            if not curves
            else f"All {curves} curves: {why}"
            if len(of) == curves > 1
            else f"{listed(of)}: {why}"
        )
        for why, of in refused.items()
    ]


def complete(
    n: Floats | None, d: Floats | None, flops: Floats | None
) -> tuple[dict[str, Floats], list[str]]:
    """Return the columns, with the third of n, d and flops from the other two by C = 6·N·D."""
    columns = {
        name: np.asarray(c, float)
        for name, c in (("n", n), ("d", d), ("c", flops))
        if c is not None
    }
    if not columns:
        raise AblateError("a table of losses needs at least one of the columns n, d, flops.")
    if columns.keys() == {"n", "c"}:
        return columns | {"d": columns["c"] / (FLOPS_PER_PARAM_TOKEN * columns["n"])}, [
            "Tokens taken as d = flops / 6n."
        ]
    if columns.keys() == {"d", "c"}:
        return columns | {"n": columns["c"] / (FLOPS_PER_PARAM_TOKEN * columns["d"])}, [
            "Parameters taken as n = flops / 6d."
        ]
    if columns.keys() == {"n", "d"}:
        return columns | {"c": FLOPS_PER_PARAM_TOKEN * columns["n"] * columns["d"]}, [
            "Budgets taken as C = 6·n·d."
        ]
    return columns, []


def natural_form(columns: dict[str, Floats], names: np.ndarray) -> tuple[str, list[str]]:
    """Return L(N, D), or the form of one resource and why: the other is constant or follows it."""
    if not {"n", "d"} <= columns.keys():
        return "".join(columns), []
    for form, why in (
        ("d", "size is the same"),
        ("n", "tokens are the same"),
        ("c", "tokens rise with size at one ratio"),
    ):
        if all(_tells(form, part) for part in _curves(columns, names)):
            return form, [f"On every curve {why} in all runs: {FORMS[form].symbol} is fitted."]
    return "nd", []


def _curves(columns: dict[str, Floats], names: np.ndarray) -> Iterator[dict[str, Floats]]:
    for name in dict.fromkeys(names.tolist()):
        yield {column: values[names == name] for column, values in columns.items()}


def _tells(form: str, part: dict[str, Floats]) -> bool:
    """Return whether only the form's resource varies on a curve; for C, whether one line does."""
    sizes, tokens = (len(levels(part[name])) for name in ("n", "d"))
    if form == "c":
        return (
            sizes > 2
            and tokens > 2
            and np.corrcoef(np.log(part["n"]), np.log(part["d"]))[0, 1] > SAME_LINE
        )
    return (sizes if form == "d" else tokens) == 1 < (tokens if form == "d" else sizes)


def repeating(n: Floats, c: Floats, at_least: int) -> bool:
    """Return whether budgets are distinct and have, on average, enough sizes for isoFLOP curves."""
    budgets = levels(c)
    points = np.unique(np.stack([level_of(n), level_of(c)]), axis=1)
    apart = len(budgets) == 1 or float(np.median(budgets[1:] / budgets[:-1])) > APART
    return apart and points.shape[1] >= at_least * len(budgets)
