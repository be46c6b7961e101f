"""Small plans, journals and databases that the tests of the store share."""

from __future__ import annotations

import base64
import contextlib
import functools
import math
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ablate import store
from ablate.config import RunConfig
from ablate.evaluation import Evaluation
from ablate.journal import Journal
from ablate.kinds.transformer import run_of
from ablate.launch.scheduler import may_retry
from ablate.plan import Cell, Contrast, Plan, PlannedRun
from ablate.store import Database, owners, records, register, runs
from ablate.store.ingest import ingest
from ablate.study import Study
from ablate.windows import WindowLosses


def plan_of(
    name: str = "wiring",
    levels: Sequence[str] = ("serial", "parallel"),
    seeds: Sequence[int] = (0, 1),
    evaluation: Evaluation | None = None,
    metric: str = "loss",
    **fields: Any,
) -> Plan:
    """A study of topologies: the first level is the baseline of all others."""
    study = Study(
        name=name,
        question="Which wiring?",
        metric=metric,
        goal="min",
        design="one-factor",
        within=(),
        seeds=tuple(seeds),
        base=fields,
        factors={"topology": {level: {"topology": level} for level in levels}},
        evaluation=evaluation or Evaluation(),
        toml=f'name = "{name}"\n',
    )
    cells = []
    for level in levels:
        config = RunConfig(
            **{
                "topology": level,
                "n_layer": 1,
                "d_model": 16,
                "n_head": 2,
                "n_ctx": 16,
                "batch_tokens": 64,
                **fields,
            }
        )
        levels = {"topology": level}
        label = f"topology={level}"
        cells.append(Cell(run_of(config), 1.0, label=label, levels=levels, stratum=""))
    contrasts = [
        Contrast("topology", "", "topology", cell.levels["topology"], cell.label, cells[0].label)
        for cell in cells[1:]
    ]
    planned = [
        PlannedRun(cell.label, cell.run.with_(seed=seed)) for seed in seeds for cell in cells
    ]
    return Plan(study, tuple(cells), tuple(contrasts), tuple(planned))


def train(
    claim: records.Claim,
    steps: Sequence[int] = (1, 2, 3),
    loss: float = 2.0,
    status: str | None = "complete",
    start: int = 0,
    finals: Sequence[tuple[str, float, float]] | None = None,
    series: dict[str, list[float]] | None = None,
) -> None:
    """Write what a worker does: a start, series (by default two), losses of windows, finals, an end
    (None: killed).
    """
    with Journal(claim.journal) as journal:
        journal.append(
            "start",
            step=start,
            time=1.7e9,
            host=None,
            device="cpu",
            threads=1,
            versions={"torch": "2.13"},
            dirty=False,
        )
        journal.append(
            "metrics",
            steps=list(steps),
            series=series
            or {"loss": [loss + 1 / max(step, 1) for step in steps], "lr": [1e-3 for _ in steps]},
        )
        if status in ("complete", "diverged"):
            value = loss if status == "complete" else math.nan
            if status == "complete":
                journal.append("windows", **of_windows(loss))
            journal.append(
                "final", values=list(finals or [("loss", 0, value), ("accuracy", 0, 0.5)])
            )
        if status:
            journal.append(
                "end",
                status=status,
                step=steps[-1],
                error=None,
                device_seconds=1.5,
                peak_bytes=1 << 20,
                time=1.7e9 + 1,
            )


def of_windows(loss: float, name: str = "loss", at: float = 0.0) -> dict[str, Any]:
    """The event of two windows whose mean is `loss`."""
    layout, losses = WindowLosses(
        name,
        at,
        1024,
        np.array([0, 2048]),
        np.array([1024, 1024]),
        np.array([loss - 0.5, loss + 0.5], np.float32),
    ).packed()
    return {
        "name": name,
        "at": at,
        "tokens": 1024,
        "layout": base64.b64encode(layout).decode(),
        "losses": base64.b64encode(losses).decode(),
    }


@functools.cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        store.open(f"{folder}/x.db", create=True).close()
        return Path(folder, "x.db").read_bytes()


def fresh(path: Path) -> Database:
    """A database without studies, made without waiting for the migrations again."""
    path.write_bytes(_empty())
    return store.open(str(path), create=True)


def claim_next(db: Database, study_id: int, owner: owners.Owner, limit: int) -> list[records.Claim]:
    """Claim the next runs in the order of the plan, of those that may be tried (again)."""
    while waiting := [run.run_id for run in runs.candidates(db, study_id, owner) if may_retry(run)]:
        if claims := runs.claim(db, study_id, owner, waiting[:limit]):
            return claims  # else another process was quicker
    return []


def do_all(db: Database, study_id: int, owner: owners.Owner, **how: Any) -> int:
    """Claim, train and ingest until nothing is left; the number of attempts."""
    done = 0
    while claims := claim_next(db, study_id, owner, 4):
        for claim in claims:
            train(claim, **how)
            ingest(db, claim.attempt_id)
            done += 1
    return done


def trained(db: Database, plan: Plan, **how: Any) -> int:
    """Register a plan and complete it by a launcher of its own; return the study's id."""
    study_id = register.register(db, plan)
    with owners.Owner.here(db) as owner:
        do_all(db, study_id, owner, **how)
    return study_id


def rows(path: Path, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """What `sqlite3` itself says, whatever ablate does."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql, values).fetchall()


def killed_writer(path: Path, *statements: str) -> None:
    """A process that is killed after these statements, in the middle of what they began."""
    code = (
        "import os, sqlite3, sys\nc = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "for statement in sys.argv[2:]: c.execute(statement).fetchall()\nos.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(path), *statements], check=False)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def execute(path: Path, sql: str, *values: Any) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql, values)
