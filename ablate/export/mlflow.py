"""A study for MLflow: an experiment in a tracking store, with a run for each run."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ablate.errors import AblateError, missing
from ablate.export import runs
from ablate.export.runs import Exported, Run
from ablate.paths import digest
from ablate.store import Database
from ablate.store.sqlite import translate_errors

STATUS = {"complete": "FINISHED", "stopped": "KILLED"}  # of a run that has ended; else FAILED
CONTENT = "content"  # a tag of each run: the digest of its content
PARAMS, METRICS = 100, 800  # at once; MLflow takes 100, and 1,000 in all
LONGEST = 200  # characters of the names of metrics and parameters; MLflow takes 250


def write(database: Database, study: str, where: str, role: str) -> str:
    """Write the runs of a study as runs of an experiment with the name of the study.

    The tags key, cell and role identify a run. A run that was written before stays as it is, or is
    replaced if it has changed. See `ablate.export.write`.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise missing("mlflow") from None
    # no messages about tables that it creates, nor the traceback of an error that it raises too
    logging.getLogger("mlflow").setLevel(logging.CRITICAL)
    exported = runs.read(database, study, role)
    uri = _uri(where, database)
    try:
        with translate_errors(Path(where)):  # MLflow raises them as they are while it opens a file
            _write(MlflowClient(uri), exported)
    except MlflowException as error:
        raise AblateError(f"MLflow: {error.message}") from None
    return exported.said(where)


def _uri(where: str, database: Database) -> str:
    """Return the tracking URI of a path; a URI is one already."""
    if "://" in where:
        return where
    path = Path(where).absolute()
    if path.is_dir():
        raise AblateError(
            f"{where} is a folder; MLflow keeps runs in a database: {where}/mlflow.db"
        )
    if not path.parent.is_dir():
        raise AblateError(f"{where} cannot be written: there is no folder {path.parent}")
    if path.exists() and (database.path.samefile(path) or not _is_sqlite(path)):
        raise AblateError(f"{where} is no database of MLflow; name another or a new file")
    return f"sqlite:///{path}"


def _is_sqlite(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16) in (b"SQLite format 3\0", b"")


def _write(client: Any, exported: Exported) -> None:
    about = exported.about
    experiment = client.get_experiment_by_name(about.name)
    number = (
        client.create_experiment(about.name, tags={"metric": about.metric, "goal": about.goal})
        if experiment is None
        else experiment.experiment_id
    )
    client.set_experiment_tag(number, "mlflow.note.content", about.question)
    known: dict[tuple[Any, ...], list[Any]] = {}
    for one in _every(client, number):
        known.setdefault(tuple(map(one.data.tags.get, runs.IDENTITY)), []).append(one)
    keys = _keys(name for run in exported.runs for name in (*run.series, *run.finals, *run.config))
    for run in exported.runs:
        content, there = digest(repr((run, run.points)), 16), known.get(run.identity, [])
        same = [one for one in there if one.data.tags.get(CONTENT) == content][:1]
        if not same:
            _write_run(client, number, run, keys, content)
        for old in there:  # several, if an earlier export was interrupted
            if old not in same:
                client.delete_run(old.info.run_id)


def _every(client: Any, experiment: str) -> Iterator[Any]:
    """Yield the runs of an experiment."""
    token = None
    while True:
        page = client.search_runs([experiment], page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _write_run(client: Any, experiment: str, run: Run, keys: dict[str, str], content: str) -> None:
    from mlflow.entities import Metric, Param

    started = int(1000 * (time.time() if run.started is None else run.started))
    ended = started if run.ended is None else int(1000 * run.ended)
    params = [Param("seed", str(run.seed))]
    params += [Param(keys[name], _text(value)) for name, value in run.config.items()]
    metrics = [  # the times of points are not known
        Metric(keys[name], value, started, step)
        for step, values in run.points
        for name, value in values.items()
    ]
    metrics += [Metric(keys[name], value, ended, run.last) for name, value in run.finals.items()]
    number = client.create_run(experiment, started, run.tags, run.name[:LONGEST]).info.run_id
    for at in range(max(-(-len(params) // PARAMS), -(-len(metrics) // METRICS))):
        client.log_batch(
            number,
            metrics[at * METRICS : (at + 1) * METRICS],
            params[at * PARAMS : (at + 1) * PARAMS],
        )
    if run.status != "running":  # as a run that is created is
        client.set_terminated(number, STATUS.get(run.status, "FAILED"), ended)
    client.set_tag(number, CONTENT, content)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _keys(names: Iterable[str]) -> dict[str, str]:
    """Return name → a key that MLflow takes, distinct for distinct names.

    A key has letters, digits and `/_-. ` only, and is no path of another form.
    """
    valid = {name: _key(name) for name in names}
    shared = Counter(valid.values())
    return {
        name: key if shared[key] == 1 and len(key) <= LONGEST else f"{key[:LONGEST]}-{digest(name)}"
        for name, key in valid.items()
    }


def _key(name: str) -> str:
    parts = re.sub(r"[^\w/. -]", "_", name).split("/")
    return "/".join(part for part in parts if part.strip(".")) or "_"
