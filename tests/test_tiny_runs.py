"""Every study of the project, shrunk, is trained to its metric on the CPU, in this process.

Steps and held-out texts are fewer than those of `--size tiny`, at which test_own_parts_study.py
trains a study. Of runs that differ in how long they train alone, the shortest two are trained: the
others repeat their steps.
"""

from __future__ import annotations

import dataclasses
import io
import math
from pathlib import Path

import pytest
from in_process import InProcessExecutor
from rich.console import Console
from sqlalchemy import text

from ablate import metrics, store
from ablate.launch import devices
from ablate.launch.trainer import TorchTrainer
from ablate.plan import Plan, PlannedRun, plan
from ablate.plan import tiny as tiny_
from ablate.study import load
from ablate.study_run import run_study
from ablate.text import labels

STUDIES = [  # of transformers
    file
    for file in sorted(Path(__file__).parent.parent.glob("studies/*.toml"))
    if not load(str(file)).command
]


def shortest(whole: Plan) -> Plan:
    """A plan without the runs of which two of fewer steps are the same otherwise."""
    groups: dict[str, list[PlannedRun]] = {}
    for planned in sorted(whole.runs, key=lambda planned: planned.config.steps):
        same = planned.config.model_dump_json(exclude={"steps"})
        groups.setdefault(f"{planned.role} {same}", []).append(planned)
    kept = {planned.cell for group in groups.values() for planned in group[:2]}
    return dataclasses.replace(
        whole,
        cells=tuple(cell for cell in whole.cells if cell.label in kept),
        contrasts=tuple(one for one in whole.contrasts if {one.cell, one.baseline} <= kept),
        runs=tuple(planned for planned in whole.runs if planned.cell in kept),
    )


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tiny` takes as few steps, tokens and decoded pairs as make every final; a class has no more
    texts than a fine-tuning by 256 texts of four classes needs.
    """
    sizes = {"SHORTEST": 3, "LONGEST": 12, "FEWEST": 1, "FINETUNED": 3}
    sizes |= {"HELD_OUT": 256, "DECODED": 2}
    for name, value in sizes.items():
        monkeypatch.setattr(tiny_, name, value)
    monkeypatch.setattr(labels, "EACH", 64)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_every_cell_of_a_tiny_study_reaches_its_metric(file: Path, tmp_path: Path) -> None:
    small = tiny_.tiny(load(str(file)))
    once = small.evaluation.model_copy(update={"points": 1})
    one = dataclasses.replace(small, seeds=small.seeds[:1], tune=None, evaluation=once)
    made = shortest(plan(one))
    with store.open(str(tmp_path / "tiny.db"), create=True) as db:
        executor = InProcessExecutor(devices.find("cpu"), TorchTrainer)
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
