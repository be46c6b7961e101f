"""The progress of studies, from the database alone. Nothing here writes."""

from __future__ import annotations

import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import text

from ablate import metrics
from ablate.store.database import CHECKPOINT, Database
from ablate.store.names import require_study
from ablate.store.noise import over_seeds
from ablate.store.owners import QUEUE, STATUS, dead
from ablate.store.records import ACCEPTED, FAILED
from ablate.store.schema import RUNS
from ablate.study import OWN, kind_of, tuned, tuned_field
from ablate.units import decimals, listed

# statuses of runs that may still get a result
UNFINISHED = ("planned", "queued", "running", "stopped")
_OF_STUDY = (
    "run.id IN (SELECT run_id FROM member JOIN cell ON cell.id = cell_id WHERE study_id = :study"
    " AND active)"
)


@dataclass(frozen=True)
class Survey:
    """Numbers of a study's runs.

    Attributes:
        counts: Status → number of runs, those that wait in a cluster's queue as "queued".
        flops_left: FLOPs of the whole trainings of unfinished runs; one of unknown FLOPs counts
            as 1.
    """

    counts: dict[str, int]
    flops_left: float

    @property
    def total(self) -> int:
        """Number of all runs."""
        return sum(self.counts.values())

    @property
    def claimed(self) -> int:
        """Number of runs that a launcher has: running or queued."""
        return self.counts.get("running", 0) + self.counts.get("queued", 0)

    @property
    def done(self) -> int:
        """Number of runs that have a result, or failed."""
        return self.total - sum(self.counts.get(status, 0) for status in UNFINISHED)


@dataclass(frozen=True)
class Working:
    """A running run, as far as its journal was ingested."""

    run: int
    cell: str
    seed: int
    attempt: int
    owner: str  # host:pid:token of the launcher
    device: str | None  # None until its worker has begun
    step: int
    steps: int  # of the whole training; 0 for unknown
    loss: float | None  # training loss
    tokens_per_second: float | None
    seconds_left: float | None
    dead: bool  # launcher and worker, on this host, are gone: the next `ablate run` repeats it
    silence: float | None = None  # seconds since a script printed something; None for no script
    queued: bool = False  # in a cluster's queue, until its worker has begun
    tried: str = ""  # what a tuning run tries, such as "lr 0.003"

    @property
    def waits(self) -> bool:
        """Whether no worker has begun it, and one of a cluster will."""
        return self.queued and not self.device and not self.dead

    @property
    def where(self) -> str:
        """Its device, or why it has none."""
        if self.dead:
            return "dead: its launcher and worker no longer run"
        return self.device or ("in a queue" if self.waits else "starting")


@dataclass(frozen=True)
class StudyStatus:
    """A study's runs by status, the running ones, and the time left.

    The time is that at their present speed; where they tell none, as scripts do, at that of the
    complete runs. None if neither is known.
    """

    name: str
    survey: Survey
    working: list[Working]
    seconds_left: float | None
    waiting: list[str]  # see `waiting`
    places: int = 4  # decimals of their losses: two digits of the deviation over seeds


def survey(db: Database, study_id: int) -> Survey:
    """Count the runs of a study by status."""
    rows = selected(
        db,
        f"SELECT {STATUS} AS status, count(*) AS number, sum(coalesce(flops, 1)) AS flops FROM run"
        f" WHERE {_OF_STUDY} GROUP BY 1",
        study=study_id,
    )
    return Survey(
        {row.status: row.number for row in rows},
        sum(row.flops for row in rows if row.status in UNFINISHED),
    )


@dataclass(frozen=True)
class SameSeeds:
    """Seeds of a cell whose runs have identical curves of the study's metric."""

    cell: str
    seeds: tuple[int, ...]
    of: int  # seeds that completed


@dataclass(frozen=True)
class SameArms:
    """A cell and its baseline, whose runs have identical curves of the study's metric."""

    stratum: str
    factor: str
    level: str
    baseline_level: str
    cell: str
    baseline: str
    seeds: tuple[int, ...]  # that both completed


Curve = tuple[tuple[int, float | None], ...]  # step and value of each point
Curves = dict[str, dict[int, Curve]]  # cell → seed → curve


def curves(db: Database, study: str) -> Curves:
    """Return the curves of the metric, of the complete runs of a script or of another tool that a
    study compares; none for runs of another kind.
    """
    compared = f"{RUNS} WHERE study.name = :study AND cell.active AND member.role = 'compare'"
    kinds = selected(db, f"SELECT run.kind AS kind {compared} LIMIT 1", study=study)
    if not kinds or kinds[0].kind not in ("command", "imported"):  # that of all compared runs
        return {}
    chosen = f"{compared} AND run.status = 'complete'"
    runs = selected(
        db,
        "SELECT cell.label AS cell, run.seed AS seed, study.metric AS metric, run.id AS run"
        f" {chosen} ORDER BY cell.id, run.seed",
        study=study,
    )
    if not runs:
        return {}
    name = metrics.series(runs[0].metric)
    curves_of: dict[int, list[tuple[int, float]]] = {}
    for point in selected(
        db,
        "SELECT run_id AS run, step, value FROM metric JOIN series ON series.id = series_id WHERE"
        f" series.name = :name AND run_id IN (SELECT run.id {chosen}) ORDER BY run_id, step",
        study=study,
        name=name,
    ):
        curves_of.setdefault(point.run, []).append((point.step, point.value))
    cells: Curves = {}
    for row in runs:
        cells.setdefault(row.cell, {})[row.seed] = tuple(curves_of.get(row.run, ()))
    return cells


def same_arms(db: Database, study: str, curves: Curves) -> list[SameArms]:
    """Return the cells of a study whose curves equal those of their baselines for every seed.

    Fewer than three points in all may be equal by chance.
    """
    if not curves:
        return []
    rows = selected(
        db,
        "SELECT DISTINCT c.stratum, c.factor, c.level, l.level AS baseline_level,"
        " cell.label AS cell, base.label AS baseline FROM contrast c JOIN study s ON s.id ="
        " c.study_id AND s.name = :study JOIN cell ON cell.id = c.cell_id AND cell.active JOIN cell"
        " AS base ON base.id = c.baseline_id JOIN cell_level l ON l.cell_id = base.id AND"
        " l.factor = c.factor WHERE NOT EXISTS (SELECT 1 FROM member AS own JOIN member AS other"
        " USING (run_id) WHERE own.cell_id = c.cell_id AND other.cell_id = c.baseline_id)"
        " ORDER BY c.id",
        study=study,
    )
    found = []
    for row in rows:
        cell, base = curves.get(row.cell, {}), curves.get(row.baseline, {})
        seeds = tuple(seed for seed in cell if seed in base)
        same = all(cell[seed] == base[seed] for seed in seeds)
        if same and sum(len(cell[seed]) for seed in seeds) >= 3:
            found.append(SameArms(**row._mapping, seeds=seeds))
    return found


def alike(db: Database, study: str) -> list[str]:
    """Return warnings, without full stop, of seeds and of arms that have identical curves."""
    found = curves(db, study)
    return [
        f"seeds {listed(one.seeds)} of {one.cell} have identical curves: they may be copies of one"
        " run, or the script may ignore its seed"
        for one in same_seeds(found)
    ] + [
        f"{one.cell} and {one.baseline} have identical curves: the script likely ignores or"
        f" misreads {one.factor}{misread(one.level, one.baseline_level)}, or they are copies of one"
        " run"
        for one in same_arms(db, study, found)
    ]


def misread(*levels: str) -> str:
    """Return a hint, in brackets, on how a script may misread levels; "" for none."""
    if {level.lower() for level in levels} == {"true", "false"}:
        return " (type=bool of argparse takes every text but an empty one as True)"
    return ""


def same_seeds(curves: Curves) -> list[SameSeeds]:
    """Return the cells in which the curve of the metric is the same for several seeds.

    Curves of one point are the same only if those of all seeds are: such numbers, as an accuracy
    on few examples, may be equal by chance.
    """
    found = []
    for cell, of_seeds in curves.items():
        groups: dict[Curve, list[int]] = {}
        for seed, curve in of_seeds.items():
            groups.setdefault(curve, []).append(seed)
        for curve, seeds in groups.items():
            if len(seeds) > 1 and curve and (len(curve) > 1 or len(seeds) == len(of_seeds)):
                found.append(SameSeeds(cell, tuple(seeds), len(of_seeds)))
    return found


def seconds_by_cell(db: Database, study: str) -> dict[str, float]:
    """Return cell → mean seconds of the training of its complete runs, of every role."""
    rows = selected(
        db,
        "SELECT r.cell AS cell, avg(f.value) AS seconds FROM all_runs AS r JOIN final AS f ON"
        " f.run_id = r.run AND f.name = 'train_seconds' WHERE r.study = :study AND r.status ="
        " 'complete' GROUP BY r.cell ORDER BY min(r.run)",
        study=study,
    )
    return {row.cell: row.seconds for row in rows}


def task_seconds(db: Database, device: str) -> dict[str, float]:
    """Return the key of each complete fine-tuned run → seconds that it took on such a device.

    Args:
        db: The database.
        device: Name of the device, as attempts have it.
    """
    rows = selected(
        db,
        "SELECT run.key AS key, attempt.device_seconds AS seconds FROM run JOIN attempt ON"
        " attempt.run_id = run.id WHERE run.kind = 'finetune' AND attempt.status = 'complete'"
        " AND attempt.device_name = :device AND attempt.device_seconds IS NOT NULL",
        device=device,
    )
    return {row.key: row.seconds for row in rows}


def first_failed(db: Database, study: str) -> int | None:
    """Return the first run of a study that failed, or None."""
    (row,) = selected(
        db,
        f"SELECT min(run) AS run FROM all_runs WHERE study = :study AND status IN {FAILED}",
        study=study,
    )
    run: int | None = row.run
    return run


def queued(db: Database, study: str) -> set[int]:
    """Return the runs of a study that wait in a cluster's queue."""
    rows = selected(
        db,
        f"SELECT DISTINCT run.id AS run {RUNS} WHERE study.name = :study AND cell.active"
        f" AND {STATUS} = 'queued'",
        study=study,
    )
    return {row.run for row in rows}


def counts_by_cell(db: Database, study: str) -> dict[str, dict[str, int]]:
    """Return cell → status, as in `Survey.counts` → number of runs of the study of that name."""
    counts: dict[str, dict[str, int]] = {}
    rows = selected(
        db,
        f"SELECT cell.label AS cell, {STATUS} AS status, count(*) AS number {RUNS} WHERE"
        " study.name = :study AND cell.active GROUP BY 1, 2 ORDER BY min(run.id)",
        study=study,
    )
    for row in rows:
        counts.setdefault(row.cell, {})[row.status] = row.number
    return counts


def studies(db: Database, name: str | None = None) -> list[StudyStatus]:
    """Return the study of that name, or all, in order of registration."""
    found = selected(
        db,
        "SELECT id, name, metric, toml FROM study WHERE :name IS NULL OR name = :name ORDER BY id",
        name=name,
    )
    return [_status(db, row) for row in found]


def planned(db: Database, name: str) -> tuple[str, int]:
    """Return the text of the file that a study was last planned from, and its revision.

    Raises:
        AblateError: There is no such study.
    """
    require_study(db, name)
    (row,) = selected(db, "SELECT toml, revision FROM study WHERE name = :name", name=name)
    return row.toml, row.revision


def left(db: Database, name: str) -> dict[str, int]:
    """Return the cells that an earlier revision of a study had → the number of their runs that no
    cell of the study has now.
    """
    rows = selected(
        db,
        "SELECT cell.label AS cell, count(DISTINCT run_id) AS number FROM study"
        " JOIN cell ON cell.study_id = study.id JOIN member ON member.cell_id = cell.id"
        " WHERE study.name = :name AND NOT cell.active AND run_id NOT IN (SELECT run_id FROM member"
        " JOIN cell AS kept ON kept.id = member.cell_id WHERE kept.active AND kept.study_id ="
        " study.id) GROUP BY cell.id ORDER BY cell.id",
        name=name,
    )
    return {row.cell: row.number for row in rows}


def waiting(db: Database, name: str) -> list[str]:
    """Return sentences, without full stop, on the decisions that are due but not made.

    A decision is due when the runs that it depends on have ended. The cells and seeds that wait for
    it are not planned yet, so counts of runs do not show them.
    """
    rates = _undecided(
        db, name, by="cell.label", role="tune", decision="<> 'seeds'", same="decided.id = cell.id"
    )
    tables = [
        settings(row.toml)
        for row in selected(db, "SELECT toml FROM study WHERE name = :study", study=name)
    ]
    seeds = [one.get("seeds") for one in tables]
    two_stage = any(isinstance(one, dict) and "pilot" in one for one in seeds)
    pilots = (
        _undecided(
            db,
            name,
            by="cell.stratum",
            role="compare",
            decision="= 'seeds'",
            same="decided.stratum = cell.stratum",
        )
        if two_stage  # the query reads every run
        else []
    )
    what = tuned(tuned_field(tables[0] if tables else {}))
    groups = [row for row in rates if row.failed], [row for row in rates if not row.failed]
    return [
        f"no {what} is chosen yet for {_places(group)}, so runs that need it are not planned:"
        f" {_why(group, 'tuning runs')}"
        for group in groups
        if group
    ] + [
        f"the number of seeds of {row.waiting or 'the study'} is not decided yet:"
        f" {_why([row], 'pilot runs')}"
        for row in pilots
    ]


_UNDECIDED = """
SELECT {by} AS waiting, count(DISTINCT run.id) AS number,
       count(DISTINCT CASE WHEN run.status IN {failed_ones} THEN run.id END) AS failed,
       count(DISTINCT CASE WHEN run.status IN {unfinished} THEN run.id END) AS unfinished
{runs} WHERE study.name = :study AND cell.active AND member.role = '{role}' AND NOT EXISTS (
    SELECT 1 FROM decision JOIN cell AS decided ON decided.id = decision.cell_id
    WHERE decision.study_id = study.id AND decision.name {decision} AND {same})
GROUP BY {by} HAVING failed OR NOT unfinished ORDER BY min(member.ordinal)
"""


def _undecided(db: Database, name: str, **parts: str) -> list[Any]:
    return selected(
        db,
        _UNDECIDED.format(runs=RUNS, unfinished=UNFINISHED, failed_ones=FAILED, **parts),
        study=name,
    )


def _places(rows: Sequence[Any]) -> str:
    """Return the cells of rows, with semicolons where a label has commas itself."""
    names = [str(row.waiting) for row in rows]
    return "; ".join(names) if any("," in name for name in names) else listed(names)


def _why(rows: Sequence[Any], what: str) -> str:
    failed, number = sum(row.failed for row in rows), sum(row.number for row in rows)
    if not failed:
        return "`ablate run` continues with this"
    its, them = "its" if len(rows) == 1 else "their", "it" if failed == 1 else "them"
    return f"{failed} of {its} {number} {what} failed; `ablate run` retries {them}"


def settings(toml: str) -> dict[str, Any]:
    """Return the tables of a study file; none if it is not readable."""
    try:
        return tomllib.loads(toml)
    except tomllib.TOMLDecodeError:
        return {}


def checkpoints(db: Database, study_id: int) -> dict[str, str]:
    """Return key → path of the newest existing checkpoint of a study's unfinished runs."""
    rows = selected(
        db,
        "SELECT run.key, artifact.path FROM run JOIN artifact ON artifact.run_id = run.id AND"
        f" artifact.kind = 'checkpoint' WHERE {_OF_STUDY} AND run.status <> 'complete'",
        study=study_id,
    )
    existing = []
    for row in rows:
        file, there = db.checkpoint(row.path)
        written = [each.stat().st_mtime for each in there]
        existing += [(max(written), row.key, str(file))] if written else []
    return {key: path for _, key, path in sorted(existing)}


def unneeded_checkpoints(db: Database) -> list[Path]:
    """Return the checkpoint files from which no run of the database can continue.

    A worker removes those of its run when it writes a newer one and when it ends, unless it is
    killed in between. Needed are those that the journal of an unfinished or failed run names, and
    those that a running attempt may be writing.
    """
    files = [
        (found, file)
        for file in sorted(db.checkpoints.glob("*.pt*"))
        if (found := CHECKPOINT.match(file.name))
    ]
    if not files:
        return []
    rows = selected(
        db,
        "SELECT path FROM artifact JOIN run ON run.id = run_id WHERE artifact.kind = 'checkpoint'"
        f" AND run.status NOT IN {ACCEPTED} UNION ALL SELECT substr(key, 1, 12) || '-' || n ||"
        " '.pt' FROM attempt JOIN run ON run.id = run_id"
        " WHERE attempt.status = 'running'",
    )
    needed = {Path(row.path).name for row in rows}
    return [file for found, file in files if found[0] not in needed]


def _status(db: Database, study: Any) -> StudyStatus:
    reported = metrics.series(study.metric)
    field = tuned_field(settings(study.toml))
    counted, gone = survey(db, study.id), dead(db, study.id)
    rows = selected(db, _WORKING, study=study.id, metric=reported, field=field)
    working = [_working(db, row, row.run in gone, tried(field, row.tried)) for row in rows]
    speed = left = 0.0  # FLOP/s, FLOPs
    for row, run in zip(rows, working, strict=True):
        if not (row.flops and row.tokens and run.steps):  # unknown
            continue
        left -= row.flops * run.step / run.steps
        if run.tokens_per_second and not run.dead:
            speed += run.tokens_per_second * row.flops / row.tokens
    seconds_left = max(0.0, counted.flops_left + left) / speed if speed else None
    if not speed:
        seconds_left = _seconds_as_before(db, study.id, counted, rows, working)
    places = _decimals(db, study, reported) if working else 4
    return StudyStatus(study.name, counted, working, seconds_left, waiting(db, study.name), places)


def _decimals(db: Database, study: Any, reported: str) -> int:
    """Return the decimals of what `_WORKING` shows as loss, by the noise of complete runs."""
    own = kind_of(settings(study.toml)) in OWN
    names = ("train_loss", reported) if own else ("loss",)
    spreads = over_seeds(db, study=study.name, names=names)
    return decimals(next((spreads[name, 0.0] for name in names if (name, 0.0) in spreads), 0.0))


def _seconds_as_before(
    db: Database, study_id: int, counted: Survey, rows: list[Any], working: list[Working]
) -> float | None:
    """Seconds until a study is done at the speed of its complete runs; None without one."""
    left, workers = counted.flops_left, 0.0
    for row, run in zip(rows, working, strict=True):
        if run.steps:
            left -= (row.flops or 1.0) * run.step / run.steps
        if not run.dead and not run.queued:
            workers += 1 / (row.pack_size or 1)
    if not workers:
        return None
    (before,) = selected(
        db,
        "SELECT sum(attempt.device_seconds) AS seconds, sum(coalesce(run.flops, 1)) AS flops"
        " FROM run JOIN attempt ON attempt.run_id = run.id AND attempt.status = 'complete' AND"
        f" attempt.device_seconds IS NOT NULL WHERE {_OF_STUDY}",
        study=study_id,
    )
    if not before.flops:
        return None
    return float(max(0.0, left) * before.seconds / before.flops / workers)


def tried(field: str, value: object) -> str:
    """Return what a tuning run tries, by the value of the field that its study tunes."""
    return f"{field} {value:g}" if isinstance(value, int | float) else ""


def _last(series: str, what: str) -> str:
    """SQL for the newest point of a run's series, found through the primary key."""
    points = (
        "metric WHERE run_id = run.id AND series_id = (SELECT id FROM series WHERE name ="
        f" {series if series.startswith(':') else repr(series)})"
    )
    return f"(SELECT metric.{what} FROM {points} ORDER BY step DESC LIMIT 1)"


# of a run that only tunes: the value of the field `:field`
TRIED = """
CASE min(member.role) WHEN 'tune' THEN json_extract(run.fields, '$."' || :field || '"') END
"""
_WORKING = f"""
SELECT run.id AS run, min(cell.label) AS cell, run.seed, run.steps, run.tokens, run.flops,
       attempt.n, attempt.owner, attempt.device, attempt.journal, attempt.pack_size,
       {TRIED} AS tried,
       coalesce({_last("train_loss", "step")}, {_last(":metric", "step")},
              attempt.resumed_step, 0) AS step,
       coalesce({_last("train_loss", "value")}, {_last(":metric", "value")}) AS loss,
       {_last("tokens_per_second", "value")} AS speed
FROM cell JOIN member ON member.cell_id = cell.id JOIN run ON run.id = member.run_id
     JOIN attempt ON attempt.run_id = run.id AND attempt.status = 'running'
WHERE cell.study_id = :study AND cell.active GROUP BY run.id ORDER BY min(member.ordinal)
"""


def _working(db: Database, row: Any, gone: bool, tried: str) -> Working:
    left = None
    if row.speed and row.steps and row.tokens and not gone:
        left = (row.steps - row.step) * row.tokens / row.steps / row.speed
    return Working(
        row.run,
        row.cell,
        row.seed,
        row.n,
        row.owner,
        row.device,
        row.step,
        row.steps or 0,
        row.loss,
        row.speed,
        left,
        gone,
        _silence(db, row.journal),
        row.owner.startswith(f"{QUEUE}/"),
        tried,
    )


def _silence(db: Database, journal: str) -> float | None:
    """Seconds since a script printed something; None where there is no log."""
    path = db.log(journal)
    try:
        return None if path is None else max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None


def selected(db: Database, sql: str, **values: object) -> list[Any]:
    """Return the rows of a SELECT, with values for its names."""
    with db.read() as connection:
        return list(connection.execute(text(sql), values))
