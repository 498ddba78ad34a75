"""Users by number, the machine of a local job, and the user who asked a job to end."""

from __future__ import annotations

import os
import platform
import sys

import sqlalchemy as sa
from alembic import op

from trainworks.system import user_id

if sys.platform != "win32":
    import pwd

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add user ids and hosts; 0002 has user names and a single machine."""
    for name, kind in (("uid", sa.BigInteger), ("host", sa.Text), ("asked_by", sa.BigInteger)):
        op.add_column("jobs", sa.Column(name, kind))
    op.add_column("nodes", sa.Column("uid", sa.BigInteger))
    connection = op.get_bind()
    for (owner,) in connection.execute(sa.text("SELECT DISTINCT owner FROM jobs")).all():
        values = {"owner": owner, "uid": _uid_of(owner)}
        connection.execute(sa.text("UPDATE jobs SET uid = :uid WHERE owner = :owner"), values)
        asked = "UPDATE jobs SET asked_by = :uid WHERE owner = :owner AND asked_to_end IS NOT NULL"
        connection.execute(sa.text(asked), values)
    host = {"host": os.environ.get("TRAINWORKS_HOST") or platform.node()}
    connection.execute(sa.text("UPDATE jobs SET host = :host WHERE engine = 'local'"), host)
    connection.execute(sa.text("UPDATE nodes SET uid = :uid"), {"uid": user_id()})


def _uid_of(owner: str) -> int:
    """The account of that name; the user who migrates the store where there is none."""
    if sys.platform == "win32":
        return user_id()
    try:
        return pwd.getpwnam(owner).pw_uid
    except (KeyError, ValueError):
        return user_id()
