"""Merge another database into this one, by names and keys. Idempotent; commutative except for ids.

A run's points, finals, losses of windows and weights come from one side, never from both: from the
one that got further (complete before diverged before running …), then the one with more finals,
then the one that has weights, then by the name of the attempt's journal, which is unique
everywhere, then the one with more points, because
`ablate db thin` may have deleted some. Attempts with a journal of one name are one attempt. For
studies see `ablate.store.studies.combine`.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

from sqlalchemy import Connection

from ablate.code import short
from ablate.errors import AblateError, unknown
from ablate.evaluation import Evaluation
from ablate.paths import atomic
from ablate.store import owners, replaced, schema, studies, views
from ablate.store.database import Database
from ablate.store.evaluated import revalidate
from ablate.store.records import ACCEPTED, ATTEMPT_STATUS, FAILED
from ablate.store.register import refuse_other_measures
from ablate.store.studies import StudyContent, rank
from ablate.study.parse import NAME, NAMED
from ablate.study.revision import between, changes
from ablate.units import listed

_RUN_RANK = ("planned", *FAILED, "stopped", "running", "diverged", "complete")
_WITH_RESULT = (*ACCEPTED, "superseded")
_RUN = tuple(
    column.name for column in schema.run.columns if column.name not in ("id", "parent_run_id")
)
_ATTEMPT = tuple(
    column.name for column in schema.attempt.columns if column.name not in ("id", "run_id", "n")
)
_STATUS, _JOURNAL, _OFFSET, _STARTED = map(
    _ATTEMPT.index, ("status", "journal", "journal_offset", "started")
)

_ADD_ARTIFACT = "INSERT INTO artifact (run_id, kind, path) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_VALUES = {  # table of a run's results → its columns but that of the run
    "final": ("name", "at", "value"),
    "window_loss": ("name", "at", "tokens", "layout", "losses"),
    "metric": ("series_id", "step", "value"),
}
Attempt = tuple[Any, ...]  # values of `_ATTEMPT`


@dataclass(frozen=True)
class Merged:
    """What a merge changed.

    Attributes:
        studies: Studies that are new or changed.
        runs: Runs that are new.
        renewed: Known runs whose points and finals now are the other database's.
        weights: Files of weights that were copied.
        edited: Sentences, without full stop, on studies whose two files differ: which one holds.
    """

    studies: int
    runs: int
    renewed: int
    weights: int
    edited: list[str]


@dataclass(frozen=True)
class _Side:
    """A run as one database has it."""

    id: int
    status: str
    diverged_at: int | None
    finals: int
    points: int
    attempts: dict[str, Attempt]  # by journal
    weights: dict[str, Path]  # kind of the artifact → the file, which exists

    def attempt(self, *statuses: str) -> str | None:
        """Return the journal of the attempt that has one of these statuses; at most one has."""
        return next((name for name, row in self.attempts.items() if row[_STATUS] in statuses), None)

    @property
    def order(self) -> tuple[Any, ...]:
        """Of two sides, the one of higher order is kept."""
        accepted = self.attempt(*ACCEPTED) or ""
        latest = max(((row[_OFFSET], name) for name, row in self.attempts.items()), default=(0, ""))
        best = self.attempts[accepted][_STATUS] if accepted else self.status
        return (
            _RUN_RANK.index(best),
            self.finals,
            len(self.weights),
            accepted,
            latest,
            rank((self.diverged_at,)),
            _RUN_RANK.index(self.status),
            self.points,
        )


def merge(db: Database, other: Database, names: Mapping[str, str] | None = None) -> Merged:
    """Add everything of `other` to `db`; `other` is not changed.

    Runs whose finals were measured by another evaluation than their study's are to be done again.
    Files of weights are copied before the database is locked, and get their names after the commit;
    journals and checkpoints are not copied.

    Args:
        db: The database that grows.
        other: What is added.
        names: Name of a study of `other` → the name that it gets in `db`.

    Raises:
        AblateError: A study runs in either database on this host, studies that share runs measure
            them otherwise, one name means different studies, of which one would lose results, or
            weights cannot be copied. Nothing was changed.
    """
    names = names or {}
    for each in (db, other):
        if busy := owners.running_here(each):
            raise AblateError(
                f"database {each.path} is being written by {busy} runs; merge when they have ended"
            )
    with other.read() as theirs, _copied(db, other, theirs) as copied:
        with db.begin() as ours:
            stored, known = _stored(theirs, other), _stored(ours, db)
            added = _named(stored, names, other)
            series = _series(ours, theirs)
            ids, new, renewed, weights = _runs(ours, theirs, series, db, other)
            if weights.taken != copied:
                raise AblateError(f"database {db.path} was written meanwhile; merge again")
            changed, edited = 0, list[str]()
            for name, (their_name, their) in added.items():
                combined = their.content
                if our := known.get(name):
                    combined = studies.combine(our.content, their.content)
                    is_ours = our.content.is_later(their.content)
                    early, late = (their, our) if is_ours else (our, their)
                    if toml := _split(ours, early, late):
                        combined = studies.united(early.content, late.content, toml)
                        seeds = tomllib.loads(toml)["seeds"]
                        edited.append(
                            f"study {name} has the seeds of both databases now: write seeds ="
                            f" {seeds} into its file before you run it again"
                        )
                    else:
                        _refuse_loss(name, early, late, their_name, other)
                        edited += _edited(name, early, late)
                if not our or combined != our.content:
                    studies.write(ours, name, combined, ids)
                    changed += 1
            for study_id, evaluation in ours.exec_driver_sql(
                "SELECT id, evaluation FROM study ORDER BY id"
            ).all():
                refuse_other_measures(ours, study_id, Evaluation.model_validate_json(evaluation))
                revalidate(ours, study_id, Evaluation.model_validate_json(evaluation))
        for file in weights.dropped:
            file.unlink(missing_ok=True)
    return Merged(changed, new, renewed, len(copied), edited)


@dataclass(frozen=True)
class _Stored:
    """A study as one database has it before the merge.

    Attributes:
        content: The study.
        results: Its cells and their runs that have a result or are running.
        path: The database.
        accepted: Key of each run of the database → journal of the attempt that is accepted.
        journals: Those of all attempts of the database that have a result.
    """

    content: StudyContent
    results: replaced.Results
    path: Path
    accepted: Mapping[str, str]
    journals: Set[str]


def _stored(connection: Connection, db: Database) -> dict[str, _Stored]:
    """Return every study of a database by its name."""
    attempts = connection.exec_driver_sql(
        "SELECT key, journal, attempt.status FROM attempt JOIN run ON run.id = run_id"
    ).all()
    accepted = {key: journal for key, journal, status in attempts if status in ACCEPTED}
    journals = {journal for _, journal, status in attempts if status in _WITH_RESULT}
    return {
        name: _Stored(content, replaced.results(connection, name), db.path, accepted, journals)
        for name, content in studies.read(connection).items()
    }


@dataclass
class _Weights:
    """Files of weights that a merge concerns.

    Attributes:
        taken: Those of the other database that are taken.
        dropped: Those of ours whose runs now have the results of an attempt without them.
    """

    taken: set[Path] = field(default_factory=set)
    dropped: set[Path] = field(default_factory=set)


@contextmanager
def _copied(db: Database, other: Database, theirs: Connection) -> Iterator[set[Path]]:
    """Copy the weights that a merge takes, next to where they belong; yield which.

    They get their names at the end, and are deleted after an error. Nothing is locked.
    """
    taken: set[Path] = set()
    with db.read() as ours:
        for their_id, key in theirs.exec_driver_sql(
            "SELECT id, key FROM run WHERE id IN (SELECT run_id FROM artifact WHERE kind <>"
            " 'checkpoint')"
        ).all():
            their = _side(theirs, their_id, other)
            our_id = ours.exec_driver_sql("SELECT id FROM run WHERE key = ?", (key,)).scalar()
            if our_id is None or their.order > _side(ours, our_id, db).order:
                taken.update(their.weights.values())
    with ExitStack() as parts:
        for source in sorted(taken):
            target = db.weights / source.name
            try:
                target.parent.mkdir(exist_ok=True)
                shutil.copyfile(source, parts.enter_context(atomic(target)))
            except OSError as error:
                raise AblateError(
                    f"weights {source} cannot be copied to {target}: {error.strerror}"
                ) from None
        yield taken


def _named(
    theirs: Mapping[str, _Stored], names: Mapping[str, str], other: Database
) -> dict[str, tuple[str, _Stored]]:
    """Return the name of each study of `other` in this database → its name there, and itself."""
    for old, new in names.items():
        if old not in theirs:
            raise unknown(f"study in {other.path}", old, theirs)
        if not re.fullmatch(NAME, new):
            raise AblateError(f"{new!r} cannot be the name of a study; a name has {NAMED}")
    named = {names.get(name, name): (name, stored) for name, stored in theirs.items()}
    if len(named) < len(theirs):
        raise AblateError(f"two studies of {other.path} would get one name; give another")
    return named


_SEEDS = re.compile(r"^seeds\s*=\s*(?:\d+|\[[^\]]*\])", re.MULTILINE)


def _split(connection: Connection, early: _Stored, late: _Stored) -> str:
    """Return the file with the seeds of both if two studies are one whose seeds were split.

    Their files differ in `seeds` alone, which stands on lines of its own, and their runs of a cell
    in nothing but the seed.

    Args:
        connection: A connection to the database that has the runs of both.
        early: The study that would lose results.
        late: The study that would hold.

    Returns:
        "" where no results would be lost, or the studies differ in more.
    """
    try:
        one, other = (tomllib.loads(side.content.toml) for side in (early, late))
    except tomllib.TOMLDecodeError:
        return ""
    mine, others = (replaced.seeds(file.pop("seeds", None)) for file in (one, other))
    if mine is None or others is None or {*mine} == {*others} or one != other:
        return ""
    if _versions(early, late) or not _lost(early, late)[0]:
        return ""
    cells = [
        {label: cell for label, cell in side.content.cells.items() if cell.active}
        for side in (early, late)
    ]
    if cells[0].keys() != cells[1].keys():
        return ""
    found = connection.exec_driver_sql("SELECT key, fields FROM run")
    fields = {row.key: row.fields for row in found}
    for pair in zip(*(map(side.get, cells[0]) for side in cells), strict=True):
        compared = (key for cell in pair for key, role in cell.members if role == "compare")
        if len({fields[key] for key in compared}) > 1:
            return ""
    both = sorted({*mine, *others})
    stated = len(both) if both == [*range(len(both))] else both
    toml = _SEEDS.sub(f"seeds = {stated}", late.content.toml, count=1)
    try:
        written = tomllib.loads(toml)
    except tomllib.TOMLDecodeError:  # such as of a comment with a bracket
        return ""
    return toml if written == {**other, "seeds": stated} else ""


def _refuse_loss(
    name: str, early: _Stored, late: _Stored, their_name: str, other: Database
) -> None:
    """Refuse to combine two studies of which the earlier one would lose results."""
    lost, remeasured = _lost(early, late)
    if not lost:
        return
    code = _versions(early, late)
    why = [
        *(f"{file}: {versions}" for file, versions in code.items()),
        *between(early.content.toml, late.content.toml, (str(early.path), str(late.path))),
    ] or ["the text that is trained on, a decision or the version of ablate differs"]
    files = listed(code) or "the code"
    alike = f"run one study file with one version of {files} for both, and merge then"
    if remeasured:  # a database has one value of each metric of a run, under any name of a study
        advice = f"{alike}, or keep two databases"
    else:
        renamed = quote(f"{their_name}=NEW")
        advice = f"keep both: ablate db merge --rename {renamed}, with a new name for the one in"
        advice += f" {other.path}"
        advice += (
            f"; or {alike}"
            if code
            else (
                "; `ablate run` of one file with the cells and seeds of both then takes their runs"
            )
        )
    raise AblateError(
        f"study {name!r} is another one in {other.path}: merging would drop the results of {lost}"
        f" in {early.path} ({replaced.few(why, '; ')}); {advice}"
    )


def _lost(early: _Stored, late: _Stored) -> tuple[str, bool]:
    """Find what the earlier of two studies loses by their combination.

    Not lost is what the later one has left out on purpose: a cell that it keeps as inactive, or
    results that its database has too.

    Returns:
        The results in words, and whether some are of runs that both have and that the later study
        measures by another version of a metric of the user's own.
    """
    active = {label: cell.active for label, cell in late.content.cells.items()}
    before: dict[str, dict[str, int | None]] = {}
    for label, runs in early.results.items():
        for key, seed in runs.items():
            if active.get(label, True) and early.accepted.get(key, "") not in late.journals:
                before.setdefault(label, {})[key] = seed
    after = {
        key
        for label, cell in late.content.cells.items()
        if active[label]
        for key, _ in cell.members
    }
    wanted = dict(late.content.evaluation.own or ())
    remeasured = any(
        wanted.get(metric, version) != version
        for metric, version in early.content.evaluation.own or ()
    ) and any(not after.isdisjoint(runs) for runs in before.values())
    return replaced.lost(late.content.toml, before, () if remeasured else after), remeasured


def _versions(*sides: _Stored) -> dict[str, str]:
    """Return code of which two studies have other versions → which, and where, for readers."""
    one, other = (side.content.versions for side in sides)
    return {
        name: ", ".join(f"{short(side.content.versions[name])} in {side.path}" for side in sides)
        for name in one
        if other.get(name, one[name]) != one[name]
    }


def _edited(name: str, early: _Stored, late: _Stored) -> Iterator[str]:
    """Yield what differs between the files of a study and their code, if anything does."""
    if changed := changes(early.content.toml, late.content.toml):
        yield (
            f"the file of study {name} differs; that of {late.path} holds:"
            f" {replaced.few(changed, '; ')}"
        )
    for file, versions in _versions(early, late).items():
        yield f"{file} of study {name} differs; that of {late.path} holds: {versions}"


def _series(ours: Connection, theirs: Connection) -> dict[int, int]:
    """Their id of a series → ours."""
    ids = {}
    for series_id, *row in theirs.exec_driver_sql("SELECT id, name, unit, goal FROM series"):
        ids[series_id] = ours.exec_driver_sql(
            "INSERT INTO series (name, unit, goal) VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE "
            "SET unit = max(unit, excluded.unit), goal = max(goal, excluded.goal) RETURNING id",
            tuple(row),
        ).scalar_one()
    return ids


def _runs(
    ours: Connection, theirs: Connection, series: dict[int, int], db: Database, other: Database
) -> tuple[dict[str, int], int, int, _Weights]:
    """Add runs, attempts, finals, points, checkpoints.

    Returns:
        Our ids by key, the number of new runs, the number of renewed runs, and their weights.
    """
    weights = _Weights()
    ids = {key: run_id for run_id, key in ours.exec_driver_sql("SELECT id, key FROM run")}
    new = renewed = 0
    for their_id, *row in theirs.exec_driver_sql(
        f"SELECT id, {_names(_RUN)} FROM run ORDER BY id"
    ).all():
        key = row[_RUN.index("key")]
        their = _side(theirs, their_id, other)
        if key not in ids:
            marks = ", ".join("?" * len(_RUN))
            ids[key] = ours.exec_driver_sql(
                f"INSERT INTO run ({_names(_RUN)}) VALUES ({marks}) RETURNING id", tuple(row)
            ).scalar_one()
            new += 1
            our, better = _Side(ids[key], "planned", None, 0, 0, {}, {}), True
        else:
            our = _side(ours, ids[key], db)
            better = their.order > our.order
            renewed += better
        if better:
            _take_values(ours, theirs, our.id, their, series)
            _take_weights(ours, our, their, weights)
        _unite_attempts(ours, our, their, their if better else our)
        _take_checkpoints(ours, theirs, our.id, their_id)
    parents = theirs.exec_driver_sql(
        "SELECT run.key, parent.key FROM run JOIN run AS parent ON parent.id = run.parent_run_id"
    )
    for key, parent in parents:
        ours.exec_driver_sql(
            "UPDATE run SET parent_run_id = ? WHERE id = ?", (ids[parent], ids[key])
        )
    views.refresh(ours)
    return ids, new, renewed, weights


def _side(connection: Connection, run_id: int, db: Database) -> _Side:
    key, status, diverged_at = connection.exec_driver_sql(
        "SELECT key, status, diverged_at FROM run WHERE id = ?", (run_id,)
    ).one()
    finals = connection.exec_driver_sql(
        "SELECT count(*) FROM final WHERE run_id = ?", (run_id,)
    ).scalar_one()
    points = connection.exec_driver_sql(
        "SELECT count(*) FROM metric WHERE run_id = ?", (run_id,)
    ).scalar_one()
    rows = connection.exec_driver_sql(
        f"SELECT {_names(_ATTEMPT)} FROM attempt WHERE run_id = ?", (run_id,)
    )
    attempts = {row[_JOURNAL]: tuple(row) for row in rows}
    weights = {
        kind: file
        for kind, path in connection.exec_driver_sql(
            "SELECT kind, path FROM artifact WHERE run_id = ? AND kind <> 'checkpoint'", (run_id,)
        )
        if (file := db.kept(key, kind, path)) is not None and file.is_file()
    }
    return _Side(run_id, status, diverged_at, finals, points, attempts, weights)


def _take_values(
    ours: Connection, theirs: Connection, run_id: int, their: _Side, series: dict[int, int]
) -> None:
    """Replace our status, finals, losses of windows and points by theirs."""
    ours.exec_driver_sql(
        "UPDATE run SET status = ?, diverged_at = ? WHERE id = ?",
        (their.status, their.diverged_at, run_id),
    )
    for table, columns in _VALUES.items():
        ours.exec_driver_sql(f"DELETE FROM {table} WHERE run_id = ?", (run_id,))
        insert = (
            f"INSERT INTO {table} (run_id, {', '.join(columns)}) VALUES (?{', ?' * len(columns)})"
        )
        rows: Iterator[Sequence[Any]] = iter(
            theirs.exec_driver_sql(
                f"SELECT {', '.join(columns)} FROM {table} WHERE run_id = ?", (their.id,)
            )
        )
        if table == "metric":
            rows = ((series[series_id], *point) for series_id, *point in rows)
        while batch := [(run_id, *row) for row in islice(rows, 100_000)]:
            ours.exec_driver_sql(insert, batch)


def _unite_attempts(ours: Connection, our: _Side, their: _Side, winner: _Side) -> None:
    """Keep the attempts of both sides, numbered by their start.

    Only accepted and running attempts of the side that is kept stay accepted and running. Results
    of the other side are dropped, so its attempts must not be superseded: that would say that their
    finals are stored.
    """
    united = {
        name: max(
            (side.attempts[name] for side in (our, their) if name in side.attempts),
            key=_attempt_order,
        )
        for name in our.attempts | their.attempts
    }
    accepted = winner.attempt(*ACCEPTED)
    running = winner.attempt("running")
    rows = []
    for name, attempt in united.items():
        status = attempt[_STATUS]
        if name in (accepted, running):
            status = winner.attempts[name][_STATUS]
        elif status in _WITH_RESULT:
            known = winner.attempts.get(name)
            status = "superseded" if known and known[_STATUS] in _WITH_RESULT else "dead"
        elif status == "running":
            status = "dead"
        rows.append((*attempt[:_STATUS], status, *attempt[_STATUS + 1 :]))
    rows.sort(
        key=lambda row: (row[_STARTED] or "~", row[_JOURNAL])
    )  # those that never started last
    if {row[_JOURNAL]: row for row in rows} == our.attempts:
        return
    ours.exec_driver_sql(
        "UPDATE attempt SET n = -n, status = 'dead' WHERE run_id = ?", (our.id,)
    )  # clear of unique indexes
    statement = (
        f"INSERT INTO attempt (run_id, n, {_names(_ATTEMPT)}) VALUES (?, ?,"
        f" {', '.join('?' * len(_ATTEMPT))}) ON CONFLICT (journal) DO UPDATE SET n = excluded.n, "
        + ", ".join(f"{_quoted(name)} = excluded.{_quoted(name)}" for name in _ATTEMPT)
    )
    ours.exec_driver_sql(statement, [(our.id, n, *row) for n, row in enumerate(rows, start=1)])


def _attempt_order(attempt: Attempt) -> tuple[Any, ...]:
    return attempt[_OFFSET], ATTEMPT_STATUS.index(attempt[_STATUS]), rank(attempt)


def _take_weights(ours: Connection, our: _Side, their: _Side, weights: _Weights) -> None:
    """Name their weights of a run instead of ours."""
    ours.exec_driver_sql(
        "DELETE FROM artifact WHERE run_id = ? AND kind <> 'checkpoint'", (our.id,)
    )
    if rows := [(our.id, kind, file.name) for kind, file in their.weights.items()]:
        ours.exec_driver_sql(_ADD_ARTIFACT, rows)
    weights.taken.update(their.weights.values())
    weights.dropped.update(file for kind, file in our.weights.items() if kind not in their.weights)


def _take_checkpoints(ours: Connection, theirs: Connection, run_id: int, their_id: int) -> None:
    rows = theirs.exec_driver_sql(
        "SELECT kind, path FROM artifact WHERE run_id = ? AND kind = 'checkpoint'", (their_id,)
    )
    if found := [(run_id, *row) for row in rows]:
        ours.exec_driver_sql(_ADD_ARTIFACT, found)


def _quoted(name: str) -> str:
    return f'"{name}"'


def _names(columns: tuple[str, ...]) -> str:
    return ", ".join(map(_quoted, columns))
