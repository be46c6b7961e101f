"""Collect the findings of a study.

The report, the terminal, JSON and the table `finding` show these records; nothing is
computed elsewhere. `ablate.analysis.records` describes each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

import pandas as pd

from ablate import results
from ablate.analysis import cells, contrasts, grid, own, strata, tuning
from ablate.analysis import curves as scaling
from ablate.analysis.curves import Scaled, scaled
from ablate.analysis.data import StudyData, read
from ablate.analysis.records import Contrast, Finding
from ablate.formats import json_values

if TYPE_CHECKING:
    from ablate.store import Database

SUBJECT = ("stratum", "factor", "level", "cell")  # what a row of the table `finding` is about
F = TypeVar("F", bound=Finding)


@dataclass(frozen=True)
class Findings(Sequence[Finding]):
    """The findings of a study, in the order of the report.

    Attributes:
        records: All findings.
    """

    records: tuple[Finding, ...]

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Finding, ...]: ...
    def __getitem__(self, index: int | slice) -> Finding | tuple[Finding, ...]:
        return self.records[index]

    def __len__(self) -> int:
        return len(self.records)

    def of(self, cls: type[F], where: Callable[[F], bool] = lambda one: True) -> list[F]:
        """Return the findings of a class for which `where` holds.

        Args:
            cls: A class of `ablate.analysis.records`, such as `Contrast`.
            where: Which of them to return.
        """
        return [one for one in self.records if isinstance(one, cls) and where(one)]

    def frame(self, kind: str) -> pd.DataFrame:
        """Return the findings of one kind as a table, a row each.

        Args:
            kind: Such as "contrast"; see `ablate.analysis.records`.
        """
        return pd.DataFrame([vars(one) for one in self if one.kind == kind])

    def rows(self) -> list[dict[str, Any]]:
        """Return each finding as a dictionary of what JSON can hold; NaN and ±∞ are None."""
        return [{"kind": one.kind, **json_values(asdict(one))} for one in self]


def findings(study: str, db: results.Source = None) -> Findings:
    """Return what a study found, from what the database holds now.

    Args:
        study: Name of the study.
        db: See `ablate.load`.

    Returns:
        A sequence of typed records, in the order of the report; docs/database.md lists their kinds.

    Raises:
        AblateError: There is no such study.
    """
    data = read(results.database(db), study)
    return find(data, scaled(data))


def analyse(db: Database, study: str) -> list[Contrast]:
    """Compute a study's effects and findings; store them in the tables `effect` and `finding`.

    Returns:
        The effects.
    """
    from ablate.store import effects
    from ablate.store import findings as table

    data = read(db, study)
    findings = find(data, scaled(data))
    found = [
        table.FindingRow(
            kind=one.kind,
            **{name: getattr(one, name, None) or None for name in SUBJECT},
            data=asdict(one),
        )
        for one in findings
    ]
    contrasts = findings.of(Contrast)
    effects.write(db, data.study.id, contrasts)
    table.write(db, data.study.id, found)
    return contrasts


def find(data: StudyData, curves: Scaled | None) -> Findings:
    """Return the findings of a study that was read.

    Args:
        data: The study's frames.
        curves: Its scaling curves, if it has any.
    """
    return Findings(tuple(_findings(data, curves)))


def _findings(data: StudyData, curves: Scaled | None) -> Iterator[Finding]:
    failed = frozenset(data.compared.loc[data.broken, "cell"]) | data.unplanned
    tuned = list(tuning.rates(data))
    of_contrasts = list(contrasts.contrasts(data))
    tested = [one for one in of_contrasts if isinstance(one, Contrast)]
    yield from strata.best(data, failed, tested)
    yield from of_contrasts
    yield from contrasts.successive(data)
    yield from contrasts.interactions(data)
    yield from contrasts.changes(data)
    yield from cells.untrained(data)
    yield from cells.seed_groups(data)
    yield from cells.lossy(data)
    yield from own.thresholds(data)
    yield from own.same_curves(data)
    yield from own.partly_reported(data)
    yield from own.other_steps(data)
    yield from cells.copying(data)
    yield from cells.variance(data)
    if not data.crossed:  # both need independent seeds
        yield from strata.no_failures(data, failed)
        yield from strata.pairing(tested)
    yield from strata.multiplicity(tested, correction=data.correction, crossed=data.crossed)
    yield from tuned
    yield from tuning.changes(data, tuned)
    yield from tuning.by_rate(data)
    yield from tuning.seed_counts(data)
    yield from grid.grid(data)
    yield from cells.lengths(data)
    yield from cells.length_errors(data)
    yield from cells.probes(data)
    yield from cells.linear_probes(data)
    if curves:
        yield from scaling.scaling(curves)
