"""`ablate export`: a study's numbers as a file for another program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ablate.cli import complete
from ablate.cli.render import Db, Stored, writing

if TYPE_CHECKING:
    import pandas as pd

    from ablate.store import Database

WHAT = {
    "runs": "one row per run, as `ablate.load` returns them",
    "curves": "every stored point of every series",
    "finals": "every final number of every run",
    "pairs": "each run with its baseline's run of the same seed",
    "effects": "one row per contrast, computed now",
}
SUFFIXES = ("csv", "json", "parquet")


def export(
    study: Stored,
    out: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help=f"File to write; its extension sets the format: {', '.join(SUFFIXES)}.",
        ),
    ],
    what: Annotated[
        str,
        typer.Option(
            "--what",
            metavar="WHAT",
            help="; ".join(f"{name}: {meaning}" for name, meaning in WHAT.items()) + ".",
            autocompletion=complete.exports,
        ),
    ] = "runs",
    role: Annotated[
        Literal["compare", "tune", "all"],
        typer.Option(
            "--role",
            help=(
                "Which runs to export: compared, tuning or all (for --what runs, curves, finals)."
            ),
        ),
    ] = "compare",
    db: Db = None,
) -> None:
    """Write a study's runs, curves, finals, pairs or effects to a file, with full precision."""
    from ablate import store
    from ablate.errors import unknown

    suffix = out.suffix.lower().removeprefix(".")
    if suffix not in SUFFIXES:
        raise unknown(
            "extension of FILE", out.suffix or out.name, [f".{name}" for name in SUFFIXES]
        )
    if what not in WHAT:
        raise unknown("--what", what, WHAT)
    with store.open(db) as database:
        frame = _frame(database, study, what, None if role == "all" else role)
    with writing(out):
        _write(frame, out, suffix)
    print(f"{out}: {len(frame):,} rows, {len(frame.columns)} columns")


def _frame(database: Database, study: str, what: str, role: str | None) -> pd.DataFrame:
    from ablate import analysis, results

    frames: dict[str, Callable[..., pd.DataFrame]] = {
        "runs": partial(results.load, role=role),
        "curves": partial(results.curves, role=role),
        "finals": partial(results.finals, role=role),
        "pairs": results.pairs,
        "effects": analysis.effects,
    }
    return results.without_folders(frames[what](study, db=database))


def _write(frame: pd.DataFrame, out: Path, suffix: str) -> None:
    """Write next to the file, then rename: an existing file is replaced only by a complete one."""
    from ablate import formats

    part = out.with_name(f"{out.name}.part")
    try:
        if suffix == "parquet":
            _parquet(frame, part)
        else:
            rows = list(zip(*(_values(frame[column]) for column in frame), strict=True))
            part.write_text(
                formats.render(list(map(str, frame)), rows, suffix), encoding="utf-8", newline=""
            )
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def _parquet(frame: pd.DataFrame, path: Path) -> None:
    from importlib.util import find_spec

    from ablate.errors import AblateError

    if find_spec("pyarrow") is None:
        raise AblateError("parquet needs pyarrow: pip install pyarrow, or write a .csv")
    frame.to_parquet(path, engine="pyarrow", index=False)


def _values(column: pd.Series) -> list[Any]:
    """Return Python's own values, None if missing; NaN stays NaN in a column of floats."""
    import pandas as pd

    numbers = pd.api.types.is_float_dtype(column.dtype)
    return [value if numbers or not pd.isna(value) else None for value in column.tolist()]
