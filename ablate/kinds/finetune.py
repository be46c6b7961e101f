"""The kind of fine-tuned transformers: a task of labelled texts, from another run's weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate import outside, sizes, text
from ablate.components import CATALOGUE
from ablate.components.finetuning import choices
from ablate.evaluation import TASK_FINALS, VALIDATION, Evaluation
from ablate.kinds import Context, Cost, Fields, Job, Run
from ablate.kinds.transformer import Transformer, configured

# what only the pre-training of a run reads: a run from random weights does not depend on it
_OF_PRETRAINING = ("steps", "lr", "batch_tokens", "mask_ratio", "mask_mix", "mask_kind", "z_loss")

_LOSSES = ("task_loss", VALIDATION["task_loss"])  # what needs a probability of each class


class Finetune(Transformer):
    """Transformers with a classifier, trained on a task; see `ablate.components.finetuning`.

    The fields are those of the pre-trained run, which is the parent, and of the level of `method`.
    """

    name = "finetune"
    no_weights = "it is fine-tuned, and the weights of its parent are kept"

    def identity(self, fields: Fields) -> Mapping[str, Any]:
        """Return what `Transformer.identity` does; a task is known by the hash of its file."""
        content = dict(super().identity(fields))
        for name in ("n_fitted", "n_tested"):
            content.pop(name, None)
        if fields["task_hash"]:
            content.pop("task", None)
        if not configured(fields).part("method").starts:
            given = {"start", *(field.name for field in CATALOGUE["start"]["given"].fields)}
            left_out = given.union(_OF_PRETRAINING)
            content = {key: one for key, one in content.items() if key not in left_out}
        return content

    def cost(self, fields: Fields) -> Cost:
        """Return the cost of training on texts of n_ctx tokens, which is an upper bound.

        A frozen model is trained at the price of all its weights. For a learner it reads each text
        once, without a backward pass.
        """
        config: Any = configured(fields)
        pretrained, size = sizes.count(config), sizes.finetuned(config)
        by_steps = config.part("method").by_steps
        steps, texts = 0, (config.labels or config.n_fitted) + config.n_tested
        if by_steps:
            steps, texts = config.finetune_steps, config.finetune_steps * config.finetune_batch
        tokens = texts * choices(config) * config.n_ctx
        per_token = pretrained.flops_per_token
        return Cost(
            steps=steps,
            params=size.params,
            params_body=pretrained.body,
            tokens=tokens,
            flops=None if per_token is None else (3.0 if by_steps else 1.0) * per_token * tokens,
            bytes=sizes.memory_bytes(config),
        )

    def parent(self, run: Run) -> Run | None:
        """Return the pre-training of the same seed; None from random weights."""
        of = configured(run.fields).part("method")
        if not of.starts:
            return None
        on_task = {name for name, row in CATALOGUE.items() if row.group == "fine-tuning"}
        left_out = {"code", *on_task}
        fields = {name: one for name, one in run.fields.items() if name not in left_out}
        return Run("transformer", Transformer().check(fields), run.seed)

    def pack_key(self, run: Run) -> str:
        """Return the run's own key: a job is one run."""
        return run.key

    def finals(self, fields: Fields, evaluation: Evaluation) -> list[tuple[str, float]]:
        """Return the finals on the task, and what was forgotten of the pre-training."""
        method = configured(fields).part("method")
        forgets = method.starts
        names = [name for name, of_parent in TASK_FINALS.items() if forgets or not of_parent]
        names += VALIDATION.values() if fields.get("n_validation") else ()
        return [(name, 0.0) for name in names if method.has_loss or name not in _LOSSES]

    def train(self, job: Job, context: Context) -> None:
        """Load text and task of a job and train it. Imports torch."""
        if job.use:  # in a worker, which has read no study
            outside.use(job.use)
        from ablate.train.finetune import train  # `tests/test_structure.py` allows it

        train(job, context, text.load(job.runs[0].config, job.sources))
