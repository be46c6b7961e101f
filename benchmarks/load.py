"""How a large database feels: 2,000 runs with 20 million points, and the time of the commands that
look into it.

    python benchmarks/load.py [--runs 2000] [--points 2500] [--folder DIR]

Points are those of one series and run; there are four series. The folder is kept when it is named,
and used again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from store import INSERT_METRIC, SERIES, plan_of, value

from ablate import store
from ablate.store import owners, register, runs, schema

COMMANDS = {
    "ablate status": ["status"],
    "ablate status STUDY": ["status", "bench"],
    "ablate show RUN": ["show", "1"],
    "ablate report STUDY": ["report", "bench", "--out", "{folder}/report"],
    "ablate query, the view runs": [
        "query",
        "SELECT cell, count(*), avg(loss) FROM runs GROUP BY cell",
    ],
    "ablate query, all of the view runs": ["query", "SELECT * FROM runs", "--format", "csv"],
    "ablate query, the view pairs": [
        "query",
        "SELECT level, avg(difference) FROM pairs GROUP BY level",
    ],
    "ablate query, one run's curve": [
        "query",
        "SELECT count(*) FROM curves WHERE run = 77 AND series = 'loss'",
    ],
    "ablate query, one series' ends": [
        "query",
        (
            "SELECT cell, avg(value) FROM curves WHERE study = 'bench' AND series = 'loss' AND step"
            " = 2499 GROUP BY cell"
        ),
    ],
    "ablate db check": ["db", "check"],
}


def fill(path: Path, n_runs: int, points: int) -> None:
    """A complete study: runs, accepted attempts, finals, points."""
    with store.open(str(path), create=True) as db, owners.Owner.here(db) as owner:
        study_id = register.register(db, plan_of(n_runs))
        with db.begin() as connection:
            connection.exec_driver_sql(
                "INSERT INTO series (id, name, unit, goal) VALUES (?, ?, '', 'min')",
                list(enumerate(SERIES, start=1)),
            )
        waiting = [run.run_id for run in runs.candidates(db, study_id, owner)]
        for claim in runs.claim(db, study_id, owner, waiting):
            final = (
                value(claim.run_id, 0, points) + (claim.run.config.topology == "parallel") * 0.01
            )
            with db.begin() as connection:
                rows = [
                    (claim.run_id, s, k, value(claim.run_id, s, k))
                    for s in range(1, len(SERIES) + 1)
                    for k in range(points)
                ]
                connection.exec_driver_sql(INSERT_METRIC, rows)
                finals = [
                    (claim.run_id, name, final) for name in ("loss", "bits_per_byte", "accuracy")
                ]
                connection.exec_driver_sql(
                    "INSERT INTO final (run_id, name, at, value) VALUES (?, ?, 0, ?)", finals
                )
                for table, column in (("run", "id"), ("attempt", "run_id")):
                    connection.exec_driver_sql(
                        f"UPDATE {table} SET status = 'complete' WHERE {column} = ?",
                        (claim.run_id,),
                    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--points", type=int, default=2500)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()}"
        f" CPUs, schema {schema.HEAD}"
    )
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True, parents=True)
        path = folder / "load.db"
        if not path.exists():
            begun = time.perf_counter()
            fill(path, options.runs, options.points)
            points = options.runs * options.points * len(SERIES)
            print(
                f"made in {time.perf_counter() - begun:.0f} s: {points:,} points,"
                f" {path.stat().st_size / 2**20:,.0f} MiB"
            )
        for name, words in COMMANDS.items():
            command = [
                sys.executable,
                "-m",
                "ablate",
                *(word.format(folder=folder) for word in words),
                "--db",
                str(path),
            ]
            begun = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            print(
                f"{name:40s} {time.perf_counter() - begun:8.2f} s  {done.stderr.strip()[-100:]}",
                flush=True,
            )


if __name__ == "__main__":
    main()
