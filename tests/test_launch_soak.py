"""`make soak`: a hundred kills −9 of the command with training that often checkpoints."""

from __future__ import annotations

import collections
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from launch_helpers import HERE, STUDY, Launcher, content, rows, workers

KILLS = 100
MOST_LINES = 120  # that the journals grow by before the next kill; a run writes about 90
# the share of kills that wait for no line, and how long they wait at most
EARLY, EARLY_SECONDS = (0.2, 5.0)
LRS, SEEDS, STEPS = [1e-3, 2e-3, 3e-3], 10, 600  # 30 runs of about two seconds
# of every run
POINTS = {"train_loss": 200, "lr": 200, "grad_norm": 200, "tokens_per_second": 200, "loss": 2}
TARGETS = ("launcher", "worker", "both")
PACKED = (  # on a CPU
    "from ablate.launch import packs; packs.capacity = lambda config, device: 4; from ablate.cli"
    " import main; main()"
)


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
        with (path.parent / "log").open("ab") as log:
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


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_a_hundred_kills_of_real_training(tmp_path: Path) -> None:
    """A study of 30 runs is killed and run again until complete, for a hundred kills."""
    study = tmp_path / "stub.toml"
    study.write_text(STUDY.format(lrs=LRS, seeds=SEEDS, tokens=64 * STEPS))
    begun = time.monotonic()
    assert (
        Command(study, tmp_path / "undisturbed.db", "ablate.launch.worker").process.wait(600) == 0
    )
    wanted = timeless(content(tmp_path / "undisturbed.db"))
    assert len(wanted["run"]) == len(LRS) * SEEDS
    chance, kills, resumed = random.Random(0), collections.Counter[str](), 0
    for number in range(KILLS):
        if kills.total() == KILLS:
            break
        path = tmp_path / f"{number}.db"
        kills += killed_until_complete(study, path, chance, KILLS - kills.total())
        assert timeless(content(path)) == wanted
        assert points(path) == in_journals(path)
        assert rows(
            path, "SELECT count(*), count(DISTINCT run_id) FROM attempt WHERE status = 'complete'"
        ) == [(30, 30)]
        assert rows(
            path,
            "SELECT name, count(*) FROM metric JOIN series ON id = series_id GROUP BY name ORDER BY"
            " name",
        ) == [(name, 30 * number) for name, number in sorted(POINTS.items())]
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]
        tries = dict(rows(path, "SELECT status, count(*) FROM attempt GROUP BY status"))
        ((again,),) = rows(
            path, "SELECT count(*) FROM attempt WHERE status = 'complete' AND resumed_step > 0"
        )
        resumed += again
        left = checkpoints_left(path)
        print(
            f"{time.monotonic() - begun:.0f} s: {dict(kills)}, attempts {tries}, {again} resumed,"
            f" checkpoints left: {left}"
        )
        assert not left, "a complete run needs no checkpoint"
    assert kills.total() == KILLS and min(kills.values()) > KILLS / 6
    assert resumed > KILLS / 10, "a soak in which nothing goes on from a checkpoint proves little"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kills_of_runs_that_train_together(tmp_path: Path) -> None:
    """Ten runs, at most four of them in a pack, are those that train alone to what float32 leaves
    of them after 200 steps.
    """
    study, alone, path = tmp_path / "stub.toml", tmp_path / "alone.db", tmp_path / "packed.db"
    study.write_text(STUDY.format(lrs=LRS[:2], seeds=5, tokens=64 * 200))
    assert Command(study, alone, "ablate.launch.worker").process.wait(600) == 0
    kills = killed_until_complete(study, path, random.Random(1), 20, ("-c", PACKED))
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
    study: Path,
    path: Path,
    chance: random.Random,
    most: int,
    start: Sequence[str] = ("-m", "ablate"),
) -> collections.Counter[str]:
    """Run a study, again after every kill, until it is complete; count kills by target."""
    kills = collections.Counter[str]()
    run = Command(study, path, "short_interval_worker", start)
    while (code := run.process.poll()) != 0:
        if code is not None:
            # 1: a run whose worker was killed three times
            assert code in (-signal.SIGKILL, 1), code
            run = Command(study, path, "short_interval_worker", start)
        wait_for_a_moment(run, path, chance)
        if run.process.poll() is None and kills.total() < most:
            target = chance.choice(TARGETS)
            run.kill(target, chance)
            kills[target] += 1
    return kills


def wait_for_a_moment(run: Command, path: Path, chance: random.Random) -> None:
    """Wait for some lines in the journals, or for a time that may be shorter than a start."""
    early = chance.random() < EARLY
    lines, seconds = chance.randint(1, MOST_LINES), chance.uniform(0, EARLY_SECONDS)
    begun, before = time.monotonic(), lines_written(path)
    while run.process.poll() is None:
        time.sleep(0.02)
        if time.monotonic() - begun > seconds if early else lines_written(path) >= before + lines:
            return


def lines_written(path: Path) -> int:
    return sum(
        file.read_bytes().count(b"\n") for file in path.with_suffix(".journals").glob("*.jsonl")
    )


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
