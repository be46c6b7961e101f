"""Every study of the project, shrunk, is trained to its metric on the CPU."""

from __future__ import annotations

import dataclasses
import io
import math
from pathlib import Path

import pytest
from rich.console import Console
from sqlalchemy import text

from ablate import metrics, store
from ablate.launch import devices
from ablate.launch.local import LocalExecutor
from ablate.launch.packs import worker_slots
from ablate.plan import plan
from ablate.plan.tiny import tiny
from ablate.study import load
from ablate.study_run import run_study

STUDIES = [  # of transformers
    file
    for file in sorted(Path(__file__).parent.parent.glob("studies/*.toml"))
    if not load(str(file)).command
]


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_cell_of_a_tiny_study_reaches_its_metric(file: Path, tmp_path: Path) -> None:
    small = tiny(load(str(file)))
    made = plan(dataclasses.replace(small, seeds=small.seeds[:1], tune=None))
    with store.open(str(tmp_path / "tiny.db"), create=True) as db:
        executor = LocalExecutor(worker_slots(made, devices.find("cpu")))
        outcome = run_study(made, db, executor, console=Console(file=io.StringIO()))
        with db.read() as connection:
            rows = connection.execute(text("SELECT cell, status, metric FROM runs")).all()
            names = set(connection.execute(text("SELECT name, at FROM final")).all())
    assert outcome.exit_code == 0
    assert {row.cell for row in rows} == {cell.label for cell in made.cells}
    assert {row.status for row in rows} <= {"complete", "diverged"}
    assert [
        row.cell for row in rows if row.status == "complete" and not math.isfinite(row.metric)
    ] == []
    assert {("loss_at_length", at) for at in made.study.evaluation.lengths if at != 1} <= names
    assert metrics.final(made.study.metric) in names
