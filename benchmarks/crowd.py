"""Many processes on one database: eight that claim, train in mime, journal and ingest, while others
read all the time.

    python benchmarks/crowd.py [--seconds 60] [--writers 8] [--runs 2000] [--folder DIR]

Readers are the commands `query`, `status` and `report`, pandas on a connection of its own, and
`ablate.load`. Each looks for a run that is half there: a line of a journal, a pack's end and a
run's finals come whole or not at all. In the end every point is compared with what was written.
Then writers are killed, and what they had acknowledged is looked for.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing as mp
import os
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from store import SERIES, plan_of, value

import ablate
from ablate import store
from ablate.journal import Journal
from ablate.store import owners, records, register, runs
from ablate.store.ingest import ingest_all

POINTS, LINE, PACK = (
    1000,
    50,
    4,
)  # of a series and run; of a line of a journal; runs that a writer claims together

# Of the last runs that were begun: points that are no whole number of lines, series of unequal
# length, a complete run that lacks points or finals, an unfinished one that has finals, a pack of
# which only some have ended.
HALF_THERE = f"""
WITH latest AS (SELECT run_id, owner, status FROM attempt ORDER BY id DESC LIMIT 80),
     seen AS (SELECT run_id, owner, status,
                     (SELECT count(*) FROM metric AS m WHERE m.run_id = latest.run_id) AS points,
                     (SELECT count(*) FROM metric AS m WHERE m.run_id = latest.run_id
                            AND series_id = 1) AS first,
                     (SELECT count(*) FROM final AS f
                            WHERE f.run_id = latest.run_id) AS finals FROM latest)
SELECT count(*) AS wrong, (SELECT count(*) FROM attempt
       WHERE status = 'complete') AS complete FROM seen
WHERE first % {LINE} OR points <> first * {len(SERIES)} OR (status = 'complete') <> (finals = 3)
      OR status = 'complete' AND first <> {POINTS}
      OR owner IN (SELECT owner FROM seen WHERE status = 'running' GROUP BY owner
                   HAVING count(DISTINCT points) > 1 OR count(*) <> {PACK})
"""

# -- writing ---------------------------------------------------------------------------------------


def work(path: str, seconds: float, acknowledged: Any, start: Any = None) -> None:
    """Claim packs and do them, for some seconds and then to the end of the pack."""
    if start:
        start.wait()
    with store.open(path, create=True) as db, owners.Owner.here(db) as owner:
        end = time.monotonic() + seconds
        while time.monotonic() < end and (claims := claim_some(db, owner, PACK)):
            do(db, claims, acknowledged)


def claim_some(db: store.Database, owner: owners.Owner, most: int) -> list[records.Claim]:
    """Claim runs until some are got that no other process was quicker on, or none are left."""
    while waiting := runs.candidates(db, 1, owner):
        if claims := runs.claim(db, 1, owner, [run.run_id for run in waiting[:most]]):
            return claims
    return []


def do(db: store.Database, claims: list[records.Claim], acknowledged: Any) -> None:
    attempts = [claim.attempt_id for claim in claims]
    with contextlib.ExitStack() as stack:
        journals = [stack.enter_context(Journal(claim.journal)) for claim in claims]
        for journal in journals:
            journal.append("start", step=0, device="cpu")
        for first in range(0, POINTS, LINE):
            steps = list(range(first, first + LINE))
            for claim, journal in zip(claims, journals, strict=True):
                series = {
                    name: [value(claim.run_id, s, step) for step in steps]
                    for s, name in enumerate(SERIES)
                }
                journal.append("metrics", steps=steps, series=series)
            assert all(ingest_all(db, attempts).values()), (
                "an attempt of this writer is no longer its own"
            )
            with acknowledged.get_lock():
                acknowledged.value += LINE * len(SERIES) * len(claims)
        for claim, journal in zip(claims, journals, strict=True):
            finals = [
                [name, 0, value(claim.run_id, 0, POINTS)]
                for name in ("loss", "bits_per_byte", "accuracy")
            ]
            journal.append("final", values=finals)
            journal.append("end", status="complete", step=POINTS, device_seconds=1.0)
    ingest_all(db, attempts)


# -- reading ---------------------------------------------------------------------------------------


def command(path: str, *words: str) -> str:
    """What an `ablate` command prints; an error where it fails, or has a word to say about one."""
    done = subprocess.run(
        [sys.executable, "-m", "ablate", *words, "--db", path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (
        f"ablate {words[0]}: exit {done.returncode}: {(done.stderr + done.stdout).strip()[-300:]}"
    )
    return done.stdout


def by_query(path: str) -> None:
    header, line = command(path, "query", HALF_THERE, "--format", "csv").split()
    assert header == "wrong,complete" and line.startswith("0,"), f"a run is half there: {line}"


def by_status(path: str) -> None:
    assert "bench" in command(path, "status")


def by_report(path: str) -> None:
    command(path, "report", "bench", "--out", f"{path}.report{os.getpid()}")


def by_pandas(path: str) -> None:
    with contextlib.closing(
        sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=60)
    ) as connection:
        (wrong,) = pd.read_sql_query(HALF_THERE, connection)["wrong"]
        frame = pd.read_sql_query("SELECT run, status, loss, bits_per_byte FROM runs", connection)
    assert wrong == 0 and (frame["loss"].notna() == (frame["status"] == "complete")).all(), (
        "a run is half there"
    )


def by_load(path: str) -> None:
    frame = ablate.load("bench", path)
    assert (frame["loss"].notna() == (frame["status"] == "complete")).all(), "a run is half there"


READERS: dict[str, Callable[[str], None]] = {
    "ablate query": by_query,
    "ablate status": by_status,
    "ablate report": by_report,
    "pandas": by_pandas,
    "ablate.load": by_load,
}


def read(path: str, name: str, done: Any, reads: Any, start: Any) -> None:
    start.wait()
    while not done.is_set():
        READERS[name](path)
        reads.value += 1


# -- together --------------------------------------------------------------------------------------


def made(path: Path, n_runs: int) -> Path:
    with store.open(str(path), create=True) as db:
        register.register(db, plan_of(n_runs))
    return path


def faults(path: Path) -> list[str]:
    """What is not as it was written: points, finals, states, pages; and what `ablate db check`
    finds.
    """
    with contextlib.closing(sqlite3.connect(path)) as connection:
        points = pd.read_sql_query(
            "SELECT run_id, name, step, value, status FROM metric JOIN series ON series.id ="
            " series_id JOIN run ON run.id = run_id",
            connection,
        )
        finals = connection.execute("SELECT run_id, value FROM final").fetchall()
        complete = {
            run for (run,) in connection.execute("SELECT id FROM run WHERE status = 'complete'")
        }
        (sound,) = connection.execute("PRAGMA integrity_check").fetchone()
    place = points["name"].map({name: s for s, name in enumerate(SERIES)})
    wrong = int((points["value"] != value(points["run_id"], place, points["step"])).sum())
    whole = points[points["status"] == "complete"].groupby("run_id").size()
    told = {
        f"{wrong} points have another value": wrong,
        "a complete run lacks points": (
            set(whole.index) != complete or (whole != POINTS * len(SERIES)).any()
        ),
        "finals are not those of the complete runs": (
            sorted(finals)
            != sorted((run, value(run, 0, POINTS)) for run in complete for _ in range(3))
        ),
        f"integrity: {sound}": sound != "ok",
    }
    return [text for text, so in told.items() if so]


def stored(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (number,) = connection.execute("SELECT count(*) FROM metric").fetchone()
    return int(number)


def crowd(path: Path, writers: int, seconds: float) -> list[str]:
    """Writers and readers together; what went wrong."""
    context = mp.get_context("spawn")
    done, written = context.Event(), context.Value("q", 0)
    reads = {name: context.Value("q", 0) for name in READERS}
    start = context.Barrier(writers + len(READERS) + 1)
    reading = [
        context.Process(target=read, args=(str(path), name, done, reads[name], start))
        for name in READERS
    ]
    working = [
        context.Process(target=work, args=(str(path), seconds, written, start))
        for _ in range(writers)
    ]
    for process in reading + working:
        process.start()
    start.wait(60)
    begun = time.monotonic()
    for process in working:
        process.join()
    took = time.monotonic() - begun
    done.set()
    for process in reading:
        process.join()
    number = stored(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        (complete,) = connection.execute(
            "SELECT count(*) FROM run WHERE status = 'complete'"
        ).fetchone()
    print(
        f"{writers} writers, {took:.0f} s: {complete} runs, {number:,} points stored,"
        f" {written.value:,} acknowledged"
    )
    print(
        "reads meanwhile: " + ", ".join(f"{name} {count.value}" for name, count in reads.items()),
        flush=True,
    )
    failed = [
        f"a {kind} failed"
        for kind, all_ in (("writer", working), ("reader", reading))
        for p in all_
        if p.exitcode
    ]
    return failed + faults(path) + ["points were lost or doubled"] * (number != written.value)


def killed(path: Path, writers: int) -> list[str]:
    """Writers that are killed on their way, and one that takes over what they leave; what went
    wrong.
    """
    context = mp.get_context("spawn")
    written = context.Value("q", 0)
    working = [
        context.Process(target=work, args=(str(path), 600.0, written)) for _ in range(writers)
    ]
    for process in working:
        process.start()
    while written.value < 50_000 and all(process.is_alive() for process in working):
        time.sleep(0.05)
    for process in working:
        time.sleep(0.02)
        process.kill()
    for process in working:
        process.join()
    there = stored(path)
    print(f"{writers} writers killed: {there:,} points stored, {written.value:,} acknowledged")
    wrong = faults(path) + ["acknowledged points are lost"] * (there < written.value)
    work(str(path), 600.0, written)  # whatever is left
    with contextlib.closing(sqlite3.connect(path)) as connection:
        states = dict(
            connection.execute("SELECT status, count(*) FROM run GROUP BY status").fetchall()
        )
    print(f"taken over: {states}")
    return wrong + faults(path) + ["a run was not taken over"] * (states.keys() != {"complete"})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument(
        "--runs",
        type=int,
        default=2000,
        help="that there are to claim; a thousand points of four series each",
    )
    parser.add_argument(
        "--folder", type=Path, help="where the databases are written; a temporary folder without it"
    )
    options = parser.parse_args()
    print(
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, pandas"
        f" {pd.__version__}, {os.cpu_count()} CPUs"
    )
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        wrong = crowd(made(Path(name) / "crowd.db", options.runs), options.writers, options.seconds)
        wrong += killed(made(Path(name) / "killed.db", options.writers * PACK * 2), options.writers)
        command(f"{name}/crowd.db", "db", "check")
        command(
            f"{name}/killed.db", "db", "check", "--repair"
        )  # of the killed ones lock files may lie about
    print("\n".join(wrong) or "nothing lost, nothing doubled, nothing half there, no error")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
