"""What a study of many runs costs, apart from training: plan, queue, journals, ingest, status,
report.

    python benchmarks/fleet.py 1000 10000 100000 [--folder DIR] [--devices 1000]
    # whether it works
    python benchmarks/fleet.py 100 --devices 10

The scheduler, the launcher's loop, journals, ingest, `ablate status` and `ablate report` are the
real ones. The executor is a stub of many devices on a clock of its own: a job "trains" in no time,
when its end is due, and writes the journals that a worker writes, with 100 points a run. Of the
jobs 1% fail, 1% lose their worker halfway, which costs another attempt, and 1% take 20 times as
long. Each number of runs is measured in a process of its own. The last table has, for each
quantity, the exponent of its growth with the number of runs, between the first and the last number.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from ablate import store
from ablate.journal import Journal
from ablate.kinds import Job, Run
from ablate.launch.devices import Device
from ablate.launch.executor import Ended, Slot
from ablate.plan import plan
from ablate.store import Database
from ablate.study import load
from ablate.study_run import run_study

SERIES = ("loss", "train_loss", "lr", "grad_norm")
POINTS = 25  # of each series
LINE = 5  # points of each series in a line of a journal
ODD = 0.01  # share of the jobs that fail, that lose their worker, that take long
LONG = 20  # times as long
FINALS = ("loss", "bits_per_byte", "accuracy", "unigram_loss", "train_seconds")

STUDY = """
name = "fleet"
question = "What do many runs cost?"
seeds = {seeds}
design = "grid"
[base]
n_layer = 2
d_model = 64
n_head = 2
n_ctx = 64
batch_tokens = 1024
tokens = "100K"
corpus = "austen"
tokenizer = "byte"
[factors]
topology = ["serial", "parallel", "outer-skip", "double-skip"]
norm = ["pre", "post", "peri", "none"]
"""
CELLS = 16  # of STUDY


class Fleet:
    """An executor of many devices whose jobs end at once, in the order of a clock of their own."""

    def __init__(self, devices: int, seed: int = 0):
        self._slots = {k: Slot(k, Device(f"cpu:{k}", 80 << 30, 1), True) for k in range(devices)}
        self._jobs: dict[int, tuple[int, Job, Sequence[Path], str]] = {}
        self._due: list[tuple[float, int]] = []
        self._clock, self._handles, self._random = 0.0, itertools.count(1), random.Random(seed)

    def capacity(self) -> Sequence[Slot]:
        return list(self._slots.values())

    def submit(self, slot: int, job: Job, journals: Sequence[Path]) -> int:
        handle, luck = next(self._handles), self._random.random()
        fate = ("fail", "die", "long", "end")[min(3, int(luck / ODD))]
        took = self._random.uniform(0.8, 1.2) * (LONG if fate == "long" else 1)
        heapq.heappush(self._due, (self._clock + took, handle))
        self._jobs[handle] = slot, job, journals, fate
        self._mark(slot, free=False)
        return handle

    def poll(self, timeout: float) -> list[Ended]:
        """End the jobs of the next tenth of a job's usual time."""
        ended: list[Ended] = []
        until = self._due[0][0] + 0.1 if self._due else 0.0
        while self._due and self._due[0][0] <= until:
            self._clock, handle = heapq.heappop(self._due)
            slot, job, journals, fate = self._jobs.pop(handle)
            for run, path in zip(job.runs, journals, strict=True):
                write(path, run, fate, len(job.runs))
            self._mark(slot, free=True)
            ended.append(Ended(handle, "lost" if fate == "die" else "done", "its worker died"))
        return ended

    def cancel(self, handle: int, *, kill: bool = False) -> None:
        # on a slow machine a long job is silent for so long that it is killed as hung
        slot, job, journals, _ = self._jobs[handle]
        self._jobs[handle] = slot, job, journals, "die"
        self._due = [(self._clock if one == handle else due, one) for due, one in self._due]
        heapq.heapify(self._due)

    def close(self, timeout: float) -> None:
        self._due.clear()

    def _mark(self, number: int, *, free: bool) -> None:
        slot = self._slots[number]
        self._slots[number] = Slot(slot.number, slot.device, free)


def write(path: Path, run: Run, fate: str, pack: int) -> None:
    """Write what a worker writes of a run that ends with this fate."""
    steps = run.cost.steps or POINTS
    values = random.Random(run.key)
    with Journal(path) as journal:
        journal.append("start", step=0, time=time.time(), host="node", pid=1, device="cuda:0",
                       device_name="stub", threads=1, pack_size=pack, compile_mode="none", note="",
                       versions={"python": "3"}, commit="", dirty=False)  # fmt: skip
        lines = POINTS // LINE // (2 if fate == "die" else 1)
        level = 3.0 + 0.1 * (len(run.fields["topology"]) % 5) + values.gauss(0, 0.02)
        for line in range(lines):
            at = [steps * (line * LINE + k + 1) // POINTS for k in range(LINE)]
            series = {name: [level + 2 / (s + values.random()) for s in at] for name in SERIES}
            journal.append("heartbeat", n=line, done=at[-1], long=False)
            journal.append("metrics", steps=at, series=series)
        if fate == "die":
            return
        if fate == "fail":
            journal.append("end", status="failed", step=steps, error="RuntimeError: stub",
                           device_seconds=1.0, peak_bytes=1 << 30, time=time.time())  # fmt: skip
            return
        journal.append("final", values=[[name, 0.0, level] for name in FINALS])
        journal.append("end", status="complete", step=steps, error=None, device_seconds=1.0,
                       peak_bytes=1 << 30, time=time.time())  # fmt: skip


def measure(runs: int, devices: int, folder: Path) -> dict[str, float]:
    """Run a study of so many runs in this process; return seconds, bytes and rates."""
    file, database = folder / "fleet.toml", folder / "fleet.db"
    file.write_text(STUDY.format(seeds=max(2, runs // CELLS)))
    took: dict[str, float] = {}
    made = timed("plan", took, lambda: plan(load(str(file))))
    db = store.open(str(database), create=True)
    console = Console(file=(folder / "log").open("w"), width=100)
    timed("run", took, lambda: train(made, db, Fleet(devices), console))
    took["runs"], took["runs/s"] = len(made.runs), len(made.runs) / took["run"]
    took["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    took["database"] = database.stat().st_size
    took["journals"] = sum(one.stat().st_size for one in db.journals.iterdir())
    for name, options in {
        "status": [],
        "report": ["fleet", "--out", str(folder / "report")],
    }.items():
        command = [sys.executable, "-m", "ablate", name, *options, "--db", str(database)]
        timed(name, took, lambda: subprocess.run(command, check=True, capture_output=True))  # noqa: B023
    return took


def train(made: Any, db: Database, fleet: Fleet, console: Console) -> None:
    """Run the study to its end: a run that fails gets one attempt."""
    outcome = run_study(made, db, fleet, console=console)
    assert set(outcome.counts) <= {"complete", "failed"}, outcome.counts


def timed(name: str, took: dict[str, float], call: Callable[[], Any]) -> Any:
    begun = time.perf_counter()
    result = call()
    took[name] = time.perf_counter() - begun
    print(f"{name}: {took[name]:.1f} s", file=sys.stderr, flush=True)
    return result


ROWS = {  # quantity → unit, divisor
    "plan": ("s", 1), "run": ("s", 1), "runs/s": ("", 1), "status": ("s", 1), "report": ("s", 1),
    "memory": ("MiB", 1 << 20), "database": ("MiB", 1 << 20), "journals": ("MiB", 1 << 20),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=int, nargs="+")
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument(
        "--folder", type=Path, help="for temporary databases and journals, such as on a fast disk"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.runs[0], options.devices, options.folder)))
        return
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores,"
          f" Python {platform.python_version()}, SQLAlchemy {version('sqlalchemy')}")  # fmt: skip
    found = [in_process(runs, options) for runs in options.runs]
    print("| quantity |" + "".join(f" {one['runs']:,.0f} runs |" for one in found) + " exponent |")
    print("| --- |" + " ---: |" * (len(found) + 1))
    for name, (unit, by) in ROWS.items():
        cells = "".join(f" {one[name] / by:.3g} {unit} |" for one in found)
        first, last = found[0], found[-1]
        growth = math.log(last["runs"] / first["runs"])
        exponent = f"{math.log(last[name] / first[name]) / growth:.2f}" if growth else ""
        print(f"| {name} |{cells} {exponent} |")


def in_process(runs: int, options: argparse.Namespace) -> dict[str, float]:
    """Measure in a process of its own, so that its peak memory is that of this number of runs."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        command = [sys.executable, __file__, str(runs), "--one", "--folder", folder]
        command += ["--devices", str(options.devices)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
