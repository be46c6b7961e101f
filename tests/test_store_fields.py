"""Fields of runs: a column of the view `runs` for each, without a migration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from store_plans import claim_next, do_all, execute, fresh, plan_of, rows

from ablate import kinds
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.kinds import Cost, Field, Run
from ablate.launch import packs
from ablate.launch.devices import Device
from ablate.plan import Plan
from ablate.store import Database, noise, owners, register, runs
from ablate.store.merge import merge
from ablate.store.query import run as ask


class Sorting:
    """A kind of run that is no transformer, and whose size nobody knows."""

    name = "sorting"
    numerics = 1
    fields: Mapping[str, Field] = {}

    def identity(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return fields

    def cost(self, fields: Mapping[str, Any]) -> Cost:
        return Cost()

    def typed(self, run: Run) -> None:
        return None

    def pack_key(self, run: Run) -> str:
        return run.key

    def finals(self, fields: Mapping[str, Any], evaluation: Evaluation) -> list[tuple[str, float]]:
        return [("loss", 0.0)]


FIELDS = {"algorithm": "quick, then merge", "n_items": 7, "rate": 1e-3, "lr": 0.5, "on": True}


@pytest.fixture
def sorting(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A plan of two runs of the other kind, until components plan their own runs."""
    monkeypatch.setitem(kinds._PATHS, "sorting", f"{__name__}:Sorting")
    kinds.kind.cache_clear()
    plan = plan_of("sorting", levels=("serial",), n_layer=3)
    return with_fields(plan, FIELDS | {"parts": [1, 0.5], "names": ["a,b", "c"]})


def with_fields(plan: Plan, fields: Mapping[str, Any]) -> Plan:
    """Return a plan with a sorting run of these fields for each of its runs."""
    runs = (dataclasses.replace(one, run=Run("sorting", fields, one.run.seed)) for one in plan.runs)
    return dataclasses.replace(plan, runs=tuple(runs))


def test_a_new_field_is_a_column_once_a_run_has_it(tmp_path: Path, sorting: Plan) -> None:
    with fresh(tmp_path / "x.db") as db:
        before = ask(db, "SELECT * FROM runs")[0]
        register.register(db, plan_of())
        transformers = ask(db, "SELECT * FROM runs")
        register.register(db, sorting)
        columns, _ = ask(db, "SELECT * FROM runs")
        new = [name for name in columns if name not in transformers[0]]
        assert new == ["algorithm", "n_items", "rate", "on", "parts", "names"]
        assert before == transformers[0], "the fields of transformers have columns at once"
        sql = (
            "SELECT algorithm, n_items, rate, lr, parts, names, topology, tokens, n_params, flops"
            " FROM runs WHERE study = 'sorting' AND seed = 1"
        )
        values = ("quick, then merge", 7, 1e-3, 0.5, "[1, 0.5]", '["a,b","c"]')
        assert ask(db, sql)[1] == [(*values, *[None] * 4)]
        of_transformers = ", ".join(f'"{name}"' for name in transformers[0])
        again = ask(db, f"SELECT {of_transformers} FROM runs WHERE study = 'wiring'")[1]
        assert sorted(again) == sorted(transformers[1])


def test_views_are_made_anew_only_for_a_new_field(tmp_path: Path, sorting: Plan) -> None:
    with fresh(tmp_path / "x.db") as db:
        register.register(db, plan_of())
        (version,) = rows(db.path, "PRAGMA schema_version")
        register.register(db, plan_of("other", levels=("concat",)))
        assert rows(db.path, "PRAGMA schema_version") == [version]
        register.register(db, sorting)
        assert rows(db.path, "PRAGMA schema_version") > [version]


def test_runs_of_another_kind_are_claimed_measured_and_merged(
    tmp_path: Path, sorting: Plan
) -> None:
    with fresh(tmp_path / "a.db") as db, owners.Owner.here(db) as owner:
        study = register.register(db, sorting)
        (claim,) = claim_next(db, study, owner, 1)
        assert claim.run.kind == "sorting" and claim.run.fields["algorithm"] == "quick, then merge"
        assert (
            claim.run.key == rows(db.path, "SELECT key FROM run WHERE id = ?", claim.run_id)[0][0]
        )
        runs.finish(db, claim.attempt_id, "stopped")
        assert do_all(db, study, owner) == 2
        with fresh(tmp_path / "b.db") as other:
            register.register(other, plan_of())
            merge(other, db)
            assert ask(other, "SELECT DISTINCT n_items FROM runs ORDER BY 1")[1] == [(None,), (7,)]


def test_a_run_keeps_the_key_of_its_parent(tmp_path: Path) -> None:
    plan = plan_of(levels=("serial",))
    first, second = plan.runs
    parent = first.run
    child = dataclasses.replace(second.run, parent=parent.key)
    plan = dataclasses.replace(plan, runs=(first, dataclasses.replace(second, run=child)))
    with fresh(tmp_path / "x.db") as db, owners.Owner.here(db) as owner:
        study = register.register(db, plan)
        claims = claim_next(db, study, owner, 2)
        assert {claim.run.key for claim in claims} == {parent.key, child.key}
        assert {claim.run.parent for claim in claims} == {"", parent.key}


@pytest.mark.parametrize(
    "name", ["status", "Status", "loss", "Tokens", "run_id", "study", "Topology", "a b", 'x"']
)
def test_a_field_that_cannot_be_a_column_is_refused(
    tmp_path: Path, sorting: Plan, name: str
) -> None:
    sorting = with_fields(sorting, {name: 1})
    with fresh(tmp_path / "x.db") as db:
        with pytest.raises(AblateError, match=f"field {name!r}"):
            register.register(db, sorting)
        assert rows(db.path, "SELECT (SELECT count(*) FROM run), (SELECT count(*) FROM study)") == [
            (0, 0)
        ]


def test_a_kind_whose_field_cannot_be_a_column_is_refused(
    monkeypatch: pytest.MonkeyPatch, sorting: Plan
) -> None:
    for names in (["Lr", "lr"], ["Status"], ["run_id"], ["a b"]):
        fields = {name: Field(name, int, 1, "A number.") for name in names}
        monkeypatch.setattr(Sorting, "fields", fields)
        kinds.kind.cache_clear()
        with pytest.raises(AblateError, match=f"field {names[0]!r}") as error:
            kinds.kind("sorting")
        assert "\n" not in str(error.value)


def test_numbers_of_the_view_are_exactly_those_of_the_run(db_of_rates: Database) -> None:
    for text, rate in rows(db_of_rates.path, "SELECT key, lr FROM runs"):
        (fields,) = rows(db_of_rates.path, "SELECT fields FROM run WHERE key = ?", text)
        assert repr(rate) in fields[0]


@pytest.fixture
def db_of_rates(tmp_path: Path) -> Database:
    with fresh(tmp_path / "x.db") as db:
        for n in range(40):
            lr = 10 ** (-4 + n / 13)
            register.register(db, plan_of(f"rate {n}", levels=("serial",), seeds=(0,), lr=lr))
    return db


def test_sqlite_itself_reads_the_view(tmp_path: Path) -> None:
    """As people do with `sqlite3`, pandas or Datasette."""
    with fresh(tmp_path / "x.db") as db:
        register.register(db, plan_of())
    execute(db.path, "UPDATE run SET status = 'complete' WHERE id = 1")
    assert rows(db.path, "SELECT topology, typeof(lr), typeof(n_layer) FROM runs LIMIT 1") == [
        ("serial", "real", "integer")
    ]


def test_unknown_sizes_are_not_alike() -> None:
    known = noise.Setting("sorting", None, None, None, 1000, 10)
    assert known.like(dataclasses.replace(known, tokens=1500))
    for name in ("tokens", "n_params"):
        unknown = dataclasses.replace(known, **{name: None})
        assert not known.like(unknown) and not unknown.like(unknown)


def test_runs_of_unknown_memory_get_one_worker_a_device(sorting: Plan) -> None:
    device = Device("cpu", 64 << 30, 8)
    assert packs.worker_slots(sorting, [device]) == [device]
    assert len(packs.worker_slots(plan_of(), [device])) > 1


def test_sizes_that_were_stated_wrong_are_corrected(tmp_path: Path) -> None:
    with fresh(tmp_path / "x.db") as db:
        register.register(db, plan_of())
        right = rows(db.path, "SELECT key, n_params, n_params_body, flops FROM run ORDER BY key")
        execute(db.path, "UPDATE run SET n_params = 7, n_params_body = 5, flops = 1e3")
        register.register(db, plan_of())
        sizes = "SELECT key, n_params, n_params_body, flops FROM run ORDER BY key"
        assert rows(db.path, sizes) == right
