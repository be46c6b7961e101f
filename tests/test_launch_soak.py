"""`make soak`: kills −9 of launchers that tune and train with frequent checkpoints, and take-overs
from a launcher whose worker still trains; in chunks that `pytest -n` can share out.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from launch_helpers import HERE, SMALLEST, STUDY, Launcher, content, rows, wait_for, workers

KILLS, CHUNKS = 100, 10  # of all chunks, for one launcher and for two
MOST_LINES = 120  # that the journals grow by before the next kill; a run writes about 60
# the share of kills that wait for no line, and how long they wait at most
EARLY, EARLY_SECONDS = (0.2, 5.0)
LEASE = 6.0  # seconds, of launchers that believe to be on two hosts
TARGETS = ("launcher", "worker", "both")
TUNED = f"""
name = "stub"
question = "Does a kill lose, double or change anything?"
seeds = {{{{ pilot = 2, resolution = 0.02, max = 6 }}}}
{SMALLEST}
[factors]
topology = ["serial", "parallel"]
[tune]
lr = [1e-3, 1e-2]
points = 3
seeds = 2
per = ["topology"]
"""
PACKED = (  # on a CPU
    "from ablate.launch import packs; packs.capacity = lambda config, device: 4; from ablate.cli"
    " import main; main()"
)
HOST = (
    "import socket; socket.gethostname = lambda: {host!r}; from ablate.store.owners import Owner;"
    " here = Owner.here; Owner.here = lambda db, **more: here(db, lease={lease}, **more); from"
    " ablate.launch import pool; pool.CHECK = {check}; from ablate.cli import main; main()"
)
ONE: Sequence[Sequence[str]] = (("-m", "ablate"),)


def on_hosts(*hosts: str, check: float = 1.0) -> Sequence[Sequence[str]]:
    """How launchers start that believe to be on these hosts, and see only leases of each other."""
    return [("-c", HOST.format(host=host, lease=LEASE, check=check)) for host in hosts]


class Command:
    """`ablate run` in a process group of its own, with two workers of one thread each."""

    def __init__(
        self, study: Path, path: Path, worker: str, start: Sequence[str] = ("-m", "ablate")
    ):
        environment = {
            "PYTHONPATH": f"{HERE.parent}:{HERE}",
            "ABLATE_WORKER": worker,
            "OMP_NUM_THREADS": "2",
        }
        self.start = start
        with path.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *start, "run", str(study), "--device", "cpu", "--db", str(path)],
                env={**os.environ, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, target: str, chance: random.Random) -> None:
        """Kill −9 launcher, worker or all; a worker not yet started is its launcher's loss."""
        found = workers(self.process.pid)
        if target != "worker" or not found:
            self.process.kill()
            self.process.wait()
        victims = {"launcher": [], "worker": found and [chance.choice(found)], "both": found}[
            target
        ]
        for worker in victims:
            Launcher.kill_process(worker)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[tuple]]]:
    """A tuned study of about 40 runs of two seconds, and what nobody's kills leave of it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    study, path = folder / "stub.toml", folder / "undisturbed.db"
    study.write_text(TUNED.format(tokens=64 * 400))
    assert Command(study, path, "ablate.launch.worker").process.wait(900) == 0
    wanted = digest(path)
    runs, decisions = len(wanted["run"]), len(wanted["decision"])
    assert runs > 25 and decisions > 2
    assert sum(row[2] == "tune" for row in wanted["member"]) > 10
    return study, wanted


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize(
    "starts",
    [ONE, (*ONE, *ONE), on_hosts("one", "two")],
    ids=["one launcher", "two launchers", "two hosts"],
)
def test_kills_of_real_training(
    tmp_path: Path,
    tuned: tuple[Path, dict[str, list[tuple]]],
    starts: Sequence[Sequence[str]],
    chunk: int,
) -> None:
    """A tuned study is killed and run again until complete, and again, for ten kills."""
    study, wanted = tuned
    begun, chance = time.monotonic(), random.Random(chunk)
    kills, resumed, number, most = collections.Counter[str](), 0, 0, KILLS // CHUNKS
    while kills.total() < most:
        path, number = tmp_path / f"{number}.db", number + 1
        kills += killed_until_complete(study, path, chance, most - kills.total(), starts)
        resumed += sound(path, wanted)
        tries = dict(rows(path, "SELECT status, count(*) FROM attempt GROUP BY status"))
        owners = len(rows(path, "SELECT DISTINCT owner FROM attempt"))
        print(
            f"{time.monotonic() - begun:.0f} s: {dict(kills)}, attempts {tries} of {owners}"
            f" launchers, {resumed} resumed"
        )
    assert kills.total() == most
    assert resumed, "a soak in which nothing goes on from a checkpoint proves little"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_run_is_taken_over_while_its_first_worker_trains(
    tmp_path: Path, tuned: tuple[Path, dict[str, list[tuple]]], chunk: int
) -> None:
    """A launcher and its workers stop until the lease has ended. Its workers then go on with the
    runs that another launcher trains, until their own launcher goes on too and sees that.
    """
    study, wanted = tuned
    chance, path = random.Random(chunk), tmp_path / "a.db"
    first_start, second_start = on_hosts("one", "two")
    first = Command(study, path, "short_interval_worker", first_start)
    wait_for_a_moment([first], path, chance, lines_first=True)
    wait_for(lambda: running(path, "one") and len(workers(first.process.pid)) == 2, 60)
    stopped = [first.process.pid, *workers(first.process.pid)]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    taken = running(path, "one")
    second = Command(study, path, "short_interval_worker", second_start)
    wait_for(lambda: not running(path, "one"), 60 + 10 * LEASE)
    wait_for(lambda: running(path, "two"), 60)
    before = points_written(path, taken)
    for pid in stopped[1:]:
        os.kill(pid, signal.SIGCONT)

    def grown() -> list[str]:
        return [name for name, n in points_written(path, taken).items() if n > before[name]]

    wait_for(grown, 60)
    time.sleep(chance.uniform(0, 3))  # both train the same runs
    trained = grown()
    os.kill(first.process.pid, signal.SIGCONT)
    for command in (first, second):
        assert command.process.wait(900) == 0, path.with_suffix(".log").read_text()[-2000:]
    sound(path, wanted)
    ends = dict(
        rows(path, "SELECT journal, status FROM attempt WHERE owner LIKE 'one:%' AND error <> ''")
    )
    assert all(ends[journal] == "dead" for journal in taken)
    print(f"{len(taken)} runs taken over, {len(trained)} of them trained by two at once")
    assert trained
    left = {pid for pid in stopped if Path(f"/proc/{pid}").exists()}
    assert left <= {first.process.pid}, "the workers have ended"


def points_written(path: Path, journals: Sequence[str]) -> dict[str, int]:
    """How many events with points of training each journal has."""
    folder = path.with_suffix(".journals")
    return {name: (folder / name).read_bytes().count(b'{"event":"metrics"') for name in journals}


def running(path: Path, host: str) -> list[str]:
    """The journals of the running attempts of a host's launcher."""
    return [
        journal
        for (journal,) in rows(
            path,
            "SELECT journal FROM attempt WHERE status = 'running' AND owner LIKE ?",
            f"{host}:%",
        )
    ]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_of_runs_that_train_together(tmp_path: Path) -> None:
    """Ten runs, at most four of them in a pack, are those that train alone to what float32 leaves
    of them after 200 steps.
    """
    study, alone, path = tmp_path / "stub.toml", tmp_path / "alone.db", tmp_path / "packed.db"
    study.write_text(STUDY.format(lrs=[1e-3, 2e-3], seeds=5, tokens=64 * 200))
    assert Command(study, alone, "ablate.launch.worker").process.wait(600) == 0
    kills = killed_until_complete(study, path, random.Random(1), 20, [("-c", PACKED)])
    packs = rows(
        path, "SELECT pack_size, count(*), sum(resumed_step > 0) FROM attempt GROUP BY pack_size"
    )
    print(f"{dict(kills)}, packs {packs}")
    assert sum(resumed for size, _, resumed in packs if size and size > 1) > 5
    for table, found in timeless(content(path)).items():
        wanted = timeless(content(alone))[table]
        if table == "effect":  # it holds a hash of what it rests on
            continue
        assert [[item for item in row if not isinstance(item, float)] for row in found] == [
            [item for item in row if not isinstance(item, float)] for row in wanted
        ]
        numbers = [
            [item for row in each for item in row if isinstance(item, float)]
            for each in (found, wanted)
        ]
        assert numbers[0] == pytest.approx(numbers[1], rel=1e-3, abs=1e-4)
    assert points(path) == in_journals(path)
    assert not checkpoints_left(path)


def killed_until_complete(
    study: Path, path: Path, chance: random.Random, most: int, starts: Sequence[Sequence[str]]
) -> collections.Counter[str]:
    """Run a study with these launchers at once, each again after every kill, until it is complete;
    count kills by target.
    """
    kills = collections.Counter[str]()
    commands = [Command(study, path, "short_interval_worker", start) for start in starts]
    while any(command.process.poll() != 0 for command in commands):
        for k, command in enumerate(commands):
            if (code := command.process.poll()) not in (None, 0):
                # 1: a run whose worker was killed three times
                assert code in (-signal.SIGKILL, 1), path.with_suffix(".log").read_text()[-2000:]
                commands[k] = Command(study, path, "short_interval_worker", command.start)
        wait_for_a_moment(commands, path, chance)
        living = [command for command in commands if command.process.poll() is None]
        if living and kills.total() < most:
            target = chance.choice(TARGETS)
            chance.choice(living).kill(target, chance)
            kills[target] += 1
    return kills


def wait_for_a_moment(
    commands: Sequence[Command], path: Path, chance: random.Random, *, lines_first: bool = False
) -> None:
    """Wait for some lines in the journals, or for a time that may be shorter than a start, or until
    a command ends.
    """
    early = chance.random() < EARLY and not lines_first
    lines, seconds = chance.randint(1, MOST_LINES), chance.uniform(0, EARLY_SECONDS)
    begun, before = time.monotonic(), lines_written(path)
    living = [command for command in commands if command.process.poll() is None]
    while all(command.process.poll() is None for command in living) and living:
        time.sleep(0.02)
        if time.monotonic() - begun > seconds if early else lines_written(path) >= before + lines:
            return


def lines_written(path: Path) -> int:
    """How many lines the journals have, without heartbeats."""
    lines = 0
    for file in path.with_suffix(".journals").glob("*.jsonl"):
        data = file.read_bytes()
        lines += data.count(b"\n") - data.count(b'{"event":"heartbeat"')
    return lines


# -- what must be the same, by SQL of its own ------------------------------------------------------

RUN = "JOIN run ON run.id = run_id"
TABLES = {
    # without its revision: of two launchers one may register a stage that the other has just left
    "study": "SELECT name, question, metric, goal, toml, evaluation, plan_hash FROM study",
    "cell": "SELECT label, stratum, active, factor, level, cell_level.ordinal FROM cell"
    " JOIN cell_level ON cell_id = cell.id",
    "run": "SELECT key, kind, fields, seed, status, diverged_at, steps, tokens, n_params, flops"
    " FROM run",
    # the speed is a time, but that there is a point stays
    "metric": "SELECT key, name, step, CASE name WHEN 'tokens_per_second' THEN 0 ELSE value END"
    f" FROM metric JOIN series ON series.id = series_id {RUN}",
    "final": f"SELECT key, name, at, value FROM final {RUN} WHERE name <> 'train_seconds'",
    "window_loss": "SELECT key, name, at, window_loss.tokens, layout, losses FROM window_loss"
    f" {RUN}",
    "member": "SELECT cell.label, key, role, member.ordinal FROM member JOIN cell ON cell.id ="
    f" cell_id {RUN}",
    "decision": "SELECT cell.label, decision.name, value, evidence FROM decision JOIN cell"
    " ON cell.id = cell_id",
    "effect": "SELECT family, contrast.stratum, factor, level, metric, method, n, lost, mean,"
    " sd, lo, hi, p, p_holm FROM effect JOIN contrast ON contrast.id = contrast_id",
    "finding": "SELECT ordinal, kind, stratum, factor, level, cell, data FROM finding",
}


@contextlib.contextmanager
def connected(path: Path) -> Iterator[Callable[[str], list[tuple]]]:
    """Answers to SQL, without ablate."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        yield lambda sql: connection.execute(sql).fetchall()


def digest(path: Path) -> dict[str, list[tuple]]:
    """All that a database holds of its study, bit by bit, but for times and attempts."""
    with connected(path) as ask:
        return {table: sorted(ask(sql), key=repr) for table, sql in TABLES.items()}


def sound(path: Path, wanted: dict[str, list[tuple]]) -> int:
    """Check that a finished database lost, doubled and changed nothing; return how many runs were
    completed from a checkpoint.
    """
    found = digest(path)
    for table, expected in wanted.items():
        assert found[table] == expected, table
    assert points(path) == in_journals(path)
    with connected(path) as ask:
        assert ask("PRAGMA integrity_check") == [("ok",)]
        assert ask("PRAGMA foreign_key_check") == []
        (accepted,) = ask(
            "SELECT count(*), count(DISTINCT run_id) FROM attempt"
            " WHERE status IN ('complete', 'diverged')"
        )
        assert accepted == (len(wanted["run"]),) * 2, "each run has one accepted attempt"
        assert not ask("SELECT id FROM attempt WHERE status = 'running'")
        assert not ask("SELECT run_id, n FROM attempt GROUP BY run_id, n HAVING count(*) > 1")
        ((resumed,),) = ask(
            "SELECT count(*) FROM attempt WHERE status = 'complete' AND resumed_step > 0"
        )
    assert not checkpoints_left(path), "a complete run needs no checkpoint"
    return resumed


def timeless(found: dict[str, list[tuple]]) -> dict[str, list[tuple]]:
    """Content without the one series that is a time; but that there is a point stays."""
    curves = [(*row[:3], None) if row[1] == "tokens_per_second" else row for row in found["metric"]]
    return {**found, "metric": curves}


def checkpoints_left(path: Path) -> set[str]:
    """The checkpoints that are there of those that a journal names; one that a kill cut short
    before it was named may stay.
    """
    left = {
        file.name.removesuffix(".tmp").removesuffix(".previous")
        for file in path.with_suffix(".checkpoints").glob("*")
    }
    return left & {Path(name).name for (name,) in rows(path, "SELECT path FROM artifact")}


def points(path: Path) -> dict[tuple[str, str, int], float]:
    """Every point in the database."""
    return {(key, name, step): value for key, name, step, value in content(path)["metric"]}


def in_journals(path: Path) -> dict[tuple[str, str, int], float]:
    """Return every point in a database's journals; an attempt goes on from its first step."""
    found: dict[tuple[str, str, int], float] = {}
    for key, journal in rows(
        path, "SELECT key, journal FROM attempt JOIN run ON run.id = run_id ORDER BY run_id, n"
    ):
        file = path.with_suffix(".journals") / journal
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        # a last one that the kill tore
        for line in lines[: -1 if lines and not lines[-1].endswith("\n") else None]:
            event = json.loads(line)
            if event["event"] == "start":
                found = {
                    place: value
                    for place, value in found.items()
                    if place[0] != key or place[2] <= event["step"]
                }
            for name, values in event.get("series", {}).items():
                found |= {
                    (key, name, step): value
                    for step, value in zip(event["steps"], values, strict=True)
                }
    return found
