"""The check of a fit: does it, without the largest size, tokens or budget, predict those runs?"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ablate.errors import AblateError, unknown
from ablate.scaling.bootstrap import estimate, limits
from ablate.scaling.design import demand
from ablate.scaling.forms import Form, levels
from ablate.scaling.shared import new_errors
from ablate.scaling.solve import Floats
from ablate.units import three_digits

SHOWN = 5e-5  # half of the last digit shown of an error
HELD_OUT = {"largest size": "n", "largest tokens": "d", "largest budget": "c"}


@dataclass(frozen=True)
class HeldOut:
    """The fit without the largest size or budget, and what those runs reached."""

    what: str  # "largest size (N = 6e+06)"
    runs: int
    predicted: float  # geometric mean of the predicted losses
    actual: float  # geometric mean of the losses reached
    miss: float  # actual / predicted − 1
    # interval of the miss that the fit expected: its own uncertainty and the noise of the runs
    lo: float
    hi: float
    column: str  # the resource: "n", "d" or "c"
    from_: float  # runs from here on were held out
    values: Floats = field(repr=False, compare=False)  # constants [K] without them
    missed: float = 0.0  # as `replicate` returns, of the fit without them

    @property
    def trusted(self) -> bool:
        """Whether the error is within the expected interval."""
        return self.lo - SHOWN <= self.miss <= self.hi + SHOWN

    def __str__(self) -> str:
        text = (
            f"Fitted without the {self.what}, {self.runs} run{'s' if self.runs > 1 else ''}:"
            f" predicted {self.predicted:.4f}, reached {self.actual:.4f}, a miss of"
            f" {self.miss:+z.2%} (expected within {self.lo:+z.2%} to {self.hi:+z.2%})."
        )
        return (
            text
            if self.trusted
            else text
            + " The miss exceeds the interval: do not trust intervals outside the measured range."
        )


def chosen_check(hold_out: str, form: Form, columns: dict[str, Floats]) -> str:
    """Return what to hold out: as requested, or the largest value of the form's first resource."""
    what = hold_out or next(what for what, column in HELD_OUT.items() if column == form.columns[0])
    if what not in HELD_OUT:
        raise unknown("hold_out", what, HELD_OUT)
    if HELD_OUT[what] not in columns:
        raise AblateError(f"hold_out {what!r} needs the column {HELD_OUT[what]}.")
    return what


def check(
    form: Form,
    columns: dict[str, Floats],
    log_loss: Floats,
    what: str,
    rng: np.random.Generator,
    bootstraps: int,
) -> HeldOut:
    """Fit without the largest value, predict it, and compare the error with the expected one."""
    x = columns[HELD_OUT[what]]
    top = levels(x)[-1]
    out = x >= top
    rest = {name: column[~out] for name, column in columns.items()}
    demand(form, rest, f"without the {what}, ")
    found = estimate(form, rest, log_loss[~out], rng, bootstraps)
    value, replicates = found.value, found.replicates
    points = {name: column[out] for name, column in columns.items()}
    predicted = np.log(form.loss(value, points)).mean()
    copies = np.log(form.loss(replicates, points)).mean(axis=1)
    residuals = log_loss[~out] - np.log(form.loss(value, rest))
    noise = new_errors(form, found.shared, found.sds, residuals, len(value), points, rng)
    lo, hi = limits(copies + noise.mean(axis=1) - predicted, len(residuals) - len(value))
    actual = log_loss[out].mean()
    return HeldOut(
        what=f"{what} ({HELD_OUT[what].upper()} = {three_digits(float(top))})",
        runs=int(out.sum()),
        predicted=float(np.exp(predicted)),
        actual=float(np.exp(actual)),
        miss=float(np.expm1(actual - predicted)),
        lo=float(np.expm1(lo)),
        hi=float(np.expm1(hi)),
        column=HELD_OUT[what],
        from_=float(top),
        values=value,
        missed=found.missed,
    )
