"""The engine that a run file names. Its module is imported when it is asked for: most bring a database along."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from trainworks.backends.backend import Engine
from trainworks.config.run_file import Cluster
from trainworks.errors import EnvironmentProblem, UsageError
from trainworks.jobs.program import Program, program_of
from trainworks.record.resolved import ResolvedRun
from trainworks.record.run_dir import RunDir

if TYPE_CHECKING:
    from trainworks.jobs.store import JobRow, JobStore

__all__ = ["FAR", "cluster_of", "cluster_of_job", "engine_for", "engine_of_job", "engine_of_run"]


FAR = frozenset(("kubernetes", "skypilot", "ray"))
"""Engines that do not share files with their nodes, by name: they need not be imported to be told apart."""


def engine_for(cluster: Cluster, *, store: JobStore | None = None, program: Program | None = None) -> Engine:
    """The engine of a cluster.

    Args:
        cluster: as the run file has it.
        store: of this machine's own queue, where it is open already.
        program: what the job runs; some engines have to be told before they can submit it, see `engine_of_run`.

    Raises:
        UsageError: the cluster is described for planning; no engine has it.
    """
    if cluster.engine == "local":
        from trainworks.backends.local.backend import LocalEngine  # noqa: PLC0415

        return LocalEngine(store)
    if cluster.engine == "slurm":
        from trainworks.backends.slurm.backend import SlurmEngine  # noqa: PLC0415

        return SlurmEngine(cluster.slurm)
    if cluster.engine == "kubernetes":
        from trainworks.backends.kubernetes.backend import KubernetesEngine  # noqa: PLC0415

        return KubernetesEngine(cluster.kubernetes, autoscale=cluster.autoscale)
    if cluster.engine == "skypilot":
        from trainworks.backends.skypilot.backend import SkyPilotEngine  # noqa: PLC0415

        return SkyPilotEngine(cluster.skypilot, program=program)
    if cluster.engine == "ray":
        from trainworks.backends.ray.backend import RayEngine  # noqa: PLC0415

        return RayEngine(cluster.ray, program=program)
    raise UsageError(
        f"cluster `{cluster.of or cluster.engine}` has no queue that this version can talk to",
        hint="set `cluster: local`, `slurm`, `kubernetes`, `skypilot` or `ray`",
    )


def engine_of_run(resolved: ResolvedRun, *, store: JobStore | None = None) -> Engine:
    """The engine that a run names, told what an engine has to know that runs it without Trainworks on its nodes.

    Raises:
        UsageError: as `engine_for`; or the run is a workload, which such an engine cannot train.
    """
    run_file, program = resolved.run_file, None
    if run_file.cluster.engine in ("skypilot", "ray"):
        program = program_of(run_file, command=resolved.command or ())
    return engine_for(run_file.cluster, store=store, program=program)


def engine_of_job(job: JobRow, *, store: JobStore | None = None) -> Engine | None:
    """The engine that a job was submitted to, able to submit it again while its run directory is there.

    Returns:
        None where nobody knows any more.

    Raises: as `engine_of_run`.
    """
    try:
        resolved = RunDir(Path(job.run_dir)).read_resolved()
    except EnvironmentProblem:
        cluster = cluster_of_job(job)
        return engine_for(cluster, store=store) if cluster else None
    return engine_of_run(resolved, store=store)


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
