"""`ablate.log`: what a training script calls to report numbers. Standard library alone."""

from __future__ import annotations

import json
import os
from typing import SupportsFloat

FILE = "ABLATE_METRICS"  # variable of the environment that names the file, within a run


def log(step: float, **values: SupportsFloat) -> None:
    """Report numbers of a step to the run that this script is; does nothing outside of a run.

    Args:
        step: Steps made, such as those of the optimiser. If some of them are not whole, such as
            0.5 epochs, the calls are counted.
        **values: Name → number, or what `float` takes, such as a tensor of one element.
    """
    if path := os.environ.get(FILE):
        number: float = int(step)
        if number != step:
            number = float(step)
        line = json.dumps({"step": number} | {name: float(one) for name, one in values.items()})
        with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 (pathlib takes longer to load)
            file.write(f"{line}\n")
