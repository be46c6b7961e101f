"""The learning rate of each group: which rates are tried next, by Optuna, and which is chosen."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ablate.kinds import Run
from ablate.plan import Decision, Plan
from ablate.plan.tuning import deciding, on_validation, seeds
from ablate.store import Database, decisions
from ablate.study import Study, Tune
from ablate.tune.evidence import OUTCOMES, Stored, question_hash

if TYPE_CHECKING:
    import optuna

RULE = "fitted curve"  # part of the question: a decision by another rule is made anew
LEARNT = 0.99  # of the loss of token frequencies: a higher loss shows that a rate trains nothing
HIGHER = 1.01  # of the same: a higher loss has not even come down to it
FINEST = 8  # a rate may be chosen at each of so many parts of a step


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
        asked = [*dict.fromkeys([tune.metric, study.metric])]
        cell, run = group.representative, of_cell[group.representative]
        # the group without its rate; a decision holds as long as this is the same
        rate = 1.0 if tune.field == "lr" else tune.low
        key = run.with_(seed=None, **{tune.field: rate}).key
        ladder = tune.low, tune.high, tune.points
        question = question_hash(study, asked, RULE, *ladder, seeds(study), key)
        old = stored.get((cell, tune.field))
        shared = {"group": group.label, "cells": list(group.cells)}
        if old and old.evidence.get(decisions.BASIS) == question:
            decision = replace(old, evidence={**old.evidence, **shared})
            found.known.append(decision)
            if decision != old:
                found.new.append(decision)  # other cells share the rate now
            found.tried[cell] = old.evidence["rates"]
            continue
        keys = _keys(tune, tuple(seeds(study)), run)
        values = _by_rate(keys, db, deciding(study, run))
        outcomes = values
        if len(asked) > 1:
            outcomes = _by_rate(keys, db, on_validation(study.metric, run))
            values = {lr: each for lr, each in values.items() if lr in outcomes}
        if not values:
            continue  # the ladder is next
        shares = {} if study.own else _of_frequencies(db, keys, values)
        costs = {lr: _costs(each, tune.goal) for lr, each in values.items()}
        alike = {lr for lr, share in shares.items() if LEARNT <= share <= HIGHER}
        # above such a rate a higher loss is not that of a rate that is too low
        alike |= {
            lr for lr, share in shares.items() if share > HIGHER and lr > min(alike, default=lr)
        }
        result = search(tune, costs.get, alike)
        found.tried[cell] = result.rates
        if result.best is not None:
            evidence = {
                decisions.BASIS: question,
                **shared,
                **_evidence(study, tune, run, result, values),
                "trains": any(
                    all(map(math.isfinite, values[lr])) and shares.get(lr, 0.0) < LEARNT
                    for lr in result.rates
                ),
            }
            if len(asked) > 1:
                evidence[OUTCOMES] = _by_seed(outcomes, result.rates)
            found.new.append(Decision(cell, tune.field, result.best, evidence))
    return found


def _evidence(
    study: Study, tune: Tune, run: Run, result: Search, values: Mapping[float, Sequence[float]]
) -> dict[str, Any]:
    """What a decision rests on, as JSON values."""
    sign = 1 if tune.goal == "min" else -1
    return {
        "metric": deciding(study, run),
        "goal": tune.goal,
        "seeds": seeds(study),
        "ladder": tune.ladder,
        "rates": result.rates,
        "values": _by_seed(values, result.rates),
        # of the fitted curve at the chosen rate; null where all diverged
        **({"step": _step(tune)} if tune.whole else {}),
        "fitted": None if result.cost is None else sign * result.cost,
        "at_edge": result.at_edge,
        "near_cliff": result.near_cliff,
        "left_range": not tune.ladder[0] <= result.rates[0] <= result.rates[-1] <= tune.ladder[-1],
    }


def _by_seed(
    values: Mapping[float, Sequence[float]], rates: Sequence[float]
) -> list[list[float | None]]:
    """A list for each seed, of a value for each rate; None: diverged."""
    return [
        [one if math.isfinite(one) else None for one in of_seed]
        for of_seed in zip(*(values[lr] for lr in rates), strict=True)
    ]


@functools.lru_cache(maxsize=1 << 12)
def _keys(tune: Tune, own_seeds: tuple[int, ...], run: Run) -> Mapping[float, Sequence[str]]:
    """Rate → keys of its runs, one a tuning seed, of all rates that a search may try.

    Kept, as every look at the results asks for them.
    """
    quarters = range(-4 * tune.down, 4 * (tune.points - 1 + tune.up) + 1)
    return {
        lr: [run.with_(seed=seed, **{tune.field: lr}).key for seed in own_seeds]
        for lr in (tune.rate(quarter / 4) for quarter in quarters)
    }


def _by_rate(
    keys: Mapping[float, Sequence[str]], db: Database, metric: str
) -> dict[float, list[float]]:
    """Rate → metric of each tuning seed, of the rates whose runs all have a result.

    NaN for a run that diverged, or failed twice where another one is complete: a script may stop
    at a NaN, or at a value that it does not take.
    """
    every = [key for each in keys.values() for key in each]
    values = decisions.values(db, every, metric)
    if any(map(math.isfinite, values.values())):
        values |= dict.fromkeys(decisions.failed_twice(db, every), math.nan)
    return {
        lr: [values[key] for key in each]
        for lr, each in keys.items()
        if all(key in values for key in each)
    }


def _costs(values: Sequence[float], goal: str) -> list[float]:
    """What the search minimises; inf where a run diverged."""
    sign = 1 if goal == "min" else -1
    return [sign * value if math.isfinite(value) else math.inf for value in values]


def _of_frequencies(
    db: Database, keys: Mapping[float, Sequence[str]], values: Mapping[float, Sequence[float]]
) -> dict[float, float]:
    """Return rate → mean loss, as a share of the loss of token frequencies, where both are known.

    Rates at which a run diverged are left out.
    """
    finite = [lr for lr in values if all(map(math.isfinite, values[lr]))]
    every = [key for lr in finite for key in keys[lr]]
    losses = decisions.values(db, every, "loss")
    unigram = decisions.finals(db, every, "unigram_loss")
    return {
        lr: fmean(map(losses.__getitem__, keys[lr])) / fmean(map(unigram.__getitem__, keys[lr]))
        for lr in finite
        if losses.keys() >= {*keys[lr]} <= unigram.keys()
    }


@dataclass(frozen=True)
class Search:
    """The state of the search for a group's learning rate.

    Attributes:
        rates: Rates that were tried, or are to be tried next, from the lowest.
        best: The chosen rate, at or between rates tried; None while some of them have no result.
        cost: Cost of the fitted curve there, or of its runs where no rate trains anything; None
            where a run diverged at every rate.
        at_edge: Whether no rate was tried below, or none above, the chosen one or the best of those
            tried.
        near_cliff: Whether a rate within a step of the best was next to a cliff.
    """

    rates: tuple[float, ...]
    best: float | None
    cost: float | None = None
    at_edge: bool = False
    near_cliff: bool = False


def search(
    tune: Tune, costs: Callable[[float], Sequence[float] | None], alike: Collection[float] = ()
) -> Search:
    """Return the state of a search, replayed from its beginning.

    The search tries the ladder; while the rate of the lowest mean cost is at an end, one step
    beyond that end, at most `tune.down` or `tune.up` times; then two rates half a step around the
    best; and, where a cliff is next to them, two a quarter of a step around the best. The chosen
    rate is that of the lowest cost on a curve fitted to all seeds and rates (see
    `ablate.stats.selection`). While a run diverged, or all losses are that of token frequencies, at
    every rate tried, the search goes down instead, as far as it may, and then chooses the lowest
    rate. The same costs give the same search.

    Args:
        tune: The study's [tune].
        costs: Learning rate → what is minimised, of each seed: inf where a run diverged, None
            without results.
        alike: Rates whose losses are that of token frequencies, so that their order is noise.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize")
    low, high = 0, tune.points - 1
    ends = optuna.distributions.FloatDistribution(
        tune.rate(low - tune.down), tune.rate(high + tune.up), log=True
    )
    rungs: Sequence[float] = range(tune.points)
    nearer = [0.5, 0.25]
    near_cliff = False
    known: set[float] = set()
    while True:
        # between neighbouring whole numbers there is none
        rungs = [rung for rung in rungs if tune.rate(rung) not in known]
        known |= set(map(tune.rate, rungs))
        for rung in rungs:
            study.enqueue_trial({"lr": tune.rate(rung)}, user_attrs={"rung": rung})
        for trial in [study.ask({"lr": ends}) for _ in rungs]:
            if (values := costs(trial.params["lr"])) is not None:
                study.tell(trial, fmean(values))
        trials = study.get_trials(deepcopy=False)
        rates = tuple(sorted(trial.params["lr"] for trial in trials))
        if any(trial.value is None for trial in trials):
            return Search(rates, None)
        flat = all(trial.value == math.inf or trial.params["lr"] in alike for trial in trials)
        best = min(trials, key=functools.partial(_order, flat))
        rung, lr = best.user_attrs["rung"], best.params["lr"]
        if rung == low > -tune.down:
            rungs = [low := low - 1]
        elif rung == high < tune.points - 1 + tune.up:
            rungs = [high := high + 1]
        elif flat:
            cost = None if best.value == math.inf else best.value
            return Search(rates, lr, cost, lr in (rates[0], rates[-1]))
        else:
            if len(nearer) < 2:
                chosen, cost, at_cliff = _fitted(tune, rates, costs, rung)
                near_cliff |= at_cliff
                if not nearer or not at_cliff:
                    at_edge = not rates[0] < min(chosen, lr) <= max(chosen, lr) < rates[-1]
                    return Search(rates, chosen, cost, at_edge, near_cliff)
            off = nearer.pop(0)
            rungs = [near for near in (rung - off, rung + off) if low < near < high]


def _fitted(
    tune: Tune,
    rates: Sequence[float],
    costs: Callable[[float], Sequence[float] | None],
    rung: float,
) -> tuple[float, float, bool]:
    """Return the rate of the lowest fitted cost, that cost, and whether a cliff is near."""
    import numpy as np

    from ablate.stats import selection  # loads scipy, which no study needs before its ladder ended

    table = np.array([costs(lr) for lr in rates], float).T
    curve = selection.fit(np.log(rates), table, _step(tune))
    parts = range(round((rung - 1) * FINEST), round((rung + 1) * FINEST) + 1)
    candidates = [tune.rate(part / FINEST) for part in parts]
    at = int(selection.choose(curve, np.log(candidates)))
    cost = float(selection.expected(curve, np.log(candidates))[at])
    return candidates[at], cost, bool(selection.near_cliff(curve))


def _step(tune: Tune) -> float:
    """Return the log ratio of neighbouring rates of the ladder, before they are rounded."""
    return math.log(tune.high / tune.low) / (tune.points - 1)


def _order(flat: bool, trial: optuna.trial.FrozenTrial) -> tuple[float, float]:
    assert trial.value is not None
    return 0.0 if flat else trial.value, trial.params["lr"]


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
