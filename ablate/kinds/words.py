"""The command line of one run of a script, as words."""

from __future__ import annotations

import json

from ablate.kinds import SEEDS, Run
from ablate.study.command import OWN
from ablate.study.template import filled


def words_of(run: Run, out: str, checkpoints: str) -> list[str]:
    """Return the words of a run's command line, with values for all placeholders.

    Args:
        run: The run.
        out: Its folder.
        checkpoints: Its folder of checkpoints.
    """
    own = {name: value for name, value in run.fields.items() if name not in OWN}
    split = {name: run.seed if own.pop(name, None) is None else run.fields[name] for name in SEEDS}
    given = {"seed": run.seed, "out": out, "checkpoints": checkpoints}
    values = {**own, **given, **split, "fields": json.dumps(own | {"seed": run.seed})}
    return filled(json.loads(str(run.fields["command"])), values)
