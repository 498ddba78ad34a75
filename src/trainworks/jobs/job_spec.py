"""The job a run submits to a queue: its resources, time limit and priority."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from trainworks.jobs.environment import accelerators_per_node

ARRAY_ID = "TRAINWORKS_ARRAY_ID"
"""Variable with the id of the array that a command is one of."""
_ARRAY_LETTERS = "bcdfghjkmnpqrstvwxz"  # spell no words

if TYPE_CHECKING:
    from trainworks.config.run_file import RunFile
    from trainworks.record.resolved import Processes, ResolvedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """Resources of every node of a job; None means no requirement."""

    cores: float | None = None
    accelerators: int = 0
    accelerator: str | None = None
    """Accelerator type by its name on the backend: `A100`, `h100`."""
    alternatives: tuple[str, ...] = ()
    """Other accelerators that would do, for backends that choose: `H100:8`."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Resources, time limit and priority a job requests.

    The resolved run in the run directory says what the job executes on its nodes.
    """

    run_id: str
    name: str
    min_nodes: int
    max_nodes: int
    """Gang size: the job starts on at least `min_nodes` and at most `max_nodes` nodes at once."""
    node: NodeResources
    tasks_per_node: int = 1
    """Slurm tasks per node for a batch script with its own launcher; 1 for every other job."""
    time_limit_s: float | None = None
    """Time limit of one attempt."""
    grace_s: float = 120.0
    priority: int = 50
    preemptible: bool = True
    exclude: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    """Jobs, by number or run, that must succeed before this one starts."""
    hold: bool = False
    health: bool = False
    """Check every node before the ranks start."""
    max_restarts: int = 0
    """Automatic restarts after a failure that a restart can fix."""
    restart_window_s: float = 86_400.0
    """Restarts that lie further back do not count."""
    working_folder: str = "."
    team: str = ""
    """Team that the job is billed to."""
    array: str | None = None
    """Id of the array that the job is one of: `array-kxbwtq`."""
    environment: Literal["lock", "conda", "image"] | None = None
    """Kind of the packages that the run file names for its ranks."""


def new_array_id() -> str:
    """Draw an id for an array, unlike any run id: `array-kxbwtq`."""
    return "array-" + "".join(secrets.choice(_ARRAY_LETTERS) for _ in range(6))


def is_array_id(name: str) -> bool:
    """Whether a name has the form of an array's id."""
    return re.fullmatch(f"array-[{_ARRAY_LETTERS}]{{6}}", name) is not None


def spec_of_run(resolved: ResolvedRun) -> JobSpec:
    """The job spec of a resolved run.

    A run on another cluster is resolved again on its nodes: its resources are those of the run file.
    """
    is_local = resolved.run_file.cluster.engine == "local"
    return spec_of(
        resolved.run_file,
        run_id=resolved.run_id,
        working_folder=resolved.working_folder,
        processes=resolved.processes if is_local else None,
    )


def spec_of(run_file: RunFile, *, run_id: str, working_folder: str, processes: Processes | None = None) -> JobSpec:
    """The job spec of a run file.

    Args:
        run_file: the run file.
        run_id: id of the run.
        working_folder: folder a command starts in.
        processes: ranks of a resolved run; None takes the resources from the run file.
    """
    job = run_file.job
    nodes = processes.nodes if processes else run_file.nodes
    array = run_file.envs.get(ARRAY_ID) or ""
    return JobSpec(
        run_id=run_id,
        name=run_file.name,
        min_nodes=min(job.min_nodes or nodes, nodes) if run_file.workload is None else nodes,
        max_nodes=nodes,
        node=_node_of_processes(processes, run_file) if processes else _node_of_run_file(run_file),
        tasks_per_node=_tasks_per_node(run_file),
        working_folder=working_folder,
        max_restarts=run_file.max_restarts,
        restart_window_s=run_file.recover.restart_window,
        time_limit_s=job.time_limit,
        grace_s=job.grace,
        priority=job.priority,
        preemptible=job.preemptible,
        exclude=job.exclude,
        depends_on=job.depends_on,
        hold=job.hold,
        health=bool(job.health),
        team=job.team or "",
        array=array if is_array_id(array) else None,
        environment=run_file.environment.kind if run_file.environment else None,
    )


def _tasks_per_node(run_file: RunFile) -> int:
    per_node = run_file.cluster.processes_per_node
    return per_node if run_file.framework == "slurm" and per_node != "auto" else 1


def _node_of_processes(processes: Processes, run_file: RunFile) -> NodeResources:
    """One core per thread, unless the run file gives the number of cores."""
    request = run_file.resources
    threads = processes.processes_per_node * processes.threads_per_process
    cores = request.cpus if request and request.cpus else float(threads)
    memory = int(request.memory * 1e9) if request and request.memory else None
    return NodeResources(cores=cores, accelerators=accelerators_per_node(processes), memory_bytes=memory)


def _node_of_run_file(run_file: RunFile) -> NodeResources:
    """One rank per accelerator; without accelerators one core per rank."""
    per_node = run_file.cluster.processes_per_node
    ranks = 1 if per_node == "auto" else per_node
    request = run_file.resources
    if request is None:
        return NodeResources(cores=float(ranks))
    first, *others = request.accelerators or (None,)
    return NodeResources(
        cores=request.cpus or (None if first else float(ranks)),
        accelerators=first.count if first else 0,
        accelerator=first.kind if first else None,
        alternatives=tuple(map(str, others)),
        memory_bytes=round(request.memory * 1e9) if request.memory else None,
    )
