"""Registering and claiming: runs of a study, their owners, and when they are repeated."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Sequence
from typing import Any

import pytest
from store_plans import claim_next, do_all, execute, plan_of, rows, train, trained

from ablate import sizes
from ablate.analysis import analyse
from ablate.errors import AblateError
from ablate.evaluation import Evaluation, Probe
from ablate.journal import Journal
from ablate.kinds import Run
from ablate.launch.scheduler import RETRIES
from ablate.plan.held_out import measured
from ablate.store import Database, effects, owners, register, runs, schema
from ablate.store.evaluated import kept_points
from ablate.store.ingest import ingest
from ablate.store.status import survey


def _dump(db: Database) -> dict[str, list[tuple[object, ...]]]:
    return {
        name: sorted(rows(db.path, f"SELECT * FROM {name}"), key=repr)
        for name in schema.metadata.tables
    }


# -- register --------------------------------------------------------------------------------------


def test_registered_runs_hold_every_field_and_come_back_equal(db: Database) -> None:
    plan = plan_of(mask_ratio=0.4, objective="masked", mask_mix=(0.5, 0.25, 0.25), lr=3e-4)
    register.register(db, plan)
    stored = {
        key: Run(kind, json.loads(fields), seed)
        for key, kind, fields, seed in rows(db.path, "SELECT key, kind, fields, seed FROM run")
    }
    assert len(stored) == 4
    for planned in plan.runs:
        run = stored[planned.run.key]
        assert run.config == planned.config and run.key == planned.run.key
    row = rows(
        db.path,
        "SELECT topology, mask_mix, mask_ratio, lr, tokens, n_params, n_params_body, flops, status"
        " FROM runs",
    )[0]
    config = plan.runs[0].config
    size = sizes.count(config)
    assert row == (
        "serial",
        "[0.5, 0.25, 0.25]",
        0.4,
        3e-4,
        64000,
        size.params,
        size.body,
        sizes.train_flops(config),
        "planned",
    )


def test_registering_again_changes_nothing(db: Database) -> None:
    study_id = register.register(db, plan_of())
    before = _dump(db)
    assert register.register(db, plan_of()) == study_id
    assert _dump(db) == before
    assert before["study"][0][5] == 1  # revision


def test_changed_study_is_a_revision_and_loses_no_run(db: Database, owner: owners.Owner) -> None:
    study_id = register.register(db, plan_of(levels=("serial", "parallel"), seeds=(0, 1)))
    do_all(db, study_id, owner)
    assert (
        register.register(db, plan_of(levels=("serial", "double-skip"), seeds=(0, 1, 2)))
        == study_id
    )
    assert rows(db.path, "SELECT revision FROM study") == [(2,)]
    assert dict(rows(db.path, "SELECT label, active FROM cell")) == {
        "topology=serial": 1,
        "topology=parallel": 0,
        "topology=double-skip": 1,
    }
    assert rows(db.path, "SELECT level, cell FROM pairs GROUP BY 1") == [
        ("double-skip", "topology=double-skip")
    ]
    # serial's two are done already
    assert survey(db, study_id).counts == {"complete": 2, "planned": 4}
    assert rows(db.path, "SELECT count(*), count(DISTINCT cell) FROM runs") == [(6, 2)]
    # parallel's are still there
    assert rows(db.path, "SELECT count(*) FROM final WHERE name = 'loss'") == [(4,)]

    register.register(db, plan_of(levels=("serial", "parallel"), seeds=(0, 1)))
    assert survey(db, study_id).counts == {"complete": 4}


def test_new_comment_in_the_file_is_no_revision(db: Database) -> None:
    plan = plan_of()
    register.register(db, plan)
    commented = dataclasses.replace(
        plan, study=dataclasses.replace(plan.study, toml="# why\n" + plan.study.toml)
    )
    register.register(db, commented)
    assert rows(db.path, "SELECT revision, toml FROM study") == [(1, commented.study.toml)]


def test_contrast_that_stays_keeps_its_effects(db: Database) -> None:
    study_id = trained(db, plan_of(levels=("serial", "parallel", "concat"), seeds=(0, 1, 2)))
    (row, _) = analyse(db, "wiring")
    effects.write(db, study_id, [dataclasses.replace(row, lo=math.nan, hi=math.inf)])  # replaces
    stored = [(row.level, row.mean, None, math.inf)]
    assert rows(db.path, "SELECT level, mean, lo, hi FROM effects") == stored
    register.register(db, plan_of(levels=("serial", row.level, "no-skip")))
    assert rows(db.path, "SELECT level, mean, lo, hi FROM effects") == stored
    register.register(db, plan_of(levels=("serial", "no-skip")))
    assert rows(db.path, "SELECT level FROM effects") == []


def test_studies_share_runs(db: Database, owner: owners.Owner) -> None:
    first, second = plan_of("first"), plan_of("second", levels=("serial", "concat"))
    one, two = register.register(db, first), register.register(db, second)
    assert rows(db.path, "SELECT count(*) FROM run") == [(6,)]
    assert do_all(db, one, owner) == 4
    assert do_all(db, two, owner) == 2
    assert rows(db.path, "SELECT study, count(*), avg(loss) FROM runs GROUP BY 1") == [
        ("first", 4, 2.0),
        ("second", 4, 2.0),
    ]


def test_study_that_measures_shared_runs_otherwise_is_refused_whole(db: Database) -> None:
    register.register(db, plan_of("first"))
    before = _dump(db)
    with pytest.raises(AblateError, match="study 'first' shares 2 runs"):
        register.register(
            db, plan_of("second", levels=("serial", "concat"), evaluation=Evaluation(tokens=1024))
        )
    assert _dump(db) == before
    register.register(
        db,
        plan_of(
            "second", levels=("serial", "concat"), evaluation=Evaluation(points=9, lengths=(1, 2))
        ),
    )
    register.register(db, plan_of("third", evaluation=Evaluation(tokens=1024), n_layer=2))


def test_metric_at_a_ratio(db: Database, owner: owners.Owner) -> None:
    study_id = register.register(db, plan_of(objective="masked", metric="probe_loss@0.4"))
    do_all(
        db,
        study_id,
        owner,
        finals=[("loss", 0, 3.0), ("probe_loss", 0.15, 1.0), ("probe_loss", 0.4, 2.0)],
    )
    assert rows(db.path, "SELECT DISTINCT metric, loss FROM runs") == [(2.0, 3.0)]
    assert rows(db.path, "SELECT DISTINCT metric, value, difference FROM pairs") == [
        ("probe_loss@0.4", 2.0, 0.0)
    ]


# -- claim -----------------------------------------------------------------------------------------


def test_claims_come_in_plan_order_once_each(db: Database, owner: owners.Owner) -> None:
    plan = plan_of(seeds=(0, 1, 2))
    study_id = register.register(db, plan)
    claims = [claim for _ in range(4) for claim in claim_next(db, study_id, owner, 2)]
    assert [claim.run.config for claim in claims] == [planned.config for planned in plan.runs]
    assert len({claim.journal for claim in claims}) == 6 and {claim.n for claim in claims} == {1}
    assert claim_next(db, study_id, owner, 9) == []
    with owners.Owner.here(db) as other:
        assert claim_next(db, study_id, other, 9) == []
    assert survey(db, study_id).counts == {"running": 6}


def test_a_claim_uses_the_evaluation_of_its_attempt(db: Database, owner: owners.Owner) -> None:
    study_id = register.register(db, plan_of())
    changed = Evaluation(tokens=512, lengths=(1, 2))
    # by another process, from a file that was edited
    register.register(db, plan_of(evaluation=changed))
    (claim,) = claim_next(db, study_id, owner, 1)
    assert claim.evaluation == changed
    assert rows(db.path, "SELECT evaluation FROM attempt") == [(changed.model_dump_json(),)]


def test_of_two_that_claim_the_same_runs_each_gets_what_the_other_has_not(
    db: Database, owner: owners.Owner
) -> None:
    study_id = register.register(db, plan_of(seeds=(0, 1)))
    first, second, third, fourth = (run.run_id for run in runs.candidates(db, study_id, owner))
    mine = runs.claim(db, study_id, owner, [third, first])
    assert [claim.run_id for claim in mine] == [third, first], "in the order that is asked for"
    with owners.Owner.here(db) as other:
        theirs = runs.claim(db, study_id, other, [first, second, third])
        assert [claim.run_id for claim in theirs] == [second]
    left = {run.run_id for run in runs.candidates(db, study_id, owner)}
    assert left == {fourth, second}, "the other's too, as that has ended"
    train(mine[0])
    ingest(db, mine[0].attempt_id)
    assert runs.claim(db, study_id, owner, [third]) == [], "a run with its result is not done again"


@pytest.mark.parametrize("status", ["running", "complete"])
def test_a_run_has_one_attempt_of_a_kind_whatever_the_code_does(
    db: Database, owner: owners.Owner, status: str
) -> None:
    study_id = register.register(db, plan_of())
    (claim,) = claim_next(db, study_id, owner, 1)
    if status == "complete":
        train(claim)
        ingest(db, claim.attempt_id)
    with pytest.raises(Exception, match="UNIQUE"), db.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO attempt (run_id, n, status, owner, heartbeat, journal, journal_offset,"
            " evaluation) VALUES (?, 2, ?, 'x', 0, 'y', 0, '{}')",
            (claim.run_id, status),
        )


@pytest.mark.parametrize(("status", "tries"), [("failed", 1), ("oom", RETRIES)])
def test_failing_run_is_tried_again_up_to_a_limit(
    db: Database, owner: owners.Owner, status: str, tries: int
) -> None:
    study_id = register.register(db, plan_of(seeds=(0,)))
    assert do_all(db, study_id, owner, status=status) == 2 * tries
    assert survey(db, study_id).counts == {status: 2}
    assert rows(db.path, "SELECT run_id, n FROM attempt ORDER BY 1, 2") == [
        (r, n) for r in (1, 2) for n in range(1, tries + 1)
    ]
    with owners.Owner.here(db) as later:  # the cause may be gone
        assert do_all(db, study_id, later) == 2
    assert survey(db, study_id).counts == {"complete": 2}


def test_diverged_run_is_a_result(db: Database, owner: owners.Owner) -> None:
    study_id = register.register(db, plan_of(seeds=(0,)))
    assert do_all(db, study_id, owner, status="diverged") == 2
    assert (
        rows(db.path, "SELECT status, diverged_at, loss, accuracy FROM runs")
        == [("diverged", 3, None, 0.5)] * 2
    )
    # NaN: there, and NULL
    assert rows(db.path, "SELECT value FROM final WHERE name = 'loss'") == [(None,)] * 2


def test_stopped_run_is_resumed(db: Database, owner: owners.Owner) -> None:
    study_id = register.register(db, plan_of(seeds=(0,), levels=("serial",)))
    assert [run.checkpoint for run in runs.candidates(db, study_id, owner)] == [False]
    (claim,) = claim_next(db, study_id, owner, 1)
    with Journal(claim.journal) as journal:
        journal.append("start", step=0)
        journal.append("checkpoint", step=2, path="a.checkpoints/x.pt")
        journal.append("end", status="stopped", step=2)
    ingest(db, claim.attempt_id)
    assert survey(db, study_id).counts == {"stopped": 1}
    assert [run.checkpoint for run in runs.candidates(db, study_id, owner)] == [True]
    (again,) = claim_next(db, study_id, owner, 1)
    assert again.n == 2 and again.run_id == claim.run_id


def test_a_checkpoint_is_covered_where_all_points_before_it_are_stored(
    db: Database, owner: owners.Owner
) -> None:
    study_id = register.register(db, plan_of(seeds=(0,), levels=("serial",)))

    def attempt(*events: tuple[str, int], unread: Sequence[tuple[str, int]] = ()) -> int:
        """Ingest an attempt's events, then write the rest; return how far it is covered."""
        (claim,) = claim_next(db, study_id, owner, 1)
        with Journal(claim.journal) as journal:
            for name, step in events:
                more = {"path": "a.checkpoints/x.pt"} if name == "checkpoint" else {}
                journal.append(name, step=step, **more)
            ingest(db, claim.attempt_id)
            for name, step in unread:
                journal.append(name, step=step, path="a.checkpoints/x.pt")
        with db.begin() as connection:
            owners.mark_dead(connection, claim.attempt_id, "taken over")
            connection.exec_driver_sql("UPDATE attempt SET owner = 'elsewhere:1:a'")
        return runs.covered_by_checkpoint(db, claim.run_id)

    assert attempt() == 0
    saved = ("start", 0), ("checkpoint", 5), ("checkpoint", 9)
    assert attempt(*saved, unread=[("checkpoint", 12)]) == 9
    assert attempt(("start", 5)) == 5  # from the checkpoint before, so that later points went
    assert attempt(("start", 5), ("checkpoint", 7)) == 7
    assert attempt(("start", 0)) == 0  # as in a smaller pack
    assert attempt(("start", 0), ("checkpoint", 4)) == 4
    assert attempt() == 4
    (journal,) = rows(db.path, "SELECT journal FROM attempt ORDER BY n DESC LIMIT 1 OFFSET 1")
    (db.journals / journal[0]).unlink()
    assert runs.covered_by_checkpoint(db, 1) == 0


def test_complete_run_is_done_again_for_finals_that_it_lacks(
    db: Database, owner: owners.Owner
) -> None:
    study_id = register.register(db, plan_of(seeds=(0,)))
    assert do_all(db, study_id, owner) == 2
    # asks for no other final
    register.register(db, plan_of(seeds=(0,), evaluation=Evaluation(points=9)))
    assert claim_next(db, study_id, owner, 9) == []
    assert kept_points(db, "wiring", Evaluation(points=9)) == {5: 2}
    assert not kept_points(db, "wiring", Evaluation())
    assert not kept_points(db, "wiring", Evaluation(points=9, tokens=9)), "they run again"

    register.register(db, plan_of(seeds=(0,), evaluation=Evaluation(lengths=(1, 2))))
    asked = [("loss", 0, 2.0), ("loss_at_length", 1, 2.0), ("loss_at_length", 2, 2.5)]
    assert do_all(db, study_id, owner, finals=asked) == 2
    assert claim_next(db, study_id, owner, 9) == []
    assert rows(db.path, "SELECT run_id, status FROM attempt ORDER BY 1, n") == [
        (1, "superseded"),
        (1, "complete"),
        (2, "superseded"),
        (2, "complete"),
    ]

    register.register(db, plan_of(seeds=(0,)))  # the first evaluation again: all is there
    assert claim_next(db, study_id, owner, 9) == []


def test_final_that_cannot_be_had_is_not_asked_for_forever(
    db: Database, owner: owners.Owner
) -> None:
    study_id = register.register(db, plan_of(seeds=(0,), evaluation=Evaluation(lengths=(1, 4))))
    # position = learned has no loss at 4×
    assert do_all(db, study_id, owner, finals=[("loss", 0, 2.0)]) == 2
    register.register(db, plan_of(seeds=(0,), evaluation=Evaluation(lengths=(1, 4), points=9)))
    assert claim_next(db, study_id, owner, 9) == []


def test_other_measure_does_all_again(db: Database, owner: owners.Owner) -> None:
    masked: dict[str, Any] = {"seeds": (0,), "objective": "masked"}
    study_id = register.register(db, plan_of(**masked))
    finals = [("loss", 0, 2.0), ("probe_loss", 0.15, 1.0), ("probe_accuracy", 0.15, 0.5)]
    assert do_all(db, study_id, owner, finals=finals) == 2
    # and back: the finals there are of the other measure
    for probe in (Probe(kind="span"), Probe()):
        register.register(db, plan_of(**masked, evaluation=Evaluation(probe=probe)))
        claims = claim_next(db, study_id, owner, 9)
        assert len(claims) == 2
        for claim in claims:
            train(claim, finals=finals[:1])
            ingest(db, claim.attempt_id)
        # no old number beside new ones
        assert rows(db.path, "SELECT name, count(*) FROM final GROUP BY 1") == [("loss", 2)]


def test_what_was_measured_otherwise_does_not_count_until_it_is_done_again(
    db: Database, owner: owners.Owner
) -> None:
    study_id = register.register(db, plan_of(seeds=(0,)))
    do_all(db, study_id, owner)
    before = _dump(db)
    register.register(db, plan_of(seeds=(0,), evaluation=Evaluation(tokens=512)))
    claim, _ = claim_next(db, study_id, owner, 2)
    train(claim, loss=1.0)
    ingest(db, claim.attempt_id)
    assert rows(db.path, "SELECT status, baseline_status FROM pairs") == [("running", "complete")]
    runs.finish(db, claim.attempt_id + 1, "failed")
    assert survey(db, study_id).counts == {"complete": 1, "failed": 1}
    register.register(db, plan_of(seeds=(0,)))  # back: the other run still has its first finals
    assert survey(db, study_id).counts == {"complete": 1, "planned": 1}
    assert [row for row in _dump(db)["final"] if row[0] == 2] == [
        row for row in before["final"] if row[0] == 2
    ]


def test_the_final_on_more_tokens_is_another_measure(db: Database, owner: owners.Owner) -> None:
    """Old numbers, and losses of windows, stand until the run is done again; curves stay valid."""
    study_id = register.register(db, plan_of(seeds=(0,)))
    do_all(db, study_id, owner, finals=[("loss", 0, 2.0), ("copy_loss", 0, 3.0)])
    more = Evaluation(final_tokens=1 << 20)
    register.register(db, plan_of(seeds=(0,), evaluation=more))
    assert survey(db, study_id).counts == {"planned": 2}
    register.register(db, plan_of(seeds=(0,), evaluation=Evaluation(final_tokens=9)))
    assert survey(db, study_id).counts == {"complete": 2}  # fewer than `tokens` are those
    register.register(db, plan_of(seeds=(0,), evaluation=more))
    claim, _ = claim_next(db, study_id, owner, 2)
    train(claim, status=None)
    ingest(db, claim.attempt_id)
    assert rows(db.path, "SELECT run_id FROM window_loss") == [(2,)]
    assert rows(db.path, "SELECT DISTINCT run_id FROM final") == [(2,)]


def test_a_study_keeps_its_default_of_final_tokens(db: Database) -> None:
    """What the plan chooses later, or on another machine, invalidates nothing by itself."""
    chosen = measured(plan_of(), 1 << 20)
    register.register(db, register.as_measured(db, chosen))
    grown = register.as_measured(db, measured(plan_of(seeds=(0, 1, 2)), 1 << 22))
    assert grown.study.evaluation.final_tokens == 1 << 20
    asked = plan_of(evaluation=Evaluation(final_tokens=1 << 22))
    assert register.as_measured(db, asked) is asked  # the file says so
    other = measured(plan_of(evaluation=Evaluation(tokens=512)), 1 << 22)
    assert register.as_measured(db, other) is other  # all is measured again anyway


def test_a_study_of_an_earlier_version_keeps_its_results(db: Database, owner: owners.Owner) -> None:
    study_id = register.register(db, plan_of(seeds=(0,)))
    do_all(db, study_id, owner)
    old = Evaluation().model_dump_json(exclude={"final_tokens"})
    for table in ("study", "attempt"):
        execute(db.path, f"UPDATE {table} SET evaluation = ?", old)
    plan = register.as_measured(db, measured(plan_of(seeds=(0,)), 1 << 20))
    assert register.register(db, plan) == study_id
    assert rows(db.path, "SELECT revision FROM study") == [(1,)]
    assert claim_next(db, study_id, owner, 9) == []


def test_losses_at_lengths_are_measured_alike(db: Database, owner: owners.Owner) -> None:
    """The longest context decides which tokens are scored at every length."""
    short, long, none = Evaluation(lengths=(1, 2)), Evaluation(lengths=(1, 2, 4)), Evaluation()
    study_id = register.register(db, plan_of(seeds=(0,), evaluation=long))
    do_all(
        db,
        study_id,
        owner,
        finals=[("loss", 0, 2.0), *(("loss_at_length", at, 2.0) for at in (1, 2, 4))],
    )
    with pytest.raises(AblateError, match="measures them differently"):
        register.register(db, plan_of(name="short", evaluation=short))
    register.register(
        db, plan_of(name="none", seeds=(0,), evaluation=none)
    )  # asks for none of them
    register.register(db, plan_of(seeds=(0,), evaluation=short))
    assert survey(db, study_id).counts == {"planned": 2}
    assert (
        do_all(
            db,
            study_id,
            owner,
            finals=[("loss", 0, 2.0), ("loss_at_length", 1, 1.0), ("loss_at_length", 2, 1.0)],
        )
        == 2
    )
    assert rows(
        db.path, "SELECT at, value FROM final WHERE name = 'loss_at_length' AND run_id = 1"
    ) == [(1, 1.0), (2, 1.0)]


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("status", ["failed", "oom", "dead"])
def test_run_that_fails_when_done_again_keeps_its_result(
    db: Database, owner: owners.Owner, begun: bool, status: str
) -> None:
    study_id = register.register(db, plan_of(seeds=(0,)))
    do_all(db, study_id, owner)
    finals = _dump(db)["final"]
    register.register(
        db, plan_of(seeds=(0,), evaluation=Evaluation(downstream=("novel_accuracy",)))
    )
    claims = claim_next(db, study_id, owner, 9)
    for claim in claims:
        with Journal(claim.journal) as journal:
            if begun:
                journal.append("start", step=0)
            if status != "dead":
                journal.append("end", status=status, step=0, error="no such labels")
        ingest(db, claim.attempt_id)
        if status == "dead":
            runs.finish(db, claim.attempt_id, "dead")
    assert survey(db, study_id).counts == {"complete": 2}
    assert _dump(db)["final"] == finals
    assert rows(db.path, "SELECT run_id, status FROM attempt WHERE n = 1") == [
        (1, "complete"),
        (2, "complete"),
    ]


# -- owners and stale attempts ---------------------------------------------------------------------


def test_runs_of_an_ended_owner_are_taken_over_with_what_they_wrote(
    db: Database, owner: owners.Owner
) -> None:
    study_id = register.register(db, plan_of(seeds=(0,)))
    gone = owners.Owner.here(db)
    finished, cut = claim_next(db, study_id, gone, 2)
    train(finished)
    train(cut, steps=(1, 2), status=None)
    assert claim_next(db, study_id, owner, 9) == []  # alive: its lock is held
    assert owners.dead(db, study_id) == set()
    gone.close()
    assert owners.dead(db, study_id) == {finished.run_id, cut.run_id}
    # the other one had ended, only nobody had read it
    (again,) = claim_next(db, study_id, owner, 9)
    assert (again.run_id, again.n) == (cut.run_id, 2)
    assert survey(db, study_id).counts == {"complete": 1, "running": 1}
    assert rows(db.path, "SELECT status FROM attempt ORDER BY id") == [
        ("complete",),
        ("dead",),
        ("running",),
    ]
    assert rows(db.path, "SELECT count(*) FROM metric WHERE run_id = ?", cut.run_id) == [(4,)]
    assert ingest(db, cut.attempt_id) == [] and not runs.finish(db, cut.attempt_id, "failed")


def test_run_whose_worker_still_writes_is_not_taken_over(db: Database, owner: owners.Owner) -> None:
    study_id = register.register(db, plan_of(seeds=(0,), levels=("serial",)))
    gone = owners.Owner.here(db)
    (claim,) = claim_next(db, study_id, gone, 1)
    with Journal(claim.journal) as journal:
        journal.append("start", step=0)
        gone.close()
        assert claim_next(db, study_id, owner, 1) == []
    assert len(claim_next(db, study_id, owner, 1)) == 1


def test_silent_owner_on_another_host_loses_its_runs_after_a_lease(
    db: Database, owner: owners.Owner
) -> None:
    study_id = register.register(db, plan_of(seeds=(0,), levels=("serial",)))
    far = owners.Owner("elsewhere", 1, "abc")
    (claim,) = claim_next(db, study_id, far, 1)
    worker = Journal(claim.journal)
    owner.lease = 0.2
    assert claim_next(db, study_id, owner, 1) == []  # seen for the first time
    time.sleep(0.15)
    worker.append("heartbeat", n=1)
    time.sleep(0.15)
    assert claim_next(db, study_id, owner, 1) == []  # it moved
    time.sleep(0.25)
    (taken,) = claim_next(db, study_id, owner, 1)
    assert taken.run_id == claim.run_id
    assert owners.owned(db, far) == set()  # how the far one learns that it lost the run
    worker.close()
    train(claim)
    assert ingest(db, claim.attempt_id) == []  # and what it still writes does not count
    assert rows(db.path, "SELECT count(*) FROM metric") == [(0,)]


def test_the_heartbeat_in_the_journal_keeps_a_run(db: Database, owner: owners.Owner) -> None:
    """An owner on another host that ingests what its worker writes."""
    study_id = register.register(db, plan_of(seeds=(0,), levels=("serial",)))
    far = owners.Owner("elsewhere", 1, "abc")
    (claim,) = claim_next(db, study_id, far, 1)
    owner.lease = 0.2
    with Journal(claim.journal) as journal:
        for n in range(1, 5):
            journal.append("heartbeat", n=n)
            if n > 2:  # before, its launcher has not ingested it yet
                ingest(db, claim.attempt_id)
                assert rows(db.path, "SELECT heartbeat FROM attempt") == [(n,)]
            assert claim_next(db, study_id, owner, 1) == []
            time.sleep(0.15)
    time.sleep(0.1)  # its launcher lives, but its worker hangs
    (taken,) = claim_next(db, study_id, owner, 1)
    assert taken.run_id == claim.run_id and owners.owned(db, far) == set()


def test_last_output_of_an_ended_worker_is_no_heartbeat(db: Database, owner: owners.Owner) -> None:
    study_id = register.register(db, plan_of(seeds=(0,), levels=("serial",)))
    (claim,) = claim_next(db, study_id, owners.Owner("elsewhere", 1, "abc"), 1)
    train(claim, status=None)
    with Journal(claim.journal) as journal:
        journal.append("heartbeat", n=9)
    owner.lease = 0.0
    assert claim_next(db, study_id, owner, 1) == []
    (taken,) = claim_next(db, study_id, owner, 1)
    assert taken.run_id == claim.run_id
    assert rows(db.path, "SELECT count(*) FROM metric") == [(6,)]  # and it is ingested


def test_heartbeat_before_a_stale_attempt_is_marked_dead_keeps_it(
    db: Database, owner: owners.Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    study_id = register.register(db, plan_of(seeds=(0,), levels=("serial",)))
    far = owners.Owner("elsewhere", 1, "abc")
    (claim,) = claim_next(db, study_id, far, 1)
    owner.lease = 0.0
    assert claim_next(db, study_id, owner, 1) == []
    drain = owners._drain

    def beats(db: Database, row: Any, reason: str) -> tuple[bool, str]:
        with Journal(claim.journal) as worker:
            worker.append("heartbeat", n=1)
        return drain(db, row, reason)

    monkeypatch.setattr(owners, "_drain", beats)
    assert claim_next(db, study_id, owner, 1) == []
    assert owners.owned(db, far) == {claim.attempt_id}


def test_worker_that_died_leaves_its_history(db: Database, owner: owners.Owner) -> None:
    study_id = register.register(db, plan_of(seeds=(0,), levels=("serial",)))
    (claim,) = claim_next(db, study_id, owner, 1)
    train(claim, status=None)
    assert runs.finish(db, claim.attempt_id, "dead", "killed by signal 11")
    assert rows(db.path, "SELECT status, error FROM attempt") == [("dead", "killed by signal 11")]
    assert rows(db.path, "SELECT count(*) FROM metric") == [(6,)]
    assert survey(db, study_id).counts == {"failed": 1}
    for n in (2, 3):
        (again,) = claim_next(db, study_id, owner, 1)
        assert again.n == n and runs.finish(db, again.attempt_id, "dead")
    assert claim_next(db, study_id, owner, 1) == []


def test_damaged_journal_of_an_ended_owner_blocks_no_other(
    db: Database, owner: owners.Owner
) -> None:
    study_id = register.register(db, plan_of(seeds=(0,), levels=("serial",)))
    gone = owners.Owner.here(db)
    (claim,) = claim_next(db, study_id, gone, 1)
    claim.journal.write_text('{"event":"start","step":0}\n{"event":"met\n')
    with pytest.raises(AblateError, match="is damaged"):
        ingest(db, claim.attempt_id)
    gone.close()
    assert claim_next(db, study_id, owner, 1)[0].n == 2
    assert "is damaged" in rows(db.path, "SELECT error FROM attempt WHERE n = 1")[0][0]
