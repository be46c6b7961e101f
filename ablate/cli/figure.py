"""`ablate figure`: one figure of a report, for a paper."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ablate.cli import complete
from ablate.cli.flags import option
from ablate.cli.output import echo
from ablate.cli.render import Db, console, show_all, table, writing
from ablate.errors import AblateError, unknown

INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}  # TeX's points
NARROW, WIDE = 2.0, 20.0  # inches
PAGE = 11.0  # inches, the height of a page
FORMATS = ("pdf", "svg", "png")


def figure(
    study: Annotated[
        str,
        typer.Argument(
            metavar="STUDY", help="Name or file of a study.", autocompletion=complete.stored
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="FIGURE", help="Its figure; without it, all are listed.", show_default=False
        ),
    ] = None,
    width: Annotated[
        str,
        option(
            "Width of the whole figure; by default 3.4in, and 6.8in with several panels.",
            metavar="N[in|cm|mm|pt]",
        ),
    ] = "",
    format_: Annotated[
        str,
        option(
            "By default that of the ending of --out, else pdf.",
            "--format",
            metavar="|".join(FORMATS),
        ),
    ] = "",
    style: Annotated[
        Path | None,
        option("A style file of matplotlib, whose settings replace ours.", metavar="FILE"),
    ] = None,
    out: Annotated[
        Path | None, option("By default STUDY-FIGURE.FORMAT in this folder.", metavar="FILE")
    ] = None,
    db: Db = None,
) -> None:
    """Draw one figure of a report, at the width of a column; font sizes stay the same.

    ablate figure topology

    ablate figure topology effects --width 3.25in --format pdf
    """
    from ablate import report, store
    from ablate.cli.stored import name_of, notes
    from ablate.figures import Look, boxes, looking, save
    from ablate.paths import file_name

    format_ = _format(format_, out)
    look = Look(inches(width) if width else None, style and _style(style))
    with store.open(db) as database:
        given, study = study, name_of(study, database)
        figure_set, found = report.figures_of(report.gather(database, study))
        differing = list(notes(study, database, given)) if given != study else []
    titles = {one.name: one.title for one in found}
    if name is None:
        show_all([table(["figure", "shows"], titles.items()), *differing])
        return
    if name not in titles:
        raise unknown("figure", name, titles, study)
    file = out or Path(f"{file_name(study)}-{name}.{format_}")
    with looking(look), writing(file), _drawing(style):
        drawn = figure_set.axes(name).figure.figure
        save(drawn, file.with_suffix(""), [format_])
    console().print(str(file), *differing, sep="\n", markup=False, soft_wrap=True)
    if format_ != "svg" and (missing := boxes(drawn)):
        console().print(
            f"Note: no font on this machine has the letters {missing}: the figure shows boxes for"
            " them. Install a font that has them, such as Noto Sans CJK for Chinese, Japanese and"
            " Korean, or draw an SVG.",
            markup=False,
            soft_wrap=True,
        )
    if (height := drawn.get_size_inches()[1]) > PAGE:
        console().print(
            f"Note: the figure is {height:.0f} in high, more than a page; a larger --width puts"
            " more strata side by side.",
            soft_wrap=True,
        )


def inches(text: str) -> float:
    """Return a width in inches.

    Args:
        text: A number with a unit, "8.4cm"; without one, inches.

    Raises:
        AblateError: It is no such number, or no width of a figure.
    """
    found = re.fullmatch(r"([0-9.]+) *([a-z]*)", text)
    try:
        value = float(found[1]) if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or math.isnan(value):
        raise AblateError(f"--width = {text}: give a number and a unit: 3.25in, 84mm")
    unit = found[2] or "in"
    if unit not in INCHES:
        raise unknown("unit of --width", unit, INCHES)
    value *= INCHES[unit]
    if not NARROW <= value <= WIDE:
        raise AblateError(f"--width = {text}: give {NARROW:g}in to {WIDE:g}in")
    return value


def _format(given: str, out: Path | None) -> str:
    """Return the format of a figure, by --format or the ending of --out.

    Raises:
        AblateError: It is unknown, or both say different formats.
    """
    if given and given not in FORMATS:
        raise unknown("format for --format", given, FORMATS)
    if out is None:
        return given or FORMATS[0]
    ending = out.suffix.removeprefix(".")
    if ending not in FORMATS:
        raise AblateError(
            f"--out = {out}: unknown ending {out.suffix!r}. Choices:"
            f" {', '.join(f'.{one}' for one in FORMATS)}."
        )
    if given and given != ending:
        raise AblateError(f"--out = {out} and --format = {given}: two formats; keep one of them")
    return ending


@contextmanager
def _drawing(style: Path | None) -> Iterator[None]:
    """Say each font that matplotlib does not find once, and whose fault a failure is.

    Raises:
        AblateError: matplotlib cannot draw with the user's style.
    """
    try:
        with _logged("matplotlib.font_manager") as messages:
            yield
    except (AblateError, OSError):
        raise
    except Exception as error:  # of a style, matplotlib raises whatever the setting leads to
        if style is None:
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        raise AblateError(
            f"--style = {style}: matplotlib cannot draw with it: {text:.200}"
        ) from None
    for message in messages:
        if "not found" in message:  # no warning of a font without bold letters
            echo(f"Warning: {message.removeprefix('findfont: ')}", error=True)


@contextmanager
def _logged(name: str) -> Iterator[dict[str, None]]:
    """Collect what a logger would print, each message once."""
    logger, messages = logging.getLogger(name), dict[str, None]()

    def keep(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            messages[record.getMessage()] = None
        return False

    logger.addFilter(keep)
    try:
        yield messages
    finally:
        logger.removeFilter(keep)


def _style(file: Path) -> Path:
    """Return a style file that matplotlib can read.

    Raises:
        AblateError: It cannot be read, or has a setting or a value that matplotlib does not know.
    """
    import matplotlib as mpl

    try:
        if file.exists() and not file.is_file():
            raise AblateError(f"--style = {file}: it is not a regular file")
        unknown_to_it = [
            line.partition(":")[0].strip()
            for line in file.read_text(encoding="utf-8").splitlines()
            if (key := line.partition("#")[0].partition(":")[0].strip()) and key not in mpl.rcParams
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise AblateError(f"--style = {file}: {getattr(error, 'strerror', error)}") from None
    if unknown_to_it:
        raise AblateError(f"--style = {file}: matplotlib has no setting {unknown_to_it[0]!r}")
    with _logged("matplotlib") as messages:
        mpl.rc_params_from_file(file, use_default_template=False)
    if messages:
        raise AblateError(f"--style = {file}: {next(iter(messages)).rpartition('): ')[2]}")
    return file.absolute()
