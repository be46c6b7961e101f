"""Whether a study would take the place of another of its name, and drop that one's results.

A study grows: an edited file may add cells and seeds, and cells without a result may leave. Where
a cell loses every result that it has, or the file has fewer seeds and their results leave, the
edited study is another one, and needs a name of its own or the user's consent. So is the study of
that name in another database, whatever makes the difference.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping

from sqlalchemy import Connection

from ablate.formats import TAKEN_OUT
from ablate.store.records import ACCEPTED
from ablate.store.schema import RUNS
from ablate.study.revision import changes
from ablate.units import listed, plural

FEW = 4  # cells and changes that a message lists

# cell → key of its runs → seed; None of runs that are not compared, which have seeds of their own
Results = Mapping[str, Mapping[str, int | None]]


def results(connection: Connection, study: str) -> dict[str, dict[str, int | None]]:
    """Return the cells of a study and their runs that have a result or are running."""
    found: dict[str, dict[str, int | None]] = {}
    for label, key, seed in connection.exec_driver_sql(
        f"SELECT cell.label, run.key, CASE member.role WHEN 'compare' THEN run.seed END {RUNS}"
        f" WHERE study.name = ? AND cell.active AND run.status IN {(*ACCEPTED, 'running')}"
        " ORDER BY cell.id",
        (study,),
    ):
        found.setdefault(label, {})[key] = seed
    return found


def dropped(old: str, new: str, before: Results, after: Collection[str], turned: str) -> str:
    """Return, in words, the results that a study loses with an edited file; "" if none.

    Args:
        old: TOML text of the study that is stored.
        new: TOML text of the one that would follow it. Where both say the same, nothing is lost:
            what differs is the text that is trained on, a decision or the version of ablate or of
            the user's code, which `store.code.leaving` tells.
        before: What has results.
        after: Keys of the runs that the study would hold, in whatever cell.
        turned: What else the file now means than when it was stored; "" for nothing.
    """
    changed = changes(old, new, folders=True) + [turned] * bool(turned)
    if not changed and TAKEN_OUT in old:  # the keys of runs alone say whether the files are others
        changed = ["the folders of its files are not known"]
    gone = lost(new, before, after) if changed else ""
    return gone and f"{gone} (changed: {few(changed, '; ')})"


def lost(toml: str, before: Results, after: Collection[str]) -> str:
    """Return, in words, the results of `before` that a study of this TOML text would not have.

    Args:
        toml: Text of the file that the study would have.
        before: As for `dropped`.
        after: As for `dropped`.
    """
    gone = {cell: len(keys) for cell, keys in before.items() if keys.keys().isdisjoint(after)}
    if gone:
        runs, which = sum(gone.values()), few(list(gone))
    else:
        stated = _seeds(toml)
        unstated = {
            key: seed
            for keys in before.values()
            for key, seed in keys.items()
            if seed is not None and seed not in stated and key not in after
        }
        if not unstated:
            return ""
        names = [str(seed) for seed in sorted({*unstated.values()})]
        runs, which = len(unstated), f"seed{'' if len(names) == 1 else 's'} {few(names)}"
    return f"{plural(runs, 'run')} of {which}"


def _seeds(toml: str) -> Collection[int]:
    """Return the seeds of a study file; all where a rule decides on them, or it is not TOML."""
    try:
        stated = seeds(tomllib.loads(toml).get("seeds"))
    except tomllib.TOMLDecodeError:
        stated = None
    return range(1 << 31) if stated is None else stated


def seeds(stated: object) -> Collection[int] | None:
    """Return the seeds that a file's `seeds` states; None where it has none or a rule decides."""
    if isinstance(stated, int):
        return range(stated)
    return stated if isinstance(stated, list) else None


def few(texts: list[str], separator: str = "") -> str:
    """Return the first of some texts, and how many more there are."""
    more = len(texts) - FEW
    shown = texts[:FEW] + ([f"{more:,} more"] if more > 0 else [])
    return separator.join(shown) if separator else listed(shown)
