"""Accept a cluster: one command holds its nodes, links, storage and a short training against what was planned."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from trainworks import __version__
from trainworks.api.bench import Progress, bench, shortened
from trainworks.api.deploying import verify_stack
from trainworks.catalog.cluster import ClusterDescription
from trainworks.catalog.stack_cluster import read_cluster
from trainworks.config.stack import load_stack
from trainworks.deploy.hardware import hardware_of
from trainworks.errors import ArgumentError
from trainworks.jobs.described_nodes import described_cluster
from trainworks.report.proving.acceptance import Acceptance
from trainworks.units import format_quantity


def accept_cluster(
    stack: Path | str,
    into: Path,
    run_file: Path | str,
    *,
    full: bool = False,
    folder: Path | str = "runs",
    progress: Progress | None = None,
) -> Acceptance:
    """Compare the nodes of a stack with it, benchmark all compute nodes, and train a workload on them for 30 steps.

    Each part is held against what the plan counts on: the software of the stack, the rates of its hardware, what the
    workload needs of its storage, and its step time. Nodes that differ from the stack are not measured, and a cluster
    that the benchmark does not accept trains nothing. What was measured teaches later plans of this kind of cluster.

    Args:
        stack: path of the stack file.
        into: folder of its Ansible project, as for `apply_stack`.
        run_file: path of the run file of a workload whose cluster is this one.
        full: sizes for acceptance, up to hours, instead of about a minute.
        folder: folder of all runs.
        progress: receives a line for every finished part.

    Raises:
        ArgumentError: the run file has no workload, its cluster is this machine, or it counts on other nodes than
            those of the stack.
        UsageError: as `verify_stack` and `bench`.
        RunFileError: as `verify_stack`, or the run file has problems.
        EnvironmentProblem: as `verify_stack` and `bench`.
        RunFailedError: the benchmark failed.
    """
    described, source = load_stack(Path(stack))
    short = shortened(str(run_file), folder).run_file
    if short.cluster.engine == "local":
        hint = "give a run file with `cluster: {engine: slurm}`"
        raise ArgumentError("an acceptance measures the nodes of a cluster", argument="run_file", hint=hint)
    groups = list(described.groups("compute"))
    has_accelerators = any(hardware_of(group).accelerators for group in groups)
    if short.cluster.of is not None:
        _check_same(described_cluster(short), read_cluster(str(stack)))
    verification = verify_stack(stack, into)
    nodes = tuple(name for group in groups for name in group.names)
    found = None
    if not verification.failed:
        found = bench(
            cluster=str(run_file),
            nodes=len(nodes),
            full=full,
            expect=str(stack) if short.cluster.of is None and has_accelerators else None,
            train=True,
            folder=folder,
            progress=progress,
        )
    return Acceptance(
        created_at=time.time(),
        trainworks=__version__,
        stack_sha256=hashlib.sha256(source.text.encode()).hexdigest(),
        run_file_sha256=hashlib.sha256(Path(run_file).read_bytes()).hexdigest(),
        verification=verification,
        nodes=nodes,
        bench=found,
    )


def _check_same(planned: ClusterDescription, bought: ClusterDescription) -> None:
    """Refuse a plan that counts on other accelerators or another network than the stack has."""
    kinds = [
        (each.accelerator.name, each.accelerators_per_node, each.network, each.node_bytes_per_s, each.oversubscription)
        for each in (planned, bought)
    ]
    if kinds[0] != kinds[1]:
        words = [
            f"{each.name} with {format_quantity(each.node_bytes_per_s, 'bytes/s')} of {each.network} a node"
            for each in (planned, bought)
        ]
        message = f"the plan counts on {words[0]}, and the stack has {words[1]}"
        raise ArgumentError(message, argument="run_file", hint="set `cluster.of` to the stack file, and plan again")
