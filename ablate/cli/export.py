"""`ablate export`: a study's numbers for another program, in a file or on standard output."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ablate.cli import complete
from ablate.cli.output import deliver, echo
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
STANDARD = "-"  # instead of a file
KINDS = ("csv", "tsv", "json", "jsonl", "parquet")


def export(
    study: Stored,
    out: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help=(
                f"File to write; its extension sets the format: {', '.join(KINDS)}, also with .gz."
                " - is standard output."
            ),
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
    format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="|".join(KINDS),
            help="Format; by default that of the extension, csv on standard output.",
            autocompletion=complete.among(KINDS),
            show_default=False,
        ),
    ] = "",
    db: Db = None,
) -> None:
    """Write a study's runs, curves, finals, pairs or effects, with full precision.

    ablate export wiring - --format jsonl | head
    """
    from ablate import store
    from ablate.errors import AblateError, unknown

    kind = format or _kind(out)
    if kind not in KINDS:
        raise unknown("--format", kind, KINDS)
    if str(out) == STANDARD and kind == "parquet":
        raise AblateError("parquet is no text for standard output; give a FILE")
    if what not in WHAT:
        raise unknown("--what", what, WHAT)
    with store.open(db) as database:
        frame = _frame(database, study, what, None if role == "all" else role)
    if str(out) == STANDARD:
        deliver(_text(frame, kind))
        return
    with writing(out):
        _write(frame, out, kind)
    echo(f"{out}: {len(frame):,} rows, {len(frame.columns)} columns")


def _kind(out: Path) -> str:
    """Return the format that a name asks for."""
    from ablate.errors import unknown

    name = out.with_suffix("") if out.suffix.lower() == ".gz" else out
    kind = name.suffix.lower().removeprefix(".")
    packed = name != out
    if str(out) != STANDARD and (kind not in KINDS or (packed and kind == "parquet")):
        choices = [*(f".{known}" for known in KINDS), ".csv.gz"]
        raise unknown("extension of FILE", name.suffix or out.name, choices)
    return kind or "csv"


def _frame(database: Database, study: str, what: str, role: str | None) -> pd.DataFrame:
    from ablate import analysis, results

    frames: dict[str, Callable[..., pd.DataFrame]] = {
        "runs": partial(results.load, role=role),
        "curves": partial(results.curves, role=role),
        "finals": partial(results.finals, role=role),
        "pairs": results.pairs,
        "effects": analysis.effects,
    }
    frame = results.without_folders(frames[what](study, db=database))
    # the view `runs` has columns for fields of transformers, which a script's runs lack
    return frame.dropna(axis="columns", how="all") if results.study(study, database).own else frame


def _write(frame: pd.DataFrame, out: Path, kind: str) -> None:
    """Write next to the file, then rename: an existing file is replaced only by a complete one."""
    part = out.with_name(f"{out.name}.part")
    try:
        if kind == "parquet":
            _parquet(frame, part)
        else:
            content = _text(frame, kind).encode()
            packed = out.suffix.lower() == ".gz"
            # without a time, so that the same numbers give the same bytes
            part.write_bytes(gzip.compress(content, mtime=0) if packed else content)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)


def _text(frame: pd.DataFrame, kind: str) -> str:
    from ablate import formats

    rows = list(zip(*(_values(frame[column]) for column in frame), strict=True))
    return formats.render(list(map(str, frame)), rows, kind)


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
