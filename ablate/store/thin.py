"""Make a database small enough to commit: drop points of training curves and losses of windows of
tuning runs; keep evaluations.
"""

from __future__ import annotations

from dataclasses import dataclass

from ablate.store.database import Database

THINNED = (
    "train_loss",
    "lr",
    "grad_norm",
    "tokens_per_second",
)  # series of training itself; all others are evaluations


@dataclass(frozen=True)
class Thinned:
    """What `thin` did.

    Attributes:
        runs: Runs that lost points.
        deleted: Points deleted.
        kept: Points of the training series that are left.
        tuned: Tuning runs that lost their losses of single windows.
        waiting: Runs without a result, whose points were not touched.
    """

    runs: int
    deleted: int
    kept: int
    tuned: int
    waiting: int


def thin(db: Database, keep: int) -> Thinned:
    """Thin the training series of every run that has a result, and drop the losses of single
    windows of runs that serve for tuning alone, which no analysis reads.

    Each run is thinned in a separate transaction, so that a launcher can continue. A second call
    deletes nothing more.

    Args:
        db: The database.
        keep: Most points to keep of a series of a run, at least 2: evenly spaced, first and last
            among them.
    """
    assert keep >= 2
    with db.read() as connection:
        marks = ", ".join("?" * len(THINNED))
        series = list(
            connection.exec_driver_sql(
                f"SELECT id FROM series WHERE name IN ({marks})", THINNED
            ).scalars()
        )
        ids = list(
            connection.exec_driver_sql(
                "SELECT id FROM run WHERE status IN ('complete', 'diverged')"
            ).scalars()
        )
        waiting = connection.exec_driver_sql(
            "SELECT count(DISTINCT run_id) FROM metric JOIN run ON run.id = run_id WHERE status NOT"
            " IN ('complete', 'diverged') OR EXISTS (SELECT 1 FROM attempt WHERE attempt.run_id ="
            " run.id AND attempt.status = 'running')"
        ).scalar_one()
    lost = [_thin_run(db, run_id, series, keep) for run_id in ids]
    tuned = _drop_windows(db)
    db.vacuum()
    return Thinned(sum(map(bool, lost)), sum(lost), _points(db, series), tuned, waiting)


def _thin_run(db: Database, run_id: int, series: list[int], keep: int) -> int:
    """Thin a run; return how many points were deleted.

    Of n points one is kept each time that index · (keep − 1) / (n − 1) passes a whole number.
    """
    with db.begin() as connection:
        marks = ", ".join("?" * len(series))
        return connection.exec_driver_sql(
            "DELETE FROM metric WHERE run_id = ? AND (series_id, step) IN (SELECT series_id, step"
            " FROM (SELECT series_id, step, count(*) OVER (PARTITION BY series_id) AS n,"
            " row_number() OVER (PARTITION BY series_id ORDER BY step) - 1 AS i FROM metric"
            f" WHERE run_id = ? AND series_id IN ({marks})) WHERE n > ? AND i > 0 AND i *"
            " (? - 1) / (n - 1) = (i - 1) * (? - 1) / (n - 1)) AND NOT EXISTS (SELECT 1 FROM"
            " attempt WHERE run_id = ? AND status = 'running')",
            (run_id, run_id, *series, keep, keep, keep, run_id),
        ).rowcount


def _drop_windows(db: Database) -> int:
    """Delete the losses of windows of finished tuning runs; return how many runs lost them."""
    with db.begin() as connection:
        return len(
            set(
                connection.exec_driver_sql(
                    "DELETE FROM window_loss WHERE run_id IN (SELECT id FROM run JOIN member ON"
                    " member.run_id = run.id WHERE run.status IN ('complete', 'diverged') GROUP BY"
                    " run.id HAVING max(role) = 'tune' AND min(role) = 'tune') AND NOT EXISTS"
                    " (SELECT 1 FROM attempt WHERE attempt.run_id = window_loss.run_id AND"
                    " attempt.status = 'running') RETURNING run_id"
                ).scalars()
            )
        )


def _points(db: Database, series: list[int]) -> int:
    with db.read() as connection:
        marks = ", ".join("?" * len(series))
        return connection.exec_driver_sql(
            f"SELECT count(*) FROM metric WHERE series_id IN ({marks})", tuple(series)
        ).scalar_one()
