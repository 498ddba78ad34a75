"""A job of any user in the queue of a cluster, as metrics show it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trainworks.jobs.state import JobState

if TYPE_CHECKING:
    from trainworks.jobs.job_row import JobRow


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """A job that waits, holds nodes, or ended a short time ago."""

    id: str
    name: str
    """Name of the run where Trainworks submitted the job, else of the job itself."""
    owner: str
    team: str
    state: JobState
    held: bool
    submitted_at: float
    """Seconds since the epoch."""
    cores: float = 0.0
    accelerators: int = 0
    nodes: tuple[str, ...] = ()
    reachable: bool = True
    run_dir: Path | None = None
    """None for a job that Trainworks did not submit."""


def cluster_job(row: JobRow) -> ClusterJob:
    """A job of the job store."""
    return ClusterJob(
        id=str(row.id),
        name=row.run_id,
        owner=row.owner,
        team=row.team,
        state=row.state,
        held=row.held,
        submitted_at=row.submitted_at,
        cores=sum(share.cores for share in row.placement),
        accelerators=sum(len(share.devices) for share in row.placement),
        nodes=tuple(share.node for share in row.placement),
        reachable=row.reachable,
        run_dir=Path(row.run_dir),
    )
