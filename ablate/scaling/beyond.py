"""Predictions at further points, with intervals from what predicting beyond the runs has cost.

Beyond the runs an interval of the constants is too narrow: the form itself may change. Here the
fit is repeated without the largest sizes and budgets in turn, and predicts them; other forms are
fitted as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ablate.errors import AblateError
from ablate.scaling.bootstrap import Interval, estimate, limits
from ablate.scaling.design import demand
from ablate.scaling.fit import Fit
from ablate.scaling.forms import STEEPEST, Form, Problem, best_split, levels
from ablate.scaling.shared import CLIPPED, new_errors
from ablate.scaling.solve import Design, Floats, descend
from ablate.units import listed

# Candidates of the drift: by what share a predicted fall in loss is off, for each factor of e in
# distance. Their prior is half of a t distribution. Of laws that differ a little from the form (a
# broken law, embeddings counted as parameters, rates tuned worse with size) it is 0.03 to 0.12.
DRIFTS = np.concatenate([[0.0], np.geomspace(0.01, 2.0, 24)])
PRIOR_SCALE, PRIOR_DOF = 0.07, 3.0
REPLICATES = 100  # of a test
COUNTS = 0.5  # of a test: tests have runs in common, and reach less far than predictions
TESTS = 2  # the most for one resource
FEW_LEVELS = 8  # of a resource that are left out one after another
PARTS = (0.8, 0.6)  # of a longer ladder's range in logarithms, what is fitted
# of a further term: starts of its exponents, its share of the lowest loss, the fewest levels of
# its resources
STARTS, SMALL, LEAST_LEVELS = (0.1, 0.4, 1.0), 0.05, 5
LEAST_WEIGHT = 0.01  # of another form
OUTSIDE = 1.005  # ratio of a point to the runs: a smaller one is 1 in three digits


@dataclass(frozen=True)
class Backtest:
    """A fit without the largest values of a resource, and how it predicted those runs."""

    what: str  # "N from 1e+09 on"
    miss: float  # root mean square of the misses in log loss
    expected: float  # the same, as the fit expects from its own uncertainty and noise
    reach: float  # root mean square of `reach`


@dataclass(frozen=True)
class Rival:
    """Another form fitted to the same runs: a floor and terms, each of one resource or of two."""

    name: str
    terms: tuple[tuple[str, ...], ...]
    centre: dict[str, float]
    unit: float
    theta: Floats  # of a term its log scale at the centre, then an exponent for each resource
    weight: float = 1.0  # relative to the fitted form's 1

    def log_loss(self, columns: dict[str, Floats]) -> Floats:
        """Return the log loss at P points."""
        total = self.theta[0] * np.exp(self.unit)
        x = indicators(self.terms, self.centre, columns)
        return np.asarray(np.log(total + np.exp(x @ self.theta).sum(axis=0)))


def indicators(
    terms: tuple[tuple[str, ...], ...], centre: dict[str, float], columns: dict[str, Floats]
) -> Floats:
    """Return `Design.x` [T, P, K] of terms."""
    k, points = 1 + sum(1 + len(names) for names in terms), len(next(iter(columns.values())))
    x, at = np.zeros((len(terms), points, k)), 1
    for term, names in enumerate(terms):
        x[term, :, at] = 1
        for j, name in enumerate(names, at + 1):
            x[term, :, j] = centre[name] - np.log(columns[name])
        at += 1 + len(names)
    return x


@dataclass(frozen=True)
class Prediction:
    """The loss of a run at one point.

    Attributes:
        at: The point: n, d and c as far as the form has them.
        loss: With the 95% interval of a run's loss.
        out: Resource → how many times the largest run's.
        under: Resource → how many times smaller than the smallest run's. Within the runs all of
            `out` and `under` are at most 1.
    """

    at: dict[str, float]
    loss: Interval
    out: dict[str, float]
    under: dict[str, float]

    def __str__(self) -> str:
        where = ", ".join(f"{name.upper()} = {value:.3g}" for name, value in self.at.items())
        far = [
            f"{which} run {listed(times)}"
            for which, ratios in (
                ("beyond the largest", self.out),
                ("below the smallest", self.under),
            )
            if (
                times := [
                    f"{f:.3g} times in {name.upper()}" for name, f in ratios.items() if f > OUTSIDE
                ]
            )
        ]
        return f"{where}: loss {self.loss}, {'; '.join(far) or 'within the runs'}"


@dataclass(frozen=True)
class Outlook:
    """A fit with what predicting beyond its runs may cost."""

    fit: Fit
    tests: tuple[Backtest, ...]
    rivals: tuple[Rival, ...]
    drift: Floats  # probabilities of `DRIFTS`
    seed: int

    @staticmethod
    def of(fit: Fit, rng: np.random.Generator) -> Outlook:
        """Test the fit's predictions of its own largest runs, and fit other forms."""
        tests = tuple(_tests(fit, rng))
        return Outlook(fit, tests, tuple(_rivals(fit)), posterior(tests), int(rng.integers(2**63)))

    def predict(self, given: Mapping[str, float]) -> Prediction:
        """Predict the loss of a run.

        Args:
            given: Of "n", "d" and "c" what the form needs. L(N, D) takes any two, or "c" alone for
                the best split of a budget.

        Raises:
            AblateError: The form needs other resources.
        """
        fit, form = self.fit, self.fit.form
        at = point(fit, given)
        columns = {name: np.array([value]) for name, value in at.items()}
        rng = np.random.default_rng(self.seed)
        value = float(np.log(form.loss(fit.values, columns))[0])
        draws = np.log(form.loss(fit.replicates, columns)) + errors(fit, columns, rng)
        count = len(draws)
        weights = np.array([1.0, *(one.weight for one in self.rivals)])
        offsets = np.array([0.0, *(one.log_loss(columns)[0] - value for one in self.rivals)])
        form_of = rng.choice(len(weights), size=count, p=weights / weights.sum())
        drift = rng.choice(DRIFTS, size=count, p=self.drift)
        far = reach(fit.form, fit.values, fit.columns, columns)[0]
        draws = draws[:, 0] + offsets[form_of] + drift * far * rng.normal(size=count)
        lo, hi = limits(draws, fit.dof)
        runs = dict(fit.columns)
        if form.columns == ("n", "d"):
            runs["c"] = fit.budgets
        return Prediction(
            at,
            Interval(math.exp(value), math.exp(lo), math.exp(hi)),
            {name: one / float(runs[name].max()) for name, one in at.items()},
            {name: float(runs[name].min()) / one for name, one in at.items()},
        )

    def at(self, points: Sequence[Mapping[str, float]]) -> Forecast:
        """Predict the loss of a run at each of some points, given as for `predict`."""
        return Forecast(self, tuple(self.predict(given) for given in points))

    def cost(self) -> str:
        """Return one line on what predicting beyond the runs has cost."""
        mean = float(np.sqrt(self.drift @ DRIFTS**2))
        tested = "; ".join(
            f"{one.what} by {one.miss:.2%} ({one.expected:.2%} was expected)" for one in self.tests
        )
        tested = (
            f"Fitted without its largest runs, the curve misses them: {tested}."
            if tested
            else "The runs are too few to test such predictions."
        )
        others = [f"{one.name} ({one.weight / (1 + one.weight):.0%})" for one in self.rivals]
        text = (
            f"{tested} A predicted change of loss is taken to be off by about"
            f" {mean * math.log(2):.0%} of it for every doubling beyond the runs."
        )
        return text + (f" Other forms, with their weight: {listed(others)}." if others else "")


@dataclass(frozen=True)
class Forecast:
    """Predictions of one curve, and what they rest on."""

    outlook: Outlook
    points: tuple[Prediction, ...]


def check_point(form: Form, given: Mapping[str, float]) -> None:
    """Check that a form can predict the loss at a point.

    Raises:
        AblateError: It needs other resources; the message names them.
    """
    if form.columns == ("n", "d"):
        known = len(given) == 2 or given.keys() == {"c"}
    elif form.columns == ("c",):
        known = "c" in given or given.keys() == {"n", "d"}
    else:
        known = form.columns[0] in given
    if not known:
        needs = {"nd": "N and D, or C", "c": "C, or N and D"}.get(
            "".join(form.columns), form.columns[0].upper()
        )
        where = ",".join(f"{name.upper()}={value:g}" for name, value in given.items())
        raise AblateError(f"predict {where}: a prediction of {form.symbol} needs {needs}")


def point(fit: Fit, given: Mapping[str, float]) -> dict[str, float]:
    """Return the point of a prediction in the resources of the form, and C of L(N, D)."""
    form, cost = fit.form, fit.cost
    check_point(form, given)
    if form.columns != ("n", "d"):
        (name,) = form.columns
        if name in given:
            return {name: given[name]}
        return {"c": cost.k * given["n"] ** cost.gamma * given["d"]}
    if given.keys() == {"c"}:
        n, d, _ = best_split(fit.values, np.array([given["c"]]), cost)
        return {"n": float(n[0]), "d": float(d[0]), "c": given["c"]}
    size = given.get("n") or (given["c"] / given["d"] / cost.k) ** (1 / cost.gamma)
    tokens = given.get("d") or given["c"] / (cost.k * size**cost.gamma)
    return {"n": size, "d": tokens, "c": cost.k * size**cost.gamma * tokens}


def errors(fit: Fit, columns: dict[str, Floats], rng: np.random.Generator) -> Floats:
    """Draw what further runs [P] differ from the curve by: shared errors and their own [B, P]."""
    return new_errors(fit.form, fit.shared, fit.sds, fit.residuals(), len(fit.values), columns, rng)


def reach(
    form: Form, values: Floats, runs: dict[str, Floats], columns: dict[str, Floats]
) -> Floats:
    """Return how far P points are from the nearest run: change in log loss times distance [P].

    Changes by one resource and by the other add up: they do not cancel. The distance is the larger
    of the two resources' log ratios. The product is how an error grows if an exponent drifts.
    """
    shape = len(columns[form.columns[0]]), len(runs[form.columns[0]])
    change, distance = np.zeros(shape), np.zeros(shape)
    for term, name in enumerate(form.columns):
        scale, exponent = values[1 + 2 * term], values[2 + 2 * term]
        there, here = columns[name][:, None], runs[name]
        change += scale * np.abs(there**-exponent - here**-exponent)
        distance = np.maximum(distance, np.abs(np.log(there / here)))
    return np.asarray((change * distance).min(axis=1) / form.loss(values, columns))


def posterior(tests: tuple[Backtest, ...]) -> Floats:
    """Return the probabilities of `DRIFTS`: the prior times how likely the misses are."""
    log = -(PRIOR_DOF + 1) / 2 * np.log1p((DRIFTS / PRIOR_SCALE) ** 2 / PRIOR_DOF)
    log += np.log(np.gradient(DRIFTS))
    for one in tests:
        variance = one.expected**2 + (DRIFTS * one.reach) ** 2
        log -= COUNTS * 0.5 * (np.log(variance) + one.miss**2 / variance)
    weights = np.exp(log - log.max())
    return np.asarray(weights / weights.sum())


def _tests(fit: Fit, rng: np.random.Generator) -> Iterator[Backtest]:
    """Fit without the largest sizes and budgets, and predict them."""
    resources = {name: fit.columns[name] for name in fit.form.columns}
    if fit.form.columns == ("n", "d"):
        resources["c"] = fit.budgets
    for name, x in resources.items():
        found = levels(x)
        if len(found) <= FEW_LEVELS:
            cuts = found[::-1][: min(TESTS, len(found) - 3)]
        else:
            low, high = np.log(found[[0, -1]])
            cuts = np.exp(low + np.array(PARTS) * (high - low))
        for cut in cuts:
            if (test := _test(fit, x >= cut, rng)) is not None:
                miss, expected, far = test
                yield Backtest(f"{name.upper()} from {cut:.3g} on", miss, expected, far)


def _test(
    fit: Fit, out: npt.NDArray[np.bool_], rng: np.random.Generator
) -> tuple[float, float, float] | None:
    form, log_loss = fit.form, np.log(fit.loss)
    rest = {name: column[~out] for name, column in fit.columns.items()}
    points = {name: column[out] for name, column in fit.columns.items()}
    try:
        demand(form, rest)
    except AblateError:
        return None
    found = estimate(form, rest, log_loss[~out], rng, REPLICATES, near=fit.values)
    predicted = np.log(form.loss(found.value, points))
    residuals = log_loss[~out] - np.log(form.loss(found.value, rest))
    draws = np.log(form.loss(found.replicates, points)) - predicted
    draws += new_errors(form, found.shared, found.sds, residuals, len(found.value), points, rng)
    low, high = np.quantile(draws, [0.16, 0.84], axis=0)
    far = reach(form, found.value, rest, points)
    return tuple(  # type: ignore[return-value]
        float(np.sqrt((one**2).mean()))
        for one in (log_loss[out] - predicted, (high - low) / 2, far)
    )


# -- other forms -----------------------------------------------------------------------------------


def _rivals(fit: Fit) -> Iterator[Rival]:
    """Fit the form without a floor, and with a further term of one resource or of both."""
    names, log_loss = fit.form.columns, np.log(fit.loss)
    deviance, own = _deviance(fit), fit.residuals()
    others: list[tuple[str, tuple[str, ...]]] = [
        (f"a further power of {' and '.join(extra).upper()}", extra)
        for extra in dict.fromkeys([*((name,) for name in names), names])
        if all(len(levels(fit.columns[name])) >= LEAST_LEVELS for name in extra)
        and fit.runs >= 2 * (len(fit.values) + 1 + len(extra))
    ]
    if fit.constants["E"].value > 0:
        others.append(("no floor", ()))
    for name, extra in others:
        rival = _fitted(fit, name, extra)
        more = 1 + len(extra) if extra else -1
        gain = deviance(own) - deviance(log_loss - rival.log_loss(fit.columns))
        weight = math.exp(min(0.0, gain / 2 - more))  # Akaike's
        if weight > LEAST_WEIGHT:
            yield replace(rival, weight=weight)


def _fitted(fit: Fit, name: str, extra: tuple[str, ...]) -> Rival:
    """Fit the form with a further term, or without a floor if there is none."""
    log_loss = np.log(fit.loss)
    base = Problem.build(fit.form, fit.columns, log_loss)
    centre = dict(zip(fit.form.columns, map(float, base.centre), strict=True))
    terms = (*((one,) for one in fit.form.columns), *((extra,) if extra else ()))
    design, unit = base.design, base.design.unit
    lower, upper, start = design.lower, design.upper.copy(), base.starts(log_loss)
    if extra:
        near = base.theta(fit.values)
        lower = np.concatenate([lower, [lower[1]], np.zeros(len(extra))])
        upper = np.concatenate([upper, [upper[1]], np.full(len(extra), STEEPEST)])
        start = np.array([[*near, unit + math.log(SMALL), *[one] * len(extra)] for one in STARTS])
    else:
        upper[0] = 0.0
    x = indicators(terms, centre, fit.columns)
    ends = descend(
        Design(x, unit, lower, upper), log_loss, np.ones((len(start), fit.runs)), start, quick=True
    )
    return Rival(name, terms, centre, unit, ends.theta[ends.loss.argmin()])


def _deviance(fit: Fit) -> Callable[[Floats], float]:
    """Return the function residuals [P] → their squares, by the covariance of the fit's errors."""
    own = fit.residuals()
    most = CLIPPED * 1.4826 * float(np.median(np.abs(own)))
    shared, dof = fit.shared, max(fit.dof - 2, 1)
    if shared is None:
        variance = max(float((np.clip(own, -most, most) ** 2).sum()) / dof, 1e-20)
        return lambda r: float((np.clip(r, -most, most) ** 2).sum()) / variance
    variance = max(float(shared.weights @ shared.squares) / dof, 1e-20)
    z = np.concatenate([np.eye(of.max() + 1)[of] for of in shared.members], axis=1)
    sizes = shared.members.max(axis=1) + 1
    ratio = np.repeat([sd**2 / variance for sd in shared.usual().values()], sizes)
    inner = np.eye(len(ratio)) + np.sqrt(ratio)[:, None] * (z.T @ z) * np.sqrt(ratio)

    def deviance(residuals: Floats) -> float:
        r = np.clip(residuals, -most, most)
        right = np.sqrt(ratio) * (z.T @ r)
        return float(r @ r - right @ np.linalg.solve(inner, right)) / variance

    return deviance
