"""What the store hands out about runs, and statuses. No SQLAlchemy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ablate.evaluation import Evaluation
from ablate.kinds import Run

RUN_STATUS = (
    *("planned", "running", "complete", "diverged"),
    *("failed", "oom", "timeout", "stopped"),
)
# what readers are shown of a run: see `ablate.store.owners.STATUS`
SHOWN_STATUS = ("queued", *RUN_STATUS)
# of an attempt, in the order in which `ablate.store.merge` prefers one over those before it
ATTEMPT_STATUS = (
    *("running", "dead", "failed", "oom", "timeout", "stopped"),
    *("diverged", "complete", "superseded"),
)
FAILED = ("failed", "oom", "timeout")  # a run ended without a result; `ablate run` tries it again
WEIGHTS = {"final": "final-weights", "best": "best-weights"}  # [run] keep → kind of `artifact`
ACCEPTED = ("complete", "diverged")  # at most one attempt of a run has one of these


@dataclass(frozen=True)
class Candidate:
    """A run of a study that has no result yet and that nobody trains.

    Attributes:
        run_id: Row of the table `run`.
        run: What to train.
        flops: Floating-point operations of its training; None if unknown.
        cell: Label of a cell that it belongs to.
        role: "compare", "tune" or "pretrain".
        failures: Attempts by this owner in which it failed by itself.
        losses: Attempts by this owner that lost their worker or ran out of memory.
        checkpoint: Whether an attempt left a checkpoint.
        parent: Status of its parent run, "planned" where that is complete but its weights are
            missing; "" if it has none.
    """

    run_id: int
    run: Run
    flops: float | None
    cell: str
    role: str
    failures: int
    losses: int
    checkpoint: bool
    parent: str

    @property
    def can_start(self) -> bool:
        """Whether it has no parent, or its parent has what it starts from."""
        return self.parent in ("", "complete")


@dataclass(frozen=True)
class Claim:
    """A run to train, and the attempt that trains it.

    Attributes:
        attempt_id: Row of the table `attempt`.
        run_id: Row of the table `run`.
        n: Number of the attempt among those of its run, from 1.
        run: What to train.
        journal: File that the worker writes.
        evaluation: How to measure it: the study's evaluation now, whatever it was when the plan was
            made.
    """

    attempt_id: int
    run_id: int
    n: int
    run: Run
    journal: Path
    evaluation: Evaluation
