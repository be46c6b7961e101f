"""Runs that MLflow, TensorBoard and Optuna recorded."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ablate import readings
from ablate.errors import AblateError
from ablate.imported.source import (
    OF_ABLATE,
    Recorded,
    Source,
    Wanted,
    check_pattern,
    named,
    of_runs,
)
from ablate.store import mlflow, optuna

_ENDED = {"FINISHED": "complete", "FAILED": "failed", "KILLED": "failed"}  # in MLflow; else running
_STATUSES = ("", "RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED")  # by MLflow's number
_EVENTS = "*tfevents*"


# -- MLflow ------------------------------------------------------------------------------------


def read_mlflow(path: Path, wanted: Wanted) -> Source:
    """Return the runs of an MLflow store, a database or a folder, without deleted runs.

    Fields are parameters, tags of the user's own, `run` (its name) and `experiment`.
    """
    runs = mlflow.runs(path) if path.is_file() else list(_folders(path))
    check_pattern(wanted.pattern, (str(run["name"]) for run in runs), str(path))
    fields, recorded = [], []
    for run in runs:
        tags = {k: str(v) for k, v in run["tags"].items() if not k.startswith("mlflow.")}
        own = {"run": run["name"], "experiment": run["experiment"] or ""}
        said = named(run["name"], wanted.pattern)
        fields.append(own | said | tags | {k: str(v) for k, v in run["params"].items()})
        status = _ENDED.get(run["status"], "running")
        if {"key", "cell", "role"} <= tags.keys():  # a run that ablate exported
            status = OF_ABLATE.get(tags.get("status", ""), status)
        recorded.append(Recorded(run["metrics"], status=status, why=f"MLflow: {run['status']}"))
    return of_runs(str(path), fields, recorded, [str(run["id"]) for run in runs])


def holds_mlflow(path: Path) -> bool:
    """Return whether a file or folder is a store of MLflow."""
    if path.is_file():
        return {"runs", "experiments", "metrics"} <= mlflow.tables(path)
    return path.is_dir() and next(_folders(path), None) is not None


def _folders(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the runs of a folder, as `ablate.store.mlflow.runs` has them."""
    found = []
    for file in path.rglob("meta.yaml"):
        about = _yaml(file)
        if "run_id" in about and about.get("lifecycle_stage", "active") == "active":
            found.append((about.get("start_time", ""), about["run_id"], file.parent, about))
    for _, run_id, folder, about in sorted(found, key=lambda one: one[:2]):
        status = about.get("status", "")
        experiment = folder.parent / "meta.yaml"
        yield {
            "id": run_id,
            "name": about.get("run_name", ""),
            "status": _STATUSES[int(status)] if status.isdigit() and int(status) < 6 else status,
            "experiment": _yaml(experiment).get("name", "") if experiment.is_file() else "",
            "params": _texts(folder / "params"),
            "tags": _texts(folder / "tags"),
            "metrics": {name: _points(text) for name, text in _texts(folder / "metrics").items()},
        }


def _yaml(file: Path) -> dict[str, str]:
    """The plain values of a file that MLflow writes: one a line."""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    pairs = (line.partition(": ") for line in lines if ": " in line and line[0] not in " -#")
    return {key: value.strip().strip("'\"") for key, _, value in pairs}


def _texts(folder: Path) -> dict[str, str]:
    """Name → content of the files in a folder; a name with a slash is in a folder of its own."""
    return {
        file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8", errors="replace")
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def _points(text: str) -> dict[int, float]:
    """Step → value of lines "time value step"; of one step the last line counts."""
    rows = [line.split() for line in text.splitlines() if line.strip()]
    return {int(row[2]) if len(row) > 2 else 0: float(row[1]) for row in rows}


# -- TensorBoard -------------------------------------------------------------------------------


def read_tensorboard(path: Path, wanted: Wanted) -> Source:
    """Return the runs in a log folder of TensorBoard: each folder with event files is a run.

    Fields are hyper-parameters that were logged, settings in the names of folders ("lr=0.1"), the
    groups of the pattern, `run` (the path of the folder) and `folder1`, `folder2`, … (its parts).
    `add_hparams` makes a folder inside the folder of a run. The hyper-parameters in it belong to
    that run if it is the only such folder there; several, as TensorFlow makes them, are runs.
    """
    files = sorted(path.rglob(_EVENTS), key=lambda file: (file.stat().st_mtime_ns, file.name))
    folders = sorted({file.parent for file in files})
    curves = {folder: readings.Curves() for folder in folders}
    parameters: dict[Path, dict[str, str]] = {folder: {} for folder in folders}
    for file in files:
        for reading in readings.read(file):
            curves[file.parent].add(reading)
        parameters[file.parent] |= readings.hyper_parameters(file)
    points = {folder: dict(one.points) for folder, one in curves.items()}
    own = {folder for folder in folders if points[folder]}
    inside = collections.Counter(folder.parent for folder in folders if parameters[folder])
    above = {parent for folder in folders for parent in folder.parents}
    for folder in reversed(folders):
        parent = folder.parent
        if parameters[folder] and inside[parent] == 1 and parent in own:
            parameters[parent] |= parameters.pop(folder)
            points[parent] = points.pop(folder) | points[parent]
    # a folder above others may have settings of TensorBoard's page only, and is no run
    runs = [
        folder
        for folder in folders
        if folder in parameters and (parameters[folder] or points[folder] or folder not in above)
    ]
    names = [folder.relative_to(path).as_posix() for folder in runs]
    check_pattern(wanted.pattern, names, str(path))
    fields = [
        {"run": name}
        | {f"folder{at}": part for at, part in enumerate(name.split("/"), 1)}
        | named(name, wanted.pattern)
        | parameters[folder]
        for name, folder in zip(names, runs, strict=True)
    ]
    return of_runs(str(path), fields, [Recorded(points[folder]) for folder in runs], names)


def holds_tensorboard(path: Path) -> bool:
    """Return whether a folder has event files of TensorBoard."""
    return path.is_dir() and next(path.rglob(_EVENTS), None) is not None


# -- Optuna ------------------------------------------------------------------------------------


def read_optuna(path: Path, wanted: Wanted) -> Source:
    """Return the trials of an Optuna storage, an SQLite file or a journal.

    Fields are parameters, attributes of the user's own, `trial` and `study`. The metric is "value",
    or for several objectives "value0", "value1", …; intermediate values are its curve.
    A pruned trial counts as failed.
    """
    fields, recorded, places = [], [], []
    with optuna.opened(path) as storage:
        for study in storage.get_all_studies():
            names = _objectives(len(study.directions))
            goals = {
                name: "higher" if one.name == "MAXIMIZE" else "lower"
                for name, one in zip(names, study.directions, strict=True)
            }
            for trial in storage.get_all_trials(study._study_id, deepcopy=False):
                given = {k: _text(v) for k, v in {**trial.user_attrs, **trial.params}.items()}
                fields.append({"study": study.study_name, "trial": str(trial.number)} | given)
                recorded.append(_trial(trial, goals))
                places.append(f"{trial.number} of study {study.study_name}")
    if not fields:
        raise AblateError(f"{path}: a storage of Optuna without a trial")
    return of_runs(str(path), fields, recorded, places)


def holds_optuna(path: Path) -> bool:
    """Return whether a file is a storage of Optuna."""
    if not path.is_file():
        return False
    if {"studies", "trials", "trial_params"} <= mlflow.tables(path):
        return True
    with path.open("rb") as file:
        return file.readline(1 << 16).lstrip().startswith(b'{"op_code"')


def _trial(trial: Any, goals: dict[str, str]) -> Recorded:
    state = trial.state.name
    status = {"COMPLETE": "complete", "FAIL": "failed", "PRUNED": "failed"}.get(state, "running")
    values = trial.values or []
    curve = {int(step): float(value) for step, value in trial.intermediate_values.items()}
    return Recorded(
        {"value": curve} if curve else {},
        dict(zip(_objectives(len(values)), map(float, values), strict=True)),
        status,
        f"Optuna: {state}",
        goals,
    )


def _objectives(count: int) -> list[str]:
    return ["value"] if count == 1 else [f"value{at}" for at in range(count)]


def _text(value: object) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)


# -- Weights & Biases --------------------------------------------------------------------------


def holds_wandb(path: Path) -> bool:
    """Return whether a folder has runs of Weights & Biases that were recorded offline."""
    return path.suffix == ".wandb" or (
        path.is_dir() and next(path.rglob("run-*.wandb"), None) is not None
    )


def read_wandb(path: Path, wanted: Wanted) -> Source:
    """Refuse offline runs: the package `wandb` no longer has a reader of their format."""
    raise AblateError(
        f"{path}: runs of Weights & Biases that were recorded offline cannot be read; upload them"
        " with `wandb sync`, and export the table of runs, or a chart, as CSV"
    )
