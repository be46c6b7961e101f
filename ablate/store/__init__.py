"""The results database, and the contract that holds between its writers and readers.

SQLite is the only backend. Training does not write to it: workers append to journals, which may lie
on storage that several hosts share, and one process ingests them. So a single writer is enough, and
a study stays one file that any tool can query and that can be committed and copied.

Each sentence below has a name; `tests/test_store_contract.py` lists the tests that check it.

Who writes:

- `worker`: A worker writes journals, checkpoints and weights, and never opens the database.
- `owner`: At any time a run has at most one running attempt. Two launchers never claim the same
  run; only the owner of an attempt starts its worker, closes it and may say how it ended.
- `result`: At most one attempt of a run is complete or diverged. The run's numbers are that
  attempt's; a run that is done again keeps them until the new attempt has a result.
- `ingest-once`: Every event of a journal reaches the tables exactly once, whoever ingests it: the
  offset moves by compare-and-set in the transaction that inserts the rows.
- `fenced`: What an attempt writes after it was marked dead, stopped or closed is not ingested.
- `decision`: A stored decision is final: a second one for the same cell does not replace it.

What is atomic. Each is one transaction that begins with BEGIN IMMEDIATE, done whole or not at all:

- `transaction`: A write locks before it reads, and is undone by any error.
- `register`: A plan with its cells, contrasts, runs and their fields. The same plan again changes
  nothing; a changed plan deletes no run and no number.
- `claim`: The attempts of all runs of one claim.
- `ingest`: The new events of all journals of one call. A journal that cannot be ingested does
  not block the others.
- `merge`: Everything of the other database. Merging again changes nothing.
- `forget`: Everything that belongs only to the study.
- `schema`: Creation and upgrades, by one process while others wait, with a backup before.

What a reader may rely on:

- `snapshot`: One `read` sees one state of the database throughout, while others write.
- `read-only`: Reading changes no byte, and leaves no new file in the database's folder.
- `numbers`: A measured number comes back bit by bit. NaN is stored as NULL; what was not measured
  has no row.
- `fields`: The view `runs` has a column for each field of each run.
- `history`: Only `forget`, `thin` and a `start` event delete attempts or measured numbers. A
  `start` event deletes the points after the checkpoint that it resumes from.

What survives a kill of any process at any moment:

- `kill`: Committed data is kept, uncommitted data is ingested again from its journal, and nothing
  is stored twice.
- `torn-line`: An incomplete last line of a journal is read when it is complete; a full disk leaves
no partial line.
- `stale`: A run whose launcher and worker are gone is done again, after everything that its journal
  holds was ingested. On one host a file lock shows that at once; on another host the worker's
  journal has no new heartbeat for a lease. An attempt in a cluster's queue outlasts its launcher:
  it is never stale, and the next launcher of its study on that cluster adopts it.
- `covered`: An attempt continues from a checkpoint only if the points before it are stored. A
  worker that trains on after its run was taken over, or whose journal a power failure cut, leaves
  checkpoints that are newer.
- `at-rest`: When nobody has it open, the database is one file in DELETE mode.

The folders `Database.journals`, `Database.checkpoints` and `Database.weights` are next to the file
and have its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ablate.store.location import exists, locate

if TYPE_CHECKING:
    from ablate.store.database import Database, open

__all__ = ["Database", "exists", "locate", "open"]


def __getattr__(name: str) -> Any:
    """Import `Database` and `open` at first use: locating a file needs no SQLAlchemy."""
    if name in __all__:
        from ablate.store import database

        return getattr(database, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
