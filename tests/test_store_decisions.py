"""Decisions: the first one stored stays, void ones go; results that can be learnt from."""

from __future__ import annotations

import math

from store_plans import claim_next, execute, plan_of, rows, train

from ablate.evaluation import Evaluation
from ablate.plan import Decision
from ablate.store import Database, decisions, ingest, owners, register

SERIAL, PARALLEL = "topology=serial", "topology=parallel"


def decision(value: float, basis: str = "a", cell: str = SERIAL, name: str = "lr") -> Decision:
    return Decision(cell, name, value, {"basis": basis, "rates": [1e-4, 3.16e-3]})


def test_what_is_stored_is_read_and_the_first_one_stays(db: Database) -> None:
    study_id = register.register(db, plan_of())
    decisions.write(db, study_id, [decision(1e-3), decision(7, cell=PARALLEL, name="seeds")])
    decisions.write(db, study_id, [decision(2e-3)])  # somebody else decided in the meantime
    assert decisions.read(db, "wiring") == [
        decision(1e-3),
        decision(7, cell=PARALLEL, name="seeds"),
    ]
    assert decisions.read(db, "nothing of the kind") == []


def test_a_void_decision_is_replaced_unless_another_replaced_it(db: Database) -> None:
    study_id = register.register(db, plan_of())
    decisions.write(db, study_id, [decision(1e-3)])
    decisions.write(db, study_id, [decision(2e-3, "b")], void=[decision(1e-3)])
    assert decisions.read(db, "wiring") == [decision(2e-3, "b")]
    decisions.write(db, study_id, [decision(3e-3, "b")], void=[decision(1e-3)])
    assert decisions.read(db, "wiring") == [decision(2e-3, "b")]


def test_decisions_of_one_study_leave_those_of_another(db: Database) -> None:
    for name in ("wiring", "other"):
        decisions.write(db, register.register(db, plan_of(name)), [decision(1e-3)])
    decisions.write(db, register.register(db, plan_of("other")), [], void=[decision(1e-3)])
    assert decisions.read(db, "wiring") == [decision(1e-3)] and decisions.read(db, "other") == []


def test_a_cell_that_left_the_study_has_no_decision_in_force(db: Database) -> None:
    study_id = register.register(db, plan_of())
    decisions.write(db, study_id, [decision(1e-3), decision(1e-3, cell=PARALLEL)])
    register.register(db, plan_of(levels=("serial",)))
    assert decisions.read(db, "wiring") == [decision(1e-3)]


def test_values_are_of_runs_that_have_their_result(db: Database) -> None:
    made = plan_of(seeds=(0, 1, 2), evaluation=Evaluation(lengths=(1, 2)))
    study_id = register.register(db, made)
    how = ["complete", "diverged", "failed", None, "complete"]  # the sixth is never begun
    with owners.Owner.here(db) as owner:
        for claim, status in zip(claim_next(db, study_id, owner, 5), how, strict=True):
            train(
                claim,
                status=status,
                loss=2.0 + claim.run.config.seed,
                finals=[("loss", 0, 2.0 + claim.run.config.seed)],
            )
            ingest.ingest(db, claim.attempt_id)
    keys = [planned.run.key for planned in made.runs]
    found = decisions.values(db, keys, "loss")
    assert {keys.index(key): value for key, value in found.items() if value == value} == {
        0: 2.0,
        4: 4.0,
    }
    assert math.isnan(found[keys[1]]) and len(found) == 3
    assert decisions.values(db, keys[1:2], "loss").keys() == {keys[1]}
    # a run that another study completed without this final is to be measured: it has no result yet;
    # a NaN is one
    assert decisions.values(db, keys, "loss_at_length@2").keys() == {keys[1]}
    execute(
        db.path,
        "UPDATE final SET value = NULL WHERE run_id = (SELECT id FROM run WHERE key = ?)",
        keys[0],
    )
    assert math.isnan(decisions.values(db, keys, "loss")[keys[0]])
    assert rows(db.path, "SELECT count(*) FROM run") == [(6,)]
