"""Kill −9 the launcher, a worker, or both, whenever: the next `run` finishes the study, with nothing lost and nothing twice."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from launching import HERE, Launcher, content, launch, rows, small_plan, workers

from ablate.errors import AblateError
from ablate.launch import launcher
from ablate.store.ingest import ingest_all

POINTS = 10
RUNS, STEPS, SERIES = 6, 6, 2
LRS, SEEDS = [1e-3, 2e-3], RUNS // 2
TARGETS = ("launcher", "worker", "both")
KILLS = int(os.environ.get("ABLATE_SOAK_KILLS", "100"))


@pytest.fixture(autouse=True)
def stub(monkeypatch):
    monkeypatch.setenv("ABLATE_ENGINE", "stub_engine")
    monkeypatch.setenv("PYTHONPATH", f"{HERE.parent}:{HERE}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("STUB_DELAY", "0.01")
    monkeypatch.setattr(launcher, "INGEST", 0.05)
    monkeypatch.setattr(launcher, "POLL", 0.1)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(database content, seconds) of a study that nobody interrupted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_ENGINE", "stub_engine")
        patch.setenv("PYTHONPATH", f"{HERE.parent}:{HERE}")
        patch.setenv("STUB_DELAY", "0.01")
        folder = tmp_path_factory.mktemp("undisturbed")
        begun = time.monotonic()
        assert Launcher(small_plan(folder, LRS, SEEDS, STEPS), folder / "a.db").wait() == 0
        return content(folder / "a.db"), time.monotonic() - begun


def kill_something(launcher: Launcher, target: str) -> None:
    """Kill −9; a worker that is not there yet is its launcher's loss. Returns when the launcher has ended."""
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
    assert outcome == launcher.Outcome({"complete": RUNS}, 0)
    assert content(path) == wanted
    assert rows(path, "SELECT count(*) FROM metric") == [(RUNS * STEPS * SERIES,)]
    assert rows(path, "SELECT count(*) FROM attempt WHERE status = 'complete'") == [(RUNS,)]
    assert rows(path, "SELECT count(*) FROM attempt WHERE status IN ('running', 'failed')") == [(0,)]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_kills_of_real_training(tmp_path, monkeypatch):
    """A study of 30 runs is killed and run again until it is complete; then the next, until 100 kills are done.

    Runs checkpoint all the time, so that some go on from the middle.
    """
    monkeypatch.setenv("ABLATE_ENGINE", "impatient_engine")
    plan = small_plan(tmp_path, [1e-3, 2e-3, 3e-3], seeds=10, steps=200)
    assert Launcher(plan, tmp_path / "undisturbed.db").wait(600) == 0
    wanted = {table: timeless(found) for table, found in content(tmp_path / "undisturbed.db").items()}
    chance = random.Random(0)
    kills = study = 0
    while kills < KILLS:
        study += 1
        path = tmp_path / f"{study}.db"
        while rows(path, "SELECT count(*) FROM run WHERE status = 'complete'") != [(len(plan.runs),)] and kills < KILLS:
            first = Launcher(plan, path)
            time.sleep(chance.uniform(0, 15))
            kill_something(first, chance.choice(TARGETS))
            kills += 1
        assert launch(plan, path)[0].counts == {"complete": len(plan.runs)}
        assert {table: timeless(found) for table, found in content(path).items()} == wanted
        assert rows(path, "SELECT count(*) FROM attempt WHERE status = 'complete'") == [(len(plan.runs),)]


def timeless(found: list[tuple]) -> list[tuple]:
    """Rows without the one series that is a time; but that there is a point stays."""
    return [(*row[:3], None) if "tokens_per_second" in row else row for row in found]


def test_what_a_worker_finished_after_the_launcher_died_is_kept(tmp_path, undisturbed, monkeypatch):
    """The launcher dies with lines in the journals that it has not read: the next one reads them instead of training again."""
    monkeypatch.setattr(launcher, "INGEST", 1000.0)
    monkeypatch.setenv("STUB_DELAY", "0")
    plan, path = small_plan(tmp_path, LRS, SEEDS, STEPS), tmp_path / "a.db"
    monkeypatch.setattr(launcher.Launcher, "_listen", lambda self: time.sleep(60))
    first = Launcher(plan, path)
    journals = path.with_name("a.journals")
    end = time.monotonic() + 20
    while not any(b'"end"' in file.read_bytes() for file in journals.glob("*.jsonl")):
        assert time.monotonic() < end
        time.sleep(0.01)
    first.kill(signal.SIGKILL)
    first.wait()
    monkeypatch.undo()
    monkeypatch.setenv("ABLATE_ENGINE", "stub_engine")
    monkeypatch.setenv("PYTHONPATH", f"{HERE.parent}:{HERE}")

    assert launch(plan, path)[0].counts == {"complete": RUNS}
    assert rows(path, "SELECT count(*) FROM attempt") == [(RUNS,)], "no run was trained twice"
    assert content(path) == undisturbed[0]


def test_an_error_in_the_launcher_loses_nothing(tmp_path, undisturbed, monkeypatch):
    """The disk is full, say: one clear error, workers stop with a checkpoint, and the next `run` goes on."""
    plan, path = small_plan(tmp_path, LRS, SEEDS, STEPS), tmp_path / "a.db"
    calls = 0

    def full(db, attempt_ids):
        nonlocal calls
        calls += 1
        if calls > 3:
            raise AblateError("database cannot grow: the disk is full")
        return ingest_all(db, attempt_ids)

    monkeypatch.setattr(launcher, "ingest_all", full)
    with pytest.raises(AblateError, match="disk is full"):
        launch(plan, path)
    assert not workers(os.getpid())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    monkeypatch.setattr(launcher, "ingest_all", ingest_all)
    assert launch(plan, path)[0] == launcher.Outcome({"complete": RUNS}, 0)
    assert content(path) == undisturbed[0]
