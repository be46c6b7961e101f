"""Who looks at a study while it runs disturbs nothing, and never sees half a run."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launch_helpers import Launcher, content, rows, small_plan, wait_for

import ablate
from ablate import report, store
from ablate.store import query

RUNS, STEPS, SERIES = 8, 20, 2


pytestmark = pytest.mark.usefixtures("stub")


def look(path: Path) -> int:
    """Look at the database in several ways; how many runs are complete, each of them whole."""
    frame = ablate.load("stub", db=str(path))
    assert frame[frame.status == "complete"].metric.notna().all()
    with store.open(str(path)) as db:
        report.answer(report.gather(db, "stub"))
        _, found = query.run(
            db,
            "SELECT count(*), sum(EXISTS (SELECT 1 FROM final WHERE final.run_id = runs.run AND"
            " name = 'accuracy')) FROM runs JOIN metric ON run_id = run WHERE status = 'complete'"
            " GROUP BY run",
        )
    assert set(map(tuple, found)) <= {(STEPS * SERIES,) * 2}
    return len(found)


def heeds_ctrl_c() -> None:
    """Also where these tests themselves were started in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_readers_change_nothing_and_see_no_half_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, path, alone = (
        small_plan(tmp_path, [1e-3, 2e-3], RUNS // 2, STEPS),
        tmp_path / "a.db",
        tmp_path / "alone.db",
    )
    assert Launcher(plan, alone).wait() == 0
    assert look(alone) == RUNS
    monkeypatch.setenv("STUB_DELAY", "0.035")
    study, shown = Launcher(plan, path), tmp_path / "shown"
    wait_for(lambda: rows(path, "SELECT 1 FROM metric"))
    command = [sys.executable, "-m", "ablate", "status", "--watch", "--db", str(path)]
    terminal = {**os.environ, "FORCE_COLOR": "1"}
    with (
        contextlib.closing(
            sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        ) as browser,
        shown.open("w") as out,
        subprocess.Popen(
            command, stdout=out, stderr=out, env=terminal, preexec_fn=heeds_ctrl_c
        ) as watch,
        contextlib.ExitStack() as stack,
    ):
        stack.callback(watch.kill)
        browser.execute("BEGIN")
        seen = browser.execute("SELECT count(*) FROM metric").fetchone()  # and leaves its page open
        looks = [look(path)]
        while os.waitid(os.P_PID, study.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            looks.append(look(path))
            time.sleep(0.1)
        assert study.wait() == 0
        assert browser.execute("SELECT count(*) FROM metric").fetchone() == seen, (
            "a page is of one moment"
        )
        wait_for(lambda: "stub" in shown.read_text())
        watch.send_signal(signal.SIGINT)
        watch.wait(20)
    assert watch.returncode == 0 and "Traceback" not in shown.read_text()
    assert looks == sorted(looks)
    assert looks[0] < RUNS, "the study ended before the readers began"
    assert content(path) == content(alone)
    assert rows(path, "SELECT status, count(*) FROM attempt GROUP BY status") == [
        ("complete", RUNS)
    ]
