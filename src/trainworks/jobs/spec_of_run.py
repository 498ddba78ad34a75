"""The job spec of a run, from its run file and, on this machine, from the ranks it was resolved to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainworks.jobs.environment import accelerators_per_node
from trainworks.jobs.job_spec import ARRAY_ID, JobSpec, NodeResources, is_array_id

if TYPE_CHECKING:
    from trainworks.config.run_file import RunFile
    from trainworks.record.processes import Processes
    from trainworks.record.resolved import ResolvedRun


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

    `working_folder` is the one a command starts in. Without the `processes` of a resolved run its resources are those
    of the run file.
    """
    job = run_file.job
    nodes = processes.nodes if processes else run_file.nodes
    by_ssh = run_file.cluster.engine == "ssh"  # whose queue starts a workload again on fewer nodes
    array, per_node = run_file.envs.get(ARRAY_ID) or "", run_file.cluster.processes_per_node
    node, request = _node_of_run_file(run_file), run_file.resources
    if processes is not None:  # one core per thread, unless the run file gives the number of cores
        threads = processes.processes_per_node * processes.threads_per_process
        node = NodeResources(
            cores=request.cpus if request and request.cpus else float(threads),
            accelerators=accelerators_per_node(processes),
            memory_bytes=request.memory_bytes if request else None,
        )
    return JobSpec(
        run_id=run_id,
        name=run_file.name,
        min_nodes=min(job.min_nodes or nodes, nodes) if run_file.workload is None or by_ssh else nodes,
        max_nodes=nodes,
        node=node,
        tasks_per_node=per_node if run_file.framework == "slurm" and per_node != "auto" else 1,
        working_folder=working_folder,
        keep_code=job.keep_code,
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
        memory_bytes=request.memory_bytes,
    )
