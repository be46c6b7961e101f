"""The numbers that can decide a study, their units and which direction is better; no torch."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ablate.errors import AblateError, unknown


@dataclass(frozen=True)
class Metric:
    """A final number of a run."""

    name: str
    goal: str  # "min" | "max"
    unit: str
    meaning: str
    at: str = ""  # what a parameter after "@" means, "" if it has none
    downstream: bool = False  # a linear probe on frozen features


_ROWS = (
    Metric(
        "loss",
        "min",
        "nats per token",
        "cross-entropy on held-out text; for masked models at the ratio they train with",
    ),
    Metric(
        "bits_per_byte",
        "min",
        "bits per byte",
        "held-out loss per byte of text: comparable across tokenizers",
    ),
    Metric("accuracy", "max", "share", "share of held-out targets that the model ranks first"),
    Metric(
        "unigram_loss",
        "min",
        "nats per token",
        "loss of the same targets under the token frequencies of the training text: what a model"
        " reaches that has learnt nothing else",
    ),
    Metric(
        "copy_loss",
        "min",
        "nats per token",
        "loss on the second half of random tokens that are repeated: low where the model copies",
    ),
    Metric(
        "copy_loss_first",
        "min",
        "nats per token",
        "loss on the first half of the same tokens, which cannot be predicted",
    ),
    Metric(
        "probe_loss",
        "min",
        "nats per token",
        "masked loss at one ratio of the probe grid",
        "probe ratio",
    ),
    Metric(
        "probe_accuracy",
        "max",
        "share",
        "masked accuracy at one ratio of the probe grid",
        "probe ratio",
    ),
    Metric(
        "pseudo_perplexity",
        "min",
        "",
        "exp of a masked model's mean loss on single hidden tokens, one per sequence",
    ),
    Metric(
        "loss_at_length",
        "min",
        "nats per token",
        "loss of the same targets at another context length",
        "length factor",
    ),
    Metric(
        "era_accuracy",
        "max",
        "share",
        "linear probe: which era a passage comes from",
        downstream=True,
    ),
    Metric(
        "novel_accuracy",
        "max",
        "share",
        "linear probe: which document (novel) a passage comes from",
        downstream=True,
    ),
    Metric(
        "label_accuracy",
        "max",
        "share",
        "linear probe: which label of `[eval] probe_csv` a text has",
        downstream=True,
    ),
    Metric(
        "label_chance",
        "max",
        "share",
        "share of the commonest label among the texts that `label_accuracy` is tested on",
    ),
)

METRICS: dict[str, Metric] = {row.name: row for row in _ROWS}
_NUMBER = re.compile(r"\d+(\.\d+)?")


def parse(text: str) -> tuple[Metric, float | None]:
    """Return the row of a metric and the number after "@", None without one.

    Args:
        text: such as "loss" or "probe_loss@0.4".

    Raises:
        AblateError: the name is not in the table, or the metric does not take the number.
    """
    name, at, number = text.partition("@")
    if name not in METRICS:
        raise unknown("metric", name, METRICS)
    row = METRICS[name]
    if not at:
        return row, None
    if not row.at:
        raise AblateError(f"metric {text!r}: {name} takes no number after '@'")
    if not _NUMBER.fullmatch(number):
        raise AblateError(
            f"metric {text!r}: '@' is followed by a {row.at}, such as"
            f" {name}@{'0.15' if 'ratio' in row.at else '2'}"
        )
    return row, float(number)


def final(text: str) -> tuple[str, float]:
    """Return the name and the `at` of a metric in a run's `final`: ("probe_loss", 0.4).

    The metric may be one that a study names itself: what follows its last "@" is a number.

    Raises:
        AblateError: There is no number after "@".
    """
    name, sign, number = text.rpartition("@")
    if not sign:
        return text, 0.0
    if not _NUMBER.fullmatch(number):
        raise AblateError(f"metric {text!r}: '@' is followed by a number")
    return name, float(number)


def likely_goal(name: str) -> str:
    """Return "higher" or "lower": a first guess for a metric that a study names itself."""
    higher = ("acc", "score", "auc", "f1", "bleu", "reward", "return", "precision", "recall", "r2")
    return "higher" if any(word in name.lower() for word in higher) else "lower"


def unit(text: str) -> str:
    """Return the unit of a metric; "" for one that a study names itself."""
    row = METRICS.get(final(text)[0])
    return row.unit if row else ""
