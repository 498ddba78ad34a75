"""What a queue is asked: how many nodes of what, for how long, and before whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainworks.config.run_file import RunFile
from trainworks.jobs.environment import accelerators_per_node
from trainworks.record.resolved import Processes

__all__ = ["JobSpec", "NodeResources", "spec_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResources:
    """What every node of the job must have; None where it does not matter."""

    cores: float | None = None
    accelerators: int = 0
    accelerator: str | None = None
    """Name of the accelerator, as the engine knows it: `A100`, `h100`."""
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job as a queue sees it; what it does once it has its nodes is in its run directory."""

    run_id: str
    name: str
    min_nodes: int
    max_nodes: int
    """All or nothing: at least `min_nodes` together, and no more than this."""
    node: NodeResources
    tasks_per_node: int = 1
    """Processes that a batch script's own launcher starts; everything else starts its ranks itself."""
    time_limit_s: float | None = None
    """Of one attempt."""
    grace_s: float = 120.0
    priority: int = 50
    preemptible: bool = True
    exclude: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()
    """Jobs, by number or run, that have to succeed first."""
    hold: bool = False
    max_restarts: int = 0
    """Automatic restarts after a failure that another start may help."""
    working_folder: str = "."


def spec_of(
    run_file: RunFile, *, run_id: str, working_folder: str, max_restarts: int, processes: Processes | None = None
) -> JobSpec:
    """The job spec of a run.

    Args:
        run_file: what is asked for.
        run_id: of its run directory.
        working_folder: where a command starts.
        max_restarts: as `job.request` counts them.
        processes: of a run that is resolved already; without them the words of the run file count.
    """
    job = run_file.job
    nodes = processes.nodes if processes else run_file.nodes
    return JobSpec(
        run_id=run_id,
        name=run_file.name,
        min_nodes=min(job.min_nodes or nodes, nodes),
        max_nodes=nodes,
        node=_of_processes(processes, run_file) if processes else _of_run_file(run_file),
        tasks_per_node=_tasks(run_file),
        working_folder=working_folder,
        max_restarts=max_restarts,
        **_wishes(run_file),
    )


def _tasks(run_file: RunFile) -> int:
    per_node = run_file.cluster.processes_per_node
    return per_node if run_file.framework == "slurm" and per_node != "auto" else 1


def _wishes(run_file: RunFile) -> dict[str, Any]:
    job = run_file.job
    return {
        "time_limit_s": job.time_limit,
        "grace_s": job.grace,
        "priority": job.priority,
        "preemptible": job.preemptible,
        "exclude": job.exclude,
        "depends_on": job.depends_on,
        "hold": job.hold,
    }


def _of_processes(processes: Processes, run_file: RunFile) -> NodeResources:
    """A core for each thread, unless the run file says how many."""
    asked = run_file.resources
    cores = asked.cpus if asked and asked.cpus else float(processes.processes_per_node * processes.threads_per_process)
    memory = int(asked.memory * 1e9) if asked and asked.memory else None
    return NodeResources(cores=cores, accelerators=accelerators_per_node(processes), memory_bytes=memory)


def _of_run_file(run_file: RunFile) -> NodeResources:
    """One rank per accelerator; without accelerators one core per rank."""
    per_node = run_file.cluster.processes_per_node
    ranks = 1 if per_node == "auto" else per_node
    asked = run_file.resources
    if asked is None:
        return NodeResources(cores=float(ranks))
    first = asked.accelerators[0] if asked.accelerators else None
    return NodeResources(
        cores=asked.cpus or (None if first else float(ranks)),
        accelerators=first.count if first else 0,
        accelerator=first.kind if first else None,
        memory_bytes=round(asked.memory * 1e9) if asked.memory else None,
    )
