"""With the real engine: a run's numbers do not depend on the worker being fresh or cached, nor on a
stop or a kill between.
"""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import pytest
from launch_helpers import Launcher, launch, rows, small_plan, use_stub, wait_for, workers

STEPS = 300


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """The engine with blocks and checkpoints at short intervals, which must change no number."""
    use_stub(monkeypatch, "short_interval_worker")


def numbers(path: Path, key: str) -> list[tuple]:
    """Every point and final of a run, but for times."""
    points = rows(
        path,
        "SELECT series.name, step, value FROM metric JOIN run ON run.id = run_id JOIN series ON"
        " series.id = series_id WHERE run.key = ? AND series.name <> 'tokens_per_second' ORDER BY"
        " series.name, step",
        key,
    )
    finals = rows(
        path,
        "SELECT name, at, value FROM final JOIN run ON run.id = run_id WHERE run.key = ? AND name"
        " <> 'train_seconds' ORDER BY name, at",
        key,
    )
    return points + finals


def test_fresh_cached_stopped_and_killed_runs_are_bit_identical(tmp_path):
    plan = small_plan(tmp_path, [1e-2, 3e-3], seeds=1, steps=STEPS)
    key = plan.runs[1].run.key
    cached = tmp_path / "cached.db"
    assert launch(plan, cached)[0].counts == {"complete": 2}
    wanted = numbers(cached, key)
    assert len(wanted) > 3 * 100

    alone, path = dataclasses.replace(plan, runs=plan.runs[1:]), tmp_path / "alone.db"
    first = Launcher(alone, path)
    wait_for(lambda: checkpointed(path, attempt=1), 60)
    first.kill(signal.SIGINT)
    assert first.wait() == 130
    assert rows(path, "SELECT status FROM run") == [("stopped",)]

    second = Launcher(alone, path)
    wait_for(lambda: checkpointed(path, attempt=2), 60)
    (worker,) = workers(second.pid)
    second.kill(signal.SIGKILL)
    Launcher.kill_process(worker)
    second.wait()

    assert launch(alone, path)[0].counts == {"complete": 1}
    tries = rows(path, "SELECT n, status, resumed_step FROM attempt ORDER BY n")
    assert [how for _, how, _ in tries] == ["stopped", "dead", "complete"]
    assert 0 == tries[0][2] < tries[1][2] < tries[2][2] < STEPS
    assert numbers(path, key) == wanted
    assert not list(path.with_suffix(".checkpoints").iterdir()), (
        "a complete run needs no checkpoint"
    )


def checkpointed(path: Path, attempt: int) -> bool:
    """Whether an attempt has written a checkpoint."""
    return any(
        b'"checkpoint"' in file.read_bytes()
        for file in path.with_suffix(".journals").glob(f"*-{attempt}-*.jsonl")
    )
