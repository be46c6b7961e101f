"""Before a study runs: whether its grid gives the exponents of its [fit], and at what noise."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy import optimize

from ablate.errors import AblateError
from ablate.plan import Plan
from ablate.scaling.design import (
    LOWEST,
    NAMES,
    TARGET,
    USUAL_NOISE,
    demand,
    expected_width,
    proposal,
    smallest,
    usual_constants,
)
from ablate.scaling.forms import FORMS, Form, level_of, levels
from ablate.scaling.held_out import HELD_OUT
from ablate.scaling.isoflop import LEAST_BUDGETS, LEAST_SIZES
from ablate.scaling.losses import Losses
from ablate.scaling.solve import Floats
from ablate.scaling.study import of_study
from ablate.scaling.table import natural_form, repeating
from ablate.study.model import Fit
from ablate.units import listed

NOISES = (1e-6, 0.5)  # range in which a sufficient noise is searched


def predict(plan: Plan) -> list[str]:
    """Return lines on the expected precision of the curves of [fit], one for equal curves."""
    assert plan.study.fit
    try:
        losses = _planned(plan)
    except AblateError as error:
        return [f"Scaling curves: {error}"]
    names = np.array(losses.curves)
    form, why = natural_form(losses.columns, names)
    curves_by_text: dict[str, list[str]] = {}
    for name in dict.fromkeys(losses.curves):
        part = {column: values[names == name] for column, values in losses.columns.items()}
        curves_by_text.setdefault(_curve(FORMS[form], part, plan.study.fit.hold_out), []).append(
            name
        )
    return [
        f"Scaling curve{'s' if len(of) > 1 else ''}{_of(of)}: {text}"
        for text, of in curves_by_text.items()
    ] + why


def _of(names: list[str]) -> str:
    return f" of {listed(names)}" if any(names) else ""


def _planned(plan: Plan) -> Losses:
    """Return the runs to be compared, as if they were complete."""
    cells = {cell.label: cell for cell in plan.cells}
    rows = [
        (planned.config.model_dump() if planned.config else dict(planned.run.fields))
        | {
            "cell": planned.cell,
            "run": planned.run.key,
            "role": planned.role,
            "status": "complete",
            "metric": 1.0,
        }
        | {"tokens": cost.tokens, "flops": cost.flops}
        | {"n_params": cost.params, "n_params_body": cost.params_body}
        for planned in (*plan.runs, *plan.later)
        if planned.role == "compare"
        for cost in [cells[planned.cell].cost]
    ]
    chosen = {label: cell.levels for label, cell in cells.items()}
    fit = plan.study.fit or Fit()
    return of_study(pd.DataFrame(rows), chosen, group=fit.group, own=fit.fields)


def _curve(form: Form, columns: dict[str, Floats], hold_out: str) -> str:
    """Return the expected precision of one curve."""
    try:
        demand(form, columns)
    except AblateError as error:
        return str(error)
    return " ".join([_width(form, columns), *_minima(columns), *_check(form, columns, hold_out)])


def _width(form: Form, columns: dict[str, Floats]) -> str:
    points = _judged(form, columns)

    def width(noise: float) -> float:
        return expected_width(form, usual_constants(form), points, noise)["alpha"]

    expected = width(USUAL_NOISE)
    text = (
        f"{form.symbol} from {len(columns['n'])} runs; the expected interval of alpha is"
        f" {expected:.2f} wide at {USUAL_NOISE:.0%} noise between runs"
    )
    text += f" (differences of two such curves are known to ±{expected / math.sqrt(2):.2f})"
    if not width(NOISES[0]) < TARGET:
        return f"{text}, and hardly narrower at less noise.{proposal(form)}"
    low, high = np.log(NOISES)
    most = (
        high
        if width(NOISES[1]) < TARGET
        else optimize.brentq(lambda log: width(np.exp(log)) - TARGET, low, high, xtol=1e-3)
    )
    return (
        f"{text}, and {TARGET:g} wide at"
        f" {np.exp(most):.2%}.{_denser(form, columns) if expected > TARGET else ''}"
    )


def _denser(form: Form, columns: dict[str, Floats]) -> str:
    """Return which grid over the same ranges would suffice, and what it would cost."""
    runs = len(columns["n"])
    seeds = max(
        runs
        // np.unique(np.stack([level_of(columns[name]) for name in form.columns]), axis=1).shape[1],
        1,
    )

    def grid(count: int) -> dict[str, Floats]:
        points = {
            name: np.geomspace(columns[name].min(), columns[name].max(), count)
            for name in (("n", "c") if form.columns == ("n", "d") else form.columns)
        }
        if form.columns == ("n", "d"):
            # as the study's own points: no more tokens than its cells have at most
            n, c = (x.ravel() for x in np.meshgrid(points["n"], points["c"]))
            price = float(np.median(columns["c"] / (columns["n"] * columns["d"])))
            kept = c / (price * n) <= 1.05 * columns["d"].max()
            points = {"n": n[kept], "d": (c / (price * n))[kept], "c": c[kept]}
        return {name: np.tile(x, seeds) for name, x in points.items()}

    def enough(points: dict[str, Floats]) -> bool:
        judged = _judged(form, points)
        return expected_width(form, usual_constants(form), judged, USUAL_NOISE)["alpha"] <= TARGET

    def dense(count: int) -> tuple[int, dict[str, Floats]]:
        return count, grid(count)

    found = smallest(dense, lambda one: enough(one[1]))
    if found is None:
        return proposal(form)
    count, points = found
    what = (
        "sizes and as many budgets" if form.columns == ("n", "d") else f"{NAMES[form.columns[0]]}s"
    )
    cost = (
        f", at {points['c'].sum() / columns['c'].sum():.2g} times the FLOPs"
        if "c" in points
        else ""
    )
    return (
        f" Over the same ranges {count} {what} with {seeds} seed{'s' if seeds > 1 else ''} would"
        f" make it {TARGET:g}{cost}."
    )


def _judged(form: Form, columns: dict[str, Floats]) -> dict[str, Floats]:
    """Return the points as `sufficient_grid` has them: from the lowest size, at the same ratios."""
    first = form.columns[0]
    ratio = max(1.0, LOWEST[first] / columns[first].min())
    return {name: columns[name] * ratio for name in form.columns}


def _minima(columns: dict[str, Floats]) -> Iterator[str]:
    """Warn if repeated budgets will have no isoFLOP minima."""
    if not repeating(columns["n"], columns["c"], at_least=2):
        return
    budget = level_of(columns["c"])
    counts = [len(levels(columns["n"][budget == one])) for one in range(budget.max() + 1)]
    enough = sum(count >= LEAST_SIZES for count in counts)
    if enough < LEAST_BUDGETS:
        yield (
            f"No isoFLOP exponents: {enough} of {len(counts)} budgets have {LEAST_SIZES} sizes,"
            f" {LEAST_BUDGETS} are needed."
        )


def _check(form: Form, columns: dict[str, Floats], hold_out: str) -> Iterator[str]:
    what = hold_out or next(what for what, column in HELD_OUT.items() if column == form.columns[0])
    held = columns[HELD_OUT[what]]
    rest = {name: column[held < levels(held)[-1]] for name, column in columns.items()}
    try:
        demand(form, rest, f"without the {what}, ")
    except AblateError as error:
        yield f"No held-out check: {error}"
