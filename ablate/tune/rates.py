"""The learning rate of each group: which rates are tried next, by Optuna, and which is the best."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from ablate.kinds import Run
from ablate.plan import Decision, Plan
from ablate.plan.tuning import WIDEST, ladder, rate, seeds
from ablate.store import Database, decisions
from ablate.study import Study, Tune
from ablate.tune.evidence import Stored, question_hash

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Rates:
    """The learning rates of a study's groups.

    Attributes:
        known: Stored decisions that hold.
        new: Decisions that the results allow now.
        tried: Representative of a group → rates that were tried, or come next.
    """

    known: list[Decision]
    new: list[Decision]
    tried: dict[str, Sequence[float]]


def decide_rates(plan: Plan, db: Database, stored: Stored) -> Rates:
    """Return the groups' learning rates as far as the results decide them.

    Args:
        plan: The study's plan, without decisions.
        db: The database that holds its results.
        stored: Stored decisions, by cell and name.
    """
    study, tune = plan.study, plan.study.tune
    found = Rates([], [], {})
    of_cell = {cell.label: cell.run for cell in plan.cells}
    for group in plan.groups:
        assert tune
        cell, run = group.representative, of_cell[group.representative]
        key = run.with_(lr=1.0).key
        question = question_hash(study, tune.low, tune.high, tune.points, seeds(study), key)
        old = stored.get((cell, "lr"))
        shared = {"group": group.label, "cells": list(group.cells)}
        if old and old.evidence.get(decisions.BASIS) == question:
            decision = replace(old, evidence={**old.evidence, **shared})
            found.known.append(decision)
            if decision != old:
                found.new.append(decision)  # other cells share the rate now
            found.tried[cell] = old.evidence["rates"]
            continue
        if not (values := _by_rate(study, tune, run, db)):
            continue  # the ladder is next
        result = search(tune, {lr: _cost(value, study.goal) for lr, value in values.items()}.get)
        found.tried[cell] = result.rates
        if result.best is not None:
            evidence = {
                decisions.BASIS: question,
                **shared,
                "metric": study.metric,
                "seeds": seeds(study),
                "ladder": ladder(tune),
                "rates": result.rates,
                # null: diverged
                "values": [
                    values[lr] if math.isfinite(values[lr]) else None for lr in result.rates
                ],
                "at_edge": result.at_edge,
            }
            found.new.append(Decision(cell, "lr", result.best, evidence))
    return found


def _by_rate(study: Study, tune: Tune, run: Run, db: Database) -> dict[float, float]:
    """Rate → metric, the mean over the tuning seeds, of the rates whose runs all have a result.

    NaN for a rate at which a run diverged.
    """
    halves = range(-2 * WIDEST, 2 * (tune.points + WIDEST) - 1)
    keys = {
        lr: [run.with_(lr=lr, seed=seed).key for seed in seeds(study)]
        for lr in (rate(tune, half / 2) for half in halves)
    }
    values = decisions.values(db, [key for each in keys.values() for key in each], study.metric)
    return {
        lr: fmean(values[key] for key in each)
        for lr, each in keys.items()
        if all(key in values for key in each)
    }


def _cost(value: float, goal: str) -> float:
    """What the search minimises; inf for a rate at which a run diverged."""
    if not math.isfinite(value):
        return math.inf
    return value if goal == "min" else -value


@dataclass(frozen=True)
class Search:
    """The state of the search for a group's learning rate.

    Attributes:
        rates: Rates that were tried, or are to be tried next, from the lowest.
        best: The best of them; None while some of them have no result.
        at_edge: Whether the best is the lowest or highest rate tried.
    """

    rates: tuple[float, ...]
    best: float | None
    at_edge: bool = False


def search(tune: Tune, cost: Callable[[float], float | None]) -> Search:
    """Return the state of a search, replayed from its beginning.

    The search tries the ladder; while the best rate is at an end, one step beyond that end, at
    most `WIDEST` times; then two rates around the best. Of equal costs the lowest rate is the
    best. The same costs give the same search.

    Args:
        tune: The study's [tune].
        cost: Learning rate → what is minimised: inf where a run diverged, None without a result.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize")
    low, high = 0, tune.points - 1
    ends = optuna.distributions.FloatDistribution(
        rate(tune, low - WIDEST), rate(tune, high + WIDEST), log=True
    )
    rungs: Sequence[float] = range(tune.points)
    refined = False
    while True:
        for rung in rungs:
            study.enqueue_trial({"lr": rate(tune, rung)}, user_attrs={"rung": rung})
        for trial in [study.ask({"lr": ends}) for _ in rungs]:
            if (value := cost(trial.params["lr"])) is not None:
                study.tell(trial, value)
        trials = study.get_trials(deepcopy=False)
        rates = tuple(sorted(trial.params["lr"] for trial in trials))
        if any(trial.value is None for trial in trials):
            return Search(rates, None)
        best = min(trials, key=_order)
        rung = best.user_attrs["rung"]
        if refined:
            return Search(rates, best.params["lr"], rung in (low, high))
        if rung == low > -WIDEST:
            rungs = [low := low - 1]
        elif rung == high < tune.points - 1 + WIDEST:
            rungs = [high := high + 1]
        else:
            rungs = [near for near in (rung - 0.5, rung + 0.5) if low < near < high]
            refined = True


def _order(trial: optuna.trial.FrozenTrial) -> tuple[float, float]:
    assert trial.value is not None
    return trial.value, trial.params["lr"]


def sensitivity(losses: Sequence[float], ceiling: float) -> float:
    """Return the learning-rate sensitivity of a model, in the unit of its losses.

    The mean of min(loss, ceiling) over the rates, less the smallest of them; NaN if no loss is
    finite. Source: Wortsman et al. 2023, arXiv:2309.14322, section 2.2.

    Args:
        losses: Final losses at rates evenly spaced on a log scale; NaN or inf where it diverged.
        ceiling: The loss before training, which replaces any higher loss.
    """
    finite = [math.isfinite(loss) for loss in losses]
    if not any(finite):
        return math.nan
    capped = [
        min(loss, ceiling) if known else ceiling for loss, known in zip(losses, finite, strict=True)
    ]
    return math.fsum(capped) / len(capped) - min(capped)
