"""The kind of a user's own training script: a command line and its fields; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.kinds import SEEDS, Context, Fields, Job, process
from ablate.kinds.free import FreeFields
from ablate.study.command import REVISION


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
        process.train(job, context)
