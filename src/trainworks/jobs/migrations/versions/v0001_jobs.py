"""Jobs, their attempts, and drained nodes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    texts = ("handle", "raw", "reason", "detail", "cause", "message", "asked_to_end", "placement")
    whole = ("priority", "attempt", "restarts", "version")
    needed = ("run_id", "run_dir", "name", "owner", "engine", "ticket", "state")
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in needed),
        *(sa.Column(name, sa.Text) for name in texts),
        *(sa.Column(name, sa.Integer, nullable=False) for name in whole),
        *(sa.Column(name, sa.Integer) for name in ("exit_code", "position")),
        *(sa.Column(name, sa.Boolean, nullable=False) for name in ("held", "reachable")),
        *(sa.Column(name, sa.Float, nullable=False) for name in ("submitted_at", "changed_at")),
        *(sa.Column(name, sa.Float) for name in ("starts_at", "started_at", "ended_at")),
        sa.UniqueConstraint("run_dir"),
        sqlite_autoincrement=True,
    )
    for name, columns in (
        ("jobs_by_version", ["version"]),
        ("jobs_by_state", ["state", "id"]),
        ("jobs_by_run_id", ["run_id"]),
        ("jobs_by_name", ["name", "id"]),
        ("jobs_by_owner", ["owner", "id"]),
    ):
        op.create_index(name, "jobs", columns)
    op.create_table(
        "attempts",
        sa.Column("job_id", sa.Integer, sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("cause", sa.Text),
        sa.Column("message", sa.Text),
        sa.Column("placement", sa.Text),
        sa.Column("exit_code", sa.Integer),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float),
    )
    changes = op.create_table("changes", sa.Column("number", sa.Integer, nullable=False))
    op.bulk_insert(changes, [{"number": 0}])
    op.create_table(
        "nodes",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("drained_at", sa.Float, nullable=False),
    )
