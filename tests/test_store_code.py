"""Code of runs: kept with the study in every version, counted, merged, thinned and forgotten."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_plans import do_all, fresh, plan_of, rows

from ablate import outside, store
from ablate.cli import stored
from ablate.code import Code, of_text
from ablate.errors import AblateError
from ablate.store import Database, code, forget, merge, owners, register
from ablate.store.thin import thin

HOME = Path.home()
TEXT = """
from ablate import level

@level("topology", "mine", meaning="y = x + A(x) + M(x)")
def mine(x, A, M, P1, P2):
    return x + A(x) + M(x)
"""
FIRST = of_text("parts.py", f"# {HOME}/work{TEXT}")
SECOND = of_text("parts.py", f"# later{TEXT}")
MINE = "topology=mine"


@pytest.fixture(autouse=True)
def no_levels_left() -> Iterator[None]:
    yield
    outside.use(())


def trained(db: Database, source: Code, name: str = "wiring", **fields: Any) -> None:
    """Train a study of a level of this code, with two seeds."""
    used = outside.use([source])
    plan = replace(plan_of(name, ("serial", "mine"), **fields), code=used)
    with owners.Owner.here(db) as owner:
        do_all(db, register.register(db, plan), owner)


def told(db: Database, study: str = "wiring") -> list[tuple[str, bool, dict[str, int], int]]:
    return [(one.code.version, one.active, one.cells, one.left) for one in code.made(db, study)]


def test_runs_of_every_version_are_counted(db: Database) -> None:
    trained(db, FIRST)
    assert told(db) == [(FIRST.version, True, {MINE: 2}, 0)]
    (kept,) = code.made(db, "wiring")
    assert kept.code.text == FIRST.text
    assert kept.code.about == {"levels": [["topology", "mine", "y = x + A(x) + M(x)", ""]]}
    trained(db, SECOND)
    assert told(db) == [(FIRST.version, False, {}, 2), (SECOND.version, True, {MINE: 2}, 0)]
    trained(db, FIRST)  # as it was: nothing is trained again
    assert told(db) == [(FIRST.version, True, {MINE: 2}, 0), (SECOND.version, False, {}, 2)]
    assert rows(db.path, "SELECT count(*) FROM run") == [(6,)]


def test_runs_of_a_package_that_was_known_by_its_version_are_told(db: Database) -> None:
    trained(db, FIRST)
    with sqlite3.connect(db.path) as connection:  # as an earlier ablate wrote them
        old = ("my-levels", "1.0", '["my-levels@1.0"]', FIRST.version)
        connection.execute("UPDATE code SET name = ?, version = ?, text = NULL", old[:2])
        connection.execute(
            "UPDATE run SET fields = json_set(fields, '$.code', json(?))"
            " WHERE instr(json_extract(fields, '$.code'), ?)",
            old[2:],
        )
    assert told(db) == [("1.0", True, {MINE: 2}, 0)]
    assert code.made(db, "wiring")[0].code.files == {}


def test_runs_that_left_another_study_of_the_same_code_are_not_counted(db: Database) -> None:
    trained(db, FIRST)
    trained(db, FIRST, lr=0.01)  # the file was edited, the code was not
    assert told(db) == [(FIRST.version, True, {MINE: 2}, 2)]
    assert list(stored.notes("wiring", db)) == [
        "2 runs of earlier revisions left the study wiring: its cells have other runs now."
    ]
    trained(db, SECOND)
    assert [left for *_, left in told(db)] == [4, 0]
    assert list(stored.notes("wiring", db)) == [
        f"4 runs by an earlier parts.py ({FIRST.version[:12]}) left the study wiring."
    ]
    trained(db, replace(FIRST, name="moved.py"))  # the same content under another name
    trained(db, SECOND)
    assert len(list(stored.notes("wiring", db))) == 1
    trained(db, FIRST, "other", lr=0.1)
    for name in ("wiring", "other"):  # nothing says which of the two they left
        assert {left for *_, left in told(db, name)} == {0}
        assert not list(stored.notes(name, db))


def test_merging_keeps_every_version_and_the_later_plan(tmp_path: Path) -> None:
    other = of_text("parts.py", f"# elsewhere{TEXT}")
    with fresh(tmp_path / "a.db") as a:
        trained(a, FIRST)
        trained(a, other)
        a.close()
        shutil.copy(a.path, tmp_path / "b.db")
        trained(a, SECOND)  # revision 3
        with store.open(str(tmp_path / "b.db"), create=True) as b:
            for one, two in ((a, b), (b, a)):
                merge.merge(one, two)
            assert sorted(map(repr, told(a))) == sorted(map(repr, told(b)))
            assert {version: (active, left) for version, active, _, left in told(a)} == {
                FIRST.version: (False, 2),
                SECOND.version: (True, 0),
                other.version: (False, 2),
            }
            before = told(a)
            assert merge.merge(a, b).studies == 0 and told(a) == before


def test_merging_refuses_to_drop_the_results_of_other_code(tmp_path: Path) -> None:
    with fresh(tmp_path / "a.db") as a, fresh(tmp_path / "b.db") as b:
        trained(a, FIRST)
        trained(b, SECOND)
        for one, two in ((a, b), (b, a)):
            before = told(one)
            with pytest.raises(AblateError) as error:
                merge.merge(one, two)
            said = str(error.value)
            for db, source in ((a, FIRST), (b, SECOND)):
                assert f"{source.version[:12]} in {db.path}" in said
            assert f"2 runs of {MINE}" in said and "parts.py" in said and "--rename" in said
            assert told(one) == before
        merge.merge(a, b, {"wiring": "theirs"})
        assert [told(a, name)[0][2] for name in ("wiring", "theirs")] == [{MINE: 2}, {MINE: 2}]


@pytest.mark.parametrize("turned", [False, True])
def test_merging_says_which_code_holds_where_nothing_is_lost(turned: bool, tmp_path: Path) -> None:
    with fresh(tmp_path / "a.db") as a, fresh(tmp_path / "b.db") as b:
        used = outside.use([SECOND])
        register.register(b, replace(plan_of(levels=("serial", "mine")), code=used))
        register.register(a, plan_of(levels=("serial",)))
        trained(a, FIRST)  # revision 2, which is the later one
        one, two = (b, a) if turned else (a, b)
        (said,) = merge.merge(one, two).edited
        assert f"parts.py of study wiring differs; that of {a.path} holds" in said
        assert (FIRST.version, True, {MINE: 2}, 0) in told(one)


def test_thinning_takes_folders_of_users_out(db: Database) -> None:
    trained(db, replace(FIRST, name=f"{HOME}/work/parts.py"))
    thin(db, 20)
    ((name, text),) = rows(db.path, "SELECT name, text FROM code")
    assert name == "…/parts.py" and text.startswith("# ~/work\n")
    label = f'["…/parts.py@{FIRST.version}"]'
    assert rows(db.path, "SELECT DISTINCT code FROM runs WHERE topology = 'mine'") == [(label,)]
    assert told(db)[0][2] == {MINE: 2}
    assert thin(db, 20).private == 0


def test_forgetting_a_study_takes_runs_of_its_earlier_code_along(db: Database) -> None:
    trained(db, FIRST)
    trained(db, SECOND)
    with owners.Owner.here(db) as owner:  # shares the baseline
        do_all(db, register.register(db, plan_of("other")), owner)
    gone = forget.part(db, "wiring")
    assert gone.rows["runs"] == 4 and gone.shared == 2
    forget.forget(db, "wiring")
    assert rows(db.path, "SELECT count(*) FROM code") == [(0,)]
    assert rows(db.path, "SELECT fields ->> 'topology', count(*) FROM run GROUP BY 1") == [
        ("parallel", 2),
        ("serial", 2),
    ]
