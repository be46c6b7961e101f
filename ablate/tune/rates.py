"""Which learning rate is tried next and which is the best, by Optuna; how much a model depends on
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ablate.plan.tuning import WIDEST, rate
from ablate.study import Tune

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Search:
    """How far the search for a group's learning rate has come."""

    rates: tuple[float, ...]  # tried, or to be tried next; from the lowest
    best: float | None  # None while some of them have no result
    at_edge: bool = False  # the best is the lowest or highest of all that were tried


def search(tune: Tune, cost: Callable[[float], float | None]) -> Search:
    """Go through the ladder; while the best rate is at its edge, one step further (at most
    `WIDEST`); then once around the best.

    cost: of a learning rate, the smaller the better, inf where it diverged, None where there is no
    result yet. Of equal costs the lowest rate is the best. The same costs give the same search: it
    is gone through anew at every call.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize")
    low, high = 0, tune.points - 1
    ends = optuna.distributions.FloatDistribution(
        rate(tune, low - WIDEST), rate(tune, high + WIDEST), log=True
    )
    places: Sequence[float] = range(tune.points)
    refined = False
    while True:
        for place in places:
            study.enqueue_trial({"lr": rate(tune, place)}, user_attrs={"place": place})
        for trial in [study.ask({"lr": ends}) for _ in places]:
            if (value := cost(trial.params["lr"])) is not None:
                study.tell(trial, value)
        trials = study.get_trials(deepcopy=False)
        rates = tuple(sorted(trial.params["lr"] for trial in trials))
        if any(trial.value is None for trial in trials):
            return Search(rates, None)
        best = min(trials, key=_order)
        place = best.user_attrs["place"]
        if refined:
            return Search(rates, best.params["lr"], place in (low, high))
        if place == low > -WIDEST:
            places = [low := low - 1]
        elif place == high < tune.points - 1 + WIDEST:
            places = [high := high + 1]
        else:
            places = [near for near in (place - 0.5, place + 0.5) if low < near < high]
            refined = True


def _order(trial: optuna.trial.FrozenTrial) -> tuple[float, float]:
    assert trial.value is not None
    return trial.value, trial.params["lr"]


def sensitivity(losses: Sequence[float], ceiling: float) -> float:
    """Learning-rate sensitivity (Wortsman et al. 2023, arXiv:2309.14322): by how much a rate of the
    range misses the best one.

    losses: final losses of one model at rates that are evenly spaced on a log scale, NaN or inf
    where it diverged. ceiling: the loss before training, which stands for all that is higher. The
    mean of min(loss, ceiling) − the least of them, in the unit of the losses; NaN where none is
    finite.
    """
    finite = [math.isfinite(loss) for loss in losses]
    if not any(finite):
        return math.nan
    capped = [
        min(loss, ceiling) if known else ceiling for loss, known in zip(losses, finite, strict=True)
    ]
    return math.fsum(capped) / len(capped) - min(capped)
