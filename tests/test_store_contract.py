"""The contract of `ablate.store`: each sentence of its docstring, and the tests that hold it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy.exc import IntegrityError
from store_plans import claim_next, do_all, execute, fresh, plan_of, rows, train

from ablate import store
from ablate.store import Database, merge, owners, register, runs
from ablate.store.forget import forget
from ablate.store.ingest import ingest

TESTS = Path(__file__).parent
HELD_BY = {
    "worker": ["contract::test_a_worker_needs_no_database"],
    "owner": [
        "processes::test_no_two_claimers_get_the_same_run",
        "runs::test_a_run_has_one_attempt_of_a_kind_whatever_the_code_does",
        "runs::test_run_whose_worker_still_writes_is_not_taken_over",
    ],
    "result": [
        "runs::test_a_run_has_one_attempt_of_a_kind_whatever_the_code_does",
        "runs::test_run_that_fails_when_done_again_keeps_its_result",
    ],
    "ingest-once": [
        "processes::test_concurrent_ingesters_get_every_event_once_between_them",
        "ingest::test_rows_and_offset_are_one_transaction",
        "ingest::test_ingester_that_read_the_same_lines_gets_nothing",
    ],
    "fenced": [
        "runs::test_silent_owner_on_another_host_loses_its_runs_after_a_lease",
        "runs::test_runs_of_an_ended_owner_are_taken_over_with_what_they_wrote",
        "contract::test_what_a_closed_attempt_writes_is_not_ingested",
    ],
    "decision": ["decisions::test_what_is_stored_is_read_and_the_first_one_stays"],
    "transaction": ["open::test_write_transaction_locks_at_once_and_rolls_back"],
    "register": [
        "runs::test_registering_again_changes_nothing",
        "runs::test_changed_study_is_a_revision_and_loses_no_run",
        "contract::test_a_call_that_fails_at_its_end_changes_nothing",
    ],
    "claim": [
        "runs::test_claims_come_in_plan_order_once_each",
        "contract::test_a_call_that_fails_at_its_end_changes_nothing",
    ],
    "ingest": [
        "ingest::test_a_pack_is_one_transaction",
        "ingest::test_a_damaged_journal_blocks_no_other",
    ],
    "merge": [
        "merge::test_merge_is_idempotent_and_commutative_and_loses_nothing",
        "merge::test_studies_that_measure_shared_runs_otherwise_are_not_merged",
    ],
    "forget": [
        "forget::test_a_forgotten_study_leaves_nothing_but_what_others_share",
        "contract::test_a_call_that_fails_at_its_end_changes_nothing",
    ],
    "schema": [
        "processes::test_eight_processes_create_at_once",
        "migrations::test_eight_processes_upgrade_an_old_database_once",
        "migrations::test_upgrade_keeps_every_child_row",
        "migrations::test_failed_migration_leaves_the_old_database",
        "migrations::test_past_schemas_open_with_their_numbers_unchanged",
    ],
    "snapshot": [
        "open::test_reading_sees_one_state_and_cannot_write",
        "shared::test_what_a_writer_may_have_mixed_up_is_no_answer",
    ],
    "read-only": [
        "open::test_opening_to_read_changes_nothing",
        "permissions::test_a_stranger_writes_nothing_and_may_take_a_copy",
        "query::test_query_cannot_write_attach_or_set",
    ],
    "numbers": ["ingest::test_values_come_back_bit_by_bit"],
    "fields": [
        "fields::test_a_new_field_is_a_column_once_a_run_has_it",
        "fields::test_numbers_of_the_view_are_exactly_those_of_the_run",
    ],
    "history": [
        "ingest::test_start_deletes_points_beyond_its_step",
        "runs::test_worker_that_died_leaves_its_history",
        "thin::test_training_curves_are_thinned_and_all_else_is_whole",
    ],
    "kill": [
        "processes::test_killed_ingester_doubles_and_loses_nothing",
        "processes::test_eight_writers_and_two_readers_lose_nothing",
        "open::test_a_reader_finds_what_was_there_before_a_commit_that_was_killed",
    ],
    "torn-line": [
        "ingest::test_piecewise_and_torn_lines",
        "ingest::test_a_full_disk_takes_in_none_and_then_all",
    ],
    "stale": [
        "runs::test_runs_of_an_ended_owner_are_taken_over_with_what_they_wrote",
        "runs::test_silent_owner_on_another_host_loses_its_runs_after_a_lease",
        "runs::test_the_heartbeat_in_the_journal_keeps_a_run",
        "runs::test_last_output_of_an_ended_worker_is_no_heartbeat",
    ],
    "covered": ["runs::test_a_checkpoint_is_covered_where_all_points_before_it_are_stored"],
    "at-rest": ["open::test_file_at_rest_is_one_file_in_delete_mode"],
}


def test_every_sentence_of_the_contract_is_held_by_tests() -> None:
    assert store.__doc__
    sentences = re.findall(r"^- `([\w-]+)`: ", store.__doc__, re.M)
    assert sentences == list(HELD_BY)
    for names in HELD_BY.values():
        for name in names:
            file, test = name.split("::")
            source = (TESTS / f"test_store_{file}.py").read_text(encoding="utf-8")
            assert f"\ndef {test}(" in source, name


def test_a_worker_needs_no_database() -> None:
    code = (
        "import sys, ablate.launch.worker, ablate.kinds.transformer, ablate.train.engine\n"
        "print(sorted({'sqlalchemy', 'sqlite3', 'ablate.store'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("status", ["failed", "stopped", "oom", "dead"])
def test_what_a_closed_attempt_writes_is_not_ingested(tmp_path: Path, status: str) -> None:
    with fresh(tmp_path / "x.db") as db, owners.Owner.here(db) as owner:
        (claim,) = claim_next(db, register.register(db, plan_of()), owner, 1)
        assert runs.finish(db, claim.attempt_id, status)
        train(claim)
        assert ingest(db, claim.attempt_id) == []
        assert not runs.finish(db, claim.attempt_id, "failed")
        assert rows(db.path, "SELECT count(*) FROM metric") == [(0,)]


def _dump(db: Database) -> list[str]:
    with db.read() as connection:
        driver = connection.connection.driver_connection
        assert driver
        return list(driver.iterdump())


class PowerCut(Exception):
    """What the last statement of a call raises."""


CUT = "CREATE TRIGGER cut BEFORE DELETE ON study BEGIN SELECT RAISE(ABORT, 'cut'); END"


def _cut(*_: object, **__: object) -> None:
    raise PowerCut


@pytest.mark.parametrize("call", ["register", "claim", "forget", "merge"])
def test_a_call_that_fails_at_its_end_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    with (
        fresh(tmp_path / "a.db") as db,
        fresh(tmp_path / "b.db") as other,
        owners.Owner.here(db) as owner,
    ):
        study = register.register(db, plan_of())
        do_all(db, study, owner)
        register.register(db, plan_of("more", levels=("concat", "double-skip")))
        with owners.Owner.here(other) as another:
            do_all(other, register.register(other, plan_of("other", lr=3e-4)), another)
        before = _dump(db)
        files = sorted(db.journals.glob("*.jsonl"))
        with monkeypatch.context() as patch, pytest.raises((PowerCut, IntegrityError)):
            if call == "register":
                patch.setattr(register, "revalidate", _cut)
                register.register(db, plan_of("third", levels=("serial", "concat"), n_layer=2))
            elif call == "claim":
                attempts = iter([runs._attempt, _cut])  # the second of two
                patch.setattr(runs, "_attempt", lambda *args: next(attempts)(*args))
                claim_next(db, 2, owner, 2)
            elif call == "forget":
                execute(db.path, CUT)
                forget(db, "wiring")
            else:
                patch.setattr(merge, "revalidate", _cut)
                merge.merge(db, other)
        execute(db.path, "DROP TRIGGER IF EXISTS cut")
        assert _dump(db) == before and sorted(db.journals.glob("*.jsonl")) == files
