"""A run for other machines, resolved as far as that can be done here: what it asks for stands in for what they have."""

from __future__ import annotations

import time
from pathlib import Path

from trainworks import __version__
from trainworks.plan.local.command import choose_command_processes, choose_workload_processes
from trainworks.record.environment import AcceleratorFacts, HostFacts
from trainworks.record.resolved import ResolvedRun
from trainworks.spec.command import Resources
from trainworks.spec.run_file import RunFile

__all__ = ["as_asked", "resolve_elsewhere"]


def resolve_elsewhere(run_file: RunFile, *, run_id: str, folder: Path, command: list[str] | None) -> ResolvedRun:
    """A run without a plan: a workload is planned on its nodes, once it has them.

    Raises:
        UsageError: a launcher would be started once per rank.
    """
    host = as_asked(run_file)
    choose = choose_workload_processes if run_file.workload else choose_command_processes
    return ResolvedRun(
        run_id=run_id,
        created_at=time.time(),
        trainworks=__version__,
        run_file=run_file,
        command=tuple(command) if command else None,
        working_folder=str(folder),
        processes=choose(run_file, host),
        host=host,
    )


def as_asked(run_file: RunFile) -> HostFacts:
    """All nodes of a run as one machine that has exactly what `resources` asks for, and a core per rank without it."""
    asked, nodes = run_file.resources or Resources(), run_file.nodes
    per_node = run_file.cluster.processes_per_node
    first = asked.accelerators[0] if asked.accelerators else None
    ranks = (first.count if first else 1) if per_node == "auto" else per_node
    return HostFacts(
        hostname=run_file.cluster.engine,
        operating_system="",
        processor="",
        num_cores=max(1, round((asked.cpus or ranks) * nodes)),
        memory_bytes=round((asked.memory or 0) * 1e9) * nodes,
        disk_free_bytes=0,
        accelerators=tuple(
            AcceleratorFacts(index=index, name=first.kind or "", memory_bytes=0) for index in range(first.count * nodes)
        )
        if first
        else (),
        python="",
        packages={},
    )
