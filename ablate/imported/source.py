"""The result of every reader: rows of text, and the numbers of runs that a tool recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ablate.errors import AblateError
from ablate.store.records import ACCEPTED, FAILED

OF_ABLATE = {  # status of a run that ablate exported → status of the imported run
    **{status: status for status in (*ACCEPTED, *FAILED)},
    **dict.fromkeys(("planned", "running", "stopped"), "running"),
}
Points = Mapping[str, Mapping[int, float]]  # metric → step → value

# a setting in the name of a run: "lr=0.1/seed=3"
_SETTING = re.compile(r"(?:^|[/,;\s])([A-Za-z_][\w.-]*)=([^/,;\s=]+)(?=$|[/,;\s])")


@dataclass(frozen=True)
class Wanted:
    """The columns and metrics that every reader looks for.

    Attributes:
        columns: Columns that rows must have: factors, the seed, parameters.
        metrics: Names of metrics; the first is the one that is compared.
        step: Column of the step in a table with several rows for a run; "" for none.
        pattern: Regular expression whose named groups become columns: of the names of runs or
            folders, or of the columns of a wide table.
        where: Conditions on rows, as `--where` has them.
    """

    columns: tuple[str, ...]
    metrics: tuple[str, ...]
    step: str = ""
    pattern: re.Pattern[str] | None = None
    where: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recorded:
    """The numbers that a tool recorded for one run.

    Attributes:
        points: Curves.
        finals: Numbers that are not the last value of a curve.
        status: A status of a run in the database; "running" for a run that has not ended.
        why: The reason of a failure, if known.
        goals: Metric → "lower" or "higher", if the tool says which is better.
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
        name: Its name in messages.
        table: Cells as text, "" for none. The name of the index says what a place is: "line".
        recorded: Place → the recorded numbers of the run of this row.
        whole: Whether each row is a run with a recorded curve.
        decimal_comma: See `ablate.sheet.numbers`.
        notes: Sentences for the user.
        chart: Whether it is a chart of W&B, whose runs may be rows of a table.
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
        name: Its name in messages.
        fields: Parameters of each run, as text.
        recorded: Recorded numbers of each run.
        places: Name or number of each run in the tool; unique.
    """
    table = pd.DataFrame(list(fields), index=pd.Index(places, name="run"), dtype=object).fillna("")
    return Source(name, table, dict(zip(places, recorded, strict=True)), whole=True)


def named(run: str, pattern: re.Pattern[str] | None) -> dict[str, str]:
    """Return the settings in the name of a run, such as "lr=0.1", and the groups of a pattern."""
    said: dict[str, str] = dict(_SETTING.findall(run))
    if pattern and (found := pattern.search(run)):
        said |= {key: value for key, value in found.groupdict().items() if value is not None}
    return said


def check_pattern(pattern: re.Pattern[str] | None, names: Iterable[str], where: str) -> None:
    """Refuse a pattern that matches none of the names."""
    names = list(names)
    if pattern and not any(map(pattern.search, names)):
        shown = ", ".join(map(repr, names[:4]))
        raise AblateError(
            f"{where}: --pattern {pattern.pattern!r} matches none of the names {shown}"
        )
