"""What the tests of `ablate.launch` share: a small study, launchers as processes, databases."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from ablate import store
from ablate.launch import devices, packs, pool
from ablate.launch.executor import Executor
from ablate.launch.local import LocalExecutor
from ablate.plan import Plan, plan
from ablate.study import Study, load
from ablate.study_run import Outcome, run_study

HERE = Path(__file__).parent

SMALLEST = """
[base]
n_layer = 1
d_model = 8
n_head = 1
n_ctx = 8
batch_tokens = 64
tokens = {tokens}
[eval]
tokens = 512
points = 2
"""
STUDY = f"""
name = "stub"
question = "Does the launcher lose or double anything?"
metric = "loss"
design = "grid"
seeds = {{seeds}}
{SMALLEST}
[factors]
lr = {{lrs}}
"""


def small_plan(folder: Path, lrs: list[float], seeds: int = 1, steps: int = 6) -> Plan:
    path = folder / "stub.toml"
    path.write_text(
        STUDY.format(lrs=lrs if len(lrs) > 1 else [*lrs, 1.0], seeds=seeds, tokens=64 * steps)
    )
    whole = plan(load(str(path)))
    if len(lrs) > 1:
        return whole
    # a study needs two levels, a test does not
    runs = tuple(planned for planned in whole.runs if planned.config.lr == lrs[0])
    return dataclasses.replace(whole, cells=whole.cells[:1], contrasts=(), runs=runs)


def launch(
    work: Plan | Study,
    path: Path,
    found: Sequence[devices.Device] = (),
    console: Console | None = None,
    fail_fast: bool = False,
    executor: Callable[[], Executor] | None = None,
) -> tuple[Outcome, str]:
    """Run a study in this process, on the CPU, the given devices or an executor; its outcome and
    output.
    """
    out = io.StringIO()
    work = work if isinstance(work, Plan) else plan(work)
    slots = packs.worker_slots(work, found or devices.find("cpu"))
    with store.open(str(path), create=True) as db:
        outcome = run_study(
            work,
            db,
            executor() if executor else LocalExecutor(slots),
            console=console or Console(file=out, width=200),
            fail_fast=fail_fast,
        )
    return outcome, out.getvalue()


def use_worker(
    patch: pytest.MonkeyPatch, module: str, folder: Path = HERE, lines: str = "", setup: str = ""
) -> None:
    """Workers run this module; where there are lines, it is a stub with these methods."""
    if lines or setup:
        own = f"class Own(Stub):\n{textwrap.indent(lines, '    ')}main(Own)\n" if lines else ""
        (folder / f"{module}.py").write_text(
            f"import os, time\nfrom stub_worker import *\n{setup}{own}"
        )
    patch.setenv("ABLATE_WORKER", module)
    patch.setenv("PYTHONPATH", f"{HERE.parent}:{HERE}:{folder}")


def use_stub(patch: pytest.MonkeyPatch, worker: str = "stub_worker") -> None:
    """Stub workers of one thread, whose journals the launcher reads often."""
    use_worker(patch, worker)
    patch.setenv("OMP_NUM_THREADS", "1")
    patch.setattr(pool, "INGEST", 0.05)
    patch.setattr(pool, "POLL", 0.1)


class Launcher:
    """A launcher in a fork of this process, which starts at once and leads a process group."""

    def __init__(self, plan: Plan | Study, path: Path, **options: object):
        self.output = path.with_suffix(f".{time.monotonic_ns()}.out")
        self.pid = os.fork()
        if self.pid == 0:
            code = 99
            try:
                os.setpgid(0, 0)
                with self.output.open("w") as out:
                    os.dup2(out.fileno(), 1)
                    os.dup2(out.fileno(), 2)
                    outcome = launch(
                        plan, path, **{"console": Console(file=out, width=200), **options}
                    )[0]
                code = outcome.exit_code
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)

    def kill(self, number: int) -> None:
        os.kill(self.pid, number)

    @staticmethod
    def kill_process(pid: int) -> None:
        """Kill −9; a process that has just ended is fine."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def wait(self, seconds: float = 30) -> int:
        """Its exit code; −n when signal n ended it."""
        end = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > end:
                self.kill(9)
                raise AssertionError(f"the launcher did not end: {self.output.read_text()}")
            time.sleep(0.005)


def wait_for(condition: Callable[[], object], seconds: float = 20) -> None:
    """Ask fifty times a second: an answer takes a database, or a look at all processes, 3 ms."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.02)


def rows(path: Path, sql: str, *values: object) -> list[tuple]:
    """The answer of an existing database; nothing, while it is only coming into being."""
    if not path.exists():
        return []
    try:
        db = store.open(str(path))
    except Exception:
        return []
    with db, db.read() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(sql, values)]


def at_work(plan: Plan, path: Path, patch: pytest.MonkeyPatch) -> Launcher:
    """A launcher of slow stubs that has written some points."""
    patch.setenv("STUB_DELAY", "0.02")
    launcher = Launcher(plan, path)
    wait_for(lambda: rows(path, "SELECT 1 FROM metric"))
    return launcher


def workers(launcher_pid: int) -> list[int]:
    """Pids of the living workers of a launcher."""
    return [
        pid
        for pid, parent, command in processes()
        if parent == launcher_pid and "--memory=" in command
    ]


def processes() -> Iterator[tuple[int, int, str]]:
    """(pid, parent, command line) of every process that has one."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                parent = int((folder / "stat").read_text().rsplit(") ", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if command:
                yield int(folder.name), parent, command


def content(path: Path) -> dict[str, list[tuple]]:
    """A database, but for times, numbers of rows, attempts and a study's revision: what must not
    depend on how often a study was interrupted, nor on which of two launchers came first to a
    stage. The one that comes late may register the plan that it still has, as one more revision.
    """
    return {
        "study": rows(
            path,
            "SELECT name, question, metric, goal, toml, evaluation, plan_hash FROM study"
            " ORDER BY name",
        ),
        "cell": rows(
            path,
            "SELECT study_id, label, stratum, active, factor, level, ordinal FROM cell JOIN"
            " cell_level ON cell_id = cell.id ORDER BY study_id, label, factor",
        ),
        "run": rows(
            path,
            "SELECT key, kind, fields, status, diverged_at, seed, tokens, n_params, flops"
            " FROM run ORDER BY key",
        ),
        "metric": rows(
            path,
            "SELECT run.key, series.name, step, value FROM metric JOIN run ON run.id = run_id "
            "JOIN series ON series.id = series_id ORDER BY run.key, series.name, step",
        ),
        "final": rows(
            path,
            "SELECT run.key, name, at, value FROM final JOIN run ON run.id = run_id "
            "WHERE name <> 'train_seconds' ORDER BY run.key, name, at",
        ),
        "member": rows(
            path,
            "SELECT cell.label, run.key, role, ordinal FROM member JOIN run ON run.id = run_id "
            "JOIN cell ON cell.id = cell_id ORDER BY cell.label, run.key, role",
        ),
        "effect": rows(
            path,
            "SELECT * FROM effects ORDER BY study, family, stratum, factor, level, metric, method",
        ),
    }
