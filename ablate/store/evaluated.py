"""How a study's `[eval]` measures, and which accepted results still stand for it."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from itertools import groupby

from sqlalchemy import Connection

from ablate.evaluation import Evaluation


def measure(evaluation: Evaluation) -> dict[str, tuple[object, ...]]:
    """Final's name → what decides its value, beside the run: finals of unequal measure do not
    compare.

    Which tokens are scored at several lengths depends on the longest of them. "loss" stands for all
    that is not named.
    """
    probe = (evaluation.tokens, evaluation.probe.mix, evaluation.probe.kind)
    found: dict[str, tuple[object, ...]] = {
        "loss": (evaluation.tokens,),
        "probe_loss": probe,
        "probe_accuracy": probe,
    }
    if evaluation.lengths != (1.0,):
        found["loss_at_length"] = (evaluation.tokens, max(evaluation.lengths))
    return found


def differing(wanted: Evaluation, earlier: Sequence[Evaluation]) -> list[str]:
    """The finals that `wanted` measures otherwise than `earlier` evaluations, of which the first
    that has one counts.
    """
    theirs = ChainMap(*map(measure, earlier))
    return [name for name, how in measure(wanted).items() if name in theirs and theirs[name] != how]


def settle(connection: Connection, study_id: int, evaluation: Evaluation) -> None:
    """Take back that a run of the study is complete, where its finals were measured otherwise; say
    so again where they fit.

    No number is deleted before the run is done again, so that the study may change its mind.
    """
    rows = connection.exec_driver_sql(
        "SELECT run.id, run.status, attempt.status, attempt.evaluation FROM run JOIN attempt ON"
        " attempt.run_id = run.id WHERE attempt.status IN ('complete', 'superseded') AND run.status"
        " IN ('complete', 'planned', 'failed', 'oom') AND run.id IN (SELECT run_id FROM member JOIN"
        " cell ON cell.id = cell_id WHERE study_id = ? AND active) ORDER BY run.id, attempt.status,"
        " attempt.n DESC",
        (study_id,),
    ).all()
    for (run_id, status), attempts in groupby(rows, key=lambda row: (row[0], row[1])):
        tries = [(row[2], Evaluation.model_validate_json(row[3])) for row in attempts]
        if tries[0][0] != "complete":
            continue
        now = "planned" if differing(evaluation, [made for _, made in tries]) else "complete"
        if (now == "complete") is not (status == "complete"):
            connection.exec_driver_sql("UPDATE run SET status = ? WHERE id = ?", (now, run_id))


def fallback(connection: Connection, run_id: int, attempt_id: int, status: str) -> str:
    """The status of a run whose attempt ended as `status`, without a result: complete, where an
    earlier one still stands.
    """
    own, *_ = connection.exec_driver_sql(
        "SELECT evaluation FROM attempt WHERE id = ?", (attempt_id,)
    ).scalars()
    earlier = evaluations(connection, run_id)
    accepted = connection.exec_driver_sql(
        "SELECT 1 FROM attempt WHERE run_id = ? AND status = 'complete'", (run_id,)
    ).first()
    stands = accepted and not differing(Evaluation.model_validate_json(own), earlier)
    return "complete" if stands else status


def evaluations(connection: Connection, run_id: int) -> list[Evaluation]:
    """By what the finals of a run were measured: the accepted attempt's first, then those before
    it, the latest first.
    """
    rows = connection.exec_driver_sql(
        "SELECT evaluation FROM attempt WHERE run_id = ? AND status IN ('complete', 'superseded')"
        " ORDER BY status, n DESC",
        (run_id,),
    )
    return [Evaluation.model_validate_json(text) for text in rows.scalars()]
