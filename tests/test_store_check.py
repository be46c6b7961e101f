"""What `ablate db check` finds though every query works: a wrong index, an open journal."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from store_plans import claim_next, execute, fresh, names, plan_of, rows, train, trained

from ablate import metrics, store
from ablate.errors import AblateError
from ablate.journal import Journal
from ablate.plan import ROLES
from ablate.store import owners, register, runs
from ablate.store.check import check
from ablate.store.ingest import ingest
from ablate.store.records import ATTEMPT_STATUS, RUN_STATUS
from ablate.store.sqlite import Damaged


def test_damage_outside_all_queries_is_reported_and_not_repaired(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with fresh(path) as db:
        trained(db, plan_of())
    ((key,),) = rows(path, "SELECT key FROM run WHERE id = 1")
    data = path.read_bytes()
    assert data.count(key.encode()) == 2, "once in the table, once in its index"
    path.write_bytes(data.replace(key.encode(), key[::-1].encode(), 1))
    before = path.read_bytes()
    with store.open(str(path)) as db:
        for repair in (False, True):
            with pytest.raises(Damaged, match="index"):
                check(db, repair=repair)
    assert path.read_bytes() == before


def test_a_journal_that_is_still_written_is_left_alone(tmp_path: Path) -> None:
    """A backup was put in the place of a database whose worker still trains."""
    with fresh(tmp_path / "x.db") as db:
        study_id = register.register(db, plan_of())
        with owners.Owner.here(db) as owner:
            (claim,) = claim_next(db, study_id, owner, 1)
        execute(db.path, "DELETE FROM attempt")
        execute(db.path, "UPDATE run SET status = 'planned'")
        train(claim, status=None)
        with Journal(claim.journal):
            assert check(db, repair=True) == []
            assert rows(db.path, "SELECT count(*) FROM attempt") == [(0,)]
        assert [finding.repair for finding in check(db, repair=True)] == ["ingested"]
        assert rows(db.path, "SELECT status FROM attempt") == [("dead",)] and names(
            db.journals
        ) == [claim.journal.name]


def test_a_pipe_in_place_of_a_journal_blocks_nobody(tmp_path: Path) -> None:
    with fresh(tmp_path / "x.db") as db:
        study_id = register.register(db, plan_of())
        with owners.Owner.here(db) as owner:
            (claim,) = claim_next(db, study_id, owner, 1)
        claim.journal.unlink(missing_ok=True)
        claim.journal.parent.mkdir(exist_ok=True)
        os.mkfifo(claim.journal)
        with pytest.raises(AblateError, match="not a regular file"):
            owners.running_here(db)
        with pytest.raises(AblateError, match="not a regular file"):
            ingest(db, claim.attempt_id)


@pytest.mark.parametrize("goal", metrics.GOALS.values())
def test_every_role_and_status_that_the_store_writes_is_sound(tmp_path: Path, goal: str) -> None:
    path = tmp_path / "x.db"
    made = plan_of(seeds=range(5), metric="loss" if goal == "min" else "accuracy")
    roles = [ROLES[k % len(ROLES)] for k in range(len(made.runs))]
    made = replace(
        made,
        study=replace(made.study, goal=goal),
        runs=tuple(replace(one, role=role) for one, role in zip(made.runs, roles, strict=True)),
    )
    ends = ("complete", "diverged", "failed", "oom", "timeout", "stopped", None)
    with fresh(path) as db, owners.Owner.here(db) as owner:
        study_id = register.register(db, made)
        for claim, status in zip(claim_next(db, study_id, owner, len(ends)), ends, strict=True):
            train(claim, status=status)
            ingest(db, claim.attempt_id)
            if status is None:
                runs.finish(db, claim.attempt_id, "dead", "its worker was killed")
        (again,) = runs.claim(db, study_id, owner, [1], keep="final")  # which it has not kept
        train(again)
        ingest(db, again.attempt_id)
        others = [run.run_id for run in runs.candidates(db, study_id, owner) if not run.failures]
        assert runs.claim(db, study_id, owner, others[-1:])
        for written, table, column in (
            (ROLES, "member", "role"),
            (RUN_STATUS, "run", "status"),
            (ATTEMPT_STATUS, "attempt", "status"),
        ):
            found = rows(path, f"SELECT DISTINCT {column} FROM {table}")
            assert {value for (value,) in found} == set(written)
        assert check(db) == []
