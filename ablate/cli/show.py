"""`ablate show`: everything about one run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli.render import Db, console, table
from ablate.formats import number, printable, shown

if TYPE_CHECKING:
    from rich.console import RenderableType
    from sqlalchemy import Connection, RowMapping

CANDIDATES = 5  # runs that an ambiguous key names at most


def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's number, or the start of its key.")
    ],
    db: Db = None,
) -> None:
    """Show one run: what it is, how it went, what it reached."""
    from ablate import store

    out = console()
    with store.open(db) as database, database.read() as connection:
        for part in _parts(connection, find(connection, run)):
            if isinstance(part, str):
                out.print(part, markup=False)
            else:
                out.print(part)


def digits(value: float) -> str:
    """Six digits, or what it is instead of a number."""
    return f"{value:.6g}" if math.isfinite(value) else number(value)


def select(connection: Connection, sql: str, **values: Any) -> list[RowMapping]:
    from sqlalchemy import text

    return list(connection.execute(text(sql), values).mappings())


def find(connection: Connection, name: str) -> RowMapping:
    """The row of `run` that a number or the start of a key means."""
    from ablate.errors import AblateError

    if (
        name.isascii()
        and name.isdigit()
        and (found := select(connection, "SELECT * FROM run WHERE id = :id", id=int(name[:18])))
    ):
        return found[0]
    may_be_key = bool(name) and set(name.lower()) <= set("0123456789abcdef")
    found = (
        select(
            connection, "SELECT * FROM run WHERE key LIKE :start || '%' LIMIT 6", start=name.lower()
        )
        if may_be_key
        else []
    )
    if len(found) == 1:
        return found[0]
    if found:
        keys = ", ".join(row["key"][:12] for row in found[:CANDIDATES])
        raise AblateError(
            f"run {name!r} may be {keys}{' or more' if len(found) > CANDIDATES else ''}; give more"
            " of the key"
        )
    raise AblateError(
        f'no run {name!r} in the database; `ablate query "SELECT run, key, cell, seed, status FROM'
        ' runs"` lists them'
    )


def _parts(connection: Connection, run: RowMapping) -> Iterator[RenderableType]:
    from ablate.store.schema import from_db

    diverged = f" at step {run['diverged_at']}" if run["diverged_at"] is not None else ""
    yield f"Run {run['id']}: {run['status']}{diverged}. Key {run['key']}"
    members = select(
        connection,
        "SELECT study.name AS study, cell.label AS cell, role, active FROM member JOIN cell ON"
        " cell.id = cell_id JOIN study ON study.id = study_id WHERE run_id = :id ORDER BY study.id,"
        " cell.id",
        id=run["id"],
    )
    for member in members:
        gone = "" if member["active"] else ", no longer in the study"
        yield (
            f"In {printable(member['study'])}: {printable(member['cell'])} ({member['role']}{gone})"
        )
    sizes = (
        f"{run['n_params']:,} parameters, {run['n_params_body']:,} in the body"
        if run["n_params"]
        else "size unknown"
    )
    yield f"{sizes}; {run['tokens']:,} tokens, {run['flops'] or 0:.3g} FLOPs"
    yield _configuration(run)
    attempts = select(
        connection, "SELECT * FROM attempt WHERE run_id = :id ORDER BY n", id=run["id"]
    )
    if attempts:
        yield _attempts(attempts)
    finals = select(
        connection,
        "SELECT name, at, value FROM final WHERE run_id = :id ORDER BY name, at",
        id=run["id"],
    )
    if finals:
        rows = [
            (shown(row["name"]), f"{row['at']:g}", digits(from_db(row["value"]))) for row in finals
        ]
        yield table(["final", "at", "value"], rows, right=["at", "value"])
    for attempt in attempts:
        if attempt["error"]:
            lines = map(printable, attempt["error"].rstrip().splitlines())
            yield "\n".join([f"Attempt {attempt['n']} ended with:", *lines])


def _configuration(run: RowMapping) -> RenderableType:
    """The fields that differ from their default."""
    from ablate.config import RunConfig

    fields = RunConfig.model_fields
    given = json.loads(run["config"])
    rows = [
        (name, str(value))
        for name, value in given.items()
        if name not in fields or value != json.loads(json.dumps(fields[name].default))
    ]
    return table(["field", "value (others: `ablate factors`)"], rows)


def _attempts(attempts: list[RowMapping]) -> RenderableType:
    headings = [
        "attempt",
        "status",
        "host",
        "device",
        "started (UTC)",
        "device seconds",
        "from step",
    ]
    rows = [
        (
            str(attempt["n"]),
            attempt["status"],
            attempt["host"] or "",
            attempt["device"] or "",
            attempt["started"] or "",
            "" if attempt["device_seconds"] is None else f"{attempt['device_seconds']:.1f}",
            str(attempt["resumed_step"] or 0),
        )
        for attempt in attempts
    ]
    return table(headings, rows, right=["attempt", "device seconds", "from step"])
