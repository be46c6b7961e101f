"""What `ablate import` is asked for, and what it finds."""

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
    """What `ablate import` was told; names are those of columns.

    Attributes:
        metrics: The deciding one first.
        factors: What varies.
        seed: Of the seed.
        step: Of the step, "" for none.
        at: The value that decides: "last", "best", or that of a step; "" for what is not given.
        goal: "lower" or "higher"; "" for what the tool says, or the metric's name.
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
        """Metric → what it is called in the database, where @ stands before a step."""
        return {name: name.replace("@", "_at_") for name in self.metrics}


@dataclass(frozen=True)
class ImportedRun:
    """A run.

    Attributes:
        cell: Its level of each factor.
        seed: Its seed.
        resources: Field → parameters, tokens or FLOPs of its training.
        place: Where it stands.
        points: Curves.
        finals: (name, at) → value.
        status: As the database has it.
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
        """SHA-256 of all its numbers, but for those at a step, which its curve has too."""
        finals = sorted([name, value] for (name, at), value in self.finals.items() if not at)
        points = {name: sorted(of.items()) for name, of in self.points.items()}
        text = json.dumps(
            [self.status, finals, points, sorted(self.resources.items())], sort_keys=True
        )
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Gathered:
    """What files hold.

    Attributes:
        factors: Field → its levels, in the order of the files.
        columns: Field → its column.
        goal: Which direction of the metric is better: "lower" or "higher".
        runs: The runs, in that order.
        notes: What was left out, taken for granted or looks odd.
    """

    factors: Mapping[str, list[Level]]
    columns: Mapping[str, str]
    goal: str
    runs: list[ImportedRun]
    notes: list[str]


def text_of(level: Level) -> str:
    """Return a level as a file has it."""
    return str(level).lower() if isinstance(level, bool) else str(level)
