"""Runs a study that learns while it runs: learning rates from a ladder, the number of seeds from a
pilot.

Plan with what is decided, train what is missing of it, decide what the results allow, and again,
until nothing is missing. A decision is stored before any run uses it. The store is the only record:
all is worked out from it anew every time, so that a study that was stopped at any point goes on,
and decides the same.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ablate import launch, metrics
from ablate.config import RunConfig
from ablate.plan import Decision, Plan, plan
from ablate.plan.tuning import WIDEST, ladder, rate, seeds
from ablate.store import Database, decisions, status
from ablate.store.evaluated import measure
from ablate.store.register import register
from ablate.study import Study, Tune
from ablate.tune.rates import search, sensitivity

if TYPE_CHECKING:
    from rich.console import Console

    from ablate.launch.devices import Device

__all__ = ["Learnt", "advance", "learn", "run_study", "search", "sensitivity"]

Stored = Mapping[tuple[str, str], Decision]  # by cell and name


@dataclass(frozen=True)
class Learnt:
    """What a study has learnt so far."""

    plan: Plan  # with the decisions in force
    new: tuple[Decision, ...]  # what the stored results allow to decide beyond those
    void: tuple[Decision, ...]  # stored decisions on questions that the study no longer asks


def run_study(
    study: Study,
    db: Database,
    *,
    places: Sequence[Device],
    fail_fast: bool,
    console: Console,
    meanwhile: Callable[[], None] | None = None,
) -> launch.Outcome:
    """Train what is missing of a study on some devices, stage after stage. For the options see
    `ablate.launch.run`.
    """

    def say(text: str) -> None:
        console.print(f"{study.name}: {text}", markup=False, highlight=False, soft_wrap=True)

    def following() -> Plan:
        return advance(study, db, say)

    outcome = launch.run(
        following(),
        db,
        then=following,
        meanwhile=meanwhile,
        places=places,
        fail_fast=fail_fast,
        console=console,
    )
    if outcome.exit_code < 128:
        for sentence in status.waiting(db, study.name):
            say(sentence)
    return outcome


def advance(study: Study, db: Database, say: Callable[[str], None]) -> Plan:
    """Decide what the stored results allow, and store it; the plan that follows."""
    while True:
        study_id = register(
            db, learn(study, db).plan
        )  # takes back results that were measured otherwise than the study says
        learnt = learn(study, db)
        if not learnt.new and not learnt.void:
            return learnt.plan
        decisions.write(db, study_id, learnt.new, learnt.void)
        for decision in learnt.new:
            say(_told(decision))


def learn(study: Study, db: Database) -> Learnt:
    """Work out how far a study has come. Reads only."""
    stored = {
        (decision.cell, decision.name): decision for decision in decisions.read(db, study.name)
    }
    known, new, tried = _rates(plan(study), db, stored)
    made = plan(study, known, tried)
    if study.two_stage:
        counts, more = _seeds(made, db, stored)
        known, new = [*known, *counts], [*new, *more]
        made = plan(study, known, tried)
    return Learnt(
        made, tuple(new), tuple(decision for decision in stored.values() if decision not in known)
    )


def _told(decision: Decision) -> str:
    evidence = decision.evidence
    if decision.name == "lr":
        tried = f"{decision.value:g}, the best of {len(evidence['rates'])}"
        if not any(value is not None for value in evidence["values"]):
            tried = (
                f"{decision.value:g}, the lowest of {len(evidence['rates'])}, at all of which it"
                " diverged"
            )
        elif evidence["at_edge"]:
            tried += ", at the edge of what was tried"
        return f"learning rate of {evidence['group']}: {tried}"
    wanted = max((count for count in evidence["wanted"].values() if count), default=0)
    capped = f", though the resolution asks for {wanted}" if evidence["capped"] else ""
    return (
        f"{evidence['stratum'] or 'all cells'}: {decision.value:g} seeds after a pilot of"
        f" {len(evidence['pilot'])}{capped}"
    )


def _basis(study: Study, *question: Any) -> str:
    """A hash of what is decided on, and by which number: when that changes, an earlier decision is
    void.
    """
    measured = measure(study.evaluation)
    by = study.metric, measured.get(metrics.final(study.metric)[0], measured["loss"])
    return hashlib.sha256(json.dumps([by, question]).encode()).hexdigest()


# -- learning rates --------------------------------------------------------------------------------


def _rates(
    made: Plan, db: Database, stored: Stored
) -> tuple[list[Decision], list[Decision], dict[str, Sequence[float]]]:
    """The groups' rates that are stored, those that can be chosen now, and per group all that were
    tried or come next.
    """
    study, tune = made.study, made.study.tune
    known, new = [], []
    tried: dict[str, Sequence[float]] = {}
    configs = {cell.label: cell.config for cell in made.cells}
    for group in made.groups:
        assert tune
        cell, config = group.representative, configs[group.representative]
        key = config.model_copy(update={"lr": 1.0}).key
        basis = _basis(study, tune.low, tune.high, tune.points, seeds(study), key)
        old = stored.get((cell, "lr"))
        shared = {"group": group.label, "cells": list(group.cells)}
        if old and old.evidence.get(decisions.BASIS) == basis:
            held = replace(old, evidence={**old.evidence, **shared})
            known.append(held)
            new += [held] if held != old else []  # other cells share the rate now
            tried[cell] = old.evidence["rates"]
            continue
        if not (values := _by_rate(study, tune, config, db)):
            continue  # the ladder is next
        found = search(tune, {lr: _cost(value, study.goal) for lr, value in values.items()}.get)
        tried[cell] = found.rates
        if found.best is not None:
            evidence = {
                decisions.BASIS: basis,
                **shared,
                "metric": study.metric,
                "seeds": seeds(study),
                "ladder": ladder(tune),
                "rates": found.rates,
                "values": [
                    values[lr] if math.isfinite(values[lr]) else None for lr in found.rates
                ],  # null: diverged
                "at_edge": found.at_edge,
            }
            new.append(Decision(cell, "lr", found.best, evidence))
    return known, new, tried


def _by_rate(study: Study, tune: Tune, config: RunConfig, db: Database) -> dict[float, float]:
    """Rate → metric, the mean over the tuning seeds, of the rates whose runs all have their result;
    NaN where one diverged.
    """
    halves = range(-2 * WIDEST, 2 * (tune.points + WIDEST) - 1)
    keys = {
        lr: [config.model_copy(update={"lr": lr, "seed": seed}).key for seed in seeds(study)]
        for lr in (rate(tune, half / 2) for half in halves)
    }
    values = decisions.values(db, [key for each in keys.values() for key in each], study.metric)
    return {
        lr: fmean(values[key] for key in each)
        for lr, each in keys.items()
        if all(key in values for key in each)
    }


def _cost(value: float, goal: str) -> float:
    """What the search minimises: inf for a rate at which a run diverged."""
    if not math.isfinite(value):
        return math.inf
    return value if goal == "min" else -value


# -- seeds -----------------------------------------------------------------------------------------


def _seeds(made: Plan, db: Database, stored: Stored) -> tuple[list[Decision], list[Decision]]:
    """How many seeds each stratum gets, as stored, and where that can be decided now. Strata in
    which a rate waits are left.
    """
    study, two_stage = made.study, made.study.two_stage
    assert two_stage
    keys = {
        (run.cell, run.config.seed): run.config.key for run in made.runs if run.role == "compare"
    }
    values = decisions.values(db, list(keys.values()), study.metric)
    known, new = [], []
    for stratum, cells in _strata(made).items():
        pilot = [keys.get((cell, seed)) for cell in cells for seed in study.seeds]
        if None in pilot:
            continue
        basis = _basis(study, two_stage.resolution, two_stage.most, pilot)
        old = stored.get((cells[0], "seeds"))
        if old and old.evidence.get(decisions.BASIS) == basis:
            known.append(old)
        elif all(key in values for key in pilot):
            wanted = {
                contrast.cell: _wanted(
                    [
                        values[keys[contrast.cell, seed]] - values[keys[contrast.baseline, seed]]
                        for seed in study.seeds
                    ],
                    two_stage.resolution,
                )
                for contrast in made.contrasts
                if contrast.stratum == stratum
            }
            most = max((count for count in wanted.values() if count), default=len(study.seeds))
            assert most >= len(study.seeds), wanted
            evidence = {
                decisions.BASIS: basis,
                "stratum": stratum,
                "metric": study.metric,
                "pilot": study.seeds,
                "resolution": two_stage.resolution,
                "wanted": (
                    wanted
                ),  # by cell, before the cap; null: too few whole pairs to know its noise
                "capped": most > two_stage.most,
            }
            new.append(Decision(cells[0], "seeds", min(most, two_stage.most), evidence))
    return known, new


def _strata(made: Plan) -> dict[str, list[str]]:
    """Stratum → its cells, the baseline first."""
    strata: dict[str, list[str]] = {}
    baselines = {contrast.baseline for contrast in made.contrasts}
    for cell in sorted(made.cells, key=lambda cell: cell.label not in baselines):
        strata.setdefault(cell.stratum, []).append(cell.label)
    return strata


def _wanted(differences: list[float], resolution: float) -> int | None:
    """Seeds that a contrast asks for: its pairs, and those that the pilot lost, which a mean has no
    use for.

    One that has lost all pairs but one asks for none: more seeds would be lost alike.
    """
    from ablate import stats  # scipy, of which no study has a need before its pilot has ended

    whole = [difference for difference in differences if math.isfinite(difference)]
    return (
        stats.two_stage(whole, resolution) + len(differences) - len(whole)
        if len(whole) > 1
        else None
    )
