"""The store → tidy DataFrames. Reads only.

A value that is NULL in the database is NaN here: of a run that is not finished, of a measurement
not made, or a NaN that a diverged run produced; the column `status` tells which. ±Inf stay ±Inf.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ablate import store
from ablate.errors import unknown
from ablate.store import decisions as stored
from ablate.store import names as known

if TYPE_CHECKING:
    from ablate.store import Database

    Source = (
        Database | str | Path | None
    )  # a database, its path or URL, or None for the default one

BASELINE = "baseline"  # the arm of a baseline whose stratum varies several factors
TEXT = frozenset(
    [
        "study",
        "cell",
        "stratum",
        "role",
        "key",
        "status",
        "family",
        "factor",
        "level",
        "baseline",
        "baseline_status",
    ]
)
WHOLE = ("diverged_at", "seed", "tokens", "n_params", "n_params_body", "attempts", "step")


@dataclass(frozen=True)
class StudyRow:
    """A study as the database knows it."""

    id: int
    name: str
    question: str
    metric: str
    goal: str  # "min" | "max"
    revision: int
    toml: str


def load(study: str, db: Source = None) -> pd.DataFrame:
    """The study's runs, one row each: the columns of the view `runs`, one column a factor, and
    `arm`.

    A factor's column is an ordered categorical of its levels' labels, baseline first; where the
    view has a numeric column of that name (n_layer, mask_ratio), the numbers stay. `arm`, ordered
    alike, is what tells a run from the others of its stratum.
    """
    opened = _open(db)
    row = _study(opened, study)
    runs = query(opened, "SELECT * FROM runs WHERE study = :study ORDER BY run", study=row.name)
    for factor, part in _levels(opened, row.id).groupby("factor", sort=False):
        if factor in runs and pd.api.types.is_numeric_dtype(runs[factor]):
            continue
        order = list(dict.fromkeys(part.sort_values("ordinal")["level"]))
        runs[factor] = pd.Categorical(
            runs["cell"].map(part.set_index("cell")["level"]), categories=order, ordered=True
        )
    return _with_arms(runs, study, opened)


def levels(study: str, db: Source = None) -> dict[str, dict[str, str]]:
    """Cell → factor → level's label. A factor that has no meaning in a cell is not there."""
    opened = _open(db)
    frame = _levels(opened, _study(opened, study).id)
    return {
        str(cell): dict(zip(part["factor"], part["level"], strict=True))
        for cell, part in frame.groupby("cell", sort=False)
    }


def orders(study: str, db: Source = None) -> dict[str, list[str]]:
    """Factor → its levels' labels, baseline first; factors in the order of the cells' labels."""
    opened = _open(db)
    frame = _levels(opened, _study(opened, study).id)
    ordered = frame.sort_values("ordinal", kind="stable").groupby("factor")["level"].unique()
    label = str(frame["cell"].iloc[0]) if len(frame) else ""
    return {
        factor: list(ordered[factor])
        for factor in sorted(ordered.index, key=lambda name: label.find(f"{name}="))
    }


def arms(study: str, db: Source = None) -> pd.DataFrame:
    """The study's cells: cell, stratum, arm, is_baseline. `arm` is short and tells the cells of a
    stratum apart.

    It is the level where a single factor differs ("parallel"), else "factor=level", and "baseline"
    for their common baseline.
    """
    opened = _open(db)
    row = _study(opened, study)
    contrasts = _contrasts(opened, row.id)
    by_cell = levels(study, opened)
    single = contrasts["factor"].nunique() <= 1
    named: dict[str, str] = {}
    for contrast in contrasts.to_dict("records"):
        base = (
            baseline_level(contrast["factor"], by_cell.get(contrast["baseline"], {}))
            if single
            else BASELINE
        )
        named[contrast["baseline"]] = base
    order = list(dict.fromkeys(named.values()))
    for contrast in contrasts.to_dict("records"):
        named.setdefault(
            contrast["cell"],
            contrast["level"] if single else f"{contrast['factor']}={contrast['level']}",
        )
    cells = query(
        opened,
        "SELECT label AS cell, stratum FROM cell WHERE study_id = :study AND active ORDER BY id",
        study=row.id,
    )
    cells["arm"] = [named.get(cell, cell) for cell in cells["cell"]]
    cells["is_baseline"] = cells["cell"].isin(set(contrasts["baseline"]))
    cells["arm"] = pd.Categorical(
        cells["arm"], categories=list(dict.fromkeys([*order, *cells["arm"]])), ordered=True
    )
    return cells


def baseline_level(factor: str, levels: dict[str, str]) -> str:
    """The level of a baseline cell in the factor, or joined factors, that a contrast is about."""
    return " × ".join(levels.get(part, "–") for part in factor.split(" × "))


def curves(
    study: str,
    series: str | Iterable[str] | None = None,
    db: Source = None,
    *,
    points: int | None = None,
) -> pd.DataFrame:
    """The stored points of the study's runs, or those of `series`: the columns of the view `curves`
    (study, cell, role, run, seed, series, step, tokens, value), with `stratum` and `arm` as in
    `load`.

    points: about how many of each curve are wanted, evenly spaced in steps, its first and last
    among them; all without it. Runs with points at the same steps keep the same ones. `AblateError`
    for a study or a series of which nobody knows.
    """
    opened = _open(db)
    row = _study(opened, study)
    names = (
        {} if series is None else dict(enumerate([series] if isinstance(series, str) else series))
    )
    known.require_series(opened, names.values())
    wanted = (
        f"AND series IN ({', '.join(f':series{k}' for k in names)})" if series is not None else ""
    )
    values = {"study": row.name, "points": points} | {
        f"series{k}": name for k, name in names.items()
    }
    if points is None:
        sql = f"SELECT * FROM curves WHERE study = :study {wanted} ORDER BY series, run, step"
    else:
        sql = _THINNED.format(wanted=wanted.replace("series IN", "s.name IN"))
    return _with_arms(query(opened, sql, **values), study, opened)


# Each step of a curve that is kept is found through the primary key: nothing between two of them is
# read.
_THINNED = """
    WITH RECURSIVE
    member_of AS (
        SELECT c.label AS cell, m.role AS role, r.id AS run, r.seed AS seed,
               r.tokens / r.steps AS step_tokens
        FROM study t JOIN cell c ON c.study_id = t.id JOIN member m ON m.cell_id = c.id
               JOIN run r ON r.id = m.run_id
        WHERE t.name = :study AND c.active
    ),
    span AS (
        SELECT run, s.id AS series_id, s.name AS series,
               (SELECT min(step) FROM metric WHERE run_id = run AND series_id = s.id) AS first,
               (SELECT max(step) FROM metric WHERE run_id = run AND series_id = s.id) AS last
        FROM (SELECT DISTINCT run FROM member_of) CROSS JOIN series s WHERE 1 {wanted}
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


def finals(study: str, name: str | None = None, db: Source = None) -> pd.DataFrame:
    """Final values: cell, run, seed, role, name, at, value, stratum, arm. `at` is a block, a length
    factor, a position or a probe ratio, else 0. `AblateError` for a study or a name of which nobody
    knows.
    """
    opened = _open(db)
    row = _study(opened, study)
    if name is not None:
        known.require_final(opened, name)
    sql = """
        SELECT r.cell, r.run, r.seed, r.role, f.name, f.at, f.value
        FROM runs r JOIN final f ON f.run_id = r.run
        WHERE r.study = :study AND (:name IS NULL OR f.name = :name)
        ORDER BY f.name, r.run, f.at
    """
    return _with_arms(query(opened, sql, study=row.name, name=name), study, opened)


def _with_arms(frame: pd.DataFrame, study: str, db: Database) -> pd.DataFrame:
    """`frame` with the stratum and the arm of its cells."""
    cells = arms(study, db).set_index("cell")
    named = pd.Categorical(
        frame["cell"].map(cells["arm"].astype(str)),
        categories=cells["arm"].cat.categories,
        ordered=True,
    )
    return frame.assign(stratum=frame["cell"].map(cells["stratum"]), arm=named)


def pairs(study: str, db: Source = None) -> pd.DataFrame:
    """Each run of a contrast beside its baseline's run of the same seed: the view `pairs`."""
    opened = _open(db)
    row = _study(opened, study)
    return query(
        opened, "SELECT * FROM pairs WHERE study = :study ORDER BY contrast, seed", study=row.name
    )


def decisions(study: str, db: Source = None) -> pd.DataFrame:
    """What the study learnt while running: cell, name ("lr", "seeds"), value, evidence (a
    dictionary, see `ablate.tune`).
    """
    opened = _open(db)
    found = stored.read(opened, _study(opened, study).name)
    return pd.DataFrame(
        [vars(decision) for decision in found], columns=["cell", "name", "value", "evidence"]
    )


def attempts(study: str, db: Source = None) -> pd.DataFrame:
    """Every try at the study's runs: cell, run, seed, role, and the columns of the table `attempt`;
    a row for each cell and role.

    Counted once, as by `drop_duplicates("id")`, a run that is also compared counts as that.
    """
    opened = _open(db)
    row = _study(opened, study)
    sql = """
        SELECT r.cell, r.run, r.seed, r.role, a.*
        FROM runs r JOIN attempt a ON a.run_id = r.run
        WHERE r.study = :study ORDER BY r.run, a.n, r.role
    """
    return query(opened, sql, study=row.name)


def study(name: str, db: Source = None) -> StudyRow:
    """The study of that name; `AblateError` with the nearest one where there is none."""
    return _study(_open(db), name)


def studies(db: Source = None) -> list[str]:
    """The names of the studies in the database."""
    return list(query(_open(db), "SELECT name FROM study ORDER BY id")["name"])


# -- reading ---------------------------------------------------------------------------------------


def query(db: Database, sql: str, **values: Any) -> pd.DataFrame:
    """One SELECT as a frame, on the raw driver connection; `:name` stands for a value. Empty
    numeric columns are numeric too.
    """
    with db.read() as connection:
        frame = pd.read_sql_query(sql, connection.connection.driver_connection, params=values)  # type: ignore[arg-type]
    for column in frame.columns:
        if column in WHOLE:
            frame[column] = pd.to_numeric(frame[column]).astype(
                "Int64" if frame[column].isna().any() else "int64"
            )
        elif column not in TEXT and frame[column].isna().all():
            frame[column] = frame[column].astype(float)
    return frame


def _open(db: Source) -> Database:
    return db if isinstance(db, store.Database) else store.open(None if db is None else str(db))


def _study(db: Database, name: str) -> StudyRow:
    found = query(
        db,
        "SELECT id, name, question, metric, goal, revision, toml FROM study WHERE name = :name",
        name=name,
    )
    if found.empty:
        raise unknown("study", name, studies(db))
    row = found.iloc[0]  # its numbers are numpy's, which SQLite would take for blobs
    text = {name: str(row[name]) for name in ("name", "question", "metric", "goal", "toml")}
    return StudyRow(id=int(row["id"]), revision=int(row["revision"]), **text)


def _levels(db: Database, study_id: int) -> pd.DataFrame:
    """cell, factor, level, ordinal of the study's cells in force."""
    sql = """
        SELECT c.label AS cell, l.factor, l.level, l.ordinal
        FROM cell c JOIN cell_level l ON l.cell_id = c.id
        WHERE c.study_id = :study AND c.active ORDER BY c.id
    """
    return query(db, sql, study=study_id)


def _contrasts(db: Database, study_id: int) -> pd.DataFrame:
    """family, stratum, factor, level, cell, baseline."""
    sql = """
        SELECT x.family, x.stratum, x.factor, x.level, c.label AS cell, b.label AS baseline
        FROM contrast x JOIN cell c ON c.id = x.cell_id JOIN cell b ON b.id = x.baseline_id
        WHERE x.study_id = :study ORDER BY x.id
    """
    return query(db, sql, study=study_id)
