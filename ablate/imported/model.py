"""The options of `ablate import` that name columns, and the runs that it finds."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ablate.imported.source import Points

Level = bool | int | float | str
CellKey = tuple[Level, ...]  # a level of each factor


@dataclass(frozen=True)
class Asked:
    """Options of `ablate import` about columns and rows.

    Attributes:
        metrics: Columns of metrics; the first is the one that is compared.
        factors: Columns of factors.
        seed: Column of the seed.
        step: Column of the step, "" for none.
        at: The value of a curve that is compared: "last", "best", or a step; "" if not given.
        goal: "lower" or "higher"; "" to take the tool's goal, or that of the metric's name.
        where: Conditions on rows.
        pattern: See `Wanted.pattern`.
        resources: Field of a run → its column: parameters, tokens, FLOPs.
    """

    metrics: tuple[str, ...]
    factors: tuple[str, ...]
    seed: str
    step: str = ""
    at: str | int = "last"
    goal: str = ""
    where: tuple[str, ...] = ()
    pattern: str = ""
    resources: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> dict[str, str]:
        """Metric → its name in the database, where @ stands before a step."""
        return {name: name.replace("@", "_at_") for name in self.metrics}


@dataclass(frozen=True)
class ImportedRun:
    """A run that was found.

    Attributes:
        cell: Its level of each factor.
        seed: Its seed.
        resources: Field → parameters, tokens or FLOPs of its training.
        place: File and row of the run.
        points: Curves.
        finals: (name, at) → value.
        status: A status of a run in the database.
        diverged_at: The first step whose value is not finite.
        error: Why it failed.
    """

    cell: CellKey
    seed: int
    resources: Mapping[str, int | float]
    place: str
    points: Points
    finals: Mapping[tuple[str, float], float]
    status: str
    diverged_at: int | None = None
    error: str = ""

    @functools.cached_property
    def content(self) -> str:
        """SHA-256 of the run's numbers. Finals at a step are left out: the curve has them too."""
        finals = sorted([name, value] for (name, at), value in self.finals.items() if not at)
        points = {name: sorted(of.items()) for name, of in self.points.items()}
        text = json.dumps(
            [self.status, finals, points, sorted(self.resources.items())], sort_keys=True
        )
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Gathered:
    """The runs of all files.

    Attributes:
        factors: Field → its levels, in the order of the files.
        columns: Field → its column.
        goal: Which direction of the metric is better: "lower" or "higher".
        runs: The runs, in the order of the files.
        notes: Sentences on rows left out, guesses, and oddities.
    """

    factors: Mapping[str, list[Level]]
    columns: Mapping[str, str]
    goal: str
    runs: list[ImportedRun]
    notes: list[str]


def text_of(level: Level) -> str:
    """Return a level as text, as a file writes it."""
    return str(level).lower() if isinstance(level, bool) else str(level)
