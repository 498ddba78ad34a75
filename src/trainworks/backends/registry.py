"""The backend that a run file names. Its module is imported when it is asked for: most bring a database along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from trainworks.backends.backend import Backend
from trainworks.config.run_file import Cluster
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.jobs.program import Program, program_of
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

if TYPE_CHECKING:
    from trainworks.jobs.store import JobRow, JobStore

__all__ = ["FAR", "backend_for", "backend_of_job", "backend_of_run", "cluster_of", "cluster_of_job"]


FAR = frozenset(("kubernetes", "skypilot", "ray"))
"""Engines that do not share files with their nodes, by name: they need not be imported to be told apart."""


def backend_for(cluster: Cluster, *, store: JobStore | None = None, program: Program | None = None) -> Backend:
    """The backend of a cluster.

    Args:
        cluster: as the run file has it.
        store: of this machine's own queue, where it is open already.
        program: what the job runs; some backends have to be told before they can submit it, see `backend_of_run`.

    Raises:
        UsageError: the cluster is described for planning; no backend has it.
    """
    if cluster.engine == "local":
        from trainworks.backends.local.backend import LocalBackend  # noqa: PLC0415

        return LocalBackend(store)
    if cluster.engine == "slurm":
        from trainworks.backends.slurm.backend import SlurmBackend  # noqa: PLC0415

        return SlurmBackend(cluster.slurm)
    if cluster.engine == "kubernetes":
        from trainworks.backends.kubernetes.backend import KubernetesBackend  # noqa: PLC0415

        return KubernetesBackend(cluster.kubernetes, autoscale=cluster.autoscale)
    if cluster.engine == "skypilot":
        from trainworks.backends.skypilot.backend import SkyPilotBackend  # noqa: PLC0415

        return SkyPilotBackend(cluster.skypilot, program=program)
    if cluster.engine == "ray":
        from trainworks.backends.ray.backend import RayBackend  # noqa: PLC0415

        return RayBackend(cluster.ray, program=program)
    raise UsageError(
        f"cluster `{cluster.of or cluster.engine}` has no queue that this version can talk to",
        hint="set `cluster: local`, `slurm`, `kubernetes`, `skypilot` or `ray`",
    )


def backend_of_run(resolved: ResolvedRun, *, store: JobStore | None = None) -> Backend:
    """The backend that a run names, told what a backend has to know that runs it without Trainworks on its nodes.

    Raises:
        UsageError: as `backend_for`; or the run is a workload, which such a backend cannot train.
    """
    run_file, program = resolved.run_file, None
    if run_file.cluster.engine in ("skypilot", "ray"):
        program = program_of(run_file, command=resolved.command or ())
    return backend_for(run_file.cluster, store=store, program=program)


def backend_of_job(job: JobRow, *, store: JobStore | None = None) -> Backend | None:
    """The backend that a job was submitted to, able to submit it again while its run directory is there.

    Returns:
        None where nobody knows any more.

    Raises: as `backend_of_run`.
    """
    try:
        resolved = RunDir(Path(job.run_dir)).read_resolved()
    except EnvironmentProblem:
        cluster = cluster_of_job(job)
        return backend_for(cluster, store=store) if cluster else None
    return backend_of_run(resolved, store=store)


def cluster_of(run_dir: Path) -> Cluster | None:
    """Where a run is to run; None where its directory does not say so any more."""
    try:
        resolved = json.loads(RunDir(run_dir).resolved_file.read_bytes())
        return Cluster.model_validate(resolved["run_file"]["cluster"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError):
        return None


def cluster_of_job(job: JobRow) -> Cluster | None:
    """Where a job is to run: as its run says now; as it said when it was submitted, if its directory is gone."""
    if (found := cluster_of(Path(job.run_dir))) is not None or job.cluster is None:
        return found
    try:
        return Cluster.model_validate_json(job.cluster)
    except ValidationError:  # of another version
        return None
