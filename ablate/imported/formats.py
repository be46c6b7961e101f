"""The reader of a file or folder, chosen by its content."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.errors import AblateError
from ablate.imported import tables, tools
from ablate.imported.model import Asked
from ablate.imported.source import Source, Wanted
from ablate.store import mlflow


@dataclass(frozen=True)
class Format:
    """A kind of file or folder: how to recognise it, and how to read it."""

    holds: Callable[[Path], bool]
    read: Callable[[Path, Wanted], Source]


FORMATS = (
    Format(tools.holds_mlflow, tools.read_mlflow),
    Format(tools.holds_tensorboard, tools.read_tensorboard),
    Format(tools.holds_optuna, tools.read_optuna),
    Format(tools.holds_wandb, tools.read_wandb),  # raises an error
    Format(lambda path: path.is_file() and not mlflow.tables(path), tables.read),
)


def read(paths: Sequence[Path], asked: Asked) -> list[Source]:
    """Return the runs of files and folders; the curves of a chart of W&B join the table of runs."""
    try:
        pattern = re.compile(asked.pattern) if asked.pattern else None
    except re.error as error:
        raise AblateError(f"--pattern {asked.pattern!r}: {error}") from None
    if pattern and not pattern.groupindex:
        raise AblateError(
            f"--pattern {asked.pattern!r}: the pattern has no named group; (?P<seed>\\d+) makes a"
            " column seed"
        )
    columns = (*asked.factors, *asked.resources.values(), asked.seed)
    wanted = Wanted(columns, asked.metrics or ("",), asked.step, pattern, asked.where)
    found = []
    for path in paths:
        if not path.exists():
            raise AblateError(f"{path}: there is no such file or folder")
        if not (path.is_file() or path.is_dir()):  # a pipe can be read once, not to find its format
            raise AblateError(f"{path}: it is no regular file; save its content as a file")
        of = next((one for one in FORMATS if one.holds(path)), None)
        if of is None:
            raise AblateError(f"{path}: {_unreadable(path)}")
        found.append(of.read(path, wanted))
    return _joined(found)


def _unreadable(path: Path) -> str:
    """Return why there is no reader for a file or folder."""
    if path.is_dir():
        return "this folder has no runs of MLflow or TensorBoard; name the files in it"
    if {"study", "run", "attempt"} <= mlflow.tables(path):
        return "this is a database of ablate; `ablate db merge` adds its studies"
    return "this database is not from MLflow or Optuna; export its results as CSV"


def _joined(sources: list[Source]) -> list[Source]:
    """Give the rows of a table of W&B's runs the curves of charts of the same runs."""
    for chart in [one for one in sources if one.chart]:
        for at, other in enumerate(sources):
            if "Name" in other.table and set(chart.table["run"]) <= set(other.table["Name"]):
                place: dict[str, Any] = {}
                for label, name in other.table["Name"].items():
                    if name in chart.table["run"].tolist() and name in place:
                        raise AblateError(
                            f"{other.place(label)}: a run is called {name!r} as in"
                            f" {other.place(place[name])}, so that a curve of {chart.name} could be"
                            " of either; leave the chart out, or rename one of the runs"
                        )
                    place[name] = label
                recorded = dict(other.recorded)
                for name, one in chart.recorded.items():
                    before = recorded.get(place[name])
                    points = {**(before.points if before else {}), **one.points}
                    recorded[place[name]] = dataclasses.replace(before or one, points=points)
                sources[at] = dataclasses.replace(other, recorded=recorded)
                sources = [one for one in sources if one is not chart]
                break
    return sources
