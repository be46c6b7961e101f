"""A run keeps its fields as JSON: the typed columns of the first schema go."""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_KEPT = (
    *("id", "key", "seed", "parent_run_id", "status", "diverged_at", "steps", "tokens"),
    *("n_params", "n_params_body", "flops"),
)


def upgrade() -> None:
    """Copy every row of `run` into a table of the new shape, under its old id."""
    op.create_table(
        "run_new",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fields", sa.Text(), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("parent_run_id", sa.Integer(), nullable=True),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("diverged_at", sa.Integer(), nullable=True),
        sa.Column("steps", sa.Integer(), nullable=True),
        sa.Column("tokens", sa.Integer(), nullable=True),
        sa.Column("n_params", sa.Integer(), nullable=True),
        sa.Column("n_params_body", sa.Integer(), nullable=True),
        sa.Column("flops", sa.Float(), nullable=True),
        # SQLite renames the reference together with the table
        sa.ForeignKeyConstraint(
            ["parent_run_id"],
            ["run_new.id"],
            name=op.f("fk_run_parent_run_id"),
            ondelete="SET NULL",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("key", name=op.f("uq_run_key")),
    )
    connection = op.get_bind()
    columns = ", ".join(_KEPT)
    last = 0
    while rows := connection.exec_driver_sql(
        f"SELECT config, {columns} FROM run WHERE id > ? ORDER BY id LIMIT 10000", (last,)
    ).all():
        connection.exec_driver_sql(
            f"INSERT INTO run_new (kind, fields, {columns})"
            f" VALUES ('transformer', ?{', ?' * len(_KEPT)})",
            [(_without_seed(row[0]), *row[1:]) for row in rows],
        )
        last = rows[-1].id
    op.drop_table("run")
    op.rename_table("run_new", "run")
    op.create_table(
        "run_field",
        sa.Column("run_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_run_field_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_run_field")),
    )
    op.drop_column("artifact", "sha256")  # nothing wrote it


def _without_seed(config: str) -> str:
    """The fields of a configuration, which has a seed, as JSON."""
    return json.dumps({k: v for k, v in json.loads(config).items() if k != "seed"})
