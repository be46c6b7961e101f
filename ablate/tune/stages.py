"""The stages of a study: decide what the results allow, then name what can be trained now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ablate.plan import Decision, Plan, Tried, decide
from ablate.plan.tuning import Tuning
from ablate.store import Database, decisions
from ablate.store.register import as_measured, register
from ablate.study import tuned
from ablate.tune.evidence import OUTCOMES, Stored
from ablate.tune.rates import decide_rates
from ablate.tune.seeds import decide_seeds


@dataclass(frozen=True)
class Stage:
    """The part of a study that can be trained now.

    Attributes:
        plan: The plan with all decisions in force; its runs are what this stage trains.
        study_id: The study in the database, where this plan is registered.
        decided: What was decided, and stored, since the stage before.
    """

    plan: Plan
    study_id: int
    decided: tuple[Decision, ...]


@dataclass(frozen=True)
class Learnt:
    """What the results of a study say.

    Attributes:
        plan: The plan with the stored decisions that hold.
        new: Decisions that the results allow beyond those.
        void: Stored decisions on questions that the study no longer asks.
    """

    plan: Plan
    new: tuple[Decision, ...]
    void: tuple[Decision, ...]


def stages(plan: Plan, db: Database, *, replace: bool = False) -> Iterator[Stage]:
    """Yield the stages of a study. Ask for the next one when the last one is trained.

    The last stage adds no run to the one before it; it comes only if it has decided something.

    Args:
        plan: The study's plan, without decisions.
        db: The database that holds its results; plans and decisions are written to it.
        replace: Whether it may drop the results of another study of its name.

    Raises:
        AblateError: See `ablate.store.register.register`.
    """
    results = _Results(plan, db, replace)
    trained = None
    while True:
        stage = results.next_stage()
        if stage.plan.runs == trained and not stage.decided:
            return
        yield stage
        trained = stage.plan.runs


def learn(plan: Plan, db: Database) -> Learnt:
    """Return how far a study has come. Reads only.

    Args:
        plan: The study's plan, without decisions.
        db: The database that holds its results.
    """
    return _Results(plan, db).learn()


class _Results:
    """The results of one study. Derives a plan once for each set of decisions."""

    def __init__(self, base: Plan, db: Database, replace: bool = False):
        self._base, self._db, self._replace = as_measured(db, base), db, replace
        self._known: list[Decision] = []
        self._tried: Tried = {}
        self._plan = self._base
        self._registered: Plan | None = None
        self._study_id = 0

    def next_stage(self) -> Stage:
        decided: list[Decision] = []
        while True:
            learnt = self.learn()
            if learnt.plan is not self._registered:
                # Registering invalidates results that were measured in another way than the study
                # says now, so decisions must come after it.
                self._study_id = register(self._db, learnt.plan, replace=self._replace)
                self._registered = learnt.plan
            elif learnt.new or learnt.void:
                decisions.write(self._db, self._study_id, learnt.new, learnt.void)
                decided += learnt.new
            else:
                return Stage(learnt.plan, self._study_id, tuple(decided))

    def learn(self) -> Learnt:
        study = self._base.study
        stored: Stored = {
            (decision.cell, decision.name): decision
            for decision in decisions.read(self._db, study.name)
        }
        rates = decide_rates(self._base, self._db, stored)
        known, new = rates.known, rates.new
        if study.two_stage:
            by_cell = {decision.cell: decision.value for decision in known}
            tuning = Tuning(study, self._base.groups, by_cell, rates.tried)
            counts, more = decide_seeds(self._base, tuning, self._db, stored)
            known, new = [*known, *counts], [*new, *more]
        void = [decision for decision in stored.values() if decision not in known]
        if (known, rates.tried) != (self._known, self._tried):
            self._known, self._tried = known, rates.tried
            self._plan = decide(self._base, known, rates.tried)
        return Learnt(self._plan, tuple(new), tuple(void))


def describe(decision: Decision) -> str:
    """Return a sentence on a decision, without its full stop."""
    evidence = decision.evidence
    if decision.name != "seeds":
        what = tuned(decision.name)
        if OUTCOMES in evidence:
            what += f", by {evidence['metric']},"
        return f"{what} of {evidence['group']}: {_rate(decision, evidence)}"
    needed = max((count for count in evidence["wanted"].values() if count), default=0)
    capped = f", though the resolution asks for {needed}" if evidence["capped"] else ""
    return (
        f"{evidence['stratum'] or 'all cells'}: {decision.value:g} seeds after a pilot of"
        f" {len(evidence['pilot'])}{capped}"
    )


def _rate(decision: Decision, evidence: Mapping[str, Any]) -> str:
    """What was chosen among which values."""
    value, rates, ladder = decision.value, evidence["rates"], evidence["ladder"]
    name = "rates" if decision.name == "lr" else "values"
    if evidence["fitted"] is None:
        text = f"{value:g}, the lowest of {len(rates)}, at each of which a run diverged"
    elif not evidence["trains"]:
        text = f"{value:g}, but none of {len(rates)} {name} trains it"
        text += ": no loss is below unigram_loss"
    else:
        seeds = f" on {len(evidence['seeds'])} seeds" if len(evidence["seeds"]) > 1 else ""
        edge = f", at the edge of the {name} tried" if evidence["at_edge"] else ""
        text = f"{value:g}, the best on a curve of {len(rates)} {name}{seeds}{edge}"
    if evidence["left_range"]:
        text += (
            f"; {name} from {rates[0]:g} to {rates[-1]:g} were tried, beyond the range of the study"
            f" file ({ladder[0]:g} to {ladder[-1]:g})"
        )
    return text
