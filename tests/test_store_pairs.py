"""The view `pairs`: against pairs that Python makes from the tables, and the work that it takes."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from store_plans import do_all, execute, plan_of, rows

from ablate import store
from ablate.store import owners, register
from ablate.store.rows import pairs

LEVELS = ("serial", "parallel", "double-skip")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three studies: two share runs, a baseline lacks a seed, a study has two baselines."""
    path = tmp_path / "x.db"
    with store.open(str(path), create=True) as db, owners.Owner.here(db) as owner:
        plans = [
            plan_of("first", LEVELS, range(5)),
            plan_of("second", LEVELS[::-1], range(3, 7)),
            plan_of("other", LEVELS, range(2), metric="accuracy", d_mlp=24),
        ]
        for plan in plans:
            do_all(db, register.register(db, plan), owner)
    lost = "SELECT run FROM runs WHERE study = 'first' AND cell LIKE '%serial' AND seed = 0"
    execute(path, f"DELETE FROM member WHERE role = 'compare' AND run_id = ({lost})")
    execute(path, "UPDATE final SET value = run_id * run_id WHERE name IN ('loss', 'accuracy')")
    execute(path, "UPDATE member SET role = 'tune' WHERE run_id = 7")
    execute(
        path,
        "INSERT INTO contrast (study_id, family, stratum, factor, level, cell_id, baseline_id)"
        " SELECT study_id, 'again', stratum, factor, 'again', cell_id + 1, cell_id FROM contrast"
        " WHERE id = 1",
    )
    return path


def _by_hand(path: Path) -> set[tuple[object, ...]]:
    """Each two compared runs of one seed, of the cells of a contrast, from the tables."""
    study = dict(rows(path, "SELECT id, name FROM study"))
    metric = dict(rows(path, "SELECT id, metric FROM study"))
    seed = dict(rows(path, "SELECT id, seed FROM run"))
    value = {(run, name): v for run, name, v in rows(path, "SELECT run_id, name, value FROM final")}
    member = rows(path, "SELECT cell_id, run_id FROM member WHERE role = 'compare'")
    return {
        (study[of], level, seed[run], value[run, metric[of]], value[other, metric[of]])
        for of, level, cell, baseline in rows(
            path, "SELECT study_id, level, cell_id, baseline_id FROM contrast"
        )
        for its_cell, run in member
        for other_cell, other in member
        if (its_cell, other_cell) == (cell, baseline) and seed[run] == seed[other]
    }


def test_pairs_are_those_made_by_hand(path: Path) -> None:
    wanted = _by_hand(path)
    columns = "study, level, seed, value, baseline_value"
    found = rows(path, f"SELECT {columns} FROM pairs")
    assert set(found) == wanted
    assert len(found) == len(wanted) > 12
    for study in ("first", "second", "other"):
        of_study = sorted(one for one in wanted if one[0] == study)
        assert sorted(rows(path, f"SELECT {columns} FROM pairs WHERE study = ?", study)) == of_study
        with store.open(str(path)) as db:
            (part,) = pairs(db, study)
        read = [dict(zip(part.columns, row, strict=True)) for row in part.rows]
        assert sorted(tuple(row[name] for name in columns.split(", ")) for row in read) == of_study


@pytest.mark.parametrize(
    "condition", ["", "WHERE study = 'wiring'", "WHERE metric = 'loss'", "WHERE level = 'parallel'"]
)
def test_work_grows_with_the_number_of_seeds(condition: str, tmp_path: Path) -> None:
    few, many = (_work(tmp_path / f"{n}.db", condition, {"wiring": n}) for n in (50, 400))
    assert few * 6 < many < few * 12, "8 times as many seeds; 64 times the work if each two are met"


def test_one_study_takes_no_work_of_others(tmp_path: Path) -> None:
    condition = "WHERE study = 'wiring'"
    alone = _work(tmp_path / "alone.db", condition, {"wiring": 50})
    among = _work(tmp_path / "among.db", condition, {"wiring": 50, "other": 400})
    assert among < alone * 1.2


def _work(path: Path, condition: str, seeds: dict[str, int]) -> int:
    """Return in how many hundreds of steps SQLite reads pairs of studies of so many seeds."""
    with store.open(str(path), create=True) as db:
        for name, number in seeds.items():
            register.register(db, plan_of(name, LEVELS, range(number)))
    steps = 0

    def count() -> None:
        nonlocal steps
        steps += 1

    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.set_progress_handler(count, 100)
        connection.execute(f"SELECT count(*), sum(difference) FROM pairs {condition}").fetchall()
    return steps
