"""Export: a study's numbers as a table, or for another program.

`tables` makes the content of one file. Every other program has a row in `PLACES` and a module with
a function `write`, which imports the library of that program when it is called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

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
    """Another program, and where it looks for runs."""

    module: str  # in this package: its `write` takes the arguments of `write` below after `to`
    default: str  # destination if none is given: where the program itself looks
    meaning: str  # for the help of the command
    one_run: bool = False  # whether it takes one run, which the user names, and no study


PLACES = {
    "tensorboard": Place("tensorboard", "runs", "a folder of event files"),
    "mlflow": Place("mlflow", "mlflow.db", "a database, or any tracking URI"),
    "wandb-offline": Place("wandb", ".", "a folder, which gets a folder wandb for `wandb sync`"),
    "transformers": Place(
        "hugging_face", "model", "an empty folder for the model of RUN", one_run=True
    ),
}


def write(to: str, database: Database, name: str, where: str, role: str) -> str:
    """Write runs of a database, or a model, for another program.

    Args:
        to: A name of `PLACES`.
        database: The database.
        name: The study, or the run for `transformers`.
        where: Where to write, a path or a URI; "" for the program's default.
        role: "compare", "tune" or "all", as in `ablate.load`.

    Returns:
        One line that says what was written, and where.

    Raises:
        AblateError: The library of the other program is missing, there is no such study, none of
            its runs has begun, or the destination cannot be written.
    """
    place = PLACES[to]
    module = importlib.import_module(f"ablate.export.{place.module}")
    said: str = module.write(database, name, where or place.default, role)
    return said
