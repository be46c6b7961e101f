"""A plan → the tables: study, cells, levels, contrasts, members, runs. In one transaction, and
idempotent.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from shlex import quote
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.dialects.sqlite import insert

from ablate import sizes
from ablate.config import RunConfig
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.plan import Plan
from ablate.store import schema
from ablate.store.database import Database
from ablate.store.evaluated import differing, settle


def register(db: Database, plan: Plan) -> int:
    """Put a plan into the database; the study's id.

    The same plan again changes nothing. A changed one raises the study's revision: its cells,
    members and contrasts follow the plan, cells no longer in it stay, inactive, and no run and no
    number is deleted; runs that were measured otherwise than it now says are to be done again.
    `AblateError` where another study shares a run but measures it by other means, for a run has
    each final once.
    """
    plan_hash = _hash(plan)
    with db.begin() as connection:
        found = connection.execute(
            text("SELECT id, plan_hash, toml, revision FROM study WHERE name = :name"),
            {"name": plan.study.name},
        ).first()
        if found and found.plan_hash == plan_hash and found.toml == plan.study.toml:
            return found.id
        study_id = _study(connection, plan, plan_hash, found)
        if not found or found.plan_hash != plan_hash:
            cells = _cells(connection, study_id, plan)
            runs = _runs(connection, [planned.config for planned in plan.runs])
            _members(connection, cells, runs, plan)
            _contrasts(connection, study_id, cells, plan)
            refuse_other_measures(connection, study_id, plan.study.evaluation)
            settle(connection, study_id, plan.study.evaluation)
        return study_id


def _hash(plan: Plan) -> str:
    study = plan.study
    content = {
        "study": [
            study.name,
            study.question,
            study.metric,
            study.goal,
            study.evaluation.model_dump(mode="json"),
        ],
        "cells": [[cell.label, cell.levels, cell.stratum] for cell in plan.cells],
        "ordinals": _ordinals(plan),
        "contrasts": [
            [c.family, c.stratum, c.factor, c.level, c.cell, c.baseline] for c in plan.contrasts
        ],
        "runs": [[planned.cell, planned.role, planned.config.key] for planned in plan.runs],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _ordinals(plan: Plan) -> dict[str, list[str]]:
    """Factor → its levels, baseline first: as the study states them, else as the cells bring
    them.
    """
    order = {factor: list(levels) for factor, levels in plan.study.factors.items()}
    for cell in plan.cells:
        for factor, level in cell.levels.items():
            known = order.setdefault(factor, [])
            if level not in known:
                known.append(level)
    return order


def _study(connection: Connection, plan: Plan, plan_hash: str, found: Any) -> int:
    study = plan.study
    values = {
        "question": study.question,
        "metric": study.metric,
        "goal": study.goal,
        "toml": study.toml,
        "evaluation": study.evaluation.model_dump_json(),
        "plan_hash": plan_hash,
    }
    if found is None:
        return connection.execute(
            schema.study.insert()
            .values(name=study.name, revision=1, **values)
            .returning(schema.study.c.id)
        ).scalar_one()
    revision = found.revision + (found.plan_hash != plan_hash)
    connection.execute(
        schema.study.update()
        .where(schema.study.c.id == found.id)
        .values(revision=revision, **values)
    )
    return found.id


def _cells(connection: Connection, study_id: int, plan: Plan) -> dict[str, int]:
    """Label → id of the plan's cells; all others of the study become inactive."""
    connection.execute(
        schema.cell.update().where(schema.cell.c.study_id == study_id).values(active=False)
    )
    rows = [
        {"study_id": study_id, "label": cell.label, "stratum": cell.stratum, "active": True}
        for cell in plan.cells
    ]
    statement = insert(schema.cell)
    statement = statement.on_conflict_do_update(
        index_elements=["study_id", "label"],
        set_={"active": True, "stratum": statement.excluded.stratum},
    )
    if rows:
        connection.execute(statement, rows)
    ids = {
        label: cell_id
        for cell_id, label in connection.execute(
            text("SELECT id, label FROM cell WHERE study_id = :id AND active"), {"id": study_id}
        )
    }
    connection.execute(
        text(
            "DELETE FROM cell_level WHERE cell_id IN (SELECT id FROM cell WHERE study_id = :id AND"
            " active)"
        ),
        {"id": study_id},
    )
    order = _ordinals(plan)
    levels = [
        {
            "cell_id": ids[cell.label],
            "factor": factor,
            "level": level,
            "ordinal": order[factor].index(level),
        }
        for cell in plan.cells
        for factor, level in cell.levels.items()
    ]
    if levels:
        connection.execute(schema.cell_level.insert(), levels)
    return ids


def _runs(connection: Connection, configs: Sequence[RunConfig]) -> dict[str, int]:
    """Key → id of the configurations' runs; those that no study had yet are planned."""
    ids = {key: run_id for run_id, key in connection.exec_driver_sql("SELECT id, key FROM run")}
    new = {config.key: config for config in configs if config.key not in ids}
    if new:
        connection.execute(schema.run.insert(), [_run(key, config) for key, config in new.items()])
        ids = {key: run_id for run_id, key in connection.exec_driver_sql("SELECT id, key FROM run")}
    return ids


def _run(key: str, config: RunConfig) -> dict[str, Any]:
    size = sizes.count(config)
    return {
        "key": key,
        "config": json.dumps(config.model_dump(mode="json")),
        "status": "planned",
        **schema.field_values(config),
        "tokens": config.tokens,
        "n_params": size.params,
        "n_params_body": size.body,
        "flops": float(sizes.train_flops(config)),
    }


def _members(
    connection: Connection, cells: dict[str, int], runs: dict[str, int], plan: Plan
) -> None:
    connection.exec_driver_sql(
        "DELETE FROM member WHERE cell_id = ?", [(cell_id,) for cell_id in cells.values()]
    )
    rows = [
        {
            "cell_id": cells[planned.cell],
            "run_id": runs[planned.config.key],
            "role": planned.role,
            "ordinal": place,
        }
        for place, planned in enumerate(plan.runs)
    ]
    if rows:
        connection.execute(schema.member.insert(), rows)


def _contrasts(connection: Connection, study_id: int, cells: dict[str, int], plan: Plan) -> None:
    """Contrasts as planned; one that stays keeps its id and its effects."""
    columns = ("family", "stratum", "factor", "level", "cell_id", "baseline_id")
    planned = {
        (c.family, c.stratum, c.factor, c.level, cells[c.cell], cells[c.baseline]): None
        for c in plan.contrasts
    }
    there = {
        tuple(row[1:]): row[0]
        for row in connection.execute(
            text(f"SELECT id, {', '.join(columns)} FROM contrast WHERE study_id = :id"),
            {"id": study_id},
        )
    }
    gone = [(there[row],) for row in there.keys() - planned.keys()]
    if gone:
        connection.exec_driver_sql("DELETE FROM contrast WHERE id = ?", gone)
    new = [row for row in planned if row not in there]
    if new:
        connection.execute(
            schema.contrast.insert(),
            [{"study_id": study_id, **dict(zip(columns, row, strict=True))} for row in new],
        )


def refuse_other_measures(connection: Connection, study_id: int, evaluation: Evaluation) -> None:
    """`AblateError` where another study shares a run with this one, but measures it by other
    means.
    """
    others = connection.execute(
        text(
            "SELECT other.name, other.evaluation, count(DISTINCT m.run_id) FROM cell AS c JOIN"
            " member AS m ON m.cell_id = c.id JOIN member AS om ON om.run_id = m.run_id JOIN cell"
            " AS oc ON oc.id = om.cell_id AND oc.active JOIN study AS other ON other.id ="
            " oc.study_id WHERE c.study_id = :id AND c.active AND other.id <> :id GROUP BY other.id"
        ),
        {"id": study_id},
    )
    for name, its, shared in others:
        if differing(evaluation, [Evaluation.model_validate_json(its)]):
            raise AblateError(
                f"study {name!r} shares {shared} runs with this one but measures them otherwise;"
                " give both the same [eval] tokens, probe.mix, probe.kind and longest of lengths,"
                f" use another database, or `ablate db forget {quote(name)}` where its results are"
                " no longer wanted"
            )
