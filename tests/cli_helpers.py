"""The command line in tests, and a database with a study that was never trained."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ablate.plan import PlannedRun, plan
from ablate.store import Database
from ablate.study import load

ROOT = Path(__file__).parent.parent
QUICKSTART = str(ROOT / "studies" / "quickstart.toml")

Run = Callable[..., tuple[int, str, str]]  # arguments → exit code, standard output, standard error


def python(code: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in another process, with this package."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )


def git(folder: Path, *arguments: str) -> str:
    """Run git, with the name of an author, and return what it prints."""
    own = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", "-C", str(folder), *own, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def completed(shell: str, **environment: str) -> str:
    """What a shell's completion answers."""
    code = "import sys; sys.argv = ['ablate']; from ablate.cli import main; main()"
    return python(code, _ABLATE_COMPLETE=f"complete_{shell}", **environment).stdout


def refused(ablate: Run, arguments: Sequence[str], words: Sequence[str]) -> str:
    """Expect exit code 2, one line with these words and no new file; return standard output."""
    before = set(Path.cwd().rglob("*"))
    code, out, err = ablate(*arguments)
    assert code == 2
    assert err.startswith("ablate: ") and err.count("\n") == 1, err
    assert all(word in err for word in words), err
    assert set(Path.cwd().rglob("*")) == before
    return out


def measured_quickstart(path: Path, loss: Callable[[int, int], float]) -> None:
    """A database with the quickstart; the loss of a run is a function of its cell and seed."""
    from ablate import store
    from ablate.store.register import register

    made = plan(load(QUICKSTART))
    cells = [cell.label for cell in made.cells]
    with store.open(str(path), create=True) as db:
        register(db, made)
        measure(db, made.runs, lambda run: loss(cells.index(run.cell), run.config.seed))


def measure(db: Database, runs: Iterable[PlannedRun], loss: Callable[[PlannedRun], float]) -> None:
    """Complete registered runs without training them."""
    from sqlalchemy import text

    with db.begin() as connection:
        for run in runs:
            key = {"key": run.run.key, "loss": loss(run)}
            connection.execute(text("UPDATE run SET status = 'complete' WHERE key = :key"), key)
            sql = (
                "INSERT OR REPLACE INTO final (run_id, name, at, value) SELECT id, 'loss', 0, :loss"
                " FROM run WHERE key = :key"
            )
            connection.execute(text(sql), key)
            sql = (
                "INSERT OR IGNORE INTO attempt (run_id, n, status, owner, heartbeat, journal,"
                " journal_offset, evaluation) SELECT id, 1, 'complete', 'a:1:b', 0, key ||"
                " '.jsonl', 0, coalesce((SELECT study.evaluation FROM study JOIN cell ON study_id ="
                " study.id JOIN member ON cell_id = cell.id WHERE run_id = run.id), '{}') FROM run"
                " WHERE key = :key"
            )
            connection.execute(text(sql), key)
