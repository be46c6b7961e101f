"""Whole studies with the stub engine: failures, retries, signals, sharing and messages."""

from __future__ import annotations

import io
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import stub_worker
from in_process import InProcessExecutor
from launch_helpers import (
    Launcher,
    at_work,
    launch,
    rows,
    small_plan,
    use_worker,
    wait_for,
    workers,
)
from rich.console import Console

from ablate import journal, store
from ablate.errors import AblateError
from ablate.launch import pool
from ablate.launch.devices import Device
from ablate.launch.executor import Ended
from ablate.store import status
from ablate.study_run import Outcome

pytestmark = pytest.mark.usefixtures("stub")


def attempts(path: Path, lr: float) -> list[tuple]:
    """(status, error) of the attempts of the runs with this learning rate, in order."""
    return rows(
        path,
        "SELECT a.status, a.error FROM attempt AS a JOIN run ON run.id = run_id"
        " WHERE fields ->> 'lr' = ?"
        " ORDER BY n",
        lr,
    )


def test_a_study_runs_through_and_again_does_nothing(tmp_path):
    plan, path = (
        small_plan(tmp_path, [1e-3, 2e-3, stub_worker.DIVERGES], seeds=2),
        tmp_path / "a.db",
    )
    outcome, output = launch(plan, path)
    assert outcome == Outcome({"complete": 4, "diverged": 2}, 0)
    for planned in plan.runs:
        for series in ("train_loss", "lr"):
            curve = rows(
                path,
                "SELECT step, value FROM metric JOIN run ON run.id = run_id JOIN series ON"
                " series.id = series_id WHERE run.key = ? AND series.name = ? ORDER BY step",
                planned.run.key,
                series,
            )
            assert curve == [
                (step, stub_worker.value(planned.config, series, step)) for step in range(1, 7)
            ]
    assert rows(path, "SELECT count(*) FROM metric") == [(6 * 2 * 6,)]
    assert len(rows(path, "SELECT DISTINCT versions, host, device, threads FROM attempt")) == 1
    pids = {journal.read(file)[0][0]["pid"] for file in (tmp_path / "a.journals").glob("*.jsonl")}
    assert len(pids) == 1, "one warm worker does all runs of a device"
    assert "stub 1/6: lr=0.001, seed 0 complete, held-out loss 0." in output
    assert output.endswith("stub: 4 complete, 2 diverged\n")

    before = rows(path, "SELECT count(*) FROM attempt")
    assert launch(plan, path)[0] == outcome
    assert rows(path, "SELECT count(*) FROM attempt") == before == [(6,)]


def test_a_failing_run_is_recorded_and_the_others_go_on(tmp_path):
    plan, path = small_plan(tmp_path, [1e-3, stub_worker.RAISES, 2e-3]), tmp_path / "a.db"
    outcome, output = launch(plan, path)
    assert outcome == Outcome({"complete": 2, "failed": 1}, 1)
    ((how, error),) = attempts(path, stub_worker.RAISES)
    assert (
        how == "failed"
        and "Traceback" in error
        and "ValueError: the stub fails as requested" in error
    )
    assert re.search(r"lr=0.5\d*, seed 0 failed: ValueError: the stub fails as requested", output)

    assert launch(plan, path)[0].exit_code == 1
    assert [how for how, _ in attempts(path, stub_worker.RAISES)] == ["failed", "failed"], (
        "run again, it has one more try"
    )
    assert rows(path, "SELECT count(*) FROM attempt") == [(4,)]


def test_fail_fast_stops_at_the_first_failure(tmp_path):
    plan, path = small_plan(tmp_path, [stub_worker.RAISES, 1e-3, 2e-3], seeds=2), tmp_path / "a.db"
    outcome, _ = launch(plan, path, fail_fast=True)
    assert outcome == Outcome({"failed": 1, "planned": 5}, 1)


def test_fail_fast_gives_a_run_whose_worker_died_its_further_tries(tmp_path):
    plan, path = (
        small_plan(tmp_path, [stub_worker.DIES_ONCE, stub_worker.DIES, 1e-3], seeds=1),
        tmp_path / "a.db",
    )
    outcome, _ = launch(plan, path, fail_fast=True)
    assert outcome == Outcome({"complete": 2, "failed": 1}, 1)
    assert [how for how, _ in attempts(path, stub_worker.DIES)] == ["dead"] * 3


@pytest.mark.parametrize("lr", [stub_worker.DIES, stub_worker.BREAKS_DEVICE])
def test_a_dead_worker_is_replaced_and_its_run_tried_a_few_times(tmp_path, lr):
    plan, path = small_plan(tmp_path, [1e-3, lr, 2e-3]), tmp_path / "a.db"
    assert launch(plan, path)[0] == Outcome({"complete": 2, "failed": 1}, 1)
    assert rows(
        path,
        "SELECT name, step, value FROM metric JOIN series ON series.id = series_id JOIN run ON"
        " run.id = run_id WHERE fields ->> 'lr' = ? AND name = 'lr'",
        lr,
    ) == [("lr", step, stub_worker.value(plan.runs[1].config, "lr", step)) for step in (1, 2)], (
        "what it wrote before it died stays, once"
    )
    tries = attempts(path, lr)
    assert [how for how, _ in tries] == ["dead"] * 3
    why = (
        "killed by SIGKILL" if lr == stub_worker.DIES else "RuntimeError: the stub's device is lost"
    )
    assert all(error.startswith("the worker died") and why in error for _, error in tries)
    assert rows(path, "SELECT run.status FROM run WHERE fields ->> 'lr' = ?", lr) == [("failed",)]


def test_a_run_whose_worker_dies_once_succeeds(tmp_path):
    plan, path = small_plan(tmp_path, [stub_worker.DIES_ONCE, 1e-3]), tmp_path / "a.db"
    assert launch(plan, path)[0] == Outcome({"complete": 2}, 0)
    assert [how for how, _ in attempts(path, stub_worker.DIES_ONCE)] == ["dead", "complete"]
    assert rows(
        path,
        "SELECT count(*), count(DISTINCT step) FROM metric JOIN run ON run.id = run_id WHERE"
        " fields ->> 'lr' = ?",
        stub_worker.DIES_ONCE,
    ) == [(12, 6)]


def test_out_of_memory_is_tried_smaller_and_then_recorded(tmp_path):
    plan, path = small_plan(tmp_path, [stub_worker.RUNS_OUT_OF_MEMORY, 1e-3]), tmp_path / "a.db"
    outcome, output = launch(plan, path)
    assert outcome == Outcome({"complete": 1, "oom": 1}, 1)
    assert all(int(done) <= 2 for done in re.findall(r"stub (\d+)/2:", output)), (
        "a run that is tried again is not done twice"
    )
    tries = attempts(path, stub_worker.RUNS_OUT_OF_MEMORY)
    assert [how for how, _ in tries] == ["oom"] * 3 and "no memory left" in tries[0][1]
    again = re.findall(r"stub: lr=0.51, seed 0 is retried with (.*)", output)
    last = "1 of 8 sequences in memory at once, and blocks recomputed in the backward pass"
    assert again == ["2 of 8 sequences in memory at once", last]
    assert rows(path, "SELECT DISTINCT peak_bytes FROM attempt WHERE status = 'oom'") == [
        (1 << 20,)
    ]


def test_a_pack_that_is_too_large_is_split(tmp_path, monkeypatch):
    plan, path = small_plan(tmp_path, [stub_worker.PACK_TOO_LARGE], seeds=5), tmp_path / "a.db"
    monkeypatch.setattr("ablate.launch.packs.capacity", lambda config, device: 5)
    outcome, output = launch(plan, path)
    assert outcome == Outcome({"complete": 5}, 0)
    assert output.count("is retried with 2 runs at a time") == 2
    sizes = rows(
        path,
        "SELECT pack_size, status, count(*) FROM attempt GROUP BY pack_size, status ORDER BY"
        " min(id)",
    )
    assert sizes == [(5, "oom", 5), (2, "oom", 2), (1, "complete", 5)]


def test_a_damaged_journal_stops_the_study_after_the_others_and_its_run_is_repeated(
    tmp_path, monkeypatch
):
    spoils = (
        "def train(self, job, context):\n"
        "    first = replace(context, emit=context.emit[:1])\n"
        "    super().train(replace(job, runs=job.runs[:1]), first)\n"
        "    context.emit[1]('surprise')\n"
    )
    plan, path, out = small_plan(tmp_path, [1e-3], seeds=2), tmp_path / "a.db", io.StringIO()
    monkeypatch.setattr("ablate.launch.packs.capacity", lambda config, device: 2)
    # the journals of both are read when both are written
    monkeypatch.setattr(pool, "INGEST", 1000.0)
    with (
        monkeypatch.context() as patch,
        pytest.raises(AblateError, match=r"damaged after byte .* 'surprise' is unknown"),
    ):
        use_worker(patch, "spoils", tmp_path, spoils, "from dataclasses import replace\n")
        launch(plan, path, console=Console(file=out, width=200))
    assert "stub 1/2: lr=0.001, seed 0 complete, held-out loss 0." in out.getvalue()
    assert launch(plan, path)[0] == Outcome({"complete": 2}, 0)
    (_, first), (dead, why), (_, second) = rows(
        path, "SELECT status, error FROM attempt ORDER BY id"
    )
    assert (first, dead, second) == (None, "dead", None) and "event 'surprise' is unknown" in why


def test_a_stopped_pack_goes_on_together(tmp_path, monkeypatch):
    plan, path = small_plan(tmp_path, [1e-3], seeds=6, steps=100), tmp_path / "a.db"
    monkeypatch.setattr("ablate.launch.packs.capacity", lambda config, device: 3)
    first = at_work(plan, path, monkeypatch)
    first.kill(signal.SIGINT)
    assert first.wait() == 130
    monkeypatch.setenv("STUB_DELAY", "0")
    monkeypatch.setattr("ablate.launch.packs.capacity", lambda config, device: 1)
    assert launch(plan, path)[0] == Outcome({"complete": 6}, 0)
    again = rows(
        path,
        "SELECT pack_size, resumed_step > 0 FROM attempt WHERE status = 'complete' ORDER BY id",
    )
    assert again == [(3, 1)] * 3 + [(1, 0)] * 3
    assert rows(path, "SELECT count(*) FROM metric") == [(6 * 2 * 100,)]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_running_jobs_checkpoint_and_the_study_goes_on_later(
    tmp_path, monkeypatch, number, code
):
    plan, path = small_plan(tmp_path, [1e-3, 2e-3], steps=400), tmp_path / "a.db"
    first = at_work(plan, path, monkeypatch)
    begun = time.monotonic()
    first.kill(number)
    assert first.wait() == code
    assert time.monotonic() - begun < 5
    assert "write a checkpoint" in first.output.read_text()
    assert rows(path, "SELECT status FROM run ORDER BY id") == [("stopped",), ("planned",)]
    ((steps,),) = rows(path, "SELECT max(step) FROM metric")
    assert 0 < steps < 400

    monkeypatch.setenv("STUB_DELAY", "0")
    assert launch(plan, path)[0].counts == {"complete": 2}
    assert rows(path, "SELECT resumed_step FROM attempt WHERE status = 'complete' ORDER BY id") == [
        (steps,),
        (0,),
    ]
    assert rows(path, "SELECT count(*) FROM metric") == [(2 * 2 * 400,)]


def test_a_checkpoint_beyond_what_was_ingested_is_not_gone_on_from(tmp_path, monkeypatch):
    """As one of a worker that trained on after its run was taken over."""
    plan, path = small_plan(tmp_path, [1e-3], steps=400), tmp_path / "a.db"
    first = at_work(plan, path, monkeypatch)
    first.kill(signal.SIGINT)
    assert first.wait() == 130
    (saved,) = path.with_suffix(".checkpoints").iterdir()
    assert 0 < int(saved.read_text()) < 350
    saved.write_text(str(int(saved.read_text()) + 50))
    monkeypatch.setenv("STUB_DELAY", "0")
    assert launch(plan, path)[0].counts == {"complete": 1}
    assert rows(path, "SELECT count(*) FROM metric") == [(2 * 400,)]


def test_a_checkpoint_that_a_killed_worker_did_not_remove_is_removed(tmp_path):
    plan, path = small_plan(tmp_path, [1e-3]), tmp_path / "a.db"
    left = path.with_suffix(".checkpoints") / f"{plan.runs[0].run.key[:12]}-7.pt.previous"
    left.parent.mkdir()
    left.touch()
    assert launch(plan, path)[0].counts == {"complete": 1}
    assert not left.exists()


def test_a_second_interrupt_kills(tmp_path, monkeypatch):
    deaf = (
        "def train(self, job, context):\n    context.emit[0]('start', step=0)\n    time.sleep(60)\n"
    )
    use_worker(monkeypatch, "deaf", tmp_path, deaf)
    plan, path = small_plan(tmp_path, [1e-3]), tmp_path / "a.db"
    first = Launcher(plan, path)
    wait_for(lambda: rows(path, "SELECT 1 FROM attempt WHERE started IS NOT NULL"))
    (worker,) = workers(first.pid)
    first.kill(signal.SIGINT)
    wait_for(lambda: "again to kill" in first.output.read_text())
    time.sleep(1.5 * pool.ECHO)
    first.kill(signal.SIGINT)
    assert first.wait(3) == 130
    assert not Path(f"/proc/{worker}").exists()
    assert rows(path, "SELECT status, error FROM attempt") == [
        ("stopped", "it was stopped before it could write a checkpoint")
    ]


def test_a_run_that_is_stopped_during_set_up_says_so(tmp_path, monkeypatch):
    late = "def setup(self, *of):\n    time.sleep(60)\n"
    use_worker(monkeypatch, "late", tmp_path, late)
    monkeypatch.setenv("STUB_HEARTBEAT", "0.05")
    plan, path = small_plan(tmp_path, [1e-3]), tmp_path / "a.db"
    first = Launcher(plan, path)
    wait_for(lambda: rows(path, "SELECT 1 FROM attempt WHERE heartbeat > 0"))
    first.kill(signal.SIGINT)
    assert first.wait(5) == 130
    assert rows(path, "SELECT status, error FROM attempt") == [
        ("stopped", "it was stopped during its set-up, before it had trained a step")
    ]


def test_the_echo_of_a_signal_kills_nothing(tmp_path, monkeypatch):
    """GNU `timeout` sends SIGTERM to its child, then to the child's process group."""
    plan, path = small_plan(tmp_path, [1e-3], steps=400), tmp_path / "a.db"
    first = at_work(plan, path, monkeypatch)
    first.kill(signal.SIGTERM)
    time.sleep(pool.ECHO / 100)
    first.kill(signal.SIGTERM)
    assert first.wait() == 143
    assert rows(path, "SELECT kind FROM artifact") == [("checkpoint",)]


def test_what_a_worker_saved_after_its_launcher_died_is_gone_on_from(tmp_path, monkeypatch):
    plan, path = small_plan(tmp_path, [1e-3], steps=400), tmp_path / "a.db"
    first = at_work(plan, path, monkeypatch)
    (worker,) = workers(first.pid)
    first.kill(signal.SIGKILL)
    first.wait()
    wait_for(lambda: not Path(f"/proc/{worker}").exists(), 20)
    assert rows(path, "SELECT 1 FROM artifact") == [], "nobody has read the worker's last words"
    monkeypatch.setenv("STUB_DELAY", "0")
    assert launch(plan, path)[0].counts == {"complete": 1}
    ((step,),) = rows(path, "SELECT resumed_step FROM attempt WHERE status = 'complete'")
    assert step > 0
    assert rows(path, "SELECT count(*) FROM metric") == [(2 * 400,)]
    assert not list(path.with_suffix(".journals").glob("*.owner"))


def test_an_interrupt_at_the_terminal_leaves_workers_to_the_launcher(tmp_path, monkeypatch):
    """Ctrl-C reaches the foreground process group, so workers must not be in it."""
    plan, path = small_plan(tmp_path, [1e-3], steps=400), tmp_path / "a.db"
    first = at_work(plan, path, monkeypatch)
    (worker,) = workers(first.pid)
    assert os.getpgid(worker) != first.pid == os.getpgid(first.pid)
    os.killpg(first.pid, signal.SIGINT)
    assert first.wait() == 130
    assert rows(path, "SELECT status FROM run") == [("stopped",)]
    assert all(
        "Interrupt" not in (error or "") for (error,) in rows(path, "SELECT error FROM attempt")
    )


def test_workers_end_when_the_launcher_is_killed(tmp_path, monkeypatch):
    plan, path = small_plan(tmp_path, [1e-3], steps=10_000), tmp_path / "a.db"
    first = at_work(plan, path, monkeypatch)
    (worker,) = workers(first.pid)
    first.kill(signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    wait_for(lambda: not Path(f"/proc/{worker}").exists(), 5)

    with store.open(str(path)) as db:
        (study,) = status.studies(db, "stub")
    assert [run.dead for run in study.working] == [True] and study.seconds_left is None


def test_two_launchers_share_a_study(tmp_path, monkeypatch):
    plan, path = small_plan(tmp_path, [1e-3, 2e-3], seeds=6), tmp_path / "a.db"
    monkeypatch.setenv("STUB_DELAY", "0.02")
    both = [Launcher(plan, path), Launcher(plan, path)]
    assert [each.wait() for each in both] == [0, 0]
    assert rows(path, "SELECT status, count(*) FROM attempt GROUP BY status") == [("complete", 12)]
    shares = rows(path, "SELECT count(*) FROM attempt GROUP BY owner")
    assert len(shares) == 2 and min(shares)[0] >= 3
    assert rows(path, "SELECT count(*) FROM metric") == [(12 * 2 * 6,)]


def test_a_launcher_takes_over_what_another_leaves(tmp_path, monkeypatch):
    """An idle launcher waits for the other's run, and trains it when the other was killed."""
    plan, path = small_plan(tmp_path, [1e-3], steps=60), tmp_path / "a.db"
    first = at_work(plan, path, monkeypatch)
    second = Launcher(plan, path)
    wait_for(lambda: len(list((tmp_path / "a.journals").glob("*.owner"))) == 2)
    time.sleep(0.2)
    first.kill(signal.SIGKILL)
    first.wait()
    assert second.wait() == 0
    assert rows(path, "SELECT count(*) FROM metric") == [(2 * 60,)]
    assert rows(path, "SELECT status FROM attempt ORDER BY n") == [("stopped",), ("complete",)]
    assert rows(path, "SELECT count(DISTINCT owner) FROM attempt") == [(2,)]


def test_a_worker_is_free_when_it_reports_it_not_when_its_journal_ends(tmp_path, monkeypatch):
    tidy = "def train(self, job, context):\n    super().train(job, context)\n    time.sleep(0.3)\n"
    use_worker(monkeypatch, "tidy", tmp_path, tidy)
    plan, path = small_plan(tmp_path, [1e-3, 2e-3]), tmp_path / "a.db"
    assert launch(plan, path)[0] == Outcome({"complete": 2}, 0)
    assert rows(path, "SELECT count(*) FROM attempt") == [(2,)]


class Stops(InProcessExecutor):
    """Ends the first four jobs: before they have begun, or at their first step."""

    begun, evicted, left = False, False, 4

    def submit(self, slot, job, journals):
        if not self.left:
            return super().submit(slot, job, journals)
        self.left, handle = self.left - 1, next(self._handles)
        self._jobs[handle] = slot, threading.Event()
        if self.begun:
            with journal.Journal(journals[0]) as written:
                written.append("start", step=0, device="cpu", threads=1)
        self._ended.put(Ended(handle, "stopped", "its worker ended", evicted=self.evicted))
        return handle


@pytest.mark.parametrize(
    ("begun", "evicted", "tries"),
    [
        (False, False, ["stopped"] * 4 + ["complete"]),
        (False, True, ["stopped"] * 3 + ["failed"]),
        (True, False, ["stopped"] * 3 + ["failed"]),
    ],
    ids=["no worker starts", "its machine is taken", "it had begun"],
)
def test_stops_count_against_a_run_unless_its_worker_did_not_start(
    tmp_path, monkeypatch, begun, evicted, tries
):
    monkeypatch.setattr(Stops, "begun", begun)
    monkeypatch.setattr(Stops, "evicted", evicted)
    plan, path = small_plan(tmp_path, [1e-3]), tmp_path / "a.db"

    def executor():
        return Stops([Device("cpu", 8 << 30, 1)], stub_worker.Stub)

    assert launch(plan, path, executor=executor)[0].counts == {tries[-1]: 1}
    assert [status for status, _ in attempts(path, 1e-3)] == tries


def test_no_worker_starts(tmp_path, monkeypatch):
    broken = "raise OSError('libcuda is not what it was')\n"
    use_worker(monkeypatch, "broken", tmp_path, setup=broken)
    plan, path = small_plan(tmp_path, [1e-3, 2e-3]), tmp_path / "a.db"
    with pytest.raises(AblateError, match="libcuda is not what it was"):
        launch(plan, path)
    assert {status for (status,) in rows(path, "SELECT status FROM run")} <= {
        "planned",
        "stopped",
    }, "no run is to blame"
