"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

FIELDS = {
    "topology": sa.Text,
    "norm": sa.Text,
    "norm_kind": sa.Text,
    "n_layer": sa.Integer,
    "d_model": sa.Integer,
    "d_mlp": sa.Integer,
    "activation": sa.Text,
    "outer_activation": sa.Text,
    "bias": sa.Text,
    "init": sa.Text,
    "dropout": sa.Float,
    "attention": sa.Text,
    "n_head": sa.Integer,
    "n_kv_head": sa.Integer,
    "d_head": sa.Integer,
    "head_combine": sa.Text,
    "qkv": sa.Text,
    "qk_norm": sa.Text,
    "attention_scale": sa.Text,
    "score": sa.Text,
    "position": sa.Text,
    "n_ctx": sa.Integer,
    "tie_embeddings": sa.Text,
    "embed_norm": sa.Text,
    "mlm_head_transform": sa.Text,
    "n_vocab": sa.Integer,
    "objective": sa.Text,
    "mask_ratio": sa.Float,
    "mask_mix": sa.Text,
    "mask_kind": sa.Text,
    "z_loss": sa.Float,
    "corpus": sa.Text,
    "tokenizer": sa.Text,
    "corpus_hash": sa.Text,
    "tokenizer_hash": sa.Text,
    "steps": sa.Integer,
    "batch_tokens": sa.Integer,
    "lr": sa.Float,
    "weight_decay": sa.Float,
    "grad_clip": sa.Float,
    "warmup": sa.Float,
    "schedule": sa.Text,
    "precision": sa.Text,
    "seed": sa.Integer,
}


def upgrade() -> None:
    op.create_table(
        "metric",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("series_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("run_id", "series_id", "step", name=op.f("pk_metric")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "run",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("config", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("diverged_at", sa.Integer(), nullable=True),
        sa.Column("parent_run_id", sa.Integer(), nullable=True),
        *(sa.Column(name, kind(), nullable=False) for name, kind in FIELDS.items()),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("n_params", sa.Integer(), nullable=True),
        sa.Column("n_params_body", sa.Integer(), nullable=True),
        sa.Column("flops", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["parent_run_id"], ["run.id"], name=op.f("fk_run_parent_run_id"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_run")),
        sa.UniqueConstraint("key", name=op.f("uq_run_key")),
    )
    op.create_table(
        "series",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("goal", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_series")),
        sa.UniqueConstraint("name", name=op.f("uq_series_name")),
    )
    op.create_table(
        "study",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("question", sa.Text(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("goal", sa.Text(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("toml", sa.Text(), nullable=False),
        sa.Column("evaluation", sa.Text(), nullable=False),
        sa.Column("plan_hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_study")),
        sa.UniqueConstraint("name", name=op.f("uq_study_name")),
    )
    op.create_table(
        "artifact",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_artifact_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "kind", "path", name=op.f("pk_artifact")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "attempt",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("heartbeat", sa.Integer(), nullable=False),
        sa.Column("host", sa.Text(), nullable=True),
        sa.Column("device", sa.Text(), nullable=True),
        sa.Column("device_name", sa.Text(), nullable=True),
        sa.Column("threads", sa.Integer(), nullable=True),
        sa.Column("pack_size", sa.Integer(), nullable=True),
        sa.Column("compile_mode", sa.Text(), nullable=True),
        sa.Column("versions", sa.Text(), nullable=True),
        sa.Column("commit", sa.Text(), nullable=True),
        sa.Column("dirty", sa.Boolean(), nullable=True),
        sa.Column("started", sa.Text(), nullable=True),
        sa.Column("ended", sa.Text(), nullable=True),
        sa.Column("device_seconds", sa.Float(), nullable=True),
        sa.Column("peak_bytes", sa.Integer(), nullable=True),
        sa.Column("resumed_step", sa.Integer(), nullable=True),
        sa.Column("journal", sa.Text(), nullable=False),
        sa.Column("journal_offset", sa.Integer(), nullable=False),
        sa.Column("evaluation", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_attempt_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_attempt")),
        sa.UniqueConstraint("journal", name=op.f("uq_attempt_journal")),
        sa.UniqueConstraint("run_id", "n", name=op.f("uq_attempt_run_id")),
    )
    op.create_index(
        "ix_attempt_accepted",
        "attempt",
        ["run_id"],
        unique=True,
        sqlite_where=sa.text("status IN ('complete', 'diverged')"),
    )
    op.create_index(
        "ix_attempt_running",
        "attempt",
        ["run_id"],
        unique=True,
        sqlite_where=sa.text("status = 'running'"),
    )
    op.create_table(
        "cell",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("stratum", sa.Text(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["study.id"], name=op.f("fk_cell_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_cell")),
        sa.UniqueConstraint("study_id", "label", name=op.f("uq_cell_study_id")),
    )
    op.create_table(
        "final",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_final_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "name", "at", name=op.f("pk_final")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "cell_level",
        sa.Column("cell_id", sa.Integer(), nullable=False),
        sa.Column("factor", sa.Text(), nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["cell_id"], ["cell.id"], name=op.f("fk_cell_level_cell_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("cell_id", "factor", name=op.f("pk_cell_level")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "contrast",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("family", sa.Text(), nullable=False),
        sa.Column("stratum", sa.Text(), nullable=False),
        sa.Column("factor", sa.Text(), nullable=False),
        sa.Column("level", sa.Text(), nullable=False),
        sa.Column("cell_id", sa.Integer(), nullable=False),
        sa.Column("baseline_id", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["baseline_id"], ["cell.id"], name=op.f("fk_contrast_baseline_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["cell_id"], ["cell.id"], name=op.f("fk_contrast_cell_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["study_id"], ["study.id"], name=op.f("fk_contrast_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_contrast")),
        sa.UniqueConstraint(
            "study_id",
            "family",
            "stratum",
            "factor",
            "level",
            "cell_id",
            "baseline_id",
            name=op.f("uq_contrast_study_id"),
        ),
    )
    op.create_index(op.f("ix_contrast_baseline_id"), "contrast", ["baseline_id"], unique=False)
    op.create_index(op.f("ix_contrast_cell_id"), "contrast", ["cell_id"], unique=False)
    op.create_table(
        "decision",
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("cell_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("evidence", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["cell_id"], ["cell.id"], name=op.f("fk_decision_cell_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["study_id"], ["study.id"], name=op.f("fk_decision_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("study_id", "cell_id", "name", name=op.f("pk_decision")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "member",
        sa.Column("cell_id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("ordinal", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["cell_id"], ["cell.id"], name=op.f("fk_member_cell_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["run_id"], ["run.id"], name=op.f("fk_member_run_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("cell_id", "run_id", "role", name=op.f("pk_member")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_member_run_id"), "member", ["run_id"], unique=False)
    op.create_table(
        "effect",
        sa.Column("contrast_id", sa.Integer(), nullable=False),
        sa.Column("metric", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("lost", sa.Integer(), nullable=False),
        sa.Column("mean", sa.Float(), nullable=True),
        sa.Column("sd", sa.Float(), nullable=True),
        sa.Column("lo", sa.Float(), nullable=True),
        sa.Column("hi", sa.Float(), nullable=True),
        sa.Column("p", sa.Float(), nullable=True),
        sa.Column("p_holm", sa.Float(), nullable=True),
        sa.Column("input_hash", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["contrast_id"], ["contrast.id"], name=op.f("fk_effect_contrast_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("contrast_id", "metric", "method", name=op.f("pk_effect")),
        sqlite_with_rowid=False,
    )
