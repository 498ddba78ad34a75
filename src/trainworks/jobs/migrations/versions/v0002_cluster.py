"""The cluster that a job was submitted to: its engine is asked even where the run directory is gone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the cluster of a job, which 0001 has in run directories alone."""
    op.add_column("jobs", sa.Column("cluster", sa.Text))
