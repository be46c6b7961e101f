"""Thinning: training curves keep their shape in few points, nothing else is touched, the file is
one that can be committed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import shutil
import socket
import sqlite3
import tomllib
from pathlib import Path
from typing import Any

import pytest
from store_plans import claim_next, fresh, names, plan_of, rows, train

from ablate import store
from ablate.store import Database, owners, register
from ablate.store.ingest import ingest
from ablate.store.merge import merge
from ablate.store.thin import THINNED, thin
from ablate.train.meter import SERIES

STEPS = range(1, 301)
# what training writes, what is evaluated, and what nobody knows
EVERY = (*THINNED, "loss", "probe_loss")


@pytest.fixture
def db(tmp_path: Path) -> Database:
    """Four runs: two complete, one diverged, one under way."""
    with fresh(tmp_path / "ablate.db") as db, owners.Owner.here(db) as owner:
        for number, claim in enumerate(claim_next(db, register.register(db, plan_of()), owner, 4)):
            values = [math.nan if number == 2 and step > 290 else 1.0 / step for step in STEPS]
            train(
                claim,
                steps=STEPS,
                status=("complete", "complete", "diverged", None)[number],
                finals=[("loss", 0, 5e-324), ("accuracy", 0, -math.inf)],
                series=dict.fromkeys(EVERY, values),
            )
            ingest(db, claim.attempt_id)
    return store.open(str(db.path))


def content(path: Path, *, training: bool) -> list[tuple[Any, ...]]:
    """The points of training series, or of all others with the finals."""
    marks = ", ".join(map(repr, THINNED))
    points = rows(
        path,
        "SELECT run_id, name, step, value FROM metric JOIN series ON series.id = series_id "
        f"WHERE name {'IN' if training else 'NOT IN'} ({marks}) ORDER BY 1, 2, 3",
    )
    return (
        points
        if training
        else points + rows(path, "SELECT run_id, name, at, value FROM final ORDER BY 1, 2, 3")
    )


def test_training_curves_are_thinned_and_all_else_is_whole(db: Database) -> None:
    before, whole = content(db.path, training=True), content(db.path, training=False)
    done = thin(db, 20)
    after = content(db.path, training=True)
    assert content(db.path, training=False) == whole
    assert set(after) < set(before)
    for run_id in (1, 2, 3, 4):
        for series in THINNED:
            steps = [step for run, name, step, _ in after if (run, name) == (run_id, series)]
            if run_id == 4:
                assert steps == list(STEPS)  # under way
            else:
                assert len(steps) == 20 and (steps[0], steps[-1]) == (1, 300)
                gaps = [after - before for before, after in itertools.pairwise(steps)]
                assert max(gaps) - min(gaps) <= 1
    assert (done.runs, done.deleted, done.waiting) == (3, len(before) - len(after), 1)
    assert done.kept == len(after)
    assert rows(db.path, "PRAGMA integrity_check") == [("ok",)]


def test_thinned_again_is_the_same_file(db: Database) -> None:
    thin(db, 20)
    first = content(db.path, training=True)
    again = thin(db, 20)
    assert (again.runs, again.deleted) == (0, 0)
    assert content(db.path, training=True) == first
    assert thin(db, 1000).deleted == 0


def test_losses_of_windows_are_kept_for_compared_runs_alone(db: Database) -> None:
    held = "SELECT DISTINCT run_id FROM window_loss ORDER BY 1"
    assert rows(db.path, held) == [(1,), (2,)]
    thin(db, 20)
    assert rows(db.path, held) == [(1,), (2,)]
    with contextlib.closing(sqlite3.connect(db.path)) as connection, connection:
        connection.execute("UPDATE member SET role = 'tune' WHERE run_id = 1")
        connection.execute(  # run 2 both tunes and is compared
            "INSERT INTO member SELECT cell_id, run_id, 'tune', 99 FROM member WHERE run_id = 2"
        )
    assert thin(db, 20).tuned == 1
    assert rows(db.path, held) == [(2,)]


def test_the_command_leaves_one_file_that_can_be_read_where_nothing_can_be_written(
    db: Database, tmp_path: Path
) -> None:
    from typer.testing import CliRunner

    from ablate.cli import app

    committed = tmp_path / "committed"
    committed.mkdir()
    shutil.copy(db.path, committed / "reference.db")
    done = CliRunner().invoke(
        app, ["db", "thin", "--keep", "20", "--db", str(committed / "reference.db")]
    )
    assert done.exit_code == 0, done.output
    assert "3,360 training points of 3 runs deleted, 1,440 kept" in done.output
    assert "runs without a result, not changed: 1" in done.output
    assert names(committed) == ["reference.db"]
    assert (committed / "reference.db").read_bytes()[18:20] == b"\x01\x01"  # no write-ahead log
    assert (committed / "reference.db").stat().st_size < 0.8 * db.path.stat().st_size
    with store.open(str(committed / "reference.db")) as reader, reader.read() as connection:
        assert (
            connection.exec_driver_sql(
                "SELECT count(*) FROM curves WHERE series = 'loss'"
            ).scalar_one()
            == 1200
        )


def test_an_open_database_is_thinned_and_reported_as_open(db: Database) -> None:
    from typer.testing import CliRunner

    from ablate.cli import app

    with store.open(str(db.path), create=True) as other, other.read() as connection:
        connection.exec_driver_sql("SELECT 1 FROM run").all()
        done = CliRunner().invoke(app, ["db", "thin", "--db", str(db.path)])
        assert done.exit_code == 0, done.output
        assert "another process has the database open" in done.output


def test_a_merge_prefers_the_whole_curves(db: Database, tmp_path: Path) -> None:
    whole = content(db.path, training=True)
    for here, there in (("thin", "whole"), ("whole", "thin")):
        for name in ("thin", "whole"):
            shutil.copy(db.path, tmp_path / f"{name}.db")
        with contextlib.closing(sqlite3.connect(tmp_path / "thin.db")) as connection, connection:
            connection.execute("UPDATE attempt SET status = 'dead' WHERE status = 'running'")
        shutil.copy(tmp_path / "thin.db", tmp_path / "whole.db")
        with store.open(str(tmp_path / "thin.db"), create=True) as thinned:
            assert thin(thinned, 20).deleted
        with (
            store.open(str(tmp_path / f"{there}.db")) as theirs,
            store.open(str(tmp_path / f"{here}.db"), create=True) as ours,
        ):
            merge(ours, theirs)
            assert content(ours.path, training=True) == whole
            assert merge(ours, theirs).renewed == 0


def test_every_series_of_training_is_thinned() -> None:
    assert set(THINNED) == {*SERIES, "tokens_per_second"}


def test_a_run_that_is_measured_anew_is_left_alone(db: Database) -> None:
    ((run,),) = rows(db.path, "SELECT min(id) FROM run WHERE status = 'complete'")
    with db.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO attempt (run_id, n, status, owner, heartbeat, journal, journal_offset,"
            " evaluation) SELECT run_id, n + 1, 'running', owner, 0, 'again', 0, evaluation FROM"
            " attempt WHERE run_id = ?",
            (run,),
        )
    count = f"SELECT count(*) FROM metric WHERE run_id = {run}"
    before = rows(db.path, count)
    waiting = thin(db, 20).waiting
    assert rows(db.path, count) == before and waiting == 2  # beside the one under way


@pytest.mark.parametrize("folder", ["/home/alice/secret", "/data/alice/secret"])
def test_names_of_hosts_and_folders_are_taken_out(db: Database, folder: str) -> None:
    host = socket.gethostname()
    error = f'File "{folder}/x.py", line 3\nOSError: {folder}/t.txt on {host}: {host}s'
    with contextlib.closing(sqlite3.connect(db.path)) as connection, connection:
        connection.execute("UPDATE attempt SET host = ?, error = ?", (host, error))
        connection.execute("UPDATE study SET toml = ?", (f'[base]\ncorpus = "{folder}/t.txt"\n',))
        connection.execute(
            "UPDATE run SET fields = json_set(fields, '$.command', ?)",
            (json.dumps([f"{folder}/bin/python", f"{folder}/x.py", "--out={out}"]),),
        )
        for table, column in (("run", "fields"), ("run_field", "corpus")):
            connection.execute(
                f"UPDATE {table} SET {column} = replace({column}, 'austen', ?)",
                (f"{folder}/t.txt",),
            )
        connection.execute(
            "INSERT INTO artifact VALUES (1, 'checkpoint', ?)", (f"{folder}/0123456789ab-1.pt",)
        )
    keys = rows(db.path, "SELECT key FROM run ORDER BY id")
    done = thin(db, 20)
    assert done.private == 3 + 1 + 4 + 4 + 1
    ended = "FROM attempt WHERE status <> 'running'"
    (left,) = set(rows(db.path, f"SELECT host, owner, error {ended}"))
    assert left == (None, "", f'File "…/x.py", line 3\nOSError: …/t.txt on a host: {host}s')
    assert rows(db.path, "SELECT DISTINCT fields ->> 'corpus' FROM run") == [("…/t.txt",)]
    assert rows(db.path, "SELECT DISTINCT corpus FROM runs") == [("…/t.txt",)]
    assert rows(db.path, "SELECT DISTINCT fields ->> 'command' FROM run") == [
        ('["…/python", "…/x.py", "--out={out}"]',)
    ]
    kept = "~/secret" if folder.startswith("/home") else "…"  # a path from ~ means what it meant
    assert f'"{kept}/t.txt"' in rows(db.path, "SELECT toml FROM study")[0][0]
    assert rows(db.path, "SELECT path FROM artifact WHERE run_id = 1") == [("0123456789ab-1.pt",)]
    assert rows(db.path, "SELECT key FROM run ORDER BY id") == keys
    with contextlib.closing(sqlite3.connect(db.path)) as connection, connection:
        connection.execute("DELETE FROM attempt WHERE status = 'running'")  # which keeps its host
    thin(db, 20)
    assert thin(db, 20).private == 0
    data = db.path.read_bytes()
    assert b"alice" not in data and f"{host}:".encode() not in data


@pytest.mark.parametrize(
    "word",
    [
        "/home/alice",
        "/root",
        "/data/alice/x",
        "/data/alice smith/x, y/z.txt",
        "-I/data/alice/inc/x.h",
        'a "/home/alice" b',
    ],
)
def test_a_thinned_run_of_a_script_can_be_read(db: Database, word: str) -> None:
    command = {"command": json.dumps(["python", "--cache", word]), "lr": 0.1}
    written = json.dumps('python --cache "' + word + '"')
    toml = f"[command]\nrun = {written}\n"
    with contextlib.closing(sqlite3.connect(db.path)) as connection, connection:
        connection.execute("UPDATE run SET fields = ?", (json.dumps(command),))
        connection.execute("UPDATE study SET toml = ?", (toml,))
    thin(db, 20)
    ((fields,),) = rows(db.path, "SELECT DISTINCT fields FROM run")
    words = json.loads(json.loads(fields)["command"])
    assert words[:2] == ["python", "--cache"] and "alice" not in words[2] and words[2] != word
    ((toml,),) = rows(db.path, "SELECT toml FROM study")
    run = tomllib.loads(toml)["command"]["run"]
    assert run.startswith('python --cache "') and "alice" not in run


def test_folders_stay_in_names_of_levels_and_are_named(db: Database) -> None:
    toml = '[factors.text]\n"/a/b.txt" = {}\n"/c/b.txt" = {}\n'
    with db.begin() as connection:
        connection.exec_driver_sql("UPDATE cell_level SET level = '/a/b.txt' WHERE cell_id = 1")
        connection.exec_driver_sql("UPDATE study SET toml = ?", (toml,))
    name = rows(db.path, "SELECT name FROM study")[0][0]
    assert thin(db, 20).named == ("/a/b.txt", name)
    assert rows(db.path, "SELECT toml FROM study") == [(toml,)]


def test_a_cell_with_another_name_now_goes_with_its_folders(db: Database) -> None:
    with db.begin() as connection:
        for statement in (
            "INSERT INTO cell SELECT 99, study_id, 'text=/a/b.txt', '', 0 FROM cell WHERE id = 1",
            "INSERT INTO cell_level VALUES (99, 'text', '/a/b.txt', 0)",
            "INSERT INTO member SELECT 99, run_id, role, ordinal FROM member WHERE cell_id = 1",
        ):
            connection.exec_driver_sql(statement)
    cells = "SELECT count(*) FROM cell"
    before = rows(db.path, cells)[0][0]
    assert thin(db, 20).named == () and rows(db.path, cells) == [(before - 1,)]
    with db.begin() as connection:  # its runs stay with a cell that has no other
        connection.exec_driver_sql("UPDATE cell_level SET level = '/a/b' WHERE cell_id = 1")
        connection.exec_driver_sql("UPDATE cell SET active = 0 WHERE id = 1")
    assert thin(db, 20).named == ("/a/b",) and rows(db.path, cells) == [(before - 1,)]


def test_other_names_of_the_host_go_too(db: Database) -> None:
    host = socket.gethostname()
    with db.begin() as connection:
        connection.exec_driver_sql(
            "UPDATE attempt SET host = ?, error = ?",
            (host, f"no answer from {host.upper()}.lab.example.org: give up"),
        )
    thin(db, 20)
    ended = "SELECT DISTINCT error FROM attempt WHERE status <> 'running'"
    assert rows(db.path, ended) == [("no answer from a host: give up",)]
