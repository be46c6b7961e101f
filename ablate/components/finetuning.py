"""What of a pre-trained model is trained on a task of labelled texts, and what a classifier reads.

A run of the kind "finetune" has a level of `method` other than "none". It brings the fields of its
task and of its training. The rest of its fields are those of the pre-trained model.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ablate.components.base import Component, Config, Counts, Field
from ablate.components.block import BERT
from ablate.components.catalogue import level
from ablate.errors import AblateError

HOULSBY = "Houlsby et al. 2019, arXiv:1902.00751"
HU = "Hu et al. 2021, arXiv:2106.09685"
GPT = "Radford et al. 2018 (GPT)"

OF_TASK = (
    Field(
        "task",
        str,
        "",
        "A CSV, TSV or JSON lines file with the columns text and label, and text_pair for pairs or"
        " choice_0, choice_1, … for choices, or word and label; or a task of a shipped corpus:"
        " novel, same-novel, syllables (austen), era, same-speech (sotu).",
    ),
    Field("task_hash", str, "", "SHA-256 of the task's file; filled in."),
    Field("n_class", int, 0, "Classes of the task; filled in."),
    Field("n_validation", int, 0, "Texts of the task's validation part; filled in."),
    Field("n_texts", int, 1, "Texts of each example: 2 for a task of pairs; filled in."),
    Field("n_fitted", int, 0, "Examples to train on, at most; filled in."),
    Field("n_tested", int, 0, "Examples that are held out, at most; filled in."),
    Field(
        "unit",
        str,
        "text",
        "What has a label: text, word of running text, or choice of several; filled in.",
    ),
    Field("labels", int, 0, 'Number of labelled texts to train on; 0, or "all", for all.', GPT),
)
OF_TRAINING = (
    Field("finetune_steps", int, 200, "Optimiser steps on the task."),
    Field("finetune_lr", float, 1e-3, "Peak learning rate on the task."),
    Field("finetune_batch", int, 32, "Texts per step on the task."),
)
TASK_FIELDS = (*OF_TASK, *OF_TRAINING)


class Method(Component):
    """Base of the levels of `method`.

    Attributes:
        finetunes: Whether it is a fine-tuning.
        starts: Whether it starts from the weights of a pre-trained model.
        reads_blocks: Whether it changes the blocks of a transformer.
        trains: Which weights of the pre-trained model it trains: "all", "norms", or "" for none. It
            also trains the classifier and the modules that it adds.
        embeds: Whether it trains the embeddings of tokens that `text_format` adds.
        has_loss: Whether it gives each class a probability, which a loss needs.
        by_steps: Whether steps of the optimiser train it; else a learner is fitted to features.
    """

    factors = ("method",)
    finetunes: ClassVar[bool] = True
    starts: ClassVar[bool] = True
    reads_blocks: ClassVar[bool] = False
    trains: ClassVar[str] = ""
    embeds: ClassVar[bool] = True
    by_steps: ClassVar[bool] = True
    has_loss: ClassVar[bool] = True
    fields: ClassVar[tuple[Field, ...]] = TASK_FIELDS

    def check(self, config: Config) -> None:
        """See `Component.check`: numbers that are too small or too large."""
        for name, (least, most) in _COUNTS.items():
            if not least <= (value := getattr(config, name, least)) <= most:
                raise AblateError(
                    f"{name} = {value}: a whole number from {least} to {most} is wanted"
                )
        if not self.finetunes:
            return
        if self.by_steps and not 0 < config.finetune_lr < float("inf"):
            raise AblateError(f"finetune_lr = {config.finetune_lr}: a number above 0 is wanted")
        model, objective = config.part("architecture"), config.part("objective")
        if objective.pairs or not model.probed:
            raise AblateError(
                f"method = {self.name!r}: a model with architecture = {model.name!r} and objective"
                f" = {objective.name!r} has no hidden states of a text for a classifier to read"
            )
        if model.encodes and self.reads_blocks:
            raise AblateError(
                f"method = {self.name!r} changes all blocks, and of architecture = {model.name!r} a"
                " classifier reads the encoder alone; use method = 'full', 'head' or 'scratch'"
            )
        if not model.of_blocks and (self.reads_blocks or not config.part("attention").causal):
            raise AblateError(
                f"method = {self.name!r}: architecture = {model.name!r} is not built of ablate's"
                " blocks; use a causal one, with method = 'full', 'head' or 'scratch'"
            )

    def revision(self, config: Config) -> int:
        """1 for a file: an earlier version trained on texts that were also held out."""
        return int(bool(getattr(config, "task_hash", "")))

    def sizes(self, config: Config, width: int) -> Counts:
        """See `Component.sizes`: `added` is in no pre-trained model."""
        return Counts()

    def batch(self, config: Config) -> int:
        """Return the sequences of an optimiser step of a run with this level."""
        trained = self.finetunes and self.by_steps
        n: int = config.finetune_batch * choices(config) if trained else config.batch_size
        return n

    def added(self, config: Config) -> int:
        """Return the parameters that it adds to the pre-trained model, without the classifier."""
        return 0

    def add(self, model: Any, config: Config) -> None:
        """Add its modules to a pre-trained model, in place, by the function that `module` names."""
        if self.module and self.by_steps:
            self.load()(model, config)


def choices(config: Config) -> int:
    """Return the choices of each example of a run's task, each of which is a sequence; else 1."""
    return config.n_class if getattr(config, "unit", "") == "choice" else 1


_COUNTS = {  # the smallest and the largest value
    "labels": (0, 10**12),
    "finetune_steps": (1, 10**9),
    "finetune_batch": (1, 10**6),
    "adapter_size": (1, 1 << 24),  # as d_mlp
    "lora_rank": (1, 65536),  # as d_model
    "n_trees": (1, 10**6),
}


@level("method", "none")
class Pretraining(Method):
    """Nothing: the run is pre-trained on its corpus."""

    finetunes = starts = False
    fields = ()


@level("method", "scratch", source=GPT)
class Scratch(Method):
    """All weights, from random initial ones instead of pre-trained ones."""

    starts = False
    trains = "all"


@level("method", "full", source=GPT)
class Full(Method):
    """All weights, from pre-trained ones."""

    trains = "all"


@level("method", "head", source=BERT)
class Head(Method):
    """The classifier alone, on the features of the pre-trained model."""

    embeds = False


@level("method", "adapter", source=HOULSBY)
class Adapter(Method):
    """Bottlenecks after attention and MLP, and the norms; the other weights are frozen."""

    module = "ablate.model.finetuned:add_adapters"
    reads_blocks = True
    trains = "norms"
    fields = (
        *TASK_FIELDS,
        Field("adapter_size", int, 16, "Width of the bottleneck of an adapter.", HOULSBY),
    )

    def added(self, config: Config) -> int:
        """See `Method.added`: two maps with biases, twice a block."""
        c, size = config.d_model, config.adapter_size
        return 2 * config.n_layer * (2 * c * size + size + c)


@level("method", "lora", source=HU)
class LoRA(Method):
    """Low-rank changes of the query and value matrices; the other weights are frozen."""

    module = "ablate.model.finetuned:add_low_rank"
    reads_blocks = True
    fields = (
        *TASK_FIELDS,
        Field("lora_rank", int, 4, "Rank of the change that is added to a matrix.", HU),
    )

    def check(self, config: Config) -> None:
        """See `Component.check`."""
        super().check(config)
        if config.qkv != "linear" or not config.part("mixer").attends:
            raise AblateError(
                f"method = 'lora' changes the query and value matrices, which mixer ="
                f" {config.mixer!r} with qkv = {config.qkv!r} does not have; use method = 'adapter'"
            )

        if config.lora_rank > config.d_model:
            raise AblateError(
                f"lora_rank = {config.lora_rank}: the matrices have a rank of d_model ="
                f" {config.d_model} at most; give 1 to {config.d_model}"
            )

    def added(self, config: Config) -> int:
        """See `Method.added`: two matrices for queries, two for values."""
        c, d_head = config.d_model, config.d_head
        widths = (config.n_head * d_head, config.n_kv_head * d_head)
        return int(config.n_layer * sum(config.lora_rank * (c + width) for width in widths))


class Learner(Method):
    """Base of the levels that fit a learner of scikit-learn to the features, as they are."""

    by_steps = embeds = has_loss = False
    fields: ClassVar[tuple[Field, ...]] = OF_TASK

    def check(self, config: Config) -> None:
        """See `Component.check`."""
        super().check(config)
        if config.unit == "choice":
            raise AblateError(
                f"method = {self.name!r} learns classes of texts, and task = {config.task!r} has"
                " choices; use a method that trains by steps, such as 'full' or 'head'"
            )
        if getattr(config, "learner_c", 1.0) <= 0:
            raise AblateError(f"learner_c = {config.learner_c}: a number above 0 is wanted")


PENALISED = (
    *OF_TASK,
    Field(
        "learner_c",
        float,
        1.0,
        "C of scikit-learn's learners: the weight of the training texts against the penalty.",
    ),
)


@level("method", "logistic", source="Pedregosa et al. 2011 (scikit-learn, LogisticRegression)")
class Logistic(Learner):
    """A logistic regression on the features of the pre-trained model."""

    module = "ablate.train.learners:logistic"
    has_loss = True
    fields = PENALISED


@level("method", "svm", source="Cortes & Vapnik 1995; Pedregosa et al. 2011 (scikit-learn, SVC)")
class SupportVectors(Learner):
    """A support vector machine with a Gaussian kernel on the features of the pre-trained model."""

    module = "ablate.train.learners:svm"
    fields = PENALISED


@level(
    "method",
    "random-forest",
    source="Breiman 2001; Pedregosa et al. 2011 (scikit-learn, RandomForestClassifier)",
)
class RandomForest(Learner):
    """A random forest on the features of the pre-trained model."""

    module = "ablate.train.learners:random_forest"
    fields = (*OF_TASK, Field("n_trees", int, 300, "Trees of a random forest."))


class Pooling(Component):
    """Base of the levels of `pooling`.

    Attributes:
        prefix: Whether [MASK] is put before a text.
    """

    factors = ("pooling",)
    prefix: ClassVar[bool] = False


@level("pooling", "mean")
class Mean(Pooling):
    """The mean of the features of a text's tokens."""


@level("pooling", "last", source=GPT)
class Last(Pooling):
    """The features of a text's last token, which has seen all others."""

    def check(self, config: Config) -> None:
        """See `Component.check`."""
        if config.part("method").finetunes and not config.part("attention").causal:
            raise AblateError(
                f"pooling = 'last' needs causal attention, but objective ="
                f" {config.objective!r} has attention = {config.attention!r}; use 'mean' or 'cls'"
            )


@level("pooling", "cls", source=BERT)
class Cls(Pooling):
    """The features of a token [MASK] before the text."""

    prefix = True

    def check(self, config: Config) -> None:
        """See `Component.check`."""
        masks, causal = config.part("objective").masks, config.part("attention").causal
        if config.part("method").finetunes and (causal or not masks):
            raise AblateError(
                f"pooling = 'cls' needs a masked model whose first token sees the whole text, but"
                f" this one has objective = {config.objective!r}, attention ="
                f" {config.attention!r}; use 'mean' or 'last'"
            )
