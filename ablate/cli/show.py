"""`ablate show`: everything about one run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ablate.cli.output import echo
from ablate.cli.render import Db, RunName, show_all, table
from ablate.formats import number, printable, shown
from ablate.units import known, listed, power

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from ablate.store import Database
    from ablate.store.details import RunDetails


def show(
    run: RunName,
    log: Annotated[
        bool, typer.Option("--log", help="Print what the script of its last attempt printed.")
    ] = False,
    db: Db = None,
) -> None:
    """Show one run: its configuration, attempts and final metrics."""
    from ablate import store
    from ablate.errors import AblateError
    from ablate.store import details

    with store.open(db) as database:
        (run_details,) = details.find(database, run)
        if not log:
            show_all([*_parts(run_details), *_files(run_details, database)])
            return
        paths = [database.log(attempt["journal"]) for attempt in reversed(run_details.attempts)]
        path = next((path for path in paths if path and path.is_file()), None)
        if path is None:
            raise AblateError(f"run {run} has no log: {_no_log(run_details, paths)}")
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                echo(line.rstrip("\n"))


def _no_log(run: RunDetails, paths: Sequence[Path | None]) -> str:
    """Why none of the files in which a run's output may be, the newest first, is there."""
    if run.row["kind"] != "command":
        return "only scripts of [command] have one"
    if newest := next(filter(None, paths), None):
        return f"there is no {newest}; it may be beside the database that its run was trained in"
    return "it was not tried yet"


def _files(run: RunDetails, database: Database) -> Iterator[str]:
    """Yield where the run's own files are, if it has any."""
    folder = database.outputs / run.row["key"][:12]
    if folder.is_dir():
        yield f"Files of the run: {folder}"
    for name, kind in run.artifacts.items():
        path = database.kept(run.row["key"], kind, name)
        if path and path.is_file():
            yield f"Weights: {path}"
    logs = [database.log(attempt["journal"]) for attempt in run.attempts]
    if any(path and path.is_file() for path in logs):
        yield f"What it printed: ablate show {run.id} --log"


def digits(value: float) -> str:
    """Return six digits, or the word for what is not finite."""
    return f"{value:.6g}" if math.isfinite(value) else number(value)


def _parts(run: RunDetails) -> Iterator[RenderableType]:
    row = run.row
    diverged = f" at step {row['diverged_at']}" if row["diverged_at"] is not None else ""
    yield f"Run {run.id}: {run.status}{diverged}. Key {row['key']}"
    for member in run.members:
        inactive = "" if member.active else ", no longer in the study"
        yield f"In {printable(member.study)}: {printable(member.cell)} ({member.role}{inactive})"
    if run.parent:
        number, status = run.parent
        yield f"Starts from the weights of run {number} ({status})"
    if run.fields.get("start_hash"):
        where, of = printable(str(run.fields["start_from"])), run.fields["start_hash"]
        yield f"Starts from the weights of {where} (SHA-256 {of[:12]})"
    if run.children:
        yield f"Runs that start from its weights: {listed(run.children)}"
    tokens, params, body = (
        known(row[name], "{:,}".format) for name in ("tokens", "n_params", "n_params_body")
    )
    sizes = f"{params} parameters, {body} in the body" if row["n_params"] else "size unknown"
    yield f"{sizes}; {tokens} tokens, {known(row['flops'], power)} FLOPs"
    yield _fields(run)
    if run.attempts:
        yield _attempts(run.attempts)
    for attempt in run.attempts:
        if attempt["note"]:
            yield f"Attempt {attempt['n']}: {printable(attempt['note'])}"
    if run.finals:
        rows = [(shown(name), f"{at:g}", digits(value)) for (name, at), value in run.finals.items()]
        yield table(["final", "at", "value"], rows, right=["at", "value"])
    for attempt in run.attempts:
        if attempt["error"]:
            lines = map(printable, attempt["error"].rstrip().splitlines())
            yield "\n".join([f"Attempt {attempt['n']} ended with:", *lines])


def _fields(run: RunDetails) -> RenderableType:
    """Return the fields that differ from their default, and the seed."""
    from ablate.errors import AblateError
    from ablate.kinds import kind

    try:
        known = kind(run.row["kind"]).fields
    except AblateError:  # a kind of another version or package
        known = {}
    rows = [
        (name, str(value))
        for name, value in run.fields.items()
        if name not in known or value != json.loads(json.dumps(known[name].default))
    ]
    if run.row["seed"]:
        rows.append(("seed", str(run.row["seed"])))
    return table(["field", "value (others: `ablate factors`)"], rows)


def _attempts(attempts: Sequence[Mapping[str, Any]]) -> RenderableType:
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
