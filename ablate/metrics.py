"""The numbers that can decide a study, their units and which direction is better; no torch.

A user's own are registered by `metric` in a file or package that a study's `use` names.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

from ablate.components import Field, catalogue
from ablate.components.base import RESERVED
from ablate.components.plain import own_fields
from ablate.errors import AblateError, own_name, unknown

M = TypeVar("M", bound=Callable[..., Any])


@dataclass(frozen=True)
class Metric:
    """A final number of a run."""

    name: str
    goal: str  # "min" | "max"
    unit: str
    meaning: str
    at: str = ""  # what a parameter after "@" means, "" if it has none
    downstream: bool = False  # a linear probe on frozen features
    task: bool = False  # of fine-tuned runs alone
    made: Any = None  # the class or function that measures it, of a user's own
    # labels of the code that it comes from, where that is not ablate, and then of what that imports
    origin: tuple[str, ...] = ()
    fields: tuple[Field, ...] = ()  # hyper-parameters of its own
    source: str = ""  # paper


_ROWS = (
    Metric(
        "loss",
        "min",
        "nats per token",
        "cross-entropy on held-out text, or of held-out images' classes; for masked models at the"
        " ratio they train with",
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
        source="Olsson et al. 2022, arXiv:2209.11895",
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
        "reconstruction_loss",
        "min",
        "squared error",
        "of masked autoencoders: mean squared error of hidden patches of held-out images, each"
        " normalised, at one ratio of the probe grid; the same patches for all arms",
        "probe ratio",
    ),
    Metric(
        "pseudo_perplexity",
        "min",
        "",
        "exp of a masked model's mean loss on single hidden tokens, one per sequence",
        source="Salazar et al. 2020, arXiv:1910.14659",
    ),
    Metric(
        "loss_at_length",
        "min",
        "nats per token",
        "loss of the same targets at another context length",
        "length factor",
    ),
    Metric(
        "corrupted_loss",
        "min",
        "nats per token",
        "loss of an encoder-decoder on hidden tokens of held-out text, the same ones in every arm:"
        " spans of 3 tokens in the mean",
        "probe ratio",
    ),
    Metric(
        "corrupted_accuracy",
        "max",
        "share",
        "share of the hidden tokens of `corrupted_loss` that the model ranks first",
        "probe ratio",
    ),
    Metric(
        "exact_match",
        "max",
        "share",
        "share of held-out pairs whose target is decoded without an error",
        "width of the beam",
    ),
    Metric(
        "error_rate",
        "min",
        "errors per symbol",
        "edits between decoded and true targets per symbol of the true ones; symbols are words, or"
        " characters where no target has a space: the phoneme error rate of `cmudict`",
        "width of the beam",
        source="Levenshtein 1966",
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
        "linear probe: which label of `[eval] probe_csv` a text has, or which class an image",
        downstream=True,
    ),
    Metric(
        "label_chance",
        "max",
        "share",
        "share of the commonest label among what `label_accuracy` is tested on",
    ),
    Metric(
        "task_loss",
        "min",
        "nats per text",
        "fine-tuning: cross-entropy of the classes of held-out texts",
        task=True,
    ),
    Metric(
        "task_accuracy",
        "max",
        "share",
        "fine-tuning: share of held-out texts whose class the model ranks first",
        task=True,
    ),
    Metric(
        "task_f1",
        "max",
        "share",
        "fine-tuning: macro F1 on held-out texts, the mean of the F1 of each class",
        task=True,
    ),
    Metric(
        "task_chance",
        "max",
        "share",
        "share of held-out texts of the class that is commonest among the texts to train on",
        task=True,
    ),
    Metric(
        "validation_loss",
        "min",
        "nats per text",
        "`task_loss` on the validation part of a task that has a test part too, for [tune]",
        task=True,
    ),
    Metric(
        "validation_accuracy",
        "max",
        "share",
        "`task_accuracy` on the validation part of a task that has a test part too, for [tune]",
        task=True,
    ),
    Metric(
        "validation_f1",
        "max",
        "share",
        "`task_f1` on the validation part of a task that has a test part too, for [tune]",
        task=True,
    ),
    Metric(
        "pretraining_loss",
        "min",
        "nats per token",
        "loss of the pre-training on its held-out text, after fine-tuning",
        task=True,
    ),
    Metric(
        "forgetting",
        "min",
        "nats per token",
        "what fine-tuning adds to the held-out loss of the pre-training",
        task=True,
    ),
)

METRICS: dict[str, Metric] = {row.name: row for row in _ROWS}
CALLED = {  # a metric → what other programs call it
    "loss": ("val_loss", "eval_loss", "valid_loss", "validation_loss", "test_loss", "nll"),
    "bits_per_byte": ("bpb", "val_bpb"),
    "accuracy": ("acc", "val_accuracy", "val_acc", "eval_accuracy"),
}
GOALS = {"lower": "min", "higher": "max"}  # as files write them
GIVEN = ("logits", "targets", "losses", "inputs")  # what a metric may ask for, by these names
ONCE = ("config", "spelling")  # what the constructor of a class may ask for
LOSSY = ("byte_coverage", "text_kept")  # of lossy tokenizers: `ablate.text.Tokens.lost`
NEAR_UNIGRAM = 0.01  # of that loss: a run that ends nearer has learnt no more than frequencies
TEXTS_CUT = "texts_cut"  # share of the texts of a task of which a model reads the first tokens only
RECORDED = (  # other numbers that runs record
    *("train_loss", "grad_norm", "lr", "tokens_per_second", "train_seconds", "epochs"),
    *("loss_at_position", "error_at_length", "stream_rms", "token_similarity"),
    *(*LOSSY, TEXTS_CUT),
)
GROUP = "metrics"  # of their hyper-parameters in the catalogue
_NUMBER = re.compile(r"\d+(\.\d+)?")


def metric(
    name: str, *, goal: str, meaning: str, unit: str = "", fields: Sequence[Field] = ()
) -> Callable[[M], M]:
    """Register the decorated function or class as a metric; docs/own-parts.md has the shapes.

    A function takes any of `GIVEN`, by these names, and returns a number for each token. A class
    has such a method `tokens`, and may have a method `value`, which makes the metric of the means;
    the numbers may then have a further axis. Its constructor takes any of `ONCE`. Hyper-parameters
    are given by their names, to a function or to the constructor of a class.

    Args:
        name: As study files and results write it: letters, digits and underscores.
        goal: "lower" or "higher": which direction is better.
        meaning: What it is, in one line.
        unit: Such as "nats per token"; "share" for a number from 0 to 1.
        fields: Hyper-parameters of a function; a class has them as its attribute `fields`.

    Raises:
        AblateError: The name is taken, the goal is unknown, the function asks for more, or fields
            are no tuple of `Field`.
    """

    def register(made: M) -> M:
        who = f"metric {name!r}"
        if goal not in GOALS:
            raise unknown(f"goal of {who}", goal, GOALS)
        if not name.isidentifier():
            raise AblateError(f"{who}: a name is letters, digits and underscores")
        if not meaning.strip():
            raise AblateError(f"{who}: its meaning is missing, one line for readers")
        function = getattr(made, "tokens", None) if isinstance(made, type) else made
        if function is None:
            raise AblateError(f"{who} has no method tokens, which returns a number for each token")
        declared = own_fields(SimpleNamespace(fields=fields) if fields else made, who)
        names = [one.name for one in declared]
        for taken in {*GIVEN, *ONCE}.intersection(names):
            raise AblateError(f"{who}: field {taken!r}: the metric is given {taken}; rename it")
        of_class = isinstance(made, type)
        if of_class:
            _check_arguments(f"the constructor of {who}", made, (*ONCE, *names), own=0)
        given = GIVEN if of_class else (*GIVEN, *names)
        _check_arguments(who, function, given, own=int(of_class))
        text = " ".join(meaning.split())
        row = Metric(name, GOALS[goal], unit, text, made=made, fields=declared)
        (_take or add)(row)
        return made

    return register


def asked_for(function: Callable[..., Any], known: Collection[str]) -> list[str]:
    """Return the names of a function's arguments that are known, or have no default."""
    return [
        one.name
        for one in inspect.signature(function).parameters.values()
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        and (one.default is one.empty or one.name in known)
    ]


def _check_arguments(
    who: str, function: Callable[..., Any], known: Collection[str], *, own: int
) -> None:
    """Refuse an argument that nothing is given for; the first `own` ones are no concern."""
    for name in asked_for(function, known)[own:]:
        if name not in known:
            raise unknown(f"argument of {who}", name, known)


_take: Callable[[Metric], None] | None = None  # gets metrics, while `collecting`


@contextmanager
def collecting(take: Callable[[Metric], None]) -> Iterator[None]:
    """Give the metrics that are registered inside to a function, instead of `METRICS`."""
    global _take
    before, _take = _take, take
    try:
        yield
    finally:
        _take = before


def add(row: Metric) -> None:
    """Put a metric of a user's own into `METRICS`, and its fields into the catalogue.

    Raises:
        AblateError: Its name, or the name of one of its fields, is taken.
    """
    if row.name in METRICS or row.name in RECORDED:
        other = METRICS.get(row.name)
        mine, its = _file(row), _file(other)
        raise AblateError(
            f"{f'{mine}: ' if mine else ''}metric {row.name!r} is a number of {its or 'ablate'}"
            " already; rename it"
        )
    file = _file(row)
    who = f"{f'{file}: ' if file else ''}metric {row.name!r}"
    if row.name.lower() in {name.lower() for name in (*RESERVED, *catalogue.CATALOGUE)}:
        raise AblateError(f"{who}: results have a column {row.name.lower()!r}; rename it")
    catalogue.declare(row.fields, who, GROUP, {})
    METRICS[row.name] = row


def _file(row: Metric | None) -> str:
    """Return the file or package that a metric comes from."""
    return row.origin[0].rpartition("@")[0] if row and row.origin else ""


def remove(row: Metric) -> None:
    """Take a metric of a user's own out of `METRICS`, and its fields out of the catalogue."""
    del METRICS[row.name]
    catalogue.withdraw(row.fields, GROUP, {})


def exchange(row: Metric) -> None:
    """Put a metric in the place of one with the same name and fields."""
    METRICS[row.name] = row


def with_fields(origins: Collection[str] | None) -> list[Metric]:
    """Return the metrics with hyper-parameters that come from this code; of any, if None."""
    return [
        row
        for row in METRICS.values()
        if row.fields and (origins is None or set(row.origin) <= {*origins})
    ]


def parse(text: str) -> tuple[Metric, float | None]:
    """Return the row of a metric and the number after "@", None without one.

    Args:
        text: such as "loss" or "probe_loss@0.4".

    Raises:
        AblateError: the name is not in the table, or the metric does not take the number.
    """
    name, at, number = text.partition("@")
    if name not in METRICS:
        error = unknown("metric", name, METRICS)
        if own := own_name(name, CALLED):
            error.instead(f"give {own} instead: {METRICS[own].meaning}")
        raise error
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


def series(text: str) -> str:
    """Return the name of the curve of a metric that a script reports: "val_loss" of "val_loss@5000"
    and of "best val_loss".
    """
    return final(text)[0].removeprefix("best ")


# words in the names of metrics that say which direction is better
_LOWER = {
    *("loss", "losses", "nll", "error", "errors", "err", "ppl", "perplexity", "entropy", "xent"),
    *("ce", "bce", "bits", "bpb", "bpc", "bpd", "mse", "rmse", "mae", "mape", "wer", "cer"),
    *("fid", "kid", "brier", "ece", "regret", "latency"),
}
_HIGHER = {
    *("accuracy", "accuracies", "acc", "f1", "auc", "auroc", "auprc", "mrr", "map", "ap", "ndcg"),
    *("dice", "iou", "miou", "jaccard", "win", "wins", "winrate", "match", "em", "score"),
    *("scores", "bleu", "rouge", "meteor", "chrf", "reward", "rewards", "return", "returns"),
    *("precision", "recall", "r2", "psnr", "ssim", "success", "correct", "hits", "pass", "kappa"),
    *("mcc", "elo", "throughput"),
}
_WORD = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*")  # valLoss, val_loss, NLL, top5, F1


def likely_goal(name: str) -> str:
    """Return "higher" or "lower" as the words of a metric's name say; "" where they do not."""
    words = {word.lower() for word in (*_WORD.findall(name), *re.split(r"[\W_]+", name))}
    words |= {word.rstrip("0123456789") for word in words}  # bleu4, acc1
    lower, higher = bool(words & _LOWER), bool(words & _HIGHER)
    return "" if lower == higher else "lower" if lower else "higher"


def unit(text: str) -> str:
    """Return the unit of a metric; "" for one that a study names itself."""
    row = METRICS.get(final(text)[0])
    return row.unit if row else ""
