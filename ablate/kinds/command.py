"""The kind of a user's own training script: a command line and its fields; without torch."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ablate.kinds import SEEDS, Context, Emit, Fields, Job, Run
from ablate.kinds.free import FreeFields
from ablate.study.command import OWN, REVISION, SECONDS, best, of_script


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

        assert job.log
        taken = (SECONDS, best(str(job.settings["metric"])))
        emit = partial(_emit, context.emit[0], job.log, taken, set[str]())
        train(job, replace(context, emit=[emit]))


def _emit(
    emit: Emit, log: Path, taken: Collection[str], reported: set[str], kind: str, **event: Any
) -> None:
    """Emit an event; numbers of the script with a name that ablate sets itself get another name.

    Args:
        emit: Takes the event.
        log: Log of the run, which gets a note.
        taken: Names that ablate sets.
        reported: Those of them that the script has reported; changed in place.
        kind: Kind of the event.
        event: The rest of it.
    """
    if kind == "metrics":
        for name in taken:
            if name in event["series"] and name not in reported:
                reported.add(name)
                with log.open("a") as file:
                    file.write(f"ablate: {name} of this output is kept as {of_script(name)!r}\n")
        event["series"] = {
            of_script(name) if name in taken else name: of for name, of in event["series"].items()
        }
    elif kind == "final":  # that of the script comes before ablate's own
        values = [list(one) for one in event["values"]]
        for name in reported:
            its = next((one for one in values if one[0] == name), [name])
            its[0] = of_script(name)
        event["values"] = values
    emit(kind, **event)


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
