"""The job spec of a run, from its run file and, on this machine, from the ranks it was resolved to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainworks.jobs.environment import accelerators_per_node
from trainworks.jobs.job_spec import ARRAY_ID, JobSpec, NodeResources, RoleSpec, is_array_id

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
    groups = processes.groups() if processes else []
    roles = tuple(
        RoleSpec(
            name=name,
            nodes=role.nodes,
            node=_node_of(run_file.of_role(name), groups[number].processes if groups else None),
            decides=role.decides,
            depends_on=role.depends_on,
            restarts=role.restarts,
            image=role.image,
        )
        for number, (name, role) in enumerate(run_file.roles.items())
    )
    return JobSpec(
        run_id=run_id,
        name=run_file.name,
        min_nodes=min(job.min_nodes or nodes, nodes) if run_file.workload is None or by_ssh else nodes,
        max_nodes=nodes,
        node=_most([role.node for role in roles]) if roles else _node_of(run_file, processes),
        roles=roles,
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


def _most(nodes: Sequence[NodeResources]) -> NodeResources:
    return NodeResources(
        cores=max((node.cores for node in nodes if node.cores is not None), default=None),
        accelerators=max(node.accelerators for node in nodes),
        memory_bytes=max((node.memory_bytes for node in nodes if node.memory_bytes is not None), default=None),
    )


def _node_of(run_file: RunFile, processes: Processes | None) -> NodeResources:
    """Resources of a node; those of the run file without processes, else one core per thread unless it says how many.

    Of a run file: one rank per accelerator; without accelerators one core per rank.
    """
    request = run_file.resources
    if processes is not None:
        threads = processes.processes_per_node * processes.threads_per_process
        return NodeResources(
            cores=request.cpus if request and request.cpus else float(threads),
            accelerators=accelerators_per_node(processes),
            memory_bytes=request.memory_bytes if request else None,
        )
    per_node = run_file.cluster.processes_per_node
    ranks = 1 if per_node == "auto" else per_node
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
