"""The array that a job is one of."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the id of the array; jobs of 0003 are none of any."""
    op.add_column("jobs", sa.Column("array", sa.Text))
    op.create_index("jobs_by_array", "jobs", ["array", "id"])
