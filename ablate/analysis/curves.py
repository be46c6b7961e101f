"""Scaling curves of a study: the runs, the curves fitted to them, and findings on both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from ablate.analysis import records
from ablate.analysis.data import StudyData
from ablate.errors import AblateError
from ablate.scaling import Difference, Fit, Interval, Losses, TableFit
from ablate.scaling.beyond import Forecast
from ablate.scaling.study import of_study, resources
from ablate.scaling.table import ONE, complete
from ablate.study import resource_fields
from ablate.study.values import point

# from this many levels of size or budget on, a study without [fit] has scaling curves
LEAST_LEVELS = 3


@dataclass(frozen=True)
class Scaled:
    """Runs and the curves fitted to them."""

    losses: Losses
    fitted: TableFit | None
    refused: str  # why nothing was fitted

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a run: n, d, c, loss, curve, held_out, residual."""
        names = self.losses.curves if any(self.losses.curves) else (ONE,) * len(self.losses.loss)
        columns, _ = complete(*(self.losses.columns.get(name) for name in ("n", "d", "c")))
        frame = pd.DataFrame(
            {**columns, "loss": self.losses.loss, "held_out": False, "residual": math.nan}
        )
        frame["curve"] = pd.Categorical(names, categories=list(dict.fromkeys(names)), ordered=True)
        for name, one in self.fits.items():
            of_curve = frame["curve"] == name
            at = {column: frame.loc[of_curve, column].to_numpy() for column in one.form.columns}
            frame.loc[of_curve, "residual"] = (
                frame.loc[of_curve, "loss"] / one.form.loss(one.values, at) - 1
            )
            if one.held_out is not None:
                frame.loc[of_curve, "held_out"] = (
                    frame.loc[of_curve, one.held_out.column] >= one.held_out.from_
                )
        return frame

    @property
    def fits(self) -> dict[str, Fit]:
        """Curve → its fit; empty if nothing was fitted."""
        return self.fitted.fits if self.fitted else {}

    @property
    def forecasts(self) -> dict[str, Forecast]:
        """Curve → its predictions; empty if there are none."""
        return self.fitted.forecasts if self.fitted else {}

    @property
    def order(self) -> list[str]:
        """Names of the curves, in order."""
        return list(self.frame["curve"].cat.categories)


def scaled(data: StudyData) -> Scaled | None:
    """Return the scaling of a study with [fit], or with three sizes or budgets; else None."""
    settings = data.settings.get("fit", {})
    grown = (
        []
        if settings or data.study.own
        else [
            f for f in resources(data.compared, data.levels) if len(data.orders[f]) >= LEAST_LEVELS
        ]
    )
    if (not settings and not grown) or data.good.empty:
        return None
    table = losses(data)
    if data.study.goal != "min":
        return Scaled(
            table, None, "No curve is fitted: the forms are of a loss, but higher is better here."
        )
    try:
        predict = [point(text) for text in settings.get("predict", [])]
        held = str(settings.get("hold_out", ""))
        return Scaled(table, table.fit(hold_out=held, predict=predict), "")
    except AblateError as error:
        return Scaled(table, None, f"No curve is fitted: {error}")


def losses(data: StudyData, count: str = "body") -> Losses:
    """Return the study's losses, by the group of its [fit] and a count of N and C."""
    group = str(data.settings.get("fit", {}).get("group", ""))
    own = resource_fields(data.settings.get("fit", {}))
    return of_study(data.runs, data.levels, group=group, count=count, own=own)


def scaling(curves: Scaled) -> Iterator[records.Finding]:
    """Yield the runs, the fitted curves, their isoFLOP minima, then their comparisons."""
    fitted = curves.fitted
    if fitted is None:
        return
    yield records.ScalingRuns(
        runs=len(curves.losses.loss),
        ranges={
            name: (float(column.min()), float(column.max()))
            for name, column in curves.losses.columns.items()
        },
        notes=(*curves.losses.notes, *fitted.notes),
    )
    for name, one in fitted.fits.items():
        held = one.held_out
        yield records.ScalingFit(
            curve="" if name == ONE else name,
            form=one.form.symbol,
            equation=one.form.equation,
            runs=one.runs,
            lost=one.lost,
            constants=_constants(one),
            n_exponent=_ends(one.n_exponent) if one.form.columns == ("n", "d") else None,
            noise=one.noise,
            describes=one.describes,
            held_out=held.what if held else "",
            held_out_runs=held.runs if held else 0,
            predicted=held.predicted if held else math.nan,
            reached=held.actual if held else math.nan,
            miss=held.miss if held else math.nan,
            miss_lo=held.lo if held else math.nan,
            miss_hi=held.hi if held else math.nan,
            trusted=bool(held and held.trusted),
            notes=one.notes,
        )
    for name, iso in fitted.isoflops.items():
        yield records.ScalingIsoFlop(
            curve="" if name == ONE else name,
            minima=tuple(
                records.IsoFlopMinimum(low.c, _ends(low.n), low.d, low.loss, low.reason)
                for low in iso.minima
            ),
            n_exponent=_ends(iso.n_exponent),
            d_exponent=_ends(iso.d_exponent),
            n_scale=iso.n_scale,
            d_scale=iso.d_scale,
            noise=iso.noise,
            noise_from=iso.noise_from,
            constants=_constants(iso.frontier) if iso.frontier else {},
            notes=iso.notes,
        )
    for two in fitted.comparisons:
        yield records.ScalingComparison(
            curve=two.group,
            baseline=two.baseline,
            verdict=two.verdict,
            trusted=two.trusted,
            exponents=_tests(two.exponents),
            one_floor=_tests(two.one_floor),
            gap=_ends(two.measured or two.gap),
            measured=two.measured is not None,
            axis=two.axis,
            low=two.low,
            high=two.high,
            gap_low=_ends(two.gap_low),
            gap_high=_ends(two.gap_high),
            crossing=_ends(two.crossing.at),
            crosses=two.crossing.share_inside,
        )

    for name, forecast in curves.forecasts.items():
        for one_point in forecast.points:
            yield records.ScalingPrediction(
                curve="" if name == ONE else name,
                at=one_point.at,
                loss=_ends(one_point.loss),
                beyond=one_point.out,
                below=one_point.under,
            )


def _constants(one: Fit) -> dict[str, records.Ends]:
    return {key: _ends(value) for key, value in one.constants.items()}


def _tests(of: Mapping[str, Difference]) -> dict[str, tuple[float, float, float, float]]:
    return {key: (*_ends(test.interval), test.p_holm) for key, test in of.items()}


def _ends(one: Interval) -> records.Ends:
    return one.value, one.lo, one.hi
