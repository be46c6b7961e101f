"""The tables of a results database. A comment next to a column says what it holds, and what NULL
means in it.

A run keeps the fields of its kind as JSON, so that a new factor needs no migration; the view `runs`
shows them as columns. A change of a table or of a view is a migration: a file in
`migrations/versions`, `HEAD` raised, and `OLDEST` too if a table changed, and then
`python tests/test_store_migrations.py`, which keeps a database of that schema for the tests of all
later ones.
"""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

HEAD = "0005"  # the newest migration: the schema that this version of ablate writes
OLDEST = "0004"  # that it reads: later migrations changed no table, only views
VERSION_TABLE = "ablate_version"

# from studies to runs: a row for each place of a run in a study
RUNS = """
FROM study JOIN cell ON cell.study_id = study.id JOIN member ON member.cell_id = cell.id
     JOIN run ON run.id = member.run_id
"""


def to_db(value: float | None) -> float | None:
    """Return a measured number as a column holds it: NULL for NaN, which SQLite lacks."""
    return None if value is None or math.isnan(value) else value


def from_db(value: float | None) -> float:
    """Return a measured number from a `value` column: NULL is NaN; "not measured" has no row."""
    return math.nan if value is None else value


metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ix": "ix_%(table_name)s_%(column_0_name)s",
    }
)


def _refers(name: str, to: str, **options: Any) -> Column[Any]:
    return Column(
        name, Integer, ForeignKey(to, ondelete="CASCADE"), **{"nullable": False, **options}
    )


study = Table(
    "study",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("question", Text, nullable=False),
    Column("metric", Text, nullable=False),  # a final's name, or name@at
    Column("goal", Text, nullable=False),  # min, max
    Column("revision", Integer, nullable=False),  # raised when the plan changes
    Column("toml", Text, nullable=False),
    Column("evaluation", Text, nullable=False),  # JSON of the study's [eval]
    Column("plan_hash", Text, nullable=False),
)

cell = Table(
    "cell",
    metadata,
    Column("id", Integer, primary_key=True),
    _refers("study_id", "study.id"),
    Column("label", Text, nullable=False),
    Column("stratum", Text, nullable=False),
    Column("active", Boolean, nullable=False),  # 0: a later revision of the study left it out
    UniqueConstraint("study_id", "label"),
)

cell_level = Table(
    "cell_level",
    metadata,
    _refers("cell_id", "cell.id", primary_key=True),
    Column("factor", Text, primary_key=True),
    Column("level", Text, nullable=False),
    Column(
        "ordinal", Integer, nullable=False
    ),  # of the level among its factor's; the baseline is 0
    sqlite_with_rowid=False,
)

contrast = Table(
    "contrast",
    metadata,
    Column("id", Integer, primary_key=True),
    _refers("study_id", "study.id"),
    Column("family", Text, nullable=False),
    Column("stratum", Text, nullable=False),
    Column("factor", Text, nullable=False),
    Column("level", Text, nullable=False),
    _refers("cell_id", "cell.id", index=True),
    _refers("baseline_id", "cell.id", index=True),
    UniqueConstraint("study_id", "family", "stratum", "factor", "level", "cell_id", "baseline_id"),
)

run = Table(
    "run",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", Text, nullable=False),  # see `ablate.kinds`
    Column("key", Text, nullable=False, unique=True),
    Column("fields", Text, nullable=False),  # JSON of the kind's fields, defaults written out
    Column("seed", Integer, nullable=False),
    Column("parent_run_id", Integer, ForeignKey("run.id", ondelete="SET NULL")),
    Column("status", Text, nullable=False),
    Column("diverged_at", Integer),  # step
    # What training takes. NULL is "unknown".
    Column("steps", Integer),
    Column("tokens", Integer),
    Column("n_params", Integer),
    Column("n_params_body", Integer),  # without embeddings and head
    Column("flops", Float),  # of the whole training; beyond 2^63 for large runs
)

# The fields of each run as columns, one for each field in use: a copy of `run.fields` for reading,
# which `ablate.store.views.refresh` fills and widens.
run_field = Table(
    "run_field", metadata, _refers("run_id", "run.id", primary_key=True, autoincrement=False)
)

member = Table(
    "member",
    metadata,
    _refers("cell_id", "cell.id", primary_key=True),
    _refers("run_id", "run.id", primary_key=True, index=True),
    Column("role", Text, primary_key=True),  # compare, tune, pretrain
    Column("ordinal", Integer, nullable=False),  # position in the plan
    sqlite_with_rowid=False,
)

attempt = Table(
    "attempt",
    metadata,
    Column("id", Integer, primary_key=True),
    _refers("run_id", "run.id"),
    Column("n", Integer, nullable=False),  # 1, 2, … of its run
    Column("status", Text, nullable=False),
    Column("owner", Text, nullable=False),  # host:pid:token of the launcher
    # The newest heartbeat of the journal: a counter, because the clocks of two hosts differ.
    Column("heartbeat", Integer, nullable=False),
    Column("host", Text),
    Column("device", Text),
    Column("device_name", Text),
    Column("threads", Integer),
    Column("pack_size", Integer),
    Column("compile_mode", Text),
    Column("note", Text),  # what a reader should know of how it ran; NULL for nothing
    Column("versions", Text),  # JSON
    Column("commit", Text),
    Column("dirty", Boolean),
    Column("started", Text),  # ISO 8601, UTC
    Column("ended", Text),
    Column("device_seconds", Float),
    Column("peak_bytes", Integer),
    Column("resumed_step", Integer),  # step it began at; 0 from scratch
    Column(
        "journal", Text, nullable=False, unique=True
    ),  # file name in the journals' folder; its identity everywhere
    Column("journal_offset", Integer, nullable=False),  # bytes of it that are in the tables
    Column(
        "evaluation", Text, nullable=False
    ),  # JSON of the [eval] that its finals were measured by
    Column("error", Text),
    UniqueConstraint("run_id", "n"),
    Index("ix_attempt_running", "run_id", unique=True, sqlite_where=text("status = 'running'")),
    Index(
        "ix_attempt_accepted",
        "run_id",
        unique=True,
        sqlite_where=text("status IN ('complete', 'diverged')"),
    ),
)

series = Table(
    "series",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("unit", Text, nullable=False),
    Column("goal", Text, nullable=False),  # min, max, or empty where neither is better
)

# No foreign keys: checking them costs a third of the write rate. `ablate db check` looks for rows
# without a run.
metric = Table(
    "metric",
    metadata,
    Column("run_id", Integer, primary_key=True),
    Column("series_id", Integer, primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("value", Float),  # NULL is NaN
    sqlite_with_rowid=False,
)

final = Table(
    "final",
    metadata,
    _refers("run_id", "run.id", primary_key=True),
    Column("name", Text, primary_key=True),
    Column("at", Float, primary_key=True),  # length factor, probe ratio or block; else 0
    Column("value", Float),  # NULL is NaN
    sqlite_with_rowid=False,
)

# A row has kilobytes: in a table without row numbers it would make every search slow.
window_loss = Table(
    "window_loss",
    metadata,
    _refers("run_id", "run.id", primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),  # of a final: loss, probe_loss
    Column("at", Float, primary_key=True),  # its `at`
    Column("tokens", Integer, nullable=False),  # of held-out text that a window covers
    # as `ablate.windows` packs them: starts and scored tokens of the windows, and their losses
    Column("layout", LargeBinary, nullable=False),
    Column("losses", LargeBinary, nullable=False),
)

decision = Table(
    "decision",
    metadata,
    _refers("study_id", "study.id", primary_key=True),
    _refers("cell_id", "cell.id", primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),  # JSON
    Column("evidence", Text, nullable=False),  # JSON
    sqlite_with_rowid=False,
)

effect = Table(
    "effect",
    metadata,
    _refers("contrast_id", "contrast.id", primary_key=True),
    Column("metric", Text, primary_key=True),
    Column("method", Text, primary_key=True),
    Column("n", Integer, nullable=False),  # pairs
    Column("lost", Integer, nullable=False),  # pairs without a finite difference
    Column("mean", Float),
    Column("sd", Float),
    Column("lo", Float),
    Column("hi", Float),
    Column("p", Float),
    Column("p_holm", Float),
    Column("input_hash", Text, nullable=False),
    sqlite_with_rowid=False,
)

# What was found in a study, as data. Columns that a finding is not about are NULL.
finding = Table(
    "finding",
    metadata,
    _refers("study_id", "study.id", primary_key=True),
    Column("ordinal", Integer, primary_key=True),  # 0, 1, …: the order in which they are told
    Column("kind", Text, nullable=False),
    Column("stratum", Text),
    Column("factor", Text),
    Column("level", Text),
    Column("cell", Text),  # label
    Column("data", Text, nullable=False),  # JSON
    sqlite_with_rowid=False,
)

# Code from outside of ablate that runs of a study depend on, in every version that made runs. A row
# has kilobytes, as in `window_loss`.
code = Table(
    "code",
    metadata,
    _refers("study_id", "study.id", primary_key=True, autoincrement=False),
    Column("name", Text, primary_key=True),  # a file or package as the study names it
    Column("version", Text, primary_key=True),  # SHA-256 of the text; else what is known of it
    Column("active", Boolean, nullable=False),  # 0: a later revision of the study has another
    Column("text", Text),  # NULL where only the version is known
    Column("about", Text, nullable=False),  # JSON: what readers learn of it without loading it
)

artifact = Table(
    "artifact",
    metadata,
    _refers("run_id", "run.id", primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("path", Text, primary_key=True),  # readers use only its file name
    sqlite_with_rowid=False,
)
