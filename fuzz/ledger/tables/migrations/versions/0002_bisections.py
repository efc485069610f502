"""The table of bisections."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Creates it."""
    op.create_table(
        "bisection",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("signature_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("history", sa.Text(), nullable=False),
        sa.Column("good", sa.Text(), nullable=False),
        sa.Column("bad", sa.Text(), nullable=False),
        sa.Column("suspects", sa.Integer(), nullable=False),
        sa.Column("first", sa.Text(), nullable=False),
        sa.Column("probability", sa.Double(), nullable=False),
        sa.Column("confident", sa.Boolean(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("hardware_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("toolchain_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["hardware_id"], ["hardware.id"], name=op.f("fk_bisection_hardware_id")),
        sa.ForeignKeyConstraint(["revision_id"], ["revision.id"], name=op.f("fk_bisection_revision_id")),
        sa.ForeignKeyConstraint(["signature_id"], ["signature.id"], name=op.f("fk_bisection_signature_id")),
        sa.ForeignKeyConstraint(["toolchain_id"], ["toolchain.id"], name=op.f("fk_bisection_toolchain_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_bisection")),
        sa.UniqueConstraint("uid", name=op.f("uq_bisection_uid")),
        info={"meaning": "A search for the revision that a signature came with (`attnfuzz bisect`)."},
        sqlite_with_rowid=True,
    )
    op.create_index(op.f("ix_bisection_signature_id"), "bisection", ["signature_id"], unique=False)
