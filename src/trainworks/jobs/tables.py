"""Tables of the job store. `migrations/` makes them; a test holds the two against each other."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, ForeignKey, Index, Integer, MetaData, Table, Text

metadata = MetaData()

jobs = Table(
    "jobs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("run_id", Text, nullable=False),
    Column("run_dir", Text, nullable=False, unique=True),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("engine", Text, nullable=False),
    Column("handle", Text),
    Column("ticket", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("held", Boolean, nullable=False),
    Column("state", Text, nullable=False),
    Column("raw", Text),
    Column("reason", Text),
    Column("detail", Text),
    Column("cause", Text),
    Column("message", Text),
    Column("hint", Text),
    Column("exit_code", Integer),
    Column("asked_to_end", Text),
    Column("attempt", Integer, nullable=False),
    Column("restarts", Integer, nullable=False),
    Column("placement", Text),
    Column("reachable", Boolean, nullable=False),
    Column("position", Integer),
    Column("starts_at", Float),
    Column("submitted_at", Float, nullable=False),
    Column("started_at", Float),
    Column("ended_at", Float),
    Column("changed_at", Float, nullable=False),
    Column("version", Integer, nullable=False),
    Column("cluster", Text),
    Column("uid", BigInteger),
    Column("host", Text),
    Column("asked_by", BigInteger),
    Column("array", Text),
    Index("jobs_by_version", "version"),
    Index("jobs_by_state", "state", "id"),
    Index("jobs_by_run_id", "run_id"),
    Index("jobs_by_name", "name", "id"),
    Index("jobs_by_owner", "owner", "id"),
    Index("jobs_by_array", "array", "id"),
    sqlite_autoincrement=True,
)
"""One row per job, its latest attempt included; columns are those of `JobRow`, its `End`, and `array` of its spec."""

attempts = Table(
    "attempts",
    metadata,
    Column("job_id", Integer, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("state", Text, nullable=False),
    Column("cause", Text),
    Column("message", Text),
    Column("hint", Text),
    Column("placement", Text),
    Column("exit_code", Integer),
    Column("started_at", Float, nullable=False),
    Column("ended_at", Float),
)
"""Every time that a job got its nodes."""

changes = Table("changes", metadata, Column("number", Integer, nullable=False))
"""One row: how many changes of jobs there have been. A writer takes the next number and keeps others from writing
until it is done, so that numbers become visible in their order."""

nodes = Table(
    "nodes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("drained_at", Float, nullable=False),
    Column("uid", BigInteger),
)
"""Nodes of this machine that get no more jobs."""
