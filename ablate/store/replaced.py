"""Whether a study would take the place of another of its name, and drop that one's results.

A study grows: an edited file may add cells and seeds, and cells without a result may leave. Where
a cell loses every result that it has, the edited study is another one, and needs a name of its own
or the user's consent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection

from ablate.study.revision import changes
from ablate.units import listed

FEW = 4  # cells and changes that a message lists

Results = Mapping[str, set[str]]  # cell → keys of its runs


def results(connection: Connection, study: str) -> dict[str, set[str]]:
    """Return the cells of a study → the keys of their runs that have a result or are running."""
    found: dict[str, set[str]] = {}
    for label, key in connection.exec_driver_sql(
        "SELECT cell.label, run.key FROM study JOIN cell ON cell.study_id = study.id JOIN member ON"
        " member.cell_id = cell.id JOIN run ON run.id = member.run_id WHERE study.name = ? AND"
        " cell.active AND run.status IN ('complete', 'diverged', 'running') ORDER BY cell.id",
        (study,),
    ):
        found.setdefault(label, set()).add(key)
    return found


def dropped(old: str, new: str, before: Results, after: Collection[str]) -> str:
    """Return, in words, the results that a study loses; "" if no cell loses all that it has.

    Args:
        old: TOML text of the study that is stored.
        new: TOML text of the one that would follow it. Where both say the same, nothing is lost:
            what differs is the text that is trained on, a decision or the version of ablate.
        before: What has results.
        after: Keys of the runs that the study would hold, in whatever cell.
    """
    if not (changed := changes(old, new)):
        return ""
    gone = {cell: len(keys) for cell, keys in before.items() if keys.isdisjoint(after)}
    if not gone:
        return ""
    runs, cells = sum(gone.values()), _few(list(gone))
    return f"{runs:,} run{'' if runs == 1 else 's'} of {cells} (changed: {_few(changed, '; ')})"


def _few(texts: list[str], separator: str = "") -> str:
    more = len(texts) - FEW
    shown = texts[:FEW] + ([f"{more:,} more"] if more > 0 else [])
    return separator.join(shown) if separator else listed(shown)
