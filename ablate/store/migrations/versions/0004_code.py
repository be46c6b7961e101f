"""Code from outside of ablate that runs depend on, and a note on an attempt."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the table `code`, and the column `attempt.note`."""
    op.create_table(
        "code",
        sa.Column("study_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("about", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["study.id"], name=op.f("fk_code_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("study_id", "name", "version", name=op.f("pk_code")),
    )
    op.add_column("attempt", sa.Column("note", sa.Text(), nullable=True))
