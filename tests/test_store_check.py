"""What `ablate db check` finds though every query works: a wrong index, an open journal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from store_plans import claim_next, execute, fresh, names, plan_of, rows, train, trained

from ablate import store
from ablate.errors import AblateError
from ablate.journal import Journal
from ablate.store import owners, register
from ablate.store.check import check
from ablate.store.ingest import ingest
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
