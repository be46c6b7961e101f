"""Several processes on one database: create, claim, ingest, write, read, and be killed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from simultaneous import CONTEXT, together
from store_plans import claim_next, execute, fresh, names, plan_of, rows, train

from ablate import store
from ablate.journal import Journal
from ablate.store import owners, records, register, schema, sqlite
from ablate.store.ingest import ingest

# -- creation --------------------------------------------------------------------------------------


def _create(path: str, name: str) -> int:
    with store.open(path, create=True) as db, db.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO series (name, unit, goal) VALUES (?, '', '')", (name,)
        )
    return os.getpid()


def test_eight_processes_create_at_once(tmp_path: Path) -> None:
    for attempt in range(2):
        path = tmp_path / f"{attempt}.db"
        pids = together(_create, [(str(path), f"series {i}") for i in range(8)])
        assert len(set(pids)) == 8
        assert rows(path, "SELECT count(*) FROM series") == [(8,)]
        assert rows(path, "SELECT version_num FROM ablate_version") == [(schema.HEAD,)]
    # no lock, no side file left
    assert names(tmp_path) == [f"{attempt}.db" for attempt in range(2)]


# -- claiming --------------------------------------------------------------------------------------


def _claim_all(path: str, study_id: int) -> list[int]:
    with store.open(path, create=True) as db, owners.Owner.here(db) as owner:
        claimed = []
        while claims := claim_next(db, study_id, owner, 1):
            claimed += [claim.run_id for claim in claims]
            train(claims[0])
            ingest(db, claims[0].attempt_id)
        return claimed


def test_no_two_claimers_get_the_same_run(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with fresh(path) as db:
        study_id = register.register(db, plan_of(seeds=range(30)))
    shares = together(_claim_all, [(str(path), study_id)] * 4)
    assert sorted(run for share in shares for run in share) == list(range(1, 61))
    assert sum(bool(share) for share in shares) > 1
    assert rows(
        path, "SELECT count(*), count(DISTINCT run_id) FROM attempt WHERE status = 'complete'"
    ) == [(60, 60)]
    assert rows(path, "SELECT count(*) FROM metric") == [(60 * 6,)]


# -- ingesting -------------------------------------------------------------------------------------

LINES, POINTS = 300, 20  # of one journal: lines, and points a line


def _write_journal(path: Path, pause: float) -> None:
    with Journal(path) as journal:
        journal.append("start", step=0)
        for line in range(LINES):
            steps = list(range(line * POINTS, (line + 1) * POINTS))
            journal.append("metrics", steps=steps, series={"loss": [step / 7 for step in steps]})
            time.sleep(pause)
        journal.append("end", status="complete", step=LINES * POINTS)


def _ingest_until_end(path: str, attempt_id: int) -> int:
    """Ingest until the run is complete; how many events this process got."""
    events = 0
    with store.open(path, create=True) as db:
        while True:
            events += len(ingest(db, attempt_id))
            if rows(Path(path), "SELECT status FROM attempt WHERE id = ?", attempt_id) != [
                ("running",)
            ]:
                return events


def _claimed(path: Path) -> records.Claim:
    with fresh(path) as db:
        study_id = register.register(db, plan_of())
        claim = claim_next(db, study_id, owners.Owner("h", 1, "x"), 1)[0]
    # a second write of the same point would be an update: no row may ever be written twice
    execute(
        path,
        "CREATE TRIGGER twice BEFORE UPDATE ON metric BEGIN SELECT RAISE(ABORT, 'a point came"
        " twice'); END",
    )
    return claim


def _expect_every_point_once(path: Path) -> None:
    stored = rows(path, "SELECT step, value FROM metric ORDER BY step")
    assert stored == [(step, step / 7) for step in range(LINES * POINTS)]


def test_concurrent_ingesters_get_every_event_once_between_them(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    claim = _claimed(path)
    writer = CONTEXT.Process(target=_write_journal, args=(claim.journal, 0.005))
    writer.start()
    shares = together(_ingest_until_end, [(str(path), claim.attempt_id)] * 4)
    writer.join()
    assert sum(shares) == LINES + 2
    _expect_every_point_once(path)


def test_killed_ingester_doubles_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    claim = _claimed(path)
    writer = CONTEXT.Process(target=_write_journal, args=(claim.journal, 0.01))
    writer.start()
    offsets, kills = [0], 0
    while writer.is_alive():
        ingester = CONTEXT.Process(target=_ingest_until_end, args=(str(path), claim.attempt_id))
        ingester.start()
        while (
            ingester.is_alive()
            and rows(path, "SELECT journal_offset FROM attempt")[0][0] == offsets[-1]
        ):
            time.sleep(0.01)
        ingester.join(random.uniform(0, 0.05))
        kills += ingester.is_alive()
        ingester.kill()
        ingester.join()
        offsets += rows(path, "SELECT journal_offset FROM attempt")[0]
    # they did get on, and were killed on their way
    assert kills and len(set(offsets)) > 2 and offsets == sorted(offsets)
    _ingest_until_end(str(path), claim.attempt_id)
    _expect_every_point_once(path)


# -- load ------------------------------------------------------------------------------------------

BATCH = 50


def _write_for(path: str, seconds: float) -> tuple[int, int]:
    """Write and ingest as fast as possible; return the run and its acknowledged points."""
    with store.open(path, create=True) as db, owners.Owner.here(db) as owner:
        claim = claim_next(db, 1, owner, 1)[0]
        end = time.monotonic() + seconds
        with Journal(claim.journal) as journal:
            step = 0
            while time.monotonic() < end:
                journal.append(
                    "metrics", steps=list(range(step, step + BATCH)), series={"loss": [1.0] * BATCH}
                )
                step += BATCH
                assert ingest(db, claim.attempt_id)
            journal.append("end", status="complete", step=step)
        ingest(db, claim.attempt_id)
        return claim.run_id, step


def _read_for(path: str, seconds: float) -> int:
    """Read all the time; every state seen must be whole."""
    reads, seen = 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with store.open(path) as db, db.read() as connection:
            sql = "SELECT count(*) FROM curves GROUP BY run"
            counts, again = (connection.exec_driver_sql(sql).scalars().all() for _ in range(2))
        assert counts == again and all(count % BATCH == 0 for count in counts)
        assert sum(counts) >= seen
        seen = sum(counts)
        reads += 1
    return reads


def _later(delay: float, call: Callable[..., Any], *arguments: Any) -> Any:
    time.sleep(delay)
    return call(*arguments)


def test_eight_writers_and_two_readers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with fresh(path) as db:
        register.register(db, plan_of(seeds=range(4)))
    # some come, some go
    calls: list[tuple[Any, ...]] = [(i / 10, _write_for, str(path), 2.0 + i / 5) for i in range(8)]
    calls += [(0.0, _read_for, str(path), 3.0)] * 2
    *written, reads, more = together(_later, calls)
    assert len(written) == 8 and min(written)[1] > 0 and reads > 0 and more > 0
    assert rows(path, "SELECT run_id, count(*) FROM metric GROUP BY run_id") == sorted(written)
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert names(tmp_path) == ["x.db", "x.journals"]


def _on_a_network(mounts: Path, call: Callable[..., Any], *arguments: Any) -> Any:
    sqlite.MOUNTS = mounts
    return call(*arguments)


def test_without_a_log_nothing_is_lost_either(tmp_path: Path) -> None:
    """As on a network file system, whose locks work: no promise rests on the journal mode."""
    path, mounts = tmp_path / "x.db", tmp_path / "mounts"
    with fresh(path) as db:
        register.register(db, plan_of(seeds=range(4)))
    mounts.write_text(f"server:/home {tmp_path} nfs4 rw 0 0\n")
    calls = [(mounts, _write_for, str(path), 1.0)] * 3 + [(mounts, _read_for, str(path), 1.0)]
    *written, reads = together(_on_a_network, calls)
    assert min(written)[1] > 0 and reads > 0
    assert rows(path, "SELECT run_id, count(*) FROM metric GROUP BY run_id") == sorted(written)
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.slow
def test_eight_writers_for_a_minute(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with fresh(path) as db:
        register.register(db, plan_of(seeds=range(4)))
    written = together(_write_for, [(str(path), 60.0)] * 8, timeout=120)
    assert rows(path, "SELECT run_id, count(*) FROM metric GROUP BY run_id") == sorted(written)
