"""Look up the backend that a run file names: built-in, or from a plugin's entry point; imported on first use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from pydantic import BaseModel, ValidationError

from trainworks.backends.backend import Backend
from trainworks.config.backend_names import ENTRY_POINTS, PUBLISHED
from trainworks.errors import EnvironmentProblem, UsageError, suggest
from trainworks.jobs.program import Program, program_of
from trainworks.record.run_dir import RunDir

if TYPE_CHECKING:
    from trainworks.config.run_file import Cluster
    from trainworks.jobs.job_row import JobRow
    from trainworks.jobs.store import JobStore
    from trainworks.record.resolved import ResolvedRun

_BUILT_IN = {
    "local": "trainworks.backends.local.backend:LocalBackend",
    "slurm": "trainworks.backends.slurm.backend:SlurmBackend",
    "kubernetes": "trainworks.backends.kubernetes.backend:KubernetesBackend",
    "skypilot": "trainworks.backends.skypilot.backend:SkyPilotBackend",
    "ssh": "trainworks.backends.ssh.backend:SshBackend",
}
_OWN_FILES = frozenset(("kubernetes", "skypilot"))
"""Built-in backends whose nodes do not see the run directory."""

Options = TypeVar("Options", bound=BaseModel)


def backend_class(name: str) -> type[Backend]:
    """Import the class of a backend.

    Raises:
        UsageError: no such backend is installed, or its plugin cannot be imported.
    """
    built_in = [EntryPoint(name, _BUILT_IN[name], ENTRY_POINTS)] if name in _BUILT_IN else []
    point = next(iter(built_in or entry_points(group=ENTRY_POINTS, name=name)), None)
    if point is None and name in PUBLISHED:
        raise UsageError(f"the `{name}` backend is not installed", hint=f"pip install {PUBLISHED[name]}")
    if point is None:
        known = ", ".join(f"`{name}`" for name in (*_BUILT_IN, *PUBLISHED))
        raise UsageError(f"no backend runs jobs on cluster `{name}`", hint=f"set `cluster` to one of {known}")
    try:
        backend: type[Backend] = point.load()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot load the `{name}` backend from `{point.value}`: {error}") from None
    return backend


def clusters_here() -> list[str]:
    """Names of clusters, besides this machine's queue, whose nodes this machine can ask for without a run file."""
    found = []
    for name in (*_BUILT_IN, *entry_points(group=ENTRY_POINTS).names):
        with suppress(UsageError):  # a plugin that cannot be imported
            found += [name] if backend_class(name).is_here() else []
    return found


def local_backend(store: JobStore | None = None) -> Backend:
    """Create the backend of this machine's queue, without a run file; imported here, as a list of jobs does without."""
    create = cast("Callable[[JobStore | None], Backend]", backend_class("local"))
    return create(store)


def shares_files(name: str) -> bool:
    """Whether the nodes of a backend see the run directory; built-in backends are not imported to find out."""
    if name in PUBLISHED or name not in (*_BUILT_IN, "described"):
        try:
            return backend_class(name).shares_files
        except UsageError:
            return False
    return name not in _OWN_FILES


def plugin_options(cluster: Cluster, model: type[Options]) -> Options:
    """Validate the block of a plugin in `cluster`.

    Raises:
        UsageError: a value does not fit the model; names the first such field.
    """
    try:
        return model.model_validate(cluster.plugins.get(cluster.engine, {}))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        field = f"cluster.{cluster.engine}." + ".".join(map(str, detail["loc"]))
        if detail["type"] != "extra_forbidden":
            reason = detail["msg"][0].lower() + detail["msg"][1:]
            raise UsageError(f"`{field}` does not fit: {reason}") from None
        known = model.model_fields
        hint = suggest(str(detail["loc"][-1]), known, otherwise=f"known keys: {', '.join(known)}")
        raise UsageError(f"unknown key `{field}`", hint=hint) from None


def backend_for(cluster: Cluster, *, store: JobStore | None = None, program: Program | None = None) -> Backend:
    """Create the backend of a cluster.

    `store` is the open store of this machine's queue. `program` is what the job runs, for backends that need it; see
    `backend_of_run`.

    Raises:
        UsageError: the cluster is described for planning, or its backend is not installed.
    """
    name = (cluster.of or cluster.engine) if cluster.engine == "described" else cluster.engine
    return backend_class(name).connect(cluster, store=store, program=program)


def backend_of_run(resolved: ResolvedRun, *, store: JobStore | None = None) -> Backend:
    """Create the backend that a run names, able to submit it.

    Raises:
        UsageError: as `backend_for`; or the run is a workload, and the backend has no Trainworks for its nodes.
    """
    run_file, program = resolved.run_file, None
    engine = run_file.cluster.engine
    if engine != "described" and (backend := backend_class(engine)).needs_program:
        is_workload = run_file.workload is not None
        command = resolved.command or ()
        program = backend.workload_program(run_file) if is_workload else program_of(run_file, command=command)
    return backend_for(run_file.cluster, store=store, program=program)


def backend_of_job(job: JobRow, *, store: JobStore | None = None) -> Backend | None:
    """Create the backend that a job was submitted to; while the run directory exists, it can submit the job again.

    Returns:
        None if neither the run directory nor the store names the cluster.

    Raises: as `backend_of_run`.
    """
    try:
        resolved = RunDir(Path(job.run_dir)).read_resolved()
    except EnvironmentProblem:
        cluster = cluster_of_job(job)
        return backend_for(cluster, store=store) if cluster else None
    return backend_of_run(resolved, store=store)


def cluster_of(run_dir: Path) -> Cluster | None:
    """Cluster of a run, or None if its directory no longer tells."""
    from trainworks.config.run_file import Cluster  # noqa: PLC0415, a list of local jobs does without

    try:
        return Cluster.model_validate(json.loads(RunDir(run_dir).resolved_file.read_bytes())["run_file"]["cluster"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_copied(run_dir: Path) -> bool:
    """Whether the job of a run writes its record elsewhere, and `Backend.fetch` brings it into the run directory."""
    try:
        cluster = json.loads(RunDir(run_dir).resolved_file.read_bytes())["run_file"]["cluster"]
        return cluster["engine"] == "slurm" and cluster["slurm"]["folder"] is not None
    except (OSError, ValueError, KeyError, TypeError):
        return False


def cluster_of_job(job: JobRow) -> Cluster | None:
    """Cluster of a job, from its run directory or, if that is gone, as it was submitted."""
    if (cluster := cluster_of(Path(job.run_dir))) is not None or job.cluster is None:
        return cluster
    from trainworks.config.run_file import Cluster  # noqa: PLC0415

    try:
        return Cluster.model_validate_json(job.cluster)
    except ValidationError:  # of another version
        return None


def group_by_backend(jobs: Iterable[JobRow]) -> dict[str, list[JobRow]]:
    """Jobs by the name and options of their backends; without those of which nothing tells the backend."""
    found: dict[str, list[JobRow]] = {}
    for job in jobs:
        if (cluster := cluster_of_job(job)) is not None:
            own = getattr(cluster, cluster.engine, None)
            key = json.dumps([cluster.engine, own.model_dump(mode="json") if own else None])
            found.setdefault(key, []).append(job)
    return found
