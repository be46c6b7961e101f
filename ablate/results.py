"""Read the store as tidy DataFrames.

A value that is NULL in the database is NaN here. It belongs to a run that is not finished, to a
measurement that was not made, or to a diverged run that produced NaN: the column `status`
distinguishes them. ±Inf stay ±Inf.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ablate import formats, metrics, store, windows
from ablate.errors import unknown
from ablate.plan import ROLES
from ablate.store import decisions as stored
from ablate.store import names as known
from ablate.store import rows
from ablate.store.status import settings
from ablate.study import OWN, kind_of

if TYPE_CHECKING:
    from ablate.store import Database

    # a database, its path or URL, or None for the default one
    Source = Database | str | Path | None

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
CURVES = ("study", "cell", "role", "run", "seed", "series", "step", "tokens", "value")
WHOLE = (
    *("diverged_at", "seed", "init_seed", "data_seed", "tokens", "n_params", "n_params_body"),
    *("attempts", "step"),
)


@dataclass(frozen=True)
class StudyRow:
    """A study as stored in the database."""

    id: int
    name: str
    question: str
    metric: str
    goal: str  # "min" | "max"
    revision: int
    toml: str
    evaluation: str  # JSON of its [eval]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The study file's tables; empty if the database holds no readable one."""
        return settings(self.toml)

    @property
    def kind(self) -> str:
        """The kind of its runs, see `ablate.kinds`."""
        return kind_of(self.settings)

    @property
    def own(self) -> bool:
        """Whether its runs are not ablate's: of a script, or imported. It knows little of them."""
        return self.kind in OWN

    @property
    def reported(self) -> str:
        """The name under which runs report the metric: that of its curve."""
        return metrics.series(self.metric) if self.own else metrics.final(self.metric)[0]


def load(study: str, db: Source = None, *, role: str | None = "compare") -> pd.DataFrame:
    """Return a study's runs, one row for each run, cell and role.

    Args:
        study: Name of the study.
        db: A database, its path or URL; None for $ABLATE_DB, else results/ablate.db.
        role: "compare" for the runs that are compared, "tune" for those that tuned a learning
            rate, "pretrain" for those that others start from, "all" for all. Tuning runs have other
            seeds and rates: a mean over both says nothing.

    Returns:
        The columns of the view `runs`, a column for each factor, and `arm`. A factor's column is an
        ordered categorical of its levels' labels, baseline first; if the view has a numeric column
        of that name (n_layer, mask_ratio), the numbers stay. `arm` is an ordered categorical that
        distinguishes the cells of a stratum.

    Raises:
        AblateError: There is no such study.
    """
    opened = database(db)
    row = _study(opened, study)
    runs = _frame(rows.runs(opened, row.name, _role(role)))
    numbers = set(runs.select_dtypes("number"))
    factors = _of_factors(runs["cell"], row, opened)
    runs = runs.assign(**{name: one for name, one in factors.items() if name not in numbers})
    return _with_arms(runs, study, opened)


def _of_factors(cells: pd.Series, study: StudyRow, db: Database) -> dict[str, pd.Categorical]:
    """Return factor → the levels of cells."""
    codes, known = pd.factorize(cells)
    found = {}
    for factor, part in _frame([rows.levels(db, study.id)]).groupby("factor", sort=False):
        level_of = dict(zip(part["cell"], part["level"], strict=True))
        levels = {
            level: at
            for at, level in enumerate(dict.fromkeys(part.sort_values("ordinal")["level"]))
        }
        of_cell = np.array([levels.get(level_of.get(cell), -1) for cell in known], int)
        found[str(factor)] = pd.Categorical.from_codes(
            of_cell[codes] if len(known) else codes, categories=pd.Index(list(levels)), ordered=True
        )
    return found


def fields(study: str, db: Source = None) -> dict[int, dict[str, Any]]:
    """Return run → the fields of its kind, without the seed and without folders of its user.

    Runs of equal fields share one dictionary.
    """
    opened = database(db)
    read: dict[str, dict[str, Any]] = {}
    of_runs = {}
    for part in rows.fields(opened, _study(opened, study).name):
        for run, text in part.rows:
            if text not in read:
                read[text] = formats.each_text(json.loads(text), formats.without_folders)
            of_runs[run] = read[text]
    return of_runs


def without_folders(runs: pd.DataFrame) -> pd.DataFrame:
    """Return runs whose texts name files without the folders of their user, to be published.

    Names of cells, levels and studies stay.
    """
    changed = {}
    for name, column in runs.select_dtypes(["object", "string", "category"]).items():
        of_levels = isinstance(column.dtype, pd.CategoricalDtype) and column.dtype.ordered
        named = of_levels or name in TEXT or name in ("arm", "baseline_level")
        texts = () if named else {one for one in column if isinstance(one, str)}
        short = {
            one: new
            for one in texts
            if (new := formats.each_text(one, formats.without_folders)) != one
        }
        if short:
            changed[str(name)] = column.astype(object).map(lambda one, by=short: by.get(one, one))
    return runs.assign(**changed)


def levels(study: str, db: Source = None) -> dict[str, dict[str, str]]:
    """Return cell → factor → level's label, without factors that have no meaning in a cell."""
    opened = database(db)
    return _levels_of(rows.levels(opened, _study(opened, study).id))


def orders(study: str, db: Source = None) -> dict[str, list[str]]:
    """Return factor → labels of its levels, baseline first, factors in the order of the labels."""
    opened = database(db)
    found = rows.levels(opened, _study(opened, study).id).rows
    ordered: dict[str, dict[str, None]] = {}
    for _, factor, level, _ in sorted(found, key=lambda row: row[3]):
        ordered.setdefault(factor, {})[level] = None
    label = f", {found[0][0]}" if found else ""
    return {
        factor: list(ordered[factor])
        for factor in sorted(sorted(ordered), key=lambda name: label.find(f", {name}="))
    }


def arms(study: str, db: Source = None) -> pd.DataFrame:
    """Return the study's cells: cell, stratum, arm, is_baseline.

    `arm` is a short name that is unique in its stratum: the level if a single factor varies
    ("parallel"), else the cell's name without its stratum: "n_head=2, position=none" in a grid,
    "n_head=2" in other designs, whose common baseline is called "baseline".
    """
    opened = database(db)
    row = _study(opened, study)
    contrasts = rows.contrasts(opened, row.id)
    by_cell = _levels_of(rows.levels(opened, row.id))
    compared = [dict(zip(contrasts.columns, one, strict=True)) for one in contrasts.rows]
    single = len({one["factor"] for one in compared}) <= 1
    cells = _frame([rows.cells(opened, row.id)])
    strata = dict(zip(cells["cell"], cells["stratum"], strict=True))

    def name(cell: str, level: str) -> str:
        return level if single else _within_stratum(cell, strata.get(cell, ""))

    named: dict[str, str] = {}
    for one in compared:
        baseline = one["baseline"]
        level = baseline_level(one["factor"], by_cell.get(baseline, {}))
        named[baseline] = name(baseline, level)
    baselines = set(named)
    order = list(dict.fromkeys(named.values()))
    for one in compared:
        named.setdefault(one["cell"], name(one["cell"], one["level"]))
    of_cells = [named.get(cell, cell) for cell in cells["cell"]]
    return cells.assign(
        arm=pd.Categorical(
            of_cells, categories=list(dict.fromkeys([*order, *of_cells])), ordered=True
        ),
        is_baseline=cells["cell"].isin(baselines),
    )


def _within_stratum(cell: str, stratum: str) -> str:
    """Return the label of a cell without the levels that make its stratum.

    These stand in the label in the same order, between the levels of other factors.
    """
    rest, kept = stratum.split(", "), []
    for part in cell.split(", "):
        if rest and part == rest[0]:
            del rest[0]
        else:
            kept.append(part)
    return ", ".join(kept) or cell


def baseline_level(factor: str, levels: dict[str, str]) -> str:
    """Return the level of a baseline cell in the factor, or joined factors, of a contrast."""
    return " × ".join(levels.get(part, "–") for part in factor.split(" × "))


def curves(
    study: str,
    series: str | Iterable[str] | None = None,
    db: Source = None,
    *,
    points: int | None = None,
    role: str | None = "compare",
) -> pd.DataFrame:
    """Return the stored points of a study's runs.

    Args:
        study: Name of the study.
        series: Name or names of the series to return, None for all.
        db: See `load`.
        points: About how many points of each curve to return, evenly spaced in steps, its first and
            last among them; None for all. Runs with points at the same steps keep the same ones.
        role: As in `load`.

    Returns:
        The columns of the view `curves` (study, cell, role, run, seed, series, step, tokens,
        value), `stratum` and `arm` as in `load`, and a column for each factor with another name.

    Raises:
        AblateError: There is no such study, or no run can have such a series.
    """
    opened = database(db)
    found = curves_of(
        compact_points(study, series, opened, points=points, role=role),
        members(study, opened, role=role),
    )
    factors = _of_factors(found["cell"], _study(opened, study), opened)
    texts = {name: found[name].astype("str") for name in ("cell", "role", "series", "stratum")}
    found = found.assign(study=study, **texts)[[*CURVES, "stratum", "arm"]]
    return found.assign(**{name: one for name, one in factors.items() if name not in found})


def compact_points(
    study: str,
    series: str | Iterable[str] | None,
    db: Source,
    *,
    points: int | None,
    role: str | None,
) -> pd.DataFrame:
    """Return the points of `curves` in few bytes, each point of a run once, without its cells.

    Args:
        study: As in `curves`.
        series: As in `curves`.
        db: As in `curves`.
        points: As in `curves`.
        role: As in `curves`.

    Returns:
        series (categories), run, step, value, in this order.

    Raises:
        AblateError: As in `curves`.
    """
    opened = database(db)
    row = _study(opened, study)
    names = None if series is None else [series] if isinstance(series, str) else list(series)
    known.require_series(opened, names or [])
    return read_points(opened, row.name, names, _role(role), points)


def read_points(
    db: Database,
    study: str,
    series: Sequence[str] | None,
    role: str | None,
    points: int | None,
    runs: Iterable[int] | None = None,
) -> pd.DataFrame:
    """Return `compact_points` of series that may be unknown, perhaps of some runs alone."""
    numbers = rows.series(db, series)
    place = np.zeros(max(numbers, default=0) + 1, np.int16)
    place[list(numbers)] = range(len(numbers))
    types = (np.int16, np.int64, np.int64, float)
    columns: list[list[np.ndarray]] = [[np.empty(0, one)] for one in types]
    for part in rows.points(db, study, numbers, role, points, runs):
        # a column of Python numbers takes three times as long as an array of all
        found = np.array(part.rows, float).reshape(-1, len(types))
        for column, values, one in zip(columns, found.T, types, strict=True):
            column.append(values.astype(one))
    number, run, step, value = (np.concatenate(columns.pop(0)) for _ in types)
    codes = place[number]
    order = np.lexsort((step, run, codes))
    names = pd.Index(list(numbers.values()), dtype="str")
    sorted_columns: dict[str, Any] = {"series": pd.Categorical.from_codes(codes[order], names)}
    sorted_columns |= {"run": run[order], "step": step[order], "value": value[order]}
    return pd.DataFrame(sorted_columns, copy=False)


def ends(study: str, series: Iterable[str], db: Database) -> pd.DataFrame:
    """Return the ends of curves of runs of every role: series, run, points (3 for more), last step.

    Args:
        study: Name of the study.
        series: Names of the series, which may be unknown.
        db: The database.
    """
    numbers = rows.series(db, list(series))
    parts = [np.array(part.rows, np.int64).reshape(-1, 4) for part in rows.ends(db, study, numbers)]
    found = pd.DataFrame(np.concatenate(parts), columns=["series", "run", "points", "last"])
    return found.assign(series=found["series"].map(numbers).astype("category"))


def members(study: str, db: Source, *, role: str | None = "compare") -> pd.DataFrame:
    """Return the cells of runs: cell, role, run, seed, step_tokens, stratum, arm; no long texts.

    Args:
        study: Name of the study.
        db: See `load`.
        role: As in `load`.
    """
    opened = database(db)
    row = _study(opened, study)
    found = _with_arms(_frame([rows.members(opened, row.name, _role(role))]), study, opened)
    return found.astype(dict.fromkeys(("cell", "role", "stratum"), "category"))


def curves_of(points: pd.DataFrame, members: pd.DataFrame) -> pd.DataFrame:
    """Return points with the cells of their runs, and the tokens seen by then.

    Args:
        points: From `compact_points`.
        members: From `members`.
    """
    return with_tokens(points.merge(members, on="run"))


def with_tokens(points: pd.DataFrame) -> pd.DataFrame:
    """Return points with the tokens seen by then, instead of those of a step."""
    tokens = _typed("tokens", [points["step"] * points["step_tokens"]])
    return points.drop(columns="step_tokens").assign(tokens=tokens)


def finals(
    study: str, name: str | None = None, db: Source = None, *, role: str | None = "compare"
) -> pd.DataFrame:
    """Return final values: cell, run, seed, role, name, at, value, stratum, arm.

    `at` is a block, a length factor, a position or a probe ratio, else 0.

    Args:
        study: Name of the study.
        name: Name of the final; None for all.
        db: See `load`.
        role: As in `load`.

    Raises:
        AblateError: There is no such study, or no run can have a final of that name.
    """
    opened = database(db)
    row = _study(opened, study)
    if name is not None:
        known.require_final(opened, name)
    return _with_arms(_frame(rows.finals(opened, row.name, name, _role(role))), study, opened)


def window_losses(study: str, db: Source = None, metric: str = "loss") -> pd.DataFrame:
    """Return the losses of the held-out windows that the runs' final evaluations scored.

    Rows of one `window` and `tokens` are the same held-out text in all runs on one corpus and
    tokenizer, whatever their n_ctx. The array [runs, windows] of a cell:
    `frame.pivot(index="seed", columns="window", values="loss")`.

    Args:
        study: Name of the study.
        db: See `load`.
        metric: "loss" or, of masked models, "probe_loss@RATIO".

    Returns:
        cell, run, seed, role, window (number of its first token among the held-out tokens),
        tokens (that it covers), scored (tokens scored), loss (their mean, nats), stratum, arm. The
        mean of a run's losses, weighted by `scored`, is its final. Runs of earlier versions have no
        rows.

    Raises:
        AblateError: There is no such study or metric.
    """
    opened = database(db)
    row = _study(opened, study)
    columns, found = rows.windows(opened, row.name, *metrics.final(metric))
    parts = []
    for *run, tokens, layout, losses in found:
        one = windows.unpacked(metric, 0.0, tokens, layout, losses)
        numbers = {"window": one.starts, "tokens": tokens, "scored": one.scored, "loss": one.losses}
        parts.append(pd.DataFrame(dict(zip(columns, run, strict=False)) | numbers))
    empty = pd.DataFrame(columns=[*columns[:4], "window", "tokens", "scored", "loss"])
    return _with_arms(pd.concat(parts, ignore_index=True) if parts else empty, study, opened)


def weighted_windows(study: str, db: Source, metric: str) -> dict[str, pd.DataFrame]:
    """Return cell → losses of the windows of its compared runs, a row a seed, a column a window.

    A loss is multiplied by the scored tokens of its window over their mean, so that the mean of a
    row is the run's final.

    Args:
        study: Name of the study.
        db: See `load`.
        metric: As in `window_losses`.
    """
    opened = database(db)
    columns, found = rows.windows(opened, study, *metrics.final(metric))
    by_cell: dict[str, dict[int, pd.Series]] = {}
    columns_of: dict[tuple[int, bytes], pd.MultiIndex] = {}  # runs share layouts of windows
    for *run, tokens, layout, losses in found:
        of_run = dict(zip(columns, run, strict=False))
        if of_run["role"] == "compare":
            one = windows.unpacked(metric, 0.0, tokens, layout, losses)
            weighted = one.losses * (one.scored / one.scored.mean())
            if (tokens, layout) not in columns_of:
                columns_of[tokens, layout] = pd.MultiIndex.from_product([[tokens], one.starts])
            by_cell.setdefault(of_run["cell"], {})[of_run["seed"]] = pd.Series(
                weighted, columns_of[tokens, layout]
            )
    return {cell: pd.DataFrame(of_seed).T for cell, of_seed in by_cell.items()}


def _with_arms(frame: pd.DataFrame, study: str, db: Database) -> pd.DataFrame:
    """Add the stratum and the arm of its cells to a frame."""
    cells = arms(study, db).set_index("cell")
    named = pd.Categorical(
        frame["cell"].map(cells["arm"].astype(str)),
        categories=cells["arm"].cat.categories,
        ordered=True,
    )
    return frame.assign(stratum=frame["cell"].map(cells["stratum"]), arm=named)


def pairs(study: str, db: Source = None) -> pd.DataFrame:
    """Return each run of a contrast with its baseline's run of the same seed: view `pairs`.

    Args:
        study: Name of the study.
        db: See `load`.

    Returns:
        The columns of the view `pairs`, a row for each contrast and seed: the contrast (family,
        factor, level, cell, baseline), the seed, the metric of both runs in its own unit (value,
        baseline_value), their difference, level minus baseline, and the status of both. A pair
        counts if both are "complete".

    Raises:
        AblateError: There is no such study.
    """
    opened = database(db)
    row = _study(opened, study)
    return _frame(rows.pairs(opened, row.name))


def decisions(study: str, db: Source = None) -> pd.DataFrame:
    """Return what the study decided while running.

    Args:
        study: Name of the study.
        db: See `load`.

    Returns:
        Columns cell, name ("lr" or "seeds"), value, and evidence, a dictionary (see `ablate.tune`).
    """
    opened = database(db)
    decided = stored.read(opened, _study(opened, study).name)
    return pd.DataFrame(
        [vars(decision) for decision in decided], columns=["cell", "name", "value", "evidence"]
    )


def attempts(study: str, db: Source = None) -> pd.DataFrame:
    """Return every attempt at the study's runs, a row for each cell and role of the run.

    Args:
        study: Name of the study.
        db: See `load`.

    Returns:
        cell, run, seed, role, and the columns of the table `attempt`. `drop_duplicates("id")` keeps
        the role "compare" of an attempt that has both roles.
    """
    opened = database(db)
    row = _study(opened, study)
    return _frame(rows.attempts(opened, row.name))


def study(name: str, db: Source = None) -> StudyRow:
    """Return the study of that name.

    Raises:
        AblateError: There is no such study; the nearest name is in the message.
    """
    return _study(database(db), name)


def studies(db: Source = None) -> list[str]:
    """Return the names of the studies in the database.

    Args:
        db: See `load`.
    """
    return list(known.studies(database(db)))


# -- reading ---------------------------------------------------------------------------------------


def _frame(answer: Iterable[rows.Rows]) -> pd.DataFrame:
    """Rows as a frame in which whole numbers are integers and empty numeric columns are numeric."""
    columns: dict[str, list[pd.Series]] = {}
    for part in answer:
        frame = pd.DataFrame.from_records(part.rows, columns=part.columns, coerce_float=True)
        nothing = pd.Series(np.nan, frame.index)
        for place, (name, column) in enumerate(frame.items()):
            # the first row mostly tells; asking pandas takes as long as all else
            known = name in TEXT or any(row[place] is not None for row in part.rows)
            columns.setdefault(str(name), []).append(column if known else nothing)
    # a frame whose columns are replaced one by one is slow, and pandas warns of it
    return pd.DataFrame({name: _typed(name, columns.pop(name)).array for name in list(columns)})


def _typed(name: str, parts: list[pd.Series]) -> pd.Series:
    """Parts of a column as one; a part of NULL alone has the type of the others."""
    column = parts[0] if len(parts) == 1 else _joined(parts)
    if name not in WHOLE or column.dtype == "int64":
        return column
    return pd.to_numeric(column).astype("Int64" if column.isna().any() else "int64")


def _joined(parts: list[pd.Series]) -> pd.Series:
    known = [part.dtype for part in parts if part.notna().any()]
    if not known:
        return pd.concat(parts, ignore_index=True)
    unknown = float if pd.api.types.is_numeric_dtype(known[0]) else known[0]
    return pd.concat(
        [part if part.notna().any() else part.astype(unknown) for part in parts], ignore_index=True
    )


def _role(role: str | None) -> str | None:
    """A role as the store names it: None for all."""
    roles = [*ROLES, "all"]
    if role not in (*roles, None):
        raise unknown("role", str(role), roles)
    return None if role == "all" else role


def database(db: Source) -> Database:
    """Return an open database: `db` itself, the one at its path or URL, or the default one."""
    return db if isinstance(db, store.Database) else store.open(None if db is None else str(db))


def _study(db: Database, name: str) -> StudyRow:
    columns, matches = rows.studies(db, name)
    if not matches:
        raise known.unknown_study(db, name)
    return StudyRow(**dict(zip(columns, matches[0], strict=True)))


def _levels_of(found: rows.Rows) -> dict[str, dict[str, str]]:
    """Cell → factor → level's label of the rows of `rows.levels`."""
    by_cell: dict[str, dict[str, str]] = {}
    for cell, factor, level, _ in found.rows:
        by_cell.setdefault(cell, {})[factor] = level
    return by_cell
