"""Write a plan into the tables study, cell, cell_level, contrast, member and run.

One transaction; the same plan again changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.dialects.sqlite import insert

from ablate import metrics
from ablate.errors import AblateError
from ablate.evaluation import Evaluation
from ablate.kinds import Run
from ablate.plan import Plan
from ablate.plan.cells import baseline_levels
from ablate.plan.held_out import measured
from ablate.store import code, schema, views
from ablate.store.database import Database
from ablate.store.evaluated import differing, revalidate
from ablate.store.replaced import dropped, results
from ablate.study import Study
from ablate.study.source import Source
from ablate.units import listed


def register(db: Database, plan: Plan, *, replace: bool = False) -> int:
    """Put a plan into the database and return the study's id.

    The same plan again changes nothing. A changed one raises the study's revision: its cells,
    members and contrasts follow the plan, cells no longer in it become inactive, and no run and no
    number is deleted. Runs measured by another evaluation than the plan's are to be done again.

    Args:
        db: The database.
        plan: The plan.
        replace: Whether an edited file may drop every result of a cell; see `store.replaced`.

    Raises:
        AblateError: Another study shares a run but measures it by other means: a run has each final
            once. Or the study of this name has results that the plan would drop. Or a script that
            has ended did not report the value that decides.
    """
    with db.begin() as connection:
        return register_in(connection, plan, db.path, replace=replace)


def register_in(connection: Connection, plan: Plan, path: Path, *, replace: bool) -> int:
    """Do as `register`, as a part of the caller's transaction on the database `path`."""
    runs = [planned.run for planned in plan.runs]
    plan_hash = _hash(plan, runs)
    existing = connection.execute(
        text("SELECT id, plan_hash, toml, revision FROM study WHERE name = :name"),
        {"name": plan.study.name},
    ).first()
    _correct_sizes(connection, runs)
    if existing and existing.plan_hash == plan_hash and existing.toml == plan.study.toml:
        return existing.id
    if existing and not replace and (lost := _dropped(connection, plan, existing.toml)):
        raise AblateError(
            f"study {plan.study.name!r} in {path} has results that this file would drop:"
            f" {lost}; give this study another name, or replace that one with --replace"
        )
    study_id = _study(connection, plan, plan_hash, existing)
    code.write(connection, study_id, plan.code)
    if not existing or existing.plan_hash != plan_hash:
        connection.exec_driver_sql("DELETE FROM finding WHERE study_id = ?", (study_id,))
        cells = _cells(connection, study_id, plan)
        _members(connection, cells, runs, _runs(connection, runs), plan)
        _contrasts(connection, study_id, cells, plan)
        refuse_other_measures(connection, study_id, plan.study.evaluation)
        revalidate(connection, study_id, plan.study.evaluation)
        if plan.study.own:
            _final_of_curve(connection, study_id, plan.study.metric, plan.study.goal)
        if plan.study.command:
            _refuse_unreported(connection, study_id, plan.study)
    return study_id


_COMPLETE = (
    "run.status = 'complete' AND run.id IN (SELECT run_id FROM member JOIN cell ON cell.id ="
    " cell_id WHERE study_id = :study AND active)"
)


def _final_of_curve(connection: Connection, study_id: int, metric: str, goal: str) -> None:
    """Store the value that decides a study for runs that ended before it was asked for.

    A script is not run again for a number that its curve has: the one at a step, or the best one.
    """
    name, at = metrics.final(metric)
    series = name.removeprefix("best ")
    if at:
        value, which = "value", "AND step = :at"
    elif series != name:
        value = "min(value)" if goal == "min" else "max(value)"
        which = "AND abs(value) < 9e999 GROUP BY run.id"
    else:
        return
    connection.execute(
        text(
            f"INSERT INTO final (run_id, name, at, value) SELECT run.id, :name, :at, {value} FROM"
            " run JOIN metric ON metric.run_id = run.id JOIN series ON series.id = series_id WHERE"
            f" {_COMPLETE} AND series.name = :series {which} ON CONFLICT DO NOTHING"
        ),
        {"name": name, "at": at, "series": series, "study": study_id},
    )


def _refuse_unreported(connection: Connection, study_id: int, study: Study) -> None:
    """Raise `AblateError` if complete runs lack the value that decides: they do not run again."""
    name, at = metrics.final(study.metric)
    lacking = list(
        connection.execute(
            text(
                f"SELECT run.id FROM run WHERE {_COMPLETE} AND NOT EXISTS (SELECT 1 FROM final"
                " WHERE run_id = run.id AND name = :name AND at = :at) ORDER BY run.id"
            ),
            {"name": name, "at": at, "study": study_id},
        ).scalars()
    )
    if not lacking:
        return
    reported = {
        series: (first, last, points)
        for series, first, last, points in connection.exec_driver_sql(
            "SELECT series.name, min(step), max(step), count(*) FROM metric JOIN series ON"
            " series.id = series_id WHERE run_id = ? GROUP BY series.name",
            (lacking[0],),
        )
    }
    runs = "1 complete run" if len(lacking) == 1 else f"{len(lacking):,} complete runs"
    begin = f"{runs} in the database, which this study shares and does not train again, reported no"
    source = Source(study.path, study.toml)
    if at and name in reported:
        first, last, points = reported[name]
        raise AblateError(
            f"{source.where('command', 'at')}: {begin} {name!r} at step {at:g}, but {points} from"
            f" step {first} to {last}: change [command] at"
        )
    raise AblateError(
        f"{source.where('metric')}: {begin} {name.removeprefix('best ')!r}, but"
        f" {listed(reported, most=10) or 'no number at all'}: name one of them as metric"
    )


def would_drop(db: Database, plan: Plan) -> str:
    """Return, in words, the results for whose loss `register` would refuse a plan; "" if none."""
    with db.read() as connection:
        toml = connection.exec_driver_sql(
            "SELECT toml FROM study WHERE name = ?", (plan.study.name,)
        ).scalar()
        return "" if toml is None else _dropped(connection, plan, toml)


def _dropped(connection: Connection, plan: Plan, toml: str) -> str:
    planned = {run.run.key for run in plan.runs}
    before = results(connection, plan.study.name)
    # Runs at a rate that is still to be chosen are not planned yet.
    waiting = {label for group in plan.undecided for label in group.cells}
    for cell in plan.cells:
        if cell.label in waiting and (keys := before.get(cell.label)):
            fields = connection.exec_driver_sql(
                "SELECT fields FROM run WHERE key = ?", (min(keys),)
            ).scalar_one()
            assert plan.study.tune
            chosen = {plan.study.tune.field: 0.0}
            if json.loads(fields) | chosen == dict(cell.run.fields) | chosen:
                del before[cell.label]
    return dropped(toml, plan.study.toml, before, planned, _turned(connection, plan))


def _turned(connection: Connection, plan: Plan) -> str:
    """Say that a study by "add-one-in" was stored with the last levels as its baseline.

    Versions up to 0.1 took them, so that an unchanged file asks for other runs now.
    """
    if plan.study.design != "add-one-in":
        return ""
    stored: dict[str, str] = dict(
        connection.exec_driver_sql(
            "SELECT factor, level FROM cell_level JOIN cell ON cell.id = cell_id JOIN study ON"
            " study.id = study_id WHERE name = ? AND active AND ordinal = 0",
            (plan.study.name,),
        ).all()
    )
    first = baseline_levels(plan.study)
    levels = plan.study.factors
    was = [f"{name}={stored[name]}" for name in first if stored.get(name) == [*levels[name]][-1]]
    now = [f"{name}={level}" for name, level in first.items() if name not in plan.study.within]
    if not was:
        return ""
    return f"baseline of add-one-in: {', '.join(was)}, now the first levels: {', '.join(now)}"


def as_measured(db: Database, plan: Plan) -> Plan:
    """Return a plan with the number of final tokens that its study has in the database.

    The default of `[eval] final_tokens` is chosen once: a study that changes, or that an earlier
    version began, keeps its number, and its results stay valid, until its file sets one.
    """
    with db.read() as connection:
        stored = connection.exec_driver_sql(
            "SELECT evaluation FROM study WHERE name = ?", (plan.study.name,)
        ).scalar()
    if stored is None:
        return plan
    known = Evaluation.model_validate_json(stored)
    # with other `tokens` every run is measured again anyway
    same = known.tokens == plan.study.evaluation.tokens
    return measured(plan, known.final_tokens) if same else plan


def _hash(plan: Plan, runs: Sequence[Run]) -> str:
    study = plan.study
    content = {
        "study": [
            study.name,
            study.question,
            study.metric,
            study.goal,
            study.evaluation.model_dump(mode="json", exclude_none=True),
        ],
        "cells": [[cell.label, cell.levels, cell.stratum] for cell in plan.cells],
        "ordinals": _ordinals(plan),
        "contrasts": [
            [c.family, c.stratum, c.factor, c.level, c.cell, c.baseline] for c in plan.contrasts
        ],
        "runs": [
            [planned.cell, planned.role, run.key]
            for planned, run in zip(plan.runs, runs, strict=True)
        ],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _ordinals(plan: Plan) -> dict[str, list[str]]:
    """Factor → its levels, baseline first: the study's order, else the order of the cells."""
    order = {factor: list(levels) for factor, levels in plan.study.factors.items()}
    for cell in plan.cells:
        for factor, level in cell.levels.items():
            known = order.setdefault(factor, [])
            if level not in known:
                known.append(level)
    return order


def _study(connection: Connection, plan: Plan, plan_hash: str, existing: Any) -> int:
    study = plan.study
    values = {
        "question": study.question,
        "metric": study.metric,
        "goal": study.goal,
        "toml": study.toml,
        "evaluation": study.evaluation.model_dump_json(),
        "plan_hash": plan_hash,
    }
    if existing is None:
        return connection.execute(
            schema.study.insert()
            .values(name=study.name, revision=1, **values)
            .returning(schema.study.c.id)
        ).scalar_one()
    revision = existing.revision + (existing.plan_hash != plan_hash)
    connection.execute(
        schema.study.update()
        .where(schema.study.c.id == existing.id)
        .values(revision=revision, **values)
    )
    return existing.id


def _cells(connection: Connection, study_id: int, plan: Plan) -> dict[str, int]:
    """Return label → id of the plan's cells; make all others of the study inactive."""
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


def _runs(connection: Connection, runs: Sequence[Run]) -> dict[str, int]:
    """Return key → id; insert the runs that no study had yet, as planned."""
    ids = _ids(connection)
    new = {run.key: run for run in runs if run.key not in ids}
    if not new:
        return ids
    texts = {id(run.fields): json.dumps(run.fields) for run in _of_other_fields(new.values())}
    rows = [
        {
            "key": key,
            "kind": run.kind,
            "fields": texts[id(run.fields)],
            "seed": run.seed,
            "status": "planned",
            **cost,
        }
        for (key, run), cost in zip(new.items(), _costs(new.values()), strict=True)
    ]
    connection.execute(schema.run.insert(), rows)
    ids = _ids(connection)
    if parents := [(ids[run.parent], ids[key]) for key, run in new.items() if run.parent]:
        connection.exec_driver_sql("UPDATE run SET parent_run_id = ? WHERE id = ?", parents)
    views.refresh(connection)
    return ids


def _correct_sizes(connection: Connection, runs: Sequence[Run]) -> None:
    """Store the sizes of runs anew where they differ.

    Sizes are no part of a run's key: a component that stated wrong ones may have been corrected.
    """
    names = ", ".join(COST)
    stored = {
        row[0]: dict(zip(COST, row[1:], strict=True))
        for row in connection.exec_driver_sql(
            f"SELECT key, {names} FROM run WHERE key IN (SELECT value FROM json_each(?))",
            (json.dumps([run.key for run in runs]),),
        )
    }
    known = [run for run in runs if run.key in stored]
    wrong = [
        (*cost.values(), run.key)
        for run, cost in zip(known, _costs(known), strict=True)
        if cost != stored[run.key]
    ]
    if wrong:
        values = ", ".join(f"{name} = ?" for name in COST)
        connection.exec_driver_sql(f"UPDATE run SET {values} WHERE key = ?", wrong)


def _ids(connection: Connection) -> dict[str, int]:
    """Return key → id of every run."""
    return {key: run_id for run_id, key in connection.exec_driver_sql("SELECT id, key FROM run")}


COST = ("steps", "tokens", "n_params", "n_params_body", "flops")  # columns of `run`


def _costs(runs: Iterable[Run]) -> Iterator[dict[str, Any]]:
    """What training each run takes, as `COST`; None for what is unknown."""
    runs = list(runs)
    known = {}
    for run in _of_other_fields(runs):
        cost = run.cost
        values = (cost.steps, cost.tokens, cost.params, cost.params_body, cost.flops)
        known[id(run.fields)] = dict(zip(COST, values, strict=True))
    for run in runs:
        yield known[id(run.fields)]


def _of_other_fields(runs: Iterable[Run]) -> Iterable[Run]:
    """Return a run for each object `fields`: the seeds of a cell share one."""
    return {id(run.fields): run for run in runs}.values()


def _members(
    connection: Connection,
    cells: dict[str, int],
    runs: Sequence[Run],
    ids: dict[str, int],
    plan: Plan,
) -> None:
    connection.exec_driver_sql(
        "DELETE FROM member WHERE cell_id = ?", [(cell_id,) for cell_id in cells.values()]
    )
    rows = [
        {
            "cell_id": cells[planned.cell],
            "run_id": ids[run.key],
            "role": planned.role,
            "ordinal": ordinal,
        }
        for ordinal, (planned, run) in enumerate(zip(plan.runs, runs, strict=True))
    ]
    if rows:
        connection.execute(schema.member.insert(), rows)


def _contrasts(connection: Connection, study_id: int, cells: dict[str, int], plan: Plan) -> None:
    """Make the contrasts those of the plan; one that stays keeps its id and its effects."""
    columns = ("family", "stratum", "factor", "level", "cell_id", "baseline_id")
    planned = {
        (c.family, c.stratum, c.factor, c.level, cells[c.cell], cells[c.baseline]): None
        for c in plan.contrasts
    }
    existing = {
        tuple(row[1:]): row[0]
        for row in connection.execute(
            text(f"SELECT id, {', '.join(columns)} FROM contrast WHERE study_id = :id"),
            {"id": study_id},
        )
    }
    if removed := [(existing[row],) for row in existing.keys() - planned.keys()]:
        connection.exec_driver_sql("DELETE FROM contrast WHERE id = ?", removed)
    if new := [row for row in planned if row not in existing]:
        connection.execute(
            schema.contrast.insert(),
            [{"study_id": study_id, **dict(zip(columns, row, strict=True))} for row in new],
        )


def refuse_other_measures(connection: Connection, study_id: int, evaluation: Evaluation) -> None:
    """Raise `AblateError` if another study shares a run with this one and measures it otherwise."""
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
                f"study {name!r} shares {shared} runs with this one but measures them differently;"
                " give both the same [eval] tokens, final_tokens, probe.mix, probe.kind, content of"
                " probe_csv, longest of lengths and version of their own metrics, use another"
                f" database, or run `ablate db forget {quote(name)}` if its results are no longer"
                " needed"
            )
