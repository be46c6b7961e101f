"""The catalogue of named queries: common questions, each one short SQL statement on the views.

`ablate query --list` lists them, `ablate query best-lr topology` runs one, `ablate browse` offers
all of them. `docs/queries.md` is what `ablate query --list --format md` prints.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text

from ablate.errors import AblateError, unknown
from ablate.store.database import Database

_HEAD = """\
# Named queries

Common questions, each one short SQL statement; nearly all read the views that
`ablate query --tables` lists. `ablate query NAME` runs one, `--format csv`, `json` or `md` exports
the answer, and each statement can be the start of your own. Words in capitals are values, and words
in brackets are optional: STUDY is a study's name, SERIES a series of the view `curves`.

This page is what `ablate query --list --format md` prints.
"""

PARAMETERS = {
    "study": "a study's name",
    "series": "a series of the view curves: loss, copy_loss, train_loss, lr, grad_norm,"
    " tokens_per_second",
}


@dataclass(frozen=True)
class Question:
    """One statement. A parameter is written `:name`; an optional one may be empty."""

    name: str
    answers: str
    sql: str
    optional: tuple[str, ...] = ()
    chosen: str = ""  # a column of chosen values, which has the name of what the study tunes

    @property
    def parameters(self) -> list[str]:
        """Names of the parameters, the required ones first."""
        names = list(dict.fromkeys(re.findall(r":(\w+)", self.sql)))
        return sorted(names, key=lambda name: name in self.optional)

    @property
    def usage(self) -> str:
        """The parameters as a usage line writes them: "STUDY [SERIES]"."""
        return " ".join(
            f"[{name.upper()}]" if name in self.optional else name.upper()
            for name in self.parameters
        )

    def bind(self, words: Sequence[str]) -> dict[str, str]:
        """Return name → value for words such as "topology" or "study=topology".

        Raises:
            AblateError: A required value is missing, or there are too many words.
        """
        named: dict[str, str] = {}
        free: list[str] = []
        for word in words:
            name, equals, value = word.partition("=")
            if equals and name in self.parameters:
                named[name] = value
            else:
                free.append(word)
        unnamed = [name for name in self.parameters if name not in named]
        if len(free) > len(unnamed):
            takes = f"takes {self.usage}" if self.usage else "takes no parameter"
            raise AblateError(
                f"named query {self.name} {takes}; {free[len(unnamed)]!r} is one value too many"
            )
        values = dict.fromkeys(self.optional, "") | named | dict(zip(unnamed, free, strict=False))
        if missing := [name for name in self.parameters if name not in values]:
            raise AblateError(
                f"named query {self.name} needs {missing[0]}, {PARAMETERS[missing[0]]}: ablate"
                f" query {self.name} {self.usage}"
            )
        return values

    def with_values(self, **values: str) -> str:
        """Return the statement with values instead of parameters, to be read and copied."""
        values = dict.fromkeys(self.optional, "") | values
        return re.sub(r":(\w+)", lambda found: quoted(values[found[1]]), self.sql)


def quoted(text: str) -> str:
    """Return `text` as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _in_order(select: str, role: str = "compare") -> str:
    """Return a SELECT that can join `places`: the place of a study's cells in its plan.

    By their names n_layer=100 would come before n_layer=2.
    """
    return f"""\
WITH places AS (SELECT cell.label AS cell, min(ordinal) AS place
                FROM study JOIN cell ON study_id = study.id JOIN member ON cell_id = cell.id
                WHERE name = :study AND role = '{role}' AND active GROUP BY cell.id)
{select}"""


_ROWS = (
    Question(
        "means",
        "The mean of the study's metric in every cell, with its lowest and highest seed.",
        _in_order("""\
SELECT stratum, cell, count(metric) AS runs, avg(metric) AS metric, min(metric) AS lowest,
       max(metric) AS highest
FROM runs JOIN places USING (cell)
WHERE study = :study AND status = 'complete'
GROUP BY stratum, cell
ORDER BY min(min(place)) OVER (PARTITION BY stratum), avg(metric)"""),
    ),
    Question(
        "topology-by-depth",
        "The mean held-out loss by topology, depth and norm.",
        """\
SELECT n_layer, norm, topology, count(loss) AS runs, avg(loss) AS loss
FROM runs
WHERE study = :study AND status = 'complete' AND topology IS NOT NULL
GROUP BY n_layer, norm, topology
ORDER BY n_layer, norm, avg(loss)""",
    ),
    Question(
        "effect-sizes",
        "Every level against its baseline, as last analysed: mean paired difference, 95% interval,"
        " Holm's p.",
        _in_order("""\
SELECT family, factor, level, metric, n AS pairs, lost, mean AS effect, lo, hi, p_holm
FROM effects JOIN places USING (cell)
WHERE study = :study
ORDER BY min(place) OVER (PARTITION BY family), mean"""),
    ),
    Question(
        "found",
        "What was found in a study, as last analysed: one row a finding, with its numbers as JSON.",
        """\
SELECT kind, stratum, factor, level, cell, data
FROM findings
WHERE study = :study
ORDER BY ordinal""",
    ),
    Question(
        "pairs-lost",
        "The pairs without a difference: one of their runs diverged, failed, or is unfinished.",
        _in_order("""\
SELECT family, factor, level, seed, status, baseline_status
FROM pairs JOIN places USING (cell)
WHERE study = :study AND (status <> 'complete' OR baseline_status <> 'complete'
       OR difference IS NULL)
ORDER BY min(place) OVER (PARTITION BY family), place, seed"""),
    ),
    Question(
        "learning-curve",
        "The mean of a series over seeds, by cell, step and tokens seen, which are unknown for"
        " scripts. Default: held-out loss, or the metric of a script.",
        _in_order("""\
SELECT cell, step, tokens, count(value) AS runs, avg(value) AS value
FROM curves JOIN places USING (cell)
WHERE study = :study AND series = coalesce(nullif(:series, ''),
      iif(EXISTS (SELECT 1 FROM curves WHERE study = :study AND series = 'loss'), 'loss',
          (SELECT replace(metric, 'best ', '') FROM study WHERE name = :study)))
GROUP BY cell, step, tokens
ORDER BY min(place), step, tokens"""),
        optional=("series",),
    ),
    Question(
        "lr-curve",
        "The study's metric at each learning rate tried for each cell, or value of what else is"
        " tuned, and how many runs diverged. Another metric may have decided: see best-lr.",
        _in_order(
            """\
SELECT cell, run.fields ->> (SELECT coalesce(max(decision.name), 'lr')
                             FROM decision JOIN study ON study.id = study_id
                             WHERE study.name = :study AND decision.name <> 'seeds') AS tuned,
       count(*) AS runs, sum(all_runs.status = 'diverged') AS diverged, avg(metric) AS metric
FROM all_runs JOIN places USING (cell) JOIN run ON run.id = all_runs.run
WHERE study = :study AND role = 'tune' AND all_runs.status IN ('complete', 'diverged')
GROUP BY cell, tuned
ORDER BY min(place), tuned""",
            role="tune",
        ),
    ),
    Question(
        "best-lr",
        "The learning rate chosen for each group of cells, or value of what else is tuned (`ablate"
        " query` gives the column its name), by which metric, how many were tried, and whether it"
        " is the lowest or highest of them.",
        """\
SELECT json_extract(evidence, '$.group') AS "group", CAST(decision.value AS REAL) AS lr,
       json_extract(evidence, '$.metric') AS metric,
       json_array_length(evidence, '$.rates') AS tried, json_extract(evidence,
              '$.at_edge') AS at_edge
FROM decision JOIN study ON study.id = decision.study_id JOIN cell ON cell.id = decision.cell_id
WHERE study.name = :study AND decision.name <> 'seeds' AND cell.active
ORDER BY (SELECT min(ordinal) FROM member WHERE cell_id = cell.id)""",
        chosen="lr",
    ),
    Question(
        "gpu-seconds",
        "Device seconds by role and status of the attempts, of one study or of all; a shared run"
        " counts once.",
        """\
SELECT role, status, count(*) AS attempts, sum(device_seconds) AS device_seconds
FROM (SELECT min(all_runs.role) AS role, attempt.status, attempt.device_seconds
      FROM all_runs JOIN attempt ON attempt.run_id = all_runs.run
      WHERE :study IN (all_runs.study, '')
      GROUP BY attempt.id)
GROUP BY role, status
ORDER BY role, status""",
        optional=("study",),
    ),
    Question(
        "loss-by-size",
        "The mean held-out loss by number of parameters, where that is known.",
        """\
SELECT cell, n_params, n_params_body, count(loss) AS runs, avg(loss) AS loss
FROM runs
WHERE study = :study AND status = 'complete' AND n_params IS NOT NULL
GROUP BY cell
ORDER BY n_params, avg(loss)""",
    ),
    Question(
        "longer-context",
        "The loss of the same targets with four times the training context, divided by that with"
        " the training context.",
        """\
SELECT runs.cell, count(loss_at_4x) AS runs, avg(loss_at_1x) AS at_1x, avg(loss_at_4x) AS at_4x,
       avg(loss_at_4x / loss_at_1x) AS ratio
FROM runs JOIN finals_wide ON finals_wide.run = runs.run
WHERE runs.study = :study AND loss_at_4x IS NOT NULL
GROUP BY runs.cell
ORDER BY ratio""",
    ),
    Question(
        "pareto",
        "The cells that no other cell beats in both the study's metric and training time.",
        """\
WITH means AS (SELECT cell, avg(train_seconds) AS seconds, avg(runs.metric) AS metric,
                      avg(runs.metric) * iif(goal = 'min', 1, -1) AS cost
               FROM runs JOIN finals_wide USING (run) JOIN study ON study.name = study
               WHERE study = :study AND runs.status = 'complete'
               GROUP BY cell)
SELECT cell, seconds, metric
FROM means
WHERE seconds IS NOT NULL AND metric IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM means AS other
    WHERE other.cost <= means.cost AND other.seconds <= means.seconds
          AND (other.cost < means.cost OR other.seconds < means.seconds))
ORDER BY seconds""",
    ),
    Question(
        "shared-runs",
        "Pairs of studies that share runs, and how many runs.",
        """\
SELECT a.study, b.study AS other, count(DISTINCT a.run) AS runs
FROM all_runs AS a JOIN all_runs AS b ON b.run = a.run AND b.study > a.study
GROUP BY a.study, b.study
ORDER BY runs DESC, a.study, b.study""",
    ),
    Question(
        "unfinished",
        "The runs of a study without a result, and how often they were tried; `ablate show RUN`"
        " shows the error.",
        """\
SELECT run, cell, seed, role, status, attempts
FROM all_runs
WHERE study = :study AND status NOT IN ('complete', 'diverged')
ORDER BY run""",
    ),
)

_TUNED = """
SELECT DISTINCT decision.name FROM decision JOIN study ON study.id = decision.study_id
WHERE study.name = :study AND decision.name <> 'seeds'
"""

QUESTIONS = {question.name: question for question in _ROWS}
assert all(set(question.parameters) <= PARAMETERS.keys() for question in _ROWS)


def find(name: str) -> Question:
    """Return the named query.

    Raises:
        AblateError: There is none; the nearest name is in the message.
    """
    if name not in QUESTIONS:
        raise unknown("named query", name, QUESTIONS)
    return QUESTIONS[name]


def headings(db: Database, name: str, study: str, columns: Sequence[str]) -> list[str]:
    """Return the columns of a named query's answer on a study.

    Args:
        db: The database.
        name: Of the query.
        study: The study; "" for all.
        columns: Their names in the SQL.
    """
    if not (chosen := find(name).chosen):
        return list(columns)
    with db.read() as connection:
        tuned = connection.execute(text(_TUNED), {"study": study}).scalars().all()
    # two columns of one name would be one in JSON
    field = tuned[0] if len(tuned) == 1 and tuned[0] not in columns else chosen
    return [field if column == chosen else column for column in columns]


def page() -> str:
    """Return the catalogue as Markdown: what each query answers, its usage, its SQL."""
    parts = [_HEAD]
    for question in QUESTIONS.values():
        parts.append(f"## {question.name}\n\n{question.answers}\n")
        parts.append(
            f"```sh\n{' '.join(['ablate query', question.name, *question.usage.split()])}\n```\n"
        )
        parts.append(f"```sql\n{question.sql}\n```\n")
    return "\n".join(parts)
