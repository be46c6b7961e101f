"""What a study's `[eval]` measures, and which accepted results are valid for it."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from itertools import groupby

from sqlalchemy import Connection

from ablate.evaluation import CHANCE, LABELLED, Evaluation
from ablate.store.database import Database
from ablate.store.records import FAILED
from ablate.store.schema import RUNS

# finals that are measured on as many tokens as each point of a curve
_AS_CURVES = (
    *("copy_loss", "copy_loss_first", "pseudo_perplexity"),
    *("stream_rms", "token_similarity"),
)


def measure(evaluation: Evaluation) -> dict[str, tuple[object, ...]]:
    """Return final's name → what decides its value besides the run.

    Finals of unequal measure are not comparable. Which tokens are scored at several lengths depends
    on the longest of them. "loss" represents every final that is not named.
    """
    probe = (evaluation.n_final, evaluation.probe.mix, evaluation.probe.kind)
    found: dict[str, tuple[object, ...]] = {
        "loss": (evaluation.n_final,),
        "probe_loss": probe,
        "probe_accuracy": probe,
        **dict.fromkeys(("corrupted_loss", "corrupted_accuracy"), (evaluation.n_final,)),
        "reconstruction_loss": (evaluation.n_final,),
        **dict.fromkeys(_AS_CURVES, (evaluation.tokens,)),
        **dict.fromkeys(("exact_match", "error_rate"), (evaluation.decoded,)),
        "error_at_length": (evaluation.decoded, evaluation.beams[0]),
    }
    if evaluation.probe_csv is not None:
        found |= dict.fromkeys((LABELLED, CHANCE), (evaluation.probe_csv_hash,))
    found |= {name: (evaluation.n_final, version) for name, version in evaluation.own or ()}
    if evaluation.lengths != (1.0,):
        found["loss_at_length"] = (evaluation.tokens, max(evaluation.lengths))
    return found


def differing(wanted: Evaluation, earlier: Sequence[Evaluation]) -> list[str]:
    """Return the finals that `wanted` measures differently from `earlier` evaluations.

    Of several earlier evaluations, the first that has a final counts for it.
    """
    theirs = ChainMap(*map(measure, earlier))
    return [name for name, how in measure(wanted).items() if name in theirs and theirs[name] != how]


def revalidate(connection: Connection, study_id: int, evaluation: Evaluation) -> None:
    """Update which runs of a study are complete under an evaluation.

    A run whose finals were measured otherwise becomes planned; one whose finals match again becomes
    complete. No number is deleted before the run is done again, so that the change can be undone.
    """
    rows = connection.exec_driver_sql(
        "SELECT run.id, run.status, attempt.status, attempt.evaluation FROM run JOIN attempt ON"
        " attempt.run_id = run.id WHERE attempt.status IN ('complete', 'superseded') AND run.status"
        f" IN {('complete', 'planned', *FAILED)} AND run.id IN (SELECT run_id FROM"
        " member JOIN cell ON cell.id = cell_id WHERE study_id = ? AND active) ORDER BY run.id,"
        " attempt.status, attempt.n DESC",
        (study_id,),
    ).all()
    for (run_id, status), attempts in groupby(rows, key=lambda row: (row[0], row[1])):
        tries = [(row[2], Evaluation.model_validate_json(row[3])) for row in attempts]
        if tries[0][0] != "complete":
            continue
        now = "planned" if differing(evaluation, [made for _, made in tries]) else "complete"
        if (now == "complete") is not (status == "complete"):
            connection.exec_driver_sql("UPDATE run SET status = ? WHERE id = ?", (now, run_id))


def kept_points(db: Database, study: str, evaluation: Evaluation) -> dict[int, int]:
    """Return points of a curve → how many complete runs of a study keep so many.

    Args:
        db: The database.
        study: Name of the study.
        evaluation: What the study is to measure. A change of its `points` alone repeats no run, as
            training is dear and the finals stay the same.
    """
    found: dict[int, int] = {}
    with db.read() as connection:
        rows = connection.exec_driver_sql(
            f"SELECT attempt.evaluation, count(DISTINCT run.id) {RUNS} JOIN attempt ON"
            " attempt.run_id = run.id AND attempt.status = 'complete' WHERE study.name = ? AND"
            " cell.active AND member.role = 'compare' AND run.status = 'complete' GROUP BY 1",
            (study,),
        ).all()
    for made, count in rows:
        known = Evaluation.model_validate_json(made)
        same = known.model_copy(update={"points": evaluation.points}) == evaluation
        if same and known != evaluation:
            found[known.points] = found.get(known.points, 0) + count
    return found


def fallback(connection: Connection, run_id: int, attempt_id: int, status: str) -> str:
    """Return the status of a run whose attempt ended as `status`, without a result.

    It is complete if an earlier attempt has a result that is valid for the same evaluation.
    """
    own, *_ = connection.exec_driver_sql(
        "SELECT evaluation FROM attempt WHERE id = ?", (attempt_id,)
    ).scalars()
    earlier = evaluations(connection, run_id)
    accepted = connection.exec_driver_sql(
        "SELECT 1 FROM attempt WHERE run_id = ? AND status = 'complete'", (run_id,)
    ).first()
    valid = accepted and not differing(Evaluation.model_validate_json(own), earlier)
    return "complete" if valid else status


def evaluations(connection: Connection, run_id: int) -> list[Evaluation]:
    """Return the evaluations of a run's results: the accepted attempt's, then earlier ones."""
    rows = connection.exec_driver_sql(
        "SELECT evaluation FROM attempt WHERE run_id = ? AND status IN ('complete', 'superseded')"
        " ORDER BY status, n DESC",
        (run_id,),
    )
    return [Evaluation.model_validate_json(text) for text in rows.scalars()]
