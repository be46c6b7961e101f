"""Migrations: tables as in the code, no row lost, a backup first, past schemas open.

`python tests/test_store_migrations.py` writes the database of the newest schema that
`test_past_schemas` keeps.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from simultaneous import together
from store_plans import do_all, execute, names, plan_of, rows

from ablate import results, store
from ablate.errors import AblateError
from ablate.kinds import Run
from ablate.store import database, findings, migrate, owners, query, register, schema, views

KEPT = Path(__file__).parent / "store_schemas"

MADE_UP = """
import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

def upgrade():
    op.add_column("run", sa.Column("window", sa.Integer(), nullable=False, server_default="0"))
    # makes the table anew: the parent of attempt, member, final, artifact
    with op.batch_alter_table("run") as batch:
        batch.alter_column("fields", type_=sa.String(2000))
        batch.alter_column("flops", type_=sa.Integer())
    with op.batch_alter_table("cell") as batch:
        batch.alter_column("label", type_=sa.String(200))
    with op.batch_alter_table("study") as batch:
        batch.alter_column("question", nullable=True)
"""


def _know_the_made_up(scripts: Path, set: Callable[[object, str, object], None] = setattr) -> None:
    """Make this a program whose newest schema is the made-up one."""
    set(migrate, "SCRIPTS", scripts)
    set(migrate, "HEAD", "0006")
    set(database, "OLDEST", "0006")


def _filled(path: Path) -> None:
    with store.open(str(path), create=True) as db, owners.Owner.here(db) as owner:
        study_id = register.register(db, plan_of())
        do_all(db, study_id, owner)
        with db.begin() as connection:
            connection.exec_driver_sql(
                "INSERT INTO artifact (run_id, kind, path) VALUES (1, 'checkpoint', 'x.pt')"
            )
        findings.write(db, study_id, [findings.FindingRow("effect", "", data={"mean": 0.5})])


def _numbers(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Everything in every table but the runs' own rows."""
    tables = [name for name in schema.metadata.tables if name not in ("run", "study", "cell")]
    return {name: sorted(rows(path, f"SELECT * FROM {name}"), key=repr) for name in tables}


@pytest.fixture
def older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of the newest schema, in a program that knows one more."""
    path = tmp_path / "old" / "ablate.db"
    path.parent.mkdir()
    _filled(path)
    scripts = tmp_path / "migrations"
    shutil.copytree(migrate.SCRIPTS, scripts)
    (scripts / "versions" / "0006_made_up.py").write_text(MADE_UP)
    _know_the_made_up(scripts, monkeypatch.setattr)
    return path


def test_migrations_make_the_tables_that_the_code_names(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with store.open(str(path), create=True) as db, db.read() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": schema.VERSION_TABLE}
        )
        differences = [
            one
            for one in compare_metadata(context, schema.metadata)
            if one[0] != "remove_column" or one[2] != "run_field"  # a column for each field in use
        ]
    assert not differences, f"a migration is missing: {differences}"
    assert {
        name for (name,) in rows(path, "SELECT name FROM sqlite_master WHERE type = 'view'")
    } == set(views.VIEWS)
    ddl = dict(rows(path, "SELECT name, sql FROM sqlite_master WHERE type = 'table'"))
    for table in schema.metadata.tables.values():
        assert ("WITHOUT ROWID" in ddl[table.name]) == (
            not table.dialect_options["sqlite"]["with_rowid"]
        ), table.name


def test_upgrade_keeps_every_child_row(older: Path) -> None:
    before = _numbers(older)
    assert (
        len(before["metric"]) == 4 * 3 * 2
        and len(before["final"]) == 8
        and len(before["attempt"]) == 4
    )
    with store.open(str(older), create=True) as db:
        assert "upgraded from schema 0005 to 0006" in db.notes[0]
        with db.read() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
            assert connection.exec_driver_sql("SELECT count(*) FROM curves").scalar() == 24
            assert connection.exec_driver_sql("SELECT avg(loss), count(*) FROM runs").one() == (
                2.0,
                4,
            )
    assert _numbers(older) == before
    assert rows(older, "SELECT window FROM run") == [(0,)] * 4
    assert rows(older, "SELECT count(*) FROM run WHERE fields LIKE '{%'") == [(4,)]


def test_upgrade_backs_up_first(older: Path) -> None:
    old = _numbers(older)
    store.open(str(older), create=True).close()
    (copy,) = [name for name in names(older.parent) if "before" in name]
    backup = older.parent / copy
    assert rows(backup, "SELECT version_num FROM ablate_version") == [("0005",)]
    assert _numbers(backup) == old


def test_without_room_for_the_backup_nothing_is_upgraded(older: Path) -> None:
    before = older.read_bytes()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, unlimited[1]))
    try:
        with pytest.raises(AblateError, match=r"ablate.db (cannot grow|could not be)"):
            store.open(str(older), create=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert older.read_bytes() == before
    assert names(older.parent) == ["ablate.db", "ablate.journals"]
    with store.open(str(older), create=True) as db:  # and when there is
        assert "upgraded" in db.notes[0]


def _upgrade(path: str, scripts: Path) -> tuple[tuple[str, ...], int]:
    _know_the_made_up(scripts)
    with store.open(path, create=True) as db, db.read() as connection:
        return (
            db.notes,
            connection.exec_driver_sql("SELECT count(*) FROM run WHERE window = 0").scalar_one(),
        )


def test_eight_processes_upgrade_an_old_database_once(older: Path) -> None:
    before = _numbers(older)
    seen = together(_upgrade, [(str(older), migrate.SCRIPTS)] * 8)
    assert [runs for _, runs in seen] == [4] * 8, "every one of them works with the new schema"
    assert sum("upgraded from schema 0005" in note for notes, _ in seen for note in notes) == 1
    backup = "ablate.db.before-0006-from-0005"
    # one backup, no lock, no side file
    assert names(older.parent) == ["ablate.db", backup, "ablate.journals"]
    assert _numbers(older) == _numbers(older.parent / backup) == before
    assert rows(older.parent / backup, "SELECT version_num FROM ablate_version") == [("0005",)]


def test_reading_an_older_database_is_refused_untouched(older: Path) -> None:
    before = older.read_bytes()
    with pytest.raises(AblateError, match=r"older ablate .* `ablate db upgrade`"):
        store.open(str(older))
    assert older.read_bytes() == before


def test_failed_migration_leaves_the_old_database(older: Path) -> None:
    script = migrate.SCRIPTS / "versions" / "0006_made_up.py"
    script.write_text(MADE_UP + "    op.execute('DELETE FROM run WHERE id = 1')\n")
    before = _numbers(older), rows(older, "SELECT * FROM run")
    with pytest.raises(AssertionError, match="refer to nothing"):
        store.open(str(older), create=True)
    assert (_numbers(older), rows(older, "SELECT * FROM run")) == before
    assert rows(older, "SELECT version_num FROM ablate_version") == [("0005",)]
    assert rows(older, "SELECT count(*) FROM runs") == [(4,)]  # the views are still there


def test_creation_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"

    def fail(connection: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(views, "create", fail)
        store.open(str(path), create=True)
    assert not path.exists() or rows(path, "SELECT * FROM sqlite_master") == []
    store.open(str(path), create=True).close()
    assert rows(path, "SELECT version_num FROM ablate_version") == [(migrate.HEAD,)]


def test_a_version_of_another_tool_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    execute(path, "CREATE TABLE alembic_version (version_num TEXT)")
    with pytest.raises(AblateError, match="another program"):
        store.open(str(path), create=True)


# -- databases of past schemas ---------------------------------------------------------------------


def _answers(path: Path) -> dict[str, list[Any]]:
    """What people ask, on views, so that it stays the same in every later schema."""
    questions = {
        "runs": (
            "SELECT study, cell, role, key, status, seed, topology, lr, mask_mix, tokens, n_params,"
            " loss, accuracy, attempts FROM runs ORDER BY study, cell, seed"
        ),
        "curves": (
            "SELECT cell, seed, series, step, tokens, value FROM curves ORDER BY cell, seed,"
            " series, step"
        ),
        "pairs": (
            "SELECT level, seed, metric, value, baseline_value, difference FROM pairs ORDER BY"
            " level, seed"
        ),
    }
    return {name: [list(row) for row in rows(path, sql)] for name, sql in questions.items()}


def _expected(version: str) -> dict[str, list[Any]]:
    """The answers of a kept database: those of the last schema up to its own that has a file."""
    file = max(file for file in KEPT.glob("*.json") if file.stem <= version)
    answers: dict[str, list[Any]] = json.loads(file.read_text(encoding="utf-8"))
    return answers


def _kept(version: str, folder: Path) -> Path:
    """The database of a past schema."""
    path = folder / "x.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript((KEPT / f"{version}.sql").read_text(encoding="utf-8"))
    return path


@pytest.mark.parametrize("version", sorted(file.stem for file in KEPT.glob("*.sql")))
def test_past_schemas_open_with_their_numbers_unchanged(version: str, tmp_path: Path) -> None:
    path = _kept(version, tmp_path)
    store.open(str(path), create=True).close()
    assert rows(path, "SELECT version_num FROM ablate_version") == [(migrate.HEAD,)]
    assert _answers(path) == _expected(version)


CHILDREN = (
    *("attempt", "member", "final", "metric", "artifact"),
    *("cell", "cell_level", "contrast", "effect", "decision", "series", "study"),
)


def test_runs_become_kinds_with_fields_and_lose_no_child_row(tmp_path: Path) -> None:
    """From the first schema, with a column for each field, and rows in every table."""
    path = _kept("0001", tmp_path)
    execute(path, "INSERT INTO effect VALUES (1,'loss','paired t',2,0,.1,.1,0,1,.5,.5,'hash')")
    execute(path, "INSERT INTO decision VALUES (1, 1, 'lr', '0.001', '{}')")
    execute(path, "UPDATE run SET parent_run_id = 2, diverged_at = 7 WHERE id = 3")
    columns = {
        table: ", ".join(
            f'"{name}"'
            for (name,) in rows(path, "SELECT name FROM pragma_table_info(?)", table)
            if name != "sha256"
        )
        for table in CHILDREN
    }
    children = {table: f"SELECT {columns[table]} FROM {table}" for table in CHILDREN}
    before = {table: rows(path, sql) for table, sql in children.items()}
    assert all(before.values()), "a row in every child table"
    of_run = (
        "SELECT id, key, seed, parent_run_id, status, diverged_at, steps, tokens, n_params,"
        " n_params_body, flops FROM run ORDER BY id"
    )
    configs = [json.loads(text) for (text,) in rows(path, "SELECT config FROM run ORDER BY id")]
    kept = rows(path, of_run)
    with store.open(str(path), create=True) as db:
        assert "upgraded from schema 0001" in db.notes[0]
    assert {table: rows(path, sql) for table, sql in children.items()} == before
    assert rows(path, of_run) == kept
    stored = rows(path, "SELECT kind, key, fields, seed FROM run ORDER BY id")
    for config, (kind, key, fields, seed) in zip(configs, stored, strict=True):
        assert json.loads(fields) | {"seed": seed} == config
        assert Run(kind, json.loads(fields), seed).key == key


def test_windows_and_findings_come_without_touching_a_row(tmp_path: Path) -> None:
    """From schema 0002, with rows in every child table of runs and studies."""
    path = _kept("0002", tmp_path)
    execute(path, "INSERT INTO effect VALUES (1,'loss','paired t',2,0,.1,.1,0,1,.5,.5,'hash')")
    execute(path, "INSERT INTO decision VALUES (1, 1, 'lr', '0.001', '{}')")
    before = _whole(path, (*CHILDREN, "run", "run_field"))
    with store.open(str(path), create=True) as db:
        assert "upgraded from schema 0002" in db.notes[0]
        assert findings.read(db, "wiring") == []
    assert {sql: rows(path, sql) for sql in before} == before
    assert rows(path, "SELECT count(*) FROM window_loss") == [(0,)]


def _whole(path: Path, tables: Sequence[str]) -> dict[str, list[tuple[Any, ...]]]:
    """A query of the columns that each table has now → its rows; later columns are left out."""
    found = {}
    for table in tables:
        names = rows(path, "SELECT name FROM pragma_table_info(?)", table)
        columns = ", ".join(f'"{name}"' for (name,) in names)
        sql = f"SELECT {columns} FROM {table}"
        found[sql] = rows(path, sql)
        assert found[sql], f"a row in {table}"
    return found


def test_code_and_notes_come_without_touching_a_row(tmp_path: Path) -> None:
    """From schema 0003, with rows in every child table of runs and studies."""
    path = _kept("0003", tmp_path)
    execute(path, "INSERT INTO effect VALUES (1,'loss','paired t',2,0,.1,.1,0,1,.5,.5,'hash')")
    execute(path, "INSERT INTO decision VALUES (1, 1, 'lr', '0.001', '{}')")
    before = _whole(path, (*CHILDREN, "run", "run_field", "finding", "window_loss"))
    store.open(str(path), create=True).close()
    assert {sql: rows(path, sql) for sql in before} == before
    assert rows(path, "SELECT DISTINCT note FROM attempt") == [(None,)]
    assert rows(path, "SELECT count(*) FROM code") == [(0,)]


def test_a_database_with_older_views_is_read_untouched(tmp_path: Path) -> None:
    """Schema 0004 has the tables of 0005: published databases need no upgrade to be read."""
    path = _kept("0004", tmp_path)
    before = path.read_bytes()
    path.chmod(0o444)
    with store.open(str(path)) as db:
        assert len(results.load("wiring", db)) == len(results.pairs("wiring", db)) * 2 > 0
        assert query.run(db, "SELECT count(*) FROM pairs")[1] == [(2,)]
    assert path.read_bytes() == before
    assert names(tmp_path) == ["x.db"]


def test_faster_pairs_come_without_touching_a_row(tmp_path: Path) -> None:
    """From schema 0004, with rows in every child table of runs and studies."""
    path = _kept("0004", tmp_path)
    execute(path, "INSERT INTO effect VALUES (1,'loss','paired t',2,0,.1,.1,0,1,.5,.5,'hash')")
    execute(path, "INSERT INTO decision VALUES (1, 1, 'lr', '0.001', '{}')")
    execute(path, "INSERT INTO code VALUES (1, 'a.py', 'hash', 1, 'x = 1', '{}')")
    before = _whole(path, (*CHILDREN, "run", "run_field", "finding", "window_loss", "code"))
    pairs = rows(path, "SELECT * FROM pairs ORDER BY contrast, seed")
    with store.open(str(path), create=True) as db:
        assert "upgraded from schema 0004" in db.notes[0]
    assert {sql: rows(path, sql) for sql in before} == before
    assert rows(path, "SELECT * FROM pairs ORDER BY contrast, seed") == pairs != []


def test_newest_schema_is_kept_and_has_not_changed_without_a_migration(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    store.open(str(path), create=True).close()
    assert (KEPT / f"{migrate.HEAD}.sql").exists(), (
        f"keep a database of schema {migrate.HEAD}: run `python {Path(__file__).name}` in tests/"
    )
    assert _schema(path) == _schema(_kept(migrate.HEAD, tmp_path)), (
        "a table or view changed: it needs a migration of its own"
    )


def _schema(path: Path) -> dict[str, str]:
    """Table, view or index → its SQL without the columns of fields, which need no migration."""
    sql = dict(rows(path, "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
    sql["all_runs"] = re.sub(r'run_field\."\w+" AS "\w+",\s+', "", sql["all_runs"])
    sql["run_field"] = re.sub(r'(?:,\s+"\w+")+', "", sql["run_field"])
    return sql


def _keep(folder: Path) -> None:
    path = folder / "x.db"
    _filled(path)
    execute(path, "UPDATE metric SET value = NULL WHERE run_id = 1 AND step = 2")
    execute(path, "UPDATE final SET value = 9e999 WHERE run_id = 2 AND name = 'accuracy'")
    with contextlib.closing(sqlite3.connect(path)) as connection:
        dump = "\n".join(line.replace(",Inf)", ",9e999)") for line in connection.iterdump())
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{migrate.HEAD}.sql").write_text(dump + "\n", encoding="utf-8")
    if (answers := _answers(path)) != _expected(migrate.HEAD):
        (KEPT / f"{migrate.HEAD}.json").write_text(
            json.dumps(answers, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        _keep(Path(folder))
