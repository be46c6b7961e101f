"""The kind of a user's own training script: a command line and its fields; without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ablate.kinds import SEEDS, Context, Fields, Job, Run
from ablate.kinds.free import FreeFields
from ablate.study.command import OWN, REVISION


class Command(FreeFields):
    """Runs of a command line.

    The fields are those of the study, whatever their names, and up to four more: `command`, the
    words of the command line with their placeholders, as JSON; `code`, the version of its code;
    `reads`, the keys `pattern` and `metrics` of [command], as JSON, where either is given; and for
    a study of git revisions `revision`, which is no part of the identity, because `code` is.
    """

    name = "command"
    no_weights = "[run] keep is for transformers, and a script keeps its own files"

    def identity(self, fields: Fields) -> Mapping[str, Any]:
        """Return all fields but the name of a revision, whose content `code` stands for."""
        return {
            name: value
            for name, value in fields.items()
            if name != REVISION and not (name in SEEDS and value is None)
        }

    def train(self, job: Job, context: Context) -> None:
        """Run the script and report what it says."""
        from ablate.kinds.process import train

        train(job, context)


def values_of(run: Run, out: str, checkpoints: str) -> dict[str, Any]:
    """Return name → value of all placeholders of a run.

    Args:
        run: The run.
        out: Its folder.
        checkpoints: Its folder of checkpoints.
    """
    own = {name: value for name, value in run.fields.items() if name not in OWN}
    split = {name: run.seed if own.pop(name, None) is None else run.fields[name] for name in SEEDS}
    given = {"seed": run.seed, "out": out, "checkpoints": checkpoints}
    return {**own, **given, **split, "fields": json.dumps(own | {"seed": run.seed})}
