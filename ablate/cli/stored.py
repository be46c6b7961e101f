"""Studies in the database, by name or by file, and how a file differs from its runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from ablate.plan import Plan
    from ablate.store import Database
    from ablate.store.code import Made

FEW = 6  # changes of a study file that are listed


def name_of(argument: str, database: Database) -> str:
    """Return the name of a study in the database, given by name or by its file.

    Raises:
        AblateError: A file is not a study.
    """
    from ablate import study
    from ablate.store.names import studies

    if argument in studies(database) or not argument.endswith(".toml"):
        return argument
    return study.name(study.find(argument))


def notes(name: str, database: Database, file: str = "") -> Iterator[str]:
    """Yield how a study's file differs from the study that its runs belong to, and what left it.

    Args:
        name: The study.
        database: Holds it.
        file: Its file; by default the one of that name in studies/.
    """
    from ablate import study
    from ablate.code import identity, short
    from ablate.errors import AblateError
    from ablate.store.code import made
    from ablate.store.status import left, planned
    from ablate.study import examples
    from ablate.study.revision import changes
    from ablate.units import listed, plural

    with contextlib.suppress(AblateError):
        path = study.find(file or name.removesuffix("-tiny"))
        yield from _edited(made(database, name), path.parent)
        toml, revision = planned(database, name)
        # an example has the study's name only: the file may have been in another folder
        alike = bool(file) or path not in examples.studies()
        changed = alike and changes(toml, path.read_text(encoding="utf-8"))
        if changed and name in ((its := study.name(path)), f"{its}-tiny"):
            more = len(changed) - FEW
            yield (
                f"{path} was edited after its runs were planned (revision {revision}):"
                f" {'; '.join(changed[:FEW])}{f'; {more} more' if more > 0 else ''}."
            )
    versions = sorted(made(database, name), key=lambda one: one.active)
    # a file that was renamed is there under both names
    for one in {identity([one.code.label])[0]: one for one in versions}.values():
        if one.left and one.active:  # another file, text or decision, but the same code
            yield (
                f"{plural(one.left, 'run')} of earlier revisions left the study {name}: its cells"
                " have other runs now."
            )
        elif one.left:
            yield (
                f"{plural(one.left, 'run')} by an earlier {one.code.name}"
                f" ({short(one.code.version)}) left the study {name}."
            )
    if gone := left(database, name):
        runs = sum(gone.values())
        yield f"{plural(runs, 'run')} of earlier revisions left the study {name}: {listed(gone)}."


def leaving(plan: Plan, database: Database) -> Iterator[str]:
    """Yield how many results leave a study if a plan is run, because other code made them."""
    from ablate.store import code
    from ablate.units import listed, plural

    if found := code.leaving(database, plan):
        runs = sum(found.values())
        yield (
            f"{plural(runs, 'run')} of the study {plan.study.name} with a result"
            f" {'is' if runs == 1 else 'are'} of other code (version {listed(found, most=3)}):"
            f" {'it leaves' if runs == 1 else 'they leave'} the study when this file is run, and"
            f" {'comes' if runs == 1 else 'come'} back with that code"
        )


def keeping(plan: Plan, database: Database) -> Iterator[str]:
    """Yield which complete runs keep curves with other points than the plan's `[eval]` has."""
    from ablate.store.evaluated import kept_points
    from ablate.units import plural

    evaluation = plan.study.evaluation
    for points, runs in sorted(kept_points(database, plan.study.name, evaluation).items()):
        yield (
            f"[eval] points = {evaluation.points} is for new runs:"
            f" {plural(runs, 'complete run')} {'keeps' if runs == 1 else 'keep'}"
            f" {plural(points, 'point')}"
        )


def _edited(sources: Sequence[Made], folder: Path) -> Iterator[str]:
    """Yield which rows an older version of the code made than the one that is there now."""
    from ablate.code import short
    from ablate.units import listed, plural
    from ablate.used import version

    for one in sources:
        now = version(one.code.name, folder)
        if one.active and one.cells and now not in (None, one.code.version):
            runs = sum(one.cells.values())
            yield (
                f"{one.code.name} is another version now ({short(now)}) than that which made"
                f" {plural(runs, 'run')} of {listed(one.cells)}"
                f" ({short(one.code.version)}); `ablate run` trains them anew."
            )
