"""The page of a board: the whole, and its parts that change."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from ablate import __version__
from ablate.board.reading import Course, Detail
from ablate.store.live import Failed, Waiting
from ablate.store.records import SHOWN_STATUS
from ablate.units import count, duration, listed, memory, number

MOST = 24  # runs that train and are listed
GROUPS = 10  # errors that are listed
FEW = 4  # decisions that are listed before the others are folded
SECTIONS = ("progress", "training", "troubles", "queue", "decisions", "devices", "cells")
ROLES = {"pretrain": ", pre-training"}


def whole(study: str, shown: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        study: Name of the study whose page it is; "" for a list of studies.
        shown: What it shows first, as `ablate.board.watch.Live` has it.
    """
    template = _templates().get_template("board.html.j2")
    return template.render(study=study, shown=shown, sections=SECTIONS)


def waiting(study: str, error: str) -> str:
    """Return the page that is shown until the report on a study is made.

    Args:
        study: Name of the study.
        error: Why it cannot be made; "" while it is being made.
    """
    return _templates().get_template("waiting.html.j2").render(study=study, error=error)


def sections(detail: Detail) -> dict[str, str]:
    """Return section → its HTML, "" for one with nothing to show."""
    module: Any = _templates().get_template("sections.html.j2").module
    return {name: str(getattr(module, name)(detail)).strip() for name in SECTIONS}


def chooser(courses: Sequence[Course], shown: str) -> str:
    """Return the list of studies as HTML.

    Args:
        courses: The studies.
        shown: Name of the one that is shown; "" for none.
    """
    module: Any = _templates().get_template("sections.html.j2").module
    return str(module.studies(courses, shown)).strip()


def title(course: Course) -> str:
    """Return the title of a study's page, which a tab of a browser shows the beginning of."""
    share = f"{course.ended / course.total:.0%} · " if course.total else ""
    return f"{share}{course.name}"


def facts(course: Course) -> str:
    """Return what a list of studies says of one, beside the number of ended runs."""
    parts = course.parts
    left = course.status.seconds_left
    said = [f"{parts[name]:,} {name}" for name in ("training", "queued", "failed") if name in parts]
    if left and course.alive:
        said.append(f"about {duration(left)} left")
    return ", ".join(said)


def _spoken(course: Course) -> str:
    """What a bar shows, in words."""
    return listed(f"{number:,} {name}" for name, number in course.parts.items()) or "no runs"


def _role(run: Failed | Waiting) -> str:
    return f", {run.tried}" if run.tried else ROLES.get(run.role, "")


def _marked(text: str) -> Markup:
    """A sentence, with the commands in it marked."""
    return Markup(re.sub("`(.*?)`", r"<code>\1</code>", str(escape(text))))


def _who(runs: Sequence[Failed]) -> str:
    """Which runs failed, by cell."""
    by_cell: dict[str, list[int]] = {}
    for run in sorted(runs, key=lambda run: (run.cell, run.seed)):
        by_cell.setdefault(f"{run.cell}{_role(run)}", []).append(run.seed)
    return "; ".join(
        f"{cell}, seed{'s' if len(seeds) > 1 else ''} {listed(seeds)}"
        for cell, seeds in by_cell.items()
    )


@functools.cache
def _templates() -> jinja2.Environment:
    package = Path(__file__).parent.parent
    environment = jinja2.Environment(
        # as files: importing the report takes seconds
        loader=jinja2.FileSystemLoader([package / of / "templates" for of in ("board", "report")]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.globals |= {
        "count": count,
        "number": number,
        "duration": duration,
        "facts": facts,
        "marked": _marked,
        "memory": memory,
        "role": _role,
        "spoken": _spoken,
        "who": _who,
        "version": __version__,
        "FEW": FEW,
        "GROUPS": GROUPS,
        "MOST": MOST,
        "STATES": SHOWN_STATUS,
    }
    return environment
