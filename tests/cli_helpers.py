"""The command line in tests, and a database with a study that was never trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ablate.plan import PlannedRun
from ablate.store import Database

ROOT = Path(__file__).parent.parent
QUICKSTART = str(ROOT / "studies" / "quickstart.toml")

Run = Callable[..., tuple[int, str, str]]  # arguments → exit code, standard output, standard error


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
                " '.jsonl', 0, '{}' FROM run WHERE key = :key"
            )
            connection.execute(text(sql), key)
