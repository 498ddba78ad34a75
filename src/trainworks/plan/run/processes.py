"""Processes of a run on this machine or on the nodes it requests, checked against `resources`."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from trainworks.config.command import Resources, split_mig
from trainworks.config.layout import MESH_AXES
from trainworks.config.run_file import RunFile
from trainworks.errors import UsageError
from trainworks.record.environment import AcceleratorFacts, HostFacts
from trainworks.record.processes import Processes
from trainworks.units import format_bytes

_LAUNCHERS = re.compile(r"(?:^|[\s;&|(])(torchrun|deepspeed|mpirun|mpiexec|horovodrun)\s")
_RANKS_OF_LAUNCHER = re.compile(r"--(?:nproc[-_]per[-_]node|num_gpus)[ =](\d+)")
_ONCE_PER_NODE = {"torchrun": "--nproc-per-node", "deepspeed": "--num_gpus"}
"""Launchers that start once per node, and their option for the ranks there; the others start once."""


class ResourceError(UsageError):
    """This machine has less than the run requests.

    Args:
        field: key of `resources` that cannot be satisfied, to name its line.
        role: the role whose `resources` they are.
    """

    def __init__(self, message: str, *, field: str, hint: str | None = None, role: str | None = None) -> None:
        super().__init__(message if role is None else f"role `{role}`, beside those before it: {message}", hint=hint)
        self.field = field
        self.path = ("resources", field) if role is None else ("roles", role, "resources", field)


def memory_per_rank(host: HostFacts, processes: Processes) -> int:
    """Bytes that one rank may use: an accelerator's memory, or its share of the host's on a CPU."""
    if processes.device == "cuda":
        return min(accelerator.memory_bytes for accelerator in host.accelerators)
    return host.memory_bytes // processes.world_size


def requested_host(run_file: RunFile) -> HostFacts:
    """All nodes of a run as one machine with exactly the requested `resources`, by default one core per rank."""
    if run_file.roles:
        return _together([requested_host(run_file.of_role(name)) for name in run_file.roles])
    resources, nodes = run_file.resources or Resources(), run_file.nodes
    per_node = run_file.cluster.processes_per_node
    first = resources.accelerators[0] if resources.accelerators else None
    ranks = (first.count if first else 1) if per_node == "auto" else per_node
    return HostFacts(
        hostname=run_file.cluster.engine,
        operating_system="",
        processor="",
        num_cores=max(1, round((resources.cpus or ranks) * nodes)),
        memory_bytes=(resources.memory_bytes or 0) * nodes,
        disk_free_bytes=0,
        accelerators=tuple(
            AcceleratorFacts(index=index, name=first.kind or "", memory_bytes=0) for index in range(first.count * nodes)
        )
        if first
        else (),
        python="",
        packages={},
    )


def _together(hosts: Sequence[HostFacts]) -> HostFacts:
    devices = [device for host in hosts for device in host.accelerators]
    return hosts[0].model_copy(
        update={
            "num_cores": sum(host.num_cores for host in hosts),
            "memory_bytes": sum(host.memory_bytes for host in hosts),
            "accelerators": tuple(device.model_copy(update={"index": index}) for index, device in enumerate(devices)),
        }
    )


def choose_processes(run_file: RunFile, *, num_cores: int, num_accelerators: int) -> Processes:
    """Ranks, threads and device: one rank per accelerator, or one on a machine without any; threads share the cores.

    Raises:
        UsageError: more ranks than accelerators, on a machine that has some.
    """
    cluster = run_file.cluster
    automatic = max(1, num_accelerators // cluster.nodes)
    per_node = automatic if cluster.processes_per_node == "auto" else cluster.processes_per_node
    ranks = per_node * cluster.nodes
    if 0 < num_accelerators < ranks:
        raise UsageError(
            f"{cluster.nodes} node(s) of {per_node} rank(s) are more than the {num_accelerators} accelerators here",
            hint="start fewer ranks, or hide the accelerators (CUDA_VISIBLE_DEVICES=) to train on the CPU",
        )
    return Processes(
        nodes=cluster.nodes,
        processes_per_node=per_node,
        threads_per_process=max(1, num_cores // ranks),
        device="cuda" if num_accelerators else "cpu",
    )


def choose_workload_processes(run_file: RunFile, host: HostFacts) -> Processes:
    """Ranks of a workload, within its `resources` if given.

    Raises:
        ResourceError: the machine has less than `resources` requests.
        UsageError: more ranks than accelerators, on a machine that has some.
    """
    resources, nodes = run_file.resources or Resources(), run_file.nodes
    accelerators = _accelerators_per_node(resources, host, nodes)
    _check_size(resources, host, nodes)
    return choose_processes(
        run_file,
        num_cores=int(resources.cpus * nodes) or 1 if resources.cpus else host.num_cores,
        num_accelerators=accelerators * nodes or len(host.accelerators),
    )


def choose_command_processes(run_file: RunFile, host: HostFacts) -> Processes:
    """Processes, nodes, threads and accelerators of a command.

    Raises:
        ResourceError: the machine has less than `resources` requests.
        UsageError: a launcher would be started once per rank.
    """
    starts, nodes = run_file.starts, run_file.nodes
    resources = run_file.resources or Resources()
    accelerators = _accelerators_per_node(resources, host, nodes)
    _check_size(resources, host, nodes)
    shared = len(host.accelerators) // nodes if starts == "per_node" else 0
    per_node = _processes_per_node(run_file, host, accelerators)
    chosen = choose_processes(
        run_file.with_ranks(nodes, per_node), num_cores=host.num_cores, num_accelerators=len(host.accelerators)
    )
    _check_launcher(run_file.run or "", chosen, starts)
    each = accelerators or shared
    threads = max(1, host.num_cores // (nodes * max(1, each))) if starts == "per_node" else chosen.threads_per_process
    if resources.cpus is not None:
        shared_by = max(1, each) if starts == "per_node" else chosen.processes_per_node
        threads = max(1, int(resources.cpus) // shared_by)
    return chosen.model_copy(update={"starts": starts, "accelerators_per_node": each, "threads_per_process": threads})


def training_processes(run_file: RunFile, processes: Processes) -> Processes:
    """The processes that train, where a launcher in the command starts those of a node.

    They are as many as `--nproc-per-node` says, else as `layout` has, else one for each requested accelerator.
    """
    if processes.processes_per_node > 1:
        return processes
    said, layout = _RANKS_OF_LAUNCHER.search(run_file.run or ""), run_file.layout
    degrees = 1 if layout is None else math.prod(getattr(layout, axis) for axis in MESH_AXES)
    ranks = int(said[1]) if said else max(degrees // processes.nodes, processes.accelerators_per_node, 1)
    threads = max(1, processes.threads_per_process // (1 if processes.accelerators_per_node else ranks))
    return processes.model_copy(update={"processes_per_node": ranks, "threads_per_process": threads})


def choose_role_processes(run_file: RunFile, host: HostFacts) -> Processes:
    """Processes of every role; the roles share the machine in their order.

    A role has the accelerators that it requests and no others. Cores that no role requests are divided among the nodes
    of those without `cpus`.

    Raises:
        ResourceError: a role requests more than those before it leave.
        UsageError: a launcher would be started once per rank.
    """
    files = {name: run_file.of_role(name) for name in run_file.roles}
    requested = {name: own.resources or Resources() for name, own in files.items()}
    cores = sum((requested[name].cpus or 0) * own.nodes for name, own in files.items())
    others = sum(own.nodes for name, own in files.items() if requested[name].cpus is None)
    each = max(1, int(host.num_cores - cores) // max(1, others))
    found, left = dict[str, Processes](), host
    for name, own in files.items():
        resources = requested[name]
        seen = left if resources.cpus else left.model_copy(update={"num_cores": each * own.nodes})
        seen = seen if resources.accelerators else seen.model_copy(update={"accelerators": ()})
        try:
            found[name] = choose_command_processes(own, seen)
        except ResourceError as error:
            raise ResourceError(error.message, field=error.field, hint=error.hint, role=name) from None
        left = left.model_copy(
            update={
                "num_cores": left.num_cores - int((resources.cpus or 0) * own.nodes),
                "memory_bytes": left.memory_bytes - (resources.memory_bytes or 0) * own.nodes,
                "accelerators": left.accelerators[found[name].num_accelerators if resources.accelerators else 0 :],
            }
        )
    return Processes.of_roles(found)


def _processes_per_node(run_file: RunFile, host: HostFacts, accelerators: int) -> int | None:
    """Processes as configured; else one if the command starts the ranks, and under MPI one per accelerator or core."""
    if run_file.cluster.processes_per_node != "auto":
        return None
    if run_file.starts == "per_node":
        return 1
    if run_file.starts == "once":
        return max(1, accelerators or (len(host.accelerators) or host.num_cores) // run_file.nodes)
    return None


def _accelerators_per_node(resources: Resources, host: HostFacts, nodes: int) -> int:
    """Accelerators of the first alternative that this machine can give to every node; 0 if none is requested."""
    if resources.accelerators is None:
        return 0
    for request in resources.accelerators:
        if nodes * request.count <= sum(_is_called(request.kind, device.name) for device in host.accelerators):
            return request.count
    requests = " or ".join(f"{nodes * request.count} {request.name}" for request in resources.accelerators)
    each = f" ({nodes} nodes)" if nodes > 1 else ""
    names = [device.name for device in host.accelerators]
    present = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
    raise ResourceError(
        f"{requests}{each} requested, but this machine has {present or 'no accelerator'}",
        field="accelerators",
        hint="leave `accelerators` out to run here as it is; plan for other machines with `trainworks size`",
    )


def _is_called(request: str | None, name: str) -> bool:
    """True if a driver's device name matches `A100`, `A100-80GB` or `H100-SXM`: all parts, `SXM` for any `SXM4`.

    `1g.10gb` is a part by MIG of any model, which no name of a whole accelerator matches.
    """
    if request is None:
        return True
    (model, profile), (known, there) = split_mig(request), split_mig(name)
    parts = re.split(r"[\s_-]+", known.lower())
    return profile == there and all(
        part in parts or (part.isalpha() and any(re.fullmatch(rf"{part}\d+", other) for other in parts))
        for part in filter(None, re.split(r"[_-]+", model.lower()))
    )


def _check_size(resources: Resources, host: HostFacts, nodes: int) -> None:
    cores = (resources.cpus or 0) * nodes
    if cores > host.num_cores:
        raise ResourceError(f"{cores:g} cores requested, but this machine has {host.num_cores}", field="cpus")
    memory_bytes = (resources.memory_bytes or 0) * nodes  # as `requested_host` counts
    if memory_bytes > host.memory_bytes:
        needed, present = format_bytes(memory_bytes), format_bytes(host.memory_bytes)
        raise ResourceError(f"{needed} of memory requested, but this machine has {present}", field="memory")


def _check_launcher(script: str, processes: Processes, starts: str) -> None:
    """A launcher makes the ranks of its node, or of all; started once per rank it would make too many."""
    match = _LAUNCHERS.search(script)
    if match is None or starts != "per_rank" or processes.processes_per_node == 1:
        return
    launcher, per_node = match[1], _ONCE_PER_NODE.get(match[1])
    instead = (
        f"start it once per node (--nproc 1) and give {launcher} {per_node}" if per_node else "set `framework: mpi`"
    )
    raise UsageError(
        f"{launcher} would be started {processes.processes_per_node} times on each node",
        hint=f"{instead}, or start the script itself",
    )
