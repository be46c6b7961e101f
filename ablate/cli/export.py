"""`ablate export`: a study's numbers for another program."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Annotated, Literal

import typer

from ablate.cli import complete
from ablate.cli.output import deliver, echo
from ablate.cli.render import Db, working, writing
from ablate.export import FORMATS, PLACES, WHAT

STANDARD = "-"  # instead of a file
_DEFAULTS = ", ".join(f"{place.default} for {name}" for name, place in PLACES.items())


def export(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY|RUN",
            help=(
                "A study in the database; for transformers a run: its number, or the start of its"
                " key."
            ),
            autocompletion=complete.stored,
        ),
    ],
    where: Annotated[
        str,
        typer.Argument(
            metavar="DESTINATION",
            help=(
                f"File or folder to write; .gz compresses, {STANDARD} is standard output. By"
                f" default {STANDARD} for a table, {_DEFAULTS}."
            ),
            show_default=False,
        ),
    ] = "",
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="NAME",
            help=(
                f"A format: {', '.join(FORMATS)}. Or another program: "
                + "; ".join(f"{name}: {place.meaning}" for name, place in PLACES.items())
                + ". By default the extension of the file decides; csv for standard output."
            ),
            autocompletion=complete.among((*FORMATS, *PLACES)),
            show_default=False,
        ),
    ] = "",
    what: Annotated[
        str,
        typer.Option(
            "--what",
            metavar="WHAT",
            help="Which table: "
            + "; ".join(f"{name}: {meaning}" for name, meaning in WHAT.items())
            + ". By default runs.",
            autocompletion=complete.among(WHAT),
            show_default=False,
        ),
    ] = "",
    role: Annotated[
        Literal["compare", "tune", "pretrain", "all"] | None,
        typer.Option(
            "--role",
            help=(
                "Which runs of STUDY to export: compared, tuning, pre-trained or all; pairs and"
                " effects ignore this option. By default compare."
            ),
            show_default=False,
        ),
    ] = None,
    db: Db = None,
) -> None:
    """Write a study's numbers as a table or for an experiment tracker, or save a run's model.

    ablate export wiring runs.csv

    ablate export wiring --to jsonl | head

    ablate export wiring --to tensorboard

    ablate export 12 --to transformers my-model
    """
    from ablate import export as exports
    from ablate import store
    from ablate.errors import AblateError, unknown

    to = to or _format(where)
    if to not in (*FORMATS, *PLACES):
        raise unknown("--to", to, [*FORMATS, *PLACES])
    if to in PLACES:
        if where == STANDARD:
            raise AblateError(
                f"--to {to} cannot write to standard output: name {PLACES[to].meaning}"
            )
        if what:
            raise AblateError(f"--what chooses a table, and --to {to} writes none: remove --what")
        if role and PLACES[to].one_run:
            raise AblateError(
                f"--role chooses runs of a study, and --to {to} writes one run: remove --role"
            )
        place = where or PLACES[to].default
        with store.open(db) as database, writing(Path(place)), working(f"Writing {place} …"):
            said = exports.write(to, database, study, where, role or "compare")
        echo(said)
        return
    if what not in ("", *WHAT):
        raise unknown("--what", what, WHAT)
    from ablate.export import tables

    with store.open(db) as database:
        frame = tables.frame(database, study, what or "runs", role or "compare")
    content = tables.content(frame, to)
    if where in ("", STANDARD):
        deliver(content)
        return
    with writing(Path(where)):
        _write(content, Path(where))
    echo(f"{where}: {len(frame):,} rows, {len(frame.columns)} columns")


def _format(where: str) -> str:
    """Return the format that a file's name asks for, csv for standard output."""
    from ablate.errors import unknown

    if where in ("", STANDARD):
        return "csv"
    out = Path(where)
    name = out.with_suffix("") if out.suffix.lower() == ".gz" else out
    kind = name.suffix.lower().removeprefix(".")
    if kind not in FORMATS or (name != out and kind == "parquet"):
        endings = [f".{known}" for known in FORMATS]
        endings += [f"{one}.gz" for one in endings if one != ".parquet"]
        choices = [*endings, *(f"--to {place}" for place in PLACES)]
        ending = name.suffix + (out.suffix if name != out else "")
        raise unknown("extension of a file", ending or out.name, choices)
    return kind


def _write(content: str | bytes, out: Path) -> None:
    """Write a file, packed if its name says so: equal numbers give equal bytes."""
    from ablate.paths import atomic

    data = content.encode() if isinstance(content, str) else content
    packed = out.suffix.lower() == ".gz"
    with atomic(out) as part:
        part.write_bytes(gzip.compress(data, mtime=0) if packed else data)
