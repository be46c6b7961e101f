"""What `ablate status` knows, from the database alone."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from cli_helpers import Run
from launch_helpers import rows, small_plan
from report_study import column
from store_plans import claim_next

from ablate import store
from ablate.board import page, reading
from ablate.export import runs as exported_runs
from ablate.journal import Journal
from ablate.report import explore, gather
from ablate.store import status
from ablate.store.ingest import ingest
from ablate.store.owners import Owner
from ablate.store.register import register


def test_status_of_a_running_and_then_ended_run(tmp_path, ablate: Run):
    plan, path = small_plan(tmp_path, [1e-3, 2e-3], seeds=2, steps=100), tmp_path / "a.db"
    with store.open(str(path), create=True) as db:
        study_id = register(db, plan)
        with Owner.here(db) as owner:
            (claimed,) = claim_next(db, study_id, owner, 1)
            (before,) = status.studies(db)
            assert [(run.step, run.dead, run.seconds_left) for run in before.working] == [
                (0, False, None)
            ]
            with Journal(claimed.journal) as journal:
                journal.append("start", step=0, device="cuda:1", threads=1)
                journal.append(
                    "metrics",
                    steps=[10, 20],
                    series={"train_loss": [4.0, 3.0], "tokens_per_second": [1.0, 640.0]},
                )
                journal.append("metrics", steps=[25], series={"loss": [3.5]})
                ingest(db, claimed.attempt_id)
                (study,) = status.studies(db, "stub")
        (run,) = study.working
        assert (run.cell, run.seed, run.attempt, run.device) == ("lr=0.001", 0, 1, "cuda:1")
        assert (run.step, run.steps, run.loss, run.tokens_per_second, run.dead) == (
            20,
            100,
            3.0,
            640.0,
            False,
        )
        assert run.seconds_left == pytest.approx(80 * 64 / 640)
        assert study.survey.counts == {"planned": 3, "running": 1} and study.survey.done == 0
        assert study.seconds_left == pytest.approx((3 * 100 + 80) * 64 / 640)

        (study,) = status.studies(db)
        assert [(run.dead, run.seconds_left) for run in study.working] == [
            (True, None)
        ] and study.seconds_left is None
        assert status.studies(db, "another") == []
        _, shown, _ = ablate("status", "--db", str(path))
    assert "dead: its launcher and worker no longer run" in shown and "cuda:1" not in shown
    assert rows(path, "SELECT status FROM run ORDER BY id") == [
        ("running",),
        ("planned",),
        ("planned",),
        ("planned",),
    ]


def test_runs_in_the_queue_of_a_cluster_are_no_running_ones(tmp_path, ablate: Run):
    plan, path = small_plan(tmp_path, [1e-3, 2e-3], seeds=10, steps=100), tmp_path / "a.db"
    with store.open(str(path), create=True) as db, Owner.here(db, on="slurm/stub") as owner:
        study_id = register(db, plan)
        (claimed, *_) = claim_next(db, study_id, owner, 18)
        with Journal(claimed.journal) as journal:
            journal.append("start", step=0, device="cpu", threads=1)
        ingest(db, claimed.attempt_id)
        (study,) = status.studies(db)
        shown = ablate("status", "stub", "--db", str(path))[1]
        begun = status.studies(db)[0].working[0].run
        of_runs = {run: ablate("show", str(run), "--db", str(path))[1] for run in (begun, 5)}
        (course,) = reading.courses(db, ["stub"])
        sections = page.sections(reading.detail(db, course))
        explored = explore.without_curves(gather(db, "stub"), {})["runs"]
        exported = exported_runs.read(db, "stub", "compare")
    assert study.survey.counts == {"planned": 2, "running": 1, "queued": 17}
    assert f"Run {begun}: running" in of_runs[begun] and "Run 5: queued" in of_runs[5]
    assert course.parts == {"training": 1, "queued": 17, "waiting": 2}
    assert "queued" in sections["cells"] and sections["training"].count("<tr") == 2
    assert Counter(column(explored["status"])) == study.survey.counts
    assert exported.waiting == 19 and len(exported.runs) == 1
    lines = [line.split() for line in shown.splitlines()]
    heading, row = next((line, lines[k + 2]) for k, line in enumerate(lines) if "queued" in line)
    assert dict(zip(heading, row, strict=False))["queued"] == "17"
    listed = sum("in a queue" in line for line in shown.splitlines())
    assert listed < 8 and "further" in shown


def test_running_losses_have_the_digits_that_seeds_leave(tmp_path, ablate: Run):
    """The losses of two complete seeds deviate by 0.14 in one cell and 0.28 in the other."""
    plan, path = small_plan(tmp_path, [1e-3, 2e-3], seeds=3, steps=100), tmp_path / "a.db"
    with store.open(str(path), create=True) as db, Owner.here(db) as owner:
        study_id = register(db, plan)
        for loss in (2.0, 3.0, 2.2, 3.4, None):
            (claimed,) = claim_next(db, study_id, owner, 1)
            with Journal(claimed.journal) as journal:
                journal.append("start", step=0, device="cpu", threads=1)
                journal.append("metrics", steps=[20], series={"train_loss": [2.34567]})
                if loss is not None:
                    journal.append("final", values=[["loss", 0, loss]])
                    journal.append("end", status="complete", step=100, device_seconds=1.0)
            ingest(db, claimed.attempt_id)
        shown = ablate("status", "--db", str(path))[1]
        (study,) = status.studies(db)
    assert [run.loss for run in study.working] == [2.34567] and study.places == 2
    assert "2.35" in shown and "2.3457" not in shown


def test_the_time_left_of_scripts_is_that_of_complete_runs(tmp_path):
    """They tell no tokens a second."""
    plan, path = small_plan(tmp_path, [1e-3, 2e-3], seeds=2, steps=100), tmp_path / "a.db"
    with store.open(str(path), create=True) as db, Owner.here(db) as owner:
        study_id = register(db, plan)
        claims = claim_next(db, study_id, owner, 3)
        for claimed, seconds in zip(claims, (10.0, 20.0, None), strict=True):
            with Journal(claimed.journal) as journal:
                journal.append("start", step=0, device="cpu", threads=1)
                journal.append("metrics", steps=[50], series={"loss": [3.0]})
                if seconds:
                    journal.append("final", values=[["loss", 0, 3.0]])
                    journal.append("end", status="complete", step=100, device_seconds=seconds)
            ingest(db, claimed.attempt_id)
        (study,) = status.studies(db)
        # half a run and a whole one, of 15 s, on one device
        assert study.seconds_left == pytest.approx(1.5 * 15)


def test_checkpoints_are_those_that_are_there_the_newest_first(tmp_path):
    plan, path = small_plan(tmp_path, [1e-3, 2e-3], steps=100), tmp_path / "a.db"
    with store.open(str(path), create=True) as db, Owner.here(db) as owner:
        study_id = register(db, plan)
        first, second = claim_next(db, study_id, owner, 2)
        db.checkpoints.mkdir()
        files = [db.checkpoints / f"0123456789ab-{n}.pt" for n in (1, 2, 3)]  # old, new, gone
        for claimed in (first, second):
            with Journal(claimed.journal) as journal:
                journal.append("start", step=0)
                for k, file in enumerate(files):
                    journal.append("checkpoint", step=k, path=f"/where/it/was/{file.name}")
                if claimed is second:
                    journal.append("end", status="complete", step=100)
            ingest(db, claimed.attempt_id)
        files[1].touch()
        files[0].touch()
        os.utime(files[0], (1, 1))
        assert status.checkpoints(db, study_id) == {first.run.key: str(files[1])}, (
            "a complete run needs none"
        )
        # a kill between the two renames of a checkpoint's writing leaves this
        files[1].rename(f"{files[1]}.previous")
        assert status.checkpoints(db, study_id) == {first.run.key: str(files[1])}


def test_checkpoints_of_complete_runs_alone_and_of_none_are_unneeded(tmp_path):
    """A worker that is killed −9 before it removes them leaves such files."""
    plan, path = small_plan(tmp_path, [1e-3, 2e-3, 3e-3], steps=100), tmp_path / "a.db"
    with store.open(str(path), create=True) as db, Owner.here(db) as owner:
        study_id = register(db, plan)
        assert status.unneeded_checkpoints(db) == []
        complete, stopped, running = claim_next(db, study_id, owner, 3)
        db.checkpoints.mkdir()
        files = {
            name: db.checkpoints / name
            for name in (
                "aaaaaaaaaaaa-1.pt",  # of the complete run alone
                "aaaaaaaaaaaa-1.pt.previous",
                "bbbbbbbbbbbb-1.pt",  # of a pack of it and the stopped one
                "cccccccccccc-1.pt.tmp",  # that no journal names
                f"{running.run.key[:12]}-1.pt.tmp",  # that is being written
                "notes.txt",
            )
        }
        for file in files.values():
            file.touch()
        named = {complete: "ab", stopped: "b"}
        for claimed, end in ((complete, "complete"), (stopped, "stopped")):
            with Journal(claimed.journal) as journal:
                journal.append("start", step=0)
                for letter in named[claimed]:
                    journal.append("checkpoint", step=1, path=f"/was/{12 * letter}-1.pt")
                journal.append("end", status=end, step=100)
            ingest(db, claimed.attempt_id)
        unneeded = {"aaaaaaaaaaaa-1.pt", "aaaaaaaaaaaa-1.pt.previous", "cccccccccccc-1.pt.tmp"}
        assert {file.name for file in status.unneeded_checkpoints(db)} == unneeded
