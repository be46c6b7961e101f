"""The built-in kind: a transformer trained by `ablate.train` on the text of a corpus."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from ablate import outside, sizes, text
from ablate.components import CATALOGUE
from ablate.config import MEMBER_FIELDS, NUMERICS, RunConfig, field_info, resolve
from ablate.evaluation import Evaluation
from ablate.kinds import Context, Cost, Field, Fields, Job, Run


class Transformer:
    """Decoders and encoders as `ablate.config.RunConfig` describes them."""

    name = "transformer"
    numerics = NUMERICS
    uses_torch = True
    no_weights = ""

    @property
    def fields(self) -> Mapping[str, Field]:
        """Name → field, as in `ablate.components.CATALOGUE`; fields of components included."""
        return {
            name: Field(name, type(default), default, row.meaning, row.source)
            for name, row in CATALOGUE.items()
            if name != "seed"
            for default in [field_info(name).default]
        }

    def check(self, fields: Mapping[str, Any]) -> Fields:
        """Return all fields but the seed, with defaults and what follows from others filled in."""
        return resolve(dict(fields)).model_dump(mode="json", exclude={"seed"})

    def identity(self, fields: Fields) -> Mapping[str, Any]:
        """Return the fields that differ from their default; a text is known by its hash alone."""
        config = configured(fields)
        return {name: value for name, value in config.identity.items() if name != "seed"}

    def cost(self, fields: Fields) -> Cost:
        """Return the cost by `ablate.sizes`, which is exact but for the memory."""
        config = configured(fields)
        size = sizes.count(config)
        flops = sizes.train_flops(config)
        memory = sizes.memory_bytes(config)
        return Cost(
            config.steps, size.params, size.body, config.tokens, flops and float(flops), memory
        )

    def typed(self, run: Run) -> RunConfig:
        """Return the `RunConfig` of a run, its seed included."""
        return configured(run.fields).model_copy(update={"seed": run.seed})

    def parent(self, run: Run) -> Run | None:
        """Return None: a run starts from random weights."""
        return None

    def pack_key(self, run: Run) -> str:
        """Return all fields in which members of a pack have to agree."""
        return shape(configured(run.fields))

    def finals(self, fields: Fields, evaluation: Evaluation) -> list[tuple[str, float]]:
        """Return the finals of a run, which depend on its objective and context lengths."""
        return evaluation.finals(configured(fields))

    def train(self, job: Job, context: Context) -> None:
        """Load the text of a job and train it. Imports torch."""
        if job.use:  # in a worker, which has read no study
            outside.use(job.use)
        from ablate.train.engine import train  # a later module: `tests/test_structure.py` allows it

        train(job, context, text.load(job.runs[0].config, job.sources))


@functools.lru_cache(maxsize=1 << 14)
def shape(config: RunConfig) -> str:
    """Return a text that is equal for configurations that one compiled step can train together."""
    left_out = {*config.free_of_shape(MEMBER_FIELDS), "split"}
    fields = config.model_dump(mode="json", exclude_defaults=True, exclude=left_out)
    return json.dumps(fields, sort_keys=True)


def run_of(config: RunConfig, parent: str = "") -> Run:
    """Return the run that a configuration describes."""
    fields = config.model_dump(mode="json", exclude={"seed"})
    return Run("transformer", fields, config.seed, parent)


def configured(fields: Fields) -> RunConfig:
    """Return the typed fields of a run, with seed 0; equal fields are validated once."""
    return _parse(json.dumps(fields))


@functools.lru_cache(maxsize=1 << 14)
def _parse(fields: str) -> RunConfig:
    return RunConfig(**json.loads(fields))
