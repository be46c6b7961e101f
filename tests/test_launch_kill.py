"""Kill −9 the launcher, a worker, or both, whenever: the next `run` finishes the study, with
nothing lost and nothing twice.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from launch_helpers import HERE, Launcher, content, launch, rows, small_plan, use_stub, workers

from ablate.errors import AblateError
from ablate.launch import local, pool
from ablate.store.ingest import ingest_all
from ablate.study_run import Outcome

POINTS = 10
RUNS, STEPS, SERIES = 6, 6, 2
LRS, SEEDS = [1e-3, 2e-3], RUNS // 2
TARGETS = ("launcher", "worker", "both")


@pytest.fixture(autouse=True)
def slow(stub, monkeypatch):
    monkeypatch.setenv("STUB_DELAY", "0.01")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(database content, seconds) of a study that nobody interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        use_stub(patch)
        patch.setenv("STUB_DELAY", "0.01")
        folder = tmp_path_factory.mktemp("undisturbed")
        begun = time.monotonic()
        assert Launcher(small_plan(folder, LRS, SEEDS, STEPS), folder / "a.db").wait() == 0
        return content(folder / "a.db"), time.monotonic() - begun


def kill_something(launcher: Launcher, target: str) -> None:
    """Kill −9; a worker that has not started is its launcher's loss. Wait for the launcher."""
    victims = workers(launcher.pid) if target != "launcher" else []
    if target != "worker" or not victims:
        launcher.kill(signal.SIGKILL)
    for victim in victims:
        Launcher.kill_process(victim)
    launcher.wait(600)


@pytest.mark.parametrize("point", range(POINTS))
def test_nothing_is_lost_or_doubled(tmp_path, undisturbed, point):
    wanted, seconds = undisturbed
    plan, path = small_plan(tmp_path, LRS, SEEDS, STEPS), tmp_path / "a.db"
    first = Launcher(plan, path)
    time.sleep(random.Random(point).uniform(0, seconds))
    kill_something(first, TARGETS[point % 3])

    outcome, _ = launch(plan, path)
    assert outcome == Outcome({"complete": RUNS}, 0)
    assert content(path) == wanted
    assert rows(path, "SELECT count(*) FROM metric") == [(RUNS * STEPS * SERIES,)]
    assert rows(path, "SELECT count(*) FROM attempt WHERE status = 'complete'") == [(RUNS,)]
    assert rows(path, "SELECT count(*) FROM attempt WHERE status IN ('running', 'failed')") == [
        (0,)
    ]


def test_a_plan_is_the_same_to_the_byte_in_every_process():
    """Whatever order sets have there."""
    code = (
        "import sys; from ablate.plan import plan; from ablate.study import load;"
        " print(plan(load(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, str(HERE.parent / "studies" / "topology.toml")]
    environments = [{**os.environ, "PYTHONHASHSEED": str(seed)} for seed in (1, 2)]
    plans = [
        subprocess.run(command, env=each, capture_output=True, check=True).stdout
        for each in environments
    ]
    assert plans[0].count(b"PlannedRun") > 100 and plans[0] == plans[1]


def test_what_a_worker_finished_after_the_launcher_died_is_kept(tmp_path, undisturbed, monkeypatch):
    """The next launcher reads the journal lines that the dead one had not read."""
    monkeypatch.setattr(pool, "INGEST", 1000.0)
    monkeypatch.setenv("STUB_DELAY", "0")
    plan, path = small_plan(tmp_path, LRS, SEEDS, STEPS), tmp_path / "a.db"
    monkeypatch.setattr(local.LocalExecutor, "poll", lambda self, timeout: time.sleep(60))
    first = Launcher(plan, path)
    journals = path.with_name("a.journals")
    end = time.monotonic() + 20
    while not any(b'"end"' in file.read_bytes() for file in journals.glob("*.jsonl")):
        assert time.monotonic() < end
        time.sleep(0.01)
    first.kill(signal.SIGKILL)
    first.wait()
    monkeypatch.undo()
    use_stub(monkeypatch)
    assert launch(plan, path)[0].counts == {"complete": RUNS}
    assert rows(path, "SELECT count(*) FROM attempt") == [(RUNS,)], "no run was trained twice"
    assert content(path) == undisturbed[0]


def test_an_error_in_the_launcher_loses_nothing(tmp_path, undisturbed, monkeypatch):
    """With a full disk: one error, workers stop with a checkpoint, the next `run` goes on."""
    plan, path = small_plan(tmp_path, LRS, SEEDS, STEPS), tmp_path / "a.db"
    calls, handler = 0, signal.getsignal(signal.SIGINT)

    def full(db, attempt_ids):
        nonlocal calls
        calls += 1
        if calls > 3:
            raise AblateError("database cannot grow: the disk is full")
        return ingest_all(db, attempt_ids)

    monkeypatch.setattr(pool, "ingest_all", full)
    with pytest.raises(AblateError, match="disk is full"):
        launch(plan, path)
    assert not workers(os.getpid())
    assert signal.getsignal(signal.SIGINT) is handler
    monkeypatch.setattr(pool, "ingest_all", ingest_all)
    assert launch(plan, path)[0] == Outcome({"complete": RUNS}, 0)
    assert content(path) == undisturbed[0]
