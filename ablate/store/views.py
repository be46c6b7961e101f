"""Views for users, created again after every migration.

| view | one row |
| --- | --- |
| runs | a compared run of a study: its cell, fields, sizes, status and usual finals |
| all_runs | the same for runs of every role, tuning runs too: column `role` |
| curves | a point of a series of a compared run, with the tokens seen by then |
| all_curves | the same for runs of every role |
| pairs | a contrast and seed: the study's metric of a cell, of its baseline, and their difference |
| effects | an analysed contrast, by name |
| findings | what was found in a study, with JSON |
| finals_wide | a run, with its usual finals as columns |

`all_runs` has a column for each field of the built-in kind and each other field that a run has.
`refresh` copies the JSON of new runs into the columns of the table `run_field`, which it reads:
`json_extract` on every read took up to 1.7 times as long. When a run brings a new field, the table
gets a column and the views are made anew, in the transaction that inserts the run.

In `metric`, `final` and these views a row whose value is NULL is NaN. In `runs` a run that was not
measured has NULL too: its `status` tells the two apart. Any other change of a view needs a
migration, even one that changes no table.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from ablate.components.base import check_name

_FINALS = ("loss", "bits_per_byte", "accuracy")
_BESIDE = ("unigram_loss", "copy_loss", "copy_loss_first", "train_seconds", "epochs")


def _final(name: str, at: str = "0", run: str = "run.id") -> str:
    return (
        f"(SELECT f.value FROM final AS f WHERE f.run_id = {run} AND f.name = {name} AND f.at ="
        f" {at})"
    )


def _metric(run: str) -> str:
    """SQL of the study's metric of a run: the final `name`, or `name@at` for one at a length factor
    or a probe ratio.
    """
    at = "instr(study.metric, '@')"
    return _final(
        f"CASE {at} WHEN 0 THEN study.metric ELSE substr(study.metric, 1, {at} - 1) END",
        f"CASE {at} WHEN 0 THEN 0.0 ELSE CAST(substr(study.metric, {at} + 1) AS REAL) END",
        run,
    )


_RUNS = f"""
SELECT study.name AS study, cell.label AS cell, cell.stratum AS stratum, member.role AS role,
       run.id AS run, run.key AS key, run.status AS status, run.diverged_at AS diverged_at,
       run.seed AS seed,
       {{fields}}run.tokens AS tokens, run.n_params AS n_params,
       run.n_params_body AS n_params_body, run.flops AS flops,
       {_metric("run.id")} AS metric,
       {", ".join(f"{_final(repr(name))} AS {name}" for name in _FINALS)},
       (SELECT sum(attempt.device_seconds) FROM attempt
              WHERE attempt.run_id = run.id) AS device_seconds,
       (SELECT count(*) FROM attempt WHERE attempt.run_id = run.id) AS attempts
FROM study JOIN cell ON cell.study_id = study.id JOIN member ON member.cell_id = cell.id
       JOIN run ON run.id = member.run_id LEFT JOIN run_field ON run_field.run_id = run.id
WHERE cell.active
"""

_CURVES = """
SELECT study.name AS study, cell.label AS cell, member.role AS role, run.id AS run,
       run.seed AS seed,
       series.name AS series, metric.step AS step, metric.step * (run.tokens / run.steps) AS tokens,
              metric.value AS value
FROM study JOIN cell ON cell.study_id = study.id JOIN member ON member.cell_id = cell.id
       JOIN run ON run.id = member.run_id
     JOIN metric ON metric.run_id = run.id JOIN series ON series.id = metric.series_id
WHERE cell.active
"""

# No index finds a run by cell and seed: to search the runs of the baseline for each run would take
# time in proportion to seeds². DISTINCT keeps SQLite from merging the subquery into the join; CROSS
# JOIN has it searched last, through an index that SQLite makes for the query. Its column `study`
# limits it to the studies that a query asks for.
PAIRS = f"""
SELECT study, family, stratum, factor, level, cell, baseline, seed, metric, value, baseline_value,
       value - baseline_value AS difference, status, baseline_status, contrast
FROM (
    SELECT study.name AS study, contrast.family AS family, contrast.stratum AS stratum,
           contrast.factor AS factor,
           contrast.level AS level, cell.label AS cell, base.label AS baseline, run.seed AS seed,
                  study.metric AS metric,
           {_metric("run.id")} AS value, {_metric("base_run.id")} AS baseline_value,
           run.status AS status, base_run.status AS baseline_status, contrast.id AS contrast
    FROM study JOIN contrast ON contrast.study_id = study.id
         JOIN cell ON cell.id = contrast.cell_id JOIN cell AS base ON base.id = contrast.baseline_id
         JOIN member ON member.cell_id = cell.id AND member.role = 'compare'
                JOIN run ON run.id = member.run_id
         CROSS JOIN (
             SELECT DISTINCT study.name AS study, cell.id AS cell_id, run.id AS id,
                    run.seed AS seed, run.status AS status
             FROM study JOIN cell ON cell.study_id = study.id
                  JOIN member ON member.cell_id = cell.id AND member.role = 'compare'
                  JOIN run ON run.id = member.run_id
             WHERE cell.id IN (SELECT baseline_id FROM contrast)
         ) AS base_run ON base_run.study = study.name AND base_run.cell_id = base.id
                AND base_run.seed = run.seed
)
"""

_EFFECTS = """
SELECT study.name AS study, contrast.family AS family, contrast.stratum AS stratum,
       contrast.factor AS factor,
       contrast.level AS level, cell.label AS cell, base.label AS baseline,
              effect.metric AS metric, effect.n AS n,
       effect.lost AS lost, effect.mean AS mean, effect.sd AS sd, effect.lo AS lo, effect.hi AS hi,
              effect.p AS p,
       effect.p_holm AS p_holm, effect.method AS method
FROM study JOIN contrast ON contrast.study_id = study.id
       JOIN effect ON effect.contrast_id = contrast.id
     JOIN cell ON cell.id = contrast.cell_id JOIN cell AS base ON base.id = contrast.baseline_id
"""

_FINALS_WIDE = f"""
SELECT run.id AS run, run.key AS key, run.status AS status, run.seed AS seed,
       {", ".join(f"{_final(repr(n))} AS {n}" for n in (*_FINALS, *_BESIDE))},
       {", ".join(f"{_final(repr('loss_at_length'), str(n))} AS loss_at_{n}x" for n in (1, 2, 4))}
FROM run
"""

_FINDINGS = """
SELECT study.name AS study, finding.ordinal AS ordinal, finding.kind AS kind,
       finding.stratum AS stratum, finding.factor AS factor, finding.level AS level,
       finding.cell AS cell, finding.data AS data
FROM study JOIN finding ON finding.study_id = study.id
"""

VIEWS = {
    "all_runs": _RUNS,
    "runs": "SELECT * FROM all_runs WHERE role = 'compare'",
    "all_curves": _CURVES,
    "curves": "SELECT * FROM all_curves WHERE role = 'compare'",
    "pairs": PAIRS,
    "effects": _EFFECTS,
    "findings": _FINDINGS,
    "finals_wide": _FINALS_WIDE,
}

_NEW = "run.id NOT IN (SELECT run_id FROM run_field)"  # runs whose fields are not copied yet


def drop(connection: Connection) -> None:
    """Drop all views."""
    for name in reversed(VIEWS):
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {name}")


def create(connection: Connection) -> None:
    """Create all views. There must be none."""
    columns = "".join(f'run_field."{name}" AS "{name}",\n       ' for name in _fields(connection))
    for name, select in VIEWS.items():
        sql = select.strip().replace("{fields}", columns)
        connection.exec_driver_sql(f"CREATE VIEW {name} AS {sql}")


def refresh(connection: Connection, fields: Iterable[str] = ()) -> None:
    """Show the fields of runs that were inserted in this transaction.

    Args:
        connection: A connection in a transaction.
        fields: Fields that get a column even if no run has them.

    Raises:
        AblateError: A field cannot be a column of the view `runs`.
    """
    in_use = connection.exec_driver_sql(
        "SELECT field.key FROM run, json_each(run.fields) AS field"
        f" WHERE {_NEW} GROUP BY field.key ORDER BY min(run.id), min(field.id)"
    )
    known = _fields(connection)
    new = [name for name in dict.fromkeys([*fields, *in_use.scalars()]) if name not in known]
    for name in new:
        check_name(name, [*known, *new])
        connection.exec_driver_sql(f'ALTER TABLE run_field ADD COLUMN "{name}"')
    columns = [*known, *new]
    connection.exec_driver_sql(
        f"INSERT INTO run_field ({', '.join(['run_id', *map(_quoted, columns)])})"
        f" SELECT {', '.join(['id', *map(field, columns)])} FROM run WHERE {_NEW}"
    )
    if new:
        drop(connection)
        create(connection)


def _fields(connection: Connection) -> list[str]:
    """The fields that have a column."""
    rows = connection.exec_driver_sql("SELECT name FROM pragma_table_info('run_field')")
    return [name for name in rows.scalars() if name != "run_id"]


def _quoted(name: str) -> str:
    return f'"{name}"'


def field(name: str) -> str:
    """SQL of a field's value: numbers and text as they are, an array as JSON text as Python's."""
    value = f"json_extract(fields, '$.{name}')"  # leaves out the space after a comma
    array = f"json_type(fields, '$.{name}') = 'array' AND NOT instr({value}, '\"')"
    return f"iif({array}, replace({value}, ',', ', '), {value})"
