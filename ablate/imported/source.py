"""What every reader returns: rows of text, and the numbers of runs where a tool recorded them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ablate.errors import AblateError

Points = Mapping[str, Mapping[int, float]]  # metric → step → value

# a setting in the name of a run: "lr=0.1/seed=3"
_SETTING = re.compile(r"(?:^|[/,;\s])([A-Za-z_][\w.-]*)=([^/,;\s=]+)(?=$|[/,;\s])")


@dataclass(frozen=True)
class Wanted:
    """What is asked for of every source.

    Attributes:
        columns: Columns that rows must have: factors, the seed, parameters.
        metrics: Names of metrics, the deciding one first.
        step: Column of the step in a table with several rows for a run; "" for none.
        pattern: Regular expression whose named groups become columns: of the names of runs or
            folders, or of the columns of a wide table.
    """

    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    step: str = ""
    pattern: re.Pattern[str] | None = None


@dataclass(frozen=True)
class Recorded:
    """What a tool recorded of one run.

    Attributes:
        points: Curves.
        finals: Numbers that are no last value of a curve.
        status: As the database has it; "running" for a run that has not ended.
        why: What is known of a failure.
        goals: Metric → "lower" or "higher", where the tool says which is better.
    """

    points: Points = field(default_factory=dict)
    finals: Mapping[str, float] = field(default_factory=dict)
    status: str = "complete"
    why: str = ""
    goals: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A file or folder.

    Attributes:
        name: As messages name it.
        table: Cells as text, "" for none. The index has the name of the kind of place: "line".
        recorded: Place → what was recorded of the run of this row.
        whole: Whether each row is a run, whose curve is recorded.
        decimal_comma: As `ablate.sheet.numbers` has it.
        notes: What the user should know.
        chart: Whether it is a chart of W&B: curves of runs whose settings a table may have.
    """

    name: str
    table: pd.DataFrame
    recorded: Mapping[Any, Recorded] = field(default_factory=dict)
    whole: bool = False
    decimal_comma: bool = False
    notes: tuple[str, ...] = ()
    chart: bool = False

    def place(self, label: Any) -> str:
        """Return where a row stands: "runs.csv, line 7"."""
        return f"{self.name}, {self.table.index.name} {label}"

    def metrics(self) -> list[str]:
        """Return the names of the metrics that were recorded."""
        found = (name for one in self.recorded.values() for name in (*one.points, *one.finals))
        return list(dict.fromkeys(found))


def of_runs(
    name: str, fields: Sequence[Mapping[str, str]], recorded: Sequence[Recorded], places: list[str]
) -> Source:
    """Return the source of a tool that keeps runs.

    Args:
        name: As messages name it.
        fields: Parameters of each run, as text.
        recorded: What was recorded of each.
        places: What each is called there; unique.
    """
    table = pd.DataFrame(list(fields), index=pd.Index(places, name="run"), dtype=object).fillna("")
    return Source(name, table, dict(zip(places, recorded, strict=True)), whole=True)


def named(run: str, pattern: re.Pattern[str] | None) -> dict[str, str]:
    """Return what the name of a run says: settings such as "lr=0.1", and groups of a pattern."""
    said: dict[str, str] = dict(_SETTING.findall(run))
    if pattern and (found := pattern.search(run)):
        said |= {key: value for key, value in found.groupdict().items() if value is not None}
    return said


def check_pattern(pattern: re.Pattern[str] | None, names: Iterable[str], where: str) -> None:
    """Refuse a pattern that is in none of the names that it is for."""
    names = list(names)
    if pattern and not any(map(pattern.search, names)):
        shown = ", ".join(map(repr, names[:4]))
        raise AblateError(f"{where}: --pattern {pattern.pattern!r} is in none of the names {shown}")
