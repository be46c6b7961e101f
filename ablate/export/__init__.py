"""What leaves: a study's numbers as a table, or in the store of an experiment tracker.

`tables` makes the content of one file. Every other place has a module of its own with a function
`write`, a row of `PLACES`, which imports the library of the other program when it is called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

from ablate.errors import AblateError

if TYPE_CHECKING:
    from ablate.store import Database

FORMATS = ("csv", "tsv", "json", "jsonl", "parquet")  # of a file or a stream, by `tables`
WHAT = {
    "runs": "one row per run, as `ablate.load` returns them",
    "curves": "every stored point of every series",
    "finals": "every final number of every run",
    "pairs": "each run with its baseline's run of the same seed",
    "effects": "one row per contrast, computed now",
}


class Place(NamedTuple):
    """Where another program looks for runs."""

    module: str  # in this package: its `write` takes the arguments of `write` below after `to`
    default: str  # where it writes if nobody says: where the program itself looks
    meaning: str  # for the help of the command


PLACES = {
    "tensorboard": Place("tensorboard", "runs", "a folder of event files"),
    "mlflow": Place("mlflow", "mlflow.db", "a database, or any tracking URI"),
    "wandb-offline": Place("wandb", ".", "a folder for W&B's folder wandb, for `wandb sync`"),
    "transformers": Place(
        "hugging_face", "model", "a folder for the model of one run, which RUN names"
    ),
}


def write(to: str, database: Database, name: str, where: str, role: str) -> str:
    """Write what a database holds for another program.

    Args:
        to: A name of `PLACES`.
        database: The database.
        name: The study, or whatever else the place takes.
        where: Where to write, a path or what the program understands; "" for its own default.
        role: "compare", "tune" or "all", as in `ablate.load`.

    Returns:
        One line that says what was written, and where.

    Raises:
        AblateError: The library of the other program is missing, there is no such study, none of
            its runs has begun, or the place cannot take them.
    """
    place = PLACES[to]
    module = importlib.import_module(f"ablate.export.{place.module}")
    said: str = module.write(database, name, where or place.default, role)
    return said


def missing(library: str) -> AblateError:
    """Return the error for a library that is not installed, whose extra has the same name."""
    return AblateError(f"this needs {library}: pip install 'ablate-studies[{library}]'")
