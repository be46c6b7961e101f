"""The runs and curves of a study as pages have them, kept up to date while the study trains.

A page takes what changed since the revision that it has. Only points of runs whose journals were
read further are read again; the table of runs is made anew only if a run began or ended.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from ablate import results
from ablate.report import explore, gather
from ablate.store import Database, live, rows
from ablate.store.live import Mark

# a share of all numbers, in no step with the number of cells: runs are numbered seed by seed
SPAN, SCATTER = 1 << 32, 0x9E3779B1  # Knuth's multiplicative hash
PAUSE = 10  # times the processor time of making the table pass before it is made again


@dataclass(frozen=True)
class Curve:
    """A curve, and the revision in which it last changed."""

    revision: int
    steps: tuple[int, ...]
    values: list[float | int | None]


@dataclass
class Growth:
    """What pages show of a study's runs, by revisions.

    Attributes:
        study: Name of the study.
        revision: Counts what changed; 0 before the first `refresh`.
    """

    study: str
    revision: int = 0
    _marks: dict[int, Mark] = field(default_factory=dict)
    _whole: int = 0  # the first revision that shares runs with this one
    _table: dict[str, Any] = field(default_factory=dict)  # the exploration without curves
    _table_revision: int = 0
    _table_of: dict[int, Any] = field(default_factory=dict)  # run → state that it shows
    _table_due: float = 0.0  # when it may be made again, by the monotonic clock
    _labels: dict[str, str] = field(default_factory=dict)  # series → what a page calls it
    _curves: dict[str, dict[int, Curve]] = field(default_factory=dict)  # series → run → curve
    _per_step: dict[int, float] = field(default_factory=dict)  # run → tokens of a step

    def refresh(self, db: Database) -> None:
        """Read what is new.

        Raises:
            AblateError: The database cannot be read, or does not hold the study.
        """
        marks = live.marks(db, self.study)
        states = {run: mark.state for run, mark in marks.items()}
        changed = [run for run, mark in marks.items() if self._marks.get(run) != mark]
        others = any(
            run not in marks or marks[run].key != old.key for run, old in self._marks.items()
        )
        begun, now = time.thread_time(), time.monotonic()
        data = None
        if not self._table or others or (self._table_of != states and now >= self._table_due):
            data = gather(db, self.study)
            self._labels = explore.labels_of(data)
        if others:
            changed = list(marks)
            self._curves, self._per_step, self._whole = {}, {}, self.revision + 1
        if changed:
            self.revision += 1
            self._read(db, changed, len(marks))
        self._marks = marks
        if data is not None:
            self.revision += not changed
            self._table = explore.without_curves(data, self._per_step)
            self._table_revision, self._table_of = self.revision, states
            self._table_due = now + PAUSE * (time.thread_time() - begun)

    def since(self, revision: int) -> dict[str, Any] | None:
        """Return what changed after a revision, ready for JSON; None if nothing did.

        Args:
            revision: What a page has; 0 for nothing.

        Returns:
            revision: of the answer. whole: whether it is all there is, and not an addition.
            table: `ablate.report.explore.without_curves`, or None if it did not change. series:
            name, label and curves, a list of [run, steps, values], of each series.
        """
        if revision == self.revision:
            return None
        whole = not self._whole <= revision <= self.revision or not revision
        after = 0 if whole else revision
        return {
            "revision": self.revision,
            "whole": whole,
            "table": self._table if self._table_revision > after else None,
            "series": [
                {
                    "name": name,
                    "label": self._labels[name],
                    "curves": [
                        [run, curve.steps, curve.values]
                        for run, curve in curves.items()
                        if curve.revision > after
                    ],
                }
                for name, curves in sorted(self._curves.items())
            ],
        }

    def _read(self, db: Database, runs: list[int], of: int) -> None:
        """Read the curves of runs again; `of` is the number of all."""
        most = explore.points_of(of * len(self._labels))
        stride = math.ceil(of * len(self._labels) * most / explore.NUMBERS)
        runs = [run for run in runs if run * SCATTER % SPAN < SPAN // stride]
        found = results.read_points(db, self.study, list(self._labels), None, explore.MOST, runs)
        points = {
            key: (part["step"].to_numpy(), part["value"].to_numpy())
            for key, part in found.groupby(["series", "run"], observed=True)
            if len(part) > 1
        }
        drawn = {run for _, run in points}
        members = rows.members(db, self.study, None, runs).rows
        self._per_step |= {
            run: tokens for _, _, run, _, tokens in members if tokens and run in drawn
        }
        for name in self._labels:
            curves = self._curves.setdefault(name, {})
            for run in runs:
                if (name, run) in points:
                    curves[run] = Curve(self.revision, *explore.curve(*points[name, run], most))
                elif run in curves:  # it begins again
                    curves[run] = Curve(self.revision, (), [])
