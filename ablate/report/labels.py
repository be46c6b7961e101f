"""How the report says numbers, names and lists: sensible digits, right plurals, units."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ablate import metrics
from ablate.analysis.paired import TIMES
from ablate.study import tuned
from ablate.units import decimals, number

PHRASES = {  # metric → what a sentence calls it; {at}: the number behind "@"; {share}: in percent
    "loss": "held-out loss",
    "bits_per_byte": "held-out bits per byte",
    "accuracy": "held-out accuracy",
    "probe_loss": "masked loss at ratio {at}",
    "probe_accuracy": "masked accuracy at ratio {at}",
    "reconstruction_loss": "reconstruction error with {share} of the patches hidden",
    "pseudo_perplexity": "pseudo-perplexity",
    "loss_at_length": "held-out loss at {at}× the context",
    "corrupted_loss": "loss with {share} of the text hidden",
    "corrupted_accuracy": "accuracy with {share} of the text hidden",
    "exact_match": "exact matches with a beam of {at}",
    "error_rate": "error rate with a beam of {at}",
    "error_at_length": "error rate from {at} tokens of the source on",
    "era_accuracy": "era accuracy of a linear probe",
    "novel_accuracy": "novel accuracy of a linear probe",
    "label_accuracy": "label accuracy of a linear probe",
}


@dataclass(frozen=True)
class TunedLabels:
    """The texts for the field that a study tunes."""

    field: str  # "lr"
    by: str = ""  # what decides, where it is not the study's metric: " by held-out loss"

    @property
    def name(self) -> str:
        """What a sentence calls it: "learning rate"."""
        return tuned(self.field)

    @property
    def short(self) -> str:
        """A value of it: "rate"."""
        return "rate" if self.field == "lr" else "value"

    @property
    def values(self) -> str:
        """Its values: "learning rates", "values of weight_decay"."""
        return "learning rates" if self.field == "lr" else f"values of {self.field}"


@dataclass(frozen=True)
class KnownLabels:
    """The texts for what a model knows that has learnt next to nothing."""

    what: str  # "token frequencies"
    how: str  # "predicting each token by its frequency in the training text"


OF_TEXT = KnownLabels(
    "token frequencies", "predicting each token by its frequency in the training text"
)
OF_IMAGES = {
    "classify": KnownLabels(
        "class frequencies", "predicting by the class frequencies of the training images"
    ),
    "mae": KnownLabels("mean patches", "predicting the mean patches of the training images"),
}


@dataclass(frozen=True)
class MetricLabels:
    """The texts for a study's metric."""

    phrase: str  # "held-out loss"
    unit: str  # "nats per token"; "" where the phrase says it all
    goal: str  # "min" | "max"
    widest: float = math.inf  # that a difference can be

    @property
    def axis(self) -> str:
        """The name of an axis: "held-out loss (nats per token)"."""
        return f"{self.phrase} ({self.unit})" if self.unit else self.phrase

    @property
    def difference(self) -> str:
        """The name of an axis of differences."""
        return f"difference in {self.axis}"

    @property
    def after(self) -> str:
        """The unit as it follows a number: " nats per token"."""
        return f" {self.unit}" if self.unit else ""

    def better(self, difference: float) -> bool:
        """Return whether a difference from the baseline is an improvement."""
        return difference < 0 if self.goal == "min" else difference > 0


def metric_labels(text: str, goal: str, *, own: bool = False, unit: str = "") -> MetricLabels:
    """Return the labels of a metric such as "probe_loss@0.4"; an unknown one has its own name.

    Args:
        text: The metric.
        goal: "min" or "max".
        own: Whether a script of the user's own reports it, whatever it is called.
        unit: The unit of a metric of the user's own.
    """
    name, _, at = text.rpartition("@") if own and "@" in text else text.partition("@")
    if own:
        return MetricLabels(f"{name} at step {at}" if at else text, "", goal)
    unit = metrics.METRICS[name].unit if name in metrics.METRICS else unit
    share = f"{100 * float(at):.3g}%" if "{share}" in PHRASES.get(name, "") else ""
    phrase = PHRASES[name].format(at=at, share=share) if name in PHRASES else text.replace("_", " ")
    widest = 1.0 if unit == "share" else math.inf
    return MetricLabels(phrase, "" if unit in ("share", "bits per byte") else unit, goal, widest)


# -- numbers ---------------------------------------------------------------------------------------


def detectable(labels: MetricLabels, resolvable: Iterable[float]) -> str:
    """Say which effects non-significant contrasts would have shown.

    Args:
        labels: of the metric.
        resolvable: the smallest effect of each contrast that is detected with 80% power.

    Returns:
        A clause without a full stop; "" where no smallest effect is known. Of several contrasts it
        has the smallest and the largest such effect.
    """
    known = sorted(value for value in resolvable if math.isfinite(value) and value > 0)
    if not known:
        return ""
    least, most = (number(value, decimals(value)) for value in (known[0], known[-1]))
    several = f"{least} to {most}" if least != most else least
    if known[0] >= labels.widest:
        return (
            f"no possible effect is detectable: it would have to be {several}, and shares differ by"
            f" at most {labels.widest:g}"
        )
    if known[-1] >= labels.widest:
        return (
            f"only effects of {least}{labels.after} or more are detectable with 80% power, and for"
            f" the noisiest contrast no possible effect: it would have to be {most}, and shares"
            f" differ by at most {labels.widest:g}"
        )
    if least != most:
        return f"the smallest effects detectable with 80% power are {several}{labels.after}"
    return f"only effects of {least}{labels.after} or more are detectable with 80% power"


def p_value(p: float) -> str:
    """Return "p < 0.001" or "p = 0.013", with two digits."""
    if math.isnan(p):
        return "p unknown"
    return "p < 0.001" if p < 0.001 else f"p = {p_digits(p)}"


def p_digits(p: float) -> str:
    """Return p with two digits, never rounded up to 0.05; "–" for NaN."""
    if math.isnan(p):
        return "–"
    if p < 0.001:
        return "< 0.001"
    if p < 0.05:
        return (  # 0.0497 is not 0.050
            f"{p:.{next(places for places in range(3, 20) if round(p, places) < 0.05)}f}"
        )
    return f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


def percent(share: float) -> str:
    """Return a share in percent, with a decimal below 10%.

    >>> percent(0.375), percent(0.034), percent(1)
    ('38%', '3.4%', '100%')
    """
    return f"{100 * share:.1f}%" if abs(share) < 0.0995 else f"{100 * share:.0f}%"


_BARE = re.compile(r"[\d.e+-]+|\[.*\]|true|false")


def named(factor: str, level: object) -> str:
    """Return the name of a level, with its factor's where it is a bare value.

    Levels of several factors have all of them, as in the name of their cell.

    >>> named("norm", "pre"), named("drop_blocks", "[0]"), named("n_layer", "2")
    ('pre', 'drop_blocks=[0]', 'n_layer=2')
    >>> named("n_head × position", "2 × none")
    'n_head=2, position=none'
    """
    if TIMES in factor:
        return full(factor, level)
    return f"{factor}={level}" if _BARE.fullmatch(str(level)) else str(level)


def full(factor: str, level: object) -> str:
    """Return the name of a level, or of levels of joined factors, with the factors' names."""
    factors, levels = factor.split(TIMES), str(level).split(TIMES)
    if len(factors) != len(levels):
        return f"{factor}={level}"
    # a factor without a meaning in a cell has no level there
    named = [f"{one}={other}" for one, other in zip(factors, levels, strict=True) if other != "–"]
    return ", ".join(named) or str(level)


def arm_of(cell: str, arm: str, stratum: str = "") -> str:
    """Return the name of a cell's arm, with its factor's where it is a bare value.

    Args:
        cell: Label of the cell.
        arm: The arm.
        stratum: Of the cell, whose factors do not name an arm.

    >>> arm_of("n_layer=2, n_head=2", "2", "n_layer=2"), arm_of("norm=pre", "pre")
    ('n_head=2', 'pre')
    """
    if not _BARE.fullmatch(arm):
        return arm
    found = re.findall(rf"(?:^|, )(\w+={re.escape(arm)})(?=, |$)", cell)
    return next((one for one in found if one not in stratum.split(", ")), arm)


# -- sentences -------------------------------------------------------------------------------------


def sentence(text: str) -> str:
    """Return `text` with a capital letter if it begins with one of the alphabet."""
    return text[:1].upper() + text[1:]
