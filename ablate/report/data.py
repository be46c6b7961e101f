"""A study's frames with its findings and the texts for its metric."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ablate import analysis, stats
from ablate.analysis import Findings, StudyData
from ablate.analysis.curves import Scaled, scaled
from ablate.analysis.paired import TIMES
from ablate.analysis.records import (
    Contrast,
    Equivalence,
    Failures,
    Mismatch,
    OfContrast,
    SameRuns,
    Spread,
    Successive,
    Tuning,
)
from ablate.components import CATALOGUE
from ablate.report.labels import (
    OF_IMAGES,
    OF_TEXT,
    KnownLabels,
    MetricLabels,
    TunedLabels,
    metric_labels,
)
from ablate.study import tuned_field
from ablate.units import decimals

if TYPE_CHECKING:
    from ablate.store import Database


@dataclass(frozen=True)
class ReportData(StudyData):
    """What a report shows: frames for figures and tables, findings for sentences and tables."""

    @cached_property
    def curves_fitted(self) -> Scaled | None:
        """The study's scaling curves, if it varies a size or a budget."""
        return scaled(self)

    @cached_property
    def findings(self) -> Findings:
        """All findings of the study."""
        return analysis.find(self, self.curves_fitted)

    @cached_property
    def qualifying(self) -> defaultdict[tuple[str, str], list[OfContrast]]:
        """Family and cell of a contrast → the findings that its claim has to be read with."""
        found = defaultdict[tuple[str, str], list[OfContrast]](list)
        for cls in (SameRuns, Equivalence, Failures, Spread, Mismatch):
            for one in self.findings.of(cls):
                found[one.family, one.cell].append(one)
        return found

    @cached_property
    def places(self) -> int:
        """Decimals of every value of the metric: two digits of its deviation over seeds."""
        of_cells = self.good.groupby("cell")["metric"]
        spreads = [stats.spread(one.dropna().to_numpy(float)) for _, one in of_cells]
        spreads = [one for one in spreads if not math.isnan(one)]
        return decimals(statistics.median(spreads) if spreads else math.nan)

    @cached_property
    def objectives(self) -> list[Any]:
        """The components of the compared runs' objectives, without those of a user's own."""
        row = CATALOGUE["objective"]
        if "objective" not in self.compared:
            return []
        names = sorted(set(self.compared["objective"].dropna()))
        return [row[name] for name in names if name in row.names]

    @property
    def of_images(self) -> bool:
        """Whether the study is on images, not on text."""
        return any(one.images for one in self.objectives)

    @property
    def known(self) -> KnownLabels:
        """Texts for what a model knows that has learnt next to nothing."""
        labels = {OF_IMAGES.get(one.name, OF_TEXT) for one in self.objectives} or {OF_TEXT}
        return KnownLabels(
            " or ".join(sorted(one.what for one in labels)),
            ", or ".join(sorted(one.how for one in labels)),
        )

    @cached_property
    def arm_of(self) -> dict[str, str]:
        """Cell → its arm."""
        return dict(zip(self.arms["cell"], self.arms["arm"].astype(str), strict=True))

    def beside(self, one: Contrast | Successive) -> str:
        """Return at which levels of other factors a level is compared: "position=rotary".

        Those are the baseline's, of the factors that are also varied together with its own; "" for
        none.
        """
        return self._beside.get((one.stratum, one.factor), "")

    @cached_property
    def _beside(self) -> dict[tuple[str, str], str]:
        contrasts = {(one.stratum, one.factor): one for one in self.findings.of(Contrast)}
        found = {}
        for (stratum, factor), one in contrasts.items():
            own = set(factor.split(TIMES))
            together = [set(other.split(TIMES)) for at, other in contrasts if at == stratum]
            varied = set().union(*(other for other in together if own < other)) - own
            levels = self.levels[one.baseline].items()
            found[stratum, factor] = ", ".join(
                f"{name}={level}" for name, level in levels if name in varied
            )
        return found

    @cached_property
    def tuned(self) -> TunedLabels:
        """Texts for the field that the study tunes."""
        by = self.decided_labels.phrase if self.decided_labels != self.labels else ""
        return TunedLabels(tuned_field(self.settings), f" by {by}" if by else "")

    @cached_property
    def at_edge(self) -> dict[str, Tuning]:
        """Cell → its tuned value, where that is at an edge of the values tried and trains it."""
        found = [one for one in self.findings.of(Tuning) if one.at_edge and one.trains]
        return {cell: one for one in found for cell in one.cells}

    @cached_property
    def labels(self) -> MetricLabels:
        """Texts for the study's metric."""
        return self._labels(self.study.metric, self.study.goal)

    @cached_property
    def decided_by(self) -> str:
        """The metric that decided what was tuned; the study's where groups differ in it."""
        of = {one.metric for one in self.findings.of(Tuning)}
        return of.pop() if len(of) == 1 else self.study.metric

    @cached_property
    def decided_labels(self) -> MetricLabels:
        """Texts for `decided_by`."""
        goals = {one.metric: one.goal for one in self.findings.of(Tuning)}
        return self._labels(self.decided_by, goals.get(self.decided_by, self.study.goal))

    def _labels(self, metric: str, goal: str) -> MetricLabels:
        units = {name: unit for name, _, unit, _ in self.metrics}
        return metric_labels(metric, goal, own=self.study.own, unit=units.get(metric, ""))


def gather(db: Database, study: str) -> ReportData:
    """Read all that the report on a study needs.

    Raises:
        AblateError: The database does not know the study.
    """
    return ReportData(**vars(analysis.read(db, study)))
