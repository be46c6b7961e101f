"""The noise in a database: the standard deviation of paired differences in a metric."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from sqlalchemy import text

from ablate.kinds import Run
from ablate.metrics import NEAR_UNIGRAM
from ablate.store.database import Database
from ablate.store.schema import RUNS
from ablate.units import SAME, listed

if TYPE_CHECKING:
    from ablate.plan import Plan

VALUES = 5_000  # that a deviation over seeds is taken from: those of the first cells
NEAR = 4  # ratio of tokens, and of parameters, up to which one study's noise is used for another


@dataclass(frozen=True)
class Setting:
    """What makes the noise of two runs comparable: objective, text and budget.

    Attributes:
        kind: Kind of run.
        objective: Level of the factor `objective`; None for a kind without one.
        corpus_hash: Content hash of the corpus.
        tokenizer_hash: Content hash of the tokenizer.
        tokens: Tokens of the whole training, None for unknown.
        n_params: Parameters, None for unknown.
        command: The command line of a script, the study of imported runs, None for other kinds.
    """

    kind: str
    objective: str | None
    corpus_hash: str | None
    tokenizer_hash: str | None
    tokens: int | None
    n_params: int | None
    command: str | None = None

    def like(self, other: Setting) -> bool:
        """Return whether text and objective are equal and the budgets within a factor `NEAR`.

        Unknown budgets are not alike, but for those of one command line.
        """
        if self.command is not None and self == other:
            return True
        same = replace(self, tokens=0, n_params=0) == replace(other, tokens=0, n_params=0)
        budgets = ((self.tokens, other.tokens), (self.n_params, other.n_params))
        return same and all(
            one is not None and two is not None and one <= NEAR * two and two <= NEAR * one
            for one, two in budgets
        )


@dataclass(frozen=True)
class Noise:
    """The standard deviation of paired differences in a metric.

    Attributes:
        sd: Standard deviation, in the metric's unit.
        source: The pairs that it was computed from, as text.
    """

    sd: float
    source: str


# (study, cell) of which more than half of the runs learnt no more than token frequencies: the noise
# of models that learn is another one
_UNTRAINED = """
SELECT study.name, cell.label
FROM study JOIN cell ON cell.study_id = study.id AND cell.active
     JOIN member ON member.cell_id = cell.id AND role = 'compare'
     JOIN run ON run.id = member.run_id AND kind NOT IN ('command', 'imported')
     JOIN final AS loss ON loss.run_id = run.id AND loss.name = 'loss' AND loss.at = 0
     JOIN final AS known ON known.run_id = run.id AND known.name = 'unigram_loss'
WHERE run.tokens > 0
GROUP BY cell.id HAVING avg(loss.value >= (1 - ?) * known.value) > 0.5
"""


def noise_of(study: str, metric: str, settings: Iterable[Setting], db: Database) -> Noise | None:
    """Return the median noise of a study's contrasts, else that of comparable studies.

    Args:
        study: Name of the study whose own pairs are preferred.
        metric: The metric of the differences.
        settings: Settings of the runs that the noise is for.
        db: The database to search.

    Returns:
        None if no contrast has three complete pairs of comparable runs: noise of another text,
        tokenizer, objective or budget says nothing about these runs.
    """
    settings = set(settings)
    comparable = {
        location
        for location, setting in settings_in(db)
        if any(setting.like(wanted) for wanted in settings)
    }
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT study, cell, baseline, value, baseline_value FROM pairs WHERE metric = ? AND"
            " difference IS NOT NULL AND status = 'complete' AND baseline_status = 'complete'",
            (metric,),
        ).all()
        untrained = {tuple(row) for row in connection.exec_driver_sql(_UNTRAINED, (NEAR_UNIGRAM,))}
    by_cell: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for name, cell, base, value, baseline in rows:
        if {(name, cell), (name, base)} & untrained:
            continue
        if (name, cell) in comparable and math.isfinite(value - baseline):
            by_cell.setdefault((name, cell), []).append((value, baseline))
    spreads = {
        key: sd
        for key, found in by_cell.items()
        if len(found) > 2 and (sd := _spread([one - two for one, two in found], chain(*found)))
    }
    used = {key: spread for key, spread in spreads.items() if key[0] == study} or spreads
    if not used:
        return None
    names = list(dict.fromkeys(name for name, _ in used))
    pairs = f"{sum(len(by_cell[key]) for key in used)} pairs"
    others = f"the {pairs} of {'study' if len(names) == 1 else 'studies'} {listed(names, most=4)}"
    source = f"this study's own {pairs}" if names == [study] else others
    return Noise(statistics.median(used.values()), f"{source} in the database")


# CROSS JOIN reads the runs of one cell after another, as far as LIMIT
_OVER_SEEDS = f"""
WITH chosen AS MATERIALIZED (
    SELECT cell.id FROM cell JOIN study ON study.id = study_id
    WHERE active AND (study.name = :study OR cell.id IN (
        SELECT cell_id FROM member
        WHERE role = 'compare' AND run_id IN (SELECT value FROM json_each(:runs))))
    ORDER BY cell.id)
SELECT chosen.id, final.name, at, value
FROM chosen CROSS JOIN member ON cell_id = chosen.id AND role = 'compare'
     CROSS JOIN run ON run.id = member.run_id AND run.status = 'complete'
     CROSS JOIN final ON final.run_id = run.id
WHERE value IS NOT NULL
      AND (:names = '[]' OR final.name IN (SELECT value FROM json_each(:names)))
LIMIT {VALUES}
"""


def over_seeds(
    db: Database, *, study: str = "", runs: Sequence[int] = (), names: Sequence[str] = ()
) -> dict[tuple[str, float], float]:
    """Return (name, at) of finals → their standard deviation over seeds: the median over cells.

    Args:
        db: The database.
        study: Whose cells count.
        runs: Whose cells count too.
        names: Of the finals; all if empty.

    Returns:
        No number where no cell has two seeds that differ.
    """
    with db.read() as connection:
        rows = connection.execute(
            text(_OVER_SEEDS),
            {"study": study, "runs": json.dumps(list(runs)), "names": json.dumps(list(names))},
        ).all()
    by_cell: dict[tuple[str, float], dict[int, list[float]]] = {}
    for cell, name, at, value in rows:
        if math.isfinite(value):
            by_cell.setdefault((name, at), {}).setdefault(cell, []).append(value)
    spreads = {
        final: [_spread(one, one) for one in cells.values() if len(one) > 1]
        for final, cells in by_cell.items()
    }
    varying = {final: [sd for sd in found if sd > 0] for final, found in spreads.items()}
    return {final: statistics.median(found) for final, found in varying.items() if found}


def _spread(numbers: Sequence[float], values: Iterable[float]) -> float:
    """Return the standard deviation of numbers; 0 where it is rounding error of these values."""
    sd = statistics.stdev(numbers)
    return 0.0 if sd <= SAME * max(map(abs, values)) else sd


def settings_in(db: Database, study: str | None = None) -> list[tuple[tuple[str, str], Setting]]:
    """Return ((study, cell), setting) of the compared runs of a study, or of all studies."""
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT DISTINCT study.name, cell.label, run.kind,"
            " json_extract(fields, '$.objective'), json_extract(fields, '$.corpus_hash'),"
            " json_extract(fields, '$.tokenizer_hash'),"
            " run.tokens, n_params, CASE kind WHEN 'imported' THEN study.name"
            f" ELSE json_extract(fields, '$.command') END {RUNS}"
            " WHERE cell.active AND role = 'compare' AND (?1 IS NULL OR study.name = ?1)",
            (study,),
        )
        return [((study, cell), Setting(*setting)) for study, cell, *setting in rows]


def planned_settings(plan: Plan) -> set[Setting]:
    """Return the settings of a plan's cells."""
    return {_setting(cell.run) for cell in plan.cells}


def _setting(run: Run) -> Setting:
    get, cost = run.fields.get, run.cost
    return Setting(
        run.kind,
        get("objective"),
        get("corpus_hash"),
        get("tokenizer_hash"),
        cost.tokens,
        cost.params,
        get("command"),
    )


def noise_for(plan: Plan, db: Database) -> Noise | None:
    """Return `noise_of` for runs like a plan's."""
    return noise_of(plan.study.name, plan.study.metric, planned_settings(plan), db)
