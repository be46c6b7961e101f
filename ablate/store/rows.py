"""The rows that `ablate.results` makes DataFrames of: one function for each question.

What grows with the runs of a study is yielded in parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ablate.store.database import Database
from ablate.store.schema import RUNS
from ablate.store.views import PAIRS


class Rows(NamedTuple):
    """The answer to a question, or a part of it."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


_OF_ROLE = "(:role IS NULL OR role = :role)"
_OF_RUNS = "(:runs IS NULL OR run_id IN (SELECT value FROM json_each(:runs)))"
_RUNS = f"""
    SELECT DISTINCT m.run_id AS run
    FROM study t JOIN cell c ON c.study_id = t.id JOIN member m ON m.cell_id = c.id
    WHERE t.name = :study AND c.active AND {_OF_ROLE} AND {_OF_RUNS}
"""


def runs(db: Database, study: str, role: str | None) -> Iterator[Rows]:
    """Yield the view `all_runs` of a study, by number of the run; None for runs of every role."""
    sql = f"SELECT * FROM all_runs WHERE study = :study AND {_OF_ROLE} ORDER BY run"
    return _parts(db, sql, study=study, role=role)


def fields(db: Database, study: str) -> Iterator[Rows]:
    """Yield run and fields (JSON) of a study's runs."""
    sql = """
        SELECT run.id AS run, run.fields FROM run
        WHERE run.id IN (SELECT run FROM all_runs WHERE study = :study)
    """
    return _parts(db, sql, most=LONG, study=study)


def field_names(db: Database) -> set[str]:
    """Return the fields that have a column in the view `all_runs`, of whichever study."""
    sql = "SELECT name FROM pragma_table_info('run_field') WHERE name <> 'run_id'"
    with db.read() as connection:
        return set(connection.exec_driver_sql(sql).scalars())


def pairs(db: Database, study: str) -> Iterator[Rows]:
    """Yield the view `pairs` of a study, by contrast and seed.

    It is not read by its name: the view of an older database is slow.
    """
    sql = f"SELECT * FROM ({PAIRS}) WHERE study = :study ORDER BY contrast, seed"
    return _parts(db, sql, study=study)


def finals(db: Database, study: str, name: str | None, role: str | None) -> Iterator[Rows]:
    """Yield cell, run, seed, role, name, at, value of a study's finals, or of one of them."""
    sql = f"""
        SELECT r.cell, r.run, r.seed, r.role, f.name, f.at, f.value
        FROM all_runs r JOIN final f ON f.run_id = r.run
        WHERE r.study = :study AND {_OF_ROLE} AND (:name IS NULL OR f.name = :name)
        ORDER BY f.name, r.run, f.at
    """
    return _parts(db, sql, study=study, name=name, role=role)


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


def attempts(db: Database, study: str) -> Iterator[Rows]:
    """Yield cell, run, seed, role and the table `attempt` of a study's runs."""
    sql = """
        SELECT r.cell, r.run, r.seed, r.role, a.*
        FROM all_runs r JOIN attempt a ON a.run_id = r.run
        WHERE r.study = :study ORDER BY r.run, a.n, r.role
    """
    return _parts(db, sql, study=study)


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


def members(db: Database, study: str, role: str | None, runs: Iterable[int] | None = None) -> Rows:
    """Return cell, role, run, seed and tokens of a step of a study's members.

    Args:
        db: The database.
        study: Name of the study.
        role: Role of the runs, None for every role.
        runs: Numbers of the runs; None for all.
    """
    sql = f"""
        SELECT cell.label AS cell, member.role AS role, run.id AS run, run.seed AS seed,
               run.tokens / run.steps AS step_tokens
        {RUNS}
        WHERE study.name = :study AND cell.active AND {_OF_ROLE} AND {_OF_RUNS}
        ORDER BY run.id, cell.id
    """
    return _select(db, sql, study=study, role=role, runs=_listed(runs))


def series(db: Database, names: Sequence[str] | None) -> dict[int, str]:
    """Return number → name of the series of these names, or of all, as the database has them."""
    found = _select(db, "SELECT id, name FROM series ORDER BY name").rows
    return {number: name for number, name in found if names is None or name in names}


def ends(db: Database, study: str, series: Iterable[int]) -> Iterator[Rows]:
    """Yield the ends of the curves of a study's runs of every role, in no order.

    Returns:
        Number of the series, run, number of points, which is 3 for more, and last step.
    """
    sql = f"""
        SELECT series, run,
               (SELECT count(*) FROM (
                   SELECT 1 FROM metric WHERE run_id = run AND series_id = series LIMIT 3
               )) AS points, last
        FROM (
            SELECT s.value AS series, run,
                   (SELECT max(step) FROM metric WHERE run_id = run AND series_id = s.value)
                       AS last
            FROM ({_RUNS}) CROSS JOIN json_each(:series) s
        ) WHERE last IS NOT NULL
    """
    return _parts(db, sql, study=study, role=None, series=_listed(series), runs=None)


def points(
    db: Database,
    study: str,
    series: Iterable[int],
    role: str | None,
    most: int | None = None,
    runs: Iterable[int] | None = None,
) -> Iterator[Rows]:
    """Yield number of the series, run, step and value of the points of a study's curves, in parts.

    They are in no order, and there are millions of a large study: no text is in them.

    Args:
        db: The database.
        study: Name of the study.
        series: Numbers of the series to return.
        role: Role of the runs, None for every role.
        most: About how many points of a curve that has more of them to return, evenly spaced in
            steps, its first and last among them; None for all.
        runs: Numbers of the runs; None for all.
    """
    named: dict[str, Any] = {"series": _listed(series), "points": most or -1, "runs": _listed(runs)}
    return _parts(db, _POINTS, study=study, role=role, **named)


# Each step that is returned of a long curve is found through the primary key: nothing between two
# of them is read. That takes six times as long for each of them as to read all of a curve.
_POINTS = f"""
    WITH RECURSIVE
    curve AS (
        SELECT run, s.value AS series_id, :points > 0 AND EXISTS (
                   SELECT 1 FROM metric WHERE run_id = run AND series_id = s.value
                   LIMIT 1 OFFSET :points
               ) AS long
        FROM ({_RUNS}) CROSS JOIN json_each(:series) s
    ),
    span AS (
        SELECT run, c.series_id,
               (SELECT min(step) FROM metric WHERE run_id = run AND series_id = c.series_id)
                   AS first,
               (SELECT max(step) FROM metric WHERE run_id = run AND series_id = c.series_id)
                   AS last
        FROM curve c WHERE long
    ),
    kept AS (
        SELECT run, series_id, first AS step, last, max(1, (last - first) / :points) AS stride
        FROM span
        UNION ALL
        SELECT run, series_id,
               (SELECT min(m.step) FROM metric m
                WHERE m.run_id = run AND m.series_id = kept.series_id
                       AND m.step >= min(kept.step + stride, last)),
               last, stride
        FROM kept WHERE step < last
    )
    SELECT m.series_id AS series, m.run_id AS run, m.step, m.value
    FROM curve c CROSS JOIN metric m ON m.run_id = c.run AND m.series_id = c.series_id
    WHERE NOT long
    UNION ALL
    SELECT m.series_id, m.run_id, m.step, m.value
    FROM kept k CROSS JOIN metric m ON m.run_id = k.run AND m.series_id = k.series_id
         AND m.step = k.step
"""

VALUES = 200_000  # that are read at once: all of a large study, as Python objects, take gigabytes
LONG = 10_000  # the same, where they are texts of a kilobyte


def _listed(numbers: Iterable[int] | None) -> str | None:
    """Return numbers as SQL reads them from one value; None for no condition."""
    return None if numbers is None else json.dumps(list(numbers))


def _parts(db: Database, sql: str, most: int | None = None, **values: Any) -> Iterator[Rows]:
    """Yield the answer to one SELECT in parts of about `VALUES` or `most` values; one if empty."""
    with db.read() as connection:
        cursor = connection.connection.cursor()
        cursor.execute(sql, values)
        columns = [column[0] for column in cursor.description]
        size = max(1, (most or VALUES) // len(columns))
        yield Rows(columns, list(cursor.fetchmany(size)))
        while part := cursor.fetchmany(size):
            yield Rows(columns, list(part))


def _select(db: Database, sql: str, **values: Any) -> Rows:
    """The answer to one SELECT by the driver: SQLAlchemy takes as long again for every row."""
    with db.read() as connection:
        cursor = connection.connection.cursor()
        cursor.execute(sql, values)
        return Rows([column[0] for column in cursor.description], list(cursor.fetchall()))
