"""Runs a study: asks for its stages one after another, and trains each in a pool of workers."""

from __future__ import annotations

from rich.console import Console

from ablate import tune
from ablate.launch.executor import Executor
from ablate.launch.pool import Outcome, WorkerPool
from ablate.plan import Plan
from ablate.store import Database, runs, status

__all__ = ["Outcome", "run_study"]


def run_study(
    plan: Plan,
    db: Database,
    executor: Executor,
    *,
    fail_fast: bool = False,
    replace: bool = False,
    console: Console | None = None,
) -> Outcome:
    """Train the unfinished runs of a study, stage after stage, and show progress.

    Several processes may run the same study at once.

    Args:
        plan: The study's plan, without decisions.
        db: The database.
        executor: What trains; it is closed at the end.
        fail_fast: Stop at the first run that fails.
        replace: Whether the study may drop the results of another one of its name.
        console: Where progress is shown; standard output by default.

    Raises:
        AblateError: Another study of this name has results that would be dropped, no worker starts,
            a disk is full, or a journal cannot be read.
    """
    study, console = plan.study, console or Console()
    stages = tune.stages(plan, db, replace=replace)
    # The first stage is asked for before anything starts: it registers the plan, which may fail.
    first = next(stages)
    with WorkerPool(executor, db, study.name, study.metric, console, fail_fast=fail_fast) as pool:
        stage: tune.Stage | None = first
        while stage:
            newest = stage.plan
            if again := runs.unkept(db, newest):
                runs.forget_lost_weights(db, again)
                pool.say(f"{study.name}: {runs.without_weights(again)}")
            for decision in stage.decided:
                pool.say(f"{study.name}: {tune.describe(decision)}")
            stage = next(stages, None) if pool.run(stage.plan, stage.study_id) else None
    outcome = pool.outcome()
    if outcome.exit_code < 128:
        for sentence in status.waiting(db, study.name):
            pool.say(f"{study.name}: {sentence}")
        for sentence in status.alike(db, study.name):
            pool.say(f"{study.name}: Warning: {sentence}")
        if lacking := runs.unkept(db, newest):
            pool.say(f"{study.name}: {runs.without_weights(lacking)}")
    return outcome
