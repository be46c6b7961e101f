"""Everything that the database holds about single runs, for `ablate show` and `ablate compare`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row

from ablate import kinds
from ablate.errors import AblateError
from ablate.store.database import Database, whole
from ablate.store.owners import STATUS
from ablate.store.records import WEIGHTS
from ablate.store.schema import from_db

SHORTEST = 8  # digits of a key's start without a letter: fewer are the number of a run
CANDIDATES = 5  # runs that the error about an ambiguous key names at most
_ROW = f"SELECT *, {STATUS} AS shown FROM run"


@dataclass(frozen=True)
class Member:
    """One place of a run in a study."""

    study: str
    cell: str
    role: str
    active: bool  # False if a later revision of the study left the cell out
    metric: str  # of the study


@dataclass(frozen=True)
class RunDetails:
    """A run with its members, attempts, finals and curves.

    Attributes:
        row: Columns of the table `run`, with `status` below as `shown`.
        status: One of `ablate.store.records.SHOWN_STATUS`.
        fields: Resolved fields, without the seed.
        members: Cells that it belongs to.
        attempts: Columns of the table `attempt`, the first attempt first.
        artifacts: Name of a file → what it is: a column `kind` of the table `artifact`.
        parent: Number and status of the run whose weights it starts from; None for none.
        children: Numbers of the runs that start from it.
        finals: (name, at) → value, NaN where the run has no number.
        curves: Series → step → value, by number of the series; empty unless asked for.
    """

    row: Mapping[str, Any]
    status: str
    fields: Mapping[str, Any]
    members: Sequence[Member]
    attempts: Sequence[Mapping[str, Any]]
    artifacts: Mapping[str, str]
    parent: tuple[int, str] | None
    children: Sequence[int]
    finals: Mapping[tuple[str, float], float]
    curves: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    @property
    def id(self) -> int:
        """Number of the run in this database."""
        return int(self.row["id"])

    @property
    def step_tokens(self) -> int | None:
        """Tokens of a step of its curves; None if they are unknown, as those of a script."""
        steps, tokens = self.row["steps"], self.row["tokens"]
        return tokens // steps if steps and tokens is not None else None


def find(db: Database, *names: str, curves: bool = False) -> list[RunDetails]:
    """Return what the database holds about runs, all from one snapshot.

    Args:
        db: The database.
        names: Numbers of runs, or starts of their keys.
        curves: Read the points of every series too.

    Raises:
        AblateError: A name means no run, or several.
    """
    with db.read() as connection:
        return [_details(connection, _find(connection, name), curves) for name in names]


def weights(db: Database, name: str) -> tuple[Path, str]:
    """Return the file with the weights of a run, those at its end if it has several, and its key.

    Args:
        db: The database.
        name: Number of the run, or the start of its key.

    Raises:
        AblateError: It has none; the message says how to get them.
    """
    (run,) = find(db, name)
    key = run.row["key"]
    named = [
        db.kept(key, kind, path)
        for kind in WEIGHTS.values()
        for path, its in run.artifacts.items()
        if its == kind
    ]
    if not named:
        raise AblateError(f"run {name} has no weights: {_why_none(run)}")
    files = [file for file in named if file is not None and whole(file)]
    if not files:
        raise AblateError(
            f"the weights of run {name} in {db.weights} are missing or cut short; `ablate run`"
            " trains it again if its study needs them"
        )
    return files[0], key


def _why_none(run: RunDetails) -> str:
    """Say why a run has no weights, and what to do."""
    studies = [one.study for one in run.members if one.active and one.role == "compare"]
    if never := kinds.kind(run.row["kind"]).no_weights:
        return never
    if run.status != "complete":
        return f"it is {run.status}, and complete runs alone keep theirs"
    if not studies:
        return (
            'it is compared in no study; one that compares it, with keep = "final" under [run],'
            " trains it again"
        )
    return (
        f'put keep = "final" under [run] into the file of study {studies[0]!r}; `ablate run` then'
        " trains it again"
    )


def _find(connection: Connection, name: str) -> Row[Any]:
    """Return the row of `run` that a number or the start of a key means."""
    is_number = name.isascii() and name.isdigit()
    if is_number:
        by_id = connection.exec_driver_sql(f"{_ROW} WHERE id = ?", (int(name[:18]),))
        if row := by_id.first():
            return row
    found: Sequence[Row[Any]] = []
    if (
        name
        and set(name.lower()) <= set("0123456789abcdef")
        and not (is_number and len(name) < SHORTEST)
    ):
        found = connection.exec_driver_sql(
            f"{_ROW} WHERE key LIKE ? || '%' LIMIT {CANDIDATES + 1}", (name.lower(),)
        ).all()
    if len(found) == 1:
        return found[0]
    if found:
        keys = ", ".join(row.key[:12] for row in found[:CANDIDATES])
        raise AblateError(
            f"run {name!r} is ambiguous: {keys}{', …' if len(found) > CANDIDATES else ''}; give"
            " more of the key"
        )
    raise AblateError(
        f'no run {name!r} in the database; `ablate query "SELECT run, key, cell, seed, status FROM'
        ' runs"` lists them'
    )


def _details(connection: Connection, row: Row[Any], curves: bool) -> RunDetails:
    members = connection.exec_driver_sql(
        "SELECT study.name, cell.label, role, active, study.metric FROM member"
        " JOIN cell ON cell.id = cell_id JOIN study ON study.id = study_id"
        " WHERE run_id = ? ORDER BY study.id, cell.id",
        (row.id,),
    )
    attempts = connection.exec_driver_sql(
        "SELECT * FROM attempt WHERE run_id = ? ORDER BY n", (row.id,)
    )
    artifacts = connection.exec_driver_sql(
        "SELECT path, kind FROM artifact WHERE run_id = ?", (row.id,)
    )
    parent = connection.exec_driver_sql(f"{_ROW} WHERE id = ?", (row.parent_run_id,)).first()
    children = connection.exec_driver_sql(
        "SELECT id FROM run WHERE parent_run_id = ? ORDER BY id", (row.id,)
    )
    finals = connection.exec_driver_sql(
        "SELECT name, at, value FROM final WHERE run_id = ? ORDER BY name, at", (row.id,)
    )
    return RunDetails(
        row._asdict(),
        row.shown,
        json.loads(row.fields),
        [
            Member(study, cell, role, bool(active), metric)
            for study, cell, role, active, metric in members
        ],
        [attempt._asdict() for attempt in attempts],
        {artifact.path: artifact.kind for artifact in artifacts},
        parent and (parent.id, parent.shown),
        list(children.scalars()),
        {(name, at): from_db(value) for name, at, value in finals},
        _curves(connection, row) if curves else {},
    )


def _curves(connection: Connection, row: Row[Any]) -> dict[str, dict[int, float]]:
    """Return series → step → value."""
    curves: dict[str, dict[int, float]] = {}
    points = connection.exec_driver_sql(
        "SELECT name, step, value FROM metric JOIN series ON series.id = series_id WHERE run_id ="
        " ? ORDER BY series_id, step",
        (row.id,),
    )
    for name, step, value in points:
        curves.setdefault(name, {})[step] = from_db(value)
    return curves
