"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Creates all of them."""
    op.create_table(
        "feature",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feature")),
        sa.UniqueConstraint("name", name=op.f("uq_feature_name")),
        info={"meaning": "A property of a case (fuzz/core/features.py), or an option of its target."},
        sqlite_with_rowid=True,
    )
    op.create_table(
        "hardware",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("cpu", sa.Text(), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("machine", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hardware")),
        sa.UniqueConstraint("uid", name=op.f("uq_hardware_uid")),
        info={"meaning": "A machine as sessions saw it."},
        sqlite_with_rowid=True,
    )
    op.create_table(
        "revision",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("commit", sa.Text(), nullable=False),
        sa.Column("changed", sa.Boolean(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_revision")),
        sa.UniqueConstraint("uid", name=op.f("uq_revision_uid")),
        info={"meaning": "A revision of attnfuzz."},
        sqlite_with_rowid=True,
    )
    op.create_table(
        "target",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_target")),
        sa.UniqueConstraint("name", name=op.f("uq_target_name")),
        info={"meaning": "A kernel under test."},
        sqlite_with_rowid=True,
    )
    op.create_table(
        "toolchain",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_toolchain")),
        sa.UniqueConstraint("uid", name=op.f("uq_toolchain_uid")),
        info={"meaning": "A set of versions of packages."},
        sqlite_with_rowid=True,
    )
    op.create_table(
        "measurement",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("series", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("value", sa.Double(), nullable=False),
        sa.Column("unit", sa.Text(), nullable=False),
        sa.Column("hardware_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("toolchain_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["hardware_id"], ["hardware.id"], name=op.f("fk_measurement_hardware_id")),
        sa.ForeignKeyConstraint(["revision_id"], ["revision.id"], name=op.f("fk_measurement_revision_id")),
        sa.ForeignKeyConstraint(["toolchain_id"], ["toolchain.id"], name=op.f("fk_measurement_toolchain_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_measurement")),
        sa.UniqueConstraint("uid", name=op.f("uq_measurement_uid")),
        info={"meaning": "A figure over time: a benchmark's, the scoreboard's."},
        sqlite_with_rowid=True,
    )
    op.create_index(op.f("ix_measurement_series"), "measurement", ["series"], unique=False)
    op.create_table(
        "package",
        sa.Column("toolchain_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["toolchain_id"], ["toolchain.id"], name=op.f("fk_package_toolchain_id")),
        sa.PrimaryKeyConstraint("toolchain_id", "name", name=op.f("pk_package")),
        info={"meaning": "The versions of a toolchain."},
        sqlite_with_rowid=False,
    )
    op.create_table(
        "session",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("night", sa.Text(), nullable=False),
        sa.Column("began", sa.Double(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("planned", sa.Integer(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("folder", sa.Text(), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("hardware_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("toolchain_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["hardware_id"], ["hardware.id"], name=op.f("fk_session_hardware_id")),
        sa.ForeignKeyConstraint(["revision_id"], ["revision.id"], name=op.f("fk_session_revision_id")),
        sa.ForeignKeyConstraint(["toolchain_id"], ["toolchain.id"], name=op.f("fk_session_toolchain_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_session")),
        sa.UniqueConstraint("uid", name=op.f("uq_session_uid")),
        info={"meaning": "A session: `attnfuzz run` or `pytest fuzz`, resumed or not."},
        sqlite_with_rowid=True,
    )
    op.create_index(op.f("ix_session_night"), "session", ["night"], unique=False)
    op.create_table(
        "signature",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["target.id"], name=op.f("fk_signature_target_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_signature")),
        sa.UniqueConstraint("uid", name=op.f("uq_signature_uid")),
        info={"meaning": "A bug, as far as failures can tell: findings of all sessions that are one."},
        sqlite_with_rowid=True,
    )
    op.create_index(op.f("ix_signature_target_id"), "signature", ["target_id"], unique=False)
    op.create_table(
        "alias",
        sa.Column("uid", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("signature_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["signature_id"], ["signature.id"], name=op.f("fk_alias_signature_id")),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_alias")),
        info={"meaning": "Findings that are one signature, also that signature's own id."},
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_alias_signature_id"), "alias", ["signature_id"], unique=False)
    op.create_table(
        "compiled",
        sa.Column("session_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("arch", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("status", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("kernels", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["session.id"], name=op.f("fk_compiled_session_id")),
        sa.PrimaryKeyConstraint("session_id", "arch", "status", name=op.f("pk_compiled")),
        info={"meaning": "Kernels that a session asked for before its cases."},
        sqlite_with_rowid=False,
    )
    op.create_table(
        "coverage",
        sa.Column("session_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("feature_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("other_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cases", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["feature_id"], ["feature.id"], name=op.f("fk_coverage_feature_id")),
        sa.ForeignKeyConstraint(["other_id"], ["feature.id"], name=op.f("fk_coverage_other_id")),
        sa.ForeignKeyConstraint(["session_id"], ["session.id"], name=op.f("fk_coverage_session_id")),
        sa.PrimaryKeyConstraint("session_id", "feature_id", "other_id", name=op.f("pk_coverage")),
        info={"meaning": "Pairs of features that a session's cases had; a feature with itself: that feature alone."},
        sqlite_with_rowid=False,
    )
    op.create_table(
        "event",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("signature_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("link", sa.Text(), nullable=False),
        sa.Column("archs", sa.Text(), nullable=False),
        sa.Column("until", sa.Text(), nullable=False),
        sa.Column("author", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["signature_id"], ["signature.id"], name=op.f("fk_event_signature_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_event")),
        sa.UniqueConstraint("uid", name=op.f("uq_event_uid")),
        info={"meaning": "What somebody said about a signature."},
        sqlite_with_rowid=True,
    )
    op.create_index(op.f("ix_event_signature_id"), "event", ["signature_id"], unique=False)
    op.create_table(
        "finding",
        sa.Column("session_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("signature_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("met", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("probed", sa.Integer(), nullable=False),
        sa.Column("minimal", sa.Boolean(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.Column("case", sa.Text(), nullable=True),
        sa.Column("after", sa.Text(), nullable=True),
        sa.Column("evidence", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(["session_id"], ["session.id"], name=op.f("fk_finding_session_id")),
        sa.ForeignKeyConstraint(["signature_id"], ["signature.id"], name=op.f("fk_finding_signature_id")),
        sa.PrimaryKeyConstraint("session_id", "signature_id", name=op.f("pk_finding")),
        info={"meaning": "A signature in a session that met it."},
        sqlite_with_rowid=True,
    )
    op.create_index(op.f("ix_finding_signature_id"), "finding", ["signature_id"], unique=False)
    op.create_table(
        "replay",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("signature_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("arch", sa.Text(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("hardware_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("toolchain_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("revision_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.ForeignKeyConstraint(["hardware_id"], ["hardware.id"], name=op.f("fk_replay_hardware_id")),
        sa.ForeignKeyConstraint(["revision_id"], ["revision.id"], name=op.f("fk_replay_revision_id")),
        sa.ForeignKeyConstraint(["signature_id"], ["signature.id"], name=op.f("fk_replay_signature_id")),
        sa.ForeignKeyConstraint(["toolchain_id"], ["toolchain.id"], name=op.f("fk_replay_toolchain_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_replay")),
        sa.UniqueConstraint("uid", name=op.f("uq_replay_uid")),
        info={"meaning": "Runs of a signature's saved case after its session."},
        sqlite_with_rowid=True,
    )
    op.create_index(op.f("ix_replay_signature_id"), "replay", ["signature_id"], unique=False)
    op.create_table(
        "run",
        sa.Column("session_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("target_id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("outcome", sa.SmallInteger(), nullable=False),
        sa.Column("place", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("signature_id", sa.Integer(), autoincrement=False, nullable=True),
        sa.Column("case_id", sa.BigInteger(), nullable=False),
        sa.Column("ratio", sa.Integer(), nullable=False),
        sa.Column("duration", sa.Integer(), nullable=False),
        sa.Column("features", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["session.id"], name=op.f("fk_run_session_id")),
        sa.ForeignKeyConstraint(["signature_id"], ["signature.id"], name=op.f("fk_run_signature_id")),
        sa.ForeignKeyConstraint(["target_id"], ["target.id"], name=op.f("fk_run_target_id")),
        sa.PrimaryKeyConstraint("session_id", "target_id", "place", name=op.f("pk_run")),
        info={"meaning": "The verdict of a case."},
        sqlite_with_rowid=False,
    )
    op.create_index(
        "ix_run_signature",
        "run",
        ["signature_id"],
        unique=False,
        sqlite_where=sa.text("signature_id IS NOT NULL"),
        postgresql_where=sa.text("signature_id IS NOT NULL"),
    )
    op.create_table(
        "session_target",
        sa.Column("session_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("arch", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["session.id"], name=op.f("fk_session_target_session_id")),
        sa.ForeignKeyConstraint(["target_id"], ["target.id"], name=op.f("fk_session_target_target_id")),
        sa.PrimaryKeyConstraint("session_id", "target_id", name=op.f("pk_session_target")),
        info={"meaning": "What a target's kernels were compiled for in a session."},
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tally",
        sa.Column("session_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("outcome", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("cases", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["session.id"], name=op.f("fk_tally_session_id")),
        sa.ForeignKeyConstraint(["target_id"], ["target.id"], name=op.f("fk_tally_target_id")),
        sa.PrimaryKeyConstraint("session_id", "target_id", "outcome", name=op.f("pk_tally")),
        info={"meaning": "Cases of a session by target and outcome."},
        sqlite_with_rowid=False,
    )
    op.create_table(
        "timing",
        sa.Column("session_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("phase", sa.Text(), autoincrement=False, nullable=False),
        sa.Column("cases", sa.Integer(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("p50", sa.Double(), nullable=False),
        sa.Column("p95", sa.Double(), nullable=False),
        sa.Column("most", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["session.id"], name=op.f("fk_timing_session_id")),
        sa.ForeignKeyConstraint(["target_id"], ["target.id"], name=op.f("fk_timing_target_id")),
        sa.PrimaryKeyConstraint("session_id", "target_id", "phase", name=op.f("pk_timing")),
        info={"meaning": "Seconds of a session's cases by target and phase."},
        sqlite_with_rowid=False,
    )
