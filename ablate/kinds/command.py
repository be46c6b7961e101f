"""The kind of a user's own training script: a command line and its fields; without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ablate.components.base import check_name
from ablate.errors import AblateError, written
from ablate.evaluation import Evaluation
from ablate.kinds import SEEDS, Context, Cost, Field, Fields, Job, Run
from ablate.study.command import REVISION


class Command:
    """Runs of a command line.

    The fields are those of the study, whatever their names, and three more: `command`, the words of
    the command line with their placeholders, as JSON; `code`, the version of its code; and for a
    study of git revisions `revision`, which is no part of the identity, because `code` is.
    """

    name = "command"
    numerics = 1
    uses_torch = False
    fields: Mapping[str, Field] = {}  # each study has its own

    def check(self, fields: Mapping[str, Any]) -> Fields:
        """Return the fields, each of which is a number, true, false or text.

        Raises:
            AblateError: A name cannot be a column of the results, or a value is another one.
        """
        for name, value in fields.items():
            check_name(name, fields)
            split = name in SEEDS and value is None
            finite = isinstance(value, bool | int | str) or (
                isinstance(value, float) and math.isfinite(value)
            )
            if not finite and not split:
                raise AblateError(
                    f"{name} = {written(value):.80}: a number, true, false or text is wanted"
                )
        return dict(fields)

    def identity(self, fields: Fields) -> Mapping[str, Any]:
        """Return all fields but the name of a revision, whose content `code` stands for."""
        return {
            name: value
            for name, value in fields.items()
            if name != REVISION and not (name in SEEDS and value is None)
        }

    def cost(self, fields: Fields) -> Cost:
        """Return that nothing is known: a script does not say what it takes."""
        return Cost()

    def typed(self, run: Run) -> None:
        """Return None: the script reads its command line."""

    def pack_key(self, run: Run) -> str:
        """Return the run's own key: a script trains one run."""
        return run.key

    def finals(self, fields: Fields, evaluation: Evaluation) -> list[tuple[str, float]]:
        """Return nothing: what a script reports is not known before."""
        return []

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
    own = {name: value for name, value in run.fields.items() if name not in ("command", "code")}
    split = {name: run.seed if own.pop(name, None) is None else run.fields[name] for name in SEEDS}
    given = {"seed": run.seed, "out": out, "checkpoints": checkpoints}
    return {**own, **given, **split, "fields": json.dumps(own | {"seed": run.seed})}
