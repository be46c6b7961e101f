"""The rows that `ablate.results` makes DataFrames of: one function for each question."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ablate.store.database import Database


class Rows(NamedTuple):
    """The answer to a question."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


_OF_ROLE = "(:role IS NULL OR role = :role)"


def runs(db: Database, study: str, role: str | None) -> Rows:
    """Return the view `all_runs` of a study, by number of the run; None for runs of every role."""
    sql = f"SELECT * FROM all_runs WHERE study = :study AND {_OF_ROLE} ORDER BY run"
    return _select(db, sql, study=study, role=role)


def fields(db: Database, study: str) -> Rows:
    """Return run and fields (JSON) of a study's runs."""
    sql = """
        SELECT run.id AS run, run.fields FROM run
        WHERE run.id IN (SELECT run FROM all_runs WHERE study = :study)
    """
    return _select(db, sql, study=study)


def pairs(db: Database, study: str) -> Rows:
    """Return the view `pairs` of a study, by contrast and seed."""
    return _select(
        db, "SELECT * FROM pairs WHERE study = :study ORDER BY contrast, seed", study=study
    )


def finals(db: Database, study: str, name: str | None, role: str | None) -> Rows:
    """Return cell, run, seed, role, name, at, value of a study's finals, or of one of them."""
    sql = f"""
        SELECT r.cell, r.run, r.seed, r.role, f.name, f.at, f.value
        FROM all_runs r JOIN final f ON f.run_id = r.run
        WHERE r.study = :study AND {_OF_ROLE} AND (:name IS NULL OR f.name = :name)
        ORDER BY f.name, r.run, f.at
    """
    return _select(db, sql, study=study, name=name, role=role)


def windows(db: Database, study: str, name: str, at: float) -> Rows:
    """Return cell, run, seed, role, tokens, layout, losses of one final of a study's runs.

    The last three are columns of the table `window_loss`; see `ablate.windows`.
    """
    sql = """
        SELECT r.cell, r.run, r.seed, r.role, w.tokens, w.layout, w.losses
        FROM all_runs r JOIN window_loss w ON w.run_id = r.run
        WHERE r.study = :study AND w.name = :name AND w.at = :at
        ORDER BY r.run, r.role
    """
    return _select(db, sql, study=study, name=name, at=at)


def attempts(db: Database, study: str) -> Rows:
    """Return cell, run, seed, role and the table `attempt` of a study's runs."""
    sql = """
        SELECT r.cell, r.run, r.seed, r.role, a.*
        FROM all_runs r JOIN attempt a ON a.run_id = r.run
        WHERE r.study = :study ORDER BY r.run, a.n, r.role
    """
    return _select(db, sql, study=study)


def studies(db: Database, name: str | None = None) -> Rows:
    """Return id, name, question, metric, goal, revision, toml, evaluation of studies."""
    sql = """
        SELECT id, name, question, metric, goal, revision, toml, evaluation FROM study
        WHERE :name IS NULL OR name = :name ORDER BY id
    """
    return _select(db, sql, name=name)


def cells(db: Database, study_id: int) -> Rows:
    """Return cell and stratum of a study's active cells."""
    sql = "SELECT label AS cell, stratum FROM cell WHERE study_id = :study AND active ORDER BY id"
    return _select(db, sql, study=study_id)


def levels(db: Database, study_id: int) -> Rows:
    """Return cell, factor, level, ordinal of a study's active cells."""
    sql = """
        SELECT c.label AS cell, l.factor, l.level, l.ordinal
        FROM cell c JOIN cell_level l ON l.cell_id = c.id
        WHERE c.study_id = :study AND c.active ORDER BY c.id
    """
    return _select(db, sql, study=study_id)


def contrasts(db: Database, study_id: int) -> Rows:
    """Return family, stratum, factor, level, cell, baseline of a study's contrasts."""
    sql = """
        SELECT x.family, x.stratum, x.factor, x.level, c.label AS cell, b.label AS baseline
        FROM contrast x JOIN cell c ON c.id = x.cell_id JOIN cell b ON b.id = x.baseline_id
        WHERE x.study_id = :study ORDER BY x.id
    """
    return _select(db, sql, study=study_id)


def curves(
    db: Database,
    study: str,
    series: Sequence[str] | None,
    role: str | None,
    points: int | None = None,
    runs: Iterable[int] | None = None,
) -> Rows:
    """Return the view `all_curves` of a study.

    Args:
        db: The database.
        study: Name of the study.
        series: Names of the series to return, None for all.
        role: Role of the runs, None for every role.
        points: About how many points of each curve to return, evenly spaced in steps, its first
            and last among them; None for all.
        runs: Numbers of the runs, if `points` are given; None for all.
    """
    names: dict[str, Any] = {f"series{k}": name for k, name in enumerate(series or ())}
    among = f"AND {{}} IN ({', '.join(f':{name}' for name in names)})" if series is not None else ""
    values = names | {"role": role}
    if points is None:
        sql = (
            f"SELECT * FROM all_curves WHERE study = :study AND {_OF_ROLE} {among.format('series')}"
            " ORDER BY series, run, step"
        )
        return _select(db, sql, study=study, **values)
    sql = _THINNED.format(among=among.format("s.name"))
    only = None if runs is None else json.dumps(list(runs))
    return _select(db, sql, study=study, points=points, runs=only, **values)


# Each step of a curve that is returned is found through the primary key: nothing between two of
# them is read.
_THINNED = """
    WITH RECURSIVE
    member_of AS (
        SELECT c.label AS cell, m.role AS role, r.id AS run, r.seed AS seed,
               r.tokens / r.steps AS step_tokens
        FROM study t JOIN cell c ON c.study_id = t.id JOIN member m ON m.cell_id = c.id
               JOIN run r ON r.id = m.run_id
        WHERE t.name = :study AND c.active AND (:role IS NULL OR m.role = :role)
              AND (:runs IS NULL OR r.id IN (SELECT value FROM json_each(:runs)))
    ),
    span AS (
        SELECT run, s.id AS series_id, s.name AS series,
               (SELECT min(step) FROM metric WHERE run_id = run AND series_id = s.id) AS first,
               (SELECT max(step) FROM metric WHERE run_id = run AND series_id = s.id) AS last
        FROM (SELECT DISTINCT run FROM member_of) CROSS JOIN series s WHERE 1 {among}
    ),
    kept AS (
        SELECT run, series_id, series, first AS step, last, max(1,
               (last - first) / :points) AS stride FROM span
        WHERE first IS NOT NULL
        UNION ALL
        SELECT run, series_id, series,
               (SELECT min(m.step) FROM metric m
                WHERE m.run_id = run AND m.series_id = kept.series_id
                       AND m.step >= min(kept.step + stride, last)),
               last, stride
        FROM kept WHERE step < last
    )
    SELECT :study AS study, cell, role, run, seed, series, kept.step AS step,
           kept.step * step_tokens AS tokens, value
    FROM kept JOIN member_of USING (run) JOIN metric ON metric.run_id = run
           AND metric.series_id = kept.series_id
         AND metric.step = kept.step
    ORDER BY series, run, kept.step
"""


def _select(db: Database, sql: str, **values: Any) -> Rows:
    """The answer to one SELECT by the driver: SQLAlchemy takes as long again for every row."""
    with db.read() as connection:
        cursor = connection.connection.cursor()
        cursor.execute(sql, values)
        return Rows([column[0] for column in cursor.description], list(cursor.fetchall()))
