"""Forgetting a study: its own rows are deleted, shared ones stay unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_helpers import Run
from store_plans import claim_next, do_all, execute, fresh, plan_of, rows

from ablate import store
from ablate.analysis import analyse
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.store import Database, findings, owners, register, schema
from ablate.store.check import check
from ablate.store.forget import forget, part

# whose checkpoint → file; the names that `ablate run` gives
CHECKPOINTS = {
    name: f"{number:012x}-1.pt"
    for number, name in enumerate(("serial", "concat", "parallel", "pack", "mixed"))
}


@pytest.fixture
def db(tmp_path: Path) -> Database:
    """Two studies that share the runs of `serial`, trained, analysed, with decisions."""
    with fresh(tmp_path / "ablate.db") as db, owners.Owner.here(db) as owner:
        for name, levels in (("toy", ["serial", "parallel"]), ("real", ["serial", "concat"])):
            study_id = register.register(db, plan_of(name, levels, seeds=(0, 1, 2)))
            do_all(db, study_id, owner)
            analyse(db, name)
            findings.write(db, study_id, [findings.FindingRow("effect")])
    for study in (1, 2):
        cell = "(SELECT min(id) FROM cell WHERE study_id = ?)"
        keys = ("group", "cells", "metric", "seeds", "ladder", "rates", "values", "at_edge")
        sql = f"INSERT INTO decision VALUES (?, {cell}, 'lr', '0.001', ?)"
        execute(db.path, sql, study, study, json.dumps(dict.fromkeys(keys)))
    db.checkpoints.mkdir()
    for run_id, key in rows(db.path, "SELECT id, fields ->> 'topology' FROM run"):
        for name in (key, "pack" if key == "parallel" else "mixed"):
            (db.checkpoints / CHECKPOINTS[name]).touch()
            execute(
                db.path,
                "INSERT INTO artifact VALUES (?, 'checkpoint', ?)",
                run_id,
                f"elsewhere/{CHECKPOINTS[name]}",
            )
    execute(
        db.path,
        f"INSERT INTO artifact SELECT id, 'checkpoint', '{CHECKPOINTS['mixed']}' FROM run"
        " WHERE fields ->> 'topology' = 'parallel' LIMIT 1",
    )
    execute(
        db.path,
        f"INSERT INTO artifact SELECT id, 'checkpoint', '{CHECKPOINTS['mixed']}' FROM run"
        " WHERE fields ->> 'topology' = 'concat' LIMIT 1",
    )
    return store.open(str(db.path), create=True)


def dump(path: Path, tables: list[str], where: str) -> dict[str, list[tuple[object, ...]]]:
    return {
        table: rows(path, f"SELECT * FROM {table} WHERE {where} ORDER BY 1, 2, 3")
        for table in tables
    }


def test_a_forgotten_study_leaves_nothing_but_what_others_share(db: Database) -> None:
    of_runs = ["attempt", "final", "metric", "artifact", "window_loss"]
    stay = "run_id IN (SELECT id FROM run WHERE fields ->> 'topology' <> 'parallel')"
    before = dump(db.path, of_runs, stay)
    real = (
        rows(db.path, "SELECT * FROM runs WHERE study = 'real' ORDER BY run"),
        rows(db.path, "SELECT * FROM effects WHERE study = 'real'"),
    )
    journals = {name for (name,) in rows(db.path, f"SELECT journal FROM attempt WHERE {stay}")}
    deleted = part(db, "toy")
    assert deleted.rows == {
        "cells": 2,
        "decisions": 1,
        "effects": 1,
        "runs": 3,
        "points": 18,
        "finals": 6,
        "attempts": 3,
    }
    assert deleted.shared == 3 and len(deleted.files) == 5  # three journals, two checkpoints
    assert rows(db.path, "SELECT count(*) FROM study") == [(2,)]
    assert forget(db, "toy") == deleted
    assert dump(db.path, of_runs, "1") == before
    assert (
        rows(db.path, "SELECT * FROM runs WHERE study = 'real' ORDER BY run") == real[0]
        and len(real[0]) == 6
    )
    assert (
        rows(db.path, "SELECT * FROM effects WHERE study = 'real'") == real[1] and len(real[1]) == 1
    )
    assert rows(db.path, "SELECT name FROM study") == [("real",)]
    for table in ("cell", "contrast", "decision", "finding"):
        assert rows(db.path, f"SELECT DISTINCT study_id FROM {table}") == [(2,)]
    for table in ("cell_level", "member"):
        assert rows(
            db.path, f"SELECT count(*) FROM {table} WHERE cell_id NOT IN (SELECT id FROM cell)"
        ) == [(0,)]
    assert {path.name for path in db.journals.glob("*.jsonl")} == journals
    assert {path.name for path in db.checkpoints.iterdir()} == {
        CHECKPOINTS["serial"],
        CHECKPOINTS["concat"],
        CHECKPOINTS["mixed"],
    }
    assert check(db) == []


def test_the_last_study_takes_everything(db: Database) -> None:
    forget(db, "real")
    assert part(db, "toy").shared == 0
    forget(db, "toy")
    for table in schema.metadata.tables.keys() - {"series"}:
        assert rows(db.path, f"SELECT count(*) FROM {table}") == [(0,)], table
    assert not list(db.journals.glob("*.jsonl")) and not list(db.checkpoints.iterdir())


def test_a_checkpoint_is_deleted_with_the_one_before_it(db: Database) -> None:
    before = db.checkpoints / f"{CHECKPOINTS['pack']}.previous"
    before.touch()
    assert before in part(db, "toy").files
    forget(db, "toy")
    assert not before.exists()


@pytest.mark.parametrize(
    "name", ["../precious.txt", "{folder}/precious.txt", "..", "a/b", "notes.jsonl"]
)
def test_only_files_that_the_store_names_are_deleted(
    db: Database, tmp_path: Path, name: str
) -> None:
    precious = tmp_path / "precious.txt"
    precious.touch()
    (db.journals / "notes.jsonl").touch()
    (db.checkpoints / "notes.jsonl").touch()
    first = rows(db.path, "SELECT min(id) FROM run WHERE fields ->> 'topology' = 'parallel'")[0][0]
    name = name.format(folder=tmp_path)
    execute(db.path, "UPDATE attempt SET journal = ? WHERE run_id = ?", name, first)
    execute(db.path, "INSERT INTO artifact VALUES (?, 'checkpoint', ?)", first, name)
    assert precious not in part(db, "toy").files
    forget(db, "toy")
    assert precious.exists() and db.journals.is_dir()
    assert (db.journals / "notes.jsonl").exists() and (db.checkpoints / "notes.jsonl").exists()


def test_the_dry_run_lists_the_files(db: Database) -> None:
    from typer.testing import CliRunner

    from ablate.cli import app

    done = CliRunner().invoke(app, ["db", "forget", "toy", "--db", str(db.path)])
    assert done.exit_code == 1
    for file in part(db, "toy").files:
        assert str(file) in done.output


def test_a_study_whose_run_is_running_stays(db: Database) -> None:
    study_id = register.register(db, plan_of("toy", ["serial", "parallel"], seeds=(0, 1, 2, 3)))
    before = rows(db.path, "SELECT * FROM run"), rows(db.path, "SELECT * FROM member")
    with owners.Owner.here(db) as owner:
        (claim,) = claim_next(db, study_id, owner, 1)
        with pytest.raises(
            AblateError, match=rf"'toy' cannot be deleted while its run {claim.run_id} is running"
        ):
            forget(db, "toy")
        assert (
            len(rows(db.path, "SELECT * FROM run")) == len(before[0])
            and rows(db.path, "SELECT * FROM member") == before[1]
        )
        assert len(list(db.journals.glob("*.jsonl"))) >= 9
    forget(db, "toy")  # its launcher is gone
    assert rows(db.path, "SELECT name FROM study") == [("real",)]


def test_a_forgotten_study_no_longer_blocks_one_that_measures_otherwise(db: Database) -> None:
    forget(db, "real")
    other = plan_of("new", ["serial", "concat"], evaluation=Evaluation(tokens=128))
    with pytest.raises(AblateError, match="ablate db forget toy"):
        register.register(db, other)
    forget(db, "toy")
    register.register(db, other)
    assert rows(db.path, "SELECT DISTINCT status FROM runs WHERE study = 'new'") == [("planned",)]


def test_the_command_names_what_would_go_and_asks(ablate: Run, db: Database) -> None:
    db.close()
    before = db.path.read_bytes()
    code, out, _ = ablate("db", "forget", "toy", "--db", str(db.path))
    assert code == 1 and db.path.read_bytes() == before
    assert (
        "2 cells" in out
        and "3 runs" in out
        and "5 files would be deleted; 3 runs shared with other studies" in out
        and "--yes" in out
    )
    code, out, _ = ablate("db", "forget", "toy", "--yes", "--db", str(db.path))
    assert code == 0 and "3 runs" in out and "deleted" in out and "--yes" not in out
    code, _, err = ablate("db", "forget", "raal", "--yes", "--db", str(db.path))
    assert code == 2 and "'raal'; did you mean 'real'" in err
