"""Losses of held-out windows, and findings."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Make the tables `window_loss` and `finding`."""
    op.create_table(
        "window_loss",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("layout", sa.LargeBinary(), nullable=False),
        sa.Column("losses", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_window_loss_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "name", "at", name=op.f("pk_window_loss")),
    )
    op.create_table(
        "finding",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("stratum", sa.Text(), nullable=True),
        sa.Column("factor", sa.Text(), nullable=True),
        sa.Column("level", sa.Text(), nullable=True),
        sa.Column("cell", sa.Text(), nullable=True),
        sa.Column("data", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["study.id"], name=op.f("fk_finding_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("study_id", "ordinal", name=op.f("pk_finding")),
        sqlite_with_rowid=False,
    )
