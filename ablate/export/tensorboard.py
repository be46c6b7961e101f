"""A study for TensorBoard: a folder of events per run, with its hyper-parameters."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ablate.errors import missing
from ablate.export import runs
from ablate.export.runs import Run
from ablate.kinds import SEEDS
from ablate.paths import file_name
from ablate.store import Database

FILE = "events.out.tfevents.0.ablate"  # TensorBoard reads files with tfevents in their names
KEPT = " =,.+"  # characters of cells that are valid in the name of a folder


def write(database: Database, study: str, where: str, role: str) -> str:
    """Write the runs of a study to a folder with the name of the study.

    A run that was written before is replaced. See `ablate.export.write`.
    """
    try:
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise missing("tensorboard") from None
    exported = runs.read(database, study, role)
    folder = Path(where) / file_name(study)
    Path(where).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=where, prefix=".ablate-") as temporary:
        parts = [Path(temporary, str(number)) for number in range(len(exported.runs))]
        for part, run in zip(parts, exported.runs, strict=True):
            with part.open("wb") as file:
                writer = RecordWriter(file)
                for event in _events(run):
                    writer.write(event.SerializeToString())
        for part, run in zip(parts, exported.runs, strict=True):  # all are whole
            own = folder / f"{file_name(run.cell, KEPT)}, {run.which}"
            own.mkdir(parents=True, exist_ok=True)
            part.replace(own / FILE)
    return exported.said(folder)


def _events(run: Run) -> Iterator[Any]:
    """Yield the events of a run: hyper-parameters, points, finals, how the run ended.

    Points have the time at which the run began, because their own times are not known. Scalars are
    float32.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2, summary_v2

    started = time.time() if run.started is None else run.started
    ended = started if run.ended is None else run.ended

    def scalars(values: dict[str, float]) -> Any:
        found = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        return Summary(value=found)

    yield Event(wall_time=started, file_version="brain.Event:2")
    # TensorBoard shows runs with the same hyper-parameters as repetitions: the seeds of a cell
    config = {
        name: value if isinstance(value, bool | int | float | str) else json.dumps(value)
        for name, value in run.config.items()
        if name not in SEEDS
    }
    yield Event(wall_time=started, summary=summary_v2.hparams_pb(config, start_time_secs=started))
    for step, values in run.points:
        yield Event(wall_time=started, step=step, summary=scalars(values))
    if run.finals:
        yield Event(wall_time=ended, step=run.last, summary=scalars(run.finals))
    if run.status == "running":
        return
    status = "STATUS_SUCCESS" if run.status == "complete" else "STATUS_FAILURE"
    end = plugin_data_pb2.SessionEndInfo(status=api_pb2.Status.Value(status), end_time_secs=ended)
    data = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(session_end_info=end))
    value = Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG, metadata=data, tensor=metadata.NULL_TENSOR
    )
    yield Event(wall_time=ended, summary=Summary(value=[value]))
