"""How fast the results database is, beside raw `sqlite3` doing the same in the same call.

    python benchmarks/store.py [--runs 1000] [--folder DIR]
    python benchmarks/store.py --db results/reference.db

Raw is `executemany` on tuples that are ready, into the same table, in transactions of the same
size: a run, or a pack of runs that end together. Optuna's and MLflow's own stores are measured
where they are installed, on fewer points, for they are slower. Many processes at once:
`benchmarks/crowd.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import platform
import sqlite3
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from ablate import journal, results, store
from ablate.config import RunConfig
from ablate.journal import Journal
from ablate.kinds.transformer import run_of
from ablate.plan import Cell, Contrast, Plan, PlannedRun
from ablate.store import names, owners, query, records, register, runs, schema
from ablate.store.ingest import INSERT_METRIC, ingest_all
from ablate.store.questions import QUESTIONS
from ablate.study import Study

SERIES = ("loss", "train_loss", "lr", "grad_norm")
POINTS = 100  # a series and run; 25 times as many in long runs
PACK = 8  # short runs whose jobs end together
LINE = 20  # points of each series in a line of a journal
TOPOLOGIES = ("serial", "parallel", "concat", "double-skip")


def plan_of(n_runs: int) -> Plan:
    """A study of four topologies with as many seeds as it takes."""
    cells = []
    for level in TOPOLOGIES:
        config = RunConfig(topology=level, n_layer=2, d_model=64)
        levels = {"topology": level}
        label = f"topology={level}"
        cells.append(Cell(run_of(config), 1.0, label=label, levels=levels, stratum=""))
    contrasts = [
        Contrast("topology", "", "topology", c.levels["topology"], c.label, cells[0].label)
        for c in cells[1:]
    ]
    seeds = tuple(range(n_runs // len(cells)))
    planned = [PlannedRun(c.label, c.run.with_(seed=seed)) for seed in seeds for c in cells]
    levels = {level: {"topology": level} for level in TOPOLOGIES}
    study = Study("bench", "", "loss", "min", "one-factor", (), seeds, {}, {"topology": levels})
    return Plan(study, tuple(cells), tuple(contrasts), tuple(planned))


def value(run: int, series: int, point: int) -> float:
    """A number with a full mantissa, as measured ones have."""
    return 2.0 + 1 / (run + series + point + 1.1)


@dataclass(frozen=True)
class Took:
    """Seconds by the clock, and of this process's own work, which another busy process does not
    lengthen.
    """

    wall: float
    cpu: float


def timed(call: Callable[[], Any]) -> Took:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


def best(times: list[Took]) -> Took:
    return Took(min(t.wall for t in times), min(t.cpu for t in times))


def report(
    name: str, took: Took, points: int, raw: Took | None = None, size: float | None = None
) -> None:
    ratio = (
        f"{raw.wall / took.wall:6.2f} × raw ({raw.cpu / took.cpu:.2f} by CPU)" if raw else " " * 28
    )
    each = f"{size / points:7.1f} bytes a point" if size else ""
    print(
        f"{name:42s} {took.wall:8.3f} s {points / took.wall:11,.0f} points/s {ratio} {each}",
        flush=True,
    )


# -- writing ---------------------------------------------------------------------------------------


def batches(n_runs: int, points: int, pack: int) -> list[list[tuple[int, int, int, float]]]:
    """The points of each pack of runs, as rows of `metric` in the order of its key."""
    return [
        [
            (run, s, k, value(run, s, k))
            for run in range(first, first + pack)
            for s in range(len(SERIES))
            for k in range(points)
        ]
        for first in range(1, n_runs + 1, pack)
    ]


def write_raw(path: Path, n_runs: int, points: int, pack: int) -> Took:
    """Inserts by `sqlite3`, a transaction a pack, with the settings that ablate writes with."""
    rows = batches(n_runs, points, pack)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(
            "CREATE TABLE metric (run_id INTEGER NOT NULL, series_id INTEGER NOT NULL, step INTEGER"
            " NOT NULL, value FLOAT, PRIMARY KEY (run_id, series_id, step)) WITHOUT ROWID"
        )

        def insert() -> None:
            for batch in rows:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("INSERT INTO metric VALUES (?, ?, ?, ?)", batch)
                connection.execute("COMMIT")

        return timed(insert)


def write_tuples(path: Path, n_runs: int, points: int, pack: int) -> Took:
    """The same inserts on equal terms: tuples that are ready, through `Database.begin`."""
    rows = batches(n_runs, points, pack)
    with store.open(str(path), create=True) as db:

        def insert() -> None:
            for batch in rows:
                with db.begin() as connection:
                    connection.exec_driver_sql(INSERT_METRIC, batch)

        return timed(insert)


def write_study(path: Path, n_runs: int, points: int, pack: int) -> dict[str, Took]:
    """A study from its plan to its last ingested journal: how long each part took."""
    plan = plan_of(n_runs)
    took = {}
    with store.open(str(path), create=True) as db, owners.Owner.here(db) as owner:
        claims: list[records.Claim] = []
        took["register"] = timed(lambda: register.register(db, plan))

        def claim_all() -> None:
            waiting = [run.run_id for run in runs.candidates(db, 1, owner)]
            claims.extend(runs.claim(db, 1, owner, waiting))

        took["claim"] = timed(claim_all)
        took["claim of nothing"] = timed(lambda: runs.candidates(db, 1, owner))
        for claim in claims:
            with Journal(claim.journal) as writing:
                writing.append("start", step=0)
                for first in range(0, points, LINE):
                    steps = range(first, first + LINE)
                    series = {
                        name: [value(claim.run_id, s, step) for step in steps]
                        for s, name in enumerate(SERIES)
                    }
                    writing.append("metrics", steps=list(steps), series=series)
                writing.append(
                    "final",
                    values=[["loss", 0, 2.0], ["bits_per_byte", 0, 1.0], ["accuracy", 0, 0.5]],
                )
                writing.append("end", status="complete", step=points)
        packs = [
            [claim.attempt_id for claim in claims[first : first + pack]]
            for first in range(0, n_runs, pack)
        ]

        def take_in() -> None:
            for attempts in packs:
                ingest_all(db, attempts)

        def parse() -> None:
            for claim in claims:
                journal.read(claim.journal)

        took["ingest"], took["parse"] = timed(take_in), timed(parse)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (stored,) = connection.execute("SELECT count(*) FROM metric").fetchone()
        assert stored == n_runs * points * len(SERIES)
    return took


def write(folder: Path, n_runs: int, points_each: int, pack: int) -> float:
    """Every way of writing in turn, five times over, for other processes come and go. The raw rate,
    in points a second.
    """
    points = n_runs * len(SERIES) * points_each
    folder.mkdir()
    print(f"-- {n_runs:,} runs of {len(SERIES) * points_each:,} points, {pack} runs a transaction")
    raw, tuples, study = [], [], []
    for turn in range(5):
        raw.append(write_raw(folder / f"raw{turn}.db", n_runs, points_each, pack))
        tuples.append(write_tuples(folder / f"tuples{turn}.db", n_runs, points_each, pack))
        study.append(write_study(folder / f"study{turn}.db", n_runs, points_each, pack))
    least = {name: best([each[name] for each in study]) for name in study[0]}
    plain = best(raw)
    for name in ("register", "claim", "claim of nothing"):
        print(f"{name:42s} {least[name].wall:8.3f} s  {n_runs:,} runs")
    report("raw sqlite3, executemany", plain, points, size=(folder / "raw0.db").stat().st_size)
    report(
        "ablate, the same tuples",
        best(tuples),
        points,
        plain,
        size=(folder / "tuples0.db").stat().st_size,
    )
    ingested = least["ingest"]
    report(
        "ablate, whole ingest of journals",
        ingested,
        points,
        plain,
        size=(folder / "study0.db").stat().st_size,
    )
    parsed = least["parse"]
    report(
        "  less reading and parsing JSON",
        Took(ingested.wall - parsed.wall, ingested.cpu - parsed.cpu),
        points,
        plain,
    )
    return points / plain.wall


# -- reading ---------------------------------------------------------------------------------------

RAW_FINALS = (
    "SELECT cell.label, run.seed, run_field.topology, run_field.lr, final.value"
    " FROM run JOIN run_field ON run_field.run_id = run.id"
    " JOIN member ON member.run_id = run.id JOIN cell ON cell.id = member.cell_id"
    " JOIN final ON final.run_id = run.id AND final.name = 'loss' AND final.at = 0"
)
RAW_CURVES = (
    "SELECT run_id, step, value FROM metric WHERE series_id = (SELECT id FROM series WHERE name ="
    " 'loss')"
)
RAW_CURVES_WIDE = (
    "SELECT 'bench', cell.label, role, run.id, run.seed, 'loss', step,"
    " step * (run.tokens / run.steps), value"
    " FROM cell JOIN member ON member.cell_id = cell.id JOIN run ON run.id = member.run_id"
    " JOIN metric ON metric.run_id = run.id"
    " AND series_id = (SELECT id FROM series WHERE name = 'loss')"
)
READS = (
    (
        "final metrics and factors of all runs",
        RAW_FINALS,
        "SELECT cell, seed, topology, lr, loss FROM runs WHERE study = 'bench'",
    ),
    ("  every column of the view runs", None, "SELECT * FROM runs WHERE study = 'bench'"),
    ("  view pairs", None, "SELECT * FROM pairs WHERE study = 'bench'"),
    (
        "one metric's curves of all runs",
        RAW_CURVES,
        "SELECT run, step, value FROM curves WHERE study = 'bench' AND series = 'loss'",
    ),
    (
        "  every column of the view curves",
        RAW_CURVES_WIDE,
        "SELECT * FROM curves WHERE study = 'bench' AND series = 'loss'",
    ),
    (
        "all curves of all runs",
        "SELECT * FROM metric",
        "SELECT run, series, step, value FROM curves WHERE study = 'bench'",
    ),
)


def read(path: Path) -> None:
    """DataFrames from the views, beside raw SQL on a `sqlite3` connection."""

    def raw(sql: str) -> pd.DataFrame:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return pd.read_sql_query(sql, connection)

    def ours(sql: str) -> pd.DataFrame:
        with store.open(str(path)) as db, db.read() as connection:
            return pd.read_sql_query(sql, connection.connection.driver_connection)  # type: ignore[arg-type]

    for name, raw_sql, sql in READS:
        took, plain = [], []
        for _ in range(5):
            took.append(timed(partial(ours, sql)))
            if raw_sql:
                plain.append(timed(partial(raw, raw_sql)))
        beside = ""
        if raw_sql:
            assert len(raw(raw_sql)) == len(ours(sql))
            least, beside_raw = best(took), best(plain)
            ratio = least.wall / beside_raw.wall
            beside = (
                f"raw {beside_raw.wall:.3f} s: {ratio:.2f} × its time"
                f" ({least.cpu / beside_raw.cpu:.2f} by CPU)"
            )
        print(f"{name:42s} {best(took).wall:8.3f} s  {len(ours(sql)):,} rows  {beside}", flush=True)


def ask(path: Path) -> None:
    """Every named query, and the frames of `ablate.results`, on every study of a database."""
    with store.open(str(path)) as db:
        for study in names.studies(db):
            print(f"-- {path.name}: {study}")
            for question in QUESTIONS.values():
                values = question.bind([study] if "study" in question.parameters else [])
                call = partial(query.run, db, question.sql, values, limit_seconds=600)
                _asked(question.name, call)
            for name, frame in (
                ("ablate.load", results.load),
                ("ablate.results.pairs", results.pairs),
                ("ablate.results.finals", results.finals),
                ("ablate.curves, 200 points", partial(results.curves, points=200)),
            ):
                _asked(name, partial(frame, study, db=db))


def _asked(name: str, call: Callable[[], Any]) -> None:
    took = best([timed(call) for _ in range(7)])
    print(f"{name:42s} {took.wall * 1e3:9.2f} ms  {took.cpu * 1e3:9.2f} ms by CPU", flush=True)


# -- others ----------------------------------------------------------------------------------------


def optuna_store(folder: Path, raw_rate: float) -> None:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage=f"sqlite:///{folder / 'optuna.db'}")
    n_runs = 5

    def write() -> None:
        for run in range(n_runs):
            trial = study.ask()
            for step in range(POINTS):
                trial.report(value(run, 0, step), step)
            study.tell(trial, 2.0)

    took = timed(write)
    points = n_runs * POINTS
    report(
        f"Optuna {optuna.__version__}",
        took,
        points,
        raw_of(points, raw_rate),
        (folder / "optuna.db").stat().st_size,
    )


def mlflow_store(folder: Path, raw_rate: float) -> None:
    import mlflow
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    study = client.create_experiment("bench", artifact_location=str(folder / "mlruns"))
    empty = (folder / "mlflow.db").stat().st_size
    n_runs = 5

    def write() -> None:
        for run in range(n_runs):
            run_id = client.create_run(study).info.run_id
            for s, name in enumerate(SERIES):
                client.log_batch(
                    run_id, [Metric(name, value(run, s, step), 0, step) for step in range(POINTS)]
                )

    took = timed(write)
    points = n_runs * POINTS * len(SERIES)
    grown = (folder / "mlflow.db").stat().st_size - empty
    report(f"MLflow {mlflow.__version__}", took, points, raw_of(points, raw_rate), grown)


def raw_of(points: int, rate: float) -> Took:
    return Took(points / rate, points / rate)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument(
        "--folder", type=Path, help="where the databases are written; a temporary folder without it"
    )
    parser.add_argument(
        "--db", type=Path, help="only time the named queries and frames of this database"
    )
    options = parser.parse_args()
    if options.db:
        ask(options.db)
        return
    print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()}"
        f" CPUs, schema {schema.HEAD}"
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        write(folder / "long", max(1, options.runs // 25) // 4 * 4 or 4, POINTS * 25, 1)
        write(folder / "packs", options.runs, POINTS, PACK)
        raw_rate = write(folder / "short", options.runs, POINTS, 1)
        read(folder / "short" / "study0.db")
        ask(folder / "short" / "study0.db")
        for module, measure in (("optuna", optuna_store), ("mlflow", mlflow_store)):
            if importlib.util.find_spec(module):
                measure(folder, raw_rate)
            else:
                print(f"{module:42s} not installed")


if __name__ == "__main__":
    main()
