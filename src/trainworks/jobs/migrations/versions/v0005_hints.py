"""Hints of how jobs and their attempts ended."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the hint of an end; ends of 0004 have none."""
    op.add_column("jobs", sa.Column("hint", sa.Text))
    op.add_column("attempts", sa.Column("hint", sa.Text))
